"""Confidence limits for a binomial rate, and searches for the end of a condition on a parameter.

Clopper-Pearson limits are exact: they cover at least at their confidence for any rate. No bound uses
Jeffreys' or Wilson's, which cover on average over rates.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Two-sided limits of rates, (lower, upper), arrays of the counts' shape."""

    lower: Array
    upper: Array


def clopper_pearson_upper(
    count: ArrayLike, trials: int | NDArray[np.int64], error: float, prior: float = 1.0
) -> Array:
    """Returns one-sided upper limits of a binomial success probability, by Clopper and Pearson (1934).

    They are quantiles of Beta(count + prior, trials - count + 1 - prior), or 1 if the second parameter is not
    positive.

    Args:
      count: The number of successes, any shape. The limits have the same shape.
      trials: The number of trials, or one for each count.
      error: The largest probability that the success probability exceeds its limit.
      prior: 1; with 1/2 the limits are Jeffreys', which cover only on average over success probabilities.
    """
    k = np.asarray(count, np.float64)
    second_parameter = trials - k + (1 - prior)
    defined = np.maximum(second_parameter, 0.5)  # any positive number avoids a NaN
    quantiles = special.betaincinv(k + prior, defined, 1 - error)
    return np.where(second_parameter > 0, quantiles, 1.0)


def clopper_pearson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Returns two-sided limits of a binomial success probability, by Clopper and Pearson (1934).

    Each misses with probability at most (1 - confidence) / 2. They have the shape of `count`.
    """
    k = np.asarray(count, np.float64)
    error = (1 - confidence) / 2
    lower = 1 - clopper_pearson_upper(trials - k, trials, error)
    upper = clopper_pearson_upper(k, trials, error)
    return Interval(lower, upper)


def find_bracket(holds: Callable[[float], bool], first: float) -> tuple[float, float]:
    """Returns an interval with the end of a condition on a parameter of at least 0, by doubling.

    Args:
      holds: Whether the condition is true at a parameter. It is true at 0, and must be false at every large
        enough parameter, or the search does not end.
      first: The first parameter to try, above 0.

    Returns:
      (the last parameter with a true condition, or 0; the first with a false one)
    """
    low = 0.0
    high = first
    while holds(high):
        low = high
        high = 2 * high
    return low, high


def find_largest_refuted(is_refuted: Callable[[float], bool], first: float, halvings: int) -> float:
    """Returns the largest parameter that data refute, rounded down to a refuted value; 0 without any.

    Args:
      is_refuted: Whether the data refute a parameter; if so, they refute all smaller parameters too.
      first: The first parameter to try, above 0; it is doubled until it is not refuted.
      halvings: The number of bisections after that.
    """
    if not is_refuted(0.0):
        return 0.0
    low, _ = bisect(is_refuted, *find_bracket(is_refuted, first), halvings)
    return float(low)


def bisect(
    holds: Callable[[Any], Any], low: Array | float, high: Array | float, halvings: int
) -> tuple[Array, Array]:
    """Returns intervals (low, high) with the ends of conditions, after halvings of longer ones.

    Args:
      holds: Whether each condition is true at its parameter, for parameters in the shape of `low`.
      low: Parameters with a true condition, of any shape.
      high: Larger parameters, with a false one.
      halvings: The number of bisections.
    """
    lows = np.asarray(low, np.float64)
    highs = np.asarray(high, np.float64)
    for _ in range(halvings):
        middles = (lows + highs) / 2
        is_true = holds(middles)
        lows = np.where(is_true, middles, lows)
        highs = np.where(is_true, highs, middles)
    return lows, highs
