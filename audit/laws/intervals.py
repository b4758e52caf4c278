"""Confidence limits for a binomial rate, and searches for the parameter at which a condition ceases.

Clopper-Pearson limits are exact: they cover at least at their confidence for any rate. No bound uses
Jeffreys' or Wilson's, which cover on average over rates.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Two-sided limits of rates.

    Attributes:
      lower: The lower limits, an array of the counts' shape.
      upper: The upper limits, an array of the counts' shape.
    """

    lower: Array
    upper: Array


def clopper_pearson_upper(count: ArrayLike, trials: int | NDArray[np.int64], error: float) -> Array:
    """Returns one-sided upper limits of a binomial success probability, by Clopper and Pearson (1934).

    Args:
      count: The number of successes, any shape. The limits have the same shape.
      trials: The number of trials, or one for each count.
      error: The largest probability that the success probability exceeds its limit.
    """
    k = np.asarray(count, np.float64)
    # Without failures the limit is 1, and any positive number avoids a NaN.
    failures = np.maximum(trials - k, 0.5)
    quantiles = special.betaincinv(k + 1, failures, 1 - error)
    return np.where(k >= trials, 1.0, quantiles)


def clopper_pearson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Returns two-sided limits of a binomial success probability, by Clopper and Pearson (1934).

    Args:
      count: The number of successes, any shape. The limits have the same shape.
      trials: The number of trials.
      confidence: The confidence of both limits together; each misses with probability at most (1 -
        confidence) / 2.
    """
    k = np.asarray(count, np.float64)
    error = (1 - confidence) / 2
    lower = 1 - clopper_pearson_upper(trials - k, trials, error)
    upper = clopper_pearson_upper(k, trials, error)
    return Interval(lower, upper)


class Bracket(NamedTuple):
    """The ends of an interval in which a condition ceases: it is true at `low` and false at `high`."""

    low: float
    high: float


def find_bracket(holds: Callable[[float], bool], low: float, first: float) -> Bracket:
    """Returns an interval in which a condition on a parameter ceases, by doubling.

    Args:
      holds: Whether the condition is true at a parameter. It must be false at every large enough parameter,
        or the search does not end.
      low: A parameter at which it is true.
      first: The first parameter to try, above 0; it is doubled until the condition is false.

    Returns:
      The last parameter at which the condition is true, or the given `low`, and the first at which it is
      false.
    """
    high = first
    while holds(high):
        low = high
        high = 2 * high
    return Bracket(low, high)


def find_largest_refuted(
    is_refuted: Callable[[float], bool], low: float, first: float, halvings: int
) -> float:
    """Returns the largest parameter that data refute, rounded down to a refuted value.

    Doubling gives an interval from a parameter that is refuted to one that is not; bisection narrows it.

    Args:
      is_refuted: whether the data refute a parameter; if so, they refute all smaller parameters too.
      low: the least parameter, which is returned if it is not refuted.
      first: the first parameter to try, above 0; it is doubled until it is not refuted.
      halvings: the number of bisections.
    """
    if not is_refuted(low):
        return low
    bracket = find_bracket(is_refuted, low, first)
    return bisect(is_refuted, bracket.low, bracket.high, halvings).low


def bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> Bracket:
    """Returns the interval in which a condition ceases, after halvings of a longer one.

    Args:
      holds: whether the condition is true at a parameter.
      low: a parameter at which it is true.
      high: a larger parameter, at which it is false.
      halvings: the number of bisections.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)


def bisect_each(
    holds: Callable[[Array], NDArray[np.bool_]], low: Array, high: Array, halvings: int
) -> tuple[Array, Array]:
    """Returns the ends (low, high) of intervals in which conditions cease, after halvings of longer ones.

    Args:
      holds: whether each condition is true at its parameter, for parameters in the shape of `low`.
      low: parameters at which they are true, of any shape.
      high: larger parameters, at which they are false.
      halvings: the number of bisections.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        is_true = holds(middle)
        low = np.where(is_true, middle, low)
        high = np.where(is_true, high, middle)
    return low, high
