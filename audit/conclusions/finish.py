"""Computes all that follows from the scores, bounds and claims of a conclusion, once.

Where the law of canaries that are out is known, bets test the whole claimed curve (`claimed_curve`), even of
a single run. Elsewhere a bound tests the claim at a single threshold: mu-GDP is refuted where the lower limit
on mu exceeds it, which needs no Gaussian curve, and another claim where the lower bound on epsilon does.

If the rows of evidence look pasted, there are two readings: with all rows, and with repeated rows once. The
first is valid if the rows are independent runs, and the second if some were pasted. The smaller is valid in
either case.
"""

import dataclasses
import math

import numpy as np

from audit.conclusions import verdicts
from audit.conclusions.conclusion import (
    AttackRates,
    Conclusion,
    Curve,
    UpperBound,
    Worlds,
    are_reversed,
    find_doubt,
    list_upper_bounds,
)
from audit.evidence.one_run import OneRun
from audit.laws import cosine_law
from audit.methods import (
    claimed_curve,
    curves,
    estimate,
    exact,
    exact_null,
    gaussian_curve,
    one_run_bounds,
)
from audit.methods.claimed_curve import ClaimTest, Power, find_least_departure
from audit.methods.estimate import Bound

_FALSE_POSITIVE_RATES = (0.1, 0.01, 0.001)


def finish(conclusion: Conclusion, is_interim: bool = False) -> Conclusion:
    """Returns a conclusion with all fields that follow from its scores, bounds, curve test and claim.

    If it is interim, simulations of what the test of the claim would refute are left out.
    """
    complete = examine_scores(conclusion)
    return judge(complete, examine_claim(complete, is_interim))


def examine_curve(worlds: Worlds) -> Curve:
    """Returns the test of whether the trade-off curve of independent scores is Gaussian."""
    return Curve(gaussian_curve.examine(*worlds), gaussian_curve.power(*worlds))


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
    return examine_reach(examined)


def judge(conclusion: Conclusion, claim_test: ClaimTest | None) -> Conclusion:
    """Returns a conclusion with the test of the claim, and the verdict."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _describe_guesses(worlds: Worlds) -> AttackRates | None:
    """Returns how well guesses by the scores distinguish both worlds; None without scores out."""
    if not len(worlds[1]):
        return None
    rates = {}
    for rate in _FALSE_POSITIVE_RATES:
        rates[f"{rate:g}"] = curves.true_positive_rate(*worlds, rate)
    return AttackRates(curves.auc(*worlds), rates, curves.attack(*worlds))


def examine_claim(conclusion: Conclusion, is_interim: bool = False) -> ClaimTest | None:
    """Returns the test of the tightest claim; None if nothing is claimed, or nothing can be tested.

    If the test is of a whole curve, simulations find how much less noise than stated such runs would refute;
    the test's field `seen` has that. It is None for other tests, for an interim conclusion, and if no such
    noise is known.
    """
    # An infinite epsilon claims nothing, and scores that are in doubt prove nothing.
    upper = conclusion.tightest
    if upper is None or math.isinf(upper.epsilon) or conclusion.doubt:
        return None
    if conclusion.bets_on_curve:
        return _judge_curve(conclusion, upper, is_interim)
    if conclusion.is_one_run:
        is_refuted = _do_guesses_refute(conclusion, upper)
    else:
        # Each of the two bounds is wrong with a probability of at most 1 - confidence. In theory both
        # together are wrong up to twice as often. But on a Gaussian curve the bound on epsilon adds no errors
        # to those of the limit on mu (`tests/audit/conclusions/test_claim_tests.py`).
        is_refuted = _refutes(upper, conclusion.assumption_free.epsilon, conclusion.gaussian.mu)
    # Reversed scores contradict no claim, however wrong it is.
    if is_refuted is None or (conclusion.is_reversed and not is_refuted):
        return None
    # The mean of the e-value is at most 1 for a true claim, which is refuted with a probability of at most
    # 1 - confidence.
    e_value = 0.0
    if is_refuted:
        e_value = 1 / (1 - conclusion.confidence)
    return ClaimTest(e_value, bool(is_refuted), conclusion.count_runs())


def _judge_curve(conclusion: Conclusion, upper: UpperBound, is_interim: bool) -> ClaimTest | None:
    """Returns the test of the whole claimed trade-off curve, by bets on the scores of canaries that were in.

    Bets win capital where more of these scores exceed thresholds than the curve allows. A large capital is
    evidence against the claim.

    Returns:
      None where no curve is claimed. None, too, where the scores of canaries that were out refute the law
      that the bets assume of them, and for reversed scores that refute nothing.
    """
    power = _find_power(conclusion, upper)
    # With several runs, canaries that were out, if any, have tested the law. The assumption-free bound rests
    # on it: `holds` is False where they refute it. The law of a single run's cosines is not tested so.
    is_law_refuted = conclusion.law_is_known and not conclusion.assumption_free.holds
    if power is None or is_law_refuted:
        return None
    if conclusion.is_one_run:
        assert conclusion.one_run.cosines is not None  # without cosines no law is known
        design = one_run_bounds.make_design(conclusion.one_run.cosines)
    else:
        design = conclusion.fresh
    exceedances = exact_null.count_exceedances(design)
    exceedances = exceedances._replace(is_only_run=conclusion.is_one_run)
    # From here on all runs count, so that the test's number of runs is one of training runs.
    capital = claimed_curve.compute_log_capital(exceedances, power)
    log_capital = exact_null.expand_to_runs(design, capital)
    confidence = conclusion.confidence
    test = claimed_curve.judge_capital(log_capital, exceedances.in_order, confidence)
    if conclusion.is_reversed and not test.refuted:
        return None
    if is_interim:
        return test
    summary = exact_null.summarise_design(design)
    if upper.mu is not None:
        # Simulations start from scores as they are under the stated noise. Then their mean, in standard
        # deviations of a score that is out, is at most mu. A larger observed mean is cut to that.
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    seen = find_least_departure(summary, exceedances, power, confidence)
    return test._replace(seen=seen)


def _find_power(conclusion: Conclusion, upper: UpperBound) -> Power | None:
    """Returns the largest true-positive rate that the claims allow, as a function of false-positive rates.

    Two curves may limit it: that of mu-GDP, if the tightest upper bound bounds mu, and that of the claim on
    the mechanism. Where there are both, the smaller of the two counts at each rate. None where there is
    neither.
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


def _refutes(upper: UpperBound, epsilon: float, limit_on_mu: float | None) -> bool:
    """Returns whether lower bounds refute a claim: that on epsilon any claim, that on mu one of mu-GDP."""
    if epsilon > upper.epsilon:
        return True
    return upper.mu is not None and limit_on_mu is not None and limit_on_mu > upper.mu


def _do_guesses_refute(conclusion: Conclusion, upper: UpperBound) -> bool | None:
    """Returns whether the bound on right guesses of a single run's coins exceeds the claim.

    It is the bound on mu if the claim has a mu, else that on epsilon. None if there are too few coins for
    bounds.
    """
    by_method = {bound.method: bound for bound in conclusion.bounds}
    # The same coins give a bound on epsilon and another on mu: there are both, or neither.
    if one_run_bounds.ONE_RUN_GUESSES not in by_method:
        return None
    if upper.mu is None:
        return by_method[one_run_bounds.ONE_RUN_GUESSES].epsilon > upper.epsilon
    limit_on_mu = by_method[one_run_bounds.ONE_RUN_GAUSSIAN].mu
    return limit_on_mu is not None and limit_on_mu > upper.mu


def examine_reach(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with the largest epsilon that as many runs can prove, and whether it is too small.

    The epsilon, whatever the curve, is at the confidence of a single look. It is None if runs have several
    canaries: what these could show at most is unknown.
    """
    if not conclusion.has_one_canary:
        return conclusion
    looks = conclusion.looks
    confidence = conclusion.confidence
    if looks is not None:
        confidence = looks.confidence
    n_in, n_out = map(len, conclusion.worlds)
    family = exact.approximate_dp(conclusion.delta)
    most = estimate.find_most_provable(n_in, n_out, family, confidence)
    upper = conclusion.tightest
    is_beyond_reach = False
    if upper is not None and math.isfinite(upper.epsilon):
        most_mu = estimate.find_most_provable(n_in, n_out, exact.GAUSSIAN, confidence)
        is_beyond_reach = not _refutes(upper, most, most_mu)
    return conclusion._replace(most_provable=most, is_beyond_reach=is_beyond_reach)


def take_smaller(all_rows: Conclusion, once: Conclusion | None, remark: str) -> Conclusion:
    """Returns a conclusion that is valid whether repeated rows are independent runs or were pasted.

    Its scores, and estimates from them, are those of the reading that proves less.

    Args:
      all_rows: the conclusion from all rows.
      once: the conclusion from each repeated row once; None if these are too few for any.
      remark: how many rows repeat earlier rows, in words.
    """
    shown = all_rows
    bounds_once: tuple[Bound, ...] = ()
    if once is None:
        note = f"{remark}; counted once, there are too few for a bound"
    elif once.epsilon > all_rows.epsilon:
        note = f"{remark}; the bound counts all of them, which proves less"
        bounds_once = once.bounds
    else:
        note = f"{remark}; the bound counts them once"
        bounds_once = once.bounds
        shown = once
    bounds = _take_smaller_bounds(all_rows.bounds, bounds_once)

    def change(conclusion: Conclusion) -> Conclusion:
        """Returns a conclusion with the bounds and notes of both readings."""
        looks = conclusion.looks
        if looks is not None:  # these scores are of a single look
            looks = looks._replace(taken=(looks.taken[0]._replace(bounds=bounds),))
        notes = (*all_rows.notes, note)
        return conclusion._replace(bounds=bounds, looks=looks, notes=notes)

    if once is None:
        return judge(examine_scores(change(all_rows)), claim_test=None)
    both = (examine_scores(change(all_rows)), examine_scores(change(once)))
    merged = examine_scores(change(shown)._replace(curve=_take_weaker_curve(all_rows, once)))
    return judge(merged, _take_weaker_test(*both))


def _take_smaller_bounds(all_rows: tuple[Bound, ...], once: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Returns the smaller bound of each method; 0 if repeated rows, counted once, give none.

    Bounds after each run are left out, since the two readings do not have the same runs.
    """
    by_method = {bound.method: bound for bound in once}
    smaller = []
    for bound in all_rows:
        nothing = dataclasses.replace(bound, epsilon=0.0, mu=None if bound.mu is None else 0.0)
        other = by_method.get(bound.method, nothing)
        least = min(bound, other, key=lambda each: (each.epsilon, each.mu or 0.0))
        smaller.append(dataclasses.replace(least, path=()))
    return tuple(smaller)


def _take_weaker_curve(all_rows: Conclusion, once: Conclusion) -> Curve | None:
    """Returns the test of the Gaussian curve with the larger p-value, and the smaller power.

    The power is 0 if only one reading refutes the curve, which is then neither refuted nor confirmed.
    """
    first = all_rows.curve
    second = once.curve
    if first is None or second is None:
        return None
    power = min(first.power, second.power)
    if first.is_refuted != second.is_refuted:
        power = 0.0
    return Curve(max(first.p_value, second.p_value), power)


def _take_weaker_test(all_rows: Conclusion, once: Conclusion) -> ClaimTest | None:
    """Returns the claim's test by the reading with less evidence: to refute a claim takes both."""
    first = examine_claim(all_rows)
    second = examine_claim(once)
    if first is None or second is None:
        return None
    return min(first, second, key=lambda test: (test.refuted, test.e_value))
