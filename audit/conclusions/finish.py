"""Computes all that follows from the scores, bounds and claims of a conclusion, once.

If the law of canaries that are out is known, bets test the whole claimed curve (`claimed_curve`), even of a
single run. Otherwise a bound tests the claim at a single threshold: mu-GDP is refuted if the lower limit on
mu exceeds it, which needs no Gaussian curve, and another claim if the lower bound on epsilon does.

If the rows of evidence look pasted, there are two readings: with all rows, and with repeated rows once. The
first is valid if the rows are independent runs, and the second if some were pasted. The smaller is valid in
either case.
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
from audit.methods import (
    claimed_curve,
    curves,
    estimate,
    exact,
    exact_null,
    one_run_bounds,
)
from audit.methods.claimed_curve import ClaimTest, Power
from audit.methods.curves import Auc
from audit.methods.estimate import Bound
from audit.methods.method import GIVEN

# Scores this many standard errors below those without canary are reversed: three audits in 100,000 where
# nothing leaks.
_CLEARLY = 4
_FEWEST_EQUAL = 5  # so many scores are not all equal, or all shifted by the same, by chance


def finish(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with all fields that follow from its scores, bounds, curve test and claim."""
    examined = _examine(conclusion)
    return _judge(examined, _test_claim(examined))


def take_smaller(all_rows: Conclusion, once: Conclusion | None, remark: str) -> Conclusion:
    """Returns a conclusion that is valid whether repeated rows are independent runs or were pasted.

    Its scores, and estimates from them, are those of the reading that proves less. A claim is refuted only if
    both readings refute it.

    Args:
      all_rows: the conclusion from all rows, before `finish`.
      once: the conclusion from each repeated row once; None if these are too few for any.
      remark: how many rows repeat earlier rows, in words.
    """
    if once is None:
        note = f"{remark}; counted once, there are too few for a bound"
        smaller = _take_smaller_bounds(all_rows.bounds, ())
        shown = all_rows._replace(bounds=smaller, notes=(*all_rows.notes, note))
        return _judge(_examine(shown), None)
    first = finish(all_rows)
    second = finish(once)
    shown = once
    note = f"{remark}; the bound counts them once"
    if second.epsilon > first.epsilon:
        shown = all_rows
        note = f"{remark}; the bound counts all of them, which proves less"
    smaller = _take_smaller_bounds(all_rows.bounds, once.bounds)
    # Without repeated rows the test of the curve has less power, and is valid in either case.
    shown = shown._replace(bounds=smaller, curve=once.curve, notes=(*all_rows.notes, note))
    test = None
    if first.claim_test is not None and second.claim_test is not None:
        tests = (first.claim_test, second.claim_test)
        test = min(tests, key=attrgetter("refuted", "e_value"))
    return _judge(_examine(shown), test)


def _take_smaller_bounds(all_rows: tuple[Bound, ...], once: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Returns the smaller bound of each method; 0 if repeated rows, counted once, give none.

    Bounds after each run are left out, since the two readings do not have the same runs.
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
    """Returns a conclusion with the test of the claim, and the verdict."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _examine(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with all fields but the test of the claim and the verdict."""
    evidence = conclusion.evidence
    worlds = conclusion.worlds
    shape = evidence.shape
    law_is_known = shape is Shape.FRESH_DIRECTIONS
    is_refuted = conclusion.curve is not None and conclusion.curve.is_refuted
    bounds = []
    for bound in conclusion.bounds:
        holds = bound.holds and not (is_refuted and bound.assumes.gaussian)
        bounds.append(dataclasses.replace(bound, holds=holds))

    # For a single run all bounds that assume no Gaussian curve count, else one does.
    runs = 1
    normality = None
    if isinstance(evidence, OneRun):
        free = [bound.epsilon for bound in bounds if not bound.assumes.gaussian]
        if evidence.cosines is not None:
            normality = cosine_law.anderson_darling(evidence.cosines.observed)
    else:
        free = [conclusion.assumption_free.epsilon]
        runs = sum(len(rows.scores) for rows in evidence.rows())  # tables with a row for each run

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
    """Returns the upper bounds, the smallest epsilon first: on only the last model, and on all models."""
    upper_bounds = []
    state = conclusion.hidden_state
    if state is not None:
        is_measured = state.assumes.word == MEASURED
        name = "hidden-state bound"
        label = name
        if is_measured:
            name = "measured hidden-state bound"
            label = f"hidden state, {MEASURED}"
        mu = state.bound.mu
        upper = UpperBound(state.bound.epsilon, mu, state.assumes, name, label, True, is_measured)
        upper_bounds.append(upper)
    if conclusion.upper_bound is not None:
        # Without a claim, nothing tells where the number comes from: it is taken as given.
        assumed = GIVEN
        if conclusion.claim is not None:
            assumed = conclusion.claim.assumes
        name = "upper bound"
        if assumed == GIVEN:
            name = "claim"
        claimed = UpperBound(conclusion.upper_bound, conclusion.mu_upper_bound, assumed, name, name)
        upper_bounds.append(claimed)
    return tuple(sorted(upper_bounds, key=attrgetter("epsilon")))


def _find_doubt(evidence: Evidence, worlds: Worlds) -> str:
    """Returns why scores cannot be those of independent training runs with noise, or an empty string.

    There are two reasons, for each of which a world needs at least 5 scores: fewer may be so by chance.

    The first: all scores of a world are equal while those of the other vary. Then all runs of a world shared
    a seed, or scores were never filled in. It does not count if the other world reaches that score as its own
    extreme, as a saturated score does, nor if half of the other world's scores repeat others, as guesses do,
    and the scores of many failed runs.

    The second: every score in is the score out of its row plus the same constant. Then the two runs of each
    row shared a seed.

    Evidence with a known law, or of a single run, is never in doubt here.
    """
    if evidence.shape in (Shape.FRESH_DIRECTIONS, Shape.ONE_RUN):
        return ""
    scores_in, scores_out = worlds
    for name, scores, others in (("in", scores_in, scores_out), ("out", scores_out, scores_in)):
        is_constant = len(scores) >= _FEWEST_EQUAL and np.ptp(scores) == 0
        is_saturated = scores[0] in (others.min(), others.max())
        # If half of the others have the same value, they have at most 1 + half as many different values.
        if is_constant and not is_saturated and len(np.unique(others)) > 1 + len(others) / 2:
            return f"all {len(scores):,} scores {name} equal {scores[0]:.6g} while the others vary"

    # Equal up to rounding, here a billionth of the largest score. Scores of few different values, such as
    # guesses, may have equal shifts by chance: they do not count.
    if len(scores_in) == len(scores_out) >= _FEWEST_EQUAL:
        shifts = scores_in - scores_out
        is_shifted = np.ptp(shifts) <= 1e-9 * max(np.abs(worlds[0]).max(), np.abs(worlds[1]).max())
        if is_shifted and len(np.unique(scores_in)) > len(scores_in) / 2:
            return f"every score in is the score out of its row plus {shifts.mean():.6g}"
    return ""


def are_reversed(evidence: Evidence, bounds: Iterable[Bound], auc: Auc | None) -> bool:
    """Returns whether scores are clearly lower with the canary than without, as with the wrong sign.

    They are if the AUC is more than 4 standard errors below 1/2. The scores of a run's K canaries may all be
    equal, so the standard error for independent scores is multiplied by sqrt(K). For a single run, whose
    canaries have coins or directions of their own, means are compared, unless a bound is above 0.
    """
    if isinstance(evidence, OneRun):
        has_proof = any(bound.epsilon > 0 for bound in bounds)
        return evidence.deviations < -_CLEARLY and not has_proof
    assert auc is not None  # there are scores out
    return auc.deviations < -_CLEARLY * math.sqrt(max(evidence.canaries))


def _test_claim(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the tightest claim; None if nothing is claimed, or nothing can be tested.

    If the test is of a whole curve, simulations find how much less noise than stated such runs would refute,
    its field `seen`.
    """
    # An infinite epsilon claims nothing, and scores that are in doubt prove nothing.
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon) or conclusion.doubt:
        return None
    if conclusion.bets_on_curve:
        return _bet(conclusion, upper)
    if conclusion.is_one_run:
        bounds = {bound.method: bound for bound in conclusion.bounds}
        # The same coins give a bound on epsilon and another on mu, if there are enough coins.
        if one_run_bounds.ONE_RUN_GUESSES not in bounds:
            return None
        epsilon = bounds[one_run_bounds.ONE_RUN_GUESSES].epsilon
        limit_on_mu = bounds[one_run_bounds.ONE_RUN_GAUSSIAN].mu
        if upper.mu is not None:
            epsilon = 0.0  # only the limit on mu counts
    else:
        # Each of the two bounds is wrong with a probability of at most 1 - confidence. In theory both
        # together are wrong up to twice as often. But on a Gaussian curve the bound on epsilon adds no errors
        # to those of the limit on mu (`tests/audit/conclusions/test_claim_tests.py`).
        epsilon = conclusion.assumption_free.epsilon
        limit_on_mu = conclusion.gaussian.mu
    is_refuted = _refutes(upper, epsilon, limit_on_mu)
    # Reversed scores contradict no claim, however wrong it is.
    if conclusion.is_reversed and not is_refuted:
        return None
    # The mean of the e-value is at most 1 for a true claim, which is refuted with a probability of at most
    # 1 - confidence.
    e_value = 0.0
    if is_refuted:
        e_value = 1 / (1 - conclusion.confidence)
    return ClaimTest(e_value, is_refuted, conclusion.runs)


def _refutes(upper: UpperBound, epsilon: float, limit_on_mu: float | None) -> bool:
    """Returns whether lower bounds refute a claim: that on epsilon any claim, that on mu one of mu-GDP."""
    if epsilon > upper.epsilon:
        return True
    return upper.mu is not None and limit_on_mu is not None and limit_on_mu > upper.mu


def _bet(conclusion: Conclusion, upper: UpperBound) -> ClaimTest | None:
    """Returns the test of the whole claimed trade-off curve, by bets on the scores of canaries that were in.

    Bets win capital if more of these scores exceed thresholds than the curve allows. A large capital is
    evidence against the claim.

    Returns:
      None if no curve is claimed, if the scores of canaries that were out refute the law that the bets assume
      of them, and for reversed scores that refute nothing.
    """
    power = _find_power(conclusion, upper)
    # With several runs, canaries that were out, if any, have tested the law. The assumption-free bound rests
    # on it: `holds` is False if they refute it. The law of a single run's cosines is not tested so.
    is_law_refuted = conclusion.law_is_known and not conclusion.assumption_free.holds
    if power is None or is_law_refuted:
        return None
    design = conclusion.fresh
    if conclusion.is_one_run:
        assert conclusion.one_run.cosines is not None  # without cosines no law is known
        design = one_run_bounds.make_design(conclusion.one_run.cosines)
    exceedances = exact_null.count_exceedances(design)
    exceedances = exceedances._replace(is_only_run=conclusion.is_one_run)
    # From here on all runs count, so that the test's number of runs is one of training runs.
    capital = claimed_curve.compute_log_capital(exceedances, power)
    log_capital = exact_null.expand_to_runs(design, capital)
    confidence = conclusion.confidence
    test = claimed_curve.judge_capital(log_capital, exceedances.in_order, confidence)
    if conclusion.is_reversed and not test.refuted:
        return None
    summary = exact_null.summarise_design(design)
    if upper.mu is not None:
        # Simulations start from scores as they are under the stated noise. Then their mean, in standard
        # deviations of a score that is out, is at most mu. A larger observed mean is cut to that.
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    seen = claimed_curve.find_least_departure(summary, exceedances, power, confidence)
    return test._replace(seen=seen)


def _find_power(conclusion: Conclusion, upper: UpperBound) -> Power | None:
    """Returns the largest true-positive rate that the claims allow, as a function of false-positive rates.

    Two curves may limit it: that of mu-GDP, if the tightest upper bound bounds mu, and that of the claim on
    the mechanism. If there are both, the smaller of the two counts at each rate. None if there is neither.
    """
    claim = conclusion.claim
    if upper.mu is None:
        if claim is None:
            return None
        return claim.power
    gaussian = claimed_curve.gaussian_power(upper.mu)
    # A claim's mu is at least that of the tightest bound, and limits nothing more.
    if claim is None or claim.gaussian_mu is not None:
        return gaussian
    return lambda rates: np.minimum(gaussian(rates), claim.power(rates))
