"""The limits hold together as often as they say, each rank misses alike, and many draws cost little."""

from fractions import Fraction
from math import factorial

import numpy as np
import pytest
from scipy import stats

from audit.statistics import curves

SIMULATIONS = 20_000


def every(trials):
    return np.arange(1, trials + 1)


def steck(low, high):
    """P(low_i <= U_(i) <= high_i for all i) as a determinant of fractions (Steck, 1971)."""
    size = len(low)
    low, high = [Fraction(float(x)) for x in low], [Fraction(float(x)) for x in high]

    def entry(i, n):
        return max(high[i] - low[i + n - 1], Fraction(0)) ** n / factorial(n) if n >= 0 else Fraction(0)

    rows = [[entry(i, j - i + 1) for j in range(size)] for i in range(size)]
    determinant = Fraction(factorial(size))
    for i in range(size):
        determinant *= rows[i][i]
        for k in range(i + 1, size):
            ratio = rows[k][i] / rows[i][i]
            rows[k] = [one - ratio * other for one, other in zip(rows[k], rows[i], strict=True)]
    return float(determinant)


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
@pytest.mark.parametrize("local", [1e-4, 0.01, 0.3])
def test_coverage_is_that_of_a_determinant(trials, local):
    low = stats.beta.ppf(local / 2, every(trials), trials + 1 - every(trials))
    covered = curves.coverage(trials, every(trials), local)
    assert covered == pytest.approx(steck(low, 1 - low[::-1]), abs=1e-12)


@pytest.mark.parametrize("convolution", [1, 10**9], ids=["fft", "direct"])
def test_either_convolution_gives_the_coverage(convolution, monkeypatch):
    found = curves.coverage(400, every(400), 0.001)
    monkeypatch.setattr(curves, "_DIRECT", convolution)
    assert curves.coverage(400, every(400), 0.001) == pytest.approx(found, abs=1e-12)


def share_missed(trials, found):
    rng, missed = np.random.default_rng(trials), 0
    for _ in range(SIMULATIONS // 1000):
        drawn = np.sort(rng.random((1000, trials)), axis=1)[:, found.ranks - 1]
        missed += np.count_nonzero(np.any((drawn < found.lower) | (drawn > found.upper), axis=1))
    return missed / SIMULATIONS


@pytest.mark.parametrize(("trials", "error"), [(3, 0.5), (40, 0.05), (700, 0.025)])
def test_limits_hold_together_as_often_as_they_say(trials, error):
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], SIMULATIONS, error) / SIMULATIONS
    assert low <= share_missed(trials, curves.limits(trials, error)) <= high


def test_limits_of_a_wrong_level_are_seen_and_tails_are_as_precise_as_the_centre():
    wide, narrow = (curves.limits(40, error) for error in (0.035, 0.07))
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], SIMULATIONS, 0.05) / SIMULATIONS
    assert share_missed(40, wide) < low and share_missed(40, narrow) > high
    # A band of one width is 0.03 wide everywhere at 5,000 draws; rates of 1e-3 need far less.
    found = curves.limits(5000, 0.05)
    tail = found.at(5)
    assert tail.upper - tail.lower < 0.005
    centre = found.at(2500)
    assert 0.03 < centre.upper - centre.lower < 0.06


@pytest.mark.parametrize("trials", [1, 30, 5000])
def test_each_rank_misses_alike_on_either_side(trials):
    found = curves.limits(trials, 0.05)
    level = curves.local_level(trials, found.ranks, 0.05) / 2
    law = stats.beta(found.ranks, trials + 1 - found.ranks)
    np.testing.assert_allclose(law.cdf(found.lower), level, rtol=1e-6)
    np.testing.assert_allclose(law.sf(found.upper), level, rtol=1e-6)


@pytest.mark.parametrize("trials", [1, 2, 50, 2500])
@pytest.mark.parametrize("error", [5e-17, 1e-12, 1e-8, 1e-4, 0.025, 0.5, 0.9, 1 - 1e-12, 1.0])
def test_any_error_has_a_level(trials, error):
    ranks = curves.limits(trials, error).ranks
    level = curves.local_level(trials, ranks, error)
    assert error / len(ranks) * 0.99 <= level <= error * (1 + 1e-5)
    missed = 1 - curves.coverage(trials, ranks, level)
    if 1e-8 <= error <= 0.99:
        assert missed == pytest.approx(error, rel=1e-4)
    else:
        assert missed <= error + 1e-10


def test_counts_between_the_ranks_are_enclosed_and_little_is_lost():
    trials, error = 1000, 0.025
    found, counts = curves.limits(trials, error), np.arange(1001)
    low, high = found.at(counts)
    assert len(found.ranks) < trials and np.all(np.diff(low) >= 0) and np.all(np.diff(high) >= 0)
    assert np.all((low <= counts / trials) & (counts / trials <= high)) and low[0] == 0 and high[-1] == 1
    level = curves.local_level(trials, every(trials), error)
    best = stats.beta.ppf(level / 2, counts[1:], trials + 1 - counts[1:])
    assert np.max((best - low[1:]) / (np.sqrt(counts[1:] * (1 - counts[1:] / (trials + 1))) / trials)) < 0.6
    np.testing.assert_allclose(high, 1 - low[::-1])


def test_many_draws_are_looked_at_in_few_places_and_once(monkeypatch):
    calls = []
    coverage = curves.coverage
    monkeypatch.setattr(curves, "coverage", lambda *args: calls.append(args) or coverage(*args))
    for trials in (10**4, 10**6):
        calls.clear()
        found = curves.limits(trials, 0.0301)
        assert len(found.ranks) <= 300 and 3 <= len(calls) <= 10
        assert found.ranks[0] == 1 and found.ranks[-1] == trials
        assert curves.limits(trials, 0.0301) is found and len(calls) <= 10
    with pytest.raises(ValueError, match="read-only"):
        found.lower[0] = 0
