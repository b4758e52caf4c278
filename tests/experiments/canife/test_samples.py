"""Texts as canaries: how they are drawn, shown, designed and stored."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.tasks.model import flat_model
from audit.tasks.task import Dataset, Federation
from experiments.canife import measured, populations, training
from experiments.canife.attacked import Attacked
from experiments.canife.samples import TextSamples
from experiments.cells.cell import DataSets
from models.catalogue import FEDERATED_TASKS
from models.data.clients import group_by_client
from models.recurrent import LanguageModel, next_token_loss

ALPHABET, LENGTH = "ab\ncd", 6


@pytest.fixture(scope="module")
def texts():
    module = LanguageModel(7, 4, 6, 1)
    model = flat_model(module, jnp.zeros(LENGTH, jnp.uint8), next_token_loss)
    return TextSamples(model, length=LENGTH + 1, alphabet=ALPHABET, vocabulary=7)


@pytest.mark.slow
def test_a_drawn_text_has_the_models_loss_and_finite_second_derivatives(texts):
    theta = jax.jit(texts.model.init)(jax.random.key(0))
    canary = texts.draw_text(texts.draw(np.random.default_rng(0)), jax.random.key(1))
    text = texts.show(canary)
    assert len(text) == LENGTH + 1
    assert texts.show(texts.draw_text(canary, jax.random.key(7))) == text
    tokens = np.array([ALPHABET.index(character) + 1 for character in text])
    expected = float(jax.jit(texts.model.loss)(theta, (tokens[:-1], tokens[1:])))
    for seed in range(2):
        loss = jax.jit(texts.loss)(theta, canary, jax.random.key(seed))
        assert float(loss) == pytest.approx(expected, rel=1e-5)

    def squared_norm(sample):
        return jnp.sum(jax.grad(texts.loss)(theta, sample, jax.random.key(0)) ** 2)

    slope = jax.jit(jax.grad(squared_norm))(texts.draw(np.random.default_rng(0))).content
    assert jnp.isfinite(slope).all() and jnp.any(slope != 0)


def test_a_text_starts_from_an_example_and_characters_are_drawn_by_weight(texts):
    text = np.array([1, 2, 3, 4, 5, 1, 2])
    begun = texts.from_example(text[:-1], text[1:])
    assert texts.show(begun) == "ab\ncdab"
    assert float(begun.content.max()) == 12
    weights = jnp.log(jnp.array([0.7, 0.2, 0.1, 1e-9, 1e-9]))
    many = texts._replace(length=20_000)
    drawn = many.draw_text(
        begun._replace(content=jnp.tile(weights, (20_000, 1))), jax.random.key(0)
    )
    shares = [many.show(drawn).count(character) / 20_000 for character in ALPHABET]
    np.testing.assert_allclose(shares, [0.7, 0.2, 0.1, 0, 0], atol=0.015)


@pytest.fixture
def plays(monkeypatch, texts):
    """Replaces Shakespeare's roles by random texts, and the model character_lstm by a small one."""
    drawn = np.random.default_rng(0).integers(1, 6, (60, LENGTH + 1))
    roles = Dataset(drawn[:, :-1].astype(np.uint8), drawn[:, 1:].astype(np.int32), "", "x")
    everyone = group_by_client(roles, np.repeat(np.arange(20), 3))
    task = FEDERATED_TASKS["character_lstm"]._replace(make=lambda: texts.model, padding=0)
    monkeypatch.setitem(FEDERATED_TASKS, "character_lstm", task)
    monkeypatch.setattr(populations, "make_samples", lambda setting, model: texts)
    data = DataSets({})
    monkeypatch.setattr(data, "clients", lambda setting: Federation(everyone, None))
    return data


@pytest.mark.slow
def test_a_training_run_on_texts_is_measured_and_stored(plays, tmp_path):
    setting = Attacked(
        model="character_lstm", examples=2, rounds=2, every=1, cohort=4, client_learning_rate=1.0,
        design_steps=100, design_rate=0.1, scores=20, mock_rounds=500, noise_multiplier=0.5,
    )  # fmt: skip
    split = populations.split_clients(setting, plays)
    fitted, store = training.prepare(setting, tmp_path, plays)
    assert (split.train.number, split.mock.number, fitted.pool) == (18, 2, 2)
    first, last = training.measure_missing(fitted, plays, store, [1, 2])
    (again,) = measured.read_rounds(store, [1])
    assert again.canary == first.canary and len(first.canary) == LENGTH + 1
    assert first.health > 0.5
    assert last.number == 2
