"""The LiDP paper's Gaussian mechanism as a sweep: what is kept, what is drawn, and its numbers."""

import csv
import io

import numpy as np
import pytest
from scipy import special

from audit.report import style
from audit.storage import index
from experiments.cells.cell import Levels
from experiments.cells.data import DataSets
from experiments.cells.work import Workplace, do_all, is_done
from experiments.lidp import audits, protocol, sweep, table
from experiments.lidp.audits import MechanismAudit
from experiments.lidp.claims import CLAIMS
from experiments.lidp.gaussian_mechanism import GaussianMechanism, simulate
from experiments.lidp.mechanism_cell import mechanism_cell
from experiments.lidp.mechanism_work import findings
from experiments.sweeps import registry
from experiments.sweeps.points import Evidence

LEVELS = Levels()
SMALL = MechanismAudit(64, 4, 100, 4.0, 2, *LEVELS)


def evidence(root, levels=LEVELS):
    return Evidence(index.holdings(root), {}, levels)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A store with all cells of the smoke sweeps."""
    place = Workplace(tmp_path_factory.mktemp("out"), DataSets({}))
    cells = {cell.identity: cell for one in sweep.sweeps("smoke").values() for cell in one.cells}
    assert len(do_all(list(cells.values()), place).here) == len(cells)
    return place


@pytest.mark.parametrize("name", sweep.sweeps("smoke"))
def test_a_figure_is_drawn_from_its_cells_with_a_table_of_80_columns(place, name):
    one = sweep.sweeps("smoke")[name]
    drawn = one.draw(one, evidence(place.out))
    assert drawn.missing == 0 and [figure for figure, _ in drawn.figures] == [name]
    assert style.png(drawn.figures[0][1]).startswith(b"\x89PNG")
    lines = drawn.table.text.splitlines()
    assert max(map(len, lines)) <= 80 and not any(line != line.rstrip() for line in lines)
    rows = list(csv.DictReader(io.StringIO(drawn.table.csv.decode())))
    assert {row["method"] for row in rows} == {"wilson_1", "wilson_2", "wilson_4", "lifted"}
    assert len({tuple(row.values())[:5] for row in rows}) == len(one.cells)
    for figure, panel, _ in CLAIMS:
        assert figure != name or CLAIMS[figure, panel, None].says in drawn.table.text


def test_every_cell_is_done_and_at_other_levels_none_is(place):
    one = sweep.sweeps("smoke")["lidp_figure_3"]
    assert all(is_done(cell, place) for cell in one.cells)
    drawn = one.draw(one, evidence(place.out, Levels(1e-6, 0.95)))
    assert drawn.missing == len(one.cells) and not drawn.figures and drawn.table is None


def test_a_figure_of_which_cells_are_missing_is_drawn_with_the_others(tmp_path):
    place = Workplace(tmp_path, DataSets({}))
    one = sweep.sweeps("smoke")["lidp_figure_4"]
    do_all(list(one.cells[1:2]), place)
    drawn = one.draw(one, evidence(tmp_path))
    assert drawn.missing == len(one.cells) - 1 and len(drawn.figures) == 1
    style.png(drawn.figures[0][1])


HARMS = [lambda text: text[:-9], lambda text: text.replace("0.", "1.", 1), lambda text: "[]"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_answer_is_set_aside_and_computed_again(tmp_path, capsys, harm):
    place, cell = Workplace(tmp_path, DataSets({})), mechanism_cell(SMALL)
    do_all([cell], place)
    found = audits.read(index.holdings(tmp_path), SMALL)
    (path,) = tmp_path.glob("*/answer.json")
    path.write_text(harm(path.read_text()))
    assert not is_done(cell, place)
    assert do_all([cell], place).here == [cell.name]
    assert audits.read(index.holdings(tmp_path), SMALL) == found


def test_the_window_caps_epsilon_at_half_the_truth():
    asked = [SMALL._replace(canaries=1, epsilon=epsilon) for epsilon in (1.0, 4.0)]
    caps = [protocol.limit(one.mechanism(), 1e-5) for one in asked]
    assert caps == pytest.approx([0.459, 1.835], abs=1e-3)


def test_the_papers_threshold_lies_in_its_window_and_epsilon_is_one_direction():
    setting = GaussianMechanism(400, 8, 100, 1.2)
    chosen, design = protocol.choose(setting, 1e-5, 0.95), simulate(setting, protocol.TUNING_SEED)
    low, high = np.quantile(design.fresh, 0.1), np.quantile(design.inserted, 0.9)
    assert set(chosen) == {1, 2, 4} and all(low <= one <= high for one in chosen.values())
    found = protocol.examine(design, 0.7, 1, 1e-5, 0.95)
    z = special.ndtri(1 - 0.025)
    shares = (design.inserted >= 0.7).mean(), (design.fresh >= 0.7).mean()
    ends = [(p + z**2 / 800 + s * z * np.sqrt(p * (1 - p) / 400 + (z / 800) ** 2)) / (1 + z**2 / 400)
            for p, s in zip(shares, (-1, 1), strict=True)]  # fmt: skip
    assert found.epsilon == pytest.approx(np.log((ends[0] - 1e-5) / ends[1]))
    many = (design.inserted >= 0.7).sum(1)
    second = np.mean(many * (many - 1)) / 56 - shares[0] ** 2
    assert found.second == pytest.approx(abs(second)) and found.fourth is not None


def test_one_canary_has_order_1_alone():
    found = findings(SMALL._replace(canaries=1), 1, lambda runs: None)
    assert set(found.epsilons) == {"wilson_1", "lifted"} and found.second is None and found.fourth is None


def test_all_papers_sweeps_have_names_of_their_own():
    for scale in registry.SCALES:
        assert {"figure_1a", "lidp_figure_3", "lidp_figure_4"} <= set(registry.sweeps(scale))
        seconds = [sum(cell.seconds for cell in one.cells) for one in sweep.sweeps(scale).values()]
        assert scale == "paper" or sum(seconds) < 300


REFERENCE = {  # (n, K) -> means and deviations of an independent computation, 8 seeds, epsilon 1, d = 10,000
    (1024, 1): {"wilson_1": (0.141, 0.112)},
    (4096, 1): {"wilson_1": (0.278, 0.063)},
    (65536, 1): {"wilson_1": (0.401, 0.021)},
    (1024, 32): {"wilson_2": (0.281, 0.021), "wilson_4": (0.294, 0.018)},
    (256, 16): {"wilson_2": (0.035, 0.051), "wilson_4": (0.055, 0.054)},
}


@pytest.mark.slow
def test_epsilons_are_those_of_an_independent_computation():
    for (runs, canaries), expected in REFERENCE.items():
        found = findings(MechanismAudit(runs, canaries, 10_000, 1.0, 8, *LEVELS), 1, lambda done: None)
        for method, (mean, deviation) in expected.items():
            assert np.mean(found.epsilons[method]) == pytest.approx(mean, abs=2 * deviation)


def test_a_table_of_no_points_has_a_header_alone():
    assert len(table.epsilons("f", "t", [("over n", [])]).text.splitlines()) == 2 + 7
