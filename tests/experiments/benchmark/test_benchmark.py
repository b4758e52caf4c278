"""The benchmark: every record keeps its contract, truths are right, and a cell is measured once."""

import csv
import io
import json

import numpy as np
import pytest

from audit.calibration.calibration import FAIR, GAUSSIAN_CURVE, draw
from audit.claims import accounting
from audit.laws import conversions
from audit.methods import lifted, one_run_bounds
from audit.report import style
from experiments.benchmark import page, peers, published, registry, tables
from experiments.benchmark.cells import (
    AuditedCell,
    CellStore,
    Scale,
    list_cells,
    list_claims,
    load_all,
    measure_cell,
    measure_missing,
)
from experiments.benchmark.contract import (
    DESIGNS,
    DIRECTIONS,
    MOST,
    ONE_CANARY,
    OURS,
    SEVERAL,
    Estimator,
    shuffle,
)
from experiments.benchmark.false_claims import ClaimCell
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from tests.audit.methods.test_exchangeable import CANARIES

DELTA = 1e-5
CONFIDENCE = 0.95
WITHOUT_PACKAGE = [estimator for estimator in ESTIMATORS.values() if not estimator.package]


def draw_gaussian(design):
    """Draws an audit's evidence of a design with Gaussian scores of mu 1."""
    for mechanism in MECHANISMS.values():
        if mechanism.design == design and "Gaussian 1" in mechanism.name:
            return draw(mechanism.make_known(0, 60), 0)
    raise LookupError(design)


def find_truth(name):
    """Returns the true epsilon of a mechanism."""
    mechanism = MECHANISMS[name]
    setting = mechanism.make_known(0, mechanism.sizes[0])
    return setting.law.truth(setting).epsilon


def name_of(record):
    """Returns the name under which pytest shows a record."""
    return record.name


def mark_slow_mechanisms():
    """Returns all mechanisms as pytest's parameters; those that train models are slow."""
    parameters = []
    for mechanism in MECHANISMS.values():
        marks = [pytest.mark.slow] if "trained" in mechanism.name else []
        parameters.append(pytest.param(mechanism, marks=marks))
    return parameters


@pytest.mark.parametrize("estimator", WITHOUT_PACKAGE, ids=name_of)
def test_an_estimator_takes_the_scores_of_its_design(estimator):
    evidence = draw_gaussian(estimator.design)
    epsilon = estimator.epsilon(evidence, DELTA, CONFIDENCE)
    assert 0 <= epsilon < MOST
    assert estimator.assumption
    assert estimator.source
    if estimator.kind == OURS and estimator.design in (ONE_CANARY, SEVERAL):  # rows have no order
        shuffled = shuffle(evidence, np.random.default_rng(0))
        assert estimator.epsilon(shuffled, DELTA, CONFIDENCE) == epsilon


@pytest.mark.slow  # importing jax-privacy takes seconds
@pytest.mark.parametrize("estimator", peers.ESTIMATORS, ids=name_of)
def test_a_packages_estimator_takes_the_scores_of_its_design(estimator):
    pytest.importorskip(estimator.module)
    evidence = draw_gaussian(estimator.design)
    assert 0 <= estimator.epsilon(evidence, DELTA, CONFIDENCE) < MOST


def test_there_are_as_many_as_a_benchmark_needs():
    ours = [estimator for estimator in ESTIMATORS.values() if estimator.kind == OURS]
    assert len(ESTIMATORS) - len(ours) >= 12
    assert len(MECHANISMS) >= 10
    assert {estimator.design for estimator in ESTIMATORS.values()} == set(DESIGNS)
    methods = {estimator.name.removeprefix("ours: ") for estimator in ours}
    assert set(lifted.METHODS) | set(one_run_bounds.OF_COINS) < methods


@pytest.mark.parametrize("mechanism", mark_slow_mechanisms(), ids=name_of)
def test_an_audits_scores_are_of_its_design_and_the_same_each_time(mechanism):
    setting = mechanism.make_known(3, 40)
    scores, presence, *_ = draw(setting, 0)
    assert scores.shape == presence.shape == (setting.runs, setting.canaries)
    assert np.array_equal(scores, draw(setting, 0)[0])
    assert not np.array_equal(scores, draw(setting, 1)[0])
    assert (scores.shape[1] == 1) == (mechanism.design == ONE_CANARY)
    assert presence.all() == (mechanism.design == DIRECTIONS)
    assert setting.law.truth(setting).epsilon >= 0


@pytest.mark.slow
def test_truths_are_those_of_other_accountants():
    truth = {name: find_truth(name) for name in MECHANISMS}
    subsampled = accounting.sampled_upper_bound(0.5, 1, DELTA, 0.1)
    assert truth["Poisson-subsampled"] == pytest.approx(subsampled, abs=2e-3)
    assert truth["Gaussian 1"] == pytest.approx(accounting.epsilon_upper_bound(1.0, 1, DELTA))
    assert truth["Gaussian 2"] < truth["mixture of runs"] < conversions.epsilon_from_mu(3.0, DELTA)
    assert truth["Laplace 1"] == pytest.approx(1, abs=1e-4)
    failing = truth["runs of 16: failing runs"]
    assert conversions.delta_from_mu(2.0, failing) / 2 == pytest.approx(DELTA)


def test_tied_canaries_are_tied_and_tell_what_mu_says():
    """The covariance of their scores is that of inner products 1/2, given which are in."""
    audit = draw(MECHANISMS["runs of 16: tied canaries"].make_known(0, 4000), 0)
    present = audit.presence.astype(float)
    centred = audit.scores - 0.5 * present - 0.5 * present.sum(1, keepdims=True)
    covariance = np.cov(centred.T)
    assert np.allclose(np.diag(covariance), 1, atol=0.1)
    assert np.allclose(covariance[~np.eye(16, dtype=bool)], 0.5, atol=0.1)


def test_lidp_as_printed_is_what_its_code_says():
    """On the authors' example, 0.100820 to 0.102542 with the identity (Errata L1)."""
    rng = np.random.default_rng(0)
    sums = rng.binomial(CANARIES, 0.1, 10_000).astype(float)
    printed = published.fourth_order_limit(sums, CANARIES, 0.05)
    right = lifted.exchangeable_limits(sums, CANARIES, 4, 0.05, lifted.wilson)[1]
    assert right < printed < right + 1e-4


@pytest.mark.parametrize("right", [110, 150, 190])
def test_the_printed_recursion_refutes_what_ours_does(right):
    coins = 1000
    guesses = 200
    presence = np.zeros(coins, bool)
    presence[: coins // 2] = True
    wrong = (guesses - right) // 2
    presence[:wrong] = False
    presence[coins - wrong :] = True
    scores = -np.arange(coins, dtype=float)
    audit = draw_gaussian("one run")._replace(scores=scores[None], presence=presence[None])

    is_right = published.judge_guesses(audit)
    assert published.count_right_guesses(is_right, False) == [(guesses, right)]
    mu = one_run_bounds.mu_from_guesses(coins, guesses, right, 0.05)
    epsilon = published.mahloujifar(False)(audit, DELTA, CONFIDENCE)
    assert epsilon == pytest.approx(conversions.epsilon_from_mu(mu, DELTA), abs=1e-3)


def claim_share(factor):
    """Returns an estimator that claims this share of the truth at mu 1."""

    def epsilon(audit, delta, confidence):
        return factor * conversions.epsilon_from_mu(1.0, delta)

    return epsilon


def refuse(audit, delta, confidence):
    """Refuses all scores, as an estimator may."""
    raise ValueError("too few\nscores")


@pytest.fixture
def planted(monkeypatch):
    """Plants estimators that claim too much, and too little, and nothing."""
    functions = {"too much": claim_share(1.01), "little": claim_share(0.5), "none": refuse}
    for name, function in functions.items():
        assumes = frozenset([GAUSSIAN_CURVE])
        estimator = Estimator(name, OURS, "here", ONE_CANARY, "a Gaussian curve", function, assumes)
        monkeypatch.setitem(ESTIMATORS, name, estimator)


def test_a_cell_says_how_often_and_by_how_much(planted):
    over = measure_cell(AuditedCell("too much", "Gaussian 1", 50, 20, 0))
    assert (over.exceeding, over.audits, over.refused, over.spread) == (20, 20, 0, 0)
    assert over.exceeds_level(1)
    assert over.is_held_to_level
    assert over.proven_share == pytest.approx(1.01)
    assert over.high == 1
    assert over.beyond == pytest.approx(0.01 * over.truth)
    assert 0.8 < over.low < 0.85

    blameless = measure_cell(AuditedCell("too much", "Laplace 1", 50, 20, 0))
    assert blameless.exceeds_level(1)
    assert not blameless.is_held_to_level
    assert blameless.broken == (GAUSSIAN_CURVE,)

    assert not measure_cell(AuditedCell("little", "Gaussian 1", 50, 20, 0)).exceeds_level(1)

    refusing = measure_cell(AuditedCell("none", "Gaussian 1", 50, 5, 0))
    assert (refusing.refused, refusing.mean, refusing.why) == (5, 0, "ValueError: too few")


def test_stars_share_their_error_over_the_cells_of_a_table(planted):
    honest = measure_cell(AuditedCell("little", "Gaussian 1", 50, 20, 0))
    # 13 of 100 above the truth have a probability of 0.15% where 5% are allowed.
    unlucky = honest._replace(exceeding=13, audits=100)
    assert unlucky.exceeds_level(1)
    assert not unlucky.exceeds_level(100)
    cells = [unlucky, *([honest._replace(audits=100)] * 99)]
    [row] = tables.summarise_estimators(cells)
    assert not row.over_level
    [alone] = tables.summarise_estimators([unlucky])
    assert alone.over_level == (unlucky,)


def test_a_cell_is_measured_once_and_again_where_its_file_is_damaged(planted, tmp_path):
    cells = list_cells(["too much", "little"], ["Gaussian 1", "coins: Gaussian 1"], Scale(3, 40), 0)
    store = CellStore(tmp_path)
    first = cells[0]
    assert len(cells) == 2
    assert set(measure_missing(cells, store, 1)) == set(cells)
    assert not list(measure_missing(cells, store, 1))
    assert store.load(first) == store.load(first)

    store.path(first).write_text("{")
    assert list(measure_missing(cells, store, 1)) == [first]

    other = first._replace(seed=1)
    assert store.path(other) != store.path(first)
    assert store.load(other) is None


def test_what_is_not_installed_is_left_out(monkeypatch):
    name = "opake: gdp"
    monkeypatch.setitem(ESTIMATORS, name, ESTIMATORS[name]._replace(module="no_such_module"))
    assert not registry.is_installed(ESTIMATORS[name])
    assert not list_cells([name], ["coins: Gaussian 1"], Scale(3, 40), 0)


def test_few_runs_and_unfair_coins_are_marked():
    clustered = ESTIMATORS["ours: clustered"].assumes
    lidp = ESTIMATORS["LiDP: order 4 as printed"].assumes
    plain = MECHANISMS["runs of 16: Gaussian 1"]
    unfair = MECHANISMS["runs of 16: nine tenths in"]
    assert not plain.make_known(0, 200).find_broken(clustered)
    assert plain.make_known(0, 50).find_broken(clustered)
    assert plain.make_known(0, 50).find_broken(lidp)
    assert unfair.make_known(0, 200).find_broken(lidp) == {FAIR}


def test_table_figure_page_and_files_come_from_the_same_cells(planted, tmp_path):
    estimators = ["too much", "little", "CANIFE"]
    mechanisms = ["Gaussian 0", "Gaussian 1", "Laplace 1"]
    cells = [measure_cell(cell) for cell in list_cells(estimators, mechanisms, Scale(8, 40), 0)]

    lines = tables.make_summary_table(cells).text().splitlines()
    assert max(len(line) for line in lines) <= 80
    (bound,) = [line for line in lines if line.startswith("too much  ")]
    assert "100.0%*" in bound
    assert "101%" in bound
    (estimate,) = [line for line in lines if line.startswith("CANIFE")]
    assert "%-" in estimate

    written = {path.name: path.read_bytes() for path in page.write_files(tmp_path, cells)}
    csv_rows = list(csv.DictReader(io.StringIO(written["benchmark.csv"].decode())))
    assert len(csv_rows) == len(cells) == 9
    assert len(json.loads(written["benchmark.json"])["cells"]) == 9
    html = written["benchmark.html"].decode()
    for text in ("too much", "CANIFE", "Laplace 1", "here"):
        assert text in html
    assert written["benchmark.png"].startswith(b"\x89PNG")
    assert style


def claim_from(runs):
    """Returns an estimator that proves more than is claimed of at least so many runs."""

    def epsilon(coins, delta, confidence):
        return 99.0 if len(coins.scores) >= runs else 0.0

    return epsilon


@pytest.fixture
def doubting(monkeypatch):
    """Plants estimators that prove much of many runs, whatever the scores are."""
    for name, runs in {"of 300": 300, "of 9,000": 9000}.items():
        estimator = Estimator(name, OURS, "here", ONE_CANARY, "nothing", claim_from(runs))
        monkeypatch.setitem(ESTIMATORS, name, estimator)


def test_the_runs_that_refute_a_claim_are_found_and_false_ones_marked(doubting):
    found = ClaimCell("of 300", 5000, 10, 0).measure()
    assert 300 <= found.runs <= 330
    assert (found.audits, found.false_refutations) == (10, 10)
    assert found.show(1) == f"{found.runs}*"
    never = ClaimCell("of 9,000", 5000, 10, 0).measure()
    assert (never.runs, never.false_refutations, never.show(1)) == (None, 0, ">5,000")


def test_the_test_of_a_curve_refutes_less_noise_in_a_few_runs_and_no_claim_that_holds():
    cell = ClaimCell("ours: exact_null", 100, 20, 0)
    measured = cell.measure()
    assert 1 < measured.runs <= 10
    assert not measured.exceeds_level(1)
    assert cell.find_refuted_share(2 * measured.runs, 0.9) >= 0.9
    single = ClaimCell("Steinke: a fifth guessed", 100, 4, 0).measure()
    assert (single.runs, single.most_runs) == (None, 1)


def test_claims_are_in_every_file_and_in_80_columns(planted, doubting, tmp_path):
    cells = [
        measure_cell(cell) for cell in list_cells(["of 300"], ["Gaussian 1"], Scale(4, 200), 0)
    ]
    claims = list_claims(["of 300"], Scale(4, 200, claim_audits=4, most_runs=1000), 0)
    store = CellStore(tmp_path / "cells")
    assert list(measure_missing(claims, store, 1)) == claims
    assert not list(measure_missing(claims, store, 1))
    [claim] = load_all(claims, store)

    text = tables.make_summary_table(cells, [claim]).text()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert f"{claim.runs}*" in text
    page.write_files(tmp_path, cells, [claim])
    [row] = csv.DictReader((tmp_path / "estimators.csv").open())
    assert row["runs_until_refuted"] == str(claim.runs)
    assert json.loads((tmp_path / "benchmark.json").read_text())["claims"] == [claim._asdict()]
    assert f"{claim.runs}*" in (tmp_path / "benchmark.html").read_text()
