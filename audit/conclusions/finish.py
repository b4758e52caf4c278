"""Computes all that follows from the scores, bounds and claims of a conclusion, once."""

import dataclasses

from audit.conclusions import claim_tests, verdicts
from audit.conclusions.conclusion import (
    AttackRates,
    Conclusion,
    Curve,
    Worlds,
    are_reversed,
    assumption_of,
    find_doubt,
    list_upper_bounds,
)
from audit.evidence.one_run import OneRun
from audit.laws import cosine_law
from audit.methods import curves, gaussian_curve
from audit.methods.claimed_curve import ClaimTest
from audit.methods.estimate import Bound

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
    bounds = tuple(_mark_refuted(bound, conclusion) for bound in conclusion.bounds)
    guesses = _describe_guesses(conclusion.worlds)
    area = None if guesses is None else guesses.auc
    examined = conclusion._replace(
        bounds=bounds,
        upper_bounds=list_upper_bounds(conclusion),
        guesses=guesses,
        normality=_test_normality(conclusion),
        is_reversed=are_reversed(conclusion.evidence, bounds, area),
        doubt=find_doubt(conclusion),
        most_provable=claim_tests.find_most_provable(conclusion),
    )
    return examined._replace(is_beyond_reach=claim_tests.is_beyond_reach(examined))


def judge(conclusion: Conclusion, claim_test: ClaimTest | None) -> Conclusion:
    """Returns a conclusion with the test of the claim, and the verdict."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _mark_refuted(bound: Bound, conclusion: Conclusion) -> Bound:
    """Returns a bound, with `holds` false if it assumes a Gaussian curve that the scores refute."""
    if assumption_of(bound).gaussian and conclusion.refutes_gaussian:
        return dataclasses.replace(bound, holds=False)
    return bound


def _describe_guesses(worlds: Worlds) -> AttackRates | None:
    """Returns how well guesses by the scores distinguish both worlds; None without scores out."""
    if not len(worlds[1]):
        return None
    rates = {}
    for rate in _FALSE_POSITIVE_RATES:
        rates[f"{rate:g}"] = curves.true_positive_rate(*worlds, rate)
    return AttackRates(curves.auc(*worlds), rates, curves.attack(*worlds))


def _test_normality(conclusion: Conclusion) -> cosine_law.AndersonDarling | None:
    """Returns the test of whether the observed cosines of a single run are normal; None without cosines."""
    evidence = conclusion.evidence
    if not isinstance(evidence, OneRun) or evidence.cosines is None:
        return None
    return cosine_law.anderson_darling(evidence.cosines.observed)
