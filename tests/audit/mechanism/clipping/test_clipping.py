"""Tests both strategies against a loop over per-example gradients, and the bound on each example."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.mechanism.clipping import base
from audit.mechanism.clipping.base import UnknownLayer
from audit.tasks.model import flat_model
from tests.cases import mostly_slow

CLIP = jax.jit(base.clip)
NORMS = (1e-6, 0.05, 1.0, np.inf)
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


class MLP(nn.Module):
    widths: tuple[int, ...] = (6,)
    activation: str = "relu"
    use_bias: bool = True

    @nn.compact
    def __call__(self, x):
        for width in self.widths:
            x = getattr(nn, self.activation)(nn.Dense(width, use_bias=self.use_bias)(x))
        return nn.Dense(2)(x)


class Nested(nn.Module):
    """Layers inside submodules, whose names sort otherwise than they are called."""

    @nn.compact
    def __call__(self, x):
        return MLP((4,), name="a_last")(nn.tanh(MLP((5,), name="z_first")(x)))


class Twice(nn.Module):
    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(8)
        return nn.Dense(2)(layer(nn.relu(layer(x))))


class ByName(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(inputs=nn.relu(nn.Dense(6)(inputs=x)))


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.relu(nn.LayerNorm()(nn.Dense(6)(x))))


MODULES = {
    "nested": Nested(),
    "one dense": nn.Dense(2),
    "at the unrolling limit": MLP((4, 8), "tanh"),
    "gelu, three layers, wide": MLP((40, 33, 3), "gelu"),
    "inputs by name": ByName(),
}


def _theta(model, *shape):
    return jnp.asarray(
        0.4 * np.random.default_rng(1).normal(size=(*shape, model.n_parameters)), jnp.float32
    )


def _model(module):
    return flat_model(module, jnp.zeros(8), cross_entropy)


def _both(model):
    return {
        "per_example": base.per_example(model.loss),
        "book_keeping": base.book_keeping(model.module, model.unravel, model.criterion),
    }


@pytest.fixture(scope="module", params=["per_example", "book_keeping"])
def strategy(request, model):
    return jax.jit(_both(model)[request.param])


@pytest.mark.parametrize("name", mostly_slow(MODULES))
def test_equals_a_loop_over_gradients(data, slow_clipped_sum, name):
    """Two models at once, a batch of nine, and of one."""
    model = _model(MODULES[name])
    thetas = _theta(model, 2)
    gradient = jax.jit(jax.grad(model.loss))
    for kind, function in _both(model).items():
        function = jax.jit(jax.vmap(function, (0, None, None)))
        for size in (9, 1) if kind == "book_keeping" else (9,):
            batch = (data[0][:size], data[1][:size])
            for norm in NORMS:
                slow = np.stack(
                    [slow_clipped_sum(gradient, theta, batch, norm) for theta in thetas]
                )
                atol = 1e-5 * (norm if norm < np.inf else max(1, np.abs(slow).max()))
                sums = function(thetas, batch, jnp.float32(norm))
                np.testing.assert_allclose(
                    sums, slow, rtol=0, atol=atol, err_msg=f"{kind}, C = {norm}"
                )


def test_n_examples_sum_to_at_most_n_c_one_more_moves_them_by_c_and_nan_is_not_hidden(
    data, model, strategy
):
    theta, norm, n = _theta(model), 0.05, len(data[1])
    assert np.linalg.norm(strategy(theta, data, norm)) <= n * norm * (1 + 1e-5)
    same = (jnp.tile(data[0][:1], (n, 1)), jnp.tile(data[1][:1], n))
    np.testing.assert_allclose(np.linalg.norm(strategy(theta, same, norm)), n * norm, rtol=1e-5)
    theta, norm = _theta(model), 0.1
    without = strategy(theta, (data[0][:-1], data[1][:-1]), norm)
    moved = []
    for scale, label in ((1.0, 0), (1.0, 1), (1e3, 0), (1e3, 1)):
        batch = (data[0].at[-1].mul(scale), data[1].at[-1].set(label))
        moved.append(np.linalg.norm(strategy(theta, batch, norm) - without))
    assert max(moved) <= norm * (1 + 1e-4)
    np.testing.assert_allclose(max(moved), norm, rtol=1e-4)
    theta = _theta(model)
    assert np.isnan(strategy(theta, (data[0].at[3, 0].set(jnp.nan), data[1]), 1.0)).all()


REFUSED = {
    "layer norm": Inner(),
    "layer called twice": Twice(),
    "layer without bias": MLP(use_bias=False),
}


@pytest.mark.parametrize("kind", mostly_slow(REFUSED))
def test_what_book_keeping_refuses_per_example_takes(data, kind, slow_clipped_sum):
    model = _model(REFUSED[kind])
    theta, batch = _theta(model), (data[0][:6], data[1][:6])
    slow = slow_clipped_sum(jax.jit(jax.grad(model.loss)), theta, batch, 0.3)
    strategies = _both(model)
    sums = jax.jit(strategies["per_example"])(theta, batch, 0.3)
    np.testing.assert_allclose(sums, slow, atol=3e-6)
    with pytest.raises(UnknownLayer, match="this strategy supports only|is called twice|no bias"):
        strategies["book_keeping"](theta, batch, 0.3)


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("length", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("norm", NORMS)
def test_clip(size, length, norm):
    direction = np.random.default_rng(size).normal(size=size)
    vector = (length * direction / np.linalg.norm(direction)).astype(np.float32)
    clipped = np.asarray(CLIP(jnp.asarray(vector), jnp.float32(norm)), np.float64)
    assert np.linalg.norm(clipped) <= norm * (1 + 1e-6)
    np.testing.assert_allclose(clipped, vector * min(1, norm / max(length, 1e-9)), rtol=1e-5)
    if length < norm:
        np.testing.assert_array_equal(clipped, vector)


def test_one_example_is_clipped_to_c_and_no_further(data, model, strategy):
    theta = _theta(model)
    for i in range(20):
        one = (data[0][i : i + 1], data[1][i : i + 1])
        whole = np.linalg.norm(strategy(theta, one, jnp.inf))
        for norm in (1e-6, 0.1, 0.5, 3.0):
            clipped = np.linalg.norm(np.asarray(strategy(theta, one, norm), np.float64))
            assert clipped <= norm * (1 + 1e-6)
            np.testing.assert_allclose(clipped, min(norm, whole), rtol=1e-5)


@pytest.mark.parametrize("norm", [1e-18, 1e20])
def test_clip_keeps_vectors_of_norm_c_at_the_ends_of_float32(norm):
    vector = jnp.zeros(3).at[1].set(norm)
    np.testing.assert_allclose(base.clip(vector, jnp.float32(norm)), vector, rtol=1e-5)
