"""Conversions between Gaussian differential privacy, (epsilon, delta) and trade-off functions.

All of it is float64, and in log space where tails matter: log delta is right to 1e-8 for mu from 1e-3
to 100 and delta down to 1e-200 (tested against 60-digit arithmetic). Arrays broadcast.

mu -> epsilon is sound for an *upper* bound on mu. A lower bound on mu gives a lower bound on epsilon
only where the mechanism's trade-off function is Gaussian (Errata H11).

Sources: Dong, Roth and Su, "Gaussian differential privacy" (2022); the hidden-state paper
(Cebere, Bellet and Papernot, 2025), Appendix A.1.
"""

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.laws.intervals import find_bracket

Array = NDArray[np.float64]
_SMALL_MU = 1e-8  # below it the two terms of delta are too near each other to be subtracted
_FAR = 1e4  # standard deviations beyond which the Mills ratio is replaced by its expansion
_MAX_ITERATIONS = 2000  # to a root as near to 0 as 1e-300


def log_delta_from_mu(mu: float, epsilon: ArrayLike) -> Array:
    """Returns log delta(epsilon) of a mu-GDP mechanism, its privacy profile, for epsilon of either sign.

    delta = Phi(-epsilon / mu + mu / 2) - e^epsilon Phi(-epsilon / mu - mu / 2) (hidden-state paper, Equation
    9). It is computed as log(first term) + log(1 - second term / first term). The result has epsilon's shape;
    it is -inf where delta is 0.
    """
    eps = np.asarray(epsilon, np.float64)
    require(mu >= 0, f"mu is {mu}: it must be at least 0")
    if mu == 0:
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(np.minimum(eps, 0.0)))  # delta is 1 - e^epsilon below 0, else 0
    if np.isinf(mu):
        return np.zeros_like(eps)  # delta is 1 at every epsilon
    if mu < _SMALL_MU:
        # Both terms are too near each other to be subtracted.
        log_delta = _log_delta_from_small_mu(mu, np.abs(eps))
        # The Gaussian curve is symmetric: delta(-x) = 1 - e^-x + e^-x delta(x) for every x. The first two
        # terms are 0 for epsilon at least 0.
        below_zero = np.minimum(eps, 0.0)
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log(-np.expm1(below_zero)), below_zero + log_delta)

    log_first = special.log_ndtr(-eps / mu + mu / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_second = eps + special.log_ndtr(-eps / mu - mu / 2)
        # The log of the share of the first term that is left after the second is subtracted. The second
        # is never the larger, but rounding may make it so.
        log_share = np.log(-np.expm1(np.minimum(log_second - log_first, 0.0)))
        # Where both terms are 0, the difference of their logs is NaN.
        return np.where(np.isneginf(log_first), -np.inf, log_first + log_share)


def _log_delta_from_small_mu(mu: float, epsilon: Array) -> Array:
    """Returns log delta(epsilon) of a mu-GDP mechanism to first order in a tiny mu, for epsilon at least 0.

    delta = mu (phi(x) - x Phi(-x)) (1 + O(mu x)), with x = epsilon / mu, and with phi and Phi the density and
    the distribution function of N(0, 1). The two terms of the exact formula are too near each other to be
    subtracted. The log is taken of a product instead: delta = mu phi(x) (1 - x Phi(-x) / phi(x)).
    """
    # `np.where` computes both of its branches at every x. Warnings come from the branch that it drops, and
    # from an x whose square overflows, for which -inf is right.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = epsilon / mu
        mills_ratio = np.sqrt(np.pi / 2) * special.erfcx(x / np.sqrt(2))  # Phi(-x) / phi(x)
        log_density = -(x**2) / 2 - np.log(2 * np.pi) / 2  # log phi(x)
        # The log of 1 - x Phi(-x) / phi(x). For x of _FAR or more this is about 1 / x^2, which the difference
        # of two numbers near 1 would lose.
        log_share = np.where(x < _FAR, np.log1p(-x * mills_ratio), -2 * np.log(x))
        return np.asarray(np.log(mu) + log_density + log_share)


def delta_from_mu(mu: float, epsilon: ArrayLike) -> Array:
    """Returns delta(epsilon) of a mu-GDP mechanism (hidden-state paper, Equation 9)."""
    return np.exp(log_delta_from_mu(mu, epsilon))


def epsilon_from_mu(mu: float, delta: float) -> float:
    """Returns the smallest epsilon >= 0 at which a mu-GDP mechanism is (epsilon, delta)-DP.

    It solves delta(epsilon) = delta, where delta(epsilon) is the privacy profile, which decreases
    (Errata H15). It is 0 where delta(0) is at most delta.

    Raises:
      InputError: Unless mu >= 0 and 0 < delta < 1.
    """
    require(mu >= 0, f"mu is {mu}: it must be at least 0")
    require_delta(delta)
    if mu == np.inf:
        return np.inf

    def compute_excess(epsilon: float) -> float:
        """Returns by how much the log of delta at an epsilon exceeds the log of the requested delta."""
        return float(log_delta_from_mu(mu, epsilon) - np.log(delta))

    if compute_excess(0.0) <= 0:
        return 0.0
    # At this epsilon the first term of delta(epsilon), Phi(-epsilon / mu + mu / 2), is below delta already.
    # Without the 1, it is Phi(-x) <= exp(-x^2 / 2) / 2 = delta / 2 for x = sqrt(2 log(1 / delta)); the 1 is
    # room to spare.
    high = mu * mu / 2 + mu * np.sqrt(-2 * np.log(delta)) + 1
    return float(scipy.optimize.brentq(compute_excess, 0.0, high, xtol=1e-13 * high, rtol=1e-14))


def mu_from_epsilon(epsilon: float, delta: float) -> float:
    """Returns the largest mu whose Gaussian mechanism is (epsilon, delta)-DP, inverting `epsilon_from_mu`.

    It solves delta(epsilon; mu) = delta for mu, where delta(epsilon; mu) increases with mu. The search begins
    at mu = delta / 1000, which is too small: delta(epsilon; mu) is at most delta(0; mu), about 0.4 mu. It
    ends at a mu that is large enough, which doubling gives.

    Raises:
      InputError: Unless epsilon >= 0 and 0 < delta < 1.
    """
    require(epsilon >= 0, f"epsilon is {epsilon}: it must be at least 0")
    require_delta(delta)
    if epsilon == np.inf:
        return np.inf

    def compute_excess(mu: float) -> float:
        """Returns by how much the log of delta at mu exceeds that of the requested delta; at least -1e6."""
        # Where delta at mu is 0 its log is -inf, which the root search cannot use.
        return max(float(log_delta_from_mu(mu, epsilon) - np.log(delta)), -1e6)

    def is_too_small(mu: float) -> bool:
        """Returns whether delta at mu is below the requested delta."""
        return compute_excess(mu) < 0

    # At mu = sqrt(2 epsilon) the first term of delta, Phi(-epsilon / mu + mu / 2), is 1/2: from there on
    # delta is not small, so that few doublings are needed.
    high = find_bracket(is_too_small, 0.0, np.sqrt(2 * epsilon) + 1).high
    # Relative precision alone counts, since mu may be tiny: the least xtol, and many iterations.
    root = scipy.optimize.brentq(
        compute_excess, delta * 1e-3, high, xtol=1e-300, rtol=1e-14, maxiter=_MAX_ITERATIONS
    )
    return float(root)


def mu_from_rates(false_positive_rate: ArrayLike, false_negative_rate: ArrayLike) -> Array:
    """Returns mu = Phi^-1(1 - fpr) - Phi^-1(fnr) of the Gaussian trade-off curve through error rates.

    fpr is the false-positive rate, fnr the false-negative rate (hidden-state paper, Equation 8). Arrays
    broadcast. mu is negative where both rates sum to more than 1. A rate of 0 gives +inf, a rate of 1 -inf.
    """
    fpr = np.asarray(false_positive_rate, np.float64)
    fnr = np.asarray(false_negative_rate, np.float64)
    mu: Array = -special.ndtri(fpr) - special.ndtri(fnr)
    return mu


def epsilon_from_rates(
    false_positive_rate: ArrayLike, false_negative_rate: ArrayLike, delta: float
) -> Array:
    """Returns epsilon of the (epsilon, delta)-DP trade-off curve through pairs of error rates.

    The curve has two straight parts (Errata H6), with the false-positive rate fpr and the false-negative rate
    fnr: a steep one, fnr = 1 - delta - e^epsilon fpr, and a flat one, fpr = 1 - delta - e^epsilon fnr. Solved
    for epsilon they give log((1 - delta - fnr) / fpr) and log((1 - delta - fpr) / fnr), and the larger is
    returned. It is negative for rates that even epsilon = 0 allows, with room to spare. Arrays broadcast.
    """
    fpr = np.asarray(false_positive_rate, np.float64)
    fnr = np.asarray(false_negative_rate, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # A numerator of 0 or less means that every epsilon allows the rates: its log is -inf.
        steep = np.log(np.maximum(1 - delta - fnr, 0)) - np.log(fpr)
        flat = np.log(np.maximum(1 - delta - fpr, 0)) - np.log(fnr)
    # A numerator and a rate that are both 0 give NaN, and every epsilon allows them too. `fmax` skips NaN;
    # where both parts are NaN, -inf is left.
    larger: Array = np.fmax(np.fmax(steep, flat), -np.inf)
    return larger


def gaussian_trade_off(mu: float, false_positive_rate: ArrayLike) -> Array:
    """Returns the Gaussian trade-off function G_mu: the least false-negative rate at a false-positive rate.

    G_mu(a) = Phi(Phi^-1(1 - a) - mu) (hidden-state paper, Equation 7).
    """
    fpr = np.asarray(false_positive_rate, np.float64)
    fnr: Array = special.ndtr(-special.ndtri(fpr) - mu)
    return fnr


def approximate_dp_trade_off(epsilon: float, delta: float, false_positive_rate: ArrayLike) -> Array:
    """Returns the trade-off function of (epsilon, delta)-DP: the least false-negative rate.

    At a false-positive rate a it is max{0, 1 - delta - e^eps a, e^-eps (1 - delta - a)} (hidden-state paper,
    Equation 6 with Errata H6).
    """
    fpr = np.asarray(false_positive_rate, np.float64)
    steep = 1 - delta - np.exp(min(epsilon, 700.0)) * fpr  # exp overflows beyond 700
    flat = np.exp(-epsilon) * (1 - delta - fpr)
    fnr: Array = np.maximum(0.0, np.maximum(steep, flat))
    return fnr


def require_delta(delta: float) -> None:
    """Raises InputError unless 0 < delta < 1."""
    require(0 < delta < 1, f"delta is {delta}: it must lie strictly between 0 and 1")


def require_levels(delta: float, confidence: float) -> None:
    """Raises InputError unless both lie strictly between 0 and 1."""
    require_delta(delta)
    require_confidence(confidence)


def require_confidence(confidence: float) -> None:
    """Raises InputError unless 0 < confidence < 1 and the error, 1 - confidence, lies in between too.

    In float64 the error of a confidence below 5e-17 is 1, and every hypothesis is refuted. The message
    suggests the share where a percentage was given.
    """
    suggestion = ""
    if 1 < confidence < 100:
        suggestion = f"; did you mean {confidence / 100:g}?"
    require(
        0 < confidence < 1,
        f"confidence is {confidence}: it must lie strictly between 0 and 1{suggestion}",
    )
    require(
        0 < 1 - confidence < 1,
        f"confidence is {confidence}: that is 0 up to rounding, so that bounds may always err; give a larger "
        "one, such as 0.95",
    )


def mass_between(edges: Array) -> Array:
    """Returns the mass (..., n - 1) of N(0, 1) between neighbouring edges (..., n), precise in both tails."""
    from_below = np.diff(special.ndtr(edges))
    from_above = -np.diff(special.ndtr(-edges))
    return np.asarray(np.where(edges[..., :-1] > 0, from_above, from_below))
