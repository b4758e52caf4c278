"""The trained models of the LiDP paper: settings, gains, figures."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from matplotlib import pyplot as plt

from audit.settings import build
from audit.statistics import accounting
from audit.storage.store import Scores
from experiments.cells.cell import Levels
from experiments.lidp import figures, gains, sweep, tables
from experiments.lidp.gains import ORDER_2, ORDER_4, Gain

LEVELS = Levels()
FIGURES = ("lidp_table_1", "lidp_figure_5")


@pytest.mark.parametrize(("rate", "steps"), sweep.NOISE)
def test_noise_is_the_accountant_s(rate, steps):
    table = sweep.NOISE[rate, steps]
    orders = (1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 128, 256, 512)  # LiDP's code
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    for epsilon in (1, 8, 32):
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(table[epsilon]))
        accountant = RdpAccountant(orders, neighboring_relation=relation).compose(step, steps)
        assert accountant.get_epsilon(LEVELS.delta) == pytest.approx(epsilon, rel=3e-5)
    assert accounting.sampled_upper_bound(table[8], steps, LEVELS.delta, rate) < 8


@pytest.mark.parametrize("scale", sweep.SIZES)
def test_cells_differ_are_valid_and_shared(scale):
    found = sweep.sweeps(scale)
    table, figure = (found[name] for name in ("lidp_table_1", "lidp_figure_5"))
    assert len({(one.series, one.panel, one.x) for one in table.audits()}) == len(table.cells)
    assert {one.x for one in figure.audits()} == set(sweep.SIZES[scale].series)
    assert {cell.identity for cell in table.cells} & {cell.identity for cell in figure.cells}
    for one in (*table.audits(), *figure.audits()):
        build.validate(one.setting, one.runs)
        assert one.setting.sampling_rate < 1
        assert one.setting.adversary.name != "clip_bkd" or one.x == 1


def test_clipping_norms_and_steps_are_the_paper_s():
    linear, mlp = sweep.SIZES["paper"].trainings[:2]
    assert [linear.clipping_norms[e] for e in (1, 2, 4, 8, 16, 32)] == [4, 4, 4, 8, 8, 8]
    assert [mlp.clipping_norms[e] for e in (1, 2, 4, 8, 16, 32)] == [2, 4, 4, 8, 8, 8]
    assert linear.steps == 30 * 60_000 / 100 and linear.sampling_rate == 100 / 60_000


def test_the_gain_is_the_ratio_of_runs_at_the_bound_that_both_reach():
    runs = [100, 200, 400, 800]
    assert gains.gain(runs, [0, 0, 0.5, 1], [0, 1, 2, 3]) == pytest.approx(4)
    assert gains.gain(runs, [0, 1, 2, 3], [0, 0, 0.5, 1]) == pytest.approx(1 / 4)
    assert gains.gain(runs, [0, 0, 0.5, 1], [0, 0, 0.5, 1]) == pytest.approx(1)
    assert gains.gain(runs, [0, 0, 0, 0], [0, 1, 1, 1]) is None
    assert gains.gain(runs, [0, 0, 0, 0.5], [0, 0, 0, 1]) == pytest.approx(2**0.5)
    entries = [Gain("", 1.0, {}, {ORDER_2: gain}) for gain in (1, 3)]
    assert gains.mean(entries, ORDER_2) == pytest.approx(1.5)


def _scores(runs, canaries, mu):
    rng = np.random.default_rng(0)
    coins = rng.random((runs, canaries)) < 0.5
    presence = coins if canaries > 1 else np.arange(runs)[:, None] % 2 == 1
    return Scores(0, rng.normal(size=(runs, canaries)) + mu * presence, presence)


def test_independent_canaries_need_fewer_runs():
    runs = gains.places(1000)
    assert runs[0] == gains.LEAST_RUNS and runs[-1] == 500 and not any(n % 2 for n in runs)
    single = gains.curve("lidp_wilson_1", _scores(1000, 1, 1.0), runs, LEVELS)
    many = _scores(1000, 32, 1.0)
    first, second = (gains.curve(f"lidp_wilson_{order}", many, runs, LEVELS) for order in (1, 2))
    assert 1.2 < gains.gain(runs, single, second) < 10
    assert max(second) > max(first)


def _row(lines, label):
    [line] = [line for line in lines if line.startswith(f"{label} ")]
    return line.split()[1:]


def test_entries_that_prove_nothing_have_no_gain():
    entries = [
        Gain("a", 0.5, {ORDER_2: 0.7, ORDER_4: 0.8}, {ORDER_2: 2.0, ORDER_4: 4.0}),
        Gain("b", 0.0, {ORDER_2: 0.0, ORDER_4: 0.3}, {ORDER_2: None, ORDER_4: None}),
        Gain("c", 0.5, {ORDER_2: 0.9}, {ORDER_2: 6.0}),
    ]
    table = tables.of_gains("lidp_table_1", "title", entries)
    lines = table.text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert _row(lines, "b") == ["0.00", "0.00", "0.30", "-", "-"]
    assert _row(lines, "mean") == ["3.00", "4.00"]
    assert table.csv.decode().splitlines()[3] == "c,0.5,0.9,,6,"
    figure = figures.gains_figure("title", entries)
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels == ["order 2, mean 3.00", "order 4, mean 4.00"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["proves nothing"]
    plt.close(figure)
