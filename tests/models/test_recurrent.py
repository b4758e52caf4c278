"""Tests the sizes of recurrent models, the LSTM against NumPy, and padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.tasks.model import flat_model
from models.recurrent import (
    LSTM,
    LanguageModel,
    character_lstm,
    next_token_loss,
    word_lstm,
)


def test_parameters_are_the_papers():
    assert word_lstm().n_parameters == 4_050_748
    assert character_lstm().n_parameters == 820_522


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _shift(parameters):
    """Returns parameters of which none is 0."""
    return jax.tree.map(lambda leaf: leaf + 0.1, parameters)


def test_the_lstm_is_its_equations_in_numpy():
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    module = LSTM(5)
    parameters = module.init(jax.random.key(0), x)["params"]
    np.testing.assert_array_equal(parameters["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 5))

    parameters = _shift(parameters)
    kernel = np.float64(parameters["kernel"])
    recurrent = np.float64(parameters["recurrent_kernel"])
    bias = np.float64(parameters["bias"])
    hidden = np.zeros(5)
    cell = np.zeros(5)
    expected = []
    for row in x.astype(np.float64):
        i, f, g, o = np.split(row @ kernel + hidden @ recurrent + bias, 4)
        cell = _sigmoid(f) * cell + _sigmoid(i) * np.tanh(g)
        hidden = _sigmoid(o) * np.tanh(cell)
        expected.append(hidden)
    np.testing.assert_allclose(module.apply({"params": parameters}, x), expected, atol=1e-6)


@pytest.mark.slow
def test_padding_and_what_comes_later_change_nothing():
    logits = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    labels = np.array([2, 1, 3, 0, 0, 0])
    losses = [np.logaddexp.reduce(logits[j]) - logits[j, labels[j]] for j in range(3)]
    assert next_token_loss(logits, labels) == pytest.approx(np.mean(losses), rel=1e-6)
    assert next_token_loss(logits, np.zeros(6, int)) == 0

    module = LanguageModel(11, 4, 6, 2, 3)
    model = flat_model(module, jnp.zeros(8, jnp.uint8), next_token_loss)
    theta = jax.jit(model.init)(jax.random.key(1))
    one, other = (np.array([9, 1, 2, 5, *end]) for end in ([0, 0, 0, 0], [7, 8, 3, 3]))
    value_and_grad = jax.jit(jax.value_and_grad(model.loss))
    labels = np.array([1, 2, 5, 10, 0, 0, 0, 0])
    value, gradient = value_and_grad(theta, (one, labels))
    other_value, other_gradient = value_and_grad(theta, (other, labels))
    assert value == other_value and np.any(gradient)
    assert np.array_equal(gradient, other_gradient)
    _, gradient_of_nothing = value_and_grad(theta, (one, np.zeros(8, int)))
    assert not np.any(gradient_of_nothing) and np.isfinite(gradient_of_nothing).all()
