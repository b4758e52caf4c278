"""Operations counted in a trace are those of the products in it."""

import jax
import jax.numpy as jnp
import pytest

from experiments.engine.arithmetic import product_flops

A, B = jnp.zeros((5, 7)), jnp.zeros((7, 3))
ONE = 2 * 5 * 7 * 3


def repeated(a, b):
    return jax.lax.scan(lambda total, _: (total + a @ b, None), jnp.zeros((5, 3)), None, length=4)[0]


def until(a, b):
    return jax.lax.while_loop(lambda s: s[0, 0] < 1, lambda s: s + a @ b, jnp.zeros((5, 3)))


def branching(a, b):
    return jax.lax.cond(a[0, 0] > 0, lambda: a @ b, lambda: 2 * (a @ b) + a @ b)


def by_platform(a, b):
    return jax.lax.platform_dependent(a, b, cpu=lambda a, b: a @ b + a @ b, default=jnp.matmul)


def convolved(a, b):
    return jax.lax.conv(a[None, None], jnp.zeros((6, 1, 2, 2)), (1, 1), "VALID")


CASES = {
    "product": (lambda a, b: a @ b, ONE),
    "of many": (lambda a, b: jax.vmap(jnp.matmul, (0, None))(jnp.stack([a, a]), b), 2 * ONE),
    "in a call": (lambda a, b: jax.jit(jnp.matmul)(a, b), ONE),
    "in a scan": (repeated, 4 * ONE),
    "in a loop that data end": (until, 10 * ONE),
    "in a branch": (branching, 2 * ONE),
    "on an accelerator": (by_platform, ONE),
    "convolution": (convolved, 2 * (6 * 4 * 6) * 4),
    "none": (lambda a, b: jnp.sum(a) * jnp.linalg.norm(b), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_products_are_counted_as_often_as_they_are_done(case):
    function, expected = CASES[case]
    assert product_flops(jax.make_jaxpr(function)(A, B).jaxpr, loops=10) == expected
