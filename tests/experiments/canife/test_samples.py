"""What canaries can be: texts as they are drawn, shown and settled; the models' rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from audit.errors import InputError
from audit.tasks.model import flat_model
from audit.tasks.task import Dataset, Federation
from experiments.canife import attacked as settings
from experiments.canife import measured as stored_rounds
from experiments.canife import populations, training
from experiments.canife.attacked import Attacked
from experiments.canife.samples import TextSamples
from experiments.cells.cell import DataSets
from models.catalogue import FEDERATED_TASKS, TASKS
from models.data.clients import dealt, one_each
from models.recurrent import LanguageModel, next_token_loss

ALPHABET, LENGTH = "ab\ncd", 6


def language_model():
    return flat_model(LanguageModel(7, 4, 6, 1), jnp.zeros(LENGTH, jnp.uint8), next_token_loss(0))


def text_samples(model):
    return TextSamples(model, length=LENGTH + 1, alphabet=ALPHABET, first=1, vocabulary=7)


def numbers(text):
    return np.array([ALPHABET.index(character) + 1 for character in text])


@pytest.mark.slow
def test_a_settled_text_has_its_own_loss():
    model = language_model()
    own_samples, theta = (
        text_samples(model),
        jax.jit(model.init)(jax.random.key(0)),
    )
    canary = own_samples.settle(own_samples.draw(np.random.default_rng(0)), jax.random.key(1))
    text = own_samples.show(canary)
    assert len(text) == LENGTH + 1
    assert set(text) <= set(ALPHABET)
    assert canary.label.shape == (0,)
    tokens = numbers(text)
    loss = jax.jit(own_samples.loss)
    losses = [float(loss(theta, canary, jax.random.key(i))) for i in range(2)]
    expected = float(jax.jit(model.loss)(theta, (tokens[:-1], tokens[1:])))
    assert losses == pytest.approx([expected] * 2, rel=1e-5)
    assert own_samples.show(own_samples.settle(canary, jax.random.key(7))) == text


def test_a_text_begins_as_an_example():
    own_samples = text_samples(language_model())
    text = numbers("ab\ncdab")
    begun = own_samples.from_example(text[:-1], text[1:])
    assert own_samples.show(begun) == "ab\ncdab"
    assert float(begun.content.max()) == 12


@pytest.fixture
def plays(monkeypatch):
    """Made-up roles as data sets, and a small model of them as the row of character_lstm."""
    rng = np.random.default_rng(0)
    texts = rng.integers(1, 6, (60, LENGTH + 1))
    features = texts[:, :-1].astype(np.uint8)
    roles = Dataset(features, texts[:, 1:].astype(np.int32), "", "x")
    everyone = dealt(roles, np.repeat(np.arange(20), 3))

    task = FEDERATED_TASKS["character_lstm"]._replace(make=language_model, padding=0)
    monkeypatch.setitem(FEDERATED_TASKS, "character_lstm", task)
    monkeypatch.setattr(populations, "make_samples", lambda setting, model: text_samples(model))
    data = DataSets({})
    monkeypatch.setattr(data, "clients", lambda setting: Federation(everyone, None))
    return data


@pytest.mark.slow
def test_a_training_run_on_texts_is_measured_and_stored(plays, tmp_path):
    setting = Attacked(
        model="character_lstm", examples=2, rounds=2, every=1, cohort=4, client_learning_rate=1.0,
        design_steps=100, design_rate=0.1, scores=20, mock_rounds=500, noise_multiplier=0.5,
    )  # fmt: skip
    fitted, split, store = training.prepare(setting, tmp_path, plays)
    assert (split.train.number, split.mock.number, fitted.pool) == (18, 2, 2)
    first, last = training.measure_missing(fitted, split, store, [1, 2])
    (again,) = stored_rounds.read_rounds(store, [1])
    assert again.canary == first.canary
    assert len(first.canary) == LENGTH + 1
    assert first.health > 0.5
    assert first.own == pytest.approx(min(first.norm, 1), rel=1e-4)
    assert last.number == 2
    assert 0 <= last.accuracy <= 1


def test_mock_roles_are_others(plays):
    split = populations.split_roles(Attacked("character_lstm", clients=5), plays)
    assert split.train.number == 5
    assert split.mock.number == 2
    train_texts = {text.tobytes() for text in split.train.features}
    mock_texts = {text.tobytes() for text in split.mock.features}
    assert not train_texts & mock_texts
    with pytest.raises(InputError, match="`clients=19`: give 0 to 18"):
        populations.split_roles(Attacked("character_lstm", clients=19), plays)


@pytest.mark.slow
def test_an_image_has_the_loss_of_its_example():
    rng = np.random.default_rng(0)
    pixels = rng.integers(256, size=(20, 28, 28)).astype(np.uint8)
    labels = rng.integers(10, size=20, dtype=np.int32)
    train = one_each(Dataset(pixels, labels, "made up", "none"))
    split = populations.Split(train, train, (pixels, labels), "none")
    setting = Attacked("linear", cohort=4)
    population = populations.Population(setting, split)
    canary = population.samples.from_example(pixels[3], labels[3])
    theta = population.start().theta
    model = TASKS["linear"].make((28, 28))
    expected = float(model.loss(theta, (pixels[3], labels[3])))
    loss = float(population.samples.loss(theta, canary, jax.random.key(0)))
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "model, why", [("fcnn", "reads neither images nor texts"), ("nobody", "is unknown")]
)
def test_other_models_are_refused_with_the_reason(model, why):
    with pytest.raises(InputError, match=f"^`model={model}` {why}.*: choose one of"):
        settings.require_model(model)
