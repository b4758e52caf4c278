"""Two densities on one grid -> everything exact: trade-off curve, hockey-stick divergence, epsilon, mu.

A pair holds the densities of one real observation out (p) and in (q) at evenly spaced points. Sums over
the points times the spacing are integrals; where an integrand has a kink, the cell that holds it is
split by linear interpolation, so that the error falls with the square of the spacing.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.statistics import conversions

Array = NDArray[np.float64]
_LARGEST_EPSILON = 700.0  # exp overflows beyond


class DensityPair(NamedTuple):
    """Densities (n,) at points (n,): p out, q in; error bounds the mass that the grid cannot see."""

    points: Array
    p: Array
    q: Array
    error: float

    @property
    def spacing(self) -> float:
        """Distance of neighbouring points."""
        return float(self.points[-1] - self.points[0]) / (len(self.points) - 1)


def hockey_stick(p: Array, q: Array, spacing: float, epsilon: float) -> float:
    """The integral of (q - e^epsilon p)+ (Balle and Wang, 2018), by trapezoids cut at sign changes."""
    excess = q - np.exp(epsilon) * p
    left, right = excess[:-1], excess[1:]
    whole = (np.maximum(left, 0) + np.maximum(right, 0)) / 2
    cut = left * right < 0
    top = np.maximum(left[cut], right[cut])
    whole[cut] = top * top / (np.abs(left[cut]) + np.abs(right[cut])) / 2
    return float(whole.sum() * spacing)


def delta_at(pair: DensityPair, epsilon: float) -> float:
    """delta(epsilon), the larger of both directions: the exact privacy profile of the observation."""
    spacing = pair.spacing
    return max(hockey_stick(pair.p, pair.q, spacing, epsilon), hockey_stick(pair.q, pair.p, spacing, epsilon))


def epsilon_at(pair: DensityPair, delta: float) -> float:
    """The exact epsilon at delta, of both directions; at least 0.

    Raises InputError for a delta out of range or too small for the grid's error bound.
    """
    conversions.require_delta(delta)
    fine = pair.error <= 1e-3 * delta
    require(fine, f"delta is {delta:g}: the grid is right to {pair.error:.1g} only; use a larger delta")

    def excess(epsilon: float) -> float:
        return float(np.log(max(delta_at(pair, epsilon), 1e-300)) - np.log(delta))

    if excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2
        require(high < _LARGEST_EPSILON, f"epsilon at delta {delta:g} is above {high / 2:g}: not computed")
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-10, rtol=1e-12))


class ErrorRates(NamedTuple):
    """Rates of the tests "in above the threshold", one entry a threshold."""

    false_positive: Array
    false_negative: Array


def error_rates(pair: DensityPair, thresholds: ArrayLike) -> ErrorRates:
    """Exact rates at thresholds: linear interpolation of the tails' logarithms between grid cells."""
    edges = pair.points + pair.spacing / 2
    above = np.cumsum(pair.p[::-1])[::-1] * pair.spacing - pair.p * pair.spacing
    below, at = np.cumsum(pair.q) * pair.spacing, np.asarray(thresholds, np.float64)
    with np.errstate(divide="ignore"):
        log_above, log_below = np.log(np.maximum(above, 1e-300)), np.log(np.maximum(below, 1e-300))
    return ErrorRates(np.exp(np.interp(at, edges, log_above)), np.exp(np.interp(at, edges, log_below)))


def trade_off_curve(pair: DensityPair) -> ErrorRates:
    """The exact trade-off curve where the likelihood ratio increases: thresholds at every cell's edge."""
    return error_rates(pair, pair.points + pair.spacing / 2)


def mu_at(pair: DensityPair, thresholds: ArrayLike) -> Array:
    """mu of the Gaussian curve through the rates at thresholds: what an audit there converges to."""
    rates = error_rates(pair, thresholds)
    return conversions.mu_from_rates(rates.false_positive, rates.false_negative)
