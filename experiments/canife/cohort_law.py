"""The distribution of a round's score: the sum of the cohort's dot products with a direction, plus noise.

Scores are in units of the clipping norm. Their density is a mixture of Gaussians, one for each possible
cohort.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special, stats

from audit.laws.densities import DensityPair

Array = NDArray[np.float64]

# Deviations are standard deviations of the score, unless noted.
_GRID_REACH = 9.0  # how far the grid extends on either side of the mean, in deviations
_TILT_DISTANCE = 2.0  # the distance between the means of neighboring tilts, in deviations
# The trapezoidal rule makes a tilted density periodic, with this period in deviations.
_PERIOD = 24.0
_CUTOFF = 36.0  # the integral ends once |M(s + it) / M(s)| is below exp(-_CUTOFF)
_MIN_DENSITY = 1e-15  # relative to the largest possible integral
_POINTS_PER_DEVIATION = 200  # grid points per deviation of the noise
_BLOCK = 1024  # rounds simulated at once, to limit memory


class LogDensity(NamedTuple):
    """The log density of a score at n evenly spaced points."""

    points: Array
    log_density: Array


class _TiltedCohort(NamedTuple):
    """A round's cohort, tilted by s: each cohort has the weight e^(s * sum of its dot products a_i).

    Clients join independently, conditional on the cohort's size. Client i has odds proportional to e^(s a_i).

    Attributes:
      dots: (M,) the clients' dot products a_i.
      size: The number of clients in the cohort, less than M.
      tilt: The tilt s.
      joins: (M,) the clients' probabilities of joining; they sum to `size`.
      log_moment_over_p: log(E / P). E is the mean of e^(s * sum) over cohorts. P is the probability that
        exactly `size` clients join if each decides independently.
    """

    dots: Array
    size: int
    tilt: float
    joins: Array
    log_moment_over_p: float


def simulate_scores(
    rng: np.random.Generator, dots: Array, cohort: int, sigma: float, rounds: int
) -> Array:
    """Draws the scores (rounds,) of rounds without the canary.

    Args:
      dots: (M,) the clients' dot products with the direction, divided by the clipping norm.
      cohort: The number of clients in a round, drawn without replacement.
      sigma: The noise multiplier.
    """
    once = np.ones(len(dots), np.int64)  # a cohort contains a client at most once
    scores = sigma * rng.standard_normal(rounds)
    for start in range(0, rounds, _BLOCK):
        block = scores[start : start + _BLOCK]  # a view, modified in place
        # (rounds in the block, M): 1 if a client is in the round's cohort
        joins = rng.multivariate_hypergeometric(once, cohort, len(block), method="count")
        block += joins @ dots
    return scores


def compute_log_density(dots: Array, cohort: int, sigma: float, extra: float) -> LogDensity:
    """Returns the log density of a round's score without the canary, accurate even in the tails.

    Inverting the score's moment generating function suffers from cancellation except near the mean. As in a
    saddlepoint approximation, we therefore tilt the density: a tilt s multiplies p(x) by e^(s x), which
    shifts its mean. For each x, we use the tilt that brings the mean closest to x.

    Args:
      dots, cohort: See `simulate_scores`.
      sigma: The noise multiplier, above 0.
      extra: How far each end of the evenly spaced grid lies beyond 9 standard deviations from the mean score.
    """
    # The variance of the sum over a cohort drawn without replacement.
    variance = cohort * (1 - cohort / len(dots)) * np.var(dots, ddof=1)
    mean = cohort * dots.mean()
    deviation = np.sqrt(variance + sigma**2)
    low = mean - _GRID_REACH * deviation - extra
    high = mean + _GRID_REACH * deviation + extra
    num_steps = int(np.ceil((high - low) / sigma * _POINTS_PER_DEVIATION))
    points = np.linspace(low, high, num_steps + 1)

    if cohort == len(dots):  # only the noise is random
        return LogDensity(points, stats.norm.logpdf(points, mean, sigma))

    # The derivative of the tilted mean with respect to the tilt is the tilted variance, which is at least the
    # noise variance, sigma^2. So tilts up to this one cover the whole grid.
    max_tilt = (high - low) / sigma**2
    num_tilts = int(np.ceil((high - low) / _TILT_DISTANCE / deviation)) + 1
    targets, distance = np.linspace(low, high, num_tilts, retstep=True)
    log_density = np.empty(len(points))
    for target in targets:
        tilt = _find_tilt(dots, cohort, sigma, target, max_tilt)
        # Slightly more than half the distance, in case rounding moves a midpoint.
        is_near = np.abs(points - target) < 0.51 * distance
        tilted = _tilt(dots, cohort, tilt)
        log_density[is_near] = _invert_transform(tilted, sigma, points[is_near])
    return LogDensity(points, log_density)


def _find_tilt(dots: Array, cohort: int, sigma: float, mean: float, max_tilt: float) -> float:
    """Returns the tilt, from -max_tilt to max_tilt, that gives the score this mean."""
    # The tilted score's mean increases with the tilt. The noise contributes sigma^2 * tilt.
    return scipy.optimize.brentq(
        lambda tilt: _tilt(dots, cohort, tilt).joins @ dots + sigma**2 * tilt - mean,
        -max_tilt,
        max_tilt,
        xtol=1e-6,
    )


def score_densities(
    dots: Array,
    cohort: int,
    sigma: float,
    canary: float,
    replaces: bool = False,
) -> DensityPair:
    """Returns the densities of a round's score with and without the canary.

    Args:
      dots: (M,) the clients' dot products with the canary's direction, divided by the clipping norm.
      cohort: The number of clients in a round without the canary; at least 2 if the canary replaces one.
      sigma: The noise multiplier, above 0.
      canary: The canary's dot product with its direction, divided by the clipping norm; at least 0.
      replaces: True if the canary replaces a random client in the cohort, as in the paper's code. False if it
        is added, as in the accountant's neighboring data sets.
    """
    # Grids must also contain the likely scores with the canary, and x - canary for every likely score x. If a
    # grid is too small, the returned error is large.
    extra = canary
    if replaces:
        # The canary replaces a client, so the mean changes by `canary - dots.mean()`. Both grids need room
        # for this. Adding it to `canary` is more than enough.
        extra += max(canary - dots.mean(), 0.0)
    without = compute_log_density(dots, cohort, sigma, extra)
    others = without
    if replaces:
        others = compute_log_density(dots, cohort - 1, sigma, extra)

    # With the canary, the density at x is the other clients' density at x - canary. We interpolate its
    # logarithm. Outside the grid, the spline returns NaN, and we set the density to 0.
    spline = scipy.interpolate.CubicSpline(others.points, others.log_density, extrapolate=False)
    density_in = np.nan_to_num(np.exp(spline(without.points - canary)))
    density_out = np.exp(without.log_density)
    spacing = without.points[1] - without.points[0]
    # A density's integral should be 1. The grid's error is the larger of the two deviations from 1.
    integrals = spacing * np.sum([density_out, density_in], axis=1)
    error = np.max(np.abs(integrals - 1))
    return DensityPair(without.points, density_out, density_in, error)


def _tilt(dots: Array, cohort: int, tilt: float) -> _TiltedCohort:
    """Tilts the cohorts' distribution by s = `tilt`: weights each cohort by e^(s * sum of its dot products).

    Suppose that each client joins independently, with log odds `log_odds` + s a_i, where a_i is its dot
    product in `dots` (M,). Given that exactly `cohort` clients join, the cohort has this distribution for any
    `log_odds`. We choose `log_odds` to make `cohort` clients join on average.
    """
    clients = len(dots)
    untilted = special.logit(cohort / clients)
    # |s a_i| < `reach`, so `untilted - reach` lets too few clients join, and `untilted + reach` too many.
    reach = abs(tilt) * np.max(np.abs(dots)) + 1
    log_odds = scipy.optimize.brentq(
        lambda log_odds: np.sum(special.expit(log_odds + tilt * dots)) - cohort,
        untilted - reach,
        untilted + reach,
    )
    client_log_odds = log_odds + tilt * dots
    joins = special.expit(client_log_odds)
    log_product = np.sum(np.logaddexp(0.0, client_log_odds))
    # Without the tilt, all (clients choose cohort) cohorts are equally likely.
    log_cohorts = -special.betaln(cohort + 1, clients - cohort + 1) - np.log(clients + 1)
    # A given cohort joins with probability exp(cohort * log_odds + s * sum - log_product). Over all cohorts,
    # this adds up to P, the probability that exactly `cohort` clients join. So without the tilt, the mean of
    # exp(s * sum) is P exp(log_moment_over_p). `_compute_ratios` includes P.
    log_moment_over_p = log_product - cohort * log_odds - log_cohorts
    return _TiltedCohort(dots, cohort, tilt, joins, log_moment_over_p)


def _invert_transform(tilted: _TiltedCohort, sigma: float, points: Array) -> Array:
    r"""Inverts the score's moment generating function M, and returns the log density at points (n,).

    With the tilt s, the density at x is

        p(x) = e^(-s x) M(s) / (2 pi) * integral of M(s + i t) / M(s) e^(-i t x) dt.

    We raise integrals to at least _MIN_DENSITY times the integral of the integrand's absolute value, because
    smaller results are mostly rounding error.
    """
    tilt = tilted.tilt
    # With this step in t, the trapezoidal rule yields a density that is periodic in x, with period 2 pi /
    # step. `variance` approximates the variance of the tilted score, as if clients joined independently.
    variance = np.sum(tilted.joins * (1 - tilted.joins) * tilted.dots**2) + sigma**2
    step = 2 * np.pi / (_PERIOD * np.sqrt(variance))
    # Beyond the last t, the noise factor exp(-(sigma t)^2 / 2) is below exp(-_CUTOFF).
    num_steps = int(np.ceil(np.sqrt(2 * _CUTOFF) / sigma / step))
    times = np.linspace(0.0, step * num_steps, num_steps + 1)

    # M(s + i t) / M(s) is the ratio for the clients times the ratio for the noise. For the noise, M(z) =
    # exp((sigma z)^2 / 2).
    damping = np.exp(-((sigma * times) ** 2) / 2)
    ratios = _compute_ratios(tilted, times) * damping
    ratios *= np.exp(1j * times * sigma**2 * tilt)
    # The integrand at -t is the conjugate of the integrand at t. So we add only the real parts for t >= 0,
    # with half weight for t = 0.
    ratios[0] /= 2
    rotations = np.exp(-1j * np.outer(points, times))
    integral = np.real(rotations @ ratios) * step / np.pi
    largest = np.sum(np.abs(ratios)) * step / np.pi
    log_integral = np.log(np.maximum(integral, _MIN_DENSITY * largest))
    log_noise_moment = (sigma * tilt) ** 2 / 2
    return log_integral - tilt * points + tilted.log_moment_over_p + log_noise_moment


def _compute_ratios(tilted: _TiltedCohort, times: Array) -> NDArray[np.complex128]:
    """Returns P M(s + i t) / M(s) at each of the times t (T,), for the tilt s.

    M(z) is the mean of e^(z * sum of dot products) over cohorts. The tilt weights cohorts by e^(s * sum), so
    M(s + i t) / M(s) is the mean of e^(i t * sum) over tilted cohorts. Let each client j join
    independently with probability joins[j]. With probability P, exactly `size` clients join. If they do, they
    are distributed like a tilted cohort. So the result is the coefficient of z^size in the product over
    clients of

        1 - joins[j] + joins[j] z e^(i t dots[j]).
    """
    coefficients = np.zeros((tilted.size + 1, len(times)), np.complex128)  # of z^0, ..., z^size
    coefficients[0] = 1
    for dot, joins in zip(tilted.dots, tilted.joins, strict=True):
        joined = joins * np.exp(1j * times * dot) * coefficients[:-1]
        coefficients *= 1 - joins
        coefficients[1:] += joined
    return coefficients[-1]
