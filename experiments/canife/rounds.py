"""CANIFE's estimates from a round's scores, and their composition over a training run.

The estimates are not confidence bounds: the threshold is chosen on the same scores, and n scores per world
give at most log((1 - delta) n - 1) for any leak (Errata C6, C7). An epsilon is converted to a noise
multiplier by the published inversion of Renyi DP, or exactly by the Gaussian curve (Errata C5).

Rounds are composed by Renyi DP of the Poisson-sampled Gaussian mechanism, by quadrature, because
dp-accounting skips orders below about 1.7 here (Errata C11).

Sources: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Algorithms 1 and 2, and its public code.
Mironov, Talwar and Zhang, "Renyi differential privacy of the sampled Gaussian mechanism" (2019), Theorem 4
and Equation 1. Balle et al. (2020), Theorem 21.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from dp_accounting.rdp import compute_epsilon
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws import conversions, intervals

Array = NDArray[np.float64]

# Opacus' orders of Renyi DP.
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())
MIN_EPSILON = 0.15  # the public code cannot find a noise multiplier for smaller estimates
MIN_LOWER = 0.2  # the public code raises lower ends of intervals to this value
_MIN_SIGMA = 1e-3  # the search range of `renyi_noise`
_MAX_SIGMA = 1e4
_REACH = 13.0  # standard deviations of a quadrature's grid below 0 and above the order
_NUM_SIMULATIONS = 150  # of a perfect canary's estimate


class RoundEstimate(NamedTuple):
    """A round's estimate of epsilon (infinite if a threshold separates the worlds). It is not a bound.

    `lower` and `upper` are the formula at the ends of both error rates' Clopper-Pearson intervals, without a
    correction for the choice of the threshold.
    """

    epsilon: float
    lower: float
    upper: float


class Charge(NamedTuple):
    """Rounds to compose as Poisson-sampled Gaussian releases with the same noise."""

    noise_multiplier: float
    sampling_rate: float
    rounds: int


def best_epsilon(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    confidence: float = 0.95,
    by_accuracy: bool = False,
) -> RoundEstimate:
    """Returns the published estimate: the largest epsilon over thresholds with both kinds of errors.

    It is infinite if a threshold separates the two worlds' scores, and 0 if no threshold has both errors
    (Errata C7).

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      delta: 1 / (n + m) in the paper.
      confidence: The confidence of the intervals of both error rates.
      by_accuracy: Whether to choose the threshold with the best accuracy, as the public code until February
        2023 (with delta 1e-5).
    """
    false_positives, false_negatives = _count_errors(scores_in, scores_out)
    n_in = np.size(scores_in)
    n_out = np.size(scores_out)
    fprs = false_positives / n_out
    fnrs = false_negatives / n_in
    has_both = (false_positives > 0) & (false_negatives > 0)
    has_none = false_positives + false_negatives == 0
    epsilons = conversions.epsilon_from_rates(fprs, fnrs, delta)
    epsilons = np.select([has_none, has_both], [np.inf, epsilons], -np.inf)
    ranks = epsilons
    if by_accuracy:
        ranks = np.where(epsilons > -np.inf, -(fprs + fnrs), -np.inf)
    best = int(np.argmax(ranks))

    fpr = intervals.clopper_pearson(int(false_positives[best]), n_out, confidence)
    fnr = intervals.clopper_pearson(int(false_negatives[best]), n_in, confidence)
    # Larger error rates give a smaller epsilon.
    lower = conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta)
    upper = conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta)
    values = np.maximum([epsilons[best], lower, upper], 0.0)
    return RoundEstimate(*values.tolist())


def _count_errors(
    scores_in: ArrayLike, scores_out: ArrayLike
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the numbers of false positives and false negatives at each distinct score as a threshold."""
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))[::-1]  # decreasing
    true_negatives = np.searchsorted(np.sort(scores_out), thresholds)
    false_positives = np.size(scores_out) - true_negatives
    false_negatives = np.searchsorted(np.sort(scores_in), thresholds)
    return false_positives, false_negatives


def largest_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the largest accuracy over all thresholds, with equal weights for both worlds."""
    false_positives, false_negatives = _count_errors(scores_in, scores_out)
    errors = false_positives / np.size(scores_out) + false_negatives / np.size(scores_in)
    return float(1 - min(errors.min(), 1.0) / 2)


def renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns epsilon at delta of one Gaussian release, by Renyi DP; infinite without noise."""
    return composed([Charge(noise_multiplier, sampling_rate=1.0, rounds=1)], delta)


def renyi_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier, from 0.001 to 10,000, that has this `renyi_epsilon`."""

    def compute_excess(sigma: float) -> float:
        return renyi_epsilon(float(sigma), delta) - epsilon

    return float(scipy.optimize.brentq(compute_excess, _MIN_SIGMA, _MAX_SIGMA, rtol=1e-13))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier of a Gaussian release with exactly this epsilon at delta."""
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


def renyi_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that the public code charges for an epsilon (raised to at least 0.15).

    If epsilon is infinite, this is the true noise.
    """
    if np.isinf(epsilon):
        return true_noise
    return renyi_noise(max(epsilon, MIN_EPSILON), delta)


@functools.lru_cache(maxsize=4096)
def divergences(noise_multiplier: float, sampling_rate: float) -> Array:
    """Returns the Renyi divergence of a round at each of ORDERS; infinite without noise.

    At sampling rate q and order a it is log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] / (a - 1) over x ~
    N(0, sigma^2) (Mironov, Talwar and Zhang, 2019, Theorem 4).
    """
    orders = np.array(ORDERS)
    if noise_multiplier == 0:
        return np.full(len(orders), np.inf)
    if sampling_rate == 1:
        return np.asarray(orders / (2 * noise_multiplier**2))
    log_moments = []
    for order in ORDERS:
        log_moments.append(_integrate_log_moment(noise_multiplier, sampling_rate, order))
    # Rounding can make a divergence near 0 negative.
    return np.asarray(np.maximum(log_moments / (orders - 1), 0.0))


def forward(measured: Sequence[int], total: int) -> NDArray[np.int64]:
    """Returns how many of `total` rounds each measured round represents, as in the paper."""
    return np.diff([*measured, total + 1])


def backward(measured: Sequence[int]) -> NDArray[np.int64]:
    """Returns how many rounds each measured round represents: since the last, as in the code (Errata C8)."""
    return np.diff([0, *measured])


def cumulative(charges: Sequence[Charge], delta: float) -> list[float]:
    """Returns epsilon at delta of all rounds up to each charge, by Renyi DP."""
    total = np.zeros(len(ORDERS))  # Renyi divergences, which add up over rounds
    epsilons = []
    for charge in charges:
        total = total + charge.rounds * divergences(charge.noise_multiplier, charge.sampling_rate)
        epsilon, _ = compute_epsilon(ORDERS, total, delta)
        epsilons.append(float(epsilon))
    return epsilons


def composed(charges: Sequence[Charge], delta: float) -> float:
    """Returns epsilon at delta of all charged rounds; see `cumulative`."""
    return cumulative(charges, delta)[-1]


def estimate_perfect_canary(rng: np.random.Generator, sigma: float, scores: int) -> list[float]:
    """Simulates the published estimate for a perfect canary 150 times (Errata C9).

    Scores are N(1, sigma^2) with the canary and N(0, sigma^2) without it, the largest leak at this noise.
    Each estimate has n `scores`, half in each world, and delta = 1/n.
    """
    draws = sigma * rng.standard_normal((_NUM_SIMULATIONS, 2, scores // 2))
    epsilons = []
    for noise_in, noise_out in draws:
        epsilons.append(best_epsilon(1 + noise_in, noise_out, 1 / scores).epsilon)
    return epsilons


def _integrate_log_moment(sigma: float, rate: float, order: float) -> float:
    """Returns log E[(1 - q + q L(x))^order] over x ~ N(0, sigma^2), by trapezoids.

    L is the likelihood ratio of N(1, sigma^2) to N(0, sigma^2), and q the sampling rate.
    """
    # The density times L^k is proportional to that of N(k, sigma^2), for k from 0 to the order.
    low = -_REACH * sigma
    high = order + _REACH * sigma
    # The density varies on the scale of sigma, and L on that of sigma^2. The step is at least sigma / 200 to
    # save memory.
    step = max(min(sigma / 20, sigma**2 / 4), sigma / 200)
    num_steps = int(np.ceil((high - low) / step))
    points = np.linspace(low, high, num_steps + 1)

    log_normalizer = np.log(sigma * np.sqrt(2 * np.pi))
    log_density = -(points**2) / (2 * sigma**2) - log_normalizer
    log_likelihood_ratio = (2 * points - 1) / (2 * sigma**2)
    # The ratio of the mixture's density to that of N(0, sigma^2): 1 - q + q L.
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + log_likelihood_ratio)
    log_sum = special.logsumexp(log_density + order * log_ratio)
    return float(log_sum + np.log(points[1] - points[0]))  # times the step
