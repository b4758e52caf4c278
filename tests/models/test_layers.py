"""Max-pooling against Flax's: values and gradients. Whole networks test the other layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.layers import channels_first, max_pool


@pytest.mark.slow
def test_pooling_takes_maxima_of_four_pixels_and_sends_gradients_there():
    x = jax.random.normal(jax.random.key(0), (4, 28, 14, 6))
    weights = jax.random.normal(jax.random.key(1), (4, 14, 7, 6))
    np.testing.assert_array_equal(channels_first(x), jnp.moveaxis(x, -1, -3))

    def sum_of_ours(x):
        return jnp.sum(max_pool(channels_first(x)) * channels_first(weights))

    def sum_of_flax(x):
        return jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) * weights)

    expected = channels_first(nn.max_pool(x, (2, 2), (2, 2)))
    np.testing.assert_array_equal(max_pool(channels_first(x)), expected)
    gradients = [jax.jit(jax.grad(function))(x) for function in (sum_of_ours, sum_of_flax)]
    np.testing.assert_allclose(*gradients, atol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(jnp.zeros((1, 4, 4)))
    np.testing.assert_array_equal(gradient, np.full((1, 4, 4), 0.25))
