r"""The exact law of a round's score: the cohort's dot products with a direction, plus Gaussian noise.

A client's update has a known dot product a_i with the canary's direction, so that the score without the
canary is sum_{i in cohort} a_i + sigma Z, in units of the clipping norm: a mixture of Gaussians over all
cohorts. Its moment generating function is a product over clients, exact for Poisson sampling; a cohort of
fixed size is Poisson sampling given its size, which one more Fourier integral picks out.

The density at x is the inverse transform along the line through a real tilt s,

    p(x) = e^{-s x} M(s) / (2 pi) \int M(s + i t) / M(s) e^{-i t x} dt,

whatever s. With s near the saddle point of x nothing cancels, so that tails are right relative to
themselves; each x takes the nearest of a row of tilts. Trapezoids converge faster than any power there: what
is left is where neighbouring tilts disagree, and that is reported. Between modes far apart, where a density
is less than 1e-15 of that around it, rounding is all that is left: it is put there, which makes an epsilon
too small, not too large.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics.densities import DensityPair

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

_DEVIATIONS = 9.0  # reach of the grid
_APART = 2.0  # deviations between the means of tilted laws
_WIDTH = 24.0  # deviations after which a tilted law may repeat
_CUT = 36.0  # of exp: what |M(s + it) / M(s)| is cut at
_VALLEY = 1e-15  # of what a density's integral could be at most
_PER_DEVIATION = 200  # grid points
_BLOCK = 1 << 18  # complex entries at once
_MOST_WORK = 1 << 32


class Cohort(NamedTuple):
    """How a round draws clients: `size` without replacement, or each with chance size / clients."""

    size: int
    poisson: bool = False


class ScoreLaw(NamedTuple):
    """Log densities (n,) of a score at evenly spaced points (n,). error: the largest relative disagreement of
    neighbouring tilts, down to e^-72 of the largest density, or of the whole mass with 1."""

    points: Array
    log_density: Array
    error: float


class _Sum(NamedTuple):
    """The sum before noise: dot products, how clients are drawn, and the noise's deviation."""

    dots: Array
    cohort: Cohort
    sigma: float


def score_law(dots: ArrayLike, cohort: Cohort, sigma: float, reach: tuple[float, float]) -> ScoreLaw:
    """The law of a round's score without the canary, on a grid that holds 9 deviations around each of its
    mean plus the two ends of `reach`.

    Args:
      dots: (M,) the clients' dot products with the direction, over the clipping norm.
      cohort: which of them a round draws.
      sigma: the noise multiplier, above 0.
      reach: shifts (least, greatest) of the score for which the grid must suffice.

    Raises:
      InputError: values out of range, or a law whose computation would take hours.
    """
    summed = _Sum(_checked(dots, cohort, sigma), cohort, sigma)
    mean, deviation = _moments(summed)
    low, high = mean - _DEVIATIONS * deviation + reach[0], mean + _DEVIATIONS * deviation + reach[1]
    points = np.linspace(low, high, int(np.ceil((high - low) / sigma * _PER_DEVIATION)) + 1)
    if cohort.size == len(summed.dots):
        log_density = -(((points - mean) / sigma) ** 2) / 2 - np.log(sigma * np.sqrt(2 * np.pi))
        return ScoreLaw(points, log_density, 0.0)
    tilts = _tilts(summed, points, deviation)
    centres = np.array([_tilted_mean(summed, tilt) for tilt in tilts])
    nearest = np.argsort(np.abs(points[None] - centres[:, None]), axis=0)
    found = np.full((2, len(points)), -np.inf)
    for i, tilt in enumerate(tilts):
        for rank in (0, 1):
            own = nearest[rank] == i
            found[rank, own] = _along(summed, tilt, points[own])
    mass = float(np.exp(found[0]).sum() * (points[1] - points[0]))
    seen = found[0] > np.max(found[0]) - 2 * _CUT
    error = max(float(np.max(np.abs(found[0] - found[1]), where=seen, initial=0.0)), abs(mass - 1))
    return ScoreLaw(points, found[0], error)


def added(dots: ArrayLike, cohort: Cohort, sigma: float, canary: float) -> DensityPair:
    """The score's densities without the canary and with it, added to the cohort with a dot product `canary`:
    neighbours as the accountant has them."""
    law = score_law(dots, cohort, sigma, (min(-canary, 0.0), max(canary, 0.0)))
    return _pair(law, law, canary)


def replacing(dots: ArrayLike, cohort: Cohort, sigma: float, canary: float) -> DensityPair:
    """The densities where the canary takes the place of a client of the cohort (Errata C1)."""
    several = cohort.size > 1 and not cohort.poisson
    require(several, "a canary replaces one of several in a cohort of fixed size")
    dots, rest = np.asarray(dots, np.float64), cohort._replace(size=cohort.size - 1)
    shift = canary - float(dots.mean())
    ends = (min(-shift, 0.0) - abs(canary), max(shift, 0.0) + abs(canary))
    return _pair(score_law(dots, cohort, sigma, ends), score_law(dots, rest, sigma, ends), canary)


def _pair(out: ScoreLaw, rest: ScoreLaw, canary: float) -> DensityPair:
    """The pair on out's grid: the law of the others, shifted by the canary's dot product. Log densities are
    smooth, and a cubic through them is right to the fourth power of the spacing."""
    spline, at = scipy.interpolate.CubicSpline(rest.points, rest.log_density), out.points - canary
    inside = (at >= rest.points[0]) & (at <= rest.points[-1])
    shifted = np.where(inside, spline(np.clip(at, rest.points[0], rest.points[-1])), -np.inf)
    p, q = np.exp(out.log_density), np.exp(shifted)
    lost = max(abs(float(each.sum()) * (out.points[1] - out.points[0]) - 1) for each in (p, q))
    return DensityPair(out.points, p, q, lost)


def _checked(dots: ArrayLike, cohort: Cohort, sigma: float) -> Array:
    found = np.asarray(dots, np.float64)
    require(found.ndim == 1 and np.isfinite(found).all(), "dot products must be finite, in a flat array")
    fits = 1 <= cohort.size <= len(found)
    require(fits, f"`cohort={cohort.size}`: give 1 to {len(found):,}, the number of clients")
    noisy = 0 < sigma < np.inf
    require(noisy, f"`noise_multiplier={sigma}`: give a number above 0; without noise there is no law")
    return found


def _moments(summed: _Sum) -> tuple[float, float]:
    dots, (size, poisson) = summed.dots, summed.cohort
    share = size / len(dots)
    if poisson:
        variance = share * (1 - share) * float(np.sum(dots**2))
    else:
        variance = size * (1 - share) * float(np.var(dots)) * len(dots) / max(len(dots) - 1, 1)
    return size * float(dots.mean()), float(np.sqrt(variance + summed.sigma**2))


def _tilts(summed: _Sum, points: Array, deviation: float) -> list[float]:
    """Tilts whose laws have their means some deviations apart, from end to end of the grid."""
    count = int(np.ceil((points[-1] - points[0]) / (_APART * deviation)))
    means = np.linspace(points[0], points[-1], count + 1)
    most = (points[-1] - points[0]) / summed.sigma**2

    def tilt(mean: float) -> float:
        return float(scipy.optimize.brentq(lambda s: _tilted_mean(summed, s) - mean, -most, most, xtol=1e-6))

    return list(map(tilt, means))


def _log_odds(summed: _Sum, tilt: float) -> float:
    """The clients' common log odds of joining: Poisson's, or the tilted cohort's of that mean size."""
    count, size = len(summed.dots), summed.cohort.size
    plain = float(special.logit(size / count))
    if summed.cohort.poisson:
        return plain
    reach = abs(tilt) * float(np.max(np.abs(summed.dots))) + 1

    def excess(odds: float) -> float:
        return float(np.sum(special.expit(odds + tilt * summed.dots)) - size)

    return float(scipy.optimize.brentq(excess, plain - reach, plain + reach))


def _tilted_mean(summed: _Sum, tilt: float) -> float:
    joins = special.expit(_log_odds(summed, tilt) + tilt * summed.dots)
    return float(joins @ summed.dots) + summed.sigma**2 * tilt


def _along(summed: _Sum, tilt: float, points: Array) -> Array:
    """log density at points by the line through one tilt."""
    odds = _log_odds(summed, tilt)
    joins: Array = special.expit(odds + tilt * summed.dots)
    variance = float(np.sum(joins * (1 - joins) * summed.dots**2)) + summed.sigma**2
    step = 2 * np.pi / (_WIDTH * float(np.sqrt(variance)))
    count = int(np.ceil(np.sqrt(2 * _CUT) / summed.sigma / step)) + 1
    times: Array = np.linspace(0.0, step * (count - 1), count)
    ratio = _ratios(summed, odds, tilt, times, joins) * np.exp(-((summed.sigma * times) ** 2) / 2)
    ratio *= np.exp(1j * times * summed.sigma**2 * tilt)
    weights = np.where(times == 0, 0.5, 1.0) * ratio
    value = 2 * np.real(np.exp(-1j * np.outer(points, times)) @ weights) * step / (2 * np.pi)
    shape = np.log(np.maximum(value, _VALLEY * step / np.pi * float(np.sum(np.abs(weights)))))
    return np.asarray(shape - tilt * points) + _log_mass(summed, odds, tilt) + (summed.sigma * tilt) ** 2 / 2


def _log_mass(summed: _Sum, odds: float, tilt: float) -> float:
    """log of the sum's moment generating function at a real tilt, before the part that `_ratios` has."""
    count, size = len(summed.dots), summed.cohort.size
    whole = float(np.sum(np.logaddexp(0.0, odds + tilt * summed.dots)))
    if summed.cohort.poisson:
        return whole - count * float(np.logaddexp(0.0, odds))
    choices = special.gammaln(count + 1) - special.gammaln(size + 1) - special.gammaln(count - size + 1)
    return whole - size * odds - float(choices)


def _ratios(summed: _Sum, odds: float, tilt: float, times: Array, joins: Array) -> Complex:
    """M(s + i t) / M(s) of the sum at times (T,); for a fixed size its part with that many clients."""
    if summed.cohort.poisson:
        return _products(summed.dots, joins, times, np.zeros(1))[:, 0]
    spreads = joins * (1 - joins)
    spread = float(np.sqrt(spreads.sum()))
    centre = float(spreads @ summed.dots) / max(spread**2, 1e-300)
    period = int(np.ceil(2 * _DEVIATIONS * spread + 8))
    turns = np.arange(-(period // 2), period - period // 2)
    near = np.abs(turns) * 2 * np.pi / period <= 1.3 * np.sqrt(2 * _CUT) / max(spread, 1e-9)
    angles = 2 * np.pi / period * turns[near]
    whole = _products(summed.dots - centre, joins, times, angles)
    picked: Complex = whole @ np.exp(-1j * summed.cohort.size * angles) / period
    return np.asarray(picked * np.exp(1j * times * summed.cohort.size * centre))


def _products(dots: Array, joins: Array, times: Array, angles: Array) -> Complex:
    """prod_j (1 - r_j + r_j exp(i (angle + t a_j))), (T, A), for probabilities r_j of joining."""
    fits = len(dots) * len(times) * len(angles) <= _MOST_WORK
    require(fits, f"{len(dots):,} clients are too many for so little noise: take a sample of them")
    found = np.ones((len(times), len(angles)), np.complex128)
    turned, block = np.exp(1j * angles), max(_BLOCK // len(angles), 1)
    for start in range(0, len(dots), block):
        part = slice(start, start + block)
        for row, time in enumerate(times):
            waves = joins[part] * np.exp(1j * time * dots[part])
            found[row] *= np.prod((1 - joins[part])[:, None] + waves[:, None] * turned, axis=0)
    return found
