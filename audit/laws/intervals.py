"""Confidence limits for a binomial rate, and searches for a parameter at which a condition becomes false."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Two-sided confidence limits for rates, as arrays with the shape of the counts."""

    lower: Array
    upper: Array


def clopper_pearson_upper(
    count: ArrayLike, trials: int | NDArray[np.int64], error: float, prior: float = 1.0
) -> Array:
    """Returns one-sided upper limits for a binomial success probability (Clopper and Pearson, 1934).

    The limits are quantiles of Beta(count + prior, trials - count + 1 - prior), or 1 if the second parameter
    is not positive.

    Args:
      count: The numbers of successes, any shape. The limits have the same shape.
      trials: The number of trials: one for all counts, or one for each count.
      error: The maximum probability that a limit is below the success probability.
      prior: 1, or 1/2 for Jeffreys limits, which are valid only on average over rates.
    """
    k = np.asarray(count, float)
    second_parameter = trials - k + (1 - prior)
    positive = np.maximum(second_parameter, 0.5)  # avoids NaN in results that become 1 below
    quantiles = special.betaincinv(k + prior, positive, 1 - error)
    return np.where(second_parameter > 0, quantiles, 1.0)


def clopper_pearson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Returns two-sided limits for a binomial success probability (Clopper and Pearson, 1934).

    Each limit fails with probability at most (1 - confidence) / 2. Limits have the shape of `count`.
    """
    k = np.asarray(count, float)
    error = (1 - confidence) / 2
    lower = 1 - clopper_pearson_upper(trials - k, trials, error)
    upper = clopper_pearson_upper(k, trials, error)
    return Interval(lower, upper)


def find_bracket(holds: Callable[[Any], Any], first: Array | float) -> tuple[Array, Array]:
    """Returns parameter intervals (low, high) in which conditions become false.

    The search doubles each `high` until its condition is false there.

    Args:
      holds: Maps parameters to booleans: whether each condition is true. All conditions must be true at 0 and
        false for large parameters; otherwise the search never ends.
      first: The first parameters to try. They must be positive and broadcastable to the conditions' shape.
    """
    high = np.asarray(first, float)
    low = np.zeros_like(high)
    is_true = holds(high)
    while np.any(is_true):
        low = np.where(is_true, high, low)
        high = np.where(is_true, 2 * high, high)
        is_true = holds(high)
    return low, high


def find_largest_refuted(is_refuted: Callable[[float], bool], first: float, halvings: int) -> float:
    """Returns the largest refuted parameter, to within the precision of the search; 0 if 0 is not refuted.

    The result is never too large.

    Args:
      is_refuted: Returns True if the data refute a parameter, in which case they must also refute all smaller
        parameters.
      first: The first parameter to try, which must be positive. We double it until it is no longer refuted.
      halvings: The number of bisections after doubling.
    """
    if not is_refuted(0.0):
        return 0.0
    low, _ = bisect(is_refuted, *find_bracket(is_refuted, first), halvings)
    return float(low)


def bisect(
    holds: Callable[[Any], Any], low: Array | float, high: Array | float, halvings: int
) -> tuple[Array, Array]:
    """Returns shorter parameter intervals (low, high) in which conditions become false.

    Each condition is true at `low` and false at a larger `high`. Both limits broadcast to the shape of the
    conditions. We halve each interval `halvings` times. `find_bracket` describes `holds`.
    """
    lows = np.asarray(low, float)
    highs = np.asarray(high, float)
    for _ in range(halvings):
        middles = (lows + highs) / 2
        is_true = holds(middles)
        lows = np.where(is_true, middles, lows)
        highs = np.where(is_true, highs, middles)
    return lows, highs
