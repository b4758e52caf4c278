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

OLD_DELTA = 1e-5
# Opacus' orders.
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())
LEAST_EPSILON = 0.15  # below it the public code's search for a noise multiplier gives up
LEAST_LOWER = 0.2  # which it composes in place of a smaller lower end
_LEAST_SIGMA = 1e-3  # the range in which `renyi_noise` searches
_MOST_SIGMA = 1e4
_LEAST_NOISY_EPSILON = 0.01
_REACH = 13.0  # deviations, of a quadrature
_REPETITIONS = 150  # of the procedure, where a perfect canary's estimate is simulated
_CAVEAT = "threshold chosen on these scores: not a confidence bound"


class RoundEstimate(NamedTuple):
    """A round's estimate, and its interval.

    Attributes:
      estimate: The estimate.
      lower: The same formula at the upper ends of two-sided Clopper-Pearson intervals of both rates.
      upper: At their lower ends. The interval makes no correction for the choice of the threshold.
    """

    estimate: Estimate
    lower: float
    upper: float


class Charge(NamedTuple):
    """Rounds that are charged in the same way.

    Attributes:
      noise_multiplier: Of each round.
      sampling_rate: The rate at which clients are sampled.
      rounds: How many rounds.
    """

    noise_multiplier: float
    sampling_rate: float
    rounds: int


class _Errors(NamedTuple):
    """Errors of the guesses "in where score >= threshold", an entry for each threshold.

    Attributes:
      thresholds: Falling.
      false_positives: Counts.
      false_negatives: Counts.
      n_in: The number of scores in.
      n_out: The number of scores out.
    """

    thresholds: Array
    false_positives: Counts
    false_negatives: Counts
    n_in: int
    n_out: int

    def sum_rates(self) -> Array:
        """Returns the sum of both error rates at each threshold."""
        return self.false_positives / self.n_out + self.false_negatives / self.n_in


def best_epsilon(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    confidence: float = 0.95,
    delta: float | None = None,
) -> RoundEstimate:
    """Returns the published estimate: the largest epsilon over thresholds at which both errors occur.

    Infinite where a threshold separates the worlds; otherwise 0 where no threshold has both errors.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      confidence: Of the intervals of both rates.
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
    """Returns the estimate of the public code until February 2023: epsilon at the threshold of best accuracy.

    Only thresholds at which both errors occur are candidates; worlds that a threshold separates give
    infinity.

    Args:
      scores_in: (n,) scores with the canary.
      scores_out: (m,) scores without it.
      confidence: Of the intervals of both rates.
      delta: The delta of epsilon.

    Raises:
      InputError: Scores that are empty or not finite.
    """
    errors = _count_errors(*check_finite_scores(scores_in, scores_out))
    have_both_errors = np.isfinite(_compute_epsilons(errors, delta))
    ranked = np.where(have_both_errors, -errors.sum_rates(), -np.inf)
    return _estimate_at_best("canife_old", errors, ranked, delta, confidence)


def largest_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Returns the largest share of right guesses over all thresholds, both worlds weighted equally."""
    errors = _count_errors(*check_finite_scores(scores_in, scores_out))
    return float(1 - min(errors.sum_rates().min(), 1.0) / 2)


def largest_estimate(n_in: int, n_out: int, delta: float) -> float:
    """Returns the largest finite value that `best_epsilon` can show: with a single error in each world.

    Args:
      n_in: How many scores there are with the canary.
      n_out: How many there are without it.
      delta: Of epsilon.
    """
    return float(conversions.epsilon_from_rates(1 / n_out, 1 / n_in, delta))


def renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """Returns epsilon at delta of one Gaussian release by Renyi DP; infinite without noise.

    Its divergence at order a is a / (2 sigma^2). Orders are Opacus', and the conversion to epsilon is that of
    Balle et al. (2020).
    """
    return _convert_divergences(divergences(noise_multiplier, sampling_rate=1.0), delta)


def renyi_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which `renyi_epsilon` is this epsilon: its inverse in the noise.

    It is 0 for an infinite epsilon, and for those so large that less noise than 0.001 has them.

    Raises:
      InputError: An epsilon below 0.01, or below what `renyi_epsilon` reaches with any noise.
    """
    conversions.require_delta(delta)
    least_epsilon = max(_LEAST_NOISY_EPSILON, renyi_epsilon(_MOST_SIGMA, delta))
    rounded_up = np.ceil(1000 * least_epsilon) / 1000
    require(
        epsilon >= least_epsilon,
        f"epsilon is {epsilon:g}: at delta {delta:g} give at least {rounded_up:g}",
    )
    largest_epsilon = renyi_epsilon(_LEAST_SIGMA, delta)
    if np.isinf(epsilon) or epsilon >= largest_epsilon:
        return 0.0

    def compute_excess(sigma: float) -> float:
        return renyi_epsilon(float(sigma), delta) - epsilon

    return float(scipy.optimize.brentq(compute_excess, _LEAST_SIGMA, _MOST_SIGMA, rtol=1e-13))


def gaussian_noise(epsilon: float, delta: float) -> float:
    """Returns the noise multiplier at which a Gaussian release has exactly this epsilon at delta.

    It is 1 / mu of the Gaussian trade-off curve with that epsilon, and 0 for an infinite epsilon.
    """
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


def renyi_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that the public code charges a round for its estimated epsilon.

    It is the `renyi_noise` of the estimate, or of 0.15 if the estimate is smaller, and the round's true noise
    multiplier if the estimate is infinite.
    """
    if np.isinf(epsilon):
        return true_noise
    return renyi_noise(max(epsilon, LEAST_EPSILON), delta)


def gaussian_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """Returns the noise multiplier that a round is charged by the exact Gaussian curve (`gaussian_noise`).

    As by `renyi_charge`, an estimate below 0.15 is raised to that, and an infinite estimate is charged the
    true noise.
    """
    if np.isinf(epsilon):
        return true_noise
    return gaussian_noise(max(epsilon, LEAST_EPSILON), delta)


def lower_charged(estimate: RoundEstimate) -> float:
    """Returns the interval's lower end as the public code composes it: at least 0.2."""
    return max(estimate.lower, LEAST_LOWER)


@functools.lru_cache(maxsize=4096)
def divergences(noise_multiplier: float, sampling_rate: float) -> Array:
    """Returns the Renyi divergence of a round at each of ORDERS; infinite without noise.

    At order a it is log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] / (a - 1) over x ~ N(0, sigma^2)
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
    values = []
    for order in ORDERS:
        values.append(_integrate_log_moment(noise_multiplier, sampling_rate, order) / (order - 1))
    return np.asarray(np.maximum(values, 0.0))


def forward(measured: Sequence[int], total: int) -> list[int]:
    """Returns how many rounds each measured round represents, as the paper charges them.

    Rounds count from 1. A measured round represents itself and those up to the next, the last measured round
    those up to the end of training.
    """
    _require_measured(measured, total)
    return [int(n) for n in np.diff([*measured, total + 1])]


def backward(measured: Sequence[int], total: int) -> list[int]:
    """Returns how many rounds each measured round represents, as the public code charges them.

    A measured round represents itself and the rounds since the measured round before; rounds after the last
    are free (Errata C8).
    """
    _require_measured(measured, total)
    return [int(n) for n in np.diff([0, *measured])]


def cumulative(charges: Sequence[Charge], delta: float) -> list[float]:
    """Returns epsilon at delta after each of these Poisson-sampled Gaussian rounds, by Renyi DP.

    With Opacus' orders; infinite from the first round on that counts and has no noise.
    """
    conversions.require_delta(delta)
    total = np.zeros(len(ORDERS))
    epsilons = []
    for charge in charges:
        if charge.rounds:
            total = total + charge.rounds * divergences(
                charge.noise_multiplier, charge.sampling_rate
            )
        epsilon = 0.0
        if total.any():
            epsilon = _convert_divergences(total, delta)
        epsilons.append(epsilon)
    return epsilons


def composed(charges: Sequence[Charge], delta: float) -> float:
    """Returns epsilon at delta after the last of these rounds (see `cumulative`); 0 for none."""
    if not charges:
        return 0.0
    return cumulative(charges, delta)[-1]


class Ideal(NamedTuple):
    """The estimates of a perfect canary, at delta = 1/n.

    Attributes:
      mean: Of those that are finite; infinite where none is.
      deviation: Of those that are finite; NaN where none is.
      composed: What the median of all becomes over a training run.
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
    """Returns what the published procedure shows of a perfect canary.

    Its score is N(1, sigma^2) in and N(0, sigma^2) out, so that the release of the round leaks all that its
    noise allows (Errata C9).

    Args:
      rng: Draws the scores.
      charge: The rounds, and their true noise.
      delta: The delta of the composition.
      scores: The number of scores in both worlds together.
    """
    half = scores // 2
    sigma = charge.noise_multiplier
    draws = sigma * rng.standard_normal((_REPETITIONS, 2, half))
    epsilons = []
    for noise_in, noise_out in draws:
        epsilons.append(best_epsilon(1 + noise_in, noise_out).estimate.epsilon)
    median = float(np.median(epsilons))
    noise = renyi_charge(median, 1 / scores, sigma)
    total = composed([charge._replace(noise_multiplier=noise)], delta)

    finite = np.array([epsilon for epsilon in epsilons if np.isfinite(epsilon)])
    if not len(finite):
        return Ideal(np.inf, np.nan, total)
    return Ideal(float(finite.mean()), float(finite.std()), total)


def _count_errors(s_in: Array, s_out: Array) -> _Errors:
    """Counts the errors of guessing "in" where score >= threshold, at every distinct score as threshold.

    Equal scores fall on the same side. A score out at or above the threshold is a false positive, a score in
    below it a false negative.

    Args:
      s_in: (n_in,) scores with the canary.
      s_out: (n_out,) scores without it.

    Returns:
      The counts at thresholds (T,), which fall.
    """
    thresholds = np.unique(np.concatenate([s_in, s_out]))[::-1]
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
    """Returns epsilon at each threshold, log((1 - delta - fnr) / fpr) or its mirror, of observed error rates.

    It is -inf where only one error occurs, +inf where neither does.
    """
    fpr = errors.false_positives / errors.n_out
    fnr = errors.false_negatives / errors.n_in
    epsilons = conversions.epsilon_from_rates(fpr, fnr, delta)
    has_neither = (errors.false_positives == 0) & (errors.false_negatives == 0)
    has_both = (errors.false_positives > 0) & (errors.false_negatives > 0)
    return np.where(has_neither, np.inf, np.where(has_both, epsilons, -np.inf))


def _estimate_at_best(
    method: str, errors: _Errors, ranked: Array, delta: float, confidence: float
) -> RoundEstimate:
    """Returns the estimate at the first threshold of the highest rank; infinite for separated worlds.

    Args:
      method: The estimator's name.
      errors: At each threshold.
      ranked: (T,) a number for each threshold; the threshold of the highest is chosen.
      delta: The delta of epsilon.
      confidence: Of the intervals of both rates.
    """
    conversions.require_levels(delta, confidence)
    epsilons = _compute_epsilons(errors, delta)
    best = int(np.argmax(np.where(np.isposinf(epsilons), np.inf, ranked)))
    false_positives = int(errors.false_positives[best])
    false_negatives = int(errors.false_negatives[best])
    fpr = intervals.clopper_pearson(false_positives, errors.n_out, confidence)
    fnr = intervals.clopper_pearson(false_negatives, errors.n_in, confidence)
    lower = float(conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta))
    upper = float(conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta))
    estimate = Estimate(
        method,
        epsilon=max(float(epsilons[best]), 0.0),
        mu=None,
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
    """Raises InputError unless there are measured rounds, which rise within 1 to total."""
    rising = bool(np.all(np.diff([0, *measured, total + 1]) > 0))
    require(
        measured and rising,
        f"measured rounds {list(measured)[:5]} do not rise within 1 to {total}",
    )


def _convert_divergences(total: Array, delta: float) -> float:
    """Returns the least epsilon at delta over ORDERS of a composition with these divergences, at least 0.

    At order a it is divergence + log(1 - 1/a) - (log delta + log a) / (a - 1) (Balle et al., 2020, Theorem
    21).

    Args:
      total: The divergences at ORDERS.
      delta: Of epsilon.
    """
    orders = np.array(ORDERS)
    conversion = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(total + conversion)), 0.0)


def _integrate_log_moment(sigma: float, rate: float, order: float) -> float:
    """Returns log E[(1 - q + q likelihood ratio)^order] of a sampled Gaussian release, by trapezoids.

    The likelihood ratio is N(1, sigma^2) to N(0, sigma^2), at draws of the latter. Trapezoids are right to
    rounding on a smooth integrand.

    Args:
      sigma: The noise multiplier.
      rate: q, the sampling rate.
      order: Of the Renyi divergence.
    """
    low = -_REACH * sigma
    high = order + _REACH * sigma
    # The likelihood ratio grows e-fold over sigma^2, which takes finer steps where sigma is small.
    step = max(min(sigma / 20, sigma**2 / 4), sigma / 200)
    points = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
    log_density = -(points**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    log_likelihood_ratio = (2 * points - 1) / (2 * sigma**2)
    log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + log_likelihood_ratio)
    log_sum = special.logsumexp(log_density + order * log_ratio)
    return float(log_sum + np.log(points[1] - points[0]))
