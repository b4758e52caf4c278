"""Computes two-sided intervals for mu from scores that are normal with equal standard deviations.

The two worlds are runs with and without the canary. mu is the distance between their means, in standard
deviations.
"""

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from audit.evidence.canaries import Design
from audit.laws.intervals import Interval

Array = NDArray[np.float64]
_UNKNOWN = Interval(np.array(0.0), np.array(np.inf))  # for scores without information about mu


def mu_interval(scores_in: Array, scores_out: Array, confidence: float) -> Interval:
    """Returns the interval for mu from runs with one canary each; its ends are at least 0.

    The interval is exact if scores are normal with equal standard deviations. In this case, the pooled t
    statistic of n = n_in + n_out scores has the noncentral t distribution with n - 2 degrees of freedom and
    the noncentrality mu / sqrt(1 / n_in + 1 / n_out). The interval contains every mu for which the
    probability on each side of the statistic exceeds (1 - confidence) / 2. The result is [0, inf) if neither
    world's scores vary.

    Args:
      scores_in, scores_out: The finite scores of runs with the canary, (n_in,), and without it, (n_out,).
      confidence: The probability that the interval contains mu.
    """
    freedom = len(scores_in) + len(scores_out) - 2
    distance = _measure_distance(scores_in, scores_out)
    if freedom == 0 or not np.isfinite(distance):
        return _UNKNOWN  # [0, inf)
    # mu = noncentrality * scale
    scale = np.sqrt(1 / len(scores_in) + 1 / len(scores_out))
    statistic = distance / scale
    error = (1 - confidence) / 2  # at each end
    # The high level gives the low end, because P(noncentral t <= statistic) decreases with the noncentrality.
    low = _find_noncentrality(statistic, freedom, 1 - error)
    high = _find_noncentrality(statistic, freedom, error)
    return Interval(*np.maximum([low * scale, high * scale], 0.0))


def mu_interval_of_runs(design: Design, confidence: float) -> Interval:
    """Returns the interval for mu from runs with several canaries each; its ends are at least 0.

    The interval is asymptotically valid as the number of runs grows, if scores are normal with equal standard
    deviations. It allows for dependent canaries in a run, because the standard error comes from a jackknife
    over whole runs. The interval is the distance between the worlds' means plus or minus the standard error
    times a quantile of Student's t with R - 1 degrees of freedom.

    If canaries are inserted by coin flips, all R runs form one set. Otherwise, runs with and without canaries
    form two sets, and R is the size of the smaller set. The interval is [0, inf) if a set has fewer than two
    runs or the distance is undefined.
    """
    distance = _measure_distance(*design.pooled())
    runs_of_sets = [len(table.scores) for table in design.rows()]
    if min(runs_of_sets) < 2 or not np.isfinite(distance):
        return _UNKNOWN  # [0, inf)
    variance = 0.0
    for i, runs in enumerate(runs_of_sets):
        distances = []  # each leaves out a run of set i
        for left_out in range(runs):
            kept = list(map(np.arange, runs_of_sets))
            kept[i] = np.delete(kept[i], left_out)
            without_run = design.select(*kept)
            distances.append(_measure_distance(*without_run.pooled()))
        # A set's jackknife variance is its number of runs minus 1, times the variance of these distances. The
        # variances of the sets add up.
        variance += (runs - 1) * float(np.var(distances))
    quantile = special.stdtrit(min(runs_of_sets) - 1, (1 + confidence) / 2)
    reach = quantile * np.sqrt(variance)
    return Interval(*np.maximum([distance - reach, distance + reach], 0.0))


def _measure_distance(scores_in: Array, scores_out: Array) -> float:
    """Returns the distance between the means of two arrays of scores, in pooled standard deviations.

    It is not finite if an array is empty, or if neither array's scores vary.
    """
    # The sum of the scores' squared deviations from their array's mean.
    squares = len(scores_in) * np.var(scores_in) + len(scores_out) * np.var(scores_out)
    with np.errstate(all="ignore"):  # divisions by 0
        deviation = np.sqrt(squares / (len(scores_in) + len(scores_out) - 2))
        return float((np.mean(scores_in) - np.mean(scores_out)) / deviation)


def _find_noncentrality(statistic: float, freedom: int, level: float) -> float:
    """Solves P(noncentral t <= statistic) = level for the noncentrality.

    `freedom` is the number of degrees of freedom. A root search replaces SciPy's nctdtrinc, which is
    correct to only three to seven digits.
    """

    def compute_excess(noncentrality: float) -> float:
        """Returns P(noncentral t <= statistic) - level, which decreases with the noncentrality."""
        probability = special.nctdtr(freedom, noncentrality, statistic)
        # Far in a tail, SciPy returns NaN instead of 1 or 0.
        if np.isnan(probability):
            probability = float(noncentrality < statistic)
        return float(probability - level)

    # A noncentral t near the statistic has a standard deviation of about sqrt(1 + statistic^2 / (2 freedom)).
    # The search extends at least ten standard deviations to each side.
    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(scipy.optimize.brentq(compute_excess, statistic - width, statistic + width))
