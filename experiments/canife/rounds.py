"""CANIFE's estimate of epsilon from a round's scores, and the composition of rounds over a training run.

We compose rounds with Renyi DP, and compute the divergences of the Poisson-sampled Gaussian mechanism by
quadrature (Errata C11).

Sources: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Algorithms 1 and 2, and its public code.
Mironov, Talwar and Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019), Theorem 4
and Equation 1. Balle et al. (2020), Theorem 21.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from dp_accounting.rdp import compute_epsilon
from numpy.typing import NDArray
from scipy import special, stats

from audit.laws import conversions, intervals
from audit.methods.thresholds import count_errors

Array = NDArray[np.float64]

# The Renyi DP orders that Opacus uses.
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())
MIN_EPSILON = 0.15  # the public code cannot find a noise multiplier for smaller estimates
MIN_LOWER = 0.2  # the public code raises the lower ends of intervals to at least this value
# The search range of `find_renyi_noise`.
_MIN_SIGMA = 1e-3
_MAX_SIGMA = 1e4
_GRID_REACH = 13.0  # the quadrature's reach below 0 and above the largest order, in deviations
_NUM_SIMULATIONS = 150  # estimates for a perfect canary, as in the paper


class RoundEstimate(NamedTuple):
    """A round's estimate of epsilon, which is not a bound.

    Attributes:
      epsilon: The estimate; infinite if a threshold separates the scores of the two worlds.
      lower, upper: The same formula at the ends of the 95% Clopper-Pearson intervals of both error rates.
        They ignore that the threshold was chosen using the same scores.
      accuracy: The attack's highest accuracy over all thresholds, if both worlds are equally likely.
    """

    epsilon: float
    lower: float
    upper: float
    accuracy: float


class Charge(NamedTuple):
    """Rounds that are composed as Poisson-sampled Gaussian releases with the same noise."""

    noise_multiplier: float
    sampling_rate: float
    rounds: int


def best_epsilon(
    scores_in: Array,
    scores_out: Array,
    delta: float,
    by_accuracy: bool = False,
) -> RoundEstimate:
    """Returns the published estimate: the largest epsilon over thresholds with errors of both kinds.

    Like the public code, the search skips thresholds with errors of only one kind. It keeps thresholds
    without errors, which make the estimate infinite. If it skips all, the estimate is 0 (Errata C6, C7).

    Args:
      scores_in, scores_out: Scores (n,) with and (m,) without the canary.
      delta: The delta of the estimate; 1 / (n + m) in the paper.
      by_accuracy: If True, choose the threshold with the best accuracy instead of the largest epsilon, as in
        the public code until February 2023 (with delta 1e-5).
    """
    # We guess "in" for scores >= t, for each score t. `count_errors` guesses "in" for scores above a
    # threshold, so we use thresholds just below the scores.
    distinct = np.unique(np.concatenate([scores_in, scores_out]))[::-1]
    just_below = np.nextafter(distinct, -np.inf)
    false_positives, false_negatives = count_errors(scores_in, scores_out, just_below)
    n_in = len(scores_in)
    n_out = len(scores_out)
    fprs = false_positives / n_out
    fnrs = false_negatives / n_in
    errors = fprs + fnrs
    has_both_or_none = (false_positives > 0) == (false_negatives > 0)
    epsilons = conversions.epsilon_from_rates(fprs, fnrs, delta)
    epsilons = np.where(has_both_or_none, epsilons, -np.inf)
    criterion = epsilons
    if by_accuracy:
        # The accuracy is highest where the sum of the two error rates is lowest.
        criterion = np.where(epsilons > -np.inf, -errors, -np.inf)
    best = int(np.argmax(criterion))

    fpr = intervals.clopper_pearson(false_positives[best], n_out, confidence=0.95)
    fnr = intervals.clopper_pearson(false_negatives[best], n_in, confidence=0.95)
    # Larger error rates yield a smaller epsilon.
    lower = conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta)
    upper = conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta)
    # If all thresholds are skipped, epsilons[best] is -inf, and the interval is for the first threshold.
    epsilon, lower, upper = np.maximum([epsilons[best], lower, upper], 0.0).tolist()
    # An attack that always guesses the same world has an accuracy of 1/2.
    accuracy = 1 - min(errors.min(), 1.0) / 2
    return RoundEstimate(epsilon, lower, upper, float(accuracy))


def find_renyi_noise(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier for which Renyi DP gives a Gaussian release this epsilon at delta.

    Like CANIFE's public code, we raise smaller epsilons to MIN_EPSILON. If epsilon is infinite, we return the
    training run's noise multiplier, `true_noise`, because one round without noise would make the total
    epsilon infinite (Errata C5, C7).
    """
    if np.isinf(epsilon):
        return true_noise
    raised = max(epsilon, MIN_EPSILON)
    return scipy.optimize.brentq(
        lambda sigma: composed([Charge(sigma, sampling_rate=1.0, rounds=1)], delta) - raised,
        _MIN_SIGMA,
        _MAX_SIGMA,
        rtol=1e-13,
    )


def find_gaussian_noise(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier for which a Gaussian release has exactly this epsilon at delta.

    If epsilon is infinite, we return `true_noise`; see `find_renyi_noise`.
    """
    if np.isinf(epsilon):
        return true_noise
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


@functools.lru_cache(maxsize=4096)
def divergences(sigma: float, sampling_rate: float) -> Array:
    """Returns a round's Renyi divergence at each of ORDERS; infinite for noise multiplier 0."""
    orders = np.array(ORDERS)
    if sigma == 0:
        return np.full(len(orders), np.inf)
    if sampling_rate == 1:
        return orders / (2 * sigma**2)
    # Rounding can make a divergence near 0 negative.
    return np.maximum(_integrate_log_moments(sigma, sampling_rate) / (orders - 1), 0.0)


def _integrate_log_moments(sigma: float, sampling_rate: float) -> list[float]:
    """Returns (a - 1) times the Renyi divergence for each order a in ORDERS, computed by quadrature.

    At sampling rate q, it is log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] for x ~ N(0, sigma^2)
    (Mironov, Talwar and Zhang, 2019, Theorem 4).
    """
    # We integrate with the trapezoidal rule. The integrand is a sum of terms: for k from 0 to the order, the
    # density of x times the k-th power of the likelihood ratio. Each term is proportional to the density of
    # N(k, sigma^2), so we integrate from below 0 to above the largest order. The density varies on the scale
    # of sigma, and the ratio on that of sigma^2. To save memory, the step is at least sigma / 200.
    step = max(min(sigma / 20, sigma**2 / 4), sigma / 200)
    reach = _GRID_REACH * sigma
    points = np.arange(-reach, ORDERS[-1] + reach, step)
    log_density = stats.norm.logpdf(points, scale=sigma)
    log_likelihood_ratio = (2 * points - 1) / (2 * sigma**2)
    log_mixture = np.logaddexp(
        np.log1p(-sampling_rate), np.log(sampling_rate) + log_likelihood_ratio
    )
    return [special.logsumexp(log_density + order * log_mixture) + np.log(step) for order in ORDERS]


def count_rounds(
    measured: Sequence[int], total: int, is_backward: bool = False
) -> NDArray[np.int64]:
    """Returns how many rounds each measured round represents (Errata C8).

    In the paper, a measured round represents itself and the unmeasured rounds directly after it, up to
    `total`. In the public code (`is_backward`), it represents itself and the unmeasured rounds directly
    before it. `measured` lists the numbers of the measured rounds in increasing order.
    """
    if is_backward:
        return np.diff([0, *measured])
    return np.diff([*measured, total + 1])


def cumulative(charges: Iterable[Charge], delta: float) -> list[float]:
    """Composes the charges with Renyi DP, and returns the total epsilon at delta after each charge."""
    total = np.zeros(len(ORDERS))  # Renyi divergences, which add up over rounds
    epsilons = []
    for charge in charges:
        total = total + charge.rounds * divergences(charge.noise_multiplier, charge.sampling_rate)
        epsilon, _ = compute_epsilon(ORDERS, total, delta)
        epsilons.append(float(epsilon))
    return epsilons


def composed(charges: Iterable[Charge], delta: float) -> float:
    """Returns the total epsilon of all charges at delta; see `cumulative`."""
    return cumulative(charges, delta)[-1]


def estimate_perfect_canary(rng: np.random.Generator, sigma: float, scores: int) -> list[float]:
    """Returns 150 simulated values of the published estimate for a perfect canary (Errata C9).

    A perfect canary leaks as much as the noise allows: scores are N(1, sigma^2) with it and N(0, sigma^2)
    without it. Each estimate uses n `scores`, half from each world, and delta = 1/n.
    """
    draws = sigma * rng.standard_normal((_NUM_SIMULATIONS, 2, scores // 2))
    return [best_epsilon(1 + inside, outside, 1 / scores).epsilon for inside, outside in draws]
