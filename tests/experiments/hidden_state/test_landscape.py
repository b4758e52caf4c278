"""Tests studies of crafted landscapes: stored results, figures and the table."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from audit.storage import index
from audit.storage.store import Store
from experiments.cells.cell import find_answer
from experiments.hidden_state import landscape, landscape_figures
from experiments.hidden_state.landscape import AUDIT, Process

PROCESSES = [Process(sigma, size, 3) for sigma in (2.0, 4.0) for size in (1, 2)]
SIMULATION = {"delta": 1e-5, "runs": 40, "seed": 0, "confidence": 0.95}
STUDIES = landscape.list_studies(PROCESSES, **SIMULATION)


def read(out):
    """Returns the stored audits and the stored searches, each with its answer."""
    held = index.holdings(out)
    answers = [(study, find_answer(held, study.setting())) for study in STUDIES]
    answers = [(study, answer) for study, answer in answers if answer is not None]
    audits = [(study, answer) for study, answer in answers if study.kind == AUDIT]
    return audits, [(study, answer) for study, answer in answers if study.kind != AUDIT]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Returns a store with the answers of all studies."""
    out = tmp_path_factory.mktemp("landscape")
    for study in STUDIES:
        landscape.keep(out, study)
    return out


def test_results_come_back_and_damaged_ones_are_computed_again(filled):
    audits, searches = read(filled)
    assert [study.process for study, _ in audits] == PROCESSES
    for study, answer in audits:
        exact = answer["exact"]
        assert list(exact) == list(landscape.ADVERSARIES)
        assert exact["half"]["epsilon"][-1] <= exact["optimal"]["epsilon"][-1]
        for solved in exact.values():
            assert solved["epsilon"][0] == solved["claimed"][0] == answer["upper"]
            assert len(solved["epsilon"]) == len(solved["claimed"]) == study.process.steps
        assert len(answer["in_sample"]) == study.process.steps
    for _, answer in searches:
        thresholds = answer["thresholds"]
        assert len(thresholds) == len(answer["epsilon"]) == len(answer["claimed"]) == 49
        assert (
            np.sum(thresholds) == pytest.approx(49 / 2)
            and max(answer["epsilon"]) <= answer["upper"]
        )
    assert searches[0][1]["thresholds"][-1] == pytest.approx(1.15 * (0.5 + 16 * 0.9265), rel=1e-3)

    path = Store(filled, STUDIES[0].setting()).path / "answer.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert len(read(filled)[0]) == 3
    landscape.keep(filled, STUDIES[0])
    assert path.read_text() == whole


def test_figures_and_table_show_results(filled):
    audits, searches = read(filled)
    drawn = dict(landscape_figures.draw(audits, searches))
    names = ["figure_3a", "figure_14", "figure_3b", "figure_6b", "algorithm_6"]
    assert list(drawn) == names
    _, answer = audits[0]
    half = answer["exact"]["half"]["epsilon"][-1]
    texts = [text.get_text() for text in drawn["figure_3b"].axes[2].texts]
    assert texts[0] == f"{half / answer['upper']:.2f}"
    row = landscape_figures.make_table(audits).json()[0]
    assert (row["sigma"], row["adversary"], row["epsilon_exact"]) == (2.0, "half", half)
    plt.close("all")
