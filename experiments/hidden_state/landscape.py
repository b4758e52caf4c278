"""The crafted loss landscape: exact densities with and without the canary, adversaries, and a simulation.

The adversary chooses all gradients of a model with one parameter theta. The score after step t is theta_t. In
units of the clipping norm C (hidden-state paper, Section 6 and Equation 3; Errata H5):

    theta_1 ~ N(0, sigma^2) without the canary, N(1, sigma^2) with it
    theta_(t+1) = theta_t + s_t(theta_t) + N(0, (sigma / B)^2),   s_t = +1 above h_t and -1 below

We compute the densities by quadrature. Unlike an FFT, quadrature preserves the *relative* accuracy of the
tails.

The optimal adversary. Let p_t and q_t be the densities of theta_t without and with the canary, and
g_t = q_t - e^epsilon p_t. For a fixed epsilon, the adversary maximizes D_T, the integral of max(g_T, 0),
which is the delta of theta_T.

    Proof for landscapes with an increasing map x -> x + s_t(x) at every step: let V_t(x) be the probability
    that the final test accepts if theta_t = x. Then D_T is the integral of g_1(x) V_1(x). The likelihood
    ratio of theta_1 is increasing. Increasing maps and Gaussian noise (a totally positive kernel) preserve
    this property. So the best final test is a threshold, and every V_t is increasing. The best first step
    moves up if g_1 > 0 and down if g_1 < 0: its threshold is where q_1 / p_1 crosses e^epsilon. This
    determines g_2, and so on. As a maximum of decreasing functions of epsilon, the largest D_T is decreasing.
    The adversary's epsilon is the one at which it equals the given delta.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import stats

from audit.errors import require
from audit.laws import conversions, densities
from audit.laws.densities import DensityPair
from audit.laws.intervals import Array as Floats
from audit.methods import estimate
from experiments.sweeps.records import Record

HALF = 0.5  # the paper's threshold, in units of C
PER_DEVIATION = 8  # grid points per standard deviation of a step's noise
_NUM_SEARCHED = 49  # thresholds that Algorithm 6 tries
_MARGIN = 11.0  # standard deviations of theta_T beyond the largest mean
_MIN_BATCH_SIZE = 4  # smaller batches use the grid for this size
_KERNEL_REACH = 14.0  # standard deviations at which the Gaussian kernel is cut off
_MAX_HALF_WIDTH = 400_000  # half the maximum number of grid points, to limit time and memory
_FINE_RATIO = 9.0  # the smallest B / sigma that gets a finer grid
_MIN_DENSITY = 1e-290  # well above 2e-308, the smallest normal float64


class Process(NamedTuple):
    """A training run on a crafted landscape.

    Attributes:
      noise_multiplier: sigma > 0.
      batch_size: B >= 1.
      steps: The number of steps T >= 1.
    """

    noise_multiplier: float
    batch_size: int
    steps: int

    @property
    def step_deviation(self) -> float:
        """The standard deviation sigma / B of the noise in each step after the first, in units of C.

        The first step is not divided by B (Errata H5).
        """
        return self.noise_multiplier / self.batch_size


def upper_bound(process: Process, delta: float) -> float:
    """Returns the accountant's epsilon at delta: only the first step uses the canary, with mu = 1 / sigma."""
    return conversions.epsilon_from_mu(1 / process.noise_multiplier, delta)


class Stepper:
    """Computes how each step of a process changes the densities of theta without and with the canary.

    Attributes:
      process: The training run.
      spacing: The distance between neighbouring grid points, in units of C.
      points: The grid points, of shape (n,), symmetric about 1/2.
    """

    def __init__(self, process: Process) -> None:
        """Builds the grid and the convolution kernel for an upward step."""
        self.process = process
        self.spacing = _choose_spacing(process)
        half_width = _choose_half_width(process, self.spacing)
        # Reflection about 1/2 swaps the densities with and without the canary, so the grid is symmetric.
        cells = np.arange(-half_width, half_width, dtype=np.float64)
        self.points: Floats = 0.5 + (cells + 0.5) * self.spacing

        # A step up adds N(1, deviation^2) to theta. The kernel is this density at multiples of the spacing,
        # times the spacing.
        deviation = process.step_deviation
        self._cells_up = round(1 / self.spacing)  # a distance of 1, in whole cells
        reach = int(np.ceil(_KERNEL_REACH * deviation / self.spacing))  # in cells
        moves = (self._cells_up + np.arange(-reach, reach + 1)) * self.spacing
        self._kernel = stats.norm.pdf(moves - 1, scale=deviation) * self.spacing

    def make_pair(self, both: Floats) -> DensityPair:
        """Returns both densities (2, n) as a record. Its error is the larger |mass - 1|."""
        mass = both.sum(axis=1) * self.spacing
        error = np.max(np.abs(mass - 1))
        return DensityPair(self.points, both[0], both[1], error)

    def start(self) -> Floats:
        """Returns the densities (2, n) of theta_1: N(0, sigma^2), and N(1, sigma^2) with the canary."""
        means = [[0.0], [1.0]]
        return np.asarray(stats.norm.pdf(self.points, means, self.process.noise_multiplier))

    def advance(self, both: Floats, threshold: float) -> Floats:
        """Takes one step from `both`, the densities (2, n) of theta without and with the canary.

        A step moves theta by 1 away from the threshold, and adds noise.
        """
        weights_above = _compute_weights_above(self.points, self.spacing, threshold)
        above = both * weights_above
        below = both * (1 - weights_above)
        up = self._move_up(above)
        # To move a density down, mirror it, move it up, and mirror it back.
        down = self._move_up(below[:, ::-1])[:, ::-1]
        # Next to the threshold, the quadrature rule has a weight of 13/12 to balance smaller weights, so
        # `below` is negative there. Adding noise averages neighboring points, so any negative sums are close
        # to 0.
        return np.maximum(up + down, 0.0)

    def _move_up(self, both: Floats) -> Floats:
        """Returns the densities (2, n) of theta + 1 + noise, given the densities `both` (2, n) of theta."""
        # Mode "same" treats the kernel's center (a move of 1) as a move of 0, so we shift the result up.
        noisy = np.stack([np.convolve(density, self._kernel, mode="same") for density in both])
        shifted = np.pad(noisy, ((0, 0), (self._cells_up, 0)))
        return shifted[:, : both.shape[1]]  # drops the cells that moved off the grid


def _choose_spacing(process: Process) -> float:
    """Returns the spacing of the densities' grid, in units of C.

    Finer grids yield the same epsilons (`test_crafted_landscape.py`).
    """
    sigma = process.noise_multiplier
    # Steps after the first have noise sigma / B. For batches smaller than _MIN_BATCH_SIZE, we use the finer
    # grid for that size.
    spacing = sigma / max(process.batch_size, _MIN_BATCH_SIZE) / PER_DEVIATION
    # A step moves the densities above and below its threshold in opposite directions. This leaves sharp edges
    # if sigma / B is small.
    if process.batch_size / sigma >= _FINE_RATIO:
        spacing /= 3
    return spacing


def _choose_half_width(process: Process, spacing: float) -> int:
    """Returns half the number of grid points; raises InputError if the grid would be too large."""
    sigma = process.noise_multiplier
    # The mean of theta starts at 0 or 1, and each later step moves it by 1.
    num_moves = float(process.steps - 1)
    largest_mean = num_moves + 1
    # Less than 1e-20 of the mass lies beyond _MARGIN standard deviations.
    total_deviation = np.sqrt(sigma**2 + num_moves * process.step_deviation**2)
    half_width = int(np.ceil((largest_mean + _MARGIN * total_deviation) / spacing))
    require(
        half_width < _MAX_HALF_WIDTH,
        f"`steps={process.steps}`: with sigma {sigma:g} and B = {process.batch_size}, "
        f"this needs a grid of {2 * half_width:,} points: use fewer steps or a smaller B",
    )
    return half_width


def iterate_densities(process: Process, thresholds: Floats) -> Iterator[DensityPair]:
    """Yields the exact densities of theta_1, ..., theta_T, each without and with the canary.

    Args:
      process: A training run on the crafted landscape.
      thresholds: The thresholds (T - 1,) of steps 2 to T, in units of C; may be infinite.

    Raises InputError if the grid would be too large.
    """
    stepper = Stepper(process)
    both = stepper.start()
    yield stepper.make_pair(both)
    for threshold in thresholds:
        both = stepper.advance(both, threshold)
        yield stepper.make_pair(both)


def compute_last_densities(process: Process, thresholds: Floats) -> DensityPair:
    """Returns the densities of theta_T without and with the canary; see `iterate_densities`."""
    *_, last = iterate_densities(process, thresholds)
    return last


def _compute_weights_above(points: Floats, spacing: float, threshold: float) -> Floats:
    """Returns quadrature weights, of shape (n,), for a function's integral above the threshold.

    The integral is spacing * sum(weights * values), to third order in the spacing, if the function is
    negligible at the grid's edges. We integrate the linear interpolant up to the end of the threshold's cell.
    From there on, Gregory's rule gives the weights 5/12, 13/12, 1, 1, ...
    """
    position = (threshold - points[0]) / spacing  # in cells
    if not 0 <= position < len(points) - 3:  # at such thresholds, the function is negligible
        return (points > threshold).astype(np.float64)
    cell = int(position)
    fraction = position - cell  # the fraction of the cell below the threshold
    weights = np.zeros(len(points))
    # The terms with `fraction` integrate the interpolant. Its second point is the first of Gregory's rule.
    weights[cell] = (1 - fraction) ** 2 / 2
    weights[cell + 1] = (1 - fraction**2) / 2 + 5 / 12
    weights[cell + 2] = 13 / 12
    weights[cell + 3 :] = 1.0
    return weights


def compute_epsilon(process: Process, thresholds: Floats, delta: float) -> float:
    """Returns the exact epsilon of theta_T at delta. See `iterate_densities` for the other arguments."""
    return densities.epsilon_at(compute_last_densities(process, thresholds), delta)


def constant(process: Process, threshold: float) -> Floats:
    """Returns the thresholds (T - 1,) of an adversary with a constant threshold."""
    return np.full(process.steps - 1, threshold)


def optimal(process: Process, delta: float) -> Floats:
    """Returns the thresholds (T - 1,) that maximize the last model's epsilon at delta.

    For each epsilon, `_follow_crossings` returns the thresholds with the largest delta. We search for the
    epsilon at which this delta equals `delta`.
    """
    conversions.require_delta(delta)
    stepper = Stepper(process)

    def compute_excess(epsilon: float) -> float:
        """Returns log(largest delta at this epsilon) - log(given delta), which decreases in epsilon."""
        (without, inserted), _ = _follow_crossings(stepper, epsilon)
        largest = densities.hockey_stick(without, inserted, stepper.spacing, epsilon)
        return float(np.log(max(largest, 1e-300)) - np.log(delta))  # the log of 0 is not finite

    epsilon = 0.0  # the answer if its largest delta is at most the given delta
    if compute_excess(0.0) > 0:
        upper = upper_bound(process, delta)
        beyond = 1.01 * upper + 0.01  # above the root, even with the grid's error
        epsilon = scipy.optimize.brentq(compute_excess, 0.0, beyond, xtol=1e-6 * upper)
    _, thresholds = _follow_crossings(stepper, epsilon)
    return thresholds


# Functions from (process, delta) to thresholds (T - 1,) in units of C. Contrary to the paper, `half` is not
# optimal (Errata H13).
ADVERSARIES: dict[str, Callable[[Process, float], Floats]] = {
    "half": lambda process, delta: constant(process, HALF),
    "optimal": optimal,
}


def cross_at_first_step(process: Process, epsilon: float) -> float:
    """Returns the theta_1 at which the likelihood ratio of N(1, sigma^2) to N(0, sigma^2) is e^epsilon."""
    # The logarithm of the ratio is (theta_1 - 1/2) / sigma^2.
    return 0.5 + process.noise_multiplier**2 * epsilon


def _follow_crossings(stepper: Stepper, epsilon: float) -> tuple[Floats, Floats]:
    """Returns the densities (2, n) of theta_T, and the T - 1 thresholds that maximize delta at epsilon.

    The best threshold is where the increasing likelihood ratio of theta (with versus without the canary)
    crosses e^epsilon; see the proof in the module docstring. If the ratio never crosses it, the threshold is
    at the edge of the grid's accurate range.
    """
    both = stepper.start()
    thresholds = []
    for _ in range(stepper.process.steps - 1):
        # Logarithms of smaller densities are inaccurate.
        is_accurate = np.min(both, axis=0) > _MIN_DENSITY
        log_ratio = np.log(both[1, is_accurate]) - np.log(both[0, is_accurate])
        # `interp` returns the first or last point if epsilon is out of range.
        threshold = np.interp(epsilon, log_ratio, stepper.points[is_accurate])
        thresholds.append(threshold)
        both = stepper.advance(both, threshold)
    return both, np.array(thresholds)


# Processes (sigma, B, T) for Algorithm 6, with two steps (Errata H13).
SEARCHED = (Process(4.0, 4, 2), Process(1.0, 1, 2))


class Study(NamedTuple):
    """Parameters for studying crafted landscapes.

    Attributes:
      delta: The delta of epsilons.
      confidence: The confidence level of estimates from simulated runs.
      runs: The number of simulated runs per landscape, half of them with the canary.
      seed: The seed of the simulations.
    """

    delta: float
    confidence: float
    runs: int
    seed: int


def audit(process: Process, study: Study) -> Record:
    """Computes the exact epsilons of a crafted landscape, and the hidden-state paper's estimates.

    Returns:
      A record with the fields of the process, and
      upper: The accountant's epsilon.
      by_adversary: The result of `solve` for each of ADVERSARIES: `half` uses the paper's threshold C / 2 in
        every step, and `optimal` the best thresholds.
      simulated: The paper's estimates (T,) after each step, from simulated runs of `half`. They are not
        bounds.
    """
    by_adversary = {}
    for name, choose_thresholds in ADVERSARIES.items():
        thresholds = choose_thresholds(process, study.delta)
        by_adversary[name] = solve(process, thresholds, study.delta)
    return {
        **process._asdict(),
        "upper": upper_bound(process, study.delta),
        "by_adversary": by_adversary,
        "simulated": _simulate_estimates(process, HALF, study),
    }


def search(process: Process, study: Study) -> Record:
    """Runs the hidden-state paper's Algorithm 6: tries many thresholds for the crafted landscape.

    For each process, all simulations use the same random draws. The thresholds are symmetric about half the
    clipping norm C (Errata H7).

    Returns:
      A record with the fields of the process, and
      upper: The accountant's epsilon.
      thresholds: The thresholds, in units of C.
      epsilon: The exact epsilon of each threshold after the last step.
      simulated: The paper's estimate of each threshold's epsilon after the last step, from simulated runs.
    """
    upper = upper_bound(process, study.delta)
    # Processes in SEARCHED have two steps. Their best threshold is where the likelihood ratio of theta_1 is
    # e^epsilon (Errata H13). This epsilon is at most `upper`, so the range includes it.
    margin = 1.15  # also tries larger thresholds
    top = margin * cross_at_first_step(process, upper)
    thresholds = np.linspace(1 - top, top, _NUM_SEARCHED)
    return {
        **process._asdict(),
        "upper": upper,
        "thresholds": thresholds,
        "epsilon": [
            compute_epsilon(process, constant(process, h), study.delta) for h in thresholds
        ],
        "simulated": [_simulate_estimates(process, h, study)[-1] for h in thresholds],
    }


def solve(process: Process, thresholds: Floats, delta: float) -> dict[str, list[float]]:
    """Returns the exact epsilon after each step, and the epsilon claimed by a Gaussian conversion.

    `thresholds` (T - 1,) are those of steps 2 to T, in units of C. The hidden-state paper's conversion
    assumes a Gaussian trade-off curve. Its mu comes from the error rates of the test that guesses "with the
    canary" if theta_t is above the threshold of step t + 1. Step T has no next step, so we use its own
    threshold there.

    Returns:
      epsilon, claimed: The exact and the claimed epsilons, each of shape (T,).
    """
    # theta_1 is a single Gaussian release, so both epsilons equal the accountant's.
    exact = [upper_bound(process, delta)]
    claimed = exact.copy()
    pairs = iterate_densities(process, thresholds)
    next(pairs)  # skips theta_1
    next_thresholds = [*thresholds[1:], *thresholds[-1:]]  # after steps 2 to T
    for pair, threshold in zip(pairs, next_thresholds, strict=True):
        exact.append(densities.epsilon_at(pair, delta))
        # The canary only raises theta, so mu is at least 0. Quadrature errors may make it slightly negative.
        mu = max(float(densities.mu_at(pair, threshold)), 0.0)
        claimed.append(conversions.epsilon_from_mu(mu, delta))
    return {"epsilon": exact, "claimed": claimed}


def simulate(
    process: Process, threshold: float, presence: NDArray[np.bool_], seed: int
) -> Iterator[Floats]:
    """Simulates R runs on a crafted landscape with the same threshold at every step.

    The module docstring defines the steps, in units of C. Moves away from the threshold preserve the canary's
    effect.

    `presence` (R,) is True for runs with the canary. Yields theta_1, ..., theta_T of all runs, each of shape
    (R,).
    """
    # Each process gets its own noise. Seeds must be integers.
    millionths = round(1e6 * process.noise_multiplier)
    rng = np.random.default_rng([seed, process.batch_size, millionths])
    theta = presence + process.noise_multiplier * rng.normal(size=len(presence))
    yield theta
    for _ in range(process.steps - 1):
        move = np.where(theta > threshold, 1.0, -1.0)
        theta = theta + move + process.step_deviation * rng.normal(size=len(presence))
        yield theta


def _simulate_estimates(process: Process, threshold: float, study: Study) -> list[float]:
    """Returns the hidden-state paper's estimates of epsilon after each step, (T,), from simulated runs.

    Step 1 adds the canary in half of the runs. Later steps move theta away from `threshold` by one clipping
    norm. The estimates choose a test of theta and count its errors on the same runs, so they are not bounds.
    """
    present = np.arange(study.runs) % 2 == 1
    estimates = []
    for theta in simulate(process, threshold, present, study.seed):
        found = estimate.in_sample(theta[present], theta[~present], study.delta, study.confidence)
        estimates.append(found.epsilon)
    return estimates
