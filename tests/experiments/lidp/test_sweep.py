"""The LiDP paper's sweeps: simulated scores, bounds, thresholds, cells and figures."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from audit.claims import accounting
from audit.report import style
from audit.settings.setting import validate
from audit.storage import index
from audit.storage.store import Scores
from audit.written import Level
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace, do_all
from experiments.lidp import figures, sweep
from experiments.lidp.gaussian_mechanism import (
    TUNING_SEED,
    choose_thresholds,
    find_epsilons,
    moment_gaps,
    simulate,
    window_limit,
)
from experiments.lidp.mechanism_audit import MechanismAudit
from experiments.sweeps.points import Evidence
from tests.cases import mostly_slow

LEVELS = Level()
SMALL = MechanismAudit(64, 4, 100, 4.0, 2, *LEVELS)


def evidence(root, levels=LEVELS):
    return Evidence(index.holdings(root), {}, levels)


@pytest.mark.slow
def test_a_figure_of_which_cells_are_missing_is_drawn_with_the_others(tmp_path):
    chosen = sweep.sweeps("smoke")["lidp_figure_4"]
    done = chosen.cells[1:2]
    assert do_all(list(done), Workplace(tmp_path, DataSets({}))).completed
    drawn = figures.draw(chosen, evidence(tmp_path))
    assert drawn.missing == len(chosen.cells) - 1
    assert max(map(len, drawn.table.text.splitlines())) <= 80
    style.png(drawn.figure)
    others = figures.draw(chosen, evidence(tmp_path, Level(1e-6, 0.95)))
    assert (others.missing, others.figure, others.table) == (len(chosen.cells), None, None)


def test_the_window_caps_epsilon_at_half_the_truth():
    for epsilon, cap in ((1.0, 0.459), (4.0, 1.835)):
        sigma = SMALL._replace(epsilon=epsilon).sigma
        assert window_limit(sigma, 1e-5) == pytest.approx(cap, abs=1e-3)


def test_the_papers_threshold_lies_in_its_window():
    design = simulate(SMALL._replace(runs=400, canaries=8), TUNING_SEED)
    chosen = choose_thresholds(design, LEVELS)
    low, high = np.quantile(design.fresh, 0.1), np.quantile(design.inserted, 0.9)
    assert set(chosen) == {1, 2, 4}
    assert all(low <= threshold <= high for threshold in chosen.values())
    rate_in = (design.inserted >= 0.7).mean()
    detected = (design.inserted >= 0.7).sum(1)
    second = np.mean(detected * (detected - 1)) / 56 - rate_in**2
    assert moment_gaps(design.inserted, 0.7)["second"] == pytest.approx(abs(second))
    assert moment_gaps(design.inserted[:, :1], 0.7) == {}


REFERENCE = {  # (n, K) -> means and deviations of an independent computation, 8 seeds, epsilon 1, d = 10,000
    (4096, 1): {"wilson_1": (0.278, 0.063)},
    (65536, 1): {"wilson_1": (0.401, 0.021)},
    (1024, 32): {"wilson_2": (0.281, 0.021), "wilson_4": (0.294, 0.018)},
}


@pytest.mark.slow
def test_epsilons_are_those_of_an_independent_computation():
    for (runs, canaries), expected in REFERENCE.items():
        audit = MechanismAudit(runs, canaries, 10_000, 1.0, 8, *LEVELS)
        result = find_epsilons(audit, 1, lambda done: None)
        for method, (mean, deviation) in expected.items():
            assert np.mean(result["epsilons"][method]) == pytest.approx(mean, abs=2 * deviation)


def draw_directly(audit, seed):
    """Draws the scores (n, K) of inserted and of fresh canaries from all canaries' vectors, in O(n K d)."""
    runs, canaries, dimension, *_ = audit
    rng = np.random.default_rng(seed)
    worlds = []
    for count, is_inserted in ((canaries, True), (canaries - 1, False)):
        vectors = rng.standard_normal((runs, count, dimension))
        vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
        released = vectors.sum(1) + audit.sigma * rng.standard_normal((runs, dimension))
        if not is_inserted:
            vectors = rng.standard_normal((runs, canaries, dimension))
            vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
        worlds.append(np.einsum("rkd,rd->rk", vectors, released))
    return worlds


@pytest.mark.parametrize(
    "audit",
    [MechanismAudit(4000, *sizes, 1, *LEVELS) for sizes in ((1, 2, 4.0), (4, 9, 1.0))],
    ids=str,
)
def test_scores_have_the_laws_of_the_definition(audit):
    worlds = simulate(audit, 0)
    for scores, expected in zip(worlds[:2], draw_directly(audit, 1), strict=True):
        for take in (lambda x: x[:, 0], lambda x: x[:, -1], lambda x: x.sum(1), lambda x: x.max(1)):
            assert stats.ks_2samp(take(scores), take(expected)).pvalue > 1e-3
        assert scores.var() == pytest.approx(expected.var(), rel=0.1)


TRAININGS = [sweep._SHORT_TRAINING, *sweep.SIZES["paper"].trainings]


@pytest.mark.parametrize("training", mostly_slow([(one,) for one in TRAININGS], quick=0))
def test_noise_is_the_accountant_s(training):
    orders = [1.25, 1.5, 1.75, *np.arange(2, 5, 0.5), 2.25, *range(5, 64), 128, 256, 512]  # LiDP's
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    rate, steps = training.sampling_rate, training.steps
    noise = dict(zip(sweep.EPSILONS, training.noise, strict=True))
    for epsilon in (1, 8, 32):
        step = dp_accounting.PoissonSampledDpEvent(
            rate, dp_accounting.GaussianDpEvent(noise[epsilon])
        )
        accountant = RdpAccountant(orders, neighboring_relation=relation).compose(step, steps)
        assert accountant.get_epsilon(LEVELS.delta) == pytest.approx(epsilon, rel=3e-5)
    assert (
        accounting.participant_upper_bound(
            accounting.Composition(noise[8], steps, rate), LEVELS.delta
        )
        < 8
    )


@pytest.mark.parametrize("scale", sweep.SIZES)
def test_cells_are_valid_and_shared(scale):
    table, figure = (sweep.sweeps(scale)[f"lidp_{name}"] for name in ("table_1", "figure_5"))
    places = {(audit.series, audit.panel, audit.x) for audit in table.audits()}
    assert len(places) == len(table.cells)
    assert {audit.x for audit in figure.audits()} == set(sweep.SIZES[scale].series)
    assert {cell.identity for cell in table.cells} & {cell.identity for cell in figure.cells}
    for audit in (*table.audits(), *figure.audits()):
        validate(audit.setting, audit.runs)
        assert audit.setting.adversary.name != "clip_bkd" or audit.x == 1


def _scores(runs, canaries, mu):
    rng = np.random.default_rng(0)
    coins = rng.random((runs, canaries)) < 0.5
    presence = coins if canaries > 1 else np.arange(runs)[:, None] % 2 == 1
    return Scores(0, rng.normal(size=(runs, canaries)) + mu * presence, presence)


def test_independent_canaries_need_fewer_runs():
    runs = figures.choose_numbers_of_runs(1000)
    assert runs[0] == figures.MIN_RUNS
    assert runs[-1] == 500
    assert not any(count % 2 for count in runs)
    single = figures.compute_curve("wilson_1", _scores(1000, 1, 1.0), runs, LEVELS)
    many = _scores(1000, 32, 1.0)
    order_1 = figures.compute_curve("wilson_1", many, runs, LEVELS)
    order_2 = figures.compute_curve("wilson_2", many, runs, LEVELS)
    assert 1.2 < figures.compute_gain(runs, single, order_2) < 10
    assert max(order_2) > max(order_1)
