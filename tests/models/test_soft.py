"""Relaxed examples: where mixtures are pure, the models' own losses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.model import flat_model
from models import soft
from models.dense import mlp
from models.recurrent import LanguageModel, TextClassifier, next_token_loss

WORDS = 11


def test_pure_labels_and_texts_give_the_models_loss():
    model = mlp(6, (4,), 3)
    theta, features = model.init(jax.random.key(0)), jnp.arange(6.0)
    loss = soft.soft_label(model, 3)
    for label in range(3):
        pure = loss(theta, (features, jax.nn.one_hot(label, 3)))
        assert float(pure) == pytest.approx(float(model.loss(theta, (features, jnp.int32(label)))), rel=1e-6)
    criterion = optax.softmax_cross_entropy_with_integer_labels
    model = flat_model(TextClassifier(WORDS, 3, 2, 4), jnp.zeros(5, jnp.uint8), criterion)
    theta = model.init(jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (5,), 0, WORDS)
    found = soft.soft_text(model, 4)(theta, (jax.nn.one_hot(tokens, WORDS), jax.nn.one_hot(2, 4)))
    assert float(found) == pytest.approx(float(model.loss(theta, (tokens, jnp.int32(2)))), rel=1e-5)


def test_pure_tokens_give_the_language_models_loss_and_gradient():
    model = flat_model(LanguageModel(WORDS, 3, 2, 1), jnp.zeros(4, jnp.uint8), next_token_loss(WORDS))
    theta = model.init(jax.random.key(0))
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
