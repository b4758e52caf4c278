"""A small measured training run on random images: what it stores, how it resumes, and its tables."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from audit.errors import InputError
from audit.laws import conversions, densities
from audit.report import style
from audit.storage.store import Checkpoints, hold
from experiments.canife import cohort_law, curves, figures, populations, rounds, training
from experiments.canife import measured as stored_rounds
from experiments.canife.attacked import Attacked
from experiments.canife.rounds import Charge
from experiments.canife.samples import ImageSamples, Sample
from experiments.cells.cell import DataSets

SMALL = Attacked(
    "linear", rounds=5, every=2, cohort=8, noise_multiplier=0.5, pool=16, population=40, scores=40,
    mock_rounds=2000, design_steps=60,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(image_file):
    return DataSets({"fashion_mnist": str(image_file)})


def measure(setting, data, folder):
    """Measures the missing rounds of a setting, and returns its store and these rounds."""
    setting, store = training.prepare(setting, folder, data)
    with hold(store.path):
        return store, list(training.measure_missing(setting, data, store, setting.measured()))


def contents(store):
    return {path.name: path.read_bytes() for path in store.path.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Returns the store of SMALL and its measured rounds."""
    return measure(SMALL, data, tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_a_training_run_measures_its_rounds(whole):
    assert [one.number for one in whole[1]] == [1, 3, 5]
    for one in whole[1]:
        assert one.health > 0.9 and one.norm > 1
        assert one.own == pytest.approx(1, abs=1e-5)
        assert len(one.scores_in) == len(one.scores_out) == 20
        assert len(one.known) == 40
        pair = cohort_law.score_densities(one.known, 8, 0.5, one.own)
        assert one.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))
        assert one.proven < one.exact < conversions.epsilon_from_mu(2.0, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0, 30])
def test_a_killed_training_run_continues_with_the_same_bits(
    whole, data, tmp_path, monkeypatch, seconds
):
    """With a checkpoint after every round, and without checkpoints."""
    monkeypatch.setattr(training, "Checkpoints", lambda folder: Checkpoints(folder, seconds))
    setting, again = training.prepare(SMALL, tmp_path, data)
    missing = training.measure_missing(setting, data, again, [3, 5])
    next(missing)
    missing.close()  # after one round
    assert again.checkpoints.exists() == (seconds == 0)
    measure(SMALL, data, tmp_path)
    assert contents(again) == contents(whole[0])
    assert not again.checkpoints.exists()
    assert not measure(SMALL, data, tmp_path)[1]


@pytest.mark.slow
def test_stored_rounds_are_read_shown_and_drawn(whole):
    stored = stored_rounds.read_rounds(whole[0], [1, 3, 5])
    for before, after in zip(whole[1], stored, strict=True):
        np.testing.assert_equal(after._asdict(), before._asdict())
    frame = curves.compose(SMALL, curves.summarize(SMALL, stored), is_backward=True)
    last = frame.iloc[-1]
    assert last["charged_to"] == 5
    assert last["training_law"] < last["accountant"]
    assert last["training_lower"] <= last["training"] <= last["training_upper"]
    totals = curves.show_totals(SMALL, frame, is_backward=True)
    rounded_down = curves.show_rounds(SMALL, frame.assign(proven=1.9996))
    assert " 1.99\n" in rounded_down
    assert max(map(len, f"{rounded_down}\n{totals}".splitlines())) <= 80
    assert style.png(figures.training_figure(SMALL, stored[-1], frame)).startswith(b"\x89PNG")
    perfect, _, accountant, released = (float(line.split()[-1]) for line in totals.splitlines()[3:])
    assert 0 < perfect < accountant < released
    charges = [Charge(0.5, 8 / 200, 5), Charge(0.5, 8 / 40, 3 * SMALL.scores)]
    assert released == pytest.approx(rounds.composed(charges, SMALL.delta), abs=0.006)


@pytest.mark.slow
def test_a_design_that_diverges_raises_an_error(data, tmp_path, monkeypatch):
    first = Sample(jnp.full((28, 28), jnp.nan), jnp.zeros(10))
    monkeypatch.setattr(ImageSamples, "draw", lambda samples, rng: first)
    with pytest.raises(InputError, match="design_rate"):
        measure(dataclasses.replace(SMALL, rounds=1), data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.5, 0.0])
def test_as_published_the_canary_replaces_a_client(data, tmp_path, sigma):
    setting = dataclasses.replace(
        SMALL, rounds=1, noise_multiplier=sigma, as_published=True, soft_label=True, start="sample"
    )
    _, (one,) = measure(setting, data, tmp_path)
    assert one.label.sum() == pytest.approx(1, abs=1e-5)
    assert 0.01 < one.label.max() < 1
    if not sigma:  # every epsilon is infinite
        frame = curves.compose(setting, curves.summarize(setting, [one]))
        assert one.exact == frame["perfect"].item() == frame["accountant"].item() == np.inf
        assert style.png(figures.training_figure(setting, one, frame))
        return
    pair = cohort_law.score_densities(one.known, 8, sigma, one.own, replaces=True)
    assert one.exact == pytest.approx(densities.epsilon_at(pair, 1e-5))


@pytest.mark.slow
def test_clients_with_several_images_and_the_canary_multiply_gradients_by_the_learning_rate(
    data, tmp_path
):
    setting = dataclasses.replace(
        SMALL, alpha=10.0, cohort=4, rounds=1, client_learning_rate=0.001,
        clients=40, population=12, pool=4,
    )  # fmt: skip
    split = populations.split_clients(setting, data)
    assert (split.train.number, split.mock.number) == (40, 4)
    _, (one,) = measure(setting, data, tmp_path)
    assert np.abs(one.known).max() <= 1 + 1e-5
    assert one.own == pytest.approx(min(0.001 * one.norm, 1), rel=1e-4)
    assert one.own < 0.9
    published = dataclasses.replace(setting, as_published=True)
    _, (one,) = measure(published, data, tmp_path)
    assert one.own == pytest.approx(1, abs=1e-5)
