r"""The law of a round's score: the cohort's dot products with a direction, plus Gaussian noise.

Client i has the dot product a_i. Without the canary the score is sum_{i in cohort} a_i + sigma Z, in units of
the clipping norm: a mixture of Gaussians over all cohorts. With the moment generating function M, the density
at x is the inverse transform along the line through any real tilt s,

    p(x) = e^{-s x} M(s) / (2 pi) \int M(s + i t) / M(s) e^{-i t x} dt.

Near the mean of the tilted law, e^{s x} p(x) normalized, the integral has no cancellation. So each x uses the
nearest of several tilts, and tails have a small relative error. The trapezoidal rule converges faster than
any power. The grid's error is the distance of the density's mass from 1. Between distant modes a density can
be below rounding. It is raised to 1e-15 of its surroundings, which can only make an epsilon smaller.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special, stats

from audit.laws.densities import DensityPair

Array = NDArray[np.float64]

_DEVIATIONS = 9.0  # the grid's range on either side of the mean, in deviations of the score
_TILT_DISTANCE = 2.0  # deviations between the means of tilted laws
_PERIOD = 24.0  # the period of a computed tilted law, in deviations
_CUT = 36.0  # |M(s + it) / M(s)| is cut at exp(-_CUT)
_VALLEY = 1e-15  # the smallest density, relative to the largest possible integral
_POINTS_PER_DEVIATION = 200  # grid points per deviation of the noise
_BLOCK = 1024  # simulated rounds in memory at once, each with a number for every client


class ScoreLaw(NamedTuple):
    """The log density (n,) of a score at evenly spaced points (n,)."""

    points: Array
    log_density: Array


class _Tilted(NamedTuple):
    """A round under a tilt s: M clients join independently, conditional on the cohort's size.

    Attributes:
      dots: The clients' dot products (M,).
      cohort: The size of the cohort, less than M.
      log_odds: The shared part of the log odds of joining; client i adds s a_i.
      joins: (M,) the probabilities of joining; they sum to `cohort`.
    """

    dots: Array
    cohort: int
    tilt: float
    log_odds: float
    joins: Array

    def find_mean(self, sigma: float) -> float:
        """Returns the mean of the tilted score, with its noise."""
        return float(self.joins @ self.dots) + sigma**2 * self.tilt


def simulate_scores(
    rng: np.random.Generator, dots: Array, cohort: int, sigma: float, rounds: int
) -> Array:
    """Draws scores (rounds,) without the canary.

    `dots` (M,) are the clients' dot products with the direction, over the clipping norm. A round has `cohort`
    clients, drawn without replacement. `sigma` is the noise multiplier.
    """
    once = np.ones(len(dots), np.int64)  # a cohort has each client at most once
    scores = sigma * rng.standard_normal(rounds)
    for start in range(0, rounds, _BLOCK):
        part = scores[start : start + _BLOCK]
        joins = rng.multivariate_hypergeometric(once, cohort, len(part), method="count")
        part += joins @ dots
    return scores


def score_law(dots: Array, cohort: int, sigma: float, reach: tuple[float, float]) -> ScoreLaw:
    """Returns the density of a round's score without the canary, on an evenly spaced grid.

    `sigma` is above 0. `reach` (at most 0, at least 0) extends the grid beyond 9 standard deviations around
    the mean. See `simulate_scores` for other arguments.
    """
    clients = len(dots)
    # The variance of a sum that is drawn without replacement.
    variance = cohort * (1 - cohort / clients) * np.var(dots) * clients / (clients - 1)
    mean = cohort * dots.mean()
    deviation = np.sqrt(variance + sigma**2)
    low = mean - _DEVIATIONS * deviation + reach[0]
    high = mean + _DEVIATIONS * deviation + reach[1]
    num_steps = int(np.ceil((high - low) / sigma * _POINTS_PER_DEVIATION))
    points = np.linspace(low, high, num_steps + 1)

    if cohort == clients:  # only the noise is random
        return ScoreLaw(points, stats.norm.logpdf(points, mean, sigma))

    # The noise moves the mean by sigma^2 per unit of tilt, so tilts up to `most` cover the whole grid.
    most = (high - low) / sigma**2
    num_tilts = int(np.ceil((high - low) / _TILT_DISTANCE / deviation)) + 1

    def compute_distance(tilt: float, target: float) -> float:
        return _tilt(dots, cohort, tilt).find_mean(sigma) - target

    tilted = []
    for target in np.linspace(low, high, num_tilts):
        # The mean increases with the tilt, so there is a single root.
        tilt = scipy.optimize.brentq(compute_distance, -most, most, args=(target,), xtol=1e-6)
        tilted.append(_tilt(dots, cohort, tilt))
    means = np.array([one.find_mean(sigma) for one in tilted])
    distances = np.abs(points - means[:, None])
    nearest = np.argmin(distances, axis=0)  # the tilt of each point
    log_density = np.empty(len(points))
    for i, one in enumerate(tilted):
        log_density[nearest == i] = _invert_along(one, sigma, points[nearest == i])
    return ScoreLaw(points, log_density)


def score_densities(
    dots: Array,
    cohort: int,
    sigma: float,
    canary: float,
    replaces: bool = False,
) -> DensityPair:
    """Returns the score's densities with and without the canary.

    Args:
      dots, cohort, sigma: See `score_law`. A replaced client needs a cohort of at least 2.
      canary: The canary's dot product with the direction, over the clipping norm; at least 0.
      replaces: Whether the canary replaces a client (Errata C1) or is added, like the accountant's neighbors.
    """
    # The canary moves the score's mean by `shift`. With it, the density at x is that of the other clients at
    # x - canary, which the grids must include.
    shift = canary - replaces * dots.mean()
    beyond = replaces * canary
    reach = (min(-shift, 0.0) - beyond, max(shift, 0.0) + beyond)
    law = score_law(dots, cohort, sigma, reach)
    others = law
    if replaces:
        others = score_law(dots, cohort - 1, sigma, reach)

    # A cubic spline interpolates the log density. Outside of the grid the density is 0.
    spline = scipy.interpolate.CubicSpline(*others, extrapolate=False)
    interpolated = spline(law.points - canary)
    log_density_in = np.nan_to_num(interpolated, nan=-np.inf, neginf=-np.inf)
    density_out = np.exp(law.log_density)
    density_in = np.exp(log_density_in)
    spacing = law.points[1] - law.points[0]
    masses = spacing * np.sum([density_out, density_in], axis=1)
    error = np.max(np.abs(masses - 1))
    return DensityPair(law.points, density_out, density_in, error)


def _tilt(dots: Array, cohort: int, tilt: float) -> _Tilted:
    """Returns a round under a tilt, with log odds that let `cohort` clients join on average."""
    untilted = special.logit(cohort / len(dots))
    # Every |s a_i| is below `reach`: at `untilted - reach` too few join, at `untilted + reach` too many.
    reach = abs(tilt) * np.max(np.abs(dots)) + 1

    def compute_excess(log_odds: float) -> float:
        joins = special.expit(log_odds + tilt * dots)
        return float(np.sum(joins) - cohort)

    log_odds = scipy.optimize.brentq(compute_excess, untilted - reach, untilted + reach)
    joins = special.expit(log_odds + tilt * dots)
    return _Tilted(dots, cohort, tilt, log_odds, joins)


def _invert_along(tilted: _Tilted, sigma: float, points: Array) -> Array:
    r"""Returns the log density of the score at points (n,), by inverting its moment generating function.

    The trapezoidal rule stops when the integrand is below exp(-_CUT). Integrals are at least _VALLEY times
    the integral of the integrand's absolute value, since rounding dominates below it.
    """
    dots, cohort, tilt, log_odds, joins = tilted
    # The time step determines the period. At the last time exp(-(sigma t)^2 / 2) is below exp(-_CUT).
    variance = np.sum(joins * (1 - joins) * dots**2) + sigma**2
    step = 2 * np.pi / (_PERIOD * np.sqrt(variance))
    count = int(np.ceil(np.sqrt(2 * _CUT) / sigma / step)) + 1
    times: Array = np.linspace(0.0, step * (count - 1), count)

    # M(s + i t) / M(s): the clients' part, times the noise's M(z) = exp((sigma z)^2 / 2).
    damping = np.exp(-((sigma * times) ** 2) / 2)
    weights = _compute_ratios(tilted, times) * damping
    weights *= np.exp(1j * times * sigma**2 * tilt)
    # The integrand at -t is the conjugate of that at t, and t = 0 counts half.
    weights[0] /= 2
    rotations = np.exp(-1j * np.outer(points, times))
    integral = np.real(rotations @ weights) * step / np.pi
    total = np.sum(np.abs(weights))
    least = _VALLEY * step / np.pi * total
    log_integral = np.log(np.maximum(integral, least))

    # log M(s), the mean of e^(s times the sum) over all equally likely cohorts, without the probability that
    # `cohort` clients join, which `_compute_ratios` includes.
    log_product = np.sum(np.logaddexp(0.0, log_odds + tilt * dots))
    others = len(dots) - cohort
    log_cohorts = -special.betaln(cohort + 1, others + 1) - np.log(len(dots) + 1)
    log_mass = log_product - cohort * log_odds - log_cohorts
    log_noise = (sigma * tilt) ** 2 / 2
    return np.asarray(log_integral - tilt * points + log_mass + log_noise)


def _compute_ratios(tilted: _Tilted, times: Array) -> NDArray[np.complex128]:
    """Returns M(s + i t) / M(s) at times t (T,) for a cohort's sum, without noise.

    It includes the probability that `cohort` independent clients join: it is the coefficient of z^cohort in
    the product of 1 - r + r z exp(i t a) over clients with joining probability r.
    """
    coefficients = np.zeros((tilted.cohort + 1, len(times)), np.complex128)  # by the power of z
    coefficients[0] = 1
    for dot, joins in zip(tilted.dots, tilted.joins, strict=True):
        joined = joins * np.exp(1j * times * dot) * coefficients[:-1]
        coefficients *= 1 - joins
        coefficients[1:] += joined
    return np.asarray(coefficients[-1])
