"""The benchmark's estimators and mechanisms meet their contract, and its table tests levels correctly."""

import numpy as np
import pytest

from audit.calibration.calibration import GAUSSIAN_CURVE, draw
from audit.claims import accounting
from audit.laws import conversions
from audit.methods import lifted
from audit.report import style
from experiments.benchmark import figure, published, tables
from experiments.benchmark.cells import (
    AuditedCell,
    Scale,
    list_cells,
    list_claims,
    load_measured,
    measure_missing,
)
from experiments.benchmark.contract import (
    CONFIDENCE,
    DELTA,
    DIRECTIONS,
    MAX_EPSILON,
    ONE_CANARY,
    OURS,
    SEVERAL,
    Estimator,
)
from experiments.benchmark.false_claims import ClaimCell
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from tests.audit.methods.test_exchangeable import CANARIES


def draw_gaussian(design):
    """Draws the evidence of an audit with a design and Gaussian scores of mu 1."""
    for mechanism in MECHANISMS.values():
        if mechanism.design == design and "Gaussian 1" in mechanism.name:
            return draw(mechanism.make_known(0, 60), 0)
    raise LookupError(design)


def mark_packages(estimators):
    """Returns estimators as parameters for pytest, with those from packages marked as slow."""
    parameters = []
    for record in estimators:
        marks = [pytest.mark.slow] if record.package else []
        parameters.append(pytest.param(record, marks=marks, id=record.name))
    return parameters


@pytest.mark.parametrize("estimator", mark_packages(ESTIMATORS.values()))
def test_an_estimator_takes_the_scores_of_its_design_in_any_order(estimator):
    if not estimator.find_version():
        pytest.skip(estimator.package)
    evidence = draw_gaussian(estimator.design)
    epsilon = estimator.epsilon(evidence, DELTA, CONFIDENCE)
    assert 0 <= epsilon < MAX_EPSILON
    assert estimator.assumption
    if estimator.kind == OURS and estimator.design in (ONE_CANARY, SEVERAL):
        order = np.random.default_rng(0).permutation(len(evidence.scores))
        scores, presence, *others = evidence
        shuffled = type(evidence)(scores[order], presence[order], *others)
        assert estimator.epsilon(shuffled, DELTA, CONFIDENCE) == epsilon


@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=list(MECHANISMS))
def test_evidence_has_the_shape_of_its_design_and_is_reproducible(mechanism):
    setting = mechanism.make_known(3, 40)
    scores, presence, *_ = draw(setting, 0)
    assert scores.shape == presence.shape == (setting.runs, setting.canaries)
    assert np.array_equal(scores, draw(setting, 0)[0])
    assert not np.array_equal(scores, draw(setting, 1)[0])
    assert presence.all() == (mechanism.design == DIRECTIONS)


@pytest.mark.slow
def test_truths_agree_with_other_accountants():
    truth = {}
    for name, mechanism in MECHANISMS.items():
        setting = mechanism.make_known(0, mechanism.sizes[0])
        truth[name] = setting.law.truth(setting)
    subsampled = accounting.participant_upper_bound(accounting.Composition(0.5, 1, 0.1), DELTA)
    assert truth["Poisson-subsampled"] == pytest.approx(subsampled, abs=2e-3)
    assert truth["Gaussian 1"] == pytest.approx(accounting.epsilon_upper_bound(1.0, 1, DELTA))
    assert truth["Gaussian 2"] < truth["mixture of runs"] < conversions.epsilon_from_mu(3.0, DELTA)
    assert truth["Laplace 1"] == pytest.approx(1, abs=1e-4)
    failing = truth["runs of 16: failing runs"]
    assert conversions.delta_from_mu(2.0, failing) / 2 == pytest.approx(DELTA)


def test_lidp_as_printed_agrees_with_its_code():
    """On the authors' example, its bound is slightly looser than ours (Errata L1)."""
    rng = np.random.default_rng(0)
    sums = rng.binomial(CANARIES, 0.1, 10_000).astype(float)
    printed = published.fourth_order_bound(sums, CANARIES, 0.05)
    right = lifted.exchangeable_limits(sums, CANARIES, 4, 0.05, lifted.wilson)[1]
    assert right < printed < right + 1e-4


def report_multiple(factor):
    """Returns an estimator that reports the true epsilon at mu 1, times a factor."""
    return lambda audit, delta, confidence: factor * conversions.epsilon_from_mu(1.0, delta)


def refute_from(runs):
    """Returns an estimator that refutes every claim with at least so many runs."""
    return lambda coins, delta, confidence: 99.0 if len(coins.scores) >= runs else 0.0


def refuse(audit, delta, confidence):
    """Refuses all scores."""
    raise ValueError("too few\nscores")


@pytest.fixture
def planted(monkeypatch):
    """Adds estimators that report too much, half, nothing, or too much with many runs."""
    functions = {
        "too much": report_multiple(1.01),
        "little": report_multiple(0.5),
        "none": refuse,
        "of 300": refute_from(300),
        "of 9,000": refute_from(9000),
    }
    for name, function in functions.items():
        assumes = frozenset([GAUSSIAN_CURVE])
        estimator = Estimator(name, OURS, ONE_CANARY, "a Gaussian curve", function, assumes)
        monkeypatch.setitem(ESTIMATORS, name, estimator)


def test_a_cell_measures_how_often_and_how_far_epsilon_exceeds_the_truth(planted):
    over = AuditedCell("too much", "Gaussian 1", 50, 20, 0).measure()
    assert (over["exceeding"], over["audits"], over["refused"]) == (20, 20, 0)
    assert tables.exceeds_level(over["exceeding"], 20, 1)
    assert tables.is_held_to_level(over)
    assert over["beyond"] == pytest.approx(0.01 * over["truth"])
    assert 0.8 < over["low"] < 0.85
    assert over["high"] == 1

    blameless = AuditedCell("too much", "Laplace 1", 50, 20, 0).measure()
    assert not tables.is_held_to_level(blameless)
    assert blameless["broken"] == GAUSSIAN_CURVE

    assert AuditedCell("little", "Gaussian 1", 50, 20, 0).measure()["exceeding"] == 0
    refusing = AuditedCell("none", "Gaussian 1", 50, 5, 0).measure()
    assert (refusing["refused"], refusing["mean"], refusing["why"]) == (5, 0, "ValueError: too few")


def test_a_cell_is_measured_once(planted, tmp_path):
    mechanisms = ["Gaussian 1", "coins: Gaussian 1"]
    cells = list_cells(["too much", "little"], mechanisms, Scale(3, (40,)), 0)
    assert len(cells) == 2
    cells += list_claims(["little"], Scale(3, (), claim_audits=2, max_runs=20), 0)
    assert list(measure_missing(cells, tmp_path, 1)) == cells
    assert not list(measure_missing(cells, tmp_path, 1))
    records = load_measured(cells, tmp_path)
    assert list(records) == cells and records[cells[0]]["mechanism"] == "Gaussian 1"
    assert not load_measured([cells[0]._replace(seed=1)], tmp_path)


def test_the_table_marks_levels_and_claims_and_the_figure_is_drawn(planted):
    estimators = ["too much", "little", "CANIFE", "of 300"]
    mechanisms = ["Gaussian 0", "Gaussian 1", "Laplace 1"]
    cells = list_cells(estimators, mechanisms, Scale(8, (40,)), 0)
    measured = [cell.measure() for cell in cells]
    claim = ClaimCell("of 300", 1000, 4, 0).measure()
    table = tables.make_summary_table(measured, [claim])
    lines = table.text().splitlines()
    assert max(len(line) for line in lines) <= 80
    rows = {line[:41].strip(): line for line in lines}
    assert "100.0%*" in rows["too much"]
    assert "101%" in rows["too much"]
    assert "%-" in rows["CANIFE"]
    assert rows["of 300"].endswith(f"{claim['runs']}*")
    assert style.png(figure.draw_figure(table.rows)).startswith(b"\x89PNG")


def test_the_number_of_runs_that_refute_a_claim_is_found_and_false_refutations_are_marked(planted):
    found = ClaimCell("of 300", 5000, 10, 0).measure()
    assert 300 <= found["runs"] <= 330
    assert (found["audits"], found["false_refutations"]) == (10, 10)
    assert tables.show_runs(found, 1) == f"{found['runs']}*"
    never = ClaimCell("of 9,000", 5000, 10, 0).measure()
    assert (never["runs"], never["false_refutations"]) == (None, 0)
    assert tables.show_runs(never, 1) == ">5,000"


def test_the_curve_test_refutes_a_false_claim_with_a_few_runs_and_no_true_claim():
    cell = ClaimCell("ours: exact_null", 100, 20, 0)
    measured = cell.measure()
    assert 1 < measured["runs"] <= 10
    assert not tables.show_runs(measured, 1).endswith("*")
    assert cell.find_refuted_fraction(2 * measured["runs"], 0.9) >= 0.9
    single = ClaimCell("Steinke: a fifth guessed", 100, 4, 0).measure()
    assert (single["runs"], single["max_runs"]) == (None, 1)
