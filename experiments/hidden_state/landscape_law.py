"""The crafted landscape: the exact law of its iterate in both worlds, and its adversaries.

The landscape has one parameter, whose gradients the adversary decides. Hidden-state paper, Section 6 and
Equation 3 (Errata H5), in units of C:

    theta_1 ~ N(0, sigma^2) out, N(1, sigma^2) in
    theta_(t+1) = theta_t + s_t(theta_t) + N(0, (sigma / B)^2),   s_t = +1 above h_t and -1 below

The law is computed by quadrature. Both worlds' densities are sampled at points whose spacing is an eighth of
sigma / B, which resolves every Gaussian that a step convolves with to machine precision, and at most
sigma / 32, which resolves where the likelihood ratio crosses e^epsilon. A step splits the density at h_t with
weights that integrate a smooth function cut at h_t to third order, shifts both parts and convolves
them with the Gaussian. All terms of the convolution are non-negative and reach out 14 deviations, so that
densities keep their *relative* accuracy far into their tails; an FFT would leave an absolute error of 1e-17
there, which e^epsilon blows up. Mass that leaves the grid or the band is below 1e-20; the rest shows as a
deviation of the total mass from 1, which every pair carries as its `error`. Halving the spacing moves epsilon
by less than 1e-3 of itself (tested in every cell of the heat map).

The optimal adversary. For a fixed epsilon the adversary wants the largest D_T = integral of
(q_T - e^epsilon p_T)+, where p_t and q_t are the densities out and in. Write g_t = q_t - e^epsilon p_t.

    Proven, among landscapes for which x -> x + s_t(x) increases at every step. D_T is the integral of
    g_1(x) V_1(x), where V_t(x) is the probability that the final test says "in" after theta_t = x. An
    increasing map and Gaussian noise (a totally positive kernel) keep an increasing likelihood ratio,
    and theta_1 has such a ratio, so the best final test is a threshold: V_T increases, and with it every V_t
    before it. Hence, whatever increasing maps come later, mass is worth more the higher it is: the
    best first step moves up where g_1 > 0 and down where g_1 < 0, a threshold at the crossing of
    q_1 / p_1 with e^epsilon, which is itself increasing. That fixes g_2, and the same holds of the
    second step, and so on. delta_T(epsilon) is a maximum of functions that decrease in epsilon, so it
    decreases, and its root at delta is the adversary's epsilon.

    Only checked. That maps which are not increasing do no better: random and gradient-searched
    landscapes s in [-1, 1], free at every point and step, never beat it
    (tests/experiments/hidden_state/test_crafted_landscape.py).
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.errors import require
from audit.laws import conversions, densities
from audit.laws.densities import DensityPair

Array = NDArray[np.float64]
HALF = 0.5  # the paper's threshold, in units of C
PER_DEVIATION = 8  # points a standard deviation of one step's noise
_REACH = 11.0  # standard deviations that the grid reaches beyond the drift
_PER_SIGMA = 4  # times PER_DEVIATION points a sigma, at least
_BAND = 14.0  # standard deviations that the kernel reaches
_MAX_HALF_GRID = 400_000  # half the number of points
_SHARP = 9.0  # B / sigma from which the grid is three times as fine
_LEAST_DENSITY = 1e-290  # well above 2e-308, below which float64 loses digits


class Process(NamedTuple):
    """The process of a crafted landscape; lengths are in units of C.

    Attributes:
      noise_multiplier: sigma > 0.
      batch_size: B >= 1.
      steps: T >= 1.
    """

    noise_multiplier: float
    batch_size: int
    steps: int

    @property
    def step_deviation(self) -> float:
        """Standard deviation of a later step's noise, sigma / B."""
        return self.noise_multiplier / self.batch_size


class Thresholds(NamedTuple):
    """An adversary of the crafted landscape.

    Attributes:
      values: (T - 1,) the thresholds of steps 2 to T, in units of the clipping norm C.
      epsilon: the exact epsilon that the last iterate leaks under these thresholds.
    """

    values: Array
    epsilon: float


def upper_bound(process: Process, delta: float) -> float:
    """Returns the accountant's epsilon at delta: that of the first step, where mu = 1 / sigma.

    Later steps see theta_1 and not the canary: they are post-processing and cannot raise it.
    """
    return conversions.epsilon_from_mu(1 / process.noise_multiplier, delta)


class Stepper:
    """A process on a grid: its densities, (2, n), first out, then in, and how a step changes them.

    Attributes:
      process: the process.
      spacing: the distance of neighbouring points.
      points: (n,) the grid, symmetric about 1/2.
    """

    def __init__(self, process: Process, per_deviation: int) -> None:
        """Makes the grid; raises InputError where it would be too large.

        Args:
          process: the process.
          per_deviation: how many points the grid has in each standard deviation of a step's noise.
        """
        self.process = process
        sigma = process.noise_multiplier
        deviation = process.step_deviation
        self.spacing = float(min(deviation, sigma / _PER_SIGMA)) / per_deviation
        if process.batch_size / sigma >= _SHARP:  # each step's cut stays visible in the law
            self.spacing /= 3

        # The mean of theta begins at 0 or 1, and each later step moves it by 1.
        drift = float(process.steps - 1)
        total_deviation = np.sqrt(sigma**2 + drift * deviation**2)
        half_width = int(np.ceil((drift + 1 + _REACH * total_deviation) / self.spacing))
        where = f"`steps={process.steps}`: at sigma {sigma:g} and B = {process.batch_size}"
        need = f"they need a grid of {2 * half_width:,} points, use fewer steps or a smaller B"
        require(half_width < _MAX_HALF_GRID, f"{where} {need}")
        # Symmetric about 1/2, since reflection there swaps the two worlds.
        cells = np.arange(-half_width, half_width, dtype=np.float64)
        self.points: Array = 0.5 + (cells + 0.5) * self.spacing

        # A step upwards is a convolution with the density of N(1, deviation^2), about `_centre` cells up.
        self._centre = round(1 / self.spacing)
        reach = int(np.ceil(_BAND * deviation / self.spacing))
        offsets = (self._centre + np.arange(-reach, reach + 1)) * self.spacing - 1
        self._taps = normal_density(offsets, deviation) * self.spacing

    def start(self) -> Array:
        """Returns the densities (2, n) of theta_1: N(0, sigma^2) without the canary, then N(1, sigma^2)."""
        sigma = self.process.noise_multiplier
        return np.stack([normal_density(self.points - mean, sigma) for mean in (0.0, 1.0)])

    def advance(self, pair: Array, threshold: float) -> Array:
        """Returns the densities (2, n) after a step, which moves theta by 1 and adds noise.

        Above the threshold a step moves theta up, elsewhere down: the densities are cut in two there.

        Args:
          pair: (2, n) the densities before the step, without and with the canary.
          threshold: the step's threshold, in units of the clipping norm C.
        """
        weights_above = _compute_weights_above(self.points, self.spacing, threshold)
        up = self._move_up(pair * weights_above)
        # The part that moves down is mirrored about the grid's middle, moved up, and mirrored back.
        down = self._move_up((pair * (1 - weights_above))[:, ::-1])[:, ::-1]
        # A weight next to the threshold may exceed 1, and the lower part's is then negative.
        return np.maximum(up + down, 0.0)

    def _move_up(self, pair: Array) -> Array:
        """Returns the densities (2, n) of theta + 1 + noise, for theta with the densities `pair` (2, n)."""
        noisy = np.stack([np.convolve(density, self._taps, mode="same") for density in pair])
        return np.pad(noisy, ((0, 0), (self._centre, 0)))[:, : pair.shape[1]]


# Cached, since a search needs the stepper of the same process many times.
make_stepper = lru_cache(maxsize=8)(Stepper)


def laws(
    process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION
) -> Iterator[DensityPair]:
    """Yields the exact laws of the iterates theta_1, ..., theta_T, each in both worlds.

    Args:
      process: the process, of T steps.
      thresholds: (T - 1,) the thresholds h_1, ..., h_(T-1) at which steps 2 to T split the landscape, in
        units of the clipping norm C. At an infinite threshold every model moves the same way, as in
        Example 1 of the paper.
      per_deviation: how many points the grid has in each standard deviation of a step's noise.

    Raises:
      InputError: the process is too long for the grid.
    """
    stepper = make_stepper(process, per_deviation)
    pair = stepper.start()
    for threshold in [None, *thresholds]:
        if threshold is not None:
            pair = stepper.advance(pair, threshold)
        mass = pair.sum(axis=1) * stepper.spacing
        yield DensityPair(stepper.points, *pair, error=float(np.max(np.abs(mass - 1))))


def last_law(
    process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION
) -> DensityPair:
    """Returns the exact law of theta_T in both worlds; see `laws`."""
    *_, last = laws(process, thresholds, per_deviation)
    return last


def normal_density(x: NDArray[Any], deviation: float) -> Array:
    """Returns the density of N(0, deviation^2) at x, of any shape."""
    exponential = np.exp(-0.5 * (x / deviation) ** 2)
    return np.asarray(exponential / (deviation * np.sqrt(2 * np.pi)))


def _compute_weights_above(points: NDArray[Any], spacing: float, threshold: float) -> Array:
    """Returns quadrature weights (n,) for the integral of a function from the threshold upwards.

    spacing * sum(weights * values) is the integral, to third order in the spacing, of a function that is
    negligible at the grid's ends. The threshold lies in a cell, between two neighbouring points. Up to the
    cell's upper point the function is interpolated linearly between both. From there on Gregory's rule
    applies, a sum with corrected weights 5/12, 13/12, 1, 1, ... For a threshold off the grid or in its last
    cells, weights are simply 1 above it and 0 elsewhere.
    """
    position = (threshold - points[0]) / spacing  # of the threshold, counted in cells
    if not 0 <= position < len(points) - 3:
        return (points > threshold).astype(np.float64)
    cell = int(position)
    share = position - cell  # of the cell that lies below the threshold
    weights = np.zeros(len(points))
    weights[cell] = (1 - share) ** 2 / 2
    weights[cell + 1] = 5 / 12 + (1 - share**2) / 2
    weights[cell + 2] = 13 / 12
    weights[cell + 3 :] = 1.0
    return weights


def constant(
    process: Process, threshold: float, delta: float, per_deviation: int = PER_DEVIATION
) -> Thresholds:
    """Returns the adversary with the same threshold, in units of C, at every step."""
    thresholds = np.full(process.steps - 1, float(threshold))
    epsilon = densities.epsilon_at(last_law(process, thresholds, per_deviation), delta)
    return Thresholds(thresholds, epsilon)


def half(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """Returns the hidden-state paper's adversary at delta: the threshold C / 2 at every step.

    It is not the best constant threshold (Errata H13).
    """
    return constant(process, HALF, delta, per_deviation)


def best_constant(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """Returns the adversary whose threshold is the same at every step and leaks the largest epsilon at delta.

    The threshold h is searched on a grid first, then between the best point's neighbours by Brent's bounded
    method. Only h >= 1/2 is tried, since reflection about 1/2 swaps the two worlds and turns h into 1 - h.
    """

    def lose(threshold: float) -> float:
        """Returns the negative epsilon of a constant threshold, on a coarse grid."""
        return -constant(process, threshold, delta, per_deviation // 2).epsilon

    # No threshold beyond `top` leaks more. The grid goes a quarter further, since `top` can be the best.
    top = cross_at_first_step(process, upper_bound(process, delta))
    grid = np.linspace(0.5, 0.5 + 1.25 * (top - 0.5), 11)
    best = int(np.argmin([lose(threshold) for threshold in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    # A rough place will do, since epsilon hardly changes near its largest value.
    options = {"xatol": 3e-3 * (bounds[1] - bounds[0])}
    refined = scipy.optimize.minimize_scalar(lose, bounds=bounds, method="bounded", options=options)
    found = [constant(process, h, delta, per_deviation) for h in (refined.x, grid[best])]
    return max(found, key=lambda thresholds: thresholds.epsilon)


def optimal(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """Returns the adversary whose thresholds, which may differ from step to step, leak most at delta.

    The threshold at a step is where the likelihood ratio of theta, with the canary over without it, crosses
    e^epsilon. So the thresholds follow from an epsilon, and leak an epsilon in turn. At the optimum the two
    are equal, which is solved for as a root. The module's docstring has the proof.
    """
    conversions.require_delta(delta)
    stepper = make_stepper(process, per_deviation)

    def compute_excess(epsilon: float) -> float:
        """Returns log(D_T / delta) where thresholds are the crossings with e^epsilon; it falls."""
        pair, _ = _follow_crossings(stepper, epsilon)
        reached = densities.hockey_stick(pair[0], pair[1], stepper.spacing, epsilon)
        return float(np.log(max(reached, 1e-300)) - np.log(delta))  # finite even where D_T is 0

    epsilon = 0.0  # unless the adversary reaches more than `delta` at epsilon 0
    if compute_excess(0.0) > 0:
        limit = upper_bound(process, delta)
        beyond = 1.01 * limit + 0.01  # past the root, even with the grid's error
        epsilon = float(scipy.optimize.brentq(compute_excess, 0.0, beyond, xtol=1e-6 * limit))
    return Thresholds(_follow_crossings(stepper, epsilon)[1], epsilon)


ADVERSARIES: dict[str, Callable[[Process, float], Thresholds]] = {
    "half": half,
    "best_constant": best_constant,
    "optimal": optimal,
}


def cross_at_first_step(process: Process, epsilon: float) -> float:
    """Returns where the likelihood ratio of theta_1, N(1, sigma^2) to N(0, sigma^2), is e^epsilon."""
    return 0.5 + process.noise_multiplier**2 * epsilon


def _follow_crossings(stepper: Stepper, epsilon: float) -> tuple[Array, Array]:
    """Splits each step where the likelihood ratio, which increases, crosses e^epsilon, or at the nearest end.

    Returns the densities of theta_T in both worlds, (2, n), and the thresholds (T - 1,).
    """
    pair = stepper.start()
    thresholds: list[float] = []
    for _ in range(stepper.process.steps - 1):
        visible = np.min(pair, axis=0) > _LEAST_DENSITY
        log_ratio = np.log(pair[1, visible]) - np.log(pair[0, visible])
        thresholds.append(float(np.interp(epsilon, log_ratio, stepper.points[visible])))
        pair = stepper.advance(pair, thresholds[-1])
    return pair, np.array(thresholds)
