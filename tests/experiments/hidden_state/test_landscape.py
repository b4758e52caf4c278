"""Tests studies of crafted landscapes: figures and the table."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from experiments.hidden_state import landscape, landscape_figures
from experiments.hidden_state.landscape import Process, Study

PROCESSES = [Process(sigma, size, 3) for sigma in (2.0, 4.0) for size in (1, 2)]
STUDY = Study(delta=1e-5, confidence=0.95, runs=40, seed=0)


@pytest.fixture(scope="module")
def audits():
    return [landscape.audit(process, STUDY) for process in PROCESSES]


@pytest.fixture(scope="module")
def searches():
    return [landscape.search(process, STUDY) for process in landscape.SEARCHED]


def test_audits_and_searches_have_epsilons_below_the_upper_bound(audits, searches):
    for audit in audits:
        exact = audit["by_adversary"]
        assert list(exact) == list(landscape.ADVERSARIES)
        assert exact["half"]["epsilon"][-1] <= exact["optimal"]["epsilon"][-1]
        for solved in exact.values():
            assert solved["epsilon"][0] == solved["claimed"][0] == audit["upper"]
            assert len(solved["epsilon"]) == len(solved["claimed"]) == audit["steps"]
        assert len(audit["simulated"]) == audit["steps"]
    for search in searches:
        thresholds = search["thresholds"]
        assert len(thresholds) == len(search["epsilon"]) == len(search["simulated"]) == 49
        assert np.sum(thresholds) == pytest.approx(49 / 2)
        assert max(search["epsilon"]) <= search["upper"]
    assert searches[0]["thresholds"][-1] == pytest.approx(1.15 * (0.5 + 16 * 0.9265), rel=1e-3)


def test_figures_and_table_show_results(audits, searches):
    drawn = dict(landscape_figures.draw(audits, searches, STUDY))
    names = ["figure_3a", "figure_14", "figure_3b", "figure_6b", "algorithm_6"]
    assert list(drawn) == names
    half = audits[0]["by_adversary"]["half"]["epsilon"][-1]
    texts = [text.get_text() for text in drawn["figure_3b"].axes[2].texts]
    assert texts[0] == f"{half / audits[0]['upper']:.2f}"
    row = landscape_figures.make_table(audits).json()[0]
    assert (row["sigma"], row["adversary"], row["epsilon_exact"]) == (2.0, "half", half)
    plt.close("all")
