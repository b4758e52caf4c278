"""A frozen round's scores as CANIFE reads them, and what it makes of them over a training.

    new      the threshold of the largest epsilon, at delta = 1/n
    old      the threshold of the largest accuracy, at delta = 1e-5 (the public code until February 2023)

Neither is a confidence bound: the threshold is chosen on the scores that it then counts, and the most that n
scores a world can show is log((1 - delta) n - 1) whatever leaks (Errata C6, C7). Where a noise multiplier is
asked for, the published inversion by Renyi DP stands beside the exact one of the Gaussian curve (Errata C5).

Source: Maddock, Sablayrolles and Stock, "CANIFE: Crafting canaries for empirical privacy measurement in
federated learning" (ICLR 2023), Algorithms 1 and 2, and its public code.

Trainings are composed by Renyi DP of the Poisson-sampled Gaussian mechanism, by quadrature: dp-accounting's
series leaves out orders below about 1.7 at these sampling rates and noise, and with them the least epsilon,
51.0 where it is 50.0 (CelebA's, at sigma = 0.4166). Source: Mironov, Talwar and Zhang, "Renyi differential
privacy of the sampled Gaussian mechanism" (2019), Theorem 4 and Equation 1; the conversion is of Balle et al.
(2020), Theorem 21.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions, intervals
from audit.statistics.estimate import Estimate, check_finite_scores

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

OLD_DELTA = 1e-5
ORDERS: tuple[float, ...] = (*(np.arange(11, 110) / 10).tolist(), *np.arange(12.0, 64.0).tolist())  # Opacus'
LEAST_EPSILON = 0.15  # below it the public code's search for a noise multiplier gives up
LEAST_LOWER = 0.2
_SIGMAS = 1e-3, 1e4
_REACH = 13.0  # deviations, of a quadrature
_CAVEAT = "threshold chosen on these scores: not a confidence bound"


class RoundEstimate(NamedTuple):
    """One round's estimate, and its formula at the two ends of two-sided Clopper-Pearson intervals of both
    rates; the interval makes no correction for the choice of the threshold."""

    estimate: Estimate
    lower: float
    upper: float


class Charge(NamedTuple):
    """Rounds that are charged alike: a noise multiplier, the rate at which clients are sampled, how many."""

    noise_multiplier: float
    sampling_rate: float
    rounds: int


class _Errors(NamedTuple):
    """Counts of the guesses "in where score >= threshold", an entry a threshold, falling."""

    thresholds: Array
    false_positives: Counts
    false_negatives: Counts

    def wrong(self, n_in: int, n_out: int) -> Array:
        return self.false_positives / n_out + self.false_negatives / n_in


def best_epsilon(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float = 0.95, delta: float | None = None
) -> RoundEstimate:
    """The published estimate: the largest epsilon over thresholds at which both errors occur, at
    delta = 1 / (number of scores) if none is given.

    Worlds that a threshold separates give infinity; where no threshold has both errors, 0. Raises
    InputError for scores that are none.
    """
    s_in, s_out = check_finite_scores(scores_in, scores_out)
    delta = 1 / (len(s_in) + len(s_out)) if delta is None else delta
    errors, sizes = _errors(s_in, s_out), (len(s_in), len(s_out))
    return _estimate("canife", errors, _epsilons(errors, *sizes, delta), sizes, delta, confidence)


def best_accuracy(
    scores_in: ArrayLike, scores_out: ArrayLike, confidence: float = 0.95, delta: float = OLD_DELTA
) -> RoundEstimate:
    """The former estimate: epsilon at the threshold of the largest accuracy among those at which both errors
    occur. Edge cases and errors as in `best_epsilon`."""
    s_in, s_out = check_finite_scores(scores_in, scores_out)
    errors, sizes = _errors(s_in, s_out), (len(s_in), len(s_out))
    ranked = np.where(np.isfinite(_epsilons(errors, *sizes, delta)), -errors.wrong(*sizes), -np.inf)
    return _estimate("canife_old", errors, ranked, sizes, delta, confidence)


def largest_accuracy(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """The largest share of right guesses over all thresholds, worlds weighted alike."""
    s_in, s_out = check_finite_scores(scores_in, scores_out)
    return float(1 - min(_errors(s_in, s_out).wrong(len(s_in), len(s_out)).min(), 1.0) / 2)


def largest_estimate(n_in: int, n_out: int, delta: float) -> float:
    """The largest finite value that `best_epsilon` can show: one error in each world."""
    return float(conversions.epsilon_from_rates(1 / n_out, 1 / n_in, delta))


def renyi_epsilon(noise_multiplier: float, delta: float) -> float:
    """epsilon at delta of one Gaussian release by Renyi DP, with Opacus' orders and the conversion of Balle
    et al. (2020); infinite without noise."""
    return _least_epsilon(divergences(noise_multiplier, 1.0), delta)


def renyi_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier whose single release has this `renyi_epsilon`: 0 for infinity.

    Raises InputError for an epsilon below 0.01.
    """
    require(epsilon >= 0.01, f"epsilon is {epsilon:g}: it must be at least 0.01")
    conversions.require_delta(delta)
    if np.isinf(epsilon) or renyi_epsilon(_SIGMAS[0], delta) <= epsilon:
        return 0.0
    return float(
        scipy.optimize.brentq(lambda s: renyi_epsilon(float(s), delta) - epsilon, *_SIGMAS, rtol=1e-13)
    )


def gaussian_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier whose single release has exactly this epsilon at delta: 0 for infinity."""
    return 1 / conversions.mu_from_epsilon(epsilon, delta)


def renyi_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """The noise multiplier that the public code charges for an estimate: `renyi_noise` of at least 0.15, and
    the true one where the estimate is infinite."""
    return true_noise if np.isinf(epsilon) else renyi_noise(max(epsilon, LEAST_EPSILON), delta)


def gaussian_charge(epsilon: float, delta: float, true_noise: float) -> float:
    """`renyi_charge` by the exact Gaussian curve."""
    return true_noise if np.isinf(epsilon) else gaussian_noise(max(epsilon, LEAST_EPSILON), delta)


def lower_charged(estimate: RoundEstimate) -> float:
    """The interval's lower end as the public code composes it: at least 0.2."""
    return max(estimate.lower, LEAST_LOWER)


@functools.lru_cache(maxsize=4096)
def divergences(noise_multiplier: float, sampling_rate: float) -> Array:
    """Renyi divergence of one round at each of ORDERS: log E[((1 - q) + q e^((2 x - 1) / (2 sigma^2)))^a] /
    (a - 1) over x ~ N(0, sigma^2); infinite without noise.

    Raises InputError unless noise_multiplier >= 0 and 0 < sampling_rate <= 1.
    """
    require(noise_multiplier >= 0, f"`noise_multiplier={noise_multiplier:g}`: give 0 or a number above it")
    require(0 < sampling_rate <= 1, f"`sampling_rate={sampling_rate:g}`: give a number above 0, at most 1")
    orders = np.array(ORDERS)
    if noise_multiplier == 0:
        return np.full(len(orders), np.inf)
    if sampling_rate == 1:
        return np.asarray(orders / (2 * noise_multiplier**2))
    found = [_log_moment(noise_multiplier, sampling_rate, order) / (order - 1) for order in ORDERS]
    return np.asarray(np.maximum(found, 0.0))


def forward(measured: Sequence[int], total: int) -> list[int]:
    """Rounds that each measured round stands for, counted from 1: it and those up to the next, as the paper
    says; the last one up to the end of the training."""
    _require_measured(measured, total)
    return [int(n) for n in np.diff([*measured, total + 1])]


def backward(measured: Sequence[int], total: int) -> list[int]:
    """Rounds that each measured round stands for, as the public code charges them: it and those since the
    one before; what follows the last is free (Errata C8)."""
    _require_measured(measured, total)
    return [int(n) for n in np.diff([0, *measured])]


def cumulative(charges: Sequence[Charge], delta: float) -> list[float]:
    """epsilon at delta after each of these Poisson-sampled Gaussian rounds, by Renyi DP with Opacus' orders;
    infinite from a round on that counts and has no noise."""
    conversions.require_delta(delta)
    total, found = np.zeros(len(ORDERS)), []
    for charge in charges:
        if charge.rounds:
            total = total + charge.rounds * divergences(charge.noise_multiplier, charge.sampling_rate)
        found.append(_least_epsilon(total, delta) if total.any() else 0.0)
    return found


def composed(charges: Sequence[Charge], delta: float) -> float:
    """epsilon at delta after the last of these rounds (see `cumulative`); 0 for none."""
    return cumulative(charges, delta)[-1] if charges else 0.0


class Ideal(NamedTuple):
    """The estimates of a perfect canary: mean and deviation of those that are finite, infinite and NaN where
    none is, and the median of all, at 1/n, with what it becomes as a noise multiplier and over a training."""

    mean: float
    deviation: float
    median: float
    noise_multiplier: float
    composed: float


def ideal(
    rng: np.random.Generator, charge: Charge, delta: float, scores: int = 100, repetitions: int = 150
) -> Ideal:
    """What the published procedure shows of a canary whose score is N(1, sigma^2) in and N(0, sigma^2) out,
    so that the release of the round leaks all that its noise allows (Errata C9)."""
    half, sigma = scores // 2, charge.noise_multiplier
    draws = sigma * rng.standard_normal((repetitions, 2, half))
    found = [best_epsilon(1 + s_in, s_out).estimate.epsilon for s_in, s_out in draws]
    finite = np.array([value for value in found if np.isfinite(value)])
    mean, deviation = (finite.mean(), finite.std()) if len(finite) else (np.inf, np.nan)
    median = float(np.median(found))
    noise = renyi_charge(median, 1 / scores, sigma)
    total = composed([charge._replace(noise_multiplier=noise)], delta)
    return Ideal(float(mean), float(deviation), median, noise, total)


def _errors(s_in: Array, s_out: Array) -> _Errors:
    """The errors at every distinct score as threshold; equal scores fall on one side."""
    thresholds = np.unique(np.concatenate([s_in, s_out]))[::-1]
    below_in = np.searchsorted(np.sort(s_in), thresholds, side="left")
    below_out = np.searchsorted(np.sort(s_out), thresholds, side="left")
    return _Errors(thresholds, len(s_out) - below_out, below_in)


def _epsilons(errors: _Errors, n_in: int, n_out: int, delta: float) -> Array:
    """epsilon at each threshold: -inf where one error does not occur, +inf where neither does."""
    fpr, fnr = errors.false_positives / n_out, errors.false_negatives / n_in
    found = conversions.epsilon_from_rates(fpr, fnr, delta)
    perfect = (errors.false_positives == 0) & (errors.false_negatives == 0)
    usable = (errors.false_positives > 0) & (errors.false_negatives > 0)
    return np.where(perfect, np.inf, np.where(usable, found, -np.inf))


def _estimate(
    method: str, errors: _Errors, ranked: Array, sizes: tuple[int, int], delta: float, confidence: float
) -> RoundEstimate:
    """The estimate at the first threshold of the highest rank; infinite where worlds are separated."""
    conversions.require_levels(delta, confidence)
    values = _epsilons(errors, *sizes, delta)
    i = int(np.argmax(np.where(np.isposinf(values), np.inf, ranked)))
    wrong = int(errors.false_positives[i]), int(errors.false_negatives[i])
    fpr = intervals.clopper_pearson(wrong[0], sizes[1], confidence)
    fnr = intervals.clopper_pearson(wrong[1], sizes[0], confidence)
    lower = float(conversions.epsilon_from_rates(fpr.upper, fnr.upper, delta))
    upper = float(conversions.epsilon_from_rates(fpr.lower, fnr.lower, delta))
    epsilon, threshold = max(float(values[i]), 0.0), float(errors.thresholds[i])
    found = Estimate(method, epsilon, None, delta, confidence, threshold, *wrong, *sizes, caveat=_CAVEAT)
    return RoundEstimate(found, max(lower, 0.0), max(upper, 0.0))


def _require_measured(measured: Sequence[int], total: int) -> None:
    rising = all(a < b for a, b in zip([0, *measured], [*measured, total + 1], strict=True))
    require(measured and rising, f"measured rounds {list(measured)[:5]} do not rise within 1 to {total}")


def _least_epsilon(total: Array, delta: float) -> float:
    """The least epsilon at delta over ORDERS of a composition with these divergences, at least 0."""
    orders = np.array(ORDERS)
    rest = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(total + rest)), 0.0)


def _log_moment(sigma: float, rate: float, order: float) -> float:
    """log E[(1 - q + q likelihood ratio)^order] by trapezoids, right to rounding on a smooth integrand."""
    low, high = -_REACH * sigma, order + _REACH * sigma
    step = max(min(sigma / 20, sigma**2 / 4), sigma / 200)
    points = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
    density = -(points**2) / (2 * sigma**2) - np.log(sigma * np.sqrt(2 * np.pi))
    ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * points - 1) / (2 * sigma**2))
    return float(special.logsumexp(density + order * ratio) + np.log(points[1] - points[0]))
