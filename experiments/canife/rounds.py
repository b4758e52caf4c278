"""CANIFE's estimates from a frozen round's scores, and what they become over a training run.

    new      the threshold of the largest epsilon, at delta = 1/n for n scores in all
    old      the threshold of the largest accuracy, at delta = 1e-5 (the public code until February 2023)

Neither is a confidence bound: the threshold is chosen on the scores that it then counts, and the most that n
scores per world can show is log((1 - delta) n - 1) whatever leaks (Errata C6, C7). An epsilon becomes a noise
multiplier in two ways: the published inversion by Renyi DP, and the exact one of the Gaussian curve (Errata
C5).

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

from audit.errors import require
from audit.laws import conversions, intervals
from audit.methods.estimate import Estimate, check_finite_scores

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

OLD_DELTA = 1e-5  # the delta of the public code until February 2023
# The orders of Renyi DP that Opacus takes.
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())
LEAST_EPSILON = 0.15  # below it the public code's search for a noise multiplier gives up
LEAST_LOWER = 0.2  # the public code composes it in place of a smaller lower end of an interval
_LEAST_SIGMA = 1e-3  # the range in which `renyi_noise` searches
_MOST_SIGMA = 1e4
_LEAST_NOISY_EPSILON = 0.01
_REACH = 13.0  # standard deviations that a quadrature's grid reaches below 0 and above the order
_REPETITIONS = 150  # of the procedure, where a perfect canary's estimate is simulated
_CAVEAT = "threshold chosen on these scores: not a confidence bound"


class RoundEstimate(NamedTuple):
    """A round's estimate, and its interval.

    Attributes:
      estimate: The estimate of epsilon, from the error rates at a threshold.
      lower: The same formula at the upper ends of both error rates' two-sided Clopper-Pearson intervals.
      upper: The same formula at the lower ends. The choice of the threshold is not corrected for.
    """

    estimate: Estimate
    lower: float
    upper: float


class Charge(NamedTuple):
    """Rounds that the composition counts as Poisson-sampled Gaussian releases of the same noise.

    Attributes:
      noise_multiplier: The noise multiplier of each round.
      sampling_rate: The probability with which a client takes part in a round.
      rounds: The number of rounds.
    """

    noise_multiplier: float
    sampling_rate: float
    rounds: int


class _Errors(NamedTuple):
    """Errors of guessing "with the canary" where score >= threshold, for each of T thresholds.

    Attributes:
      thresholds: (T,) the thresholds, from the largest to the smallest.
      false_positives: (T,) the numbers of scores without the canary that are guessed wrong.
      false_negatives: (T,) the numbers of scores with the canary that are guessed wrong.
      n_in: The number of scores with the canary.
      n_out: The number of scores without it.
    """

    thresholds: Array
    false_positives: Counts
    false_negatives: Counts
    n_in: int
    n_out: int

    def sum_rates(self) -> Array:
        """Returns the sum of both error rates at each threshold, (T,)."""
        return self.false_positives / self.n_out + self.false_negatives / self.n_in


def best_epsilon(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float = 0.95,
    delta: float | None = None,
) -> RoundEstimate:
    """Returns the published estimate: the largest epsilon over thresholds at which both errors occur.

    The errors are false positives and false negatives of guessing "with the canary" at scores that reach the
    threshold. A threshold with neither error separates the two worlds' scores. If there is such a threshold,
    the estimate is infinite. Otherwise only thresholds with both errors count. The estimate is 0 if there are
    none, or if epsilon is negative at all of them.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      confidence: The confidence of the intervals of both error rates.
      delta: The delta of epsilon; None: 1 / (n + m).

    Raises:
      InputError: Scores that are empty or not finite.
    """
    errors = _count_errors(*check_finite_scores(scores_in, scores_out))
    if delta is None:
        delta = 1 / (errors.n_in + errors.n_out)
    epsilons = _compute_epsilons(errors, delta)
    return _estimate_at_best("canife", errors, epsilons, delta, confidence)


def best_accuracy(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float = 0.95, delta: float = OLD_DELTA
) -> RoundEstimate:
    """Returns the public code's estimate until February 2023: epsilon at the threshold of best accuracy.

    The accuracy is best where the sum of the false-positive and the false-negative rate is smallest.
    Only thresholds at which both errors occur are candidates. The estimate is infinite where a threshold
    separates the two worlds' scores.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      confidence: The confidence of the intervals of both error rates.
      delta: The delta of epsilon.

    Raises:
      InputError: Scores that are empty or not finite.
    """
    errors = _count_errors(*check_finite_scores(scores_in, scores_out))
    # Epsilon is -inf at thresholds where a single kind of error occurs, and inf where neither does.
    have_both_errors = np.isfinite(_compute_epsilons(errors, delta))
    ranks = np.where(have_both_errors, -errors.sum_rates(), -np.inf)  # few errors: a high rank
    return _estimate_at_best("canife_old", errors, ranks, delta, confidence)


def largest_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the largest share of right guesses over all thresholds, both worlds weighted equally."""
    errors = _count_errors(*check_finite_scores(scores_in, scores_out))
    return float(1 - min(errors.sum_rates().min(), 1.0) / 2)


def largest_estimate(n_in: int, n_out: int, delta: float) -> float:
    """Returns the largest finite value that `best_epsilon` can show, however much leaks.

    It is reached where the best threshold has a single false positive and a single false negative.

    Args:
      n_in: The number of scores with the canary.
      n_out: The number of scores without it.
      delta: The delta of epsilon.
    """
    return float(conversions.epsilon_from_rates(1 / n_out, 1 / n_in, delta))


def renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns epsilon at delta of a single Gaussian release, by Renyi DP; infinite without noise.

    The release's Renyi divergence at order a is a / (2 sigma^2). The orders are those of Opacus, and the
    conversion to epsilon is that of Balle et al. (2020).
    """
    return _convert_divergences(divergences(noise_multiplier, sampling_rate=1.0), delta)


def renyi_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which `renyi_epsilon` is this epsilon.

    It is searched between _LEAST_SIGMA = 0.001 and _MOST_SIGMA = 10,000, which no setting's noise multiplier
    exceeds. For an epsilon that would need 0.001 or less, such as an infinite epsilon, it is 0.

    Raises:
      InputError: An epsilon below 0.01, or so small that it would need more than 10,000.
    """
    conversions.require_delta(delta)
    # At a large delta `renyi_epsilon` is 0 for all large noise multipliers, so an epsilon of 0 would have no
    # single answer. The limit _LEAST_NOISY_EPSILON = 0.01 refuses it.
    least_epsilon = max(_LEAST_NOISY_EPSILON, renyi_epsilon(_MOST_SIGMA, delta))
    # Rounded up, so that the epsilon that the message advises is accepted.
    rounded_up = np.ceil(1000 * least_epsilon) / 1000
    require(
        epsilon >= least_epsilon,
        f"epsilon is {epsilon:g}: at delta {delta:g} give at least {rounded_up:g}",
    )
    largest_epsilon = renyi_epsilon(_LEAST_SIGMA, delta)
    if epsilon >= largest_epsilon:
        return 0.0

    def compute_excess(sigma: float) -> float:
        """Returns how far epsilon at a noise multiplier lies above the given epsilon."""
        return renyi_epsilon(float(sigma), delta) - epsilon

    return float(scipy.optimize.brentq(compute_excess, _LEAST_SIGMA, _MOST_SIGMA, rtol=1e-13))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which a Gaussian release has exactly this epsilon at delta.

    It is 1 / mu of the Gaussian trade-off curve with that epsilon, and 0 for an infinite epsilon.
    """
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


def renyi_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that the public code charges a round for its estimated epsilon.

    It is `renyi_noise` of the estimate, or of 0.15 if the estimate is smaller: below that the public code's
    search gives up. If the estimate is infinite, it is the round's true noise multiplier.

    Args:
      epsilon: The round's estimate.
      delta: The delta of the estimate.
      true_noise: The round's true noise multiplier.
    """
    if np.isinf(epsilon):
        return true_noise
    return renyi_noise(max(epsilon, LEAST_EPSILON), delta)


def gaussian_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that a round is charged for its epsilon by the exact Gaussian curve.

    It is `gaussian_noise` of epsilon, or of 0.15 if epsilon is smaller, as in `renyi_charge`. If epsilon is
    infinite, it is the round's true noise multiplier.

    Args:
      epsilon: The round's epsilon.
      delta: The delta of epsilon.
      true_noise: The round's true noise multiplier.
    """
    if np.isinf(epsilon):
        return true_noise
    return gaussian_noise(max(epsilon, LEAST_EPSILON), delta)


def lower_charged(estimate: RoundEstimate) -> float:
    """Returns the lower end of a round's interval as the public code composes it: 0.2 if it is smaller."""
    return max(estimate.lower, LEAST_LOWER)


@functools.lru_cache(maxsize=4096)
def divergences(noise_multiplier: float, sampling_rate: float) -> Array:
    """Returns the Renyi divergence of a round at each of ORDERS; infinite without noise.

    A round is a Poisson-sampled Gaussian release. At sampling rate q, noise multiplier sigma and order a, the
    divergence is log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] / (a - 1) over x ~ N(0, sigma^2)
    (Mironov, Talwar and Zhang, 2019, Theorem 4).

    Raises:
      InputError: Unless noise_multiplier >= 0 and 0 < sampling_rate <= 1.
    """
    require(
        noise_multiplier >= 0,
        f"`noise_multiplier={noise_multiplier:g}`: give 0 or a number above it",
    )
    require(
        0 < sampling_rate <= 1,
        f"`sampling_rate={sampling_rate:g}`: give a number above 0, at most 1",
    )
    orders = np.array(ORDERS)
    if noise_multiplier == 0:
        return np.full(len(orders), np.inf)
    if sampling_rate == 1:
        return np.asarray(orders / (2 * noise_multiplier**2))
    divergence_by_order = []
    for order in ORDERS:
        log_moment = _integrate_log_moment(noise_multiplier, sampling_rate, order)
        divergence_by_order.append(log_moment / (order - 1))
    # Rounding can make a divergence near 0 negative.
    return np.asarray(np.maximum(divergence_by_order, 0.0))


def forward(measured: Sequence[int], total: int) -> list[int]:
    """Returns how many rounds each measured round represents, as the paper charges them.

    A measured round represents itself and the rounds after it, up to the next measured round or to the end of
    training.

    Args:
      measured: The numbers of the measured rounds, rising; rounds count from 1.
      total: The number of all rounds.
    """
    _require_measured(measured, total)
    return [int(n) for n in np.diff([*measured, total + 1])]


def backward(measured: Sequence[int], total: int) -> list[int]:
    """Returns how many rounds each measured round represents, as the public code charges them.

    A measured round represents itself and the rounds before it, back to the previous measured round. Rounds
    after the last measured round are not charged (Errata C8).

    Args:
      measured: The numbers of the measured rounds, rising; rounds count from 1.
      total: The number of all rounds.
    """
    _require_measured(measured, total)
    return [int(n) for n in np.diff([0, *measured])]


def cumulative(charges: Sequence[Charge], delta: float) -> list[float]:
    """Returns epsilon at delta after each charge, of all rounds charged so far, by Renyi DP.

    The orders are those of Opacus. Epsilon is infinite from the first charge on that has rounds and no noise.

    Args:
      charges: Groups of Poisson-sampled Gaussian rounds, in order.
      delta: The delta of epsilon.
    """
    conversions.require_delta(delta)
    total = np.zeros(len(ORDERS))  # Renyi divergences, which add up over rounds
    epsilons = []
    for charge in charges:
        if charge.rounds:  # 0 rounds without noise would be 0 times an infinite divergence
            total = total + charge.rounds * divergences(
                charge.noise_multiplier, charge.sampling_rate
            )
        epsilon = 0.0
        if total.any():  # the conversion would give more than 0 where nothing is charged
            epsilon = _convert_divergences(total, delta)
        epsilons.append(epsilon)
    return epsilons


def composed(charges: Sequence[Charge], delta: float) -> float:
    """Returns epsilon at delta of all charged rounds (see `cumulative`); 0 where nothing is charged."""
    if not charges:
        return 0.0
    return cumulative(charges, delta)[-1]


class Ideal(NamedTuple):
    """The published estimates of a perfect canary over repeated simulations, at delta = 1/n for n scores.

    Attributes:
      mean: The mean of the finite estimates; infinite where none is finite.
      deviation: The standard deviation of the finite estimates; NaN where none is finite.
      composed: Epsilon of the training run if the median of all estimates is charged to every round.
    """

    mean: float
    deviation: float
    composed: float


def ideal(
    rng: np.random.Generator,
    charge: Charge,
    delta: float,
    scores: int = 100,
) -> Ideal:
    """Simulates what the published procedure shows of a perfect canary (Errata C9).

    The score of a perfect canary is N(1, sigma^2) with the canary and N(0, sigma^2) without it. Such a canary
    leaks all that the round's noise allows.

    Args:
      rng: The generator of the scores.
      charge: The training run's rounds, with their true noise multiplier sigma.
      delta: The delta of the training run's epsilon.
      scores: The number n of scores of an estimate, in both worlds together; half are in each world.

    Returns:
      The mean and deviation of the finite estimates of _REPETITIONS simulated rounds, and the training run's
        epsilon if the median of all estimates is charged to every round.
    """
    scores_per_world = scores // 2  # an odd n is rounded down to an even number
    sigma = charge.noise_multiplier
    draws = sigma * rng.standard_normal((_REPETITIONS, 2, scores_per_world))
    epsilons = []
    for noise_in, noise_out in draws:
        # At delta 1/n for the n that is given, as that of measured rounds, also where n is odd.
        estimate = best_epsilon(1 + noise_in, noise_out, delta=1 / scores).estimate
        epsilons.append(estimate.epsilon)

    # The median is over all estimates, infinite ones too. It becomes the noise multiplier of every round.
    median = float(np.median(epsilons))
    noise = renyi_charge(median, 1 / scores, sigma)
    total = composed([charge._replace(noise_multiplier=noise)], delta)

    finite = np.array([epsilon for epsilon in epsilons if np.isfinite(epsilon)])
    if not len(finite):
        return Ideal(np.inf, np.nan, total)
    return Ideal(float(finite.mean()), float(finite.std()), total)


def _count_errors(s_in: Array, s_out: Array) -> _Errors:
    """Counts the errors of guessing "with the canary" where score >= threshold.

    Each distinct score is a threshold. A score without the canary at or above the threshold is a false
    positive. A score with the canary below the threshold is a false negative.

    Args:
      s_in: (n_in,) scores with the canary.
      s_out: (n_out,) scores without it.

    Returns:
      The counts at T thresholds, from the largest to the smallest.
    """
    thresholds = np.unique(np.concatenate([s_in, s_out]))[::-1]  # falling
    # The number of scores below each threshold.
    below_in = np.searchsorted(np.sort(s_in), thresholds, side="left")
    below_out = np.searchsorted(np.sort(s_out), thresholds, side="left")
    return _Errors(
        thresholds=thresholds,
        false_positives=len(s_out) - below_out,
        false_negatives=below_in,
        n_in=len(s_in),
        n_out=len(s_out),
    )


def _compute_epsilons(errors: _Errors, delta: float) -> Array:
    """Returns epsilon at each threshold (T,) from the observed error rates.

    It is the larger of log((1 - delta - fnr) / fpr) and log((1 - delta - fpr) / fnr), with the false-positive
    rate fpr and the false-negative rate fnr. Where neither kind of error occurs, it is +inf. Where only one
    kind occurs, it is -inf, since the public code leaves out such a threshold (Errata C7).
    """
    fpr = errors.false_positives / errors.n_out
    fnr = errors.false_negatives / errors.n_in
    epsilons = conversions.epsilon_from_rates(fpr, fnr, delta)
    has_neither = (errors.false_positives == 0) & (errors.false_negatives == 0)
    has_both = (errors.false_positives > 0) & (errors.false_negatives > 0)
    return np.where(has_neither, np.inf, np.where(has_both, epsilons, -np.inf))


def _estimate_at_best(
    method: str, errors: _Errors, ranks: Array, delta: float, confidence: float
) -> RoundEstimate:
    """Returns the estimate of epsilon at the threshold with the highest rank, and its interval.

    A threshold that separates the two worlds' scores comes before all others, and gives an infinite estimate.
    Of several thresholds with the highest rank, the first is taken.

    The interval follows from the Clopper-Pearson intervals of both error rates, and is not corrected for the
    choice of the threshold. The estimate and the ends of its interval are at least 0.

    Args:
      method: The estimator's name.
      errors: The errors at each of T thresholds.
      ranks: (T,) the rank of each threshold, higher for a better threshold.
      delta: The delta of epsilon.
      confidence: The confidence of the intervals of both error rates.
    """
    conversions.require_levels(delta, confidence)
    epsilons = _compute_epsilons(errors, delta)
    separates = np.isposinf(epsilons)
    best = int(np.argmax(np.where(separates, np.inf, ranks)))
    false_positives = int(errors.false_positives[best])
    false_negatives = int(errors.false_negatives[best])

    fpr = intervals.clopper_pearson(false_positives, errors.n_out, confidence)
    fnr = intervals.clopper_pearson(false_negatives, errors.n_in, confidence)
    # Larger error rates give a smaller epsilon.
    lower = float(conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta))
    upper = float(conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta))
    estimate = Estimate(
        method,
        epsilon=max(float(epsilons[best]), 0.0),
        mu=None,  # the estimate is of epsilon alone
        delta=delta,
        confidence=confidence,
        threshold=float(errors.thresholds[best]),
        false_positives=false_positives,
        false_negatives=false_negatives,
        n_in=errors.n_in,
        n_out=errors.n_out,
        caveat=_CAVEAT,
    )
    return RoundEstimate(estimate, max(lower, 0.0), max(upper, 0.0))


def _require_measured(measured: Sequence[int], total: int) -> None:
    """Raises InputError unless there are measured rounds, and their numbers rise within 1 to total."""
    rising = bool(np.all(np.diff([0, *measured, total + 1]) > 0))
    # The message shows the first five numbers: there may be many.
    require(
        measured and rising,
        f"measured rounds {list(measured)[:5]} do not rise within 1 to {total}",
    )


def _convert_divergences(total: Array, delta: float) -> float:
    """Returns epsilon at delta for Renyi divergences: the least over ORDERS, and at least 0.

    At order a it is divergence + log(1 - 1/a) - (log delta + log a) / (a - 1) (Balle et al., 2020, Theorem
    21).

    Args:
      total: The divergences of a composition, at each of ORDERS.
      delta: The delta of epsilon.
    """
    orders = np.array(ORDERS)
    conversion = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(total + conversion)), 0.0)


def _integrate_log_moment(sigma: float, rate: float, order: float) -> float:
    """Returns log E[(1 - q + q L(x))^order] over x ~ N(0, sigma^2), for a Poisson-sampled Gaussian release.

    L is the likelihood ratio of N(1, sigma^2) to N(0, sigma^2). The integral is computed by trapezoids. For a
    smooth integrand that is negligible at both ends, their error is no more than rounding.

    Args:
      sigma: The noise multiplier.
      rate: The sampling rate q.
      order: The order of the Renyi divergence.
    """
    # The density times L^k is that of N(k, sigma^2), up to a factor, and k reaches from 0 to the order. So
    # the integrand falls off below 0 and above the order, with deviation sigma. It is negligible at a
    # distance of _REACH = 13 deviations.
    low = -_REACH * sigma
    high = order + _REACH * sigma
    # The density varies over a distance sigma, and the likelihood ratio grows by a factor e over a distance
    # sigma^2. The steps are fractions of both, small enough for rounding to be the larger error.
    fine_step = min(sigma / 20, sigma**2 / 4)
    # No finer than sigma / 200, so that the grid does not outgrow memory. This acts where sigma < 0.02. There
    # nearly all of the integral lies where q L is far above 1: the integrand is then a Gaussian density with
    # deviation sigma, up to a factor.
    step = max(fine_step, sigma / 200)
    points = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)

    log_density = -(points**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    log_likelihood_ratio = (2 * points - 1) / (2 * sigma**2)
    # log(1 - q + q L) for q = rate: the ratio of the mixed density to that of N(0, sigma^2)
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + log_likelihood_ratio)
    log_sum = special.logsumexp(log_density + order * log_ratio)
    return float(log_sum + np.log(points[1] - points[0]))  # times the distance of two points
