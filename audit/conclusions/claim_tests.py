"""The test of the claim that a conclusion's scores were held against.

Where the law of canaries that are out is known, bets test the claimed curve whole (`claimed_curve`).
Elsewhere the exact tests of two error rates do, at the threshold of their bound: a claim of mu-GDP is refuted
where the lower limit on mu exceeds it, which needs no Gaussian curve, and another one where epsilon does.
"""

import math
from collections.abc import Callable

import numpy as np

from audit.conclusions.conclusion import Conclusion, find_doubt
from audit.evidence.canaries import Shape
from audit.methods import claimed_curve, exact_null
from audit.methods.claimed_curve import ClaimTest, Power


def examine_claim(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the tightest claim; None where nothing is claimed, or nothing can be tested."""
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon) or find_doubt(conclusion):
        return None
    return _EXAMINE[conclusion.evidence.shape](conclusion)


def _examine_curve(conclusion: Conclusion) -> ClaimTest | None:
    """Tests the claimed curve whole, by canaries that have a known law where they are out."""
    power = _find_power(conclusion)
    if power is None or not conclusion.assumption_free.holds:
        return None
    design = conclusion.fresh
    counted = exact_null.count_exceedances(design)
    test = claimed_curve.examine_claim(counted, power, conclusion.confidence)
    summary = exact_null.summarise_design(design)
    upper = conclusion.tightest
    if upper is not None and upper.mu is not None:  # noise as stated lets canaries show no more
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    seen = claimed_curve.find_least_departure(
        summary, counted.log_rates, power, conclusion.confidence
    )
    return test._replace(seen=seen)


def _find_power(conclusion: Conclusion) -> Power | None:
    """Returns what the tightest claims allow a test of a false-positive rate; None of an unknown curve."""
    upper = conclusion.tightest
    assert upper is not None
    claim = conclusion.claim
    if upper.mu is None:
        return None if claim is None else claim.power
    gaussian = claimed_curve.gaussian_power(upper.mu)
    if claim is None or claim.gaussian_mu is not None:
        return gaussian
    return lambda rates: np.minimum(gaussian(rates), claim.power(rates))


def _examine_rates(conclusion: Conclusion) -> ClaimTest:
    """Tests the claim at the threshold of a bound, by exact tests of both error rates."""
    upper = conclusion.tightest
    assert upper is not None
    gaussian = conclusion.gaussian
    is_refuted = conclusion.assumption_free.epsilon > upper.epsilon
    if upper.mu is not None and gaussian.mu is not None:
        is_refuted |= gaussian.mu > upper.mu
    e_value = 1 / (1 - conclusion.confidence) if is_refuted else 0.0
    return ClaimTest(e_value, bool(is_refuted), conclusion.count_runs())


def _examine_nothing(conclusion: Conclusion) -> None:
    """Returns None: one run's bounds speak for themselves."""
    return None


_EXAMINE: dict[Shape, Callable[[Conclusion], ClaimTest | None]] = {
    Shape.ONE_CANARY: _examine_rates,
    Shape.MANY_CANARIES: _examine_rates,
    Shape.FRESH_DIRECTIONS: _examine_curve,
    Shape.ONE_RUN: _examine_nothing,
}
