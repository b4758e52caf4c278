"""Channels-first layers against Flax's: values and gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import layers
from models.layers import Convolution, channels_first, max_pool


@pytest.mark.parametrize("lead", [(), (3,)])
def test_patches_times_a_matrix_are_a_convolution(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 14, 11, 6))
    ours, theirs = Convolution(16, 5), nn.Conv(16, (5, 5), padding="VALID")
    variables = ours.init(jax.random.key(1), channels_first(x))
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, theirs.init(jax.random.key(1), x))
    variables["params"]["bias"] = jax.random.normal(jax.random.key(2), (16,))
    same = channels_first(theirs.apply(variables, x))
    np.testing.assert_allclose(ours.apply(variables, channels_first(x)), same, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_folding_is_the_gradient_of_a_product_with_patches(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 6, 14, 11))
    kernel = jax.random.normal(jax.random.key(1), (5 * 5 * 6, 16))
    layer = Convolution(16, 5)
    product, back = jax.vjp(lambda x: kernel.T @ layer.unfold(x), x)
    gradient = jax.random.normal(jax.random.key(2), product.shape)
    for fold in (layer.fold, layer._fold_patches):  # a CPU's, accelerators'
        np.testing.assert_allclose(fold(kernel, gradient, x), *back(gradient), rtol=1e-4, atol=1e-4)


def test_pooling_takes_maxima_of_four_pixels_and_sends_gradients_there():
    x = jax.random.normal(jax.random.key(0), (4, 28, 14, 6))
    weights = jax.random.normal(jax.random.key(1), (4, 14, 7, 6))

    def ours(x):
        return jnp.sum(max_pool(channels_first(x)) * channels_first(weights))

    def theirs(x):
        return jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) * weights)

    np.testing.assert_array_equal(max_pool(channels_first(x)), channels_first(nn.max_pool(x, (2, 2), (2, 2))))
    np.testing.assert_allclose(jax.grad(ours)(x), jax.grad(theirs)(x), atol=1e-6)
    gradient = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.zeros((1, 4, 4)))
    np.testing.assert_array_equal(gradient[0], np.kron(np.ones((2, 2)), [[1, 0], [0, 0]]))
    x = jax.random.randint(jax.random.key(0), (5, 6, 8, 12), 0, 3).astype(jnp.float32)  # with ties
    gradient = jax.random.normal(jax.random.key(1), (5, 6, 4, 6))
    np.testing.assert_array_equal(layers._at_once(x, gradient), layers._in_two_passes(x, gradient))
    x = jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(channels_first(x), jnp.moveaxis(x, -1, -3))
