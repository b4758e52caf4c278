"""Computes two-sided intervals for mu from scores that are normal with equal standard deviations.

For crafted gradients in an over-parameterized model, the scores with and without the canary (the two worlds)
are normal. Then mu is the distance between both worlds' means in standard deviations. After 20 runs, the
noncentral t interval for mu is as narrow as an interval from counted errors after thousands of runs.
"""

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.evidence.canaries import Coins, Design
from audit.laws.intervals import Interval

Array = NDArray[np.float64]
_UNKNOWN = Interval(np.array(0.0), np.array(np.inf))  # for scores without information about mu


def mu_interval(scores_in: Array, scores_out: Array, confidence: float) -> Interval:
    """Returns the interval for mu from runs with one canary each; its ends are at least 0.

    It is exact if scores are normal with the same standard deviation. Then the pooled t statistic of
    n = n_in + n_out scores has the noncentral t distribution with n - 2 degrees of freedom and the
    noncentrality mu / sqrt(1 / n_in + 1 / n_out). The interval contains each mu that leaves probability above
    (1 - confidence) / 2 on both sides of the statistic. It is [0, inf) if each world has a single score or
    only equal scores.

    Args:
      scores_in: The scores of the runs with the canary, of shape (n_in,); must be finite.
      scores_out: The scores of the runs without it, of shape (n_out,); must be finite.
      confidence: The probability that the interval contains mu.
    """
    freedom = len(scores_in) + len(scores_out) - 2
    # The sum of the squared deviations of all scores from their world's mean.
    squares = len(scores_in) * np.var(scores_in) + len(scores_out) * np.var(scores_out)
    if freedom == 0 or squares == 0:
        return _UNKNOWN
    # mu is the noncentrality times this scale.
    scale = np.sqrt(1 / len(scores_in) + 1 / len(scores_out))
    pooled_deviation = np.sqrt(squares / freedom)
    statistic = (scores_in.mean() - scores_out.mean()) / pooled_deviation / scale
    error = (1 - confidence) / 2  # at each end
    # P(noncentral t <= statistic) decreases with the noncentrality, so the high level gives the low end.
    low = _find_noncentrality(statistic, freedom, 1 - error)
    high = _find_noncentrality(statistic, freedom, error)
    return Interval(*np.maximum([low * scale, high * scale], 0.0))


def mu_interval_of_runs(design: Design, confidence: float) -> Interval:
    """Returns the interval for mu from runs with several canaries each; its ends are at least 0.

    The interval covers the distance between both worlds' mean scores in pooled standard deviations. For
    normal scores with equal standard deviations, this distance is mu. The interval is asymptotic in the
    number of runs, for scores with any distribution. The canaries of a run may be dependent, since we
    estimate the standard error by a jackknife over whole runs. The interval is the distance plus or minus
    this error times a quantile of Student's t with R - 1 degrees of freedom.

    If each canary is inserted by a coin flip, all R runs form one set. Otherwise, runs with all canaries and
    runs without canaries form two sets, and R is the size of the smaller set. The interval is [0, inf) if a
    set has fewer than two runs or the distance is undefined.
    """
    if isinstance(design, Coins):
        sets_of_runs = [(design.scores, design.presence)]
    else:
        all_in = np.ones(design.inserted.shape, bool)
        all_out = np.zeros(design.fresh.shape, bool)
        sets_of_runs = [(design.inserted, all_in), (design.fresh, all_out)]
    # Centering reduces rounding errors in sums of squares and does not change the distance.
    center = np.concatenate(design.pooled()).mean()
    all_sums = [_sum_by_run(scores - center, presence) for scores, presence in sets_of_runs]
    fewest_runs = min(map(len, all_sums))
    total = np.concatenate(all_sums).sum(0)  # (6,), over all runs of all sets
    distance = float(_compute_distance(total))
    if fewest_runs < 2 or not np.isfinite(distance):
        return _UNKNOWN
    variance = 0.0
    for sums in all_sums:
        # Each row of `total - sums` leaves out one run. A set's jackknife variance is its number of runs
        # minus 1, times the variance of these distances. The sets' variances add up.
        distances = _compute_distance(total - sums)
        variance += (len(sums) - 1) * float(np.var(distances))
    quantile = special.stdtrit(fewest_runs - 1, (1 + confidence) / 2)
    reach = quantile * np.sqrt(variance)
    return Interval(*np.maximum([distance - reach, distance + reach], 0.0))


def _sum_by_run(scores: Array, presence: NDArray[np.bool_]) -> Array:
    """Returns six sums for each of R runs, of shape (R, 6), from scores and presence of shape (R, K).

    The first three are the count, the sum and the sum of squares of the inserted canaries' scores. The last
    three are the same for the other canaries.
    """
    columns = []
    for is_counted in (presence, ~presence):
        counted = np.where(is_counted, scores, 0.0)
        columns += [is_counted.sum(1), counted.sum(1), (counted**2).sum(1)]
    return np.stack(columns, axis=1)


def _compute_distance(sums: Array) -> Array:
    """Returns the distances (...) between both worlds' mean scores in pooled standard deviations.

    `sums` (..., 6) has the six sums of `_sum_by_run`, added up over some runs. A distance is not finite if a
    world has no scores or all scores are equal.
    """
    n_in, sum_in, squares_in, n_out, sum_out, squares_out = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):  # divisions by 0
        squares = squares_in - sum_in**2 / n_in + squares_out - sum_out**2 / n_out
        deviation = np.sqrt(squares / (n_in + n_out - 2))
        distance: Array = (sum_in / n_in - sum_out / n_out) / deviation
    return distance


def _find_noncentrality(statistic: float, freedom: int, level: float) -> float:
    """Solves P(noncentral t <= statistic) = level for the noncentrality.

    `freedom` is the number of degrees of freedom. We search for the root, because the results of SciPy's
    nctdtrinc have only three to seven correct digits.
    """

    def compute_excess(noncentrality: float) -> float:
        """Returns P(noncentral t <= statistic) - level, which decreases with the noncentrality."""
        probability = special.nctdtr(freedom, noncentrality, statistic)
        # SciPy returns NaN far in a tail. There the probability is 1 or 0.
        if np.isnan(probability):
            probability = float(noncentrality < statistic)
        return float(probability - level)

    # A noncentral t near the statistic has a standard deviation of about
    # sqrt(1 + statistic^2 / (2 freedom)). The search extends at least ten of these to each side.
    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(scipy.optimize.brentq(compute_excess, statistic - width, statistic + width))
