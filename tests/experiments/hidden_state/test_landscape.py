"""The crafted landscape's study: its cells, their results in the store, and its figures."""

import json

import numpy as np
import pytest

from audit.laws import conversions
from audit.storage import index
from experiments.cells.cell import DataSets
from experiments.hidden_state import (
    landscape,
    landscape_cells,
    landscape_figures,
    landscape_solve,
)
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape import Grid, Landscape, Simulation, ThresholdSearch

CELL = Landscape(4.0, 2, 3, 1e-5)
SIMULATION = Simulation(40, 0, 0.95)
CELLS = landscape_cells.list_cells(Grid((2.0, 4.0), (1, 2), 3), SIMULATION, 1e-5, threshold=0.7)
NO_DATA = DataSets({})


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with the results of all cells."""
    out = tmp_path_factory.mktemp("landscape")
    for cell in CELLS:
        cell.do(cell.open(out, NO_DATA), NO_DATA, print)
    return out


def test_a_search_tries_thresholds_up_to_where_none_leaks_more():
    thresholds = ThresholdSearch(Landscape(4.0, 4, 2, 1e-5), SIMULATION).thresholds()
    assert len(thresholds) == 49 and np.sum(thresholds) == pytest.approx(49 / 2)
    assert thresholds[-1] == pytest.approx(1.15 * (0.5 + 16 * 0.9265), rel=1e-3)


def test_a_study_has_a_cell_of_its_own_name_for_every_landscape_and_algorithm_6():
    cells = [tuple(cell.request.landscape) for cell in CELLS]
    own = [(sigma, size, 3, 1e-5) for sigma in (2.0, 4.0) for size in (1, 2)]
    assert cells == [*own, (4.0, 4, 2, 1e-5), (1.0, 1, 2, 1e-5)]
    assert len({cell.identity for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("name", law.ADVERSARIES)
def test_a_solved_law_is_its_adversarys(name):
    adversary = law.ADVERSARIES[name](law.Process(4.0, 2, 3), 1e-5)
    exact = landscape_solve.solve(CELL, adversary.values)
    assert exact.epsilon[-1] == pytest.approx(adversary.epsilon, rel=1e-4)
    assert exact.epsilon[0] == exact.claimed[0] == conversions.epsilon_from_mu(1 / 4, 1e-5)
    assert len(exact.epsilon) == len(exact.claimed) == 3


def test_results_come_back_and_what_is_missing_or_damaged_is_computed_again(filled):
    held = index.holdings(filled)
    audits = landscape.read_audits(held, CELLS)
    searches = landscape.read_searches(held, CELLS)
    assert [request for request, _ in [*audits, *searches]] == [cell.request for cell in CELLS]
    for request, result in audits:
        assert list(result.exact) == list(law.ADVERSARIES)
        assert result.exact["half"].epsilon[-1] <= result.exact["optimal"].epsilon[-1]
        assert result.at_threshold.epsilon[0] == result.upper
        assert len(result.in_sample) == request.landscape.steps
        assert {row["method"] for row in result.last} >= {"if_gaussian", "assumption_free"}
    for request, result in searches:
        assert result.thresholds == request.thresholds()
        assert len(result.epsilon) == len(result.claimed) == 49
        assert max(result.epsilon) <= result.upper

    cell = CELLS[0]
    path = cell.open(filled, NO_DATA).path / "answer.json"
    whole = path.read_text()
    values = json.loads(whole)
    path.write_text(json.dumps(values | {"upper": values["upper"] + 1e-15}))
    assert not cell.is_done(held, NO_DATA) and len(landscape.read_audits(held, CELLS)) == 3
    cell.do(cell.open(filled, NO_DATA), NO_DATA, print)
    assert path.read_text() == whole and cell.is_done(held, NO_DATA)


def cell_texts(figure):
    return [[text.get_text() for text in axis.texts] for axis in figure.axes]


def test_figures_and_rows_take_results_alone(filled):
    held = index.holdings(filled)
    audits = landscape.read_audits(held, CELLS)
    searches = landscape.read_searches(held, CELLS)
    of_cells = ["figure_3a", "figure_14", "figure_3b", "figure_6b", "figure_10"]
    assert [name for name, _ in landscape_figures.draw(audits, [])] == of_cells
    assert [name for name, _ in landscape_figures.draw([], searches)] == ["algorithm_6"]
    request, result = audits[0]
    half = result.exact["half"].epsilon[-1]
    exact = cell_texts(dict(landscape_figures.draw(audits, []))["figure_3b"])[3]
    assert exact[0] == f"{half / result.upper:.2f}"
    row = landscape_figures.make_rows(audits)[1]
    _, second = audits[1]
    assert (row.panel, row.series, row.predicted) == (
        "sigma = 2", "B = 2", second.at_threshold.epsilon[-1]
    )  # fmt: skip
