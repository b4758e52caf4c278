"""A two-sided interval for mu where scores are normal with the same spread in both worlds.

The bounds of `estimate` count errors: with few runs they lie far below the truth however clear the scores
are. Crafted gradients in an over-parameterised model have normal scores, and then the distance of the two
means, in standard deviations, is mu itself: its noncentral t interval is as narrow after 20 runs as what
counting gives after thousands. It is no bound for scores of another shape.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.evidence.canaries import Design
from audit.laws import conversions
from audit.laws.intervals import Interval
from audit.methods import estimate

Array = NDArray[np.float64]


def mu_interval(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> Interval:
    """Returns the exact interval of the standardised distance of means, cut at 0.

    The pooled t statistic is noncentral t with n - 2 degrees of freedom and noncentrality
    mu / sqrt(1 / n_in + 1 / n_out). With a single run for each world the interval is [0, inf).

    Raises:
      InputError: A bad confidence, or scores that `estimate.check_finite_scores` refuses.
    """
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_finite_scores(scores_in, scores_out)
    freedom = len(s_in) + len(s_out) - 2
    squares = len(s_in) * np.var(s_in) + len(s_out) * np.var(s_out)
    if freedom == 0 or squares == 0:
        return Interval(np.array(0.0), np.array(np.inf))
    scale = np.sqrt(1 / len(s_in) + 1 / len(s_out))
    statistic = (s_in.mean() - s_out.mean()) / np.sqrt(squares / freedom) / scale
    error = (1 - confidence) / 2
    low = _find_noncentrality(statistic, freedom, 1 - error)
    high = _find_noncentrality(statistic, freedom, error)
    return Interval(np.maximum(low * scale, 0.0), np.maximum(high * scale, 0.0))


def mu_interval_of_runs(design: Design, confidence: float) -> Interval:
    """Returns the interval of the standardised distance of means for several canaries per run, cut at 0.

    Canaries of a run need not be independent: each set of runs is jackknifed, by leaving out a run at a time,
    and Student's quantile has as many degrees of freedom as there are runs in the smaller set, minus 1. It
    holds for many runs, for any shape of scores; that the distance is mu holds for normal scores of the same
    spread. With fewer than two runs of a kind the interval is [0, inf).
    """
    conversions.require_confidence(confidence)
    groups = design.by_run()
    runs = min(len(group.scores) for group in groups)
    # Sums of squares about it lose no digits; the distance is the same about any.
    centre = np.concatenate(design.pooled()).mean()
    sums = [_sum_by_run(group.scores - centre, group.presence) for group in groups]
    total = np.sum([group.sum(0) for group in sums], axis=0)
    distance = float(_compute_distance(total))
    if runs < 2 or not np.isfinite(distance):
        return Interval(np.array(0.0), np.array(np.inf))
    variance = sum(_compute_jackknife_variance(total - group) for group in sums)
    reach = special.stdtrit(runs - 1, (1 + confidence) / 2) * np.sqrt(variance)
    return Interval(np.maximum(distance - reach, 0.0), np.maximum(distance + reach, 0.0))


def _sum_by_run(scores: Array, presence: NDArray[np.bool_]) -> Array:
    """Returns each run's counts, sums and sums of squares of its scores in, then of those out (R, 6)."""
    columns = []
    for is_counted in (presence, ~presence):
        counted = np.where(is_counted, scores, 0.0)
        columns += [is_counted.sum(1), counted.sum(1), (counted**2).sum(1)]
    return np.stack(columns, axis=1)


def _compute_distance(sums: Array) -> Array:
    """Returns the distance of means in pooled standard deviations, from sums (..., 6)."""
    n_in, sum_in, squares_in, n_out, sum_out, squares_out = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):
        squares = squares_in - sum_in**2 / n_in + squares_out - sum_out**2 / n_out
        deviation = np.sqrt(squares / (n_in + n_out - 2))
        distance: Array = (sum_in / n_in - sum_out / n_out) / deviation
    return distance


def _compute_jackknife_variance(sums_without: Array) -> float:
    """Returns the jackknife variance of the distance, from sums (R, 6) of which each leaves out a run."""
    distances = _compute_distance(sums_without)
    return float(np.var(distances) * (len(sums_without) - 1))


def _find_noncentrality(statistic: float, freedom: int, level: float) -> float:
    """Returns the noncentrality at which the t statistic has the level as its distribution function."""

    def compute_excess(noncentrality: float) -> float:
        probability = special.nctdtr(freedom, noncentrality, statistic)
        if np.isnan(probability):  # what SciPy returns far out in a tail
            probability = float(noncentrality < statistic)
        return float(probability - level)

    # About ten standard deviations of the statistic, or more, either way of it.
    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(scipy.optimize.brentq(compute_excess, statistic - width, statistic + width))
