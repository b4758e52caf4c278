"""Tests the exact coverage of binomial limits, and that betting is fair."""

import itertools

import numpy as np
import pytest
from scipy import stats

from audit.laws import intervals
from audit.methods.betting import STAKES, compute_log_growth, mix_bets

RATES = np.concatenate([[1e-6, 1e-3], np.linspace(0.005, 0.995, 199), [1 - 1e-3, 1 - 1e-6]])


def coverage(interval, trials):
    """Exactly, at every rate: the probability of the counts whose interval holds the rate."""
    counts = np.arange(trials + 1)
    holds = (interval.lower <= RATES[:, None]) & (RATES[:, None] <= interval.upper)
    return (stats.binom.pmf(counts, trials, RATES[:, None]) * holds).sum(axis=1)


@pytest.mark.parametrize("trials", [1, 4, 11, 30])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_clopper_pearson_covers_at_every_rate(trials, confidence):
    covered = coverage(intervals.clopper_pearson(np.arange(trials + 1), trials, confidence), trials)
    assert covered.min() >= confidence - 1e-12


def test_clopper_pearson_is_not_vacuous():
    covered = coverage(intervals.clopper_pearson(np.arange(401), 400, 0.95), 400)
    assert covered.min() < 0.955 and covered[50:150].mean() < 0.97
    assert intervals.clopper_pearson_upper(0, 2500, 0.05) == pytest.approx(1 - 0.05 ** (1 / 2500))
    assert intervals.clopper_pearson_upper(2500, 2500, 0.05) == 1.0


@pytest.mark.parametrize("trials", [4, 30])
def test_one_sided_upper_limits_miss_at_most_error(trials):
    upper = intervals.clopper_pearson_upper(np.arange(trials + 1), trials, 0.05)
    missed = 1 - coverage(intervals.Interval(np.zeros(trials + 1), upper), trials)
    assert 0.03 < missed.max() <= 0.05 + 1e-12


def test_scipy_agrees():
    for count, trials in [(0, 1), (1, 1), (2, 7), (49, 50), (800, 2500)]:
        theirs = stats.binomtest(count, trials).proportion_ci(0.9, "exact")
        ours = intervals.clopper_pearson(count, trials, 0.9)
        np.testing.assert_allclose(ours, [theirs.low, theirs.high], rtol=1e-9, atol=1e-13)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "share"), [((0.0, 1.0), 0.3), ((0.2, 0.9), 0.5), ((0.0, 0.05), 0.9)]
)
@pytest.mark.parametrize("runs", [1, 4])
def test_the_expected_capital_is_one_at_the_true_mean_and_less_below_it(values, share, runs):
    mean = (1 - share) * values[0] + share * values[1]
    means = np.array([mean, mean - 0.05, mean - 0.2])
    expected = np.zeros((len(STAKES), 3))
    for outcome in itertools.product((0, 1), repeat=runs):
        probability = np.prod([share if hit else 1 - share for hit in outcome])
        expected += probability * np.exp(
            compute_log_growth(np.array(values)[list(outcome)], means, STAKES)
        )
    allowed = STAKES * (1 - mean) <= 1
    assert expected[allowed, 0] == pytest.approx(1.0, abs=1e-12)
    assert np.all(expected[~allowed] == 0) and np.all(expected[:, 1:] <= 1 + 1e-12)


def test_growth_is_the_product_of_the_bets_and_mixtures_means_of_capitals():
    values, means, stakes = RNG.random(30), np.array([0.5, 0.8, 0.95]), np.array([0.0, 0.4, 1.9])
    direct = [[np.log(1 + stake * (mean - values)).sum() for mean in means] for stake in stakes]
    assert compute_log_growth(values, means, stakes) == pytest.approx(np.array(direct), abs=1e-12)
    growth = compute_log_growth(np.array([0.0, 1.0]), np.array([0.4, 0.5, 0.6]), np.array([2.0]))
    assert np.isneginf(growth[0, 0]) and np.isneginf(growth[0, 1])  # ruined by the 1
    assert growth[0, 2] == pytest.approx(np.log(2.2) + np.log(0.2))
    growth = np.log(np.array([[2.0, 0.5], [4.0, 1.0]]))
    assert np.exp(mix_bets(growth, np.array([0.25, 0.75]))) == pytest.approx([3.5, 0.875])


def rejected(values, mean, error, bets=slice(None)):
    stakes = STAKES[bets]
    growth = compute_log_growth(values, np.array([mean]), stakes)
    return bool(mix_bets(growth, np.full(len(stakes), 1 / len(stakes)))[0] >= -np.log(error))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.97])
def test_a_true_mean_is_rejected_no_more_often_than_said(share):
    hits = np.arange(26)
    refused = [rejected(np.repeat([1.0, 0.0], [count, 25 - count]), share, 0.1) for count in hits]
    often = stats.binom.pmf(hits, 25, share) @ refused
    assert often <= 0.1 and (often > 0 or share < 0.1)


@pytest.mark.parametrize("truth", [0.3, 1.0, 77.0])
def test_the_largest_refuted_parameter_is_below_the_truth_and_near_it(truth):
    found = intervals.find_largest_refuted(lambda parameter: parameter < truth, 1.0, 40)
    assert truth - 1e-9 < found < truth
    assert intervals.find_largest_refuted(lambda parameter: False, 3.0, 40) == 0.0
    low, high = intervals.find_bracket(lambda parameter: parameter < truth, 1.0)
    assert low < truth <= high <= max(1.0, 2 * truth)
