"""The crafted loss landscape, exactly: the law of the iterate in both worlds, by quadrature.

The process (hidden-state paper, Section 6 and Equation 3; Errata H1, H5), in units of C:

    theta_1 ~ N(0, sigma^2) out, N(1, sigma^2) in
    theta_(t+1) = theta_t + s_t(theta_t) + N(0, (sigma / B)^2),   s_t = +1 above h_t and -1 below

Quadrature. Both densities are sampled at points whose spacing is an eighth of sigma / B, which resolves
every Gaussian that a step convolves with to machine precision, and at most sigma / 32, which resolves
where the likelihood ratio crosses e^epsilon. A step splits the density at h_t with
weights that integrate a smooth function cut at h_t to third order, shifts both parts and convolves
them with the Gaussian, as one product with a banded Toeplitz matrix. All of its entries are
non-negative and reach out 14 deviations, so that densities keep their *relative* accuracy far into
their tails; an FFT would leave an absolute error of 1e-17 there, which e^epsilon blows up.

Error. Mass that leaves the grid or the band is below 1e-20; the rest shows as a deviation of the total
mass from 1, which every pair carries as its `error`. Halving the spacing moves epsilon by less than
1e-3 of itself (tested in every cell of the heat map).

Where B / sigma is at least 9, a step goes back across the threshold with probability at most
Phi(-9) < 2e-19, and the law has a closed form for a constant threshold, which is used instead.

The optimal adversary. For a fixed epsilon the adversary wants the largest D_T = integral of
(q_T - e^epsilon p_T)+, where p_t and q_t are the densities out and in. Write g_t = q_t - e^epsilon p_t.

    Proven, among landscapes for which x -> x + s_t(x) increases at every step. D_T is the integral of
    g_1(x) V_1(x), where V_t(x) is the probability that the final test says "in" after theta_t = x. An
    increasing map and Gaussian noise (a totally positive kernel) keep an increasing likelihood ratio,
    and theta_1 has one, so the best final test is a threshold: V_T increases, and with it every V_t
    before it. Hence, whatever increasing maps come later, mass is worth more the higher it is: the
    best first step moves up where g_1 > 0 and down where g_1 < 0, a threshold at the crossing of
    q_1 / p_1 with e^epsilon, which is itself increasing. That fixes g_2, and the same holds of the
    second step, and so on. delta_T(epsilon) is a maximum of functions that decrease in epsilon, so it
    decreases, and its root at delta is the adversary's epsilon.

    Only checked. That maps which are not increasing do no better: random and gradient-searched
    landscapes s in [-1, 1], free at every point and step, never beat it
    (tests/statistics/test_iterates.py).
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from audit.errors import require
from audit.statistics import conversions, densities
from audit.statistics.densities import DensityPair

Array = NDArray[np.float64]
_PER_DEVIATION = 8  # points a standard deviation of one step's noise
_COARSE = 4  # the same while searching
_PER_SIGMA = 32  # points a sigma, at least; as many times fewer as the above while searching
_BAND = 14.0  # standard deviations that the kernel reaches
_REACH = 11.0  # standard deviations that the grid reaches beyond the drift
_SEPARATED = 9.0  # B / sigma from which no step recrosses the threshold
_BLOCK = 256
_LARGEST_GRID = 4_000_000


class Process(NamedTuple):
    """noise_multiplier sigma > 0, batch_size B >= 1, steps T >= 1; lengths are in units of C."""

    noise_multiplier: float
    batch_size: int
    steps: int

    @property
    def step_deviation(self) -> float:
        """Standard deviation of a later step's noise, sigma / B."""
        return self.noise_multiplier / self.batch_size


def validate(process: Process) -> None:
    """Raises InputError for a process out of range."""
    sigma, batch, steps = process
    require(0 < sigma < np.inf, f"sigma is {sigma}: without noise nothing is private, give a positive one")
    require(batch >= 1, f"batch size is {batch}: give at least 1")
    require(steps >= 1, f"steps is {steps}: give at least 1")


def laws(process: Process, thresholds: Array, per_deviation: int = _PER_DEVIATION) -> list[DensityPair]:
    """The exact laws of theta_1 .. theta_T under thresholds h_1 .. h_(T-1), in units of C.

    An infinite threshold moves everything one way: Example 1 of the paper.
    """
    validate(process)
    if _has_closed_form(process, thresholds):
        lengths = range(1, process.steps + 1)
        return [_closed_form(process._replace(steps=t), thresholds, per_deviation) for t in lengths]
    stepper = _stepper(process, per_deviation)
    return [stepper.pair(pair) for pair in _follow(stepper, thresholds)]


def last_law(process: Process, thresholds: Array, per_deviation: int = _PER_DEVIATION) -> DensityPair:
    """The exact law of theta_T alone."""
    validate(process)
    if _has_closed_form(process, thresholds):
        return _closed_form(process, thresholds, per_deviation)
    stepper = _stepper(process, per_deviation)
    for pair in _follow(stepper, thresholds):
        last = pair
    return stepper.pair(last)


def constant(process: Process, threshold: float) -> Array:
    """The same threshold at every step, (T - 1,); 1/2 is the paper's."""
    validate(process)
    return np.full(process.steps - 1, float(threshold))


class Adversary(NamedTuple):
    """Thresholds (T - 1,) in units of C, and the exact epsilon that they reach at step T."""

    thresholds: Array
    epsilon: float


def upper_bound(process: Process, delta: float) -> float:
    """epsilon of the first step, which post-processing cannot raise: mu = 1 / sigma."""
    validate(process)
    return conversions.epsilon_from_mu(1 / process.noise_multiplier, delta)


def half(process: Process, delta: float) -> Adversary:
    """The paper's adversary: the threshold C / 2 at every step."""
    return _at_constant(process, 0.5, delta)


def best_constant(process: Process, delta: float) -> Adversary:
    """The single threshold with the largest epsilon, by grid and golden section over h >= 1/2
    (reflection about 1/2 swaps the worlds, so the other half is the same)."""
    top = _crossing_of_first_step(process, upper_bound(process, delta))
    grid = np.linspace(0.5, 0.5 + 1.25 * (top - 0.5), 11)
    values = [_at_constant(process, h, delta, _COARSE).epsilon for h in grid]
    best = int(np.argmax(values))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = optimize.minimize_scalar(
        lambda h: -_at_constant(process, h, delta, _COARSE).epsilon,
        bounds=(low, high),
        method="bounded",
        options={"xatol": 3e-3 * (high - low)},
    )
    refined = _at_constant(process, float(found.x), delta)
    return max(refined, _at_constant(process, float(grid[best]), delta), key=lambda a: a.epsilon)


def optimal(process: Process, delta: float) -> Adversary:
    """The optimal adversary (see the module's docstring): a threshold a step, at the crossing of the
    likelihood ratio with e^epsilon, for the epsilon that these thresholds reach themselves.

    Where B / sigma is at least 9 the first crossing is kept for all steps, as nothing recrosses it.
    """
    validate(process)
    conversions.require_delta(delta)
    limit = upper_bound(process, delta)
    if process.steps == 1 or limit == 0:
        return _at_constant(process, 0.5, delta)
    if _is_separated(process):
        return _at_constant(process, _crossing_of_first_step(process, limit), delta)

    def excess(epsilon: float, stepper: _Stepper) -> float:
        pair, _ = _follow_crossings(stepper, epsilon)
        reached = densities.hockey_stick(pair[0], pair[1], stepper.spacing, epsilon)
        return float(np.log(max(reached, 1e-300)) - np.log(delta))

    coarse, fine = _stepper(process, _COARSE), _stepper(process, _PER_DEVIATION)
    if excess(0.0, fine) <= 0:
        return Adversary(_follow_crossings(fine, 0.0)[1], 0.0)
    high = 1.01 * limit + 0.01
    near = optimize.brentq(excess, 0.0, high, (coarse,), xtol=1e-4 * limit) if excess(0.0, coarse) > 0 else 0
    bracket = (0.998 * near, 1.002 * near)
    if not excess(bracket[0], fine) > 0 >= excess(bracket[1], fine):
        bracket = (0.0, high)
    epsilon = float(optimize.brentq(excess, *bracket, (fine,), xtol=1e-6 * limit))
    return Adversary(_follow_crossings(fine, epsilon)[1], epsilon)


def _at_constant(
    process: Process, threshold: float, delta: float, per_deviation: int = _PER_DEVIATION
) -> Adversary:
    """A constant threshold and its epsilon; one step is known in closed form."""
    thresholds = constant(process, threshold)
    if process.steps == 1:
        return Adversary(thresholds, upper_bound(process, delta))
    return Adversary(thresholds, densities.epsilon_at(last_law(process, thresholds, per_deviation), delta))


def _crossing_of_first_step(process: Process, epsilon: float) -> float:
    """Where the likelihood ratio of theta_1 is e^epsilon."""
    return 0.5 + process.noise_multiplier**2 * epsilon


def _follow(stepper: "_Stepper", thresholds: Array) -> Iterator[Array]:
    """Densities (2, n) of theta_1 .. theta_T under given thresholds."""
    pair = stepper.start()
    yield pair
    for threshold in thresholds:
        pair = stepper.advance(pair, threshold)
        yield pair


def _follow_crossings(stepper: "_Stepper", epsilon: float) -> tuple[Array, Array]:
    """(last densities (2, n), thresholds) of the adversary that splits at the crossing with e^epsilon."""
    pair = stepper.start()
    found: list[float] = []
    for _ in range(stepper.process.steps - 1):
        threshold = _crossing(stepper.points, pair, epsilon)
        found.append(threshold)
        pair = stepper.advance(pair, threshold)
    return pair, np.array(found)


def _crossing(points: NDArray, pair: NDArray, epsilon: float) -> float:
    """Where log(q / p), which increases, crosses epsilon; the grid's end where it doesn't."""
    tiny = 1e-290
    seen = np.flatnonzero((pair[0] > tiny) & (pair[1] > tiny))
    ratio = np.log(pair[1, seen]) - np.log(pair[0, seen])
    above = np.flatnonzero(ratio > epsilon)
    if not above.size:
        return float(points[seen[-1]])
    first = int(above[0])
    if first == 0:
        return float(points[seen[0]])
    share = (epsilon - ratio[first - 1]) / (ratio[first] - ratio[first - 1])
    left, right = points[seen[first - 1]], points[seen[first]]
    return float(left + share * (right - left))


def _is_separated(process: Process) -> bool:
    """Whether no step goes back across the threshold."""
    return process.steps > 1 and process.batch_size / process.noise_multiplier >= _SEPARATED


def _has_closed_form(process: Process, thresholds: Array) -> bool:
    """Whether nothing recrosses the threshold and it is the same at every step."""
    return _is_separated(process) and np.ptp(thresholds) == 0 and bool(np.all(np.isfinite(thresholds)))


def _closed_form(process: Process, thresholds: Array, per_deviation: int) -> DensityPair:
    """The law of theta_T where nothing recrosses a constant threshold: theta_1 cut in two, each part
    moved by T - 1 and smoothed by N(0, (T - 1)(sigma / B)^2). Both cuts lie on cell boundaries."""
    sigma, drift = process.noise_multiplier, float(process.steps - 1)
    if not drift:
        count = 1000 * per_deviation
        points = 0.5 + np.arange(-count, count + 1) * ((sigma * _REACH + 1) / count)
        return _pair(points, np.stack([_normal(points - mean, sigma) for mean in (0.0, 1.0)]))
    noise, threshold = np.sqrt(drift) * process.step_deviation, float(thresholds[0])
    reach = drift + _REACH * np.hypot(sigma, noise) + abs(threshold) + 1
    spacing = 2 * drift / np.ceil(2 * drift * 50 * per_deviation / sigma)
    half_width = int(np.ceil((reach + drift) / spacing))
    _require_grid(process, half_width)
    points = threshold + drift + (np.arange(-2 * half_width, half_width) + 0.5) * spacing
    points = points[np.abs(points - threshold) <= reach]
    worlds = [
        _cut_normal(points - drift, mean, sigma, noise, threshold, 1.0)
        + _cut_normal(points + drift, mean, sigma, noise, threshold, -1.0)
        for mean in (0.0, 1.0)
    ]
    return _pair(points, np.stack(worlds))


def _cut_normal(x: NDArray, mean: float, s: float, r: float, cut: float, side: float) -> Array:
    """Density of X + R, X the part of N(mean, s^2) above (side 1) or below (-1) the cut, R ~ N(0, r^2):
    that of N(mean, s^2 + r^2) times the probability that X, given the sum, lies on that side."""
    variance = s * s + r * r
    centre = (mean * r * r + x * s * s) / variance
    kept = special.ndtr(side * (centre - cut) * np.sqrt(variance) / (s * r))
    return _normal(x - mean, np.sqrt(variance)) * kept


def _require_grid(process: Process, half_width: int) -> None:
    """Raises InputError where the grid would be too large."""
    require(
        half_width < _LARGEST_GRID,
        f"{process.steps} steps at sigma {process.noise_multiplier:g} and B = {process.batch_size} need a "
        f"grid of {2 * half_width:,} points: use fewer steps",
    )


class _Stepper:
    """A grid for a process, and its steps; densities are arrays (2, n), out and in."""

    def __init__(self, process: Process, per_deviation: int) -> None:
        self.process = process
        deviation, drift = process.step_deviation, float(process.steps - 1)
        refined = _PER_SIGMA * per_deviation / _PER_DEVIATION
        self.spacing = min(deviation / per_deviation, process.noise_multiplier / refined)
        per_deviation = round(deviation / self.spacing)
        reach = drift + 1 + _REACH * np.sqrt(process.noise_multiplier**2 + drift * deviation**2)
        half_width = int(np.ceil(reach / self.spacing))
        _require_grid(process, half_width)
        # symmetric about 1/2, where reflection swaps the worlds
        self.points = 0.5 + (np.arange(-half_width, half_width) + 0.5) * self.spacing
        reach_cells = int(np.ceil(_BAND * per_deviation)) + 1
        centre = round(1 / self.spacing)
        self._offsets = np.arange(centre - reach_cells, centre + reach_cells + 1)
        taps = _normal(self._offsets * self.spacing - 1, deviation) * self.spacing
        rows = _BLOCK + len(taps) - 1
        distance = np.arange(_BLOCK)[None, :] - np.arange(rows)[:, None] + len(taps) - 1
        inside = (distance >= 0) & (distance < len(taps))
        self._toeplitz = np.where(inside, taps[np.clip(distance, 0, len(taps) - 1)], 0.0)

    def start(self) -> Array:
        """theta_1 in both worlds."""
        sigma = self.process.noise_multiplier
        return np.stack([_normal(self.points, sigma), _normal(self.points - 1, sigma)])

    def advance(self, pair: Array, threshold: float) -> Array:
        """One step with a threshold."""
        up = _share_above(self.points, self.spacing, threshold)
        reflected = self._move_up((pair * (1 - up))[:, ::-1])[:, ::-1]
        return np.maximum(self._move_up(pair * up) + reflected, 0.0)

    def pair(self, pair: Array) -> DensityPair:
        """Densities with their error bound."""
        return _pair(self.points, pair)

    def _move_up(self, pair: Array) -> Array:
        """Shifts by +1 and convolves with the step's noise: out[i] = sum_d taps[d] in[i - d]."""
        count = pair.shape[1]
        blocks = -(-count // _BLOCK)
        first, last = int(self._offsets[0]), int(self._offsets[-1])
        width = _BLOCK + last - first
        padded = np.zeros((2, max(last, 0) + blocks * _BLOCK + max(-first, 0)))
        padded[:, max(last, 0) : max(last, 0) + count] = pair
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
        chosen = windows[:, max(last, 0) - last :: _BLOCK][:, :blocks]
        moved = np.ascontiguousarray(chosen).reshape(-1, width) @ self._toeplitz
        return moved.reshape(2, -1)[:, :count]


@functools.lru_cache(maxsize=8)
def _stepper(process: Process, per_deviation: int) -> _Stepper:
    """A process's stepper, kept: searches evolve one process many times."""
    return _Stepper(process, per_deviation)


def _share_above(points: NDArray, spacing: float, threshold: float) -> Array:
    """Weights whose sum with smooth samples is the integral above the threshold, to third order.

    Linear interpolation in the cut cell, and Gregory's first correction at the next point.
    """
    position = (threshold - points[0]) / spacing
    if not 0 <= position < len(points) - 3:
        return (points > threshold).astype(np.float64)
    cell = int(position)
    share = position - cell
    weights = np.zeros(len(points))
    weights[cell] = (1 - share) ** 2 / 2
    weights[cell + 1] = 5 / 12 + (1 - share**2) / 2
    weights[cell + 2] = 13 / 12
    weights[cell + 3 :] = 1.0
    return weights


def _pair(points: NDArray, values: NDArray) -> DensityPair:
    """A pair whose error is the mass that is missing or too much."""
    pair = DensityPair(points, values[0], values[1], 0.0)
    mass = values.sum(axis=1) * pair.spacing
    return pair._replace(error=float(np.max(np.abs(mass - 1))))


def _normal(x: NDArray, deviation: float) -> Array:
    """The density of N(0, deviation^2)."""
    return np.exp(-0.5 * (x / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))
