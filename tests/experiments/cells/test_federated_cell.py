"""Tests federated cells: one training run gives both observations and the accuracy."""

from pathlib import Path

import numpy as np
import pytest

from audit.settings.federated import FederatedSetting
from audit.storage import index
from experiments.cells import federated
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all, find_missing

SETTING = FederatedSetting("linear", 10, cohort=4, rounds=12, canaries=100, observe="all")


@pytest.fixture
def data(image_file):
    return DataSets({"fashion_mnist": str(image_file)})


def cell(setting=SETTING, runs=2):
    return federated.federated_cell(setting, runs, "a cell")


def kept(root, setting, runs=2):
    return federated.read(index.holdings(Path(root)), setting, runs)


@pytest.mark.slow
def test_one_training_gives_both_observations_as_each_alone_does(data, tmp_path):
    both, alone = Workplace(tmp_path / "both", data), Workplace(tmp_path / "alone", data)
    final = federated.final(SETTING)
    assert do_all([cell()], both).completed and do_all([cell(final)], alone).completed
    assert not find_missing([cell(), cell(final)], both) and find_missing([cell()], alone)
    together, apart = kept(both.out, final), kept(alone.out, final)
    np.testing.assert_allclose(together.scores.scores, apart.scores.scores, atol=1e-6)
    np.testing.assert_array_equal(together.scores.presence, apart.scores.presence)
    assert (
        together.accuracies == pytest.approx(apart.accuracies, abs=0.05)
        and len(apart.accuracies) == 2
    )
    largest = kept(both.out, SETTING)
    assert largest.accuracies == together.accuracies
    assert (largest.scores.scores > together.scores.scores).mean() > 0.9


@pytest.mark.slow
def test_what_a_kill_left_out_is_trained_and_nothing_else(data, tmp_path, monkeypatch):
    place, final = Workplace(tmp_path, data), federated.final(SETTING)
    do_all([cell()], place)
    before = kept(tmp_path, SETTING).scores.scores
    for path in (
        index.holdings(tmp_path).open(federated.federated_identity(final)).path.glob("scores_*")
    ):
        path.unlink()
    assert kept(tmp_path, final) is None and find_missing([cell()], place)
    assert do_all([cell()], place).completed == ["a cell"]
    assert kept(tmp_path, final) is not None and not find_missing([cell()], place)
    np.testing.assert_array_equal(kept(tmp_path, SETTING).scores.scores, before)


@pytest.mark.slow
def test_accuracies_are_added_to_those_that_are_there(data, tmp_path):
    place = Workplace(tmp_path, data)
    do_all([cell(runs=1)], place)
    first = kept(tmp_path, SETTING, 1).accuracies
    do_all([cell(runs=3)], place)
    three = kept(tmp_path, SETTING, 3).accuracies
    assert three[:1] == first and len(three) == 3
