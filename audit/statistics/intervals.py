"""Confidence limits for a binomial rate.

Clopper-Pearson is exact: it covers at least as often as it says, whatever the rate. Jeffreys' and Wilson's,
which cover on average over rates, are in no bound.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Two-sided limits of a rate, each an array of the counts' shape."""

    lower: Array
    upper: Array


def clopper_pearson_upper(count: ArrayLike, trials: int, error: float) -> Array:
    """The exact upper limit that a rate exceeds with probability at most `error` (one-sided)."""
    k = np.asarray(count, np.float64)
    return np.where(k >= trials, 1.0, special.betaincinv(k + 1, np.maximum(trials - k, 0.5), 1 - error))


def clopper_pearson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Clopper and Pearson (1934): each side misses with probability at most (1 - confidence) / 2."""
    k, error = np.asarray(count, np.float64), (1 - confidence) / 2
    lower = 1 - clopper_pearson_upper(trials - k, trials, error)
    return Interval(lower, clopper_pearson_upper(k, trials, error))


@functools.lru_cache(maxsize=64)
def upper_limits(trials: int, error: float) -> Array:
    """clopper_pearson_upper of every count 0..trials, kept: thousands of thresholds share the table."""
    limits = clopper_pearson_upper(np.arange(trials + 1), trials, error)
    limits.setflags(write=False)
    return limits
