"""The one-shot paper's federated sweeps: settings, what is drawn of made-up cosines, what the words say."""

import dataclasses

import numpy as np
import pytest
from matplotlib import pyplot as plt
from scipy import signal

from audit.adversaries import directions as adversary
from audit.settings import stored
from audit.settings.federated import federated_identity, validate_federated
from audit.statistics import one_shot
from audit.statistics.accounting import epsilon_upper_bound
from audit.storage.store import Scores, Store
from experiments.cells import federated as cells
from experiments.cells.cell import DataSets, Levels
from experiments.cells.work import Workplace, do_all
from experiments.one_shot import estimates, figures, sweep
from experiments.sweeps import points
from models.catalogue import federated_task

LEVELS = Levels()
IMAGES, TEXT, SPLITS = sweep.SIZES["smoke"]


def _cosines(setting, runs, dimension, shift):
    rng = np.random.default_rng(0)
    presence = rng.random((runs, setting.canaries)) < 0.5
    scores = (rng.normal(size=presence.shape) + shift * presence) / np.sqrt(dimension)
    return Scores(0, scores, presence)


def _keep(root, setting, runs, dimension, shift):
    store = Store(root, federated_identity(setting, "0" * 64, None))
    store.save(_cosines(setting, runs, dimension, shift))
    cells.keep_accuracies(store, 0, np.full(runs, 0.75))


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """Evidence of made-up cosines of every smoke cell but the last one of images and all of the text."""
    root = tmp_path_factory.mktemp("out")
    for setting in IMAGES.audited()[:-1]:
        shift = 3 * setting.repetitions / (1 + 10 * setting.noise_multiplier)
        _keep(root, setting, 1, IMAGES.dimension, shift + 3)
        _keep(root, cells.final(setting), 1, IMAGES.dimension, shift)
    for noise in IMAGES.noises:
        store = Store(root, federated_identity(IMAGES.plain(noise), "0" * 64, None))
        store.save(Scores(0, np.zeros((1, 1)), np.zeros((1, 1), bool)))
        cells.keep_accuracies(store, 0, np.array([0.8]))
    for noise in SPLITS.trainings.noises:
        for one, runs in ((SPLITS.one(noise), 4), (SPLITS.several(noise), 8)):
            if one not in IMAGES.audited():
                _keep(root, one, runs, 7850, 5.0)
                _keep(root, cells.final(one), runs, 7850, 2.0)
    return points.Evidence(stored.holdings(root), {}, LEVELS)


@pytest.mark.parametrize("scale", sweep.SIZES)
def test_settings_can_be_trained_and_dimensions_are_the_models(scale):
    images, text, splits = sweep.SIZES[scale]
    for trainings in (images, text, splits.trainings):
        for setting in trainings.audited():
            validate_federated(setting)
        assert federated_task(trainings.setting.model).make().n_parameters == trainings.dimension
    for noise in splits.trainings.noises:
        validate_federated(splits.several(noise))
        assert splits.several(noise).canaries * splits.runs == splits.one(noise).canaries


def test_noise_multipliers_have_the_papers_analytical_epsilons():
    for noise, epsilon in zip(sweep.SIZES["laptop"].images.noises[1:], (300, 100, 30), strict=True):
        assert epsilon_upper_bound(noise, 1, LEVELS.delta) == pytest.approx(epsilon, abs=0.01)


def test_clients_move_the_model_as_far_without_canaries():
    """1,000 of 2,000 canaries are in, in 100 rounds: 10 a round beside 10 clients."""
    images = sweep.SIZES["laptop"].images
    plain = images.plain(0.0)
    assert plain.canaries == 1
    assert plain.learning_rate == pytest.approx(images.at(0.0).learning_rate / 2, rel=1e-3)


def test_no_sweep_takes_longer_than_its_scale_says():
    for one in sweep.sweeps("laptop").values():
        assert sum(cell.seconds for cell in one.cells) < 3600, one.name
    names = {"one_shot_table_2", "one_shot_table_5", *(f"one_shot_figure_{i}" for i in range(1, 5))}
    assert all(set(sweep.sweeps(scale)) == names for scale in sweep.SIZES)


def test_a_text_fits_the_directions_that_are_kept():
    text = sweep.SIZES["laptop"].text
    assert text.setting.canaries * text.dimension <= adversary._MOST_KEPT


def test_an_estimate_above_the_accounted_epsilon_is_marked(made_up):
    (first, *_) = estimates.audits(made_up.held, IMAGES, LEVELS)
    assert not first.exceeds and first.accounted == np.inf
    row = first.every.fitted
    assert first._replace(accounted=row.epsilon - 2 * row.standard_error).exceeds
    assert not first._replace(accounted=row.epsilon - row.standard_error / 2).exceeds


@pytest.mark.parametrize(("momentum", "low", "high"), [(0.0, 1100, 1600), (0.9, 200, 360)])
def test_fits_to_maxima_are_right_by_an_accident_of_momentum(momentum, low, high):
    """One release has epsilon 300, whatever is made of it afterwards (Errata O13)."""
    rng, sigma = np.random.default_rng(0), sweep.SIZES["laptop"].images.noises[1]
    seen = sigma * rng.normal(size=(2000, 100))
    seen[np.arange(1000), rng.integers(0, 100, 1000)] += 1
    moves = signal.lfilter([1], [1, -momentum], seen, axis=1)
    largest = (moves / np.sqrt(signal.lfilter([1], [1, -(momentum**2)], np.ones(100)))).max(axis=1)
    null, fitted = (one_shot.fit(part, 1) for part in (largest[1000:], largest[:1000]))
    assert low < one_shot.fitted(null, fitted, LEVELS.delta) < high


def test_figure_4_compares_one_run_with_several(tmp_path):
    trainings = dataclasses.replace(SPLITS.trainings.setting, canaries=400)
    asked = SPLITS._replace(trainings=SPLITS.trainings._replace(setting=trainings, noises=(0.1,)))
    for one, runs in ((asked.one(0.1), 4), (asked.several(0.1), 8)):
        _keep(tmp_path, one, runs, 7850, 5.0)
    (found,) = estimates.splits(stored.holdings(tmp_path), asked, 1e-5)
    assert found.observe == "all" and (np.diff(found.one) >= 0).all()
    assert np.median(found.several) == pytest.approx(np.median(found.one), rel=0.4)


@pytest.mark.slow
def test_the_smoke_sweeps_are_trained_and_drawn(tmp_path):
    for one in sweep.sweeps("smoke").values():
        found = do_all(list(one.cells), Workplace(tmp_path, DataSets({})))
        assert not found.failed and len(found.here) + len(found.elsewhere) == len(one.cells)
        drawn = figures.draw(one, points.Evidence(stored.holdings(tmp_path), {}, LEVELS))
        assert drawn.missing == 0 and len(drawn.figures) == 1
        plt.close(drawn.figures[0][1])
