"""Estimators on scores whose truth is known: below it, near it, and honest about bad input."""

import dataclasses

import numpy as np
import pytest
from scipy import optimize, stats

from audit.errors import InputError
from audit.laws import conversions
from audit.methods import estimate, thresholds
from audit.methods.estimate import METHODS, assumption_free, if_gaussian, in_sample
from tests.cases import mostly_slow

DELTA, CONFIDENCE = 1e-5, 0.95
BOUNDS = pytest.mark.parametrize("method", [if_gaussian, assumption_free])
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


def share_above(truth, bounds):
    return np.mean([b > truth for b in bounds])


def most(audits, error=1 - CONFIDENCE):
    return stats.binom.ppf(1 - 1e-3, audits, error) / audits


@pytest.mark.parametrize("mu", mostly_slow([1.0, 3.953, 0.5, 1.768], quick=2))
@pytest.mark.parametrize(
    "method, loss", [(in_sample, 0.13), (if_gaussian, 0.17)], ids=lambda x: str(x)[:18]
)
def test_a_bound_on_mu_is_below_the_truth_and_near_it(method, loss, mu):
    bounds = [method(*gaussian_scores(mu, seed=s), DELTA, CONFIDENCE) for s in range(12)]
    assert mu - loss - 0.03 * mu < np.mean([b.mu for b in bounds]) < mu
    for bound in bounds:
        assert bound.mu < mu + 0.1 and bound.epsilon == conversions.epsilon_from_mu(bound.mu, DELTA)


@pytest.mark.parametrize(
    "mu, least", mostly_slow([(1.0, 1.3), (7.0, 6.4), (1.768, 2.3), (3.953, 6.0)], quick=2)
)
def test_assumption_free_is_below_the_truth_and_near_what_n_scores_can_show(mu, least):
    bounds = [assumption_free(*gaussian_scores(mu, seed=s), DELTA, CONFIDENCE) for s in range(12)]
    assert all(b.mu is None and b.epsilon < conversions.epsilon_from_mu(mu, DELTA) for b in bounds)
    assert least < np.mean([b.epsilon for b in bounds]) < np.log(2 * 2188 / 3.64)


@pytest.mark.parametrize(
    "epsilon, mean, spread", [(24, 23.05, 0.62), (8, 7.73, 0.28), (4, 3.75, 0.19), (1, 0.80, 0.14)]
)
def test_the_papers_estimator_gives_the_papers_numbers(epsilon, mean, spread, audits=60):
    mu = conversions.mu_from_epsilon(epsilon, DELTA)
    values = [
        in_sample(*gaussian_scores(mu, seed=s), DELTA, CONFIDENCE).epsilon for s in range(audits)
    ]
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


@pytest.mark.parametrize(
    "n_in, n_out, mu",
    mostly_slow([(25, 90, 2.0), (1, 7, 3.0), (60, 60, 1.0), (40, 40, 0.0)], quick=2),
)
@pytest.mark.parametrize("ties", [False, True])
def test_in_sample_is_algorithm_4(n_in, n_out, mu, ties):
    scores_in, scores_out = gaussian_scores(mu, 100, seed=n_in)
    scores_in, scores_out = scores_in[:n_in], scores_out[:n_out]
    if ties:
        scores_in, scores_out = np.round(scores_in, 1), np.round(scores_out, 1)
    slow_mu, slow_epsilon = algorithm_4(scores_in, scores_out, 1e-3, 0.9)
    bound = in_sample(scores_in, scores_out, 1e-3, 0.9)
    assert bound.mu == pytest.approx(slow_mu, abs=1e-9)
    assert bound.epsilon == pytest.approx(slow_epsilon, abs=1e-7)


@EVERY
def test_the_same_scores_give_the_same_bound_with_the_counts_of_its_threshold(method):
    scores_in, scores_out = gaussian_scores(1.5, 400)
    bound = method(scores_in, scores_out, DELTA, CONFIDENCE)
    assert 0 < bound.n_in <= 400 and bound.n_in == bound.n_out
    assert bound.false_negatives <= np.sum(scores_in <= bound.threshold)
    assert bound.false_positives <= np.sum(scores_out >= bound.threshold)
    counted = {"in_sample": 400, "if_gaussian": 380, "assumption_free": 350}
    assert bound.n_in == counted[bound.method] and bound.method == method.__name__
    scores = gaussian_scores(1.0, 300)
    kept = [s.copy() for s in scores]
    assert method(*scores, DELTA, CONFIDENCE) == method(*scores, DELTA, CONFIDENCE)
    assert method(*map(list, scores), DELTA, CONFIDENCE) == method(*scores, DELTA, CONFIDENCE)
    np.testing.assert_array_equal(scores, kept)


@BOUNDS
def test_a_bound_is_a_function_of_two_sets_of_ranks(method):
    """No order of rows and no increasing map of the scores changes it, nor rounding that swaps no ranks."""
    rng = np.random.default_rng(2)
    for scores in (gaussian_scores(1.5, 400), [np.round(s, 1) for s in gaussian_scores(1.5, 400)]):
        before = method(*scores, DELTA, CONFIDENCE)
        for order in (np.sort, np.flip, rng.permutation):
            assert method(*map(order, scores), DELTA, CONFIDENCE) == before
        for warp in (np.exp, np.arctan, lambda s: s**3 + 1e-3 * s, lambda s: 1e90 * s):
            after = method(*map(warp, scores), DELTA, CONFIDENCE)
            assert dataclasses.replace(after, threshold=before.threshold) == before
            assert after.threshold == pytest.approx(warp(before.threshold))


@BOUNDS
def test_swapped_ranks_change_little(method):
    """Another processor rounds otherwise: where few of 5,000 scores change places, so does the bound."""
    bounds, rng = [], np.random.default_rng(4)
    for _ in range(12):
        noisy = [s + 1e-4 * rng.normal(size=len(s)) for s in gaussian_scores(1.0)]
        bounds.append(method(*noisy, DELTA, CONFIDENCE).epsilon)
    assert np.std(bounds) < 0.06 * np.mean(bounds)


def test_pilots_are_as_good_as_random_between_audits():
    """The lowest score in is in the pilots of one split in twenty, whatever else is there."""
    drawn = []
    for seed in range(60):
        ordered = estimate._order_scores(*gaussian_scores(1.5, 400, seed))
        for root in np.random.SeedSequence(ordered.seed()).spawn(estimate._SPLITS):
            rng = np.random.default_rng(root)
            lowest = ordered.places(rng)[0]
            drawn.append(lowest[0] in estimate._draw_pilot(lowest, 0.05, rng)[0])
    assert np.mean(drawn) == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / len(drawn)))


@pytest.mark.slow
@pytest.mark.parametrize("n, mu", [(1000, 2.0), (200, 1.0), (37, 2.5)])
def test_if_gaussian_keeps_the_confidence(n, mu, assert_covers):
    exceeding = []

    def draw(first, audits):
        scores = (gaussian_scores(mu, n, first + i) for i in range(audits))
        exceeding.append(sum(if_gaussian(*s, DELTA, CONFIDENCE).mu > mu for s in scores))
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
    assert share_above(truth, (if_gaussian(*s, DELTA, CONFIDENCE).mu for s in levels)) <= most(
        audits
    )


@EVERY
@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_no_signal_or_the_wrong_way_round_gives_about_nothing(method, mu):
    assert 0 <= method(*gaussian_scores(mu, seed=1), DELTA, CONFIDENCE).epsilon < 0.3


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 1), (1, 3), (2, 9)])
@pytest.mark.filterwarnings("error")
@EVERY
def test_a_handful_of_scores_proves_nothing(method, sizes):
    scores_in, scores_out = np.arange(sizes[0]) + 10.0, np.arange(sizes[1]) * 0.1
    assert method(scores_in, scores_out, DELTA, CONFIDENCE).epsilon == 0.0
    if sizes != (2, 9):
        assert method(scores_out, scores_in, DELTA, CONFIDENCE).epsilon == 0.0


@pytest.mark.parametrize("n", [20, 200, 2500])
@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.filterwarnings("error")
def test_perfect_separation_gives_what_n_scores_can_prove(n, spread):
    rng = np.random.default_rng(5)
    scores = rng.normal(100, spread, n), rng.normal(0, spread, n)
    bounds = {name: one.compute(*scores, DELTA, CONFIDENCE) for name, one in METHODS.items()}
    assert all(bound.false_positives == 0 for bound in bounds.values())
    rate = 1 - 0.025 ** (1 / n)  # of errors that leave none with probability 0.025
    assert bounds["in_sample"].mu == pytest.approx(-2 * stats.norm.ppf(rate), rel=0.02)
    most = np.log(2 * bounds["assumption_free"].n_in / -np.log(0.05 * 11 / 21))
    assert most - 0.06 < bounds["assumption_free"].epsilon < most or n == 20
    assert 0.6 < bounds["if_gaussian"].mu / bounds["in_sample"].mu < 1.05


@EVERY
@pytest.mark.filterwarnings("error")
def test_heavy_ties(method):
    """Five levels, n + n scores; the truth is the largest ratio of the levels' tail probabilities."""
    rng = np.random.default_rng(6)
    scores_in, scores_out = rng.binomial(4, 0.6, 2500), rng.binomial(4, 0.4, 2500)
    bound = method(scores_in, scores_out, DELTA, CONFIDENCE)
    top = [stats.binom.sf(k, 4, 0.6) / stats.binom.sf(k, 4, 0.4) for k in range(4)]
    if method is assumption_free:
        assert 0.5 * np.log(max(top)) < bound.epsilon < np.log(max(top))
    else:
        assert 0.6 < bound.mu < 1.1
    assert bound.false_positives <= np.sum(scores_out >= bound.threshold)


@pytest.mark.slow
def test_one_bit_of_randomised_response_shows_why_the_label_matters(audits=60):
    """It leaks epsilon = 1 exactly. Without an assumption the bound respects that; through a Gaussian
    trade-off curve, which a bit does not have, each audit claims several times as much."""
    bounds = [
        [
            m(*bits(1.0, 2500, seed), DELTA, CONFIDENCE).epsilon
            for m in (assumption_free, if_gaussian)
        ]
        for seed in range(audits)
    ]
    free, gaussian = np.transpose(bounds)
    assert share_above(1.0, free) <= most(audits) and free.mean() > 0.8 and gaussian.min() > 3
    many = [
        assumption_free(*bits(1.0, 20_000, seed), DELTA, CONFIDENCE).epsilon for seed in range(9)
    ]
    assert 0.88 < np.median(many) < 1


@pytest.mark.parametrize("shift", [2.0, 8.0])
def test_heavy_tails_cost_little(shift):
    """Cauchy scores: the pilot's standard deviation says nothing about where to cut."""
    rng = np.random.default_rng(8)
    pairs = [rng.standard_cauchy((2, 4000)) for _ in range(9)]
    bounds = [assumption_free(x + shift, y, DELTA, CONFIDENCE).epsilon for x, y in pairs]
    cuts = np.linspace(-20, 20, 4001)
    false_positives, false_negatives = stats.cauchy.sf(cuts), stats.cauchy.cdf(cuts - shift)
    best = conversions.epsilon_from_rates(false_positives, false_negatives, DELTA).max()
    assert 0.75 * best < np.median(bounds) and share_above(best, bounds) <= most(len(bounds))


BAD_SCORES = {
    "no in scores": ([], [1.0, 2.0]),
    "no out scores": ([1.0, 2.0], []),
    "2 of 3 scores are NaN, of runs that failed, more than 50%": ([1.0, np.nan], [np.nan]),
    "all 2 scores equal": ([np.inf], [np.inf]),
    r"in scores have shape \(2, 2\)": ([[1.0, 2.0], [3.0, 4.0]], [0.0]),
    r"out scores have shape \(\)": ([1.0], 0.0),
    "all 4 scores equal 7": ([7.0, 7.0], [7.0, 7.0]),
}


@EVERY
def test_bad_scores_or_levels(method):
    for message, scores in BAD_SCORES.items():
        with pytest.raises(InputError, match=message) as caught:
            method(*scores, DELTA, CONFIDENCE)
        assert "\n" not in str(caught.value)
    for value in (0.0, 1.0, -1.0, 1.5, np.nan):
        for message, levels in (
            ("delta is", (value, CONFIDENCE)),
            ("confidence is", (DELTA, value)),
        ):
            with pytest.raises(InputError, match=message):
                method([1.0], [0.0], *levels)


@EVERY
@pytest.mark.parametrize("confidence", [1e-9, 0.5, 1 - 1e-7, 1 - 1e-15])
def test_extreme_confidences_work(method, confidence):
    assert 0 <= method(*gaussian_scores(1.0, 300), DELTA, confidence).epsilon < 12


def test_more_confidence_costs_and_ten_times_the_scores_come_closer():
    scores = gaussian_scores(2.0, 1000)
    mus = [in_sample(*scores, DELTA, c).mu for c in (0.5, 0.8, 0.95, 0.999)]
    assert mus == sorted(mus, reverse=True) and mus[0] > mus[-1] > 1
    assert if_gaussian(*scores, DELTA, 0.7).mu > if_gaussian(*scores, DELTA, 0.9999).mu > 1
    for method in (one.compute for one in METHODS.values()):
        few, many = (
            method(*gaussian_scores(1.5, n), DELTA, CONFIDENCE).epsilon for n in (500, 20_000)
        )
        assert few < many


def test_findings_are_every_estimators_and_only_what_covers_is_a_bound():
    scores = gaussian_scores(1.0, 300)
    found = estimate.findings(*scores, DELTA, CONFIDENCE)
    assert found == [one.compute(*scores, DELTA, CONFIDENCE) for one in METHODS.values()]
    assert [one.method for one in found] == list(METHODS)
    in_sample_one, *bounds = found
    assert isinstance(in_sample_one, estimate.Estimate) and not hasattr(in_sample_one, "assumes")
    assert [one.method for one in bounds] == ["if_gaussian", "assumption_free"]
    assert all(one.assumes == METHODS[one.method].assumes for one in bounds)
    text = str(in_sample_one)
    assert "not a confidence bound" in text and "assumes" not in text and ">=" not in text
    assert "epsilon = " in text and "delta 1e-05, level 0.95" in text
    lines = [str(dataclasses.replace(one, epsilon=1.9996)) for one in bounds]
    assert all("epsilon >= 1.999" in line and "confidence 0.95" in line for line in lines)
    assert "assumes a Gaussian trade-off curve" in lines[0] and "mu >= 0." in lines[0]
    assert "assumes nothing" in lines[1] and "mu" not in lines[1]


@pytest.mark.parametrize("runs", [2, 6, 20, 99, 5000])
def test_no_scores_prove_more_than_the_most(runs):
    most = estimate.most_provable(runs, runs, 1e-5, 0.95)
    assert (
        most == estimate.assumption_free(np.arange(runs) + 1e9, np.arange(runs), 1e-5, 0.95).epsilon
    )
    assert (
        estimate.assumption_free(np.arange(runs) + 0.8 * runs, np.arange(runs), 1e-5, 0.95).epsilon
        <= most
    )
    if runs >= 99:
        assert most == pytest.approx(np.log(2 * runs / 3), abs=0.5)


@pytest.mark.parametrize("is_in", [False, True])
@pytest.mark.parametrize("sizes", [(400, 400), (200, 50), (6, 40)])
def test_the_most_holds_whatever_rank_a_pilot_chooses(sizes, is_in, monkeypatch):
    def choose_first(*args, **options):
        return thresholds.Rank(is_in, 1)

    monkeypatch.setattr(thresholds, "choose_on_pilot", choose_first)
    scores_in, scores_out = np.ones(sizes[0]), np.zeros(sizes[1])
    gaussian = estimate.if_gaussian(scores_in, scores_out, 1e-5, 0.95)
    free = estimate.assumption_free(scores_in, scores_out, 1e-5, 0.95)
    assert gaussian.mu <= estimate.most_provable_mu(*sizes, 0.95)
    assert free.epsilon <= estimate.most_provable(*sizes, 1e-5, 0.95)
