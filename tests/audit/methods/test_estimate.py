"""Tests estimators on scores with a known epsilon: level, tightness and bad input."""

import numpy as np
import pytest
from scipy import optimize, stats

from audit.laws import conversions
from audit.methods import estimate, exact
from audit.methods.estimate import METHODS, assumption_free, if_gaussian, in_sample
from tests.cases import mostly_slow

DELTA, CONFIDENCE = 1e-5, 0.95
LEVELS = (DELTA, CONFIDENCE)
EVERY = pytest.mark.parametrize("method", [one.compute for one in METHODS.values()], ids=METHODS)


def gaussian_scores(mu, n=2500, seed=0):
    rng = np.random.default_rng([97, seed])
    return rng.normal(mu, 1, n), rng.normal(0, 1, n)


def bits(epsilon, n, seed=0):
    """Randomised response's one bit, with jitter to break the ties: exactly (epsilon, 0)-DP."""
    rng = np.random.default_rng([89, seed])
    truth = np.exp(epsilon) / (1 + np.exp(epsilon))
    flips = rng.random((2, n)) > truth
    return (~flips[0] + 1e-6 * rng.normal(size=n)), (flips[1] + 1e-6 * rng.normal(size=n))


def cauchy(shift, n, seed=0):
    """Cauchy scores: the pilot's standard deviation says nothing about where to cut."""
    drawn = np.random.default_rng([8, seed]).standard_cauchy((2, n))
    return drawn[0] + shift, drawn[1]


CUTS = np.linspace(-20, 20, 4001)


def best_cauchy(shift):
    rates = (stats.cauchy.sf(CUTS), stats.cauchy.cdf(CUTS - shift))
    return conversions.epsilon_from_rates(*rates, DELTA).max()


@pytest.mark.parametrize(
    ("method", "draw", "parameter", "truth", "least"),
    mostly_slow(
        [
            (if_gaussian, gaussian_scores, 1.0, 1.0, 0.8),
            (assumption_free, gaussian_scores, 1.0, conversions.epsilon_from_mu(1.0, DELTA), 1.3),
            (assumption_free, cauchy, 8.0, best_cauchy(8.0), 0.75 * best_cauchy(8.0)),
            (assumption_free, bits, 1.0, 1.0, 0.7),
            (if_gaussian, gaussian_scores, 3.953, 3.953, 3.66),
            (assumption_free, gaussian_scores, 7.0, np.log(2 * 2188 / 3.64), 6.4),
            (assumption_free, gaussian_scores, 1.768, 8.6, 2.3),
            (assumption_free, cauchy, 2.0, best_cauchy(2.0), 0.75 * best_cauchy(2.0)),
        ],
        quick=2,
    ),
)
def test_a_bound_is_below_the_truth_and_near_it(method, draw, parameter, truth, least):
    bounds = [method(*draw(parameter, 2500, seed=s), *LEVELS) for s in range(8)]
    values = np.array([bound.epsilon if bound.mu is None else bound.mu for bound in bounds])
    assert least < values.mean() < truth and np.mean(values > truth) <= 2 / 8
    for bound in bounds:
        assert bound.mu is None or bound.epsilon == conversions.epsilon_from_mu(bound.mu, DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("n, mu", [(1000, 2.0), (200, 1.0), (37, 2.5)])
def test_if_gaussian_keeps_the_confidence(n, mu, assert_covers):
    exceeding = []

    def draw(first, audits):
        scores = (gaussian_scores(mu, n, first + i) for i in range(audits))
        exceeding.append(sum(if_gaussian(*s, *LEVELS).mu > mu for s in scores))
        return {"if_gaussian": exceeding[-1]}

    assert assert_covers(draw, 1200) < 200 * sum(exceeding) or n < 100


@pytest.mark.slow
def test_certified_keeps_the_confidence_with_two_levels(
    audits=600, n=40, miss=0.05305, alarm=0.1011
):
    """Any pair of error rates lies on one Gaussian curve, and few pairs of counts are likely: each has its
    own pilots, by its hash, and equal scores their own order."""
    rng = np.random.default_rng(83)
    levels = ((rng.random((2, n)) < [[1 - miss], [alarm]]).astype(float) for _ in range(audits))
    truth = conversions.mu_from_rates(alarm, miss)
    above = np.mean([if_gaussian(*scores, *LEVELS).mu > truth for scores in levels])
    assert above <= stats.binom.ppf(1 - 1e-3, audits, 1 - CONFIDENCE) / audits


@pytest.mark.slow
def test_one_bit_of_randomised_response_shows_why_the_label_matters(audits=60):
    """It leaks epsilon = 1 exactly. Without an assumption the bound respects that; through a Gaussian
    trade-off curve, which a bit does not have, each audit claims several times as much."""
    scores = [bits(1.0, 2500, seed) for seed in range(audits)]
    free = np.array([assumption_free(*one, *LEVELS).epsilon for one in scores])
    assert np.mean(free > 1) <= stats.binom.ppf(1 - 1e-3, audits, 0.05) / audits
    assert free.mean() > 0.8 and min(if_gaussian(*one, *LEVELS).epsilon for one in scores) > 3
    many = [assumption_free(*bits(1.0, 20_000, seed), *LEVELS).epsilon for seed in range(9)]
    assert 0.88 < np.median(many) < 1


@pytest.mark.parametrize(("epsilon", "mean", "spread"), [(24, 23.05, 0.62), (4, 3.75, 0.19)])
def test_the_papers_estimator_gives_the_papers_numbers(epsilon, mean, spread, audits=40):
    mu = conversions.mu_from_epsilon(epsilon, DELTA)
    values = [in_sample(*gaussian_scores(mu, seed=s), *LEVELS).epsilon for s in range(audits)]
    assert np.mean(values) == pytest.approx(mean, abs=3.5 * spread / np.sqrt(audits) + 0.005)
    assert np.std(values) == pytest.approx(spread, rel=3.5 / np.sqrt(2 * audits))


def algorithm_4(scores_in, scores_out, delta, confidence):
    """Algorithm 4 line by line: SciPy's intervals, and epsilon by bisection on Equation 9."""
    largest = 0.0
    distinct = sorted({*scores_in, *scores_out})
    for low, high in zip(distinct[:-1], distinct[1:], strict=True):
        fp, fn = np.sum(scores_out > (low + high) / 2), np.sum(scores_in <= (low + high) / 2)
        upper = [
            stats.binomtest(int(k), n).proportion_ci(confidence, "exact").high
            for k, n in ((fp, len(scores_out)), (fn, len(scores_in)))
        ]
        largest = max(largest, stats.norm.ppf(1 - upper[0]) - stats.norm.ppf(upper[1]))
    if largest == 0.0:
        return 0.0, 0.0

    def excess(epsilon):
        first = stats.norm.cdf(-epsilon / largest + largest / 2)
        return first - np.exp(epsilon) * stats.norm.cdf(-epsilon / largest - largest / 2) - delta

    return largest, optimize.bisect(excess, 0, 100, xtol=1e-10) if excess(0) > 0 else 0.0


@pytest.mark.parametrize(("n_in", "n_out", "mu"), [(25, 90, 2.0), (1, 7, 3.0), (40, 40, 0.0)])
@pytest.mark.parametrize("decimals", mostly_slow([1, 9]))
def test_in_sample_is_algorithm_4(n_in, n_out, mu, decimals):
    scores_in, scores_out = np.round(gaussian_scores(mu, 100, seed=n_in), decimals)
    scores = scores_in[:n_in], scores_out[:n_out]
    slow_mu, slow_epsilon = algorithm_4(*scores, 1e-3, 0.9)
    bound = in_sample(*scores, 1e-3, 0.9)
    assert bound.mu == pytest.approx(slow_mu, abs=1e-9)
    assert bound.epsilon == pytest.approx(slow_epsilon, abs=1e-7)


@EVERY
def test_a_record_has_the_counts_of_its_threshold_and_scores_stay_as_they_are(method):
    scores = gaussian_scores(1.5, 400)
    kept = [one.copy() for one in scores]
    bound = method(*scores, *LEVELS)
    np.testing.assert_array_equal(scores, kept)
    assert bound.false_negatives <= np.sum(scores[0] <= bound.threshold)
    assert bound.false_positives <= np.sum(scores[1] >= bound.threshold)
    counted = {"in_sample": 400, "if_gaussian": 380, "assumption_free": 350}
    assert bound.n_in == bound.n_out == counted[bound.method]


@EVERY
@pytest.mark.filterwarnings("error")
def test_what_shows_nothing_proves_about_nothing(method):
    for mu in (0.0, -1.0):
        assert 0 <= method(*gaussian_scores(mu, seed=1), *LEVELS).epsilon < 0.3
    for n_in, n_out in [(1, 1), (2, 2), (3, 1), (1, 3), (2, 9)]:
        scores = np.arange(n_in) + 10.0, np.arange(n_out) * 0.1
        assert method(*scores, *LEVELS).epsilon == 0.0
        assert n_out == 9 or method(*reversed(scores), *LEVELS).epsilon == 0.0
    for confidence in (1e-9, 0.5, 1 - 1e-7, 1 - 1e-15):
        assert 0 <= method(*gaussian_scores(1.0, 300), DELTA, confidence).epsilon < 12


@pytest.mark.parametrize("n", [20, 200, 2500])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.filterwarnings("error")
def test_perfect_separation_gives_what_n_scores_can_prove(n, spread):
    rng = np.random.default_rng(5)
    scores = rng.normal(100, spread, n), rng.normal(0, spread, n)
    estimated, gaussian, free = estimate.findings(*scores, *LEVELS)
    assert estimated.false_positives == gaussian.false_positives == free.false_positives == 0
    most = np.log(2 * free.n_in / -np.log(0.05 * 11 / 21))
    assert most - 0.06 < free.epsilon < most or n == 20
    assert 0.6 < gaussian.mu / estimated.mu < 1.05


@EVERY
@pytest.mark.filterwarnings("error")
def test_heavy_ties(method):
    """Five levels, n + n scores; the truth is the largest ratio of the levels' tail probabilities."""
    rng = np.random.default_rng(6)
    scores_in, scores_out = rng.binomial(4, 0.6, 2500), rng.binomial(4, 0.4, 2500)
    bound = method(scores_in, scores_out, *LEVELS)
    top = max(stats.binom.sf(k, 4, 0.6) / stats.binom.sf(k, 4, 0.4) for k in range(4))
    if method is assumption_free:
        assert 0.5 * np.log(top) < bound.epsilon < np.log(top)
    else:
        assert 0.6 < bound.mu < 1.1
    assert bound.false_positives <= np.sum(scores_out >= bound.threshold)


@pytest.mark.parametrize("runs", [2, 20, 99, 5000])
def test_no_scores_prove_more_than_the_most(runs):
    most = estimate.find_most_provable(runs, runs, exact.approximate_dp(DELTA), CONFIDENCE)
    apart = assumption_free(np.arange(runs) + 1e9, np.arange(runs), *LEVELS)
    overlapping = assumption_free(np.arange(runs) + 0.8 * runs, np.arange(runs), *LEVELS)
    assert overlapping.epsilon <= most == apart.epsilon
    assert runs < 99 or most == pytest.approx(np.log(2 * runs / 3), abs=0.5)
