"""Confidence limits for a binomial rate.

Clopper-Pearson is exact: it covers at least as often as it claims, whatever the rate. No bound uses Jeffreys'
or Wilson's, which cover on average over rates.
"""

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
