"""Tests the level of the claim test in the worst cases, and how soon it refutes false claims."""

import numpy as np
import pytest
from scipy import special

from audit.claims.claim import DpSgd, EpsilonDelta, Gdp
from audit.methods import claimed_curve
from audit.methods.claimed_curve import THRESHOLDS, Exceedances, ScoreSummary, find_least_departure
from tests.cases import mostly_slow

LOG_RATES = special.log_ndtr(-THRESHOLDS)
LEVEL = 0.05
COUNTED = Exceedances(np.zeros((1, len(THRESHOLDS))), LOG_RATES, in_order=True)


def shares_of(scores, in_order=True):
    """Returns the shares of scores (R, K) above the thresholds."""
    above = np.stack([(run[:, None] > THRESHOLDS).mean(0) for run in scores])
    return Exceedances(above, LOG_RATES, in_order)


def draw_on_curve(claim, shape, rng):
    """Returns scores of canaries whose trade-off curve is exactly the claimed one.

    A canary's false-positive rate has the distribution function `power`; it is inverted on a grid.
    """
    rates = np.concatenate([[0.0], np.exp(np.linspace(-300, 0, 20_001))])
    powers = np.maximum.accumulate(claim.power(rates))
    uniform = rng.random(shape)
    places = np.clip(np.searchsorted(powers, uniform, side="left"), 0, len(rates) - 1)
    # The next larger rate on the grid is a little less telling, which is on the safe side by a thousandth.
    return -special.ndtri(rates[places])


def share_refuted(claim, audits, runs, seed, leaks=1.0):
    """Returns the share of audits of a true claim that refute it, looked at after every run.

    The canaries of a run are all equal; a run leaks with probability `leaks`, and else not at all.
    """
    rng = np.random.default_rng(seed)
    scores = draw_on_curve(claim, (audits, runs), rng)
    silent = rng.random(scores.shape) >= leaks
    scores = np.where(silent, rng.standard_normal(scores.shape), scores)
    refuted = 0
    for audit_scores in scores:
        counted = Exceedances((audit_scores[:, None] > THRESHOLDS) * 1.0, LOG_RATES, in_order=True)
        refuted += claimed_curve.examine_claim(counted, claim.power, 1 - LEVEL).refuted
    return refuted / audits


CLAIMS = {
    "mu of 0.5": Gdp(0.5),
    "mu of 2": Gdp(2.0),
    "mu of 3.953": Gdp(3.953),
    "epsilon of 1": EpsilonDelta(1.0, 1e-5),
    "epsilon of 3, delta of a hundredth": EpsilonDelta(3.0, 1e-2),
    "Poisson": DpSgd(noise_multiplier=1.0, insertions=100, sampling_rate=0.05),
}


@pytest.mark.parametrize("claim", mostly_slow(CLAIMS.values(), quick=3), ids=CLAIMS)
@pytest.mark.parametrize(
    ("audits", "leaks", "most"),
    mostly_slow([(100, 1.0, 0.1), (1000, 1.0, LEVEL), (1000, 0.5, LEVEL)]),
)
def test_a_true_claim_is_refuted_in_at_most_a_twentieth_of_1000_audits(claim, audits, leaks, most):
    assert share_refuted(claim, audits, runs=100, seed=2, leaks=leaks) <= most


@pytest.mark.parametrize("canaries", [1, 500])
@pytest.mark.parametrize("leaks", mostly_slow([0.5, 1.0]))
@pytest.mark.parametrize("claim", mostly_slow(CLAIMS.values(), quick=5), ids=CLAIMS)
def test_a_true_claim_is_refuted_by_a_twentieth_of_1000_single_runs_at_most(claim, leaks, canaries):
    """All canaries of the run are equal. With 500, most of the stake is on the claim's own thresholds."""
    rng = np.random.default_rng(3)
    scores = draw_on_curve(claim, 1000, rng)
    scores = np.where(rng.random(1000) < leaks, scores, rng.standard_normal(1000))
    counted = COUNTED._replace(is_only_run=True)
    if canaries > 1:
        counted = counted._replace(first_log_p_values=np.zeros(canaries))
    allowed = claimed_curve.tabulate_claim(counted, claim.power)
    refuted = 0
    for score in scores:
        counted = counted._replace(fractions=(score > THRESHOLDS)[None] * 1.0)
        if canaries > 1:
            log_p_values = np.full(canaries, special.log_ndtr(-score))
            counted = counted._replace(first_log_p_values=log_p_values)
        log_capital = claimed_curve.compute_log_capital(counted, allowed)
        refuted += claimed_curve.judge_capital(log_capital, True, 1 - LEVEL).refuted
    assert refuted <= 1000 * LEVEL


@pytest.mark.parametrize(
    ("mu", "runs", "canaries", "expected"),
    [(3.953, 63, 128, 3.866), (3.953, 10, 1024, 3.70), (1.768, 100, 256, 1.726)],
)
def test_the_limit_on_mu_is_below_the_truth_and_near_it(mu, runs, canaries, expected):
    limits = []
    for seed in range(8):
        scores = np.random.default_rng(seed).normal(mu, 1.0, (runs, canaries))
        limits.append(claimed_curve.find_refuted_mu(shares_of(scores), 1 - LEVEL))
    assert max(limits) < mu
    assert np.mean(limits) == pytest.approx(expected, rel=0.01)


def test_a_path_never_falls_and_ends_at_the_limit():
    scores = np.random.default_rng(3).normal(2.0, 1.0, (20, 64))
    counted = shares_of(scores)
    least = claimed_curve.find_refuted_mu(counted, 1 - LEVEL)
    path = claimed_curve.trace_refuted_mu(counted, least, 1 - LEVEL)
    assert (np.diff(path) >= 0).all() and path[-1] == pytest.approx(least, rel=0.005)


def test_without_an_order_only_the_capital_after_all_runs_counts():
    scores = np.random.default_rng(4).normal(2.0, 1.0, (40, 16))
    backwards = shares_of(scores[::-1], in_order=False)
    forwards = shares_of(scores, in_order=False)
    power = Gdp(1.5).power
    first = claimed_curve.examine_claim(forwards, power, 1 - LEVEL)
    second = claimed_curve.examine_claim(backwards, power, 1 - LEVEL)
    assert first.e_value == pytest.approx(second.e_value, rel=1e-9)


def test_the_departure_that_would_be_seen_is_seen_so_often():
    claim = Gdp(3.953)
    scores = ScoreSummary(
        mean=3.953, std_between_runs=0.0, std_within_run=1.0, runs=20, canaries=64
    )
    departure = find_least_departure(scores, COUNTED, claim.power, 1 - LEVEL)
    refuted = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).normal(claim.mu / departure.noise, 1.0, (20, 64))
        test = claimed_curve.examine_claim(shares_of(drawn), claim.power, 1 - LEVEL)
        refuted += test.refuted
    assert departure.probability >= 0.9
    assert refuted / 100 >= 0.8
    assert 0.85 < departure.noise < 1
