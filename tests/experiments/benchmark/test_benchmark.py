"""The benchmark: every record keeps its contract, truths are right, and a cell is made once."""

import csv
import io
import json

import numpy as np
import pytest

from audit.report import style
from audit.statistics import accounting, conversions, lifted, one_run_bounds
from experiments.benchmark import measured, page, peers, published, registry, shown
from experiments.benchmark.contract import (
    DESIGNS,
    DIRECTIONS,
    FAIR,
    GAUSSIAN,
    ONE_CANARY,
    OURS,
    SEVERAL,
    Estimator,
    broken,
)
from experiments.benchmark.measured import AuditedCell, KeptCells, Scale, cells, measure, missing
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from tests.audit.statistics.test_exchangeable import CANARIES

DELTA, CONFIDENCE = 1e-5, 0.95
OWN = [one for one in ESTIMATORS.values() if not one.package]
PLAIN = {
    design: next(one for one in MECHANISMS.values() if one.design == design and "Gaussian 1" in one.name)
    for design in DESIGNS
}


@pytest.mark.parametrize("estimator", OWN, ids=lambda one: one.name)
def test_an_estimator_takes_the_scores_of_its_design(estimator):
    evidence = PLAIN[estimator.design].audit(0, 60, 0)
    found = estimator.epsilon(evidence, DELTA, CONFIDENCE)
    assert 0 <= found < measured.MOST and estimator.says and estimator.source
    if estimator.kind == OURS and estimator.design in (ONE_CANARY, SEVERAL):  # rows have no order
        assert estimator.epsilon(evidence.shuffled(np.random.default_rng(0)), DELTA, CONFIDENCE) == found


@pytest.mark.slow  # importing jax-privacy takes seconds
@pytest.mark.parametrize("estimator", peers.ESTIMATORS, ids=lambda one: one.name)
def test_a_packages_estimator_takes_the_scores_of_its_design(estimator):
    pytest.importorskip(estimator.module)
    evidence = PLAIN[estimator.design].audit(0, 60, 0)
    assert 0 <= estimator.epsilon(evidence, DELTA, CONFIDENCE) < measured.MOST


def test_there_are_as_many_as_a_benchmark_needs():
    assert sum(one.kind != OURS for one in ESTIMATORS.values()) >= 12 and len(MECHANISMS) >= 10
    assert {one.design for one in ESTIMATORS.values()} == set(DESIGNS)
    own = {one.name.removeprefix("ours: ") for one in ESTIMATORS.values() if one.kind == OURS}
    assert set(lifted.METHODS) | set(one_run_bounds.OF_COINS) < own


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(one, marks=[pytest.mark.slow] * ("trained" in one.name)) for one in MECHANISMS.values()],
    ids=lambda one: one.name,
)
def test_an_audits_scores_are_of_its_design_and_the_same_each_time(mechanism):
    one, again, other = (mechanism.audit(3, 40, index) for index in (0, 0, 1))
    assert one.scores.shape == one.presence.shape and np.array_equal(one.scores, again.scores)
    assert not np.array_equal(one.scores, other.scores)
    assert (one.scores.shape[1] == 1) == (mechanism.design == ONE_CANARY)
    assert one.presence.all() == (mechanism.design == DIRECTIONS) and mechanism.truth(mechanism.delta) >= 0


def test_truths_are_those_of_other_accountants():
    truth = {name: one.truth(DELTA) for name, one in MECHANISMS.items()}
    assert truth["Poisson-subsampled"] == pytest.approx(
        accounting.sampled_upper_bound(0.5, 1, DELTA, 0.1), abs=2e-3
    )
    assert truth["Gaussian 1"] == pytest.approx(accounting.epsilon_upper_bound(1.0, 1, DELTA))
    assert truth["Gaussian 2"] < truth["mixture of runs"] < conversions.epsilon_from_mu(3.0, DELTA)
    assert truth["Laplace 1"] == pytest.approx(1, abs=1e-4)
    failing = truth["runs of 16: failing runs"]
    assert conversions.delta_from_mu(2.0, failing) / 2 == pytest.approx(DELTA)


def test_tied_canaries_are_tied_and_tell_what_mu_says():
    """The covariance of their scores is that of inner products 1/2, given who is in."""
    evidence = MECHANISMS["runs of 16: tied canaries"].audit(0, 4000, 0)
    present = evidence.presence.astype(float)
    centred = evidence.scores - 0.5 * present - 0.5 * present.sum(1, keepdims=True)
    covariance = np.cov(centred.T)
    assert np.allclose(np.diag(covariance), 1, atol=0.1)
    assert np.allclose(covariance[~np.eye(16, dtype=bool)], 0.5, atol=0.1)


def test_lidp_as_printed_is_what_its_code_says():
    """On the authors' example, 0.100820 to 0.102542 with the identity (Errata L1)."""
    rng = np.random.default_rng(0)
    sums = rng.binomial(CANARIES, 0.1, 10_000).astype(float)
    printed = published._fourth_order(sums, CANARIES, 0.05)
    right = lifted.exchangeable_limits(sums, CANARIES, 4, 0.05, lifted.wilson)[1]
    assert right < printed < right + 1e-4


@pytest.mark.parametrize("right", [110, 150, 190])
def test_the_printed_recursion_refutes_what_ours_does(right):
    coins, number = 1000, 200
    presence = np.zeros(coins, bool)
    presence[: coins // 2] = True
    wrong = (number - right) // 2
    presence[:wrong], presence[coins - wrong :] = False, True
    scores = -np.arange(coins, dtype=float)
    evidence = PLAIN["one run"].audit(0, 60, 0)._replace(scores=scores[None], presence=presence[None])
    assert published._guesses(published._right(evidence), False) == [(number, right)]
    mu = one_run_bounds.mu_from_guesses(coins, number, right, 0.05)
    found = published.mahloujifar(False)(evidence, DELTA, CONFIDENCE)
    assert found == pytest.approx(conversions.epsilon_from_mu(mu, DELTA), abs=1e-3)


def of_truth(factor):
    return lambda evidence, delta, confidence: factor * conversions.epsilon_from_mu(1.0, delta)


def raising(evidence, delta, confidence):
    raise ValueError("too few\nscores")


@pytest.fixture
def planted(monkeypatch):
    """Estimators that claim too much, and too little, and nothing."""
    for name, function in (("too much", of_truth(1.01)), ("little", of_truth(0.5)), ("none", raising)):
        made = Estimator(name, OURS, "here", ONE_CANARY, "a Gaussian curve", frozenset([GAUSSIAN]), function)
        monkeypatch.setitem(ESTIMATORS, name, made)


def test_a_cell_says_how_often_and_by_how_much(planted):
    over = measure(AuditedCell("too much", "Gaussian 1", 50, 20, 0))
    assert (over.exceeding, over.audits, over.refused, over.spread) == (20, 20, 0, 0)
    assert over.over and over.blamed and over.proven == pytest.approx(1.01) and over.high == 1
    assert over.beyond == pytest.approx(0.01 * over.truth) and 0.8 < over.low < 0.85
    blameless = measure(AuditedCell("too much", "Laplace 1", 50, 20, 0))
    assert blameless.over and not blameless.blamed and blameless.broken == (GAUSSIAN,)
    assert not measure(AuditedCell("little", "Gaussian 1", 50, 20, 0)).over
    refusing = measure(AuditedCell("none", "Gaussian 1", 50, 5, 0))
    assert (refusing.refused, refusing.mean, refusing.why) == (5, 0, "ValueError: too few")


def test_a_cell_is_made_once_and_again_where_its_file_is_damaged(planted, tmp_path):
    wanted = cells(["too much", "little"], ["Gaussian 1", "coins: Gaussian 1"], Scale(3, 40), 0)
    kept = KeptCells(tmp_path)
    assert len(wanted) == 2 and set(missing(wanted, kept, 1)) == set(wanted)
    assert not list(missing(wanted, kept, 1)) and kept.load(wanted[0]) == kept.load(wanted[0])
    kept.path(wanted[0]).write_text("{")
    assert list(missing(wanted, kept, 1)) == [wanted[0]]
    other = wanted[0]._replace(seed=1)
    assert kept.path(other) != kept.path(wanted[0]) and kept.load(other) is None


def test_what_is_not_installed_is_left_out(monkeypatch):
    name = "opake: gdp"
    monkeypatch.setitem(ESTIMATORS, name, ESTIMATORS[name]._replace(module="no_such_module"))
    assert not registry.installed(ESTIMATORS[name])
    assert not cells([name], ["coins: Gaussian 1"], Scale(3, 40), 0)


def test_few_runs_and_unfair_coins_are_marked():
    clustered, wilson = ESTIMATORS["ours: clustered"], ESTIMATORS["LiDP: order 4 as printed"]
    plain, unfair = MECHANISMS["runs of 16: Gaussian 1"], MECHANISMS["runs of 16: nine tenths in"]
    assert not broken(clustered, plain, 200) and broken(clustered, plain, 50) and broken(wilson, plain, 50)
    assert broken(wilson, unfair, 200) == {FAIR}


def test_table_figure_page_and_files_come_from_the_same_cells(planted, tmp_path):
    wanted = cells(
        ["too much", "little", "CANIFE"], ["Gaussian 0", "Gaussian 1", "Laplace 1"], Scale(8, 40), 0
    )
    found = [measure(cell) for cell in wanted]
    text = shown.summary(found).text()
    assert max(len(line) for line in text.splitlines()) <= 80
    (line,) = [line for line in text.splitlines() if line.startswith("too much  ")]
    assert "100.0%*" in line and "101%" in line
    (estimate,) = [line for line in text.splitlines() if line.startswith("CANIFE")]
    assert "%-" in estimate
    written = {path.name: path.read_bytes() for path in page.write(tmp_path, found)}
    assert len(list(csv.DictReader(io.StringIO(written["benchmark.csv"].decode())))) == len(found) == 9
    assert len(json.loads(written["benchmark.json"])["cells"]) == 9
    content = written["benchmark.html"].decode()
    assert all(name in content for name in ("too much", "CANIFE", "Laplace 1", "here"))
    assert written["benchmark.png"].startswith(b"\x89PNG") and style
