"""Limits of a binomial rate: exact coverage by enumeration, and SciPy as the slow reference."""

import numpy as np
import pytest
from scipy import stats

from audit.statistics import intervals

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


def test_clopper_pearson_is_not_vacuous_and_its_table_kept():
    covered = coverage(intervals.clopper_pearson(np.arange(401), 400, 0.95), 400)
    assert covered.min() < 0.955 and covered[50:150].mean() < 0.97
    assert intervals.clopper_pearson_upper(0, 2500, 0.05) == pytest.approx(1 - 0.05 ** (1 / 2500))
    assert intervals.clopper_pearson_upper(2500, 2500, 0.05) == 1.0
    table = intervals.upper_limits(40, 0.025)
    np.testing.assert_array_equal(table, intervals.clopper_pearson_upper(np.arange(41), 40, 0.025))
    assert intervals.upper_limits(40, 0.025) is table
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0.0


@pytest.mark.parametrize("trials", [4, 30])
def test_one_sided_upper_limits_miss_at_most_error(trials):
    upper = intervals.clopper_pearson_upper(np.arange(trials + 1), trials, 0.05)
    one_sided = intervals.Interval(np.zeros(trials + 1), upper)
    missed = 1 - coverage(one_sided, trials)
    assert 0.03 < missed.max() <= 0.05 + 1e-12


@pytest.mark.parametrize("trials", [1, 7, 50, 2500])
def test_scipy_agrees(trials):
    for count in {0, 1, trials // 3, trials - 1, trials}:
        theirs = stats.binomtest(count, trials).proportion_ci(0.9, "exact")
        ours = intervals.clopper_pearson(count, trials, 0.9)
        np.testing.assert_allclose(ours, [theirs.low, theirs.high], rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("trials", [1, 12, 1000])
def test_edge_counts_order_and_mirror_image(trials):
    lower, upper = intervals.clopper_pearson(np.arange(trials + 1), trials, 0.95)
    assert lower[0] == pytest.approx(0, abs=1e-12) and upper[-1] == pytest.approx(1, abs=1e-12)
    assert 0 < upper[0] < 1 and 0 < lower[-1] < 1
    assert np.all(np.diff(lower) > 0) and np.all(np.diff(upper) > 0) and np.all(lower < upper)
    np.testing.assert_allclose(lower, 1 - upper[::-1], atol=1e-9)
