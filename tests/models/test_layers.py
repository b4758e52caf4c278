"""Channels-first layers against Flax's: values and gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.tasks.model import flat_model
from models import soft
from models.dense import mlp
from models.layers import Convolution, channels_first, max_pool
from models.recurrent import LanguageModel, next_token_loss


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


WORDS = 11


@pytest.mark.slow
def test_pure_labels_give_the_models_loss():
    model = mlp(6, (4,), 3)
    theta = model.init(jax.random.key(0))
    features = jnp.arange(6.0)
    soft_loss = jax.jit(soft.soft_label(model, 3))
    hard_loss = jax.jit(model.loss)
    for label in range(3):
        pure = soft_loss(theta, (features, jax.nn.one_hot(label, 3)))
        expected = hard_loss(theta, (features, jnp.int32(label)))
        assert float(pure) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.slow
def test_pure_tokens_give_the_language_models_loss_and_gradient():
    module = LanguageModel(WORDS, 3, 2, 1)
    model = flat_model(module, jnp.zeros(4, jnp.uint8), next_token_loss(WORDS))
    theta = jax.jit(model.init)(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (5,), 0, WORDS)
    soft_loss = soft.soft_tokens(model)
    pure = jax.nn.one_hot(tokens, WORDS)

    soft_value, soft_gradient = jax.jit(jax.value_and_grad(soft_loss))(theta, pure)
    value, gradient = jax.jit(jax.value_and_grad(model.loss))(theta, (tokens[:-1], tokens[1:]))
    assert float(soft_value) == pytest.approx(float(value), rel=1e-5)
    np.testing.assert_allclose(soft_gradient, gradient, atol=1e-6)

    def squared_norm(mixtures):
        return jnp.sum(jax.grad(soft_loss)(theta, mixtures) ** 2)

    second = jax.jit(jax.grad(squared_norm))(pure)
    assert second.shape == pure.shape
    assert jnp.isfinite(second).all()
    assert jnp.any(second != 0)


def test_gumbel_mixtures_peak_at_draws_of_their_weights():
    weights = jnp.log(jnp.array([0.7, 0.2, 0.1]))
    repeated = jnp.tile(weights, (20_000, 1))
    mixtures = soft.gumbel_softmax(jax.random.key(0), repeated, 0.5)
    np.testing.assert_allclose(mixtures.sum(1), 1, atol=1e-5)
    peaks = np.asarray(mixtures.argmax(1))
    shares = np.bincount(peaks, minlength=3) / 20_000
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1], atol=0.015)
