r"""The exact law of a round's score: the cohort's dot products with a direction, plus Gaussian noise.

A client's update has a given dot product a_i with the canary's direction, so that the score without the
canary is sum_{i in cohort} a_i + sigma Z, in units of the clipping norm: a mixture of Gaussians over all
cohorts. Its moment generating function M is a part of a product over clients who join independently: that of
cohorts of the right size, which another Fourier integral selects.

The density at x is the inverse transform along the line through a real tilt s,

    p(x) = e^{-s x} M(s) / (2 pi) \int M(s + i t) / M(s) e^{-i t x} dt,

whatever s. With s near the saddle point of x nothing cancels, so that tails are right relative to
themselves; each x takes the nearest of a row of tilts. Trapezoids converge faster than any power there. How
far a density's mass is from 1 is reported as the grid's error. Between distant modes, where a
density is less than 1e-15 of that around it, only rounding remains: the density is raised to 1e-15 there,
which makes an epsilon too small, not too large.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.laws.densities import DensityPair

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

_DEVIATIONS = 9.0  # of the score, by which the grid reaches beyond its mean
_TILT_DISTANCE = 2.0  # deviations between the means of tilted laws
_PERIOD = 24.0  # deviations after which a tilted law may repeat
_CUT = 36.0  # |M(s + it) / M(s)| is cut at exp(-_CUT)
_VALLEY = 1e-15  # the least density, as a share of what its integral could be at most
_POINTS_PER_DEVIATION = 200  # of the noise, on the grid
_BLOCK = 1 << 18  # complex entries in memory at once


class ScoreLaw(NamedTuple):
    """The log density (n,) of a score at evenly spaced points (n,)."""

    points: Array
    log_density: Array


class _Round(NamedTuple):
    """A round: its clients' dot products (M,), the size of its cohort, and the deviation of the noise."""

    dots: Array
    cohort: int
    sigma: float


def score_law(dots: ArrayLike, cohort: int, sigma: float, reach: tuple[float, float]) -> ScoreLaw:
    """Returns the density of a round's score without the canary, at the points of an evenly spaced grid.

    The score is the sum of a random cohort's dot products, plus Gaussian noise. Its log density log p(x) is
    computed by an inverse transform with a free parameter, the tilt s (`_invert_along`). The tilted law, with
    the density e^(s x) p(x), normalised, has its mean where the inverse transform is most precise. So several
    tilts are taken, and each point of the grid uses the tilt whose mean is nearest.

    The grid covers 9 standard deviations of the score on either side of its mean, and `reach` beyond them.

    Args:
      dots: (M,) the clients' dot products with the direction, over the clipping norm.
      cohort: The number of clients in a round, drawn without replacement.
      sigma: The noise multiplier, above 0.
      reach: (at most 0, at least 0), how far the grid reaches beyond these 9 deviations, down and up.
    """
    array = np.asarray(dots, np.float64)
    round_ = _Round(array, cohort, sigma)
    # A cohort's sum has the variance cohort (1 - cohort / M) times the sample variance, var M / (M - 1).
    clients = len(array)
    variance = cohort * (1 - cohort / clients) * np.var(array) * clients / max(clients - 1, 1)
    mean = cohort * float(array.mean())
    deviation = float(np.sqrt(variance + sigma**2))
    low = mean - _DEVIATIONS * deviation + reach[0]
    high = mean + _DEVIATIONS * deviation + reach[1]
    intervals = int(np.ceil((high - low) / sigma * _POINTS_PER_DEVIATION))
    points = np.linspace(low, high, intervals + 1)

    # If the cohort has all clients, only the noise is random.
    if cohort == clients:
        log_density = -(((points - mean) / sigma) ** 2) / 2 - np.log(sigma * np.sqrt(2 * np.pi))
        return ScoreLaw(points, log_density)

    # The tilted laws' means are spread evenly over the grid. A unit of tilt moves the mean by at least
    # sigma^2, by the noise alone, so tilts up to `most` move it over the whole grid.
    most = (high - low) / sigma**2
    count = int(np.ceil((high - low) / (_TILT_DISTANCE * deviation)))
    tilts = [_find_tilt(round_, mean, most) for mean in np.linspace(low, high, count + 1)]
    means = np.array([_compute_tilted_mean(round_, tilt) for tilt in tilts])
    nearest = np.argmin(np.abs(points - means[:, None]), axis=0)  # the tilt of each point
    log_density = np.empty(len(points))
    for i, tilt in enumerate(tilts):
        log_density[nearest == i] = _invert_along(round_, tilt, points[nearest == i])
    return ScoreLaw(points, log_density)


def added(dots: ArrayLike, cohort: int, sigma: float, canary: float) -> DensityPair:
    """Returns the score's densities without the canary, and with the canary added to the cohort.

    The two cohorts are neighbours in the accountant's sense.

    Args:
      dots: (M,) the clients' dot products with the direction, over the clipping norm.
      cohort: The number of clients in a round, drawn without replacement.
      sigma: The noise multiplier, above 0.
      canary: The canary's own dot product with the direction, over the clipping norm.
    """
    # With the canary the score has the same law, shifted up by `canary`: the grid reaches up as far. The
    # density with the canary at x is read from that without it at x - canary: the grid reaches down as far,
    # too. The canary is not below 0: its direction is its own.
    reach = (min(-canary, 0.0), max(canary, 0.0))
    law = score_law(dots, cohort, sigma, reach)
    return _make_pair(law, law, canary)


def replacing(dots: ArrayLike, cohort: int, sigma: float, canary: float) -> DensityPair:
    """Returns the score's densities without the canary, and with the canary in place of a client (Errata C1).

    Args:
      dots: (M,) the clients' dot products with the direction, over the clipping norm.
      cohort: The number of clients in a round, drawn without replacement; at least 2.
      sigma: The noise multiplier, above 0.
      canary: The canary's own dot product with the direction, over the clipping norm.
    """
    dots = np.asarray(dots, np.float64)
    # The canary takes the place of a client, so that it moves the score's mean by `shift`. The density with
    # the canary at x is that of the other clients' score at x - canary. So both grids are widened, on either
    # side: by |canary|, and by the shift if it is upwards.
    shift = canary - float(dots.mean())
    reach = (min(-shift, 0.0) - abs(canary), max(shift, 0.0) + abs(canary))
    law = score_law(dots, cohort, sigma, reach)
    law_of_others = score_law(dots, cohort - 1, sigma, reach)
    return _make_pair(law, law_of_others, canary)


def _make_pair(out: ScoreLaw, others: ScoreLaw, canary: float) -> DensityPair:
    """Returns the score's densities without and with the canary, on the grid of `out`.

    The law with the canary is that of the clients beside it, shifted by the canary's dot product. It is
    interpolated between grid points by a cubic spline through the log densities, which are smooth: the error
    is of the fourth power of the spacing.

    Args:
      out: The law of the score without the canary.
      others: The law of the score of the clients beside the canary: `out` itself, or with a client fewer.
      canary: The canary's dot product.
    """
    spline = scipy.interpolate.CubicSpline(others.points, others.log_density)
    first = others.points[0]
    last = others.points[-1]
    unshifted = out.points - canary  # the scores of the other clients alone
    is_inside = (unshifted >= first) & (unshifted <= last)
    # Outside of the grid the density is taken as 0; a spline would extrapolate.
    log_density_in = np.where(is_inside, spline(np.clip(unshifted, first, last)), -np.inf)

    density_out = np.exp(out.log_density)
    density_in = np.exp(log_density_in)
    spacing = out.points[1] - out.points[0]
    # How far the total masses are from 1.
    error_out = abs(float(density_out.sum()) * spacing - 1)
    error_in = abs(float(density_in.sum()) * spacing - 1)
    return DensityPair(out.points, density_out, density_in, max(error_out, error_in))


def _find_tilt(round_: _Round, mean: float, most: float) -> float:
    """Returns the tilt s at which the score's tilted law has the given mean.

    The tilted law has the density e^(s x) p(x), normalised, where p is the density of the score with its
    noise. For scores near this mean, the integrand of the inverse transform hardly oscillates at this s, the
    saddle point (`_invert_along`).

    Args:
      round_: The round's clients, cohort and noise.
      mean: The mean that the tilted law is to have.
      most: The end of the search interval [-most, most], which must hold the tilt.
    """

    def compute_excess(tilt: float) -> float:
        """Returns how far the mean of the tilted law lies above the mean that is sought."""
        return _compute_tilted_mean(round_, tilt) - mean

    # The excess rises with the tilt, so that it has a single root.
    return float(scipy.optimize.brentq(compute_excess, -most, most, xtol=1e-6))


def _find_log_odds(round_: _Round, tilt: float) -> float:
    """Returns c, the part that all clients share of their log odds of joining the cohort, under a tilt s.

    The tilt multiplies the probability of a cohort by e^(s times its sum of dot products), up to a factor. A
    cohort is computed as independent clients, given that `size` of them join: a client with the dot product
    a_i joins with the log odds c + s a_i. c is chosen to let `size` clients join on average.

    Args:
      round_: The round's clients, noise and cohort, which must have fewer than all clients.
      tilt: The tilt s.
    """
    size = round_.cohort
    untilted = float(special.logit(size / len(round_.dots)))
    # No s a_i is as large as `reach`. At c = untilted - reach every client joins with less than the untilted
    # probability, which is too few on average; at untilted + reach, too many.
    reach = abs(tilt) * float(np.max(np.abs(round_.dots))) + 1

    def compute_excess(log_odds: float) -> float:
        """Returns by how much the mean number of clients who join exceeds the cohort's size."""
        return float(np.sum(special.expit(log_odds + tilt * round_.dots)) - size)

    return float(scipy.optimize.brentq(compute_excess, untilted - reach, untilted + reach))


def _compute_tilted_mean(round_: _Round, tilt: float) -> float:
    """Returns the mean of the score under the tilted law, whose density is proportional to e^(s x) p(x)."""
    # Each client's probability of joining under the tilt.
    joins = special.expit(_find_log_odds(round_, tilt) + tilt * round_.dots)
    return float(joins @ round_.dots) + round_.sigma**2 * tilt


def _invert_along(round_: _Round, tilt: float, points: Array) -> Array:
    r"""Returns the log density of the score at points (n,), by inverting its moment generating function.

    With the score's moment generating function M, the density at x is, for any real tilt s,

        p(x) = e^(-s x) M(s) / (2 pi) \int M(s + i t) / M(s) e^(-i t x) dt,

    over the times t of the real line. The integral is computed by trapezoids, up to the time at which the
    integrand is below exp(-_CUT). It can't be told from 0, for rounding, where it is below _VALLEY times the
    integral of the integrand's absolute value: there it is raised to that.

    Args:
      round_: The round's clients, cohort and noise.
      tilt: The tilt s, at which the integrand hardly oscillates for these points.
      points: The scores at which the density is computed.
    """
    # Under the tilt, clients join the cohort with these probabilities (M,).
    log_odds = _find_log_odds(round_, tilt)
    joins: Array = special.expit(log_odds + tilt * round_.dots)

    # The times of the trapezoids. Their step sets the period with which the computed density repeats: many
    # deviations of the tilted law. At the last time, the noise's factor exp(-(sigma t)^2 / 2) is below
    # exp(-_CUT).
    variance = float(np.sum(joins * (1 - joins) * round_.dots**2)) + round_.sigma**2
    step = 2 * np.pi / (_PERIOD * float(np.sqrt(variance)))
    count = int(np.ceil(np.sqrt(2 * _CUT) / round_.sigma / step)) + 1
    times: Array = np.linspace(0.0, step * (count - 1), count)

    # M(s + i t) / M(s): the clients' part, times that of the noise. For noise, M(z) = exp((sigma z)^2 / 2).
    ratio = _compute_ratios(round_, times, joins) * np.exp(-((round_.sigma * times) ** 2) / 2)
    ratio *= np.exp(1j * times * round_.sigma**2 * tilt)

    # The integral over 2 pi. The integrand at -t is the conjugate of that at t, so that it is twice the real
    # part of the sum over t >= 0, where t = 0 counts half.
    weights = np.where(times == 0, 0.5, 1.0) * ratio
    integral = 2 * np.real(np.exp(-1j * np.outer(points, times)) @ weights) * step / (2 * np.pi)
    least = _VALLEY * step / np.pi * float(np.sum(np.abs(weights)))
    log_integral = np.log(np.maximum(integral, least))

    # log M(s): that of the clients' sum, and (sigma s)^2 / 2 for the noise.
    log_mass = _compute_log_mass(round_, log_odds, tilt)
    return np.asarray(log_integral - tilt * points) + log_mass + (round_.sigma * tilt) ** 2 / 2


def _compute_log_mass(round_: _Round, log_odds: float, tilt: float) -> float:
    """Returns log M(s), with M the moment generating function of a cohort's sum, without noise.

    M(s) is the mean over cohorts of e^(s S), where S is the sum of the cohort's dot products. The
    result lacks a factor: the probability that exactly `size` clients join, when client i joins independently
    with the log odds log_odds + s a_i. The result of `_compute_ratios` has that factor.

    Args:
      round_: The round's clients, cohort and noise.
      log_odds: The part of the log odds of joining that all clients share; see `_find_log_odds`.
      tilt: The tilt s, a real number.
    """
    clients = len(round_.dots)
    size = round_.cohort
    # The log of the product over clients of 1 + (the odds of joining).
    log_product = float(np.sum(np.logaddexp(0.0, log_odds + tilt * round_.dots)))
    # The log of the number of cohorts, a binomial coefficient: all are equally likely. Each cohort has `size`
    # clients, whose shared log odds are taken out again.
    log_cohorts = (
        special.gammaln(clients + 1)
        - special.gammaln(size + 1)
        - special.gammaln(clients - size + 1)
    )
    return log_product - size * log_odds - float(log_cohorts)


def _compute_ratios(round_: _Round, times: Array, joins: Array) -> Complex:
    """Returns M(s + i t) at times t (T,), over the M(s) of `_compute_log_mass`, for a cohort's sum.

    M is the moment generating function of the sum, without noise. If clients joined independently,
    M(s + i t) / M(s) would be a product over clients. The result is the part of that product from exactly
    `size` clients. It is a Fourier coefficient: each client who joins turns the product by an angle, and an
    average over angles picks out the turns of `size` clients. At t = 0 it is the probability that `size`
    independent clients join, a factor that `_compute_log_mass` leaves out of M(s).

    Args:
      round_: The round's clients, cohort and noise. The cohort has fewer than all clients.
      times: (T,) the times t.
      joins: (M,) the clients' probabilities of joining, when they join independently under the tilt s.
        They add up to `size` (`_find_log_odds`).
    """
    size = round_.cohort
    variances = joins * (1 - joins)
    # The standard deviation of the number of clients who join.
    spread = float(np.sqrt(variances.sum()))
    # Dot products are centred, so that the product varies slowly along t: by their mean, weighted by
    # variances. Where all variances are 0, 1e-300 avoids a division by 0.
    centre = float(variances @ round_.dots) / max(spread**2, 1e-300)

    # A discrete transform adds up the coefficients of numbers of clients that are a period apart: `size`,
    # `size` + period, and so on. The mean number is `size`. So with nine deviations on either side of it, and
    # 8 more for few clients, all but the coefficient of `size` are negligible.
    period = int(np.ceil(2 * _DEVIATIONS * spread + 8))
    turns = np.arange(-(period // 2), period - period // 2)
    # Beyond the largest angle a Gaussian product is below exp(-_CUT); 30% more, since the product is not
    # quite Gaussian. Where the number of clients hardly varies, no angle is left out.
    largest_angle = 1.3 * np.sqrt(2 * _CUT) / max(spread, 1e-9)
    is_within = np.abs(turns) * 2 * np.pi / period <= largest_angle
    angles = 2 * np.pi / period * turns[is_within]

    products = _multiply_clients(round_.dots - centre, joins, times, angles)
    # The average over angles: those left out count as 0.
    coefficient: Complex = products @ np.exp(-1j * size * angles) / period
    # Undoes the centring: `size` clients shift the sum by size * centre.
    return np.asarray(coefficient * np.exp(1j * times * size * centre))


def _multiply_clients(dots: Array, joins: Array, times: Array, angles: Array) -> Complex:
    """Returns prod_j (1 - r_j + r_j exp(i (angle + t a_j))) over clients j, (T, A).

    Here client j joins a cohort independently with probability r_j. The product is the characteristic
    function of two sums over the clients who join: of their dot products a_j, at the time t, and of their
    number, at the angle. Clients are multiplied block by block, so that memory holds about _BLOCK factors.

    Args:
      dots: (M,) a_j, the clients' dot products.
      joins: (M,) r_j, the clients' probabilities of joining.
      times: (T,) the times t.
      angles: (A,) the angles.
    """
    products = np.ones((len(times), len(angles)), np.complex128)
    # exp(i (angle + t a_j)) is the product of a turn, by the angle, and a wave, by the time.
    turns = np.exp(1j * angles)
    block = max(_BLOCK // len(angles), 1)
    for start in range(0, len(dots), block):
        part = slice(start, start + block)
        for row, time in enumerate(times):
            waves = joins[part] * np.exp(1j * time * dots[part])
            # (clients of the block, A)
            factors = (1 - joins[part])[:, None] + waves[:, None] * turns
            products[row] *= np.prod(factors, axis=0)
    return products
