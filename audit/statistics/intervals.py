"""Confidence limits for a binomial rate.

Clopper-Pearson is exact: it covers at least as often as it says, whatever the rate. Jeffreys and
Wilson cover on average over rates, not at every one; no estimator that is called a confidence bound
uses them.
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
    k = np.asarray(count, np.float64)
    error = (1 - confidence) / 2
    return Interval(
        1 - clopper_pearson_upper(trials - k, trials, error), clopper_pearson_upper(k, trials, error)
    )


def jeffreys(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Quantiles of the posterior under Beta(1/2, 1/2), with the limits 0 and 1 at the extreme counts."""
    k = np.asarray(count, np.float64)
    error = (1 - confidence) / 2
    lower = special.betaincinv(k + 0.5, trials - k + 0.5, error)
    upper = special.betaincinv(k + 0.5, trials - k + 0.5, 1 - error)
    return Interval(np.where(k == 0, 0.0, lower), np.where(k == trials, 1.0, upper))


def wilson(count: ArrayLike, trials: int, confidence: float) -> Interval:
    """Wilson's score interval (1927): the rates that a two-sided normal test does not reject."""
    k = np.asarray(count, np.float64)
    z = special.ndtri((1 + confidence) / 2)
    centre = (k + z * z / 2) / (trials + z * z)
    half = z / (trials + z * z) * np.sqrt(k * (trials - k) / trials + z * z / 4)
    return Interval(np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0))


@functools.lru_cache(maxsize=64)
def upper_limits(trials: int, error: float) -> Array:
    """clopper_pearson_upper of every count 0..trials, kept: thousands of thresholds share the table."""
    limits = clopper_pearson_upper(np.arange(trials + 1), trials, error)
    limits.setflags(write=False)
    return limits
