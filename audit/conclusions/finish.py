"""Computes the fields of a conclusion that follow from its scores, bounds and claims."""

import dataclasses
import math
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, UpperBound, Worlds
from audit.evidence.canaries import Fresh
from audit.evidence.given import Evidence
from audit.evidence.one_run import OneRun
from audit.methods import claimed_curve, curves, estimate, exact, exact_null, one_run_bounds
from audit.methods.claimed_curve import ClaimTest, Power
from audit.methods.curves import Auc
from audit.methods.estimate import Bound
from audit.methods.method import GIVEN, MANY_CANARIES, ONE_CANARY

# Scores are reversed if their AUC is more than this many standard errors below 1/2. Without a leak, this
# happens in 3 of 100,000 audits.
_STANDARD_ERRORS = 4
_MIN_EQUAL = 5  # this many scores never have equal values or equal shifts by chance


def finish(conclusion: Conclusion) -> Conclusion:
    """Returns the conclusion with its remaining fields, including the verdict."""
    derived = _derive_fields(conclusion)
    return _add_verdict(derived, _test_claim(derived))


def take_smaller(all_rows: Conclusion, once: Conclusion | None, remark: str) -> Conclusion:
    """Returns a conclusion that is valid whether equal rows of scores are independent runs or pasted copies.

    Each method keeps the smaller of its two bounds, and the claim is rejected only if both conclusions reject
    it. Scores and estimates come from the weaker conclusion (smaller epsilon).

    Args:
      all_rows: the conclusion from all rows (before `finish`), valid if they are independent runs.
      once: the conclusion that counts equal rows once, valid if they are copies; None if too few rows remain.
      remark: the number of repeated rows, in words.
    """
    if once is None:
        zeros = _take_smaller_bounds(all_rows.bounds, ())
        note = f"{remark}; counted once, they are too few for a bound"
        unproven = all_rows._replace(bounds=zeros, notes=(*all_rows.notes, note))
        return _add_verdict(_derive_fields(unproven), None)
    # For comparison only: the result derives its fields from the smaller bounds.
    finished_all = finish(all_rows)
    finished_once = finish(once)
    weaker = all_rows  # the conclusion with the smaller epsilon
    note = f"{remark}; the bound counts all of them, which is conservative"
    if finished_once.epsilon <= finished_all.epsilon:
        weaker = once
        note = f"{remark}; the bound counts them once"
    weaker = weaker._replace(
        curve=once.curve,  # a test of the curve's shape that copies cannot distort
        bounds=_take_smaller_bounds(all_rows.bounds, once.bounds),
        notes=(*all_rows.notes, note),
    )
    test = None
    tests = (finished_all.claim_test, finished_once.claim_test)
    if None not in tests:
        # `min` prefers a test that does not reject.
        test = min(tests, key=attrgetter("refuted", "e_value"))
    return _add_verdict(_derive_fields(weaker), test)


def _take_smaller_bounds(all_rows: tuple[Bound, ...], once: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """Returns the smaller of each method's two bounds: from all rows, and from counting equal rows once.

    A bound without a counterpart in `once` becomes 0. We drop methods that only `once` has. We also empty
    `path`, the bound after each run, because the two paths may cover different rows.
    """
    by_method = {bound.method: bound for bound in once}
    smaller = []
    for bound in all_rows:
        zero_mu = None if bound.mu is None else 0.0  # None for a method without a bound on mu
        zero = dataclasses.replace(bound, epsilon=0.0, mu=zero_mu)
        other = by_method.get(bound.method, zero)
        least = min(bound, other, key=lambda each: (each.epsilon, each.mu or 0.0))
        smaller.append(dataclasses.replace(least, path=()))
    return tuple(smaller)


def _add_verdict(conclusion: Conclusion, claim_test: ClaimTest | None) -> Conclusion:
    """Returns a conclusion with the test of the claim and the resulting verdict."""
    tested = conclusion._replace(claim_test=claim_test)
    return tested._replace(verdict=verdicts.judge(tested))


def _derive_fields(conclusion: Conclusion) -> Conclusion:
    """Returns a conclusion with all derived fields except the test of the claim and the verdict."""
    evidence = conclusion.evidence
    worlds = conclusion.worlds  # the scores with the canary, and without it
    refutes_gaussian = conclusion.curve is not None and conclusion.curve.is_refuted
    bounds = []
    for bound in conclusion.bounds:
        is_invalid = refutes_gaussian and bound.assumes.gaussian
        bounds.append(dataclasses.replace(bound, holds=bound.holds and not is_invalid))
    upper_bounds = _list_upper_bounds(conclusion)
    mus = [upper.mu for upper in upper_bounds if upper.mu is not None]
    derived = conclusion._replace(
        is_one_run=isinstance(evidence, OneRun),
        has_one_canary=conclusion.verdict_methods == ONE_CANARY,
        law_is_known=isinstance(evidence, Fresh),  # we know how its canaries are drawn
        scores_may_depend=conclusion.verdict_methods == MANY_CANARIES,  # within a run
        refutes_gaussian=refutes_gaussian,
        bounds=tuple(bounds),
        upper_bounds=upper_bounds,
        tightest=next(iter(upper_bounds), None),  # the smallest comes first
        tightest_mu=min(mus, default=None),
        is_claimed=GIVEN in [upper.assumes for upper in upper_bounds],  # stated by the user
        doubt=_find_doubt(evidence, worlds),  # why runs are not independent
    )
    _, scores_out = worlds
    if len(scores_out):
        derived = derived._replace(auc=curves.auc(*worlds), attack=curves.attack(*worlds))
    # Bets against the claimed curve need the exact distribution of left-out canaries' scores. `epsilon` is
    # the bound for any curve: a single run's largest, or the verdict's.
    if isinstance(evidence, OneRun):
        any_curve = [bound.epsilon for bound in bounds if not bound.assumes.gaussian]
        derived = derived._replace(
            bets_on_curve=evidence.is_null_known, epsilon=max(any_curve, default=0.0)
        )
    else:
        derived = derived._replace(
            bets_on_curve=derived.law_is_known,
            runs=sum(len(table.scores) for table in evidence.rows()),
            epsilon=derived.assumption_free.epsilon,
        )
    if derived.has_one_canary:  # `most_provable` assumes independent scores
        derived = _add_most_provable(derived)
    return derived._replace(is_reversed=are_reversed(evidence, bounds, derived.auc))


def _add_most_provable(conclusion: Conclusion) -> Conclusion:
    """Adds `most_provable` and `is_beyond_reach` to a conclusion from runs with one canary each.

    The tightest upper bound is beyond reach if neither the largest provable epsilon nor the largest provable
    mu exceeds it.
    """
    n_in, n_out = map(len, conclusion.worlds)
    confidence = conclusion.confidence
    curves_of_epsilon = exact.approximate_dp(conclusion.delta)
    most_epsilon = estimate.find_most_provable(n_in, n_out, curves_of_epsilon, confidence)
    is_beyond_reach = False
    tightest = conclusion.tightest
    if tightest is not None and math.isfinite(tightest.epsilon):
        most_mu = estimate.find_most_provable(n_in, n_out, exact.GAUSSIAN, confidence)
        is_beyond_reach = not _refutes(tightest, most_epsilon, most_mu)
    return conclusion._replace(most_provable=most_epsilon, is_beyond_reach=is_beyond_reach)


def _list_upper_bounds(conclusion: Conclusion) -> tuple[UpperBound, ...]:
    """Returns the known upper bounds, for the last model and for all models, smallest epsilon first."""
    upper_bounds = []
    state = conclusion.hidden_state
    if state is not None:
        is_measured = state.runs > 0  # runs that measured Lipschitz constants
        name = "measured hidden-state bound" if is_measured else "hidden-state bound"
        upper_bounds.append(
            UpperBound(
                state.bound.epsilon,
                state.bound.mu,
                state.assumes,
                name,
                last_model_only=True,
                is_measured=is_measured,
            )
        )
    epsilon = conclusion.upper_bound
    if epsilon is not None:
        assumes = GIVEN if conclusion.claim is None else conclusion.claim.assumes
        # GIVEN: the user states the bound, not the mechanism.
        name = "claim" if assumes == GIVEN else "upper bound"
        upper_bounds.append(UpperBound(epsilon, conclusion.mu_upper_bound, assumes, name))
    return tuple(sorted(upper_bounds, key=attrgetter("epsilon")))


def _find_doubt(evidence: Evidence, worlds: Worlds) -> str:
    """Returns why scores cannot come from independent noisy training runs; empty if they can."""
    if isinstance(evidence, Fresh | OneRun):  # not two worlds of independent runs
        return ""
    return _describe_constant_world(worlds) or _describe_equal_shifts(worlds)


def _describe_constant_world(worlds: Worlds) -> str:
    """Returns a sentence if all scores of one world (in or out) are equal and the others vary; else "".

    Equal scores in 5 or more runs suggest a shared seed, or scores that were never filled in. Scores that
    equal an extreme of the other world may be saturated, so they cast no doubt. Most scores of the other
    world must be distinct, which excludes guesses and the scores of failed runs.
    """
    scores_in, scores_out = worlds
    both = (("in", scores_in, scores_out), ("out", scores_out, scores_in))
    for name, scores, others in both:
        is_constant = len(scores) >= _MIN_EQUAL and np.ptp(scores) == 0
        is_saturated = scores[0] in (others.min(), others.max())
        # `unique` counts equal scores once.
        others_vary = len(np.unique(others)) > 1 + len(others) / 2
        if is_constant and others_vary and not is_saturated:
            return f"all {len(scores):,} scores {name} equal {scores[0]:.6g} while the others vary"
    return ""


def _describe_equal_shifts(worlds: Worlds) -> str:
    """Returns a sentence if all rows (5 or more) have the same shift between their two scores, else "".

    Equal shifts mean that the two runs of a row shared a seed.
    """
    scores_in, scores_out = worlds
    if not len(scores_in) == len(scores_out) >= _MIN_EQUAL:
        return ""
    # Shifts that agree to within a billionth of the largest score count as equal. Scores with few distinct
    # values, such as guesses, may have equal shifts by chance.
    shifts = scores_in - scores_out
    is_shifted = np.ptp(shifts) <= 1e-9 * np.abs(worlds).max()
    if is_shifted and len(np.unique(scores_in)) > len(scores_in) / 2:
        return f"every score with the canary equals the one without it in its row plus {shifts.mean():.6g}"
    return ""


def are_reversed(evidence: Evidence, bounds: Iterable[Bound], auc: Auc | None) -> bool:
    """Returns True if scores are clearly lower with the canary than without, as if their sign were wrong.

    The AUC must be more than 4 standard errors below 1/2. The scores of a run's K canaries may all be equal,
    so we multiply the standard error for independent scores by sqrt(K). For a single run, we assume that
    scores are independent, and return False if a bound is above 0. If cosines have a known null distribution
    (mean 0, standard deviation 1 / sqrt(d)), we test their mean instead.
    """
    num_dependent = max(evidence.canaries)  # K
    if isinstance(evidence, OneRun):
        if any(bound.epsilon > 0 for bound in bounds):
            return False
        if evidence.cosines is not None and evidence.is_null_known:
            observed = evidence.cosines.observed
            standard_error = 1 / math.sqrt(evidence.cosines.dimension * len(observed))
            return bool(observed.mean() < -_STANDARD_ERRORS * standard_error)
        num_dependent = 1
    assert auc is not None  # other evidence has left-out canaries
    # `deviations` counts standard errors from 1/2, for independent scores.
    return auc.deviations < -_STANDARD_ERRORS * math.sqrt(num_dependent)


def _test_claim(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the tightest upper bound, or None if it cannot be tested.

    If we know the exact distribution of left-out canaries' scores, we bet against the claimed trade-off
    curve. Otherwise, we compare lower bounds with the upper bound. We do not test scores that cannot come
    from independent runs (`doubt`). If scores are reversed (lower with the canary), only a rejection counts,
    since a wrong sign may hide a leak.
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
    """Returns the test that rejects a claim if a lower bound exceeds it; None for one run without coin flips.

    The e-value is 1 / (1 - confidence) if the claim is rejected, else 0. Its mean under a true claim is at
    most 1, since a true claim is rejected with probability at most 1 - confidence.
    """
    if conclusion.is_one_run:
        if conclusion.one_run.coins is None:
            return None
        epsilon = conclusion.finding(one_run_bounds.ONE_RUN_GUESSES).epsilon
        mu = conclusion.finding(one_run_bounds.ONE_RUN_GAUSSIAN).mu
        # For a claim of mu-GDP, only the bound on mu counts. Each bound is wrong with probability at most 1 -
        # confidence, so if both counted, a true claim could be rejected twice as often.
        if upper.mu is not None:
            epsilon = 0.0  # never refutes
    else:
        # For several runs, both bounds count. Simulated audits reject a true claim no more often than the
        # confidence allows (tests/audit/conclusions/test_claim_tests.py).
        epsilon = conclusion.assumption_free.epsilon
        mu = conclusion.gaussian.mu
    is_refuted = _refutes(upper, epsilon, mu)
    e_value = is_refuted / (1 - conclusion.confidence)
    return ClaimTest(e_value, is_refuted, conclusion.runs)


def _refutes(upper: UpperBound, epsilon: float, mu: float | None) -> bool:
    """Returns True if a lower bound on epsilon, or on mu if there is one, exceeds an upper bound."""
    if epsilon > upper.epsilon:
        return True
    return upper.mu is not None and mu is not None and mu > upper.mu


def _bet_on_curve(conclusion: Conclusion, upper: UpperBound) -> ClaimTest | None:
    """Returns the test that bets, in every run, that more canaries exceed a threshold than the claim allows.

    If the claim is true, the mean capital after these bets is at most 1, so high values refute the claim
    (`claimed_curve`). Returns None if no trade-off curve is claimed, or if the left-out canaries are
    inconsistent with their known distribution.
    """
    allowed_power = _combine_claimed_curves(conclusion, upper)
    # A refuted distribution invalidates the bound for any curve.
    is_law_refuted = conclusion.law_is_known and not conclusion.assumption_free.holds
    if allowed_power is None or is_law_refuted:
        return None
    design = conclusion.fresh
    if conclusion.is_one_run:
        assert conclusion.one_run.cosines is not None  # other scores have no known distribution
        design = one_run_bounds.make_design(conclusion.one_run.cosines)
    exceedances = exact_null.compute_exceedances(design)
    # We bet in each run, so a single run stakes the whole capital.
    exceedances = exceedances._replace(is_only_run=conclusion.is_one_run)
    allowed = claimed_curve.tabulate_claim(exceedances, allowed_power)
    log_capital = claimed_curve.compute_log_capital(exceedances, allowed)
    # Runs without inserted canaries leave the capital unchanged.
    log_capital = exact_null.expand_to_runs(design, log_capital)
    test = claimed_curve.judge_capital(log_capital, exceedances.in_order, conclusion.confidence)
    summary = _summarize_scores(design, upper)
    # For reports (`seen`), we simulate the smallest noise reduction that the test would detect.
    least_departure = claimed_curve.find_least_departure(
        summary, exceedances, allowed_power, conclusion.confidence
    )
    return test._replace(seen=least_departure)


def _summarize_scores(design: Fresh, upper: UpperBound) -> claimed_curve.ScoreSummary:
    """Summarizes scores, and caps their mean at mu if mu is claimed."""
    summary = exact_null.summarise_design(design)
    if upper.mu is None:
        return summary
    # With the claimed noise, the mean score is at most mu standard deviations of a left-out score.
    return summary._replace(mean=min(summary.mean, upper.mu))


def _combine_claimed_curves(conclusion: Conclusion, upper: UpperBound) -> Power | None:
    """Returns a function from false-positive rates to the largest true-positive rates the claims allow.

    The mu of the tightest upper bound and the claim about the mechanism may both limit the rates. We use the
    smaller limit, and return None if both are missing.
    """
    powers: list[Power] = []
    if upper.mu is not None:
        powers.append(claimed_curve.gaussian_power(upper.mu))
    if conclusion.claim is not None:
        powers.append(conclusion.claim.power)
    if not powers:
        return None
    return lambda rates: np.min([power(rates) for power in powers], axis=0)
