"""The exact law of the crafted landscape's iterate in both worlds, by quadrature or in closed form.

The quadrature and its error are `audit.landscape.quadrature`'s. Where B / sigma is at least 9, a step goes
back across the threshold with probability at most Phi(-9) < 2e-19, and the law has a closed form for a
constant threshold, which is used instead.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.landscape import quadrature
from audit.landscape.process import Process, validate
from audit.landscape.quadrature import PER_DEVIATION, REACH, density_pair, normal
from audit.statistics.densities import DensityPair

Array = NDArray[np.float64]
_SEPARATED = 9.0  # B / sigma from which no step recrosses the threshold


def laws(process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION) -> list[DensityPair]:
    """The exact laws of theta_1 .. theta_T under thresholds h_1 .. h_(T-1), in units of C.

    An infinite threshold moves everything one way: Example 1 of the paper. `per_deviation` is the grid's
    points a deviation of a step's noise. Raises InputError for a process out of range, or too long for
    the grid.
    """
    validate(process)
    if _has_closed_form(process, thresholds):
        lengths = range(1, process.steps + 1)
        return [_closed_form(process._replace(steps=t), thresholds, per_deviation) for t in lengths]
    stepper = quadrature.stepper(process, per_deviation)
    return [density_pair(stepper.points, pair) for pair in quadrature.evolve(stepper, thresholds)]


def last_law(process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION) -> DensityPair:
    """The exact law of theta_T alone, which takes less memory; arguments and errors are those of `laws`."""
    validate(process)
    if _has_closed_form(process, thresholds):
        return _closed_form(process, thresholds, per_deviation)
    stepper = quadrature.stepper(process, per_deviation)
    for pair in quadrature.evolve(stepper, thresholds):
        last = pair
    return density_pair(stepper.points, last)


def is_separated(process: Process) -> bool:
    """Whether no step goes back across the threshold."""
    return process.steps > 1 and process.batch_size / process.noise_multiplier >= _SEPARATED


def _has_closed_form(process: Process, thresholds: Array) -> bool:
    """Whether nothing recrosses the threshold and it is the same at every step."""
    return is_separated(process) and np.ptp(thresholds) == 0 and bool(np.all(np.isfinite(thresholds)))


def _closed_form(process: Process, thresholds: Array, per_deviation: int) -> DensityPair:
    """The law of theta_T where nothing recrosses a constant threshold: theta_1 cut in two, each part
    moved by T - 1 and smoothed by N(0, (T - 1)(sigma / B)^2). Both cuts lie on cell boundaries."""
    sigma, drift = process.noise_multiplier, float(process.steps - 1)
    if not drift:
        return _first_law(sigma, 1000 * per_deviation)
    noise, threshold = np.sqrt(drift) * process.step_deviation, float(thresholds[0])
    reach = drift + REACH * np.hypot(sigma, noise) + abs(threshold) + 1
    spacing = 2 * drift / np.ceil(2 * drift * 50 * per_deviation / sigma)
    half_width = int(np.ceil((reach + drift) / spacing))
    quadrature.require_grid(process, half_width)
    points = threshold + drift + (np.arange(-2 * half_width, half_width) + 0.5) * spacing
    points = points[np.abs(points - threshold) <= reach]
    worlds = [
        _cut_normal(points - drift, mean, sigma, noise, threshold, 1.0)
        + _cut_normal(points + drift, mean, sigma, noise, threshold, -1.0)
        for mean in (0.0, 1.0)
    ]
    return density_pair(points, np.stack(worlds))


def _first_law(sigma: float, count: int) -> DensityPair:
    """The law of theta_1 at 2 count + 1 points."""
    points = 0.5 + np.arange(-count, count + 1) * ((sigma * REACH + 1) / count)
    return density_pair(points, np.stack([normal(points - mean, sigma) for mean in (0.0, 1.0)]))


def _cut_normal(x: NDArray[Any], mean: float, s: float, r: float, cut: float, side: float) -> Array:
    """Density of X + R, X the part of N(mean, s^2) above (side 1) or below (-1) the cut, R ~ N(0, r^2):
    that of N(mean, s^2 + r^2) times the probability that X, given the sum, lies on that side."""
    variance = s * s + r * r
    centre = (mean * r * r + x * s * s) / variance
    kept = special.ndtr(side * (centre - cut) * np.sqrt(variance) / (s * r))
    return np.asarray(normal(x - mean, np.sqrt(variance)) * kept)
