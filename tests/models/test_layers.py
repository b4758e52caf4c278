"""Channels-first layers against Flax's: values and gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.model import flat_model
from models import layers, soft
from models.dense import mlp
from models.layers import Convolution, channels_first, max_pool
from models.recurrent import LanguageModel, TextClassifier, next_token_loss


@pytest.mark.slow
@pytest.mark.parametrize("lead", [(), (3,)])
def test_patches_times_a_matrix_are_a_convolution(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 14, 11, 6))
    ours, theirs = Convolution(16, 5), nn.Conv(16, (5, 5), padding="VALID")
    variables = ours.init(jax.random.key(1), channels_first(x))
    assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, theirs.init(jax.random.key(1), x))
    variables["params"]["bias"] = jax.random.normal(jax.random.key(2), (16,))
    same = channels_first(theirs.apply(variables, x))
    np.testing.assert_allclose(ours.apply(variables, channels_first(x)), same, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [(), (3,)])
def test_folding_is_the_gradient_of_a_product_with_patches(lead):
    x = jax.random.normal(jax.random.key(0), (*lead, 6, 14, 11))
    kernel = jax.random.normal(jax.random.key(1), (5 * 5 * 6, 16))
    layer = Convolution(16, 5)
    product, back = jax.vjp(jax.jit(lambda x: kernel.T @ layer.unfold(x)), x)
    gradient = jax.random.normal(jax.random.key(2), product.shape)
    for fold in map(jax.jit, (layer.fold, layer._fold_patches)):  # a CPU's, accelerators'
        np.testing.assert_allclose(fold(kernel, gradient, x), *back(gradient), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_pooling_takes_maxima_of_four_pixels_and_sends_gradients_there():
    x = jax.random.normal(jax.random.key(0), (4, 28, 14, 6))
    weights = jax.random.normal(jax.random.key(1), (4, 14, 7, 6))

    def ours(x):
        return jnp.sum(max_pool(channels_first(x)) * channels_first(weights))

    def theirs(x):
        return jnp.sum(nn.max_pool(x, (2, 2), (2, 2)) * weights)

    np.testing.assert_array_equal(max_pool(channels_first(x)), channels_first(nn.max_pool(x, (2, 2), (2, 2))))
    np.testing.assert_allclose(*(jax.jit(jax.grad(pooled))(x) for pooled in (ours, theirs)), atol=1e-6)
    gradient = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(jnp.zeros((1, 4, 4)))
    np.testing.assert_array_equal(gradient[0], np.kron(np.ones((2, 2)), [[1, 0], [0, 0]]))
    x = jax.random.randint(jax.random.key(0), (5, 6, 8, 12), 0, 3).astype(jnp.float32)  # with ties
    gradient = jax.random.normal(jax.random.key(1), (5, 6, 4, 6))
    passes = (jax.jit(layers._place_at_once), jax.jit(layers._place_in_two_passes))
    np.testing.assert_array_equal(*(each(x, gradient) for each in passes))
    x = jnp.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(channels_first(x), jnp.moveaxis(x, -1, -3))


WORDS = 11


@pytest.mark.slow
def test_pure_labels_and_texts_give_the_models_loss():
    model = mlp(6, (4,), 3)
    theta, features = model.init(jax.random.key(0)), jnp.arange(6.0)
    loss, hard = jax.jit(soft.soft_label(model, 3)), jax.jit(model.loss)
    for label in range(3):
        pure = loss(theta, (features, jax.nn.one_hot(label, 3)))
        assert float(pure) == pytest.approx(float(hard(theta, (features, jnp.int32(label)))), rel=1e-6)
    criterion = optax.softmax_cross_entropy_with_integer_labels
    model = flat_model(TextClassifier(WORDS, 3, 2, 4), jnp.zeros(5, jnp.uint8), criterion)
    theta = jax.jit(model.init)(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (5,), 0, WORDS)
    found = jax.jit(soft.soft_text(model, 4))(theta, (jax.nn.one_hot(tokens, WORDS), jax.nn.one_hot(2, 4)))
    assert float(found) == pytest.approx(float(jax.jit(model.loss)(theta, (tokens, jnp.int32(2)))), rel=1e-5)


@pytest.mark.slow
def test_pure_tokens_give_the_language_models_loss_and_gradient():
    model = flat_model(LanguageModel(WORDS, 3, 2, 1), jnp.zeros(4, jnp.uint8), next_token_loss(WORDS))
    theta = jax.jit(model.init)(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (5,), 0, WORDS)
    loss, pure = soft.soft_tokens(model), jax.nn.one_hot(tokens, WORDS)
    hard = theta, (tokens[:-1], tokens[1:])
    soft_value, soft_slope = jax.jit(jax.value_and_grad(loss))(theta, pure)
    value, slope = jax.jit(jax.value_and_grad(model.loss))(*hard)
    assert float(soft_value) == pytest.approx(float(value), rel=1e-5)
    np.testing.assert_allclose(soft_slope, slope, atol=1e-6)
    second = jax.jit(jax.grad(lambda mixtures: jnp.sum(jax.grad(loss)(theta, mixtures) ** 2)))(pure)
    assert second.shape == pure.shape and jnp.isfinite(second).all() and jnp.any(second != 0)


def test_gumbel_mixtures_peak_at_draws_of_their_weights():
    weights = jnp.log(jnp.array([0.7, 0.2, 0.1]))
    found = soft.gumbel_softmax(jax.random.key(0), jnp.tile(weights, (20_000, 1)), 0.5)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    share = np.bincount(np.asarray(found.argmax(1)), minlength=3) / 20_000
    np.testing.assert_allclose(share, [0.7, 0.2, 0.1], atol=0.015)
