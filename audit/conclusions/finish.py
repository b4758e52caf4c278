"""Computes the fields of a conclusion that follow from its scores, bounds and claims.

If the distribution of scores without insertion is known, bets test the whole claimed curve
(`claimed_curve`), even with a single run. Otherwise a lower bound tests the claim at a single threshold: it
rejects mu-GDP, for any curve, if the lower bound on mu exceeds mu, and another claim if the lower bound on
epsilon exceeds its epsilon.
"""

import dataclasses
import math
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from audit.claims.measured import MEASURED
from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, UpperBound, Worlds
from audit.evidence.canaries import Shape
from audit.evidence.given import Evidence
from audit.evidence.one_run import OneRun
from audit.laws import cosine_law
from audit.methods import claimed_curve, curves, estimate, exact, exact_null, one_run_bounds
from audit.methods.claimed_curve import ClaimTest, Power
from audit.methods.curves import Auc
from audit.methods.estimate import Bound
from audit.methods.method import GIVEN

# Standard errors of the AUC below 1/2 that show reversed scores: without a leak, three in 100,000 audits.
_CLEARLY = 4
_MIN_EQUAL = 5  # this many scores are never all equal, or shifted by the same number, by chance


def finish(conclusion: Conclusion) -> Conclusion:
    """Returns the conclusion with the fields that follow from its first ones (`Conclusion`)."""
    examined = _examine(conclusion)
    return _judge(examined, _test_claim(examined))


def take_smaller(all_rows: Conclusion, once: Conclusion | None, remark: str) -> Conclusion:
    """Returns the conclusion that is valid in any case if some rows look like pasted copies of others.

    All rows may come from independent runs, or the copies may have been pasted. So we take the smaller bound
    of both readings, and reject a claim only if both do. Scores and estimates are those of the reading that
    proves less.

    Args:
      all_rows: the conclusion from all rows, before `finish`.
      once: the conclusion that counts each repeated row once, before `finish`; None if it has too few rows.
      remark: the number of repeated rows, in words.
    """
    shown = all_rows
    test = None
    bounds_once: tuple[Bound, ...] = ()
    note = "counted once, they are too few for a bound"
    if once is not None:
        first = finish(all_rows)
        second = finish(once)
        note = "the bound counts all of them, which proves less"
        if second.epsilon <= first.epsilon:
            shown = once
            note = "the bound counts them once"
        # Without repeated rows the test of the curve has less power, and is valid in either case.
        shown = shown._replace(curve=once.curve)
        bounds_once = once.bounds
        if first.claim_test is not None and second.claim_test is not None:
            tests = (first.claim_test, second.claim_test)
            test = min(tests, key=attrgetter("refuted", "e_value"))
    smaller = _take_smaller_bounds(all_rows.bounds, bounds_once)
    shown = shown._replace(bounds=smaller, notes=(*all_rows.notes, f"{remark}; {note}"))
    return _judge(_examine(shown), test)


def _take_smaller_bounds(all_rows: tuple[Bound, ...], once: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Returns the smaller bound of each method, or 0 if only `all_rows` has a bound of the method.

    The bounds after each run (`path`) are dropped, since they may come from different readings of the rows.
    """
    by_method = {bound.method: bound for bound in once}
    smaller = []
    for bound in all_rows:
        nothing = dataclasses.replace(bound, epsilon=0.0, mu=bound.mu and 0.0)
        other = by_method.get(bound.method, nothing)
        least = min(bound, other, key=lambda each: (each.epsilon, each.mu or 0.0))
        smaller.append(dataclasses.replace(least, path=()))
    return tuple(smaller)


def _judge(conclusion: Conclusion, claim_test: ClaimTest | None) -> Conclusion:
    """Returns a conclusion with the test of the claim, and with the verdict that follows from all fields."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _examine(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with all fields except the test of the claim and the verdict."""
    evidence = conclusion.evidence
    worlds = conclusion.worlds
    shape = evidence.shape
    law_is_known = shape is Shape.FRESH_DIRECTIONS
    is_refuted = conclusion.curve is not None and conclusion.curve.is_refuted
    bounds = []
    for bound in conclusion.bounds:
        holds = bound.holds and not (is_refuted and bound.assumes.gaussian)
        bounds.append(dataclasses.replace(bound, holds=holds))

    runs = 1
    normality = None
    if isinstance(evidence, OneRun):
        # All bounds of a single run count that do not assume a Gaussian curve.
        free = [bound.epsilon for bound in bounds if not bound.assumes.gaussian]
        if evidence.cosines is not None:
            normality = cosine_law.anderson_darling(evidence.cosines.observed)
    else:
        free = [conclusion.assumption_free.epsilon]
        runs = sum(len(table.scores) for table in evidence.rows())

    auc = None
    attack = None
    if len(worlds[1]):
        auc = curves.auc(*worlds)
        attack = curves.attack(*worlds)
    upper_bounds = _list_upper_bounds(conclusion)
    tightest = next(iter(upper_bounds), None)
    claim = conclusion.claim

    most = None
    is_beyond_reach = False
    if shape is Shape.ONE_CANARY:
        sizes = (len(worlds[0]), len(worlds[1]))
        family = exact.approximate_dp(conclusion.delta)
        most = estimate.find_most_provable(*sizes, family, conclusion.confidence)
        if tightest is not None and math.isfinite(tightest.epsilon):
            most_mu = estimate.find_most_provable(*sizes, exact.GAUSSIAN, conclusion.confidence)
            is_beyond_reach = not _refutes(tightest, most, most_mu)
    return conclusion._replace(
        is_one_run=shape is Shape.ONE_RUN,
        has_one_canary=shape is Shape.ONE_CANARY,
        law_is_known=law_is_known,
        has_tied_scores=shape is Shape.MANY_CANARIES,
        bets_on_curve=law_is_known or (isinstance(evidence, OneRun) and evidence.is_null_known),
        runs=runs,
        epsilon=max(free, default=0.0),
        bounds=tuple(bounds),
        upper_bounds=upper_bounds,
        tightest=tightest,
        tightest_mu=min([upper.mu for upper in upper_bounds if upper.mu is not None], default=None),
        is_claimed=conclusion.upper_bound is not None and (claim is None or claim.assumes == GIVEN),
        refutes_gaussian=is_refuted,
        auc=auc,
        attack=attack,
        normality=normality,
        is_reversed=are_reversed(evidence, bounds, auc),
        doubt=_find_doubt(evidence, worlds),
        most_provable=most,
        is_beyond_reach=is_beyond_reach,
    )


def _list_upper_bounds(conclusion: Conclusion) -> tuple[UpperBound, ...]:
    """Returns the upper bounds for the last model and for all models, the smallest epsilon first."""
    upper_bounds = []
    state = conclusion.hidden_state
    if state is not None:
        is_measured = state.assumes.word == MEASURED
        name = "hidden-state bound"
        label = name
        if is_measured:
            name = "measured hidden-state bound"
            label = f"hidden state, {MEASURED}"
        upper_bounds.append(
            UpperBound(
                state.bound.epsilon,
                state.bound.mu,
                state.assumes,
                name,
                label,
                hidden=True,
                is_measured=is_measured,
            )
        )
    if conclusion.upper_bound is not None:
        assumes = GIVEN
        if conclusion.claim is not None:
            assumes = conclusion.claim.assumes
        name = "claim" if assumes == GIVEN else "upper bound"
        claimed = UpperBound(conclusion.upper_bound, conclusion.mu_upper_bound, assumes, name, name)
        upper_bounds.append(claimed)
    return tuple(sorted(upper_bounds, key=attrgetter("epsilon")))


def _find_doubt(evidence: Evidence, worlds: Worlds) -> str:
    """Returns why scores cannot come from independent training runs with noise; empty if they can.

    There are two reasons, both with at least 5 scores per world, the worlds with and without the canary:

    - All scores of one world are equal while those of the other vary: its runs shared a seed, or scores were
    never filled in. Exceptions are saturated scores, which equal an extreme of the other world, and worlds
    with many repeated scores, such as guesses and failed runs.
    - Every score with the canary equals the score without it in the same row, plus a constant: the two runs
    of each row shared a seed.
    """
    if evidence.shape in (Shape.FRESH_DIRECTIONS, Shape.ONE_RUN):
        return ""
    return _describe_constant_world(worlds) or _describe_equal_shifts(worlds)


def _describe_constant_world(worlds: Worlds) -> str:
    """Returns a sentence if all scores of one world are equal, else an empty string; see `_find_doubt`."""
    for name, scores, others in (("in", *worlds), ("out", *worlds[::-1])):
        is_constant = len(scores) >= _MIN_EQUAL and np.ptp(scores) == 0
        is_saturated = scores[0] in (others.min(), others.max())
        # If half of the others were equal, there would be at most this many different values.
        if is_constant and not is_saturated and len(np.unique(others)) > 1 + len(others) / 2:
            return f"all {len(scores):,} scores {name} equal {scores[0]:.6g} while the others vary"
    return ""


def _describe_equal_shifts(worlds: Worlds) -> str:
    """Returns a sentence if the worlds differ by a constant, else an empty string; see `_find_doubt`."""
    scores_in, scores_out = worlds
    if not len(scores_in) == len(scores_out) >= _MIN_EQUAL:
        return ""
    # Shifts are equal up to a billionth of the largest score. Scores with few different values, such as
    # guesses, may have equal shifts by chance.
    shifts = scores_in - scores_out
    is_shifted = np.ptp(shifts) <= 1e-9 * np.abs(worlds).max()
    if is_shifted and len(np.unique(scores_in)) > len(scores_in) / 2:
        return f"every score in equals the score out in its row plus {shifts.mean():.6g}"
    return ""


def are_reversed(evidence: Evidence, bounds: Iterable[Bound], auc: Auc | None) -> bool:
    """Returns True if scores are clearly lower with the canary than without, as with the wrong sign.

    This is so if the AUC is more than 4 standard errors below 1/2. The scores of a run's K canaries may all
    be equal, so the standard error for independent scores is multiplied by sqrt(K). A single run's scores are
    taken as independent, but are not reversed if a bound is above 0. Cosines with a known null distribution
    are compared with its mean 0 and standard deviation 1 / sqrt(d).
    """
    dependent = max(evidence.canaries)  # K
    if isinstance(evidence, OneRun):
        if any(bound.epsilon > 0 for bound in bounds):
            return False
        if evidence.cosines is not None and evidence.is_null_known:
            observed = evidence.cosines.observed
            precision = evidence.cosines.dimension * len(observed)
            return bool(observed.mean() * math.sqrt(precision) < -_CLEARLY)
        dependent = 1
    assert auc is not None  # other evidence has left-out canaries
    return auc.deviations < -_CLEARLY * math.sqrt(dependent)


def _test_claim(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the tightest upper bound; None if it is not tested.

    The test needs a finite upper bound, scores that may come from independent runs, and a suitable lower
    bound or claimed curve. Reversed scores (`are_reversed`) are no evidence for a claim, so a test of these
    counts only if it rejects the claim.
    """
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon) or conclusion.doubt:
        return None
    if conclusion.bets_on_curve:
        test = _bet_on_curve(conclusion, upper)
    else:
        test = _compare_bounds(conclusion, upper)
    if test is not None and conclusion.is_reversed and not test.refuted:
        return None
    return test


def _compare_bounds(conclusion: Conclusion, upper: UpperBound) -> ClaimTest | None:
    """Returns the test of a claim by lower bounds on epsilon and mu; None for a single run without them.

    The e-value is 1 / (1 - confidence) if a lower bound exceeds the claim, else 0. A true claim is rejected
    with a probability of at most 1 - confidence, so the mean e-value is at most 1.
    """
    if conclusion.is_one_run:
        bounds = {bound.method: bound for bound in conclusion.bounds}
        if one_run_bounds.ONE_RUN_GUESSES not in bounds:
            return None
        epsilon = bounds[one_run_bounds.ONE_RUN_GUESSES].epsilon
        mu = bounds[one_run_bounds.ONE_RUN_GAUSSIAN].mu
        if upper.mu is not None:
            epsilon = 0.0  # a claim of mu-GDP is tested only by the bound on mu
    else:
        # Each of the two bounds is wrong with a probability of at most 1 - confidence, and in theory one of
        # them up to twice as often. But on a Gaussian curve the bound on epsilon does not add errors to those
        # of the bound on mu (`tests/audit/conclusions/test_claim_tests.py`).
        epsilon = conclusion.assumption_free.epsilon
        mu = conclusion.gaussian.mu
    is_refuted = _refutes(upper, epsilon, mu)
    e_value = is_refuted / (1 - conclusion.confidence)
    return ClaimTest(e_value, is_refuted, conclusion.runs)


def _refutes(upper: UpperBound, epsilon: float, mu: float | None) -> bool:
    """Returns True if a lower bound on epsilon or mu (None without one) exceeds an upper bound."""
    if epsilon > upper.epsilon:
        return True
    return upper.mu is not None and mu is not None and mu > upper.mu


def _bet_on_curve(conclusion: Conclusion, upper: UpperBound) -> ClaimTest | None:
    """Returns the test of the whole claimed trade-off curve, by bets on the scores of inserted canaries.

    The bets are that more canaries exceed a threshold than the claim allows. The result also has `seen`: how
    much less noise than claimed the test would have found. It is None without a claimed curve, or if the
    scores of left-out canaries refute their distribution.
    """
    power = _combine_claimed_curves(conclusion, upper)
    # `holds` is False if left-out canaries of several runs refute the distribution.
    is_law_refuted = conclusion.law_is_known and not conclusion.assumption_free.holds
    if power is None or is_law_refuted:
        return None
    design = conclusion.fresh
    if conclusion.is_one_run:
        assert conclusion.one_run.cosines is not None  # other scores have no known distribution
        design = one_run_bounds.make_design(conclusion.one_run.cosines)
    exceedances = exact_null.compute_exceedances(design)
    exceedances = exceedances._replace(is_only_run=conclusion.is_one_run)
    # By run with inserted canaries, and then by run of any kind.
    log_capital = claimed_curve.compute_log_capital(exceedances, power)
    log_capital = exact_null.expand_to_runs(design, log_capital)
    confidence = conclusion.confidence
    test = claimed_curve.judge_capital(log_capital, exceedances.in_order, confidence)
    summary = exact_null.summarise_design(design)
    if upper.mu is not None:
        # Under the claimed noise the mean of scores, in standard deviations of a score out, is at most mu.
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    seen = claimed_curve.find_least_departure(summary, exceedances, power, confidence)
    return test._replace(seen=seen)


def _combine_claimed_curves(conclusion: Conclusion, upper: UpperBound) -> Power | None:
    """Returns the claimed power: maps false-positive rates to the largest true-positive rates; or None.

    Two claims may be known: the mu of the tightest upper bound, and the claim about the mechanism. If both
    are true, the smaller rate is the largest possible one.
    """
    powers: list[Power] = []
    if upper.mu is not None:
        powers.append(claimed_curve.gaussian_power(upper.mu))
    if conclusion.claim is not None:
        powers.append(conclusion.claim.power)
    if not powers:
        return None
    return lambda rates: np.min([power(rates) for power in powers], axis=0)
