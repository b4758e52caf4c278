"""Two densities on a common grid -> everything exact: trade-off curve, hockey-stick divergence, epsilon, mu.

A pair holds the densities of a real observation out (p) and in (q) at evenly spaced points. Sums over the
points times the spacing are integrals; where an integrand has a kink, the cell that holds it is split by
linear interpolation, so that the error falls with the square of the spacing.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.laws import conversions
from audit.laws.bisection import find_bracket

Array = NDArray[np.float64]
_LARGEST_EPSILON = 700.0  # exp overflows beyond


class DensityPair(NamedTuple):
    """The densities of an observation in both worlds.

    Attributes:
      points: (n,) evenly spaced.
      p: (n,) the density out.
      q: (n,) the density in.
      error: A bound on the probability that the grid cannot see.
    """

    points: Array
    p: Array
    q: Array
    error: float

    @property
    def spacing(self) -> float:
        """The distance of neighbouring points."""
        return float(self.points[-1] - self.points[0]) / (len(self.points) - 1)


def hockey_stick(p: Array, q: Array, spacing: float, epsilon: float) -> float:
    """Returns the integral of (q - e^epsilon p)+, by trapezoids cut at sign changes.

    Source: Balle and Wang (2018).
    """
    excess = q - np.exp(epsilon) * p
    left = excess[:-1]
    right = excess[1:]
    heights = (np.maximum(left, 0) + np.maximum(right, 0)) / 2
    # In a cell where the sign changes, a triangle is left, of base top / (|left| + |right|).
    crossing = left * right < 0
    top = np.maximum(left[crossing], right[crossing])
    heights[crossing] = top * top / (np.abs(left[crossing]) + np.abs(right[crossing])) / 2
    return float(heights.sum() * spacing)


def delta_at(pair: DensityPair, epsilon: float) -> float:
    """Returns delta(epsilon), the larger of both directions: the exact privacy profile of the observation."""
    spacing = pair.spacing
    added = hockey_stick(pair.p, pair.q, spacing, epsilon)
    removed = hockey_stick(pair.q, pair.p, spacing, epsilon)
    return max(added, removed)


def epsilon_at(pair: DensityPair, delta: float) -> float:
    """Returns the exact epsilon at delta, of both directions; at least 0.

    Raises:
      InputError: A delta out of range, or too small for the grid's error bound.
    """
    conversions.require_delta(delta)
    require(
        pair.error <= 1e-3 * delta,
        f"delta is {delta:g}: the grid is right to {pair.error:.1g} only; use a larger delta",
    )

    def compute_excess(epsilon: float) -> float:
        return float(np.log(max(delta_at(pair, epsilon), 1e-300)) - np.log(delta))

    if compute_excess(0.0) <= 0:
        return 0.0

    def is_too_low(epsilon: float) -> bool:
        below = f"epsilon at delta {delta:g} is above {epsilon / 2:g}: not computed"
        require(epsilon < _LARGEST_EPSILON, below)
        return compute_excess(epsilon) > 0

    high = find_bracket(is_too_low, 0.0, 1.0).high
    return float(scipy.optimize.brentq(compute_excess, 0.0, high, xtol=1e-10, rtol=1e-12))


class ErrorRates(NamedTuple):
    """Rates of the tests "in above the threshold", an entry for each threshold."""

    false_positive: Array
    false_negative: Array


def error_rates(pair: DensityPair, thresholds: ArrayLike) -> ErrorRates:
    """Returns exact rates at thresholds: linear interpolation of the tails' logarithms between grid cells."""
    at = np.asarray(thresholds, np.float64)
    # The upper ends of the cells around the points.
    edges = pair.points + pair.spacing / 2
    above = np.cumsum(pair.p[::-1])[::-1] * pair.spacing - pair.p * pair.spacing
    below = np.cumsum(pair.q) * pair.spacing
    log_above = np.log(np.maximum(above, 1e-300))
    log_below = np.log(np.maximum(below, 1e-300))
    false_positive = np.exp(np.interp(at, edges, log_above))
    false_negative = np.exp(np.interp(at, edges, log_below))
    return ErrorRates(false_positive, false_negative)


def trade_off_curve(pair: DensityPair) -> ErrorRates:
    """Returns the exact trade-off curve where the likelihood ratio increases, at every cell's edge."""
    return error_rates(pair, pair.points + pair.spacing / 2)


def mu_at(pair: DensityPair, thresholds: ArrayLike) -> Array:
    """Returns mu of the Gaussian curve through the rates at thresholds: what an audit there converges to."""
    rates = error_rates(pair, thresholds)
    return conversions.mu_from_rates(rates.false_positive, rates.false_negative)
