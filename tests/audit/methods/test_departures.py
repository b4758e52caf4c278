"""Which smaller noise would have been seen: it is seen so often as is said."""

import numpy as np
from scipy import special

from audit.claims.claim import Gdp
from audit.methods.claimed_curve import THRESHOLDS, Exceedances, examine_claim
from audit.methods.departures import ScoreSummary, find_least_departure

LOG_RATES = special.log_ndtr(-THRESHOLDS)
CONFIDENCE = 0.95


def shares_of(scores):
    """Returns the shares of scores (R, K) above the thresholds."""
    above = np.stack([(run[:, None] > THRESHOLDS).mean(0) for run in scores])
    return Exceedances(above, LOG_RATES, in_order=True)


def test_the_departure_that_would_be_seen_is_seen_so_often():
    claim = Gdp(3.953)
    scores = ScoreSummary(mean=3.953, between=0.0, within=1.0, runs=20, canaries=64, in_order=True)
    departure = find_least_departure(scores, LOG_RATES, claim.power, CONFIDENCE)
    refuted = 0
    for seed in range(100):
        drawn = np.random.default_rng(seed).normal(claim.mu / departure.noise, 1.0, (20, 64))
        test = examine_claim(shares_of(drawn), claim.power, CONFIDENCE)
        refuted += test.refuted
    assert departure.probability >= 0.9
    assert refuted / 100 >= 0.8
    assert 0.85 < departure.noise < 1


def test_scores_that_tell_nothing_would_have_seen_nothing():
    scores = ScoreSummary(mean=0.0, between=0.0, within=1.0, runs=20, canaries=64, in_order=True)
    assert find_least_departure(scores, LOG_RATES, Gdp(1.0).power, 0.95) is None


def test_runs_without_an_order_see_no_more_than_runs_in_order():
    ordered = ScoreSummary(1.0, between=0.3, within=1.0, runs=20, canaries=4, in_order=True)
    seen = []
    for scores in (ordered, ordered._replace(in_order=False)):
        seen.append(find_least_departure(scores, LOG_RATES, Gdp(1.0).power, CONFIDENCE).noise)
    assert seen[1] < seen[0] < 1
