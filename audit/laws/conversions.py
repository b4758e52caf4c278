"""Conversions between Gaussian differential privacy, (epsilon, delta) and trade-off functions.

We compute tail probabilities in log space, in float64. log delta is accurate to 1e-8 for mu from
1e-3 to 100 and delta down to 1e-200 (tested against 60-digit arithmetic). Array arguments broadcast.

Sources: Dong, Roth and Su, "Gaussian differential privacy" (2022); the hidden-state paper (Cebere, Bellet and
Papernot, 2025), Appendix A.1. experiments/hidden_state/README.md lists the errata, numbered H1, H2, ...
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.laws.intervals import Array, find_bracket


def log_delta_from_mu(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    """Returns log delta(epsilon), the log privacy profile of mu-GDP mechanisms; epsilon may be negative.

    delta = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) (hidden-state paper, Equation
    9). The result is -inf if delta is 0. For a tiny mu, the two terms cancel, and values of delta below about
    1e-14 are inaccurate.
    """
    eps = np.asarray(epsilon, float)
    half_mu = np.divide(mu, 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # replaced below
        ratio = -eps / mu
        log_first = special.log_ndtr(ratio + half_mu)
        log_second = eps + special.log_ndtr(ratio - half_mu)
    log_delta = log_difference(log_first, log_second)
    # If mu is infinite, delta is 1. If mu is 0, delta is 1 - e^epsilon for epsilon < 0, else 0.
    log_delta = np.where(np.isinf(mu), 0.0, log_delta)
    return np.where(np.equal(mu, 0), log_difference(0.0, np.minimum(eps, 0.0)), log_delta)


def log_difference(log_larger: ArrayLike, log_smaller: ArrayLike) -> Array:
    """Returns log(a - b) from log a and log b, for probabilities a >= b.

    The result is -inf if a and b are equal up to rounding.
    """
    log_a = np.asarray(log_larger)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.minimum(log_smaller - log_a, 0.0)
        log_fraction = np.log(-np.expm1(log_ratio))
        # If both probabilities are 0, the difference of their logs is NaN.
        return np.where(np.isneginf(log_a), -np.inf, log_a + log_fraction)


def delta_from_mu(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    """Returns delta(epsilon) of mu-GDP mechanisms (hidden-state paper, Equation 9)."""
    return np.exp(log_delta_from_mu(mu, epsilon))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Returns the smallest epsilon >= 0 such that a mu-GDP mechanism is (epsilon, delta)-DP.

    The result solves delta(epsilon) = delta (Errata H15), or is 0 if delta(0) <= delta.
    """
    require(mu >= 0, f"`mu` must be at least 0, got {mu}")
    require_delta(delta)
    if mu == np.inf:
        return np.inf

    def compute_excess(epsilon: float) -> float:
        """Returns log delta(epsilon) - log delta."""
        return float(log_delta_from_mu(mu, epsilon) - np.log(delta))

    if compute_excess(0.0) <= 0:
        return 0.0
    # At `high`, the first term of delta(epsilon), Phi(-epsilon / mu + mu / 2), is at most delta / 2:
    # Phi(-x) <= exp(-x^2 / 2) / 2 = delta / 2 for x = sqrt(2 log(1 / delta)).
    x = np.sqrt(-2 * np.log(delta))
    high = mu * mu / 2 + mu * x + 1
    return scipy.optimize.brentq(compute_excess, 0.0, high, xtol=1e-13 * high, rtol=1e-14)


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Returns the largest mu such that a mu-GDP mechanism is (epsilon, delta)-DP."""
    require(epsilon >= 0, f"`epsilon` must be at least 0, got {epsilon}")
    require_delta(delta)
    if epsilon == np.inf:
        return np.inf

    def compute_excess(mu: float) -> float:
        """Returns log delta(epsilon) of a mu-GDP mechanism minus log delta, floored at -1e6."""
        log_delta = log_delta_from_mu(mu, epsilon)
        return max(float(log_delta - np.log(delta)), -1e6)  # the root search cannot handle -inf

    # At mu = sqrt(2 epsilon), the first term of delta(epsilon) is 1/2, so few doublings are needed.
    _, high = find_bracket(lambda mu: compute_excess(mu) < 0, first=np.sqrt(2 * epsilon) + 1)
    # `low` is too small, because delta(epsilon) is at most delta(0), about 0.4 mu.
    low = delta * 1e-3
    # We need relative precision because mu may be tiny. The search finds even a root of 1e-300 in fewer than
    # 2,000 iterations.
    return scipy.optimize.brentq(compute_excess, low, high, xtol=1e-300, rtol=1e-14, maxiter=2000)


def mu_from_rates(false_positive_rate: ArrayLike, false_negative_rate: ArrayLike) -> Array:
    """Returns mu = Phi^-1(1 - fpr) - Phi^-1(fnr) of the Gaussian trade-off curve through each pair of rates.

    Source: hidden-state paper, Equation 8. mu is negative if the rates add up to more than 1. It is +inf if
    a rate is 0, and -inf if a rate is 1.
    """
    return -special.ndtri(false_positive_rate) - special.ndtri(false_negative_rate)


def epsilon_from_rates(
    false_positive_rate: ArrayLike, false_negative_rate: ArrayLike, delta: float
) -> Array:
    """Returns the epsilon of the (epsilon, delta)-DP trade-off curve through each pair of error rates.

    The curve consists of a steep line, fnr = 1 - delta - e^epsilon fpr, and a flat line, fpr = 1 - delta -
    e^epsilon fnr (Errata H6). Epsilon is the larger of log((1 - delta - fnr) / fpr) and log((1 - delta - fpr)
    / fnr). Epsilon is negative for rates above the curve with epsilon = 0.
    """
    fpr = np.asarray(false_positive_rate, float)
    fnr = np.asarray(false_negative_rate, float)
    steep_numerator = np.maximum(1 - delta - fnr, 0)
    flat_numerator = np.maximum(1 - delta - fpr, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.log(steep_numerator) - np.log(fpr)
        flat = np.log(flat_numerator) - np.log(fnr)
    # If a numerator and its denominator are both 0, the quotient is NaN, which `fmax` ignores.
    return np.fmax(steep, flat)


def gaussian_trade_off(mu: float, false_positive_rate: ArrayLike) -> Array:
    """Returns the Gaussian trade-off function G_mu: the lowest false-negative rate at a false-positive rate.

    G_mu(a) = Phi(Phi^-1(1 - a) - mu) (hidden-state paper, Equation 7).
    """
    return special.ndtr(-special.ndtri(false_positive_rate) - mu)


def approximate_dp_trade_off(epsilon: float, false_positive_rate: Array, delta: float) -> Array:
    """Returns the trade-off function of (epsilon, delta)-DP: the lowest false-negative rate.

    At a false-positive rate a, this is max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)} (hidden-state
    paper, Equation 6 with Errata H6).
    """
    slope = np.exp(min(epsilon, 700.0))  # avoids overflow in exp
    steep = 1 - delta - slope * false_positive_rate
    flat = np.exp(-epsilon) * (1 - delta - false_positive_rate)
    return np.maximum(0.0, np.maximum(steep, flat))


def require_delta(delta: float) -> None:
    """Raises InputError unless 0 < delta < 1."""
    require(0 < delta < 1, f"`delta` must be between 0 and 1, got {delta}")


def require_levels(delta: float, confidence: float) -> None:
    """Raises InputError unless delta and 1 - confidence are strictly between 0 and 1 in float64."""
    require_delta(delta)
    suggestion = ""
    if 1 < confidence < 100:  # a percentage
        suggestion = f"; did you mean {confidence / 100:g}?"
    require(
        0 < 1 - confidence < 1,
        f"`confidence` must be between 0 and 1, got {confidence}{suggestion}",
    )


def mass_between(edges: Array) -> Array:
    """Returns the mass of N(0, 1) between neighbouring `edges` (..., n), accurate in both tails."""
    from_below = np.diff(special.ndtr(edges))
    from_above = -np.diff(special.ndtr(-edges))
    # Differences of small probabilities are more accurate, so we use the upper tails above 0.
    return np.where(edges[..., :-1] > 0, from_above, from_below)
