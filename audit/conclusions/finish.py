"""Computes all that follows from the scores, bounds and claims of a conclusion, once."""

import dataclasses

from audit.conclusions import claim_tests, verdicts
from audit.conclusions.conclusion import (
    AttackRates,
    Conclusion,
    Curve,
    Worlds,
    are_reversed,
    find_doubt,
    list_upper_bounds,
)
from audit.evidence.one_run import OneRun
from audit.laws import cosine_law
from audit.methods import curves, gaussian_curve
from audit.methods.claimed_curve import ClaimTest

_FALSE_POSITIVE_RATES = (0.1, 0.01, 0.001)


def finish(conclusion: Conclusion, is_interim: bool = False) -> Conclusion:
    """Returns a conclusion with all fields that follow from its scores, bounds, curve test and claim.

    If it is interim, simulations of what the test of the claim would refute are left out.
    """
    complete = examine_scores(conclusion)
    return judge(complete, claim_tests.examine_claim(complete, is_interim))


def examine_curve(worlds: Worlds) -> Curve:
    """Returns the test of whether the trade-off curve of independent scores is Gaussian."""
    test = gaussian_curve.examine(*worlds)
    return add_deciding_runs(Curve(test.p_value, gaussian_curve.power(*worlds)), worlds)


def add_deciding_runs(curve: Curve, worlds: Worlds) -> Curve:
    """Returns the test of a curve with the number of runs that would decide, if it has too little power."""
    if not curve.is_doubted:
        return curve
    return curve._replace(deciding_runs=gaussian_curve.count_deciding_scores(*worlds))


def examine_scores(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with all fields but the test of the claim and what follows from that."""
    bounds = conclusion.bounds
    if conclusion.refutes_gaussian:
        bounds = tuple(
            dataclasses.replace(bound, holds=bound.holds and not bound.assumes.gaussian)
            for bound in bounds
        )
    guesses = _describe_guesses(conclusion.worlds)
    evidence = conclusion.evidence
    normality = None
    if isinstance(evidence, OneRun) and evidence.cosines is not None:
        normality = cosine_law.anderson_darling(evidence.cosines.observed)
    examined = conclusion._replace(
        bounds=bounds,
        upper_bounds=list_upper_bounds(conclusion),
        guesses=guesses,
        normality=normality,
        is_reversed=are_reversed(evidence, bounds, guesses and guesses.auc),
        doubt=find_doubt(conclusion),
    )
    return claim_tests.examine_reach(examined)


def judge(conclusion: Conclusion, claim_test: ClaimTest | None) -> Conclusion:
    """Returns a conclusion with the test of the claim, and the verdict."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _describe_guesses(worlds: Worlds) -> AttackRates | None:
    """Returns how well guesses by the scores distinguish both worlds; None without scores out."""
    if not len(worlds[1]):
        return None
    rates = {
        f"{rate:g}": curves.true_positive_rate(*worlds, rate) for rate in _FALSE_POSITIVE_RATES
    }
    return AttackRates(curves.auc(*worlds), rates, curves.attack(*worlds))
