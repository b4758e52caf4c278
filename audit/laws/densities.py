"""The trade-off curve, hockey-stick divergence, epsilon and mu of two densities on a common grid.

We approximate integrals by sums over grid points, times the spacing. If an integrand has a kink, we locate it
by linear interpolation and split its cell there, so the error is proportional to the squared spacing.
"""

from typing import NamedTuple

import numpy as np
import scipy

from audit.errors import require
from audit.laws import conversions
from audit.laws.intervals import Array

_MIN_LOG_ARGUMENT = 1e-300  # avoids the logarithm of 0


class DensityPair(NamedTuple):
    """The densities of an observation without the canary (p) and with it (q).

    Attributes:
      points: (n,) evenly spaced points.
      p: (n,) the density without the canary.
      q: (n,) the density with the canary.
      error: A bound on the probability outside the grid.
    """

    points: Array
    p: Array
    q: Array
    error: float

    @property
    def spacing(self) -> float:
        """Returns the distance between neighbouring points."""
        return (self.points[-1] - self.points[0]) / (len(self.points) - 1)


def hockey_stick(p: Array, q: Array, spacing: float, epsilon: float) -> float:
    """Returns the hockey-stick divergence of q from p, the integral of max(q - e^epsilon p, 0).

    We use the trapezoidal rule, and split cells in which q - e^epsilon p changes sign. The densities p and q
    (n,) are given at evenly spaced points. epsilon may be negative. Source: Balle and Wang, 2018.
    """
    excess = q - np.exp(epsilon) * p
    left = excess[:-1]
    right = excess[1:]
    above = np.maximum(excess, 0)
    heights = (above[:-1] + above[1:]) / 2
    # If the sign changes in a cell, the positive part of the linear interpolant is a triangle with height
    # `top`. Its base is the fraction top / (|left| + |right|) of the cell.
    crossing = (left < 0) != (right < 0)
    top = np.maximum(left[crossing], right[crossing])
    total = np.abs(left[crossing]) + np.abs(right[crossing])
    heights[crossing] = top * top / total / 2
    return float(heights.sum() * spacing)


def delta_at(pair: DensityPair, epsilon: float) -> float:
    """Returns the smallest delta such that the observations in both worlds are (epsilon, delta)-close.

    The result is the larger of the hockey-stick divergences for adding and for removing the canary.
    """
    spacing = pair.spacing
    added = hockey_stick(pair.p, pair.q, spacing, epsilon)
    removed = hockey_stick(pair.q, pair.p, spacing, epsilon)
    return max(added, removed)


def epsilon_at(pair: DensityPair, delta: float) -> float:
    """Returns the smallest epsilon >= 0 such that the observations in both worlds are (epsilon, delta)-close.

    Raises:
      InputError: If delta is out of range or below 1,000 times the grid's error, or epsilon exceeds 512.
    """
    conversions.require_delta(delta)
    # A relative error of 0.1% in delta does not change the displayed digits of epsilon.
    require(
        pair.error <= 1e-3 * delta,
        f"the grid is accurate only to {pair.error:.1g}, got `delta={delta:g}`: use a larger delta",
    )

    def compute_excess(epsilon: float) -> float:
        """Returns log delta(epsilon) - log delta."""
        reached = max(delta_at(pair, epsilon), _MIN_LOG_ARGUMENT)
        return np.log(reached) - np.log(delta)

    if compute_excess(0.0) <= 0:
        return 0.0
    largest = 512.0
    require(
        compute_excess(largest) <= 0,
        f"epsilon at delta {delta:g} exceeds {largest:g}, the largest value we compute",
    )
    return scipy.optimize.brentq(compute_excess, 0.0, largest, xtol=1e-10, rtol=1e-12)


class ErrorRates(NamedTuple):
    """The error rates of guessing "in" for observations above each of several thresholds."""

    false_positive: Array
    false_negative: Array


def error_rates(pair: DensityPair, thresholds: Array | float) -> ErrorRates:
    """Returns the error rates of guessing "in" for observations above each threshold.

    Both rates have the shape of `thresholds`. We sum the tails of the densities beyond each cell's edge, and
    interpolate the logarithms of the sums.
    """
    # Each point represents the cell around it. At the cell's upper edge, the upper tail of p excludes the
    # point, and the lower tail of q includes it.
    spacing = pair.spacing
    edges = pair.points + spacing / 2
    from_point = np.cumsum(pair.p[::-1])[::-1] * spacing
    above = from_point - pair.p * spacing
    below = np.cumsum(pair.q) * spacing
    log_above = np.log(np.maximum(above, _MIN_LOG_ARGUMENT))
    log_below = np.log(np.maximum(below, _MIN_LOG_ARGUMENT))
    false_positive = np.exp(np.interp(thresholds, edges, log_above))
    false_negative = np.exp(np.interp(thresholds, edges, log_below))
    return ErrorRates(false_positive, false_negative)


def trade_off_curve(pair: DensityPair) -> ErrorRates:
    """Returns the trade-off curve: the error rates of thresholds at the upper edges of all cells.

    The curve is exact if the likelihood ratio increases with the observation, because threshold tests are
    then optimal.
    """
    return error_rates(pair, pair.points + pair.spacing / 2)


def mu_at(pair: DensityPair, thresholds: Array | float) -> Array:
    """Returns the mu of the Gaussian trade-off curve through the error rates at each of the thresholds.

    As the number of runs grows, bounds on mu at a fixed threshold converge to this mu.
    """
    false_positive, false_negative = error_rates(pair, thresholds)
    return conversions.mu_from_rates(false_positive, false_negative)
