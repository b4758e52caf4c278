"""The recurrent models: their sizes, the LSTM in NumPy, and what padding changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.recurrent import (
    LSTM,
    LanguageModel,
    TextClassifier,
    character_lstm,
    next_token_loss,
    play_lstm,
    tweet_lstm,
    word_lstm,
)


def test_parameters_are_the_papers():
    assert word_lstm().n_parameters == 4_050_748 and character_lstm().n_parameters == 820_522
    assert tweet_lstm().n_parameters == 272_102 and play_lstm().n_parameters == 819_920


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_lstm_is_its_equations_in_numpy():
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    module = LSTM(5)
    parameters = module.init(jax.random.key(0), x)["params"]
    np.testing.assert_array_equal(parameters["bias"], np.repeat([0.0, 1.0, 0.0, 0.0], 5))
    parameters = jax.tree.map(lambda leaf: leaf + 0.1, parameters)
    kernel, recurrent, bias = (np.float64(parameters[n]) for n in ("kernel", "recurrent_kernel", "bias"))
    hidden, cell, expected = np.zeros(5), np.zeros(5), []
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
    expected = np.mean([np.logaddexp.reduce(logits[j]) - logits[j, labels[j]] for j in range(3)])
    assert next_token_loss(0)(logits, labels) == pytest.approx(expected, rel=1e-6)
    assert next_token_loss(0)(logits, np.zeros(6, int)) == 0
    module = LanguageModel(11, 4, 6, 1)
    variables, apply = jax.jit(module.init)(jax.random.key(2), jnp.zeros(8, jnp.uint8)), jax.jit(module.apply)
    one, two = (apply(variables, jnp.array([*range(5), last, last, 1])) for last in (5, 9))
    np.testing.assert_array_equal(one[:5], two[:5])
    assert not np.allclose(one[5:], two[5:])
    from audit.model import flat_model

    model = flat_model(LanguageModel(11, 4, 6, 2, 3), jnp.zeros(8, jnp.uint8), next_token_loss(0))
    theta, slope = jax.jit(model.init)(jax.random.key(1)), jax.jit(jax.value_and_grad(model.loss))
    numbers, labels = np.array([9, 1, 2, 5, 0, 0, 0, 0]), np.array([1, 2, 5, 10, 0, 0, 0, 0])
    other = np.array([9, 1, 2, 5, 7, 8, 3, 3])
    one, two = (slope(theta, (x, labels)) for x in (numbers, other))
    assert one[0] == two[0] and np.array_equal(one[1], two[1]) and np.any(one[1])
    _, empty = slope(theta, (numbers, np.zeros(8, int)))
    assert not np.any(empty) and np.isfinite(empty).all()


@pytest.mark.slow
def test_two_biases_add_and_a_classifier_reads_to_the_end():
    x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    one, two = LSTM(5), LSTM(5, two_biases=True)
    parameters = two.init(jax.random.key(0), x)["params"]
    parameters = jax.tree.map(lambda leaf: leaf + 0.1, parameters)
    together = {**parameters, "bias": parameters["bias"] + parameters["recurrent_bias"]}
    del together["recurrent_bias"]
    found, same = two.apply({"params": parameters}, x), one.apply({"params": together}, x)
    np.testing.assert_allclose(found, same, atol=1e-6)
    module = TextClassifier(11, 4, 6, 3)
    variables = module.init(jax.random.key(2), jnp.zeros(8, jnp.uint8))
    first, last = (module.apply(variables, jnp.array([*range(7), end])) for end in (5, 9))
    assert first.shape == (3,) and not np.allclose(first, last)


@pytest.mark.slow
def test_a_small_one_learns_to_count():
    from audit.model import flat_model

    model = flat_model(LanguageModel(6, 4, 8, 1), jnp.zeros(10, jnp.uint8), next_token_loss(0))
    text = 1 + np.arange(11) % 5
    example = (text[:-1], text[1:])
    step = jax.jit(lambda theta: theta - 0.5 * jax.grad(model.loss)(theta, example))
    theta = model.init(jax.random.key(3))
    for _ in range(300):
        theta = step(theta)
    assert model.loss(theta, example) < 0.05
