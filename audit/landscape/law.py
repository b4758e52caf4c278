"""The exact law of the crafted landscape's iterate in both worlds, by quadrature or in closed form.

Where B / sigma is at least 9, a step goes back across the threshold with probability at most
Phi(-9) < 2e-19, and the law has a closed form for a constant threshold, which is used instead.

Both worlds' densities are sampled at points whose spacing is an eighth of sigma / B, which resolves
every Gaussian that a step convolves with to machine precision, and at most sigma / 32, which resolves
where the likelihood ratio crosses e^epsilon. A step splits the density at h_t with
weights that integrate a smooth function cut at h_t to third order, shifts both parts and convolves
them with the Gaussian, as one product with a banded Toeplitz matrix. All of its entries are
non-negative and reach out 14 deviations, so that densities keep their *relative* accuracy far into
their tails; an FFT would leave an absolute error of 1e-17 there, which e^epsilon blows up.

Error. Mass that leaves the grid or the band is below 1e-20; the rest shows as a deviation of the total
mass from 1, which every pair carries as its `error`. Halving the spacing moves epsilon by less than
1e-3 of itself (tested in every cell of the heat map).
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.landscape.process import Process, validate
from audit.statistics.densities import DensityPair

Array = NDArray[np.float64]
PER_DEVIATION = 8  # points a standard deviation of one step's noise
REACH = 11.0  # standard deviations that the grid reaches beyond the drift
_PER_SIGMA = 4  # points a sigma, at least: so many times those a deviation
_BAND = 14.0  # standard deviations that the kernel reaches
_BLOCK = 256
_LARGEST_GRID = 4_000_000
_SEPARATED = 9.0  # B / sigma from which no step recrosses the threshold


class Stepper:
    """A process's grid points (n,), symmetric about 1/2, and its steps; densities are (2, n), out and in."""

    def __init__(self, process: Process, per_deviation: int) -> None:
        """Raises InputError where the grid would be too large."""
        self.process = process
        deviation, drift = process.step_deviation, float(process.steps - 1)
        self.spacing = min(deviation, process.noise_multiplier / _PER_SIGMA) / per_deviation
        reach = drift + 1 + REACH * np.sqrt(process.noise_multiplier**2 + drift * deviation**2)
        half_width = int(np.ceil(reach / self.spacing))
        require_grid(process, half_width)
        self.points = 0.5 + (np.arange(-half_width, half_width) + 0.5) * self.spacing
        reach_cells = int(np.ceil(_BAND * round(deviation / self.spacing))) + 1
        centre = round(1 / self.spacing)
        self._offsets = np.arange(centre - reach_cells, centre + reach_cells + 1)
        self._toeplitz = _toeplitz(normal(self._offsets * self.spacing - 1, deviation) * self.spacing)

    def start(self) -> Array:
        """theta_1 in both worlds."""
        sigma = self.process.noise_multiplier
        return np.stack([normal(self.points, sigma), normal(self.points - 1, sigma)])

    def advance(self, pair: Array, threshold: float) -> Array:
        """One step with a threshold."""
        up = _share_above(self.points, self.spacing, threshold)
        reflected = self._move_up((pair * (1 - up))[:, ::-1])[:, ::-1]
        return np.maximum(self._move_up(pair * up) + reflected, 0.0)

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


stepper = functools.lru_cache(maxsize=8)(Stepper)  # searches evolve one process many times


def evolve(stepper: Stepper, thresholds: Array) -> Iterator[Array]:
    """Densities (2, n) of theta_1 .. theta_T under thresholds (T - 1,)."""
    pair = stepper.start()
    yield pair
    for threshold in thresholds:
        pair = stepper.advance(pair, threshold)
        yield pair


def density_pair(points: NDArray[Any], values: Array) -> DensityPair:
    """Densities (2, n) at points (n,) as a pair whose error is the mass that is missing or too much."""
    pair = DensityPair(points, values[0], values[1], 0.0)
    mass = values.sum(axis=1) * pair.spacing
    return pair._replace(error=float(np.max(np.abs(mass - 1))))


def normal(x: NDArray[Any], deviation: float) -> Array:
    """The density of N(0, deviation^2) at x."""
    return np.asarray(np.exp(-0.5 * (x / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi)))


def require_grid(process: Process, half_width: int) -> None:
    """Raises InputError where a process's grid, twice `half_width` points, would be too large."""
    sigma, batch, steps = process
    require(
        half_width < _LARGEST_GRID,
        f"`steps={steps}`: at sigma {sigma:g} and B = {batch} they need a grid of {2 * half_width:,} points, "
        "use fewer steps",
    )


def _toeplitz(taps: Array) -> Array:
    """The banded matrix (len(taps) + _BLOCK - 1, _BLOCK) that convolves a block with taps."""
    rows = _BLOCK + len(taps) - 1
    distance = np.arange(_BLOCK)[None, :] - np.arange(rows)[:, None] + len(taps) - 1
    inside = (distance >= 0) & (distance < len(taps))
    return np.where(inside, taps[np.clip(distance, 0, len(taps) - 1)], 0.0)


def _share_above(points: NDArray[Any], spacing: float, threshold: float) -> Array:
    """Weights of the integral above the threshold, to third order: the cut cell, then Gregory's rule."""
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


def laws(process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION) -> list[DensityPair]:
    """The exact laws of theta_1 .. theta_T under thresholds h_1 .. h_(T-1), in units of C. An infinite
    threshold moves everything one way: Example 1 of the paper. `per_deviation` is the grid's points a
    deviation of a step's noise. Raises InputError for a process out of range, or too long for the grid."""
    validate(process)
    if _has_closed_form(process, thresholds):
        lengths = range(1, process.steps + 1)
        return [_closed_form(process._replace(steps=t), thresholds, per_deviation) for t in lengths]
    grid = stepper(process, per_deviation)
    return [density_pair(grid.points, pair) for pair in evolve(grid, thresholds)]


def last_law(process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION) -> DensityPair:
    """The exact law of theta_T alone, which takes less memory; arguments and errors are those of `laws`."""
    validate(process)
    if _has_closed_form(process, thresholds):
        return _closed_form(process, thresholds, per_deviation)
    grid = stepper(process, per_deviation)
    for pair in evolve(grid, thresholds):
        last = pair
    return density_pair(grid.points, last)


def is_separated(process: Process) -> bool:
    """Whether no step goes back across the threshold."""
    return process.steps > 1 and process.batch_size / process.noise_multiplier >= _SEPARATED


def _has_closed_form(process: Process, thresholds: Array) -> bool:
    """Whether nothing recrosses the threshold and it is the same at every step."""
    return is_separated(process) and np.ptp(thresholds) == 0 and bool(np.all(np.isfinite(thresholds)))


def _closed_form(process: Process, thresholds: Array, per_deviation: int) -> DensityPair:
    """theta_1 cut in two at cell boundaries, each part moved by T - 1 and smoothed by the later steps."""
    sigma, drift = process.noise_multiplier, float(process.steps - 1)
    if not drift:  # the law of theta_1
        count = 1000 * per_deviation
        points = 0.5 + np.arange(-count, count + 1) * ((sigma * REACH + 1) / count)
        return density_pair(points, np.stack([normal(points - mean, sigma) for mean in (0.0, 1.0)]))
    noise, threshold = np.sqrt(drift) * process.step_deviation, float(thresholds[0])
    reach = drift + REACH * np.hypot(sigma, noise) + abs(threshold) + 1
    spacing = 2 * drift / np.ceil(2 * drift * 50 * per_deviation / sigma)
    half_width = int(np.ceil((reach + drift) / spacing))
    require_grid(process, half_width)
    points = threshold + drift + (np.arange(-2 * half_width, half_width) + 0.5) * spacing
    points = points[np.abs(points - threshold) <= reach]
    worlds = [
        _cut_normal(points - drift, mean, sigma, noise, threshold, 1.0)
        + _cut_normal(points + drift, mean, sigma, noise, threshold, -1.0)
        for mean in (0.0, 1.0)
    ]
    return density_pair(points, np.stack(worlds))


def _cut_normal(x: NDArray[Any], mean: float, s: float, r: float, cut: float, side: float) -> Array:
    """Density of X + R, X the part of N(mean, s^2) above (side 1) or below (-1) the cut, R ~ N(0, r^2):
    that of N(mean, s^2 + r^2) times the probability that X, given the sum, lies on that side."""
    variance = s * s + r * r
    centre = (mean * r * r + x * s * s) / variance
    kept = special.ndtr(side * (centre - cut) * np.sqrt(variance) / (s * r))
    return np.asarray(normal(x - mean, np.sqrt(variance)) * kept)
