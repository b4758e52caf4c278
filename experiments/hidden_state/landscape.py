"""The crafted landscape: the exact law of its iterate in both worlds, its adversaries, and its simulation.

The adversary decides all gradients of one parameter. So this is a separate process, not an `Adversary` that
is inserted into training. The score is theta_t. Hidden-state paper, Section 6 and Equation 3 (Errata H5), in
units of C:

    theta_1 ~ N(0, sigma^2) out, N(1, sigma^2) in
    theta_(t+1) = theta_t + s_t(theta_t) + N(0, (sigma / B)^2),   s_t = +1 above h_t and -1 below

The law is computed by quadrature. The spacing of points is an eighth of sigma / B, which resolves the
Gaussian of a step to machine precision, and at most sigma / 32, which resolves the point where the likelihood
ratio crosses e^epsilon. A step splits the density at h_t, with weights of third order for a smooth function
cut at h_t. Then it shifts both parts and convolves them with the Gaussian. All terms of the convolution are
non-negative and reach out 14 deviations, so densities keep their *relative* accuracy far into their tails. An
FFT would leave an absolute error of 1e-17 there, and e^epsilon would amplify it. The mass that leaves the
grid is below 1e-20. The `error` of a pair is the deviation of its total mass from 1. Halving the spacing
changes epsilon by less than 0.1% (tested).

The optimal adversary. For a fixed epsilon the adversary maximizes D_T, the integral of (q_T - e^epsilon
p_T)+, with the densities p_t without and q_t with the canary. Let g_t = q_t - e^epsilon p_t.

    Proven for landscapes with an increasing map x -> x + s_t(x) at every step. Let V_t(x) be the probability
    that the final test accepts after theta_t = x. Then D_T is the integral of g_1(x) V_1(x). Increasing maps
    and Gaussian noise (a totally positive kernel) keep an increasing likelihood ratio, and theta_1 has such a
    ratio. So the best final test is a threshold, and V_T and every earlier V_t increase. For any later
    increasing maps, the value of mass increases with x. So the best first step moves up if g_1 > 0 and down
    if g_1 < 0: it has a threshold at the crossing of q_1 / p_1 with e^epsilon, and its map is increasing.
    This decides g_2, and so on. delta_T(epsilon) is a maximum of functions that decrease in epsilon, so it
    decreases, and its root at delta is the adversary's epsilon.

    Checked only for other maps. Random and gradient-searched landscapes s in [-1, 1], free at every point and
    step, are never better (tests/experiments/hidden_state/test_crafted_landscape.py).
"""

import itertools
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import stats

from audit.errors import require
from audit.laws import conversions, densities
from audit.laws.densities import DensityPair
from audit.methods import estimate
from audit.storage.store import Store
from audit.training import game
from experiments.cells.cell import write_answer

Array = NDArray[np.float64]
AUDIT = "landscape_audit"
SEARCH = "landscape_thresholds"
_NUM_SEARCHED = 49  # thresholds that Algorithm 6 tries
HALF = 0.5  # the paper's threshold, in units of C
PER_DEVIATION = 8  # grid points in each standard deviation of a step's noise
_REACH = 11.0  # standard deviations that the grid extends beyond the drift
_PER_SIGMA = 4  # sigma has at least this many times PER_DEVIATION points
_BAND = 14.0  # standard deviations that the kernel extends
_MAX_HALF_GRID = 400_000  # half the number of points
_SHARP = 9.0  # from this B / sigma, the grid is three times as fine
_MIN_DENSITY = 1e-290  # well above 2e-308, the smallest normal float64


class Process(NamedTuple):
    """A crafted landscape; lengths are in units of C.

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
        """The standard deviation of the noise, sigma / B, in every step after the first."""
        return self.noise_multiplier / self.batch_size


def upper_bound(process: Process, delta: float) -> float:
    """Returns the accountant's epsilon at delta, for the first step with mu = 1 / sigma.

    Later steps are post-processing of theta_1.
    """
    return conversions.epsilon_from_mu(1 / process.noise_multiplier, delta)


class Stepper:
    """The densities (2, n) of a process on a grid, without and with the canary, step by step.

    Attributes:
      process: The process.
      spacing: The distance of neighbouring points.
      points: (n,) the grid, symmetric about 1/2.
    """

    def __init__(self, process: Process, per_deviation: int) -> None:
        """Makes a grid with `per_deviation` points in each standard deviation of a step's noise.

        Raises InputError if the grid would be too large.
        """
        self.process = process
        sigma = process.noise_multiplier
        deviation = process.step_deviation
        self.spacing = float(min(deviation, sigma / _PER_SIGMA)) / per_deviation
        if process.batch_size / sigma >= _SHARP:  # cuts of earlier steps stay visible
            self.spacing /= 3

        # The mean of theta starts at 0 or 1, and each later step moves it by 1.
        drift = float(process.steps - 1)
        total_deviation = np.sqrt(sigma**2 + drift * deviation**2)
        half_width = int(np.ceil((drift + 1 + _REACH * total_deviation) / self.spacing))
        where = f"`steps={process.steps}`: at sigma {sigma:g} and B = {process.batch_size}"
        need = f"they need a grid of {2 * half_width:,} points, use fewer steps or a smaller B"
        require(half_width < _MAX_HALF_GRID, f"{where} {need}")
        # Reflection about 1/2 swaps the two worlds.
        cells = np.arange(-half_width, half_width, dtype=np.float64)
        self.points: Array = 0.5 + (cells + 0.5) * self.spacing

        # A step up is a convolution with the density of N(1, deviation^2), about `_centre` cells up.
        self._centre = round(1 / self.spacing)
        reach = int(np.ceil(_BAND * deviation / self.spacing))
        offsets = (self._centre + np.arange(-reach, reach + 1)) * self.spacing - 1
        self._taps = stats.norm.pdf(offsets, scale=deviation) * self.spacing

    def make_law(self, pair: Array) -> DensityPair:
        """Returns the densities `pair` (2, n) as a law, with the deviation of their mass from 1."""
        mass = pair.sum(axis=1) * self.spacing
        error = np.max(np.abs(mass - 1))
        return DensityPair(self.points, pair[0], pair[1], error)

    def start(self) -> Array:
        """Returns the densities (2, n) of theta_1: N(0, sigma^2) without the canary, then N(1, sigma^2)."""
        sigma = self.process.noise_multiplier
        return np.asarray(stats.norm.pdf(self.points, [[0.0], [1.0]], sigma))

    def advance(self, pair: Array, threshold: float) -> Array:
        """Returns the densities (2, n) after a step, from the densities `pair` (2, n) before it.

        A step moves theta up by 1 above the threshold (in units of C) and down by 1 below. Then it adds
        noise.
        """
        weights_above = _compute_weights_above(self.points, self.spacing, threshold)
        up = self._move_up(pair * weights_above)
        # To move the lower part down: mirror it about the grid's middle, move it up, and mirror it back.
        down = self._move_up((pair * (1 - weights_above))[:, ::-1])[:, ::-1]
        # Next to the threshold a weight may exceed 1. Then the lower part's weight is negative.
        return np.maximum(up + down, 0.0)

    def _move_up(self, pair: Array) -> Array:
        """Returns the densities (2, n) of theta + 1 + noise, for theta with the densities `pair` (2, n)."""
        noisy = np.stack([np.convolve(density, self._taps, mode="same") for density in pair])
        return np.pad(noisy, ((0, 0), (self._centre, 0)))[:, : pair.shape[1]]


def laws(
    process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION
) -> Iterator[DensityPair]:
    """Returns the exact laws of the iterates theta_1, ..., theta_T in both worlds.

    `thresholds` (T - 1,) are those of steps 2 to T, in units of C. With an infinite threshold all models move
    the same way (Example 1). Raises InputError if the process is too long for the grid, with `per_deviation`
    points in each standard deviation of a step's noise.
    """
    stepper = Stepper(process, per_deviation)
    pairs = itertools.accumulate(thresholds, stepper.advance, initial=stepper.start())
    return map(stepper.make_law, pairs)


def last_law(
    process: Process, thresholds: Array, per_deviation: int = PER_DEVIATION
) -> DensityPair:
    """Returns the exact law of theta_T in both worlds; see `laws`."""
    *_, last = laws(process, thresholds, per_deviation)
    return last


def _compute_weights_above(points: NDArray[Any], spacing: float, threshold: float) -> Array:
    """Returns quadrature weights (n,) for the integral of a function above the threshold.

    spacing * sum(weights * values) is the integral, to third order in the spacing, of a function that is
    negligible at the grid's ends. In the threshold's cell the function is interpolated linearly. Above the
    cell, Gregory's rule has the weights 5/12, 13/12, 1, 1, ... For a threshold off the grid or in its last
    cells, weights are 1 above it and 0 below.
    """
    position = (threshold - points[0]) / spacing  # in cells
    if not 0 <= position < len(points) - 3:
        return (points > threshold).astype(np.float64)
    cell = int(position)
    share = position - cell  # the share of the cell below the threshold
    weights = np.zeros(len(points))
    weights[cell] = (1 - share) ** 2 / 2
    weights[cell + 1] = 5 / 12 + (1 - share**2) / 2
    weights[cell + 2] = 13 / 12
    weights[cell + 3 :] = 1.0
    return weights


def compute_epsilon(
    process: Process, thresholds: Array, delta: float, per_deviation: int = PER_DEVIATION
) -> float:
    """Returns the exact epsilon at delta of theta_T; see `laws` for the other arguments."""
    return densities.epsilon_at(last_law(process, thresholds, per_deviation), delta)


def constant(process: Process, threshold: float) -> Array:
    """Returns the adversary (T - 1,) with the same threshold, in units of C, at every step."""
    return np.full(process.steps - 1, threshold)


def best_constant(process: Process, delta: float) -> Array:
    """Returns the adversary (T - 1,) with the constant threshold that leaks the largest epsilon at delta.

    The search uses a grid, then Brent's bounded method. It tries only h >= 1/2, since reflection about 1/2
    swaps the two worlds and turns h into 1 - h.
    """

    def lose(threshold: float, per_deviation: int = PER_DEVIATION // 2) -> float:
        """Returns the negative epsilon of a constant threshold, by default on a coarse grid."""
        return -compute_epsilon(process, constant(process, threshold), delta, per_deviation)

    # No threshold above `top` leaks more. The grid goes further, since `top` can be the best.
    top = cross_at_first_step(process, upper_bound(process, delta))
    grid = np.linspace(0.5, 0.5 + 1.25 * (top - 0.5), 11)
    best = int(np.argmin([lose(threshold) for threshold in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    # A rough threshold is enough, since epsilon hardly changes near its maximum.
    options = {"xatol": 3e-3 * (bounds[1] - bounds[0])}
    refined = scipy.optimize.minimize_scalar(lose, bounds=bounds, method="bounded", options=options)
    found = (refined.x, grid[best])
    return constant(process, min(found, key=partial(lose, per_deviation=PER_DEVIATION)))


def optimal(process: Process, delta: float) -> Array:
    """Returns the adversary (T - 1,) with a threshold for each step that leaks the most at delta.

    A step's threshold is the theta at which the likelihood ratio crosses e^epsilon. So an epsilon decides the
    thresholds, and these leak an epsilon. At the optimum both are equal. The module's docstring has the
    proof.
    """
    conversions.require_delta(delta)
    stepper = Stepper(process, PER_DEVIATION)

    def compute_excess(epsilon: float) -> float:
        """Returns log(D_T / delta) for thresholds at the crossings with e^epsilon, which decreases."""
        pair, _ = _follow_crossings(stepper, epsilon)
        reached = densities.hockey_stick(pair[0], pair[1], stepper.spacing, epsilon)
        return float(np.log(max(reached, 1e-300)) - np.log(delta))  # finite if D_T is 0

    epsilon = 0.0
    if compute_excess(0.0) > 0:
        limit = upper_bound(process, delta)
        beyond = 1.01 * limit + 0.01  # above the root, including the grid's error
        epsilon = scipy.optimize.brentq(compute_excess, 0.0, beyond, xtol=1e-6 * limit)
    return _follow_crossings(stepper, epsilon)[1]


# (process, delta) -> the thresholds (T - 1,), in units of C. The paper's `half` is not the best (Errata H13).
ADVERSARIES: dict[str, Callable[[Process, float], Array]] = {
    "half": lambda process, delta: constant(process, HALF),
    "best_constant": best_constant,
    "optimal": optimal,
}


def cross_at_first_step(process: Process, epsilon: float) -> float:
    """Returns the theta_1 at which the likelihood ratio of N(1, sigma^2) to N(0, sigma^2) is e^epsilon."""
    return 0.5 + process.noise_multiplier**2 * epsilon


def _follow_crossings(stepper: Stepper, epsilon: float) -> tuple[Array, Array]:
    """Returns the densities (2, n) of theta_T, and the thresholds (T - 1,).

    Each threshold is the crossing of the increasing likelihood ratio with e^epsilon, or the nearest end.
    """
    pair = stepper.start()
    thresholds: list[float] = []
    for _ in range(stepper.process.steps - 1):
        visible = np.min(pair, axis=0) > _MIN_DENSITY
        log_ratio = np.log(pair[1, visible]) - np.log(pair[0, visible])
        thresholds.append(np.interp(epsilon, log_ratio, stepper.points[visible]))
        pair = stepper.advance(pair, thresholds[-1])
    return pair, np.array(thresholds)


_SEARCHED = (Process(4.0, 4, 2), Process(1.0, 1, 2))  # for Algorithm 6 (Errata H13)


class Study(NamedTuple):
    """A study of one crafted landscape: AUDIT solves all adversaries and simulates, SEARCH is Algorithm 6.

    Half of the simulated `runs` insert the canary. The confidence is that of the estimates from their scores.
    """

    kind: str
    process: Process
    delta: float
    runs: int
    seed: int
    confidence: float

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the answer in the store."""
        values = {**self._asdict(), **self.process._asdict()}
        del values["process"]
        if self.kind == AUDIT:
            values["threshold"] = HALF
        return values


Result = tuple[Study, dict[str, Any]]


def list_studies(processes: list[Process], **simulation: Any) -> list[Study]:
    """Returns an audit of each landscape and searches of two more; `simulation` has the other fields."""
    studies = [Study(AUDIT, process, **simulation) for process in processes]
    return studies + [Study(SEARCH, process, **simulation) for process in _SEARCHED]


def keep(out: Path, study: Study) -> None:
    """Computes a study's answer and stores it below the folder `out`."""
    answer = audit(study) if study.kind == AUDIT else search(study)
    write_answer(Store(out, study.setting()), answer)


def audit(study: Study) -> dict[str, Any]:
    """Solves a landscape for each adversary, and audits simulated runs.

    Returns the accountant's epsilon, the exact epsilons of each adversary (`solve`), and the paper's
    in-sample estimate (T,) of epsilon, which is not a bound.
    """
    process = study.process
    exact = {}
    for name, adversary in ADVERSARIES.items():
        exact[name] = solve(process, adversary(process, study.delta), study.delta)
    return {
        "upper": upper_bound(process, study.delta),
        "exact": exact,
        "in_sample": _estimate_in_sample(study, HALF),
    }


def search(study: Study) -> dict[str, Any]:
    """Runs Algorithm 6 (Errata H7), with the same random draws for all constant thresholds.

    The thresholds (in units of C) are symmetric about 1/2. The largest is 15% above the theta_1 with the
    likelihood ratio e^epsilon, for the accountant's `upper`. `epsilon` is exact at step T, and `claimed`
    the in-sample estimate.
    """
    process = study.process
    upper = upper_bound(process, study.delta)
    top = 1.15 * cross_at_first_step(process, upper)
    thresholds = np.linspace(1 - top, top, _NUM_SEARCHED).tolist()
    exact = []
    claimed = []
    for threshold in thresholds:
        exact.append(compute_epsilon(process, constant(process, threshold), study.delta))
        claimed.append(_estimate_in_sample(study, threshold)[-1])
    return {
        "upper": upper,
        "thresholds": thresholds,
        "epsilon": exact,
        "claimed": claimed,
    }


def solve(process: Process, thresholds: Array, delta: float) -> dict[str, list[float]]:
    """Returns the exact `epsilon` after each step, and the one `claimed` by the Gaussian conversion.

    The conversion takes mu at one of the adversary's `thresholds` (T - 1,), that of the next step or at t = T
    the last, and assumes a Gaussian trade-off curve with this mu.
    """
    # theta_1 has the law of one Gaussian step, with the accountant's epsilon.
    exact = [upper_bound(process, delta)]
    claimed = exact.copy()
    pairs = laws(process, thresholds)
    next(pairs)
    for pair, threshold in zip(pairs, [*thresholds[1:], *thresholds[-1:]], strict=True):
        exact.append(densities.epsilon_at(pair, delta))
        # The canary only raises theta, so mu is at least 0. Quadrature may give slightly less.
        mu = max(float(densities.mu_at(pair, threshold)), 0.0)
        claimed.append(conversions.epsilon_from_mu(mu, delta))
    return {"epsilon": exact, "claimed": claimed}


@jax.jit
def simulate(
    key: jax.Array,
    presence: jax.Array,
    noise_multiplier: jax.Array,
    batch_size: jax.Array,
    thresholds: jax.Array,
) -> jax.Array:
    """Returns theta_1, ..., theta_T of simulated runs of a crafted landscape, (T, R), in units of C.

    `presence` (R,) is 1 for runs with the canary. The first step has noise of deviation sigma, later ones
    sigma / B. `thresholds` (T - 1,) are those of steps 2 to T. theta_(t + 1) of a run has the noise of the
    key fold_in(fold_in(key, run), t).
    """

    def draw_noise(step: jax.Array, run: jax.Array) -> jax.Array:
        """Draws the standard normal noise of a step, counted from 0, of a run."""
        run_key = jax.random.fold_in(key, run)
        return jax.random.normal(jax.random.fold_in(run_key, step))

    def advance(theta: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Moves up by 1 above the threshold and down by 1 below, and adds noise of deviation sigma / B."""
        threshold, noise = now
        move = jnp.where(theta > threshold, 1.0, -1.0)
        after = theta + move + noise_multiplier / batch_size * noise
        return after, after

    draw_step = jax.vmap(draw_noise, (None, 0))
    draw_all = jax.vmap(draw_step, (0, None))
    noise = draw_all(jnp.arange(len(thresholds) + 1), jnp.arange(len(presence)))  # (T, R)
    first = jnp.float32(presence) + noise_multiplier * noise[0]
    _, later = jax.lax.scan(advance, first, (thresholds, noise[1:]))
    return jnp.concatenate([first[None], later])


def _estimate_in_sample(study: Study, threshold: float) -> list[float]:
    """Returns the paper's in-sample estimate of epsilon after each step; thresholds share the draws."""
    sigma, size, steps = study.process
    # `root` computes a checksum of its text, but the draws depend on this first checksum too.
    name = zlib.crc32(f"landscape {sigma} {size}".encode())
    key = game.root(study.seed, f"{name}")
    present = np.arange(study.runs) % 2 == 1
    thresholds = jnp.full(steps - 1, threshold, jnp.float32)
    noise = (jnp.float32(sigma), jnp.float32(size))
    theta = np.asarray(simulate(key, jnp.asarray(present), *noise, thresholds), np.float64)
    estimates = []
    for scores in theta:
        worlds = (scores[present], scores[~present])
        estimates.append(estimate.in_sample(*worlds, study.delta, study.confidence).epsilon)
    return estimates
