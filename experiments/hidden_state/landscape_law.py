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
from audit.laws.densities import DensityPair
from experiments.hidden_state.landscape_process import Process, validate

Array = NDArray[np.float64]
PER_DEVIATION = 8  # points a standard deviation of one step's noise
REACH = 11.0  # standard deviations that the grid reaches beyond the drift
_PER_SIGMA = 4  # times PER_DEVIATION points a sigma, at least
_BAND = 14.0  # standard deviations that the kernel reaches
_BLOCK = 256  # points of a density that one product of matrices computes
_LARGEST_GRID = 4_000_000  # half the number of points, at most
_SEPARATED = 9.0  # B / sigma from which no step recrosses the threshold


class Stepper:
    """A process on a grid: its densities and how a step changes them.

    Densities are (2, n), first out, then in.

    Attributes:
      process: the process.
      spacing: the distance of neighbouring points.
      points: (n,) the grid, symmetric about 1/2.
    """

    def __init__(self, process: Process, per_deviation: int) -> None:
        """Makes the grid.

        Args:
          process: the process.
          per_deviation: how many points the grid has in each standard deviation of a step's noise.

        Raises:
          InputError: the grid would be too large.
        """
        self.process = process
        sigma = process.noise_multiplier
        deviation = process.step_deviation  # sigma / B, of the noise of a step after the first

        # The spacing resolves a step's noise, by at least `per_deviation` points in its deviation. It also
        # resolves where the likelihood ratio crosses e^epsilon, by at least _PER_SIGMA * `per_deviation`
        # points in sigma.
        self.spacing = min(deviation, sigma / _PER_SIGMA) / per_deviation

        # The grid reaches REACH standard deviations beyond every mean that theta can have. Its mean begins at
        # 0 or 1, and each later step moves it by 1: it lies within drift + 1 of the grid's middle, 1/2. The
        # deviation is that of all steps' noise together.
        drift = float(process.steps - 1)
        total_deviation = np.sqrt(sigma**2 + drift * deviation**2)
        reach = drift + 1 + REACH * total_deviation
        half_width = int(np.ceil(reach / self.spacing))
        require_grid(process, half_width)
        # Symmetric about 1/2, since reflection there swaps the two worlds.
        self.points = 0.5 + (np.arange(-half_width, half_width) + 0.5) * self.spacing

        # The kernel of a step upwards: the density of N(1, deviation^2), cut off _BAND deviations from 1.
        # Offsets are counted in cells, the distances of neighbouring points. A tap is the kernel's share of a
        # cell at an offset.
        cells_per_deviation = round(deviation / self.spacing)
        reach_cells = int(np.ceil(_BAND * cells_per_deviation)) + 1
        centre = round(1 / self.spacing)  # the number of cells in a move of 1
        self._offsets = np.arange(centre - reach_cells, centre + reach_cells + 1)
        taps = normal_density(self._offsets * self.spacing - 1, deviation) * self.spacing
        self._toeplitz = _make_toeplitz(taps)

    def start(self) -> Array:
        """Returns the densities (2, n) of theta_1: N(0, sigma^2) without the canary, then N(1, sigma^2)."""
        sigma = self.process.noise_multiplier
        out = normal_density(self.points, sigma)
        within = normal_density(self.points - 1, sigma)
        return np.stack([out, within])

    def advance(self, pair: Array, threshold: float) -> Array:
        """Returns the densities (2, n) after a step, which moves theta by 1 and adds noise.

        Above the threshold a step moves theta up, elsewhere down. So the densities are cut in two there, and
        the parts are moved separately and added.

        Args:
          pair: (2, n) the densities before the step, without and with the canary.
          threshold: the step's threshold, in units of the clipping norm C.
        """
        # 1 above the threshold and 0 below, except at a few points beside it. There the weights account for
        # where between two points the threshold lies.
        weights_above = _compute_weights_above(self.points, self.spacing, threshold)
        up = self._move_up(pair * weights_above)
        # What moves down is mirrored about the grid's middle, moved up, and mirrored back.
        mirrored = (pair * (1 - weights_above))[:, ::-1]
        down = self._move_up(mirrored)[:, ::-1]
        # A weight beside the threshold may exceed 1. The lower part's is then negative, which could leave a
        # density below 0.
        return np.maximum(up + down, 0.0)

    def _move_up(self, pair: Array) -> Array:
        """Returns the densities (2, n) of theta + 1 + noise, for theta with the densities `pair` (2, n).

        It is a convolution with the kernel of a step: out[i] = sum_d taps[d] in[i - d], where taps[d] is the
        kernel's share of the cell at the offset d. A block of _BLOCK outputs is computed at once, as the
        product of a window of inputs with the banded matrix of the taps.
        """
        count = pair.shape[1]
        blocks = -(-count // _BLOCK)  # rounded up
        first = int(self._offsets[0])
        last = int(self._offsets[-1])

        # The block of outputs from b to b + _BLOCK - 1 reads a window: the inputs from b - last to
        # b + _BLOCK - 1 - first. Zeros stand for inputs off the grid.
        width = _BLOCK + last - first
        before = max(last, 0)
        after = max(-first, 0)
        padded = np.zeros((2, before + blocks * _BLOCK + after))
        padded[:, before : before + count] = pair

        # Of the windows at all places, a block takes the one that begins `last` points before it. Input 0 is
        # at the place `before` of the padded inputs.
        windows = np.lib.stride_tricks.sliding_window_view(padded, width, axis=1)
        block_inputs = windows[:, before - last :: _BLOCK][:, :blocks]  # (2, blocks, width)
        rows = np.ascontiguousarray(block_inputs).reshape(-1, width)  # (2 * blocks, width)
        outputs = rows @ self._toeplitz  # (2 * blocks, _BLOCK)
        return outputs.reshape(2, -1)[:, :count]  # the last block may reach beyond the grid


# Cached, since a search needs the stepper of the same process many times.
make_stepper = functools.lru_cache(maxsize=8)(Stepper)


def evolve(stepper: Stepper, thresholds: Array) -> Iterator[Array]:
    """Yields the densities of theta_1, ..., theta_T at the stepper's n points, each (2, n).

    The first row is without the canary, the second with it.

    Args:
      stepper: the process on a grid.
      thresholds: (T - 1,) the thresholds of steps 2 to T, in units of the clipping norm C.
    """
    pair = stepper.start()
    yield pair
    for threshold in thresholds:
        pair = stepper.advance(pair, threshold)
        yield pair


def make_density_pair(points: NDArray[Any], values: Array) -> DensityPair:
    """Returns densities (2, n) at points (n,), without and with the canary, as a `DensityPair`.

    Its `error` is the larger of the two deviations of the total mass from 1.
    """
    pair = DensityPair(points, values[0], values[1], 0.0)
    mass = values.sum(axis=1) * pair.spacing
    return pair._replace(error=float(np.max(np.abs(mass - 1))))


def normal_density(x: NDArray[Any], deviation: float) -> Array:
    """Returns the density of N(0, deviation^2) at x, of any shape."""
    exponential = np.exp(-0.5 * (x / deviation) ** 2)
    return np.asarray(exponential / (deviation * np.sqrt(2 * np.pi)))


def require_grid(process: Process, half_width: int) -> None:
    """Raises InputError where a process's grid would be too large.

    Args:
      process: the process, which the message describes.
      half_width: half the number of the grid's points.
    """
    sigma, batch_size, steps = process
    require(
        half_width < _LARGEST_GRID,
        f"`steps={steps}`: at sigma {sigma:g} and B = {batch_size} they need a grid of {2 * half_width:,} "
        "points, use fewer steps",
    )


def _make_toeplitz(taps: Array) -> Array:
    """Returns the banded matrix (L + _BLOCK - 1, _BLOCK) that convolves a window with taps (L,).

    outputs (_BLOCK,) = window (L + _BLOCK - 1,) @ matrix, where
    outputs[i] = taps[L - 1] window[i] + taps[L - 2] window[i + 1] + ... + taps[0] window[i + L - 1].
    So matrix[row, column] = taps[column - row + L - 1], and 0 where there is no such tap.
    """
    last_tap = len(taps) - 1
    row = np.arange(_BLOCK + last_tap)[:, None]
    column = np.arange(_BLOCK)[None, :]
    tap = column - row + last_tap
    has_tap = (tap >= 0) & (tap <= last_tap)
    nearest_tap = np.clip(tap, 0, last_tap)  # a valid index also where there is no tap
    return np.where(has_tap, taps[nearest_tap], 0.0)


def _compute_weights_above(
    points: NDArray[Any],
    spacing: float,
    threshold: float,
) -> Array:
    """Returns quadrature weights (n,) for the integral of a function from the threshold upwards.

    spacing * sum(weights * values) is the integral, to third order in the spacing, of a function that is
    negligible at the grid's ends. The threshold lies in a cell, between two neighbouring points. The integral
    has two parts:

    1. From the threshold to the cell's upper point the function is interpolated linearly between the cell's
       two points.
    2. From there on Gregory's rule applies, a sum with corrected weights 5/12, 13/12, 1, 1, ... at the lower
       end. The upper end needs no correction, as the function is negligible there.

    Weights are 0 below the cell. For a threshold off the grid or in its last cells, they are simply 1 above
    it and 0 elsewhere.

    Args:
      points: the grid (n,).
      spacing: the distance of neighbouring points.
      threshold: the place where the integral begins.
    """
    position = (threshold - points[0]) / spacing  # of the threshold, counted in cells
    if not 0 <= position < len(points) - 3:  # off the grid, or too near its end for the corrections
        return (points > threshold).astype(np.float64)
    cell = int(position)  # the number of the cell's lower point
    share = position - cell  # the share of the cell that lies below the threshold

    # (1 - share)^2 / 2 and (1 - share^2) / 2 are the weights of the interpolation: the integrals of 1 - u and
    # of u over u from `share` to 1.
    weights = np.zeros(len(points))
    weights[cell] = (1 - share) ** 2 / 2
    weights[cell + 1] = 5 / 12 + (1 - share**2) / 2
    weights[cell + 2] = 13 / 12
    weights[cell + 3 :] = 1.0
    return weights


def laws(
    process: Process,
    thresholds: Array,
    per_deviation: int = PER_DEVIATION,
) -> list[DensityPair]:
    """Returns the exact laws of the iterates theta_1, ..., theta_T, each in both worlds.

    Args:
      process: the process, of T steps.
      thresholds: (T - 1,) the thresholds h_1, ..., h_(T-1) at which steps 2 to T split the landscape, in
        units of the clipping norm C. At an infinite threshold every model moves the same way, as in
        Example 1 of the paper.
      per_deviation: how many points the grid has in each standard deviation of a step's noise.

    Raises:
      InputError: the process is out of range, or too long for the grid.
    """
    validate(process)
    if _has_closed_form(process, thresholds):
        result = []
        for steps in range(1, process.steps + 1):
            shorter = process._replace(steps=steps)
            result.append(_compute_closed_form(shorter, thresholds, per_deviation))
        return result
    stepper = make_stepper(process, per_deviation)
    return [
        make_density_pair(stepper.points, densities) for densities in evolve(stepper, thresholds)
    ]


def last_law(
    process: Process,
    thresholds: Array,
    per_deviation: int = PER_DEVIATION,
) -> DensityPair:
    """Returns the exact law of theta_T alone, in both worlds, which takes less memory than all laws.

    Args:
      process: the process, of T steps.
      thresholds: (T - 1,) h_1, ..., h_(T-1), in units of the clipping norm C.
      per_deviation: how many points the grid has in each standard deviation of a step's noise.

    Raises:
      InputError: the process is out of range, or too long for the grid.
    """
    validate(process)
    if _has_closed_form(process, thresholds):
        return _compute_closed_form(process, thresholds, per_deviation)
    stepper = make_stepper(process, per_deviation)
    for pair in evolve(stepper, thresholds):
        last = pair
    return make_density_pair(stepper.points, last)


def is_separated(process: Process) -> bool:
    """Returns whether steps are so large beside their noise that no iterate recrosses the threshold.

    Where B / sigma is at least 9, a step recrosses it with probability below 2e-19. A process of a single
    step has no threshold, and does not count.
    """
    return process.steps > 1 and process.batch_size / process.noise_multiplier >= _SEPARATED


def _has_closed_form(process: Process, thresholds: Array) -> bool:
    """Returns whether the law has a closed form: the threshold is constant, and no iterate recrosses it."""
    if not is_separated(process):  # among others with T = 1, which has no thresholds
        return False
    is_constant = np.ptp(thresholds) == 0
    is_finite = np.all(np.isfinite(thresholds))  # the closed form's grid lies about the threshold
    return bool(is_constant and is_finite)


def _compute_closed_form(
    process: Process,
    thresholds: Array,
    per_deviation: int,
) -> DensityPair:
    """Returns the law of theta_T where no step recrosses a constant threshold.

    The law of theta_1 is cut in two at the threshold. The T - 1 later steps move the upper part up by T - 1
    and the lower part down by T - 1, and add their noise to both.

    Args:
      process: the process, of T steps; with T = 1 it is the law of theta_1, without any cut.
      thresholds: the same threshold at least T - 1 times.
      per_deviation: the grid has at least 50 times as many points in each sigma, the deviation of theta_1;
        with T = 1 it is as fine as `_compute_first_law` says.
    """
    sigma = process.noise_multiplier
    if process.steps == 1:
        return _compute_first_law(sigma, per_deviation)

    drift = float(process.steps - 1)
    later_noise = np.sqrt(drift) * process.step_deviation  # of all later steps together
    threshold = float(thresholds[0])
    # About the threshold, the grid reaches REACH deviations beyond theta_T's means: they lie between -drift
    # and 1 + drift.
    reach = drift + REACH * np.hypot(sigma, later_noise) + abs(threshold) + 1
    # The moved parts are 2 drift apart, which is a whole number of cells.
    spacing = 2 * drift / np.ceil(2 * drift * 50 * per_deviation / sigma)
    half_width = int(np.ceil((reach + drift) / spacing))
    require_grid(process, half_width)
    # Both parts end in a cut, at threshold + drift and at threshold - drift. The points are placed so that
    # each cut lies halfway between two of them. They span more than `reach` on both sides of the threshold,
    # and the rest is then cut away.
    points = threshold + drift + (np.arange(-2 * half_width, half_width) + 0.5) * spacing
    points = points[np.abs(points - threshold) <= reach]  # symmetric about the threshold

    worlds = []
    for mean in (0.0, 1.0):  # of theta_1, without and with the canary
        above = _compute_cut_normal(points - drift, mean, sigma, later_noise, threshold, 1.0)
        below = _compute_cut_normal(points + drift, mean, sigma, later_noise, threshold, -1.0)
        worlds.append(above + below)
    return make_density_pair(points, np.stack(worlds))


def _compute_first_law(sigma: float, per_deviation: int) -> DensityPair:
    """Returns the law of theta_1: N(0, sigma^2) without the canary and N(1, sigma^2) with it.

    The grid is symmetric about 1/2, halfway between the means, and reaches more than REACH standard
    deviations beyond both.

    Args:
      sigma: the standard deviation.
      per_deviation: how fine the grid is: it has 1,000 times as many points on each side of 1/2.
    """
    count = 1000 * per_deviation
    # A mean lies 1/2 from the grid's middle. So a half-width of REACH * sigma + 1 reaches beyond it by
    # REACH * sigma + 1/2.
    spacing = (sigma * REACH + 1) / count
    points = 0.5 + np.arange(-count, count + 1) * spacing
    out = normal_density(points, sigma)
    within = normal_density(points - 1.0, sigma)
    return make_density_pair(points, np.stack([out, within]))


def _compute_cut_normal(
    x: NDArray[Any],
    mean: float,
    s: float,
    r: float,
    cut: float,
    side: float,
) -> Array:
    """Returns the density of X + R at x, counting only those X that lie on one side of a cut.

    X ~ N(mean, s^2) and R ~ N(0, r^2) are independent. The density is that of N(mean, s^2 + r^2), times the
    probability that X lies on the side given that X + R = x. Its mass is the probability of the side.

    Args:
      x: (n,) the places.
      mean: the mean of X.
      s: the standard deviation of X.
      r: the standard deviation of R.
      cut: the place of the cut.
      side: 1 for the part above the cut, -1 for the part below.
    """
    variance = s * s + r * r
    # Given the sum, X is normal with the mean `centre` and the standard deviation s r / sqrt(variance).
    centre = (mean * r * r + x * s * s) / variance
    probability = special.ndtr(side * (centre - cut) * np.sqrt(variance) / (s * r))
    return np.asarray(normal_density(x - mean, np.sqrt(variance)) * probability)
