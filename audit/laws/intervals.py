"""Confidence limits for a binomial rate, and searches for where a condition on a parameter stops to hold.

Clopper-Pearson is exact: it covers at least as often as it claims, whatever the rate. No bound uses Jeffreys'
or Wilson's, which cover on average over rates.
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
      count: The number of successes, any shape, which is that of the limits.
      trials: The number of trials, or one for each count.
      error: The probability, at most, with which the success probability exceeds its limit.
    """
    k = np.asarray(count, np.float64)
    # With no failures the limit is 1. The quantile is undefined then: any positive number avoids a NaN.
    failures = np.maximum(trials - k, 0.5)
    return np.where(k >= trials, 1.0, special.betaincinv(k + 1, failures, 1 - error))


def clopper_pearson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Returns two-sided limits of a binomial success probability, by Clopper and Pearson (1934).

    Args:
      count: The number of successes, any shape, which is that of the limits.
      trials: The number of trials.
      confidence: The confidence of both limits together; each misses with probability at most
        (1 - confidence) / 2.
    """
    k = np.asarray(count, np.float64)
    error = (1 - confidence) / 2
    lower = 1 - clopper_pearson_upper(trials - k, trials, error)
    upper = clopper_pearson_upper(k, trials, error)
    return Interval(lower, upper)


class Bracket(NamedTuple):
    """The ends of an interval in which a condition ceases to hold: it holds at `low` and not at `high`."""

    low: float
    high: float


def find_bracket(holds: Callable[[float], bool], low: float, first: float) -> Bracket:
    """Returns an interval in which a condition on a parameter ceases to hold, by doubling.

    Args:
      holds: Whether the condition holds at a parameter. It must fail at every large enough parameter, or the
        search does not end.
      low: A parameter at which it holds.
      first: The first parameter that is tried, above 0; it is doubled until the condition fails.

    Returns:
      The last parameter at which the condition holds, or the given `low`, and the first at which it fails.
    """
    high = first
    while holds(high):
        low = high
        high = 2 * high
    return Bracket(low, high)


def find_largest_refuted(
    is_refuted: Callable[[float], bool], low: float, first: float, halvings: int
) -> float:
    """Returns the largest parameter that data refute, rounded down so that they do refute it.

    Doubling gives an interval from a parameter that is refuted to one that is not; bisection narrows it.

    Args:
      is_refuted: whether the data refute a parameter; where they do, they refute all below it too.
      low: the least parameter, which is returned where not even that is refuted.
      first: the first parameter that is tried, above 0; it is doubled until it is not refuted.
      halvings: how often bisection halves the interval.
    """
    if not is_refuted(low):
        return low
    bracket = find_bracket(is_refuted, low, first)
    return bisect(is_refuted, bracket.low, bracket.high, halvings).low


def bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> Bracket:
    """Returns the interval in which a condition ceases to hold, after halvings of a longer one.

    Args:
      holds: whether the condition holds at a parameter.
      low: a parameter at which it holds.
      high: a larger parameter, at which it does not.
      halvings: how often the interval between them is halved.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return Bracket(low, high)
