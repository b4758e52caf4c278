"""Products whose operands are rounded, against the same products of operands rounded by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.mechanism import precision
from audit.mechanism.clipping import base, dense, layerwise

FORMATS = [precision.TF32, precision.BF16]


def round_by_hand(x, bits):
    """Round to nearest even at `bits` explicit significand bits, by integer arithmetic."""
    whole = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    dropped = 23 - bits
    whole = (whole + (1 << (dropped - 1)) - 1 + ((whole >> dropped) & 1)) >> dropped << dropped
    return whole.astype(np.uint32).view(np.float32)


@pytest.fixture(scope="module")
def matrices():
    rng = np.random.default_rng(0)
    return rng.normal(size=(9, 40)).astype(np.float32), rng.normal(size=(40, 5)).astype(np.float32)


@pytest.mark.parametrize("operands", FORMATS)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_product_is_that_of_rounded_operands(matrices, operands, compiled):
    a, b = matrices
    product = precision.with_operands(lambda a, b: a @ b, operands)
    found = np.asarray((jax.jit(product) if compiled else product)(a, b))
    by_hand = [round_by_hand(x, operands.significand_bits).astype(float) for x in (a, b)]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_hand[0] @ by_hand[1], rtol=0, atol=1e-5)
    assert np.abs(found - a @ b).max() > 1e-4  # float32 would not pass


def test_what_is_no_product_stays_float32(matrices):
    a, _ = matrices

    def function(a):
        return jnp.sum(a**2, 1), jax.random.normal(jax.random.key(0), (3,))

    for found, exact in zip(
        precision.with_operands(function, precision.BF16)(a), function(a), strict=True
    ):
        np.testing.assert_array_equal(found, exact)


def in_scan(a):
    return jax.lax.scan(lambda total, row: (total + row @ a, None), jnp.zeros(a.shape[1]), a.T @ a)[
        0
    ]


def in_branch(a):
    return jax.lax.cond(a[0, 0] > 0, lambda: a.T @ a, lambda: 2 * a.T @ a)


def in_while(a):
    return jax.lax.while_loop(
        lambda s: s[0] < 2, lambda s: (s[0] + 1, s[1] @ s[1]), (0, a[:5, :5])
    )[1]


def in_calls(a):
    return jax.checkpoint(jax.jit(lambda a: jax.nn.relu(a.T @ a)))(a)


def differentiated(a):
    return jax.grad(lambda x: jnp.sum(jax.nn.softplus(jax.nn.relu(x @ a))))(a.T)


def convolved(a):
    return jax.lax.conv(a[None, None], a[None, None, :3, :3], (1, 1), "SAME")


@pytest.mark.parametrize(
    "function", [in_scan, in_branch, in_while, in_calls, differentiated, convolved]
)
def test_products_inside_are_found(matrices, function):
    a = jnp.asarray(matrices[0][:, :9])
    exact = np.asarray(function(a))
    scale = np.abs(exact).max()
    for operands, least, most in ((precision.TF32, 1e-6, 3e-3), (precision.BF16, 1e-4, 3e-2)):
        found = np.asarray(precision.with_operands(function, operands)(a))
        assert found.shape == exact.shape and least < np.abs(found - exact).max() / scale < most


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["book_keeping", "unfolded", "per_example"])
def test_clipped_sums_of_many_models(model, data, strategy):
    parts = (model.module, model.unravel, model.criterion)
    make = {
        "book_keeping": lambda: dense.book_keeping(*parts),
        "unfolded": lambda: layerwise.unfolded_book_keeping(*parts, layerwise.block_bytes()),
        "per_example": lambda: base.per_example(model.loss),
    }[strategy]()
    thetas = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
    exact = jax.jit(jax.vmap(make, (0, None, None)))(thetas, data, 1.0)
    errors = []
    for operands in FORMATS:
        engine = jax.jit(jax.vmap(precision.with_operands(make, operands), (0, None, None)))
        errors.append(
            float(jnp.abs(engine(thetas, data, 1.0) - exact).max() / jnp.abs(exact).max())
        )
    assert 1e-6 < errors[0] < 1e-2 and 2 * errors[0] < errors[1] < 1e-1
