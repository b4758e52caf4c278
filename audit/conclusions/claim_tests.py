"""The test of the claim that a conclusion's scores were held against.

Where the law of canaries that are out is known, bets test the claimed curve whole (`claimed_curve`), of one
run too. Elsewhere a bound tests the claim at a single threshold: mu-GDP is refuted where the lower limit on
mu exceeds it, which needs no Gaussian curve, and another claim where the lower bound on epsilon does.
"""

import math
from collections.abc import Callable

from audit.conclusions.conclusion import Conclusion, find_doubt
from audit.evidence.canaries import Fresh, Shape
from audit.methods import claimed_curve, exact_null, one_run_bounds
from audit.methods.claimed_curve import ClaimTest, LogCapital, Power
from audit.methods.departures import find_least_departure


def examine_claim(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the tightest claim; None where nothing is claimed, or nothing can be tested."""
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon) or find_doubt(conclusion):
        return None
    return _EXAMINE[conclusion.evidence.shape](conclusion)


def _examine_runs(conclusion: Conclusion) -> ClaimTest | None:
    """Tests the claimed curve by runs of fresh directions or of ranks; None where their law is refuted."""
    if not conclusion.assumption_free.holds:
        return None
    return _examine_curve(conclusion, conclusion.fresh, claimed_curve.compute_log_capital)


def _examine_one_run(conclusion: Conclusion) -> ClaimTest | None:
    """Tests the claim by one run: by cosines whose law is known, else by what is guessed of its coins."""
    run = conclusion.one_run
    if not run.is_null_known:
        return _examine_guesses(conclusion)
    assert run.cosines is not None
    design = one_run_bounds.make_design(run.cosines)
    return _examine_curve(conclusion, design, claimed_curve.compute_log_capital_of_only_run)


def _examine_curve(
    conclusion: Conclusion, design: Fresh, compute_log_capital: LogCapital
) -> ClaimTest | None:
    """Tests the claimed curve whole, and says what would have been seen; None where no curve is claimed.

    Args:
      conclusion: whose tightest claim is tested.
      design: the canaries, whose law is known where they are out.
      compute_log_capital: how their exceedances are bet on.
    """
    power = _find_power(conclusion)
    if power is None:
        return None
    counted = exact_null.count_exceedances(design)
    log_capital = compute_log_capital(counted, power)
    test = claimed_curve.judge_capital(log_capital, counted.in_order, conclusion.confidence)
    summary = exact_null.summarise_design(design)
    upper = conclusion.tightest
    if upper is not None and upper.mu is not None:  # noise as stated lets canaries show no more
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    seen = find_least_departure(
        summary, counted.log_rates, power, conclusion.confidence, compute_log_capital
    )
    return test._replace(seen=seen)


def _find_power(conclusion: Conclusion) -> Power | None:
    """Returns what the tightest claim allows a test of a false-positive rate; None of an unknown curve."""
    upper = conclusion.tightest
    assert upper is not None
    if upper.mu is not None:
        return claimed_curve.gaussian_power(upper.mu)
    if conclusion.claim is None:
        return None
    return conclusion.claim.power


def _examine_rates(conclusion: Conclusion) -> ClaimTest:
    """Tests the claim at the thresholds of two bounds, by exact tests of both error rates.

    A claim of mu-GDP is refuted by either bound. Together they may err twice as often as each in theory; on
    a Gaussian curve, where the limit on mu is the one that errs, the bound on epsilon adds nothing
    (`tests/audit/conclusions/test_claim_tests.py`).
    """
    upper = conclusion.tightest
    assert upper is not None
    limit_on_mu = conclusion.gaussian.mu
    is_refuted = conclusion.assumption_free.epsilon > upper.epsilon
    if upper.mu is not None and limit_on_mu is not None:
        is_refuted |= limit_on_mu > upper.mu
    return _judge_by_bound(conclusion, is_refuted)


def _examine_guesses(conclusion: Conclusion) -> ClaimTest | None:
    """Tests the claim by how many coins of one run are guessed right; None where there are too few coins."""
    upper = conclusion.tightest
    assert upper is not None
    by_method = {bound.method: bound for bound in conclusion.bounds}
    if one_run_bounds.ONE_RUN_GUESSES not in by_method:
        return None
    if upper.mu is None:
        epsilon = by_method[one_run_bounds.ONE_RUN_GUESSES].epsilon
        return _judge_by_bound(conclusion, epsilon > upper.epsilon)
    limit_on_mu = by_method[one_run_bounds.ONE_RUN_GAUSSIAN].mu
    assert limit_on_mu is not None
    return _judge_by_bound(conclusion, limit_on_mu > upper.mu)


def _judge_by_bound(conclusion: Conclusion, is_refuted: bool) -> ClaimTest:
    """Returns the test of a claim that a bound refutes at the conclusion's confidence, or does not.

    Its e-value is all or nothing: 1 / (1 - confidence) where the claim is refuted, else 0.
    """
    e_value = 1 / (1 - conclusion.confidence) if is_refuted else 0.0
    return ClaimTest(e_value, bool(is_refuted), conclusion.count_runs())


_EXAMINE: dict[Shape, Callable[[Conclusion], ClaimTest | None]] = {
    Shape.ONE_CANARY: _examine_rates,
    Shape.MANY_CANARIES: _examine_rates,
    Shape.FRESH_DIRECTIONS: _examine_runs,
    Shape.ONE_RUN: _examine_one_run,
}
