"""The test of the claim that a conclusion's scores were held against.

Where the law of canaries that are out is known, bets test the whole claimed curve (`claimed_curve`), even of
a single run. Elsewhere a bound tests the claim at a single threshold: mu-GDP is refuted where the lower limit
on mu exceeds it, which needs no Gaussian curve, and another claim where the lower bound on epsilon does.
"""

import math
from typing import NamedTuple

import numpy as np

from audit.conclusions.conclusion import Conclusion, UpperBound
from audit.evidence.canaries import Fresh
from audit.methods import claimed_curve, estimate, exact_null, one_run_bounds
from audit.methods.claimed_curve import (
    ClaimTest,
    Departure,
    LogCapital,
    Power,
    find_least_departure,
)


class _Bets(NamedTuple):
    """Evidence and bets that test a whole claimed trade-off curve.

    Attributes:
      design: the scores of canaries whose law is known where they are out.
      compute_log_capital: returns the log of the capital that bets have won after each run with a canary in,
        given how many scores exceed each threshold.
    """

    design: Fresh
    compute_log_capital: LogCapital


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
    test = conclusion.kind.judge(conclusion)
    # Reversed scores contradict no claim, however wrong it is.
    if test is None or (conclusion.is_reversed and not test.refuted):
        return None
    if is_interim or not conclusion.bets_on_curve:
        return test
    return test._replace(seen=_find_least_departure(conclusion))


def judge_curve(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the whole claimed trade-off curve, by bets on the scores of canaries that were in.

    Bets win capital where more of these scores exceed thresholds than the curve allows. A large capital is
    evidence against the claim.

    Returns:
      None where no curve is claimed. None, too, where the scores of canaries that were out refute the law
      that the bets assume of them.
    """
    power = _find_power(conclusion)
    # With several runs, canaries that were out, if any, have tested the law. The assumption-free bound rests
    # on it: `holds` is False where they refute it. The law of a single run's cosines is not tested so.
    is_law_refuted = conclusion.law_is_known and not conclusion.assumption_free.holds
    if power is None or is_law_refuted:
        return None
    bets = _find_bets(conclusion)
    exceedances = exact_null.count_exceedances(bets.design)
    log_capital = bets.compute_log_capital(exceedances, power)
    # From here on all runs count, so that the test's number of runs is one of training runs.
    log_capital = exact_null.expand_to_runs(bets.design, log_capital)
    return claimed_curve.judge_capital(log_capital, exceedances.in_order, conclusion.confidence)


def _find_least_departure(conclusion: Conclusion) -> Departure | None:
    """Returns the smallest lack of noise that runs like these would refute, by simulations.

    It is a `Departure`: a ratio below 1 of the real noise to the stated noise, where the ratio nearest to 1
    counts. None where no ratio that was tried would be refuted.
    """
    power = _find_power(conclusion)
    upper = conclusion.tightest
    assert power is not None and upper is not None  # else there is no test of a curve

    bets = _find_bets(conclusion)
    summary = exact_null.summarise_design(bets.design)
    if upper.mu is not None:
        # Simulations start from scores as they are under the stated noise. Then their mean, in standard
        # deviations of a score that is out, is at most mu. A larger observed mean is cut to that.
        summary = summary._replace(mean=min(summary.mean, upper.mu))
    log_rates = exact_null.count_exceedances(bets.design).log_rates
    return find_least_departure(
        summary, log_rates, power, conclusion.confidence, bets.compute_log_capital
    )


def _find_bets(conclusion: Conclusion) -> _Bets:
    """Returns the scores whose law is known without the canary, and the function that bets on them.

    The bets on the cosines of a single run differ from those on several runs.
    """
    if not conclusion.is_one_run:
        return _Bets(conclusion.fresh, claimed_curve.compute_log_capital)
    cosines = conclusion.one_run.cosines
    assert cosines is not None  # without cosines no law is known, and nothing is bet
    design = one_run_bounds.make_design(cosines)
    return _Bets(design, claimed_curve.compute_log_capital_of_only_run)


def _find_power(conclusion: Conclusion) -> Power | None:
    """Returns the largest true-positive rate that the claims allow, as a function of false-positive rates.

    Two curves may limit it: that of mu-GDP, if the tightest upper bound bounds mu, and that of the claim on
    the mechanism. Where there are both, the smaller of the two counts at each rate. None where there is
    neither.
    """
    upper = conclusion.tightest
    assert upper is not None  # else nothing is claimed, and nothing is tested
    claim = conclusion.claim
    if upper.mu is None:
        return None if claim is None else claim.power
    gaussian = claimed_curve.gaussian_power(upper.mu)
    if claim is None:
        return gaussian
    if claim.gaussian_mu is not None:
        return gaussian  # the claim's mu is at least that of the tightest bound, and limits nothing more
    return lambda rates: np.minimum(gaussian(rates), claim.power(rates))


def judge_rates(conclusion: Conclusion) -> ClaimTest:
    """Returns the test of the claim by lower bounds on epsilon and, for mu-GDP, on mu.

    The claim is refuted if the assumption-free bound on epsilon exceeds the claimed epsilon. A claim of
    mu-GDP is also refuted if the lower limit on mu exceeds the claimed mu. Each of the two is wrong with a
    probability of at most 1 - confidence. In theory both together are wrong up to twice as often. But on a
    Gaussian curve the bound on epsilon adds no errors to those of the limit on mu
    (`tests/audit/conclusions/test_claim_tests.py`).
    """
    upper = conclusion.tightest
    assert upper is not None  # else nothing is claimed, and nothing is tested
    epsilon = conclusion.assumption_free.epsilon
    limit_on_mu = conclusion.gaussian.mu
    return _judge_by_bound(conclusion, _refutes(upper, epsilon, limit_on_mu))


def _refutes(upper: UpperBound, epsilon: float, limit_on_mu: float | None) -> bool:
    """Returns whether lower bounds refute a claim: that on epsilon any claim, that on mu one of mu-GDP.

    Args:
      upper: the claim.
      epsilon: the lower bound on epsilon that holds whatever the curve.
      limit_on_mu: the lower bound on mu; None where there is none.
    """
    if epsilon > upper.epsilon:
        return True
    return upper.mu is not None and limit_on_mu is not None and limit_on_mu > upper.mu


def find_most_provable(conclusion: Conclusion) -> float | None:
    """Returns the largest epsilon that as many runs in each world can prove, whatever the curve.

    It is at the confidence of a single look. None if runs have several canaries.
    """
    if not conclusion.has_one_canary:
        return None
    sizes = len(conclusion.scores_in), len(conclusion.scores_out)
    return estimate.most_provable(*sizes, conclusion.delta, confidence_of_look(conclusion))


def confidence_of_look(conclusion: Conclusion) -> float:
    """Returns the confidence of a single look's bounds; that of every bound without declared looks."""
    looks = conclusion.looks
    return conclusion.confidence if looks is None else looks.confidence


def is_beyond_reach(conclusion: Conclusion) -> bool:
    """Returns whether no scores of so many runs could refute the tightest claim, even without an error.

    False if nothing is claimed, and if runs have several canaries: what these could show at most is unknown.
    """
    upper = conclusion.tightest
    most = conclusion.most_provable  # None for several canaries a run
    if upper is None or math.isinf(upper.epsilon) or most is None:
        return False
    sizes = len(conclusion.scores_in), len(conclusion.scores_out)
    most_mu = estimate.most_provable_mu(*sizes, confidence_of_look(conclusion))
    return not _refutes(upper, most, most_mu)


def judge_one_run(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the claim by one run: by bets on cosines of known law, else by guesses of coins."""
    if conclusion.bets_on_curve:
        return judge_curve(conclusion)
    return _judge_guesses(conclusion)


def _judge_guesses(conclusion: Conclusion) -> ClaimTest | None:
    """Returns the test of the claim by how many coins of a single run are guessed right.

    The claim is refuted if the bound that rests on these guesses exceeds it: that on mu if the claim has a
    mu, else that on epsilon. None where there are too few coins for bounds.
    """
    upper = conclusion.tightest
    assert upper is not None  # else nothing is claimed, and nothing is tested
    by_method = {bound.method: bound for bound in conclusion.bounds}
    # The same coins give a bound on epsilon and another on mu: there are both, or neither.
    if one_run_bounds.ONE_RUN_GUESSES not in by_method:
        return None
    if upper.mu is None:
        epsilon = by_method[one_run_bounds.ONE_RUN_GUESSES].epsilon
        return _judge_by_bound(conclusion, epsilon > upper.epsilon)
    limit_on_mu = by_method[one_run_bounds.ONE_RUN_GAUSSIAN].mu
    assert limit_on_mu is not None
    return _judge_by_bound(conclusion, limit_on_mu > upper.mu)


def _judge_by_bound(conclusion: Conclusion, is_refuted: bool) -> ClaimTest:
    """Returns the record of a test by bounds at the conclusion's confidence, given whether they refute.

    The e-value is 1 / (1 - confidence) where the claim is refuted, else 0. Its mean is at most 1 for a true
    claim, which is refuted with a probability of at most 1 - confidence.
    """
    e_value = 1 / (1 - conclusion.confidence) if is_refuted else 0.0
    return ClaimTest(e_value, bool(is_refuted), conclusion.count_runs())
