"""A two-sided interval for mu where scores are normal with one spread in both worlds.

The bounds of `estimate` count errors: with few runs they lie far below the truth however clear the scores
are. Crafted gradients in an over-parameterised model have normal scores, and then the distance of the two
means, in standard deviations, is mu itself: its noncentral t interval says in 20 runs what counting says
in thousands. It is no bound for scores of another shape.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.statistics import conversions, estimate
from audit.statistics.canaries import Design
from audit.statistics.intervals import Interval

Array = NDArray[np.float64]


def mu_interval(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> Interval:
    """The exact interval of the standardised distance of means, cut at 0; [0, inf) for a run a world.

    The pooled t statistic is noncentral t with n - 2 degrees of freedom and noncentrality
    mu / sqrt(1 / n_in + 1 / n_out). Raises InputError for a bad confidence and for scores that
    `estimate.check_finite_scores` refuses.
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
    ends = np.array([_noncentrality(statistic, freedom, level) for level in (1 - error, error)])
    low, high = np.maximum(ends * scale, 0.0)
    return Interval(low, high)


def mu_interval_of_runs(design: Design, confidence: float) -> Interval:
    """The interval of the standardised distance of means for several canaries a run, cut at 0; [0, inf) for
    fewer than two runs of a kind.

    Canaries of a run need not be independent: each set of runs is jackknifed, a run left out at a time, and
    Student's quantile has one degree of freedom less than there are runs in the smaller set. It holds for
    many runs, of any shape of scores; that the distance is mu is true of normal ones of one spread.
    """
    conversions.require_confidence(confidence)
    groups, middle = design.by_run(), np.concatenate(design.pooled()).mean()
    fewest = min(len(group.scores) for group in groups)
    sums = [_sums(group.scores - middle, group.presence) for group in groups]
    total = np.sum([group.sum(0) for group in sums], axis=0)
    if fewest < 2 or not np.isfinite(distance := float(_distance(total))):
        return Interval(np.array(0.0), np.array(np.inf))
    variance = sum(_jackknifed(total - group) for group in sums)
    reach = special.stdtrit(fewest - 1, (1 + confidence) / 2) * np.sqrt(variance)
    return Interval(np.maximum(distance - reach, 0.0), np.maximum(distance + reach, 0.0))


def _sums(scores: Array, presence: NDArray[np.bool_]) -> Array:
    """Each run's counts, sums and sums of squares of its scores in and out (R, 6)."""
    worlds = [(presence, np.where(presence, scores, 0.0)), (~presence, np.where(presence, 0.0, scores))]
    return np.stack([f for bits, s in worlds for f in (bits.sum(1), s.sum(1), (s**2).sum(1))], axis=1)


def _distance(sums: Array) -> Array:
    """The distance of means in pooled standard deviations, of sums (..., 6)."""
    n_in, in_, in_squares, n_out, out, out_squares = np.moveaxis(sums, -1, 0)
    with np.errstate(all="ignore"):
        squares = in_squares - in_**2 / n_in + out_squares - out**2 / n_out
        found: Array = (in_ / n_in - out / n_out) / np.sqrt(squares / (n_in + n_out - 2))
    return found


def _jackknifed(left: Array) -> float:
    """The jackknife variance of the distance, from the sums (R, 6) with a run left out each."""
    distances, runs = _distance(left), len(left)
    return float(np.var(distances) * (runs - 1))


def _noncentrality(statistic: float, freedom: int, level: float) -> float:
    def excess(noncentrality: float) -> float:
        reached = special.nctdtr(freedom, noncentrality, statistic)
        if np.isnan(reached):  # SciPy's answer far out in a tail
            reached = float(noncentrality < statistic)
        return float(reached - level)

    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(scipy.optimize.brentq(excess, statistic - width, statistic + width))
