"""CANIFE's estimates from a frozen round's scores, and what they become over a training run.

Neither estimate is a confidence bound: the threshold is chosen on the scores that it then counts, and n
scores per world show at most log((1 - delta) n - 1) whatever leaks (Errata C6, C7). An epsilon becomes a
noise multiplier in two ways: the published inversion by Renyi DP, and the exact one of the Gaussian curve
(Errata C5).

Source: Maddock, Sablayrolles and Stock, "CANIFE: Crafting canaries for empirical privacy measurement in
federated learning" (ICLR 2023), Algorithms 1 and 2, and its public code.

Rounds are composed by Renyi DP of the Poisson-sampled Gaussian mechanism, by quadrature: dp-accounting's
series leaves out orders below about 1.7 at these sampling rates and noise, and with them the least epsilon:
it gives 51.0 in place of 50.0 (CelebA's, at sigma = 0.4166). Source: Mironov, Talwar and Zhang, "Renyi
differential privacy of the sampled Gaussian mechanism" (2019), Theorem 4 and Equation 1; the conversion is of
Balle et al. (2020), Theorem 21.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws import conversions, intervals

Array = NDArray[np.float64]

OLD_DELTA = 1e-5  # the delta of the public code until February 2023
# The orders of Renyi DP that Opacus takes.
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())
MIN_EPSILON = 0.15  # below it the public code's search for a noise multiplier gives up
MIN_LOWER = 0.2  # the public code composes it in place of a smaller lower end of an interval
_MIN_SIGMA = 1e-3  # the range in which `renyi_noise` searches
_MAX_SIGMA = 1e4
_REACH = 13.0  # standard deviations that a quadrature's grid reaches below 0 and above the order
_REPETITIONS = 150  # of the procedure, where a perfect canary's estimate is simulated


class RoundEstimate(NamedTuple):
    """A round's estimate of epsilon, which is no confidence bound.

    Attributes:
      epsilon: The estimate, from the error rates at the threshold; infinite where it separates the worlds.
      lower: The same formula at the upper ends of both error rates' two-sided Clopper-Pearson intervals.
      upper: The same formula at the lower ends. The choice of the threshold is not corrected for.
      threshold: The threshold; a score that reaches it is guessed to be with the canary.
      false_positives: The number of scores without the canary that are guessed wrong.
      false_negatives: The number of scores with the canary that are guessed wrong.
    """

    epsilon: float
    lower: float
    upper: float
    threshold: float
    false_positives: int
    false_negatives: int


class Charge(NamedTuple):
    """Rounds that the composition counts as Poisson-sampled Gaussian releases of the same noise.

    Attributes:
      noise_multiplier: The noise multiplier of each round.
      sampling_rate: The probability with which a client takes part in a round.
      rounds: The number of rounds, at least 1.
    """

    noise_multiplier: float
    sampling_rate: float
    rounds: int


class Ideal(NamedTuple):
    """The published estimates of a perfect canary over repeated simulations, at delta = 1/n for n scores.

    Attributes:
      mean: The mean of the finite estimates.
      deviation: The standard deviation of the finite estimates.
      composed: Epsilon of the training run if the median of all estimates is charged to every round.
    """

    mean: float
    deviation: float
    composed: float


class _Errors:
    """The errors of guessing "with the canary" at scores that reach a threshold, for each distinct score."""

    def __init__(self, scores_in: ArrayLike, scores_out: ArrayLike) -> None:
        s_in = np.sort(np.asarray(scores_in, np.float64))
        s_out = np.sort(np.asarray(scores_out, np.float64))
        self.n_in = len(s_in)
        self.n_out = len(s_out)
        self.thresholds = np.unique(np.concatenate([s_in, s_out]))[::-1]  # falling
        self.false_positives = self.n_out - np.searchsorted(s_out, self.thresholds)
        self.false_negatives = np.searchsorted(s_in, self.thresholds)
        self.fpr = self.false_positives / self.n_out
        self.fnr = self.false_negatives / self.n_in

    def compute_epsilons(self, delta: float) -> Array:
        """Returns epsilon at each threshold: inf without errors, -inf with one kind only (Errata C7)."""
        epsilons = conversions.epsilon_from_rates(self.fpr, self.fnr, delta)
        has_both = (self.fpr > 0) & (self.fnr > 0)
        separates = (self.fpr == 0) & (self.fnr == 0)
        return np.where(separates, np.inf, np.where(has_both, epsilons, -np.inf))

    def estimate(self, place: int, delta: float, confidence: float) -> RoundEstimate:
        """Returns the estimate at the threshold with this index."""
        false_positives = int(self.false_positives[place])
        false_negatives = int(self.false_negatives[place])
        fpr = intervals.clopper_pearson(false_positives, self.n_out, confidence)
        fnr = intervals.clopper_pearson(false_negatives, self.n_in, confidence)
        # Larger error rates give a smaller epsilon.
        lower = conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta)
        upper = conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta)
        return RoundEstimate(
            epsilon=max(float(self.compute_epsilons(delta)[place]), 0.0),
            lower=max(float(lower), 0.0),
            upper=max(float(upper), 0.0),
            threshold=float(self.thresholds[place]),
            false_positives=false_positives,
            false_negatives=false_negatives,
        )


def best_epsilon(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float = 0.95
) -> RoundEstimate:
    """Returns the published estimate: the largest epsilon over thresholds at which both errors occur.

    It is infinite if a threshold separates the two worlds' scores, and 0 if no threshold has both errors.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      delta: The delta of epsilon, 1 / (n + m) in the paper.
      confidence: The confidence of the intervals of both error rates.
    """
    errors = _Errors(scores_in, scores_out)
    best = int(np.argmax(errors.compute_epsilons(delta)))
    return errors.estimate(best, delta, confidence)


def best_accuracy(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float = OLD_DELTA, confidence: float = 0.95
) -> RoundEstimate:
    """Returns the public code's estimate until February 2023: epsilon at the threshold of best accuracy.

    Only thresholds at which both errors occur are candidates. It is infinite if a threshold separates the two
    worlds' scores. The arguments are those of `best_epsilon`.
    """
    errors = _Errors(scores_in, scores_out)
    is_candidate = errors.compute_epsilons(delta) > -np.inf
    ranks = np.where(is_candidate, -errors.fpr - errors.fnr, -np.inf)  # few errors: a high rank
    return errors.estimate(int(np.argmax(ranks)), delta, confidence)


def largest_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the largest share of right guesses over all thresholds, both worlds weighted equally."""
    errors = _Errors(scores_in, scores_out)
    return float(1 - min((errors.fpr + errors.fnr).min(), 1.0) / 2)


def renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns epsilon at delta of a single Gaussian release, by Renyi DP; infinite without noise."""
    return _convert_divergences(divergences(noise_multiplier, sampling_rate=1.0), delta)


def renyi_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier, from 0.001 to 10,000, at which `renyi_epsilon` is this epsilon."""

    def compute_excess(sigma: float) -> float:
        return renyi_epsilon(float(sigma), delta) - epsilon

    return float(scipy.optimize.brentq(compute_excess, _MIN_SIGMA, _MAX_SIGMA, rtol=1e-13))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which a Gaussian release has exactly this epsilon at delta."""
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


def renyi_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that the public code charges a round for its estimated epsilon.

    It is `renyi_noise` of the estimate, or of 0.15 if the estimate is smaller. If the estimate is infinite,
    it is the round's true noise multiplier.
    """
    if np.isinf(epsilon):
        return true_noise
    return renyi_noise(max(epsilon, MIN_EPSILON), delta)


@functools.lru_cache(maxsize=4096)
def divergences(noise_multiplier: float, sampling_rate: float) -> Array:
    """Returns the Renyi divergence of a round at each of ORDERS; infinite without noise.

    A round is a Poisson-sampled Gaussian release. At sampling rate q, noise multiplier sigma and order a, the
    divergence is log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] / (a - 1) over x ~ N(0, sigma^2)
    (Mironov, Talwar and Zhang, 2019, Theorem 4).
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


def forward(measured: Sequence[int], total: int) -> list[int]:
    """Returns how many rounds each measured round represents: those up to the next, as in the paper.

    Args:
      measured: The numbers of the measured rounds, rising; rounds count from 1.
      total: The number of all rounds.
    """
    return [int(n) for n in np.diff([*measured, total + 1])]


def backward(measured: Sequence[int]) -> list[int]:
    """Returns how many rounds each measured round represents: since the last, as in the code (Errata C8)."""
    return [int(n) for n in np.diff([0, *measured])]


def cumulative(charges: Sequence[Charge], delta: float) -> list[float]:
    """Returns epsilon at delta after each charge, of all rounds charged so far, by Renyi DP."""
    total = np.zeros(len(ORDERS))  # Renyi divergences, which add up over rounds
    epsilons = []
    for charge in charges:
        one_round = divergences(charge.noise_multiplier, charge.sampling_rate)
        total = total + charge.rounds * one_round
        epsilons.append(_convert_divergences(total, delta))
    return epsilons


def composed(charges: Sequence[Charge], delta: float) -> float:
    """Returns epsilon at delta of all charged rounds; see `cumulative`."""
    return cumulative(charges, delta)[-1]


def ideal(rng: np.random.Generator, charge: Charge, delta: float, scores: int = 100) -> Ideal:
    """Simulates what the published procedure shows of a perfect canary (Errata C9).

    The score of a perfect canary is N(1, sigma^2) with the canary and N(0, sigma^2) without it. Such a canary
    leaks all that the round's noise allows.

    Args:
      rng: The generator of the scores.
      charge: The training run's rounds, with their true noise multiplier sigma.
      delta: The delta of the training run's epsilon.
      scores: The number n of scores of an estimate, half in each world; an odd n is rounded down.
    """
    sigma = charge.noise_multiplier
    draws = sigma * rng.standard_normal((_REPETITIONS, 2, scores // 2))
    epsilons = []
    for noise_in, noise_out in draws:
        epsilons.append(best_epsilon(1 + noise_in, noise_out, 1 / scores).epsilon)
    noise = renyi_charge(float(np.median(epsilons)), 1 / scores, sigma)
    total = composed([charge._replace(noise_multiplier=noise)], delta)
    finite = np.extract(np.isfinite(epsilons), epsilons)
    if not len(finite):
        return Ideal(np.inf, np.nan, total)
    return Ideal(float(finite.mean()), float(finite.std()), total)


def _convert_divergences(total: Array, delta: float) -> float:
    """Returns epsilon at delta for Renyi divergences at ORDERS (Balle et al., 2020, Theorem 21)."""
    orders = np.array(ORDERS)
    conversion = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(total + conversion)), 0.0)


def _integrate_log_moment(sigma: float, rate: float, order: float) -> float:
    """Returns log E[(1 - q + q L(x))^order] over x ~ N(0, sigma^2), by trapezoids.

    L is the likelihood ratio of N(1, sigma^2) to N(0, sigma^2), and q the sampling rate. For a smooth
    integrand that is negligible at both ends, the error is no more than rounding.
    """
    # The density times L^k is that of N(k, sigma^2), up to a factor, and k reaches from 0 to the order. So
    # the integrand falls off below 0 and above the order, with deviation sigma.
    low = -_REACH * sigma
    high = order + _REACH * sigma
    # The density varies over a distance sigma, and the likelihood ratio grows by a factor e over a distance
    # sigma^2. The steps are fractions of both. They are no finer than sigma / 200, so the grid fits in
    # memory: below sigma = 0.02 nearly all of the integral is a Gaussian density with deviation sigma.
    step = max(min(sigma / 20, sigma**2 / 4), sigma / 200)
    points = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)

    log_density = -(points**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    log_likelihood_ratio = (2 * points - 1) / (2 * sigma**2)
    # The ratio of the mixed density to that of N(0, sigma^2): 1 - q + q L.
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + log_likelihood_ratio)
    log_sum = special.logsumexp(log_density + order * log_ratio)
    return float(log_sum + np.log(points[1] - points[0]))  # times the distance of two points
