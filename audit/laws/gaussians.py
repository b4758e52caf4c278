"""The exact (epsilon, delta) between two Gaussians with any means and variances, in log space.

Source: Andrew et al., "One-shot empirical privacy estimation for federated learning" (ICLR 2024), Appendix A.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws import conversions
from audit.laws.intervals import Array, bisect, find_bracket


class Gaussian(NamedTuple):
    """The normal distribution N(mean, deviation^2); both parameters may be arrays, which broadcast."""

    mean: Array | float
    deviation: Array | float


def log_delta(first: Gaussian, second: Gaussian, epsilon: ArrayLike) -> Array:
    """Returns the log of the smallest delta such that two Gaussians are (epsilon, delta)-indistinguishable.

    The result is the larger of two deltas: the first Gaussian against the second, and vice versa. Means,
    deviations (above 0) and epsilon (at least 0) broadcast to the result's shape. The log is -inf if delta is
    0.
    """
    m1, s1 = map(np.asarray, first)
    m2, s2 = map(np.asarray, second)
    eps = np.asarray(epsilon, float)
    # In each direction, we shift and scale both Gaussians to make the first one N(0, 1).
    forward = _compute_directed_log_delta((m2 - m1) / s1, s2 / s1, eps)
    backward = _compute_directed_log_delta((m1 - m2) / s2, s1 / s2, eps)
    return np.maximum(forward, backward)


def epsilon(first: Gaussian, second: Gaussian, delta: float) -> Array:
    """Returns the smallest epsilon >= 0 such that two Gaussians are (epsilon, delta)-indistinguishable.

    Means and deviations broadcast to the result's shape. The result has a relative error of about 1e-12 for
    delta down to 1e-200, and is rounded up.
    """
    conversions.require_delta(delta)
    target = np.log(delta)
    log_delta_at_0 = log_delta(first, second, 0.0)

    def is_too_low(epsilons: Array) -> NDArray[np.bool_]:
        """Returns True for epsilons at which delta is too large."""
        return log_delta(first, second, epsilons) > target

    low, high = find_bracket(is_too_low, first=1.0)
    _, high = bisect(is_too_low, low, high, halvings=64)  # full precision
    return np.where(log_delta_at_0 <= target, 0.0, high)


def measure_normality(deviates: Array, independent: float) -> float:
    """Returns the p-value for the hypothesis that `deviates` (n,) follow N(0, 1).

    A Bonferroni correction combines the Kolmogorov-Smirnov test with a two-sided chi-squared test of the mean
    square, which needs fewer deviates to detect a wrong spread. `independent` is the effective number of
    independent deviates.
    """
    from scipy import stats  # slow to load

    squares = independent * np.mean(deviates**2)
    below = stats.chi2.cdf(squares, independent)
    above = stats.chi2.sf(squares, independent)
    spread_p = 2 * min(below, above)
    distance = stats.kstest(deviates, "norm").statistic
    kolmogorov_p = stats.kstwo.sf(distance, max(int(independent), 1))
    return float(min(2 * kolmogorov_p, 2 * spread_p, 1.0))


def _compute_directed_log_delta(m: Array, s: Array, eps: Array) -> Array:
    """Returns the log delta of P = N(0, 1) against Q = N(m, s^2), log(P(event) - e^epsilon Q(event)).

    The event is that the privacy loss log p(x) / q(x) exceeds epsilon. The loss is a x^2 + b x + c, with

        a = (1 / s^2 - 1) / 2,    b = -m / s^2,    c = m^2 / (2 s^2) + log s.

    So the event is that x lies outside the roots of a x^2 + b x + c - epsilon if a > 0, and between them if
    a < 0. If a = 0, the event is a half-line.
    """
    with np.errstate(all="ignore"):  # cases without roots are replaced below
        square = s * s
        a = (1 - s) * (1 + s) / (2 * square)
        b = -m / square
        c_minus_eps = m * m / (2 * square) + np.log(s) - eps
        discriminant = b * b - 4 * a * c_minus_eps
        # The roots are q / a and (c - eps) / q, where q = -(b +- sqrt(discriminant)) / 2. Choosing the sign
        # of b avoids cancellation.
        sign = np.where(b < 0, -1.0, 1.0)
        root = np.sqrt(np.maximum(discriminant, 0.0))
        q = -(b + sign * root) / 2
        # If a = 0, the interval extends to infinity on the side where b x decreases (Errata O3 of
        # experiments/one_shot/README.md).
        far_root = np.where(a == 0, -sign * np.inf, q / a)
        near_root = c_minus_eps / q
        low = np.minimum(far_root, near_root)
        high = np.maximum(far_root, near_root)

        is_outside = a >= 0
        log_p = _compute_log_probability(is_outside, low, high)
        log_q = _compute_log_probability(is_outside, (low - m) / s, (high - m) / s)
        log_difference = conversions.log_difference(log_p, eps + log_q)
    # Without roots, the loss never exceeds epsilon, since P cannot exceed Q everywhere.
    return np.where(discriminant > 0, log_difference, -np.inf)


def _compute_log_probability(is_outside: NDArray[np.bool_], low: Array, high: Array) -> Array:
    """Returns the log probability that x ~ N(0, 1) is outside [low, high] if `is_outside`, else inside."""
    log_outside = np.logaddexp(special.log_ndtr(low), special.log_ndtr(-high))
    # P(low < x < high) is a difference of two tails. The smaller tails lose the fewest digits:
    # P(x > low) - P(x > high) for an interval above 0, else P(x < high) - P(x < low).
    is_above_0 = low > 0
    log_larger = special.log_ndtr(np.where(is_above_0, -low, high))
    log_smaller = special.log_ndtr(np.where(is_above_0, -high, low))
    log_inside = conversions.log_difference(log_larger, log_smaller)
    return np.where(is_outside, log_outside, log_inside)
