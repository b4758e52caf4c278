"""A two-sided interval for mu where scores are normal with one spread in both worlds.

The bounds of `estimate` count errors: with few runs they lie far below the truth however clear the scores
are. Crafted gradients in an over-parameterised model have normal scores, and then the distance of the two
means, in standard deviations, is mu itself: its noncentral t interval says in 20 runs what counting says
in thousands. It is no bound for scores of another shape.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from audit.statistics import conversions, estimate
from audit.statistics.intervals import Interval


def mu_interval(scores_in: ArrayLike, scores_out: ArrayLike, confidence: float) -> Interval:
    """The exact interval of the standardised distance of means, cut at 0; [0, inf) for a run a world.

    The pooled t statistic is noncentral t with n - 2 degrees of freedom and noncentrality
    mu / sqrt(1 / n_in + 1 / n_out). Raises InputError for a bad confidence and for scores that
    `estimate.check_scores` refuses.
    """
    conversions.require_confidence(confidence)
    s_in, s_out = estimate.check_scores(scores_in, scores_out)
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


def _noncentrality(statistic: float, freedom: int, level: float) -> float:
    """The noncentrality at which a t statistic lies at a level of its distribution."""

    def excess(noncentrality: float) -> float:
        reached = special.nctdtr(freedom, noncentrality, statistic)
        if np.isnan(reached):  # SciPy's answer far out in a tail
            reached = float(noncentrality < statistic)
        return float(reached - level)

    width = 10 + 10 * abs(statistic) / np.sqrt(2 * freedom)
    return float(optimize.brentq(excess, statistic - width, statistic + width))
