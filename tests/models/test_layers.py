"""Channels-first layers against Flax's: values and gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import Convolution, channels_first, max_pool


@pytest.mark.slow
@pytest.mark.parametrize("lead", [(), (3,)])
def test_patches_times_a_matrix_are_a_convolution(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 14, 11, 6))
    ours = Convolution(16, 5)
    flax_layer = nn.Conv(16, (5, 5), padding="VALID")

    variables = ours.init(jax.random.key(1), channels_first(x))
    flax_variables = flax_layer.init(jax.random.key(1), x)
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, flax_variables)

    variables["params"]["bias"] = jax.random.normal(jax.random.key(2), (16,))
    expected = channels_first(flax_layer.apply(variables, x))
    output = ours.apply(variables, channels_first(x))
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [(), (3,)])
def test_folding_is_the_gradient_of_a_product_with_patches(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 6, 14, 11))
    kernel = jax.random.normal(jax.random.key(1), (5 * 5 * 6, 16))
    layer = Convolution(16, 5)

    @jax.jit
    def multiply(x):
        return kernel.T @ layer.unfold(x)

    product, compute_gradient = jax.vjp(multiply, x)
    gradient = jax.random.normal(jax.random.key(2), product.shape)
    (expected,) = compute_gradient(gradient)
    folded = jax.jit(layer.fold)(kernel, gradient, x)
    np.testing.assert_allclose(folded, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_pooling_takes_maxima_of_four_pixels_and_sends_gradients_there():
    x = jax.random.normal(jax.random.key(0), (4, 28, 14, 6))
    weights = jax.random.normal(jax.random.key(1), (4, 14, 7, 6))

    def sum_of_ours(x):
        return jnp.sum(max_pool(channels_first(x)) * channels_first(weights))

    def sum_of_flax(x):
        return jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) * weights)

    expected = channels_first(nn.max_pool(x, (2, 2), (2, 2)))
    np.testing.assert_array_equal(max_pool(channels_first(x)), expected)
    our_gradient = jax.jit(jax.grad(sum_of_ours))(x)
    flax_gradient = jax.jit(jax.grad(sum_of_flax))(x)
    np.testing.assert_allclose(our_gradient, flax_gradient, atol=1e-6)

    def sum_of_maxima(x):
        return jnp.sum(max_pool(x))

    gradient = jax.jit(jax.grad(sum_of_maxima))(jnp.zeros((1, 4, 4)))
    upper_left = np.kron(np.ones((2, 2)), [[1, 0], [0, 0]])
    np.testing.assert_array_equal(gradient[0], upper_left)

    x = jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(channels_first(x), jnp.moveaxis(x, -1, -3))
