"""The crafted landscape's study: its cells, their results in the store, and its figures."""

import numpy as np
import pytest
from experiments.hidden_state.landscape import AUDIT, SEARCH, Grid, Process, Simulation, Study

from audit.laws import conversions
from audit.storage import index
from experiments.cells.cell import DataSets
from experiments.hidden_state import landscape, landscape_cells, landscape_figures, landscape_solve
from experiments.hidden_state import landscape_law as law

SIMULATION = Simulation(40, 0, 0.95)
CELLS = landscape_cells.list_cells(Grid((2.0, 4.0), (1, 2), 3), SIMULATION, 1e-5)
NO_DATA = DataSets({})


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with the results of all cells."""
    out = tmp_path_factory.mktemp("landscape")
    for cell in CELLS:
        cell.do(cell.open(out, NO_DATA), NO_DATA, print)
    return out


def test_a_search_tries_thresholds_up_to_where_none_leaks_more():
    study = Study(SEARCH, Process(4.0, 4, 2), 1e-5, SIMULATION)
    thresholds = landscape_solve.list_thresholds(study)
    assert len(thresholds) == 49 and np.sum(thresholds) == pytest.approx(49 / 2)
    assert thresholds[-1] == pytest.approx(1.15 * (0.5 + 16 * 0.9265), rel=1e-3)


def test_a_study_has_a_cell_of_its_own_name_for_every_landscape_and_algorithm_6():
    cells = [tuple(cell.request.process) for cell in CELLS]
    own = [(sigma, size, 3) for sigma in (2.0, 4.0) for size in (1, 2)]
    assert cells == [*own, (4.0, 4, 2), (1.0, 1, 2)]
    assert len({cell.identity for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("name", law.ADVERSARIES)
def test_a_solved_law_is_its_adversarys(name):
    process = Process(4.0, 2, 3)
    adversary = law.ADVERSARIES[name](process, 1e-5)
    exact = landscape_solve.solve(process, adversary.values, 1e-5)
    assert exact["epsilon"][-1] == pytest.approx(adversary.epsilon, rel=1e-4)
    assert exact["epsilon"][0] == exact["claimed"][0] == conversions.epsilon_from_mu(1 / 4, 1e-5)
    assert len(exact["epsilon"]) == len(exact["claimed"]) == 3


def test_results_come_back_and_what_is_missing_or_damaged_is_computed_again(filled):
    held = index.holdings(filled)
    audits = landscape.read(held, CELLS, AUDIT)
    searches = landscape.read(held, CELLS, SEARCH)
    assert [study for study, _ in [*audits, *searches]] == [cell.request for cell in CELLS]
    for study, result in audits:
        exact = result["exact"]
        assert list(exact) == list(law.ADVERSARIES)
        assert exact["half"]["epsilon"][-1] <= exact["optimal"]["epsilon"][-1]
        assert exact["half"]["epsilon"][0] == result["upper"]
        assert len(result["in_sample"]) == study.process.steps
    for study, result in searches:
        assert result["thresholds"] == landscape_solve.list_thresholds(study)
        assert len(result["epsilon"]) == len(result["claimed"]) == 49
        assert max(result["epsilon"]) <= result["upper"]

    cell = CELLS[0]
    path = cell.open(filled, NO_DATA).path / "answer.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    assert not cell.is_done(held, NO_DATA) and len(landscape.read(held, CELLS, AUDIT)) == 3
    cell.do(cell.open(filled, NO_DATA), NO_DATA, print)
    assert path.read_text() == whole and cell.is_done(held, NO_DATA)


def test_figures_and_table_take_results_alone(filled):
    held = index.holdings(filled)
    audits = landscape.read(held, CELLS, AUDIT)
    searches = landscape.read(held, CELLS, SEARCH)
    drawn = dict(landscape_figures.draw(audits, []))
    assert list(drawn) == ["figure_3a", "figure_14", "figure_3b", "figure_6b", "figure_10"]
    assert [name for name, _ in landscape_figures.draw([], searches)] == ["algorithm_6"]
    _, result = audits[0]
    half = result["exact"]["half"]["epsilon"][-1]
    texts = [text.get_text() for text in drawn["figure_3b"].axes[2].texts]
    assert texts[0] == f"{half / result['upper']:.2f}"
    row = landscape_figures.make_table(audits).json()[0]
    assert (row["sigma"], row["adversary"], row["epsilon_exact"]) == (2.0, "half", half)
