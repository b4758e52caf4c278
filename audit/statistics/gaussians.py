"""The exact (epsilon, delta) between two Gaussians of any means and variances, in log space.

The privacy loss log p / q of P = N(m1, s1^2) against Q = N(m2, s2^2) is a quadratic a x^2 + b x + c, so
that the event on which it exceeds epsilon is a half line, an interval, or all but one; delta is P(event) -
e^epsilon Q(event), the larger of both orders. In units of P (m = (m2 - m1) / s1, s = s2 / s1)

    a = (1 / s^2 - 1) / 2,    b = -m / s^2,    c = m^2 / (2 s^2) + log s.

Roots come from the form of the quadratic formula that does not cancel, in which equal variances are the
limit: one root goes to infinity, on the side that the sign of b says (Errata O3).

Source: Andrew et al., "One-shot empirical privacy estimation for federated learning" (ICLR 2024), Appendix A.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions

Array = NDArray[np.float64]
_HALVINGS = 64


class Gaussian(NamedTuple):
    """N(mean, deviation^2); both may be arrays, which broadcast."""

    mean: Array | float
    deviation: Array | float


def log_delta(first: Gaussian, second: Gaussian, epsilon: ArrayLike) -> Array:
    """log of the least delta at which the two are (epsilon, delta)-indistinguishable, for epsilon >= 0.

    -inf where delta is 0. Raises InputError unless deviations are positive and all is finite.
    """
    (m1, s1), (m2, s2) = _checked(first), _checked(second)
    eps = np.asarray(epsilon, np.float64)
    require(np.all(eps >= 0), f"epsilon is {eps.min(initial=0.0):g}: it must be at least 0")
    return np.maximum(_one_order((m2 - m1) / s1, s2 / s1, eps), _one_order((m1 - m2) / s2, s1 / s2, eps))


def epsilon(first: Gaussian, second: Gaussian, delta: float) -> Array:
    """The least epsilon >= 0 at which the two are (epsilon, delta)-indistinguishable.

    Of the shape to which the arguments broadcast. Right to about 1e-12 relative, for delta down to 1e-200.
    Raises InputError as `log_delta`, and unless 0 < delta < 1.
    """
    conversions.require_delta(delta)
    target, high = np.log(delta), np.ones_like(log_delta(first, second, 0.0))
    for _ in range(1100):  # doublings, at most
        short = log_delta(first, second, high) > target
        if not short.any():
            break
        high = np.where(short, 2 * high, high)
    low = np.where(high > 1, high / 2, 0.0)
    for _ in range(_HALVINGS):
        middle = low + (high - low) / 2
        above = log_delta(first, second, middle) > target
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(log_delta(first, second, 0.0) <= target, 0.0, high)


def _checked(gaussian: Gaussian) -> tuple[Array, Array]:
    mean, deviation = (np.asarray(part, np.float64) for part in gaussian)
    require(np.isfinite(mean).all(), "a mean is not finite: drop the scores that are not")
    positive = (np.isfinite(deviation) & (deviation > 0)).all()
    require(positive, f"a standard deviation is {np.min(deviation):g}: it must be positive and finite")
    return mean, deviation


def _one_order(m: Array, s: Array, eps: Array) -> Array:
    with np.errstate(all="ignore"):
        a, b = (1 - s) * (1 + s) / (2 * s * s), -m / (s * s)
        rest = m * m / (2 * s * s) + np.log(s) - eps
        root = np.sqrt(np.maximum(b * b - 4 * a * rest, 0.0))
        sign = np.where(b < 0, -1.0, 1.0)
        q = -(b + sign * root) / 2
        far, near = np.where(a == 0, -sign * np.inf, q / a), rest / q
        low, high = np.minimum(far, near), np.maximum(far, near)
        first, second = _log_event(a, low, high), _log_event(a, (low - m) / s, (high - m) / s)
        share = eps + second - first
        found = first + np.log(-np.expm1(np.minimum(share, 0.0)))
    real = (b * b - 4 * a * rest > 0) & (q != 0) & (share < 0) & ~np.isneginf(first)
    return np.where(real, found, -np.inf)


def _log_event(a: Array, low: Array, high: Array) -> Array:
    """log Phi of what lies outside [low, high] where a >= 0, and between them where a < 0."""
    outside = np.logaddexp(special.log_ndtr(low), special.log_ndtr(-high))
    upper = low > 0  # subtract on the side of the smaller tail
    larger = np.where(upper, special.log_ndtr(-low), special.log_ndtr(high))
    smaller = np.where(upper, special.log_ndtr(-high), special.log_ndtr(low))
    between = larger + np.log(-np.expm1(np.minimum(smaller - larger, 0.0)))
    found: Array = np.where(a >= 0, outside, between)
    return found
