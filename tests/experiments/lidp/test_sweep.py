"""The LiDP paper's Gaussian mechanism as a sweep: what is kept, what is drawn, and its numbers."""

import numpy as np
import pytest
from scipy import special

from audit.report import style
from audit.storage import index
from experiments.cells.cell import DataSets, Levels
from experiments.cells.work import Workplace, do_all, is_done
from experiments.lidp import cells, figures, sweep, tables
from experiments.lidp.cells import MechanismAudit, PlacedAudit, findings, mechanism_cell
from experiments.lidp.gaussian_mechanism import GaussianMechanism, choose, examine, limit, simulate
from experiments.sweeps import registry
from experiments.sweeps.points import Evidence

LEVELS = Levels()
FIGURES = ("lidp_figure_3", "lidp_figure_4")
SMALL = MechanismAudit(64, 4, 100, 4.0, 2, *LEVELS)


def evidence(root, levels=LEVELS):
    return Evidence(index.holdings(root), {}, levels)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("out"), DataSets({}))
    every = {cell.identity: cell for name in FIGURES for cell in sweep.sweeps("smoke")[name].cells}
    assert len(do_all(list(every.values()), place).here) == len(every)
    return place


def test_every_cell_is_done_and_at_other_levels_none_is(place):
    one = sweep.sweeps("smoke")["lidp_figure_3"]
    assert all(is_done(cell, place) for cell in one.cells)
    drawn = figures.draw(one, evidence(place.out, Levels(1e-6, 0.95)))
    assert drawn.missing == len(one.cells) and not drawn.figures and drawn.table is None


def test_a_figure_of_which_cells_are_missing_is_drawn_with_the_others(tmp_path):
    place = Workplace(tmp_path, DataSets({}))
    one = sweep.sweeps("smoke")["lidp_figure_4"]
    do_all(list(one.cells[1:2]), place)
    drawn = figures.draw(one, evidence(tmp_path))
    assert drawn.missing == len(one.cells) - 1 and len(drawn.figures) == 1
    style.png(drawn.figures[0][1])


HARMS = [lambda text: text[:-9], lambda text: text.replace("0.", "1.", 1), lambda text: "[]"]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_answer_is_set_aside_and_computed_again(tmp_path, capsys, harm):
    place, cell = Workplace(tmp_path, DataSets({})), mechanism_cell(PlacedAudit("over n", SMALL))
    do_all([cell], place)
    found = cells.read(index.holdings(tmp_path), SMALL)
    (path,) = tmp_path.glob("*/answer.json")
    path.write_text(harm(path.read_text()))
    assert not is_done(cell, place)
    assert do_all([cell], place).here == [cell.name]
    assert cells.read(index.holdings(tmp_path), SMALL) == found


def test_the_window_caps_epsilon_at_half_the_truth():
    caps = [limit(SMALL._replace(epsilon=one).mechanism().sigma, 1e-5) for one in (1.0, 4.0)]
    assert caps == pytest.approx([0.459, 1.835], abs=1e-3)


def test_the_papers_threshold_lies_in_its_window_and_epsilon_is_one_direction():
    design = simulate(GaussianMechanism(400, 8, 100, 1.2), cells.TUNING_SEED)
    chosen = choose(design, 1e-5, 0.95)
    low, high = np.quantile(design.fresh, 0.1), np.quantile(design.inserted, 0.9)
    assert set(chosen) == {1, 2, 4} and all(low <= one <= high for one in chosen.values())
    found = examine(design, 0.7, 1, 1e-5, 0.95)
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
        seconds = [sum(cell.seconds for cell in sweep.sweeps(scale)[name].cells) for name in FIGURES]
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
    assert len(tables.of_epsilons("f", []).text.splitlines()) == 2 + 7
