"""Adversaries of the crafted landscape: the paper's, the best constant threshold, and the optimal one.

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
    (tests/experiments/hidden_state/test_landscape_optimal.py).
"""

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.laws import conversions, densities
from experiments.hidden_state import landscape_law as law
from experiments.hidden_state.landscape_law import PER_DEVIATION, Stepper, is_separated, last_law
from experiments.hidden_state.landscape_process import Process, constant, upper_bound, validate

Array = NDArray[np.float64]
_COARSE = PER_DEVIATION // 2  # half the usual number of points, for searches


class Thresholds(NamedTuple):
    """An adversary of the crafted landscape, given by its thresholds.

    Attributes:
      values: (T - 1,) the thresholds of steps 2 to T, in units of the clipping norm C.
      epsilon: the exact epsilon that the last iterate leaks under these thresholds.
    """

    values: Array
    epsilon: float


def half(process: Process, delta: float) -> Thresholds:
    """Returns the hidden-state paper's adversary: the threshold C / 2 at every step, and its epsilon.

    It is not the best constant threshold (Errata H13).

    Args:
      process: the process.
      delta: the delta at which epsilon is computed.
    """
    return _evaluate_constant(process, 0.5, delta, PER_DEVIATION)


def best_constant(process: Process, delta: float) -> Thresholds:
    """Returns the adversary whose threshold is the same at every step and leaks the largest epsilon.

    The threshold h is searched on a grid first, then between the best point's neighbours by Brent's bounded
    method (golden section and parabolas). Only h >= 1/2 is tried, since reflection about 1/2 swaps the two
    worlds and turns h into 1 - h. The grid ends a quarter further from 1/2 than the place where the
    likelihood ratio of theta_1 is e^epsilon, for the accountant's epsilon.

    Args:
      process: the process.
      delta: the delta at which epsilon is computed.
    """

    def evaluate(threshold: float) -> float:
        """Returns the epsilon of a constant threshold, on a coarse grid, which takes less time."""
        return _evaluate_constant(process, threshold, delta, _COARSE).epsilon

    # Where the likelihood ratio of theta_1 is e^epsilon. No threshold beyond that place leaks more. The grid
    # goes a quarter further, so that the place itself can be its best point, with neighbours on both sides.
    top = _cross_at_first_step(process, upper_bound(process, delta))
    grid = np.linspace(0.5, 0.5 + 1.25 * (top - 0.5), 11)
    best = int(np.argmax([evaluate(threshold) for threshold in grid]))
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]

    # SciPy minimises, so that the largest epsilon is the least of -epsilon. A rough place will do, since
    # epsilon hardly changes near its largest value.
    minimum = scipy.optimize.minimize_scalar(
        lambda threshold: -evaluate(threshold),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 3e-3 * (high - low)},
    )

    # The search may end at a place that leaks less than the grid's best point. Both are computed finely.
    by_section = _evaluate_constant(process, float(minimum.x), delta, PER_DEVIATION)
    by_grid = _evaluate_constant(process, float(grid[best]), delta, PER_DEVIATION)
    return max(by_section, by_grid, key=lambda thresholds: thresholds.epsilon)


def optimal(process: Process, delta: float) -> Thresholds:
    """Returns the adversary whose thresholds, which may differ from step to step, leak the largest epsilon.

    The threshold at a step is where the likelihood ratio of theta, with the canary over without it, crosses
    e^epsilon. So the thresholds follow from an epsilon, and leak an epsilon in turn. At the optimum the two
    are equal, which is solved for as a root. The module's docstring has the proof that no other thresholds
    leak more.

    Where B / sigma is at least 9, no iterate recrosses a threshold, and the first step's crossing serves all
    steps.

    Args:
      process: the process.
      delta: the delta at which epsilon is computed.
    """
    validate(process)
    conversions.require_delta(delta)
    limit = upper_bound(process, delta)
    if process.steps == 1 or limit == 0:  # there is no threshold to choose, or none leaks anything
        return _evaluate_constant(process, 0.5, delta, PER_DEVIATION)
    if is_separated(process):
        # theta_T still shows on which side of the threshold theta_1 lay. That side leaks all of theta_1's
        # epsilon, since the threshold is where theta_1's likelihood ratio is e^epsilon.
        threshold = _cross_at_first_step(process, limit)
        return _evaluate_constant(process, threshold, delta, PER_DEVIATION)

    fine = law.make_stepper(process, PER_DEVIATION)
    coarse = law.make_stepper(process, _COARSE)
    epsilon = 0.0  # unless the adversary reaches more than `delta` at epsilon 0
    if _compute_excess(0.0, fine, delta) > 0:
        low, high = _bracket_root(fine, coarse, delta, limit)
        root = scipy.optimize.brentq(_compute_excess, low, high, (fine, delta), xtol=1e-6 * limit)
        epsilon = float(root)
    # The thresholds that belong to the epsilon.
    _, thresholds = _follow_crossings(fine, epsilon)
    return Thresholds(thresholds, epsilon)


def _evaluate_constant(
    process: Process,
    threshold: float,
    delta: float,
    per_deviation: int,
) -> Thresholds:
    """Returns the adversary with the same threshold at every step, and its exact epsilon.

    A single step has the accountant's epsilon, in closed form.

    Args:
      process: the process.
      threshold: the threshold, in units of C.
      delta: the delta at which epsilon is computed.
      per_deviation: number of grid points in a standard deviation of a step's noise.
    """
    thresholds = constant(process, threshold)
    if process.steps == 1:
        epsilon = upper_bound(process, delta)
    else:
        epsilon = densities.epsilon_at(last_law(process, thresholds, per_deviation), delta)
    return Thresholds(thresholds, epsilon)


def _cross_at_first_step(process: Process, epsilon: float) -> float:
    """Returns where the likelihood ratio of theta_1, N(1, sigma^2) to N(0, sigma^2), is e^epsilon."""
    return 0.5 + process.noise_multiplier**2 * epsilon


def _compute_excess(epsilon: float, stepper: Stepper, delta: float) -> float:
    """Returns log(D_T / delta) of the adversary whose thresholds are the crossings with e^epsilon.

    D_T is the integral of (q - e^epsilon p)+, where p and q are the densities of theta_T without and with the
    canary: the delta that the adversary reaches at epsilon. The excess falls as epsilon grows, and is 0 at
    the optimal adversary's epsilon.

    Args:
      epsilon: the level that the likelihood ratio crosses, as its log.
      stepper: the process on a grid.
      delta: the delta that D_T is compared with.
    """
    pair, _ = _follow_crossings(stepper, epsilon)
    reached = densities.hockey_stick(pair[0], pair[1], stepper.spacing, epsilon)
    return float(np.log(max(reached, 1e-300)) - np.log(delta))  # finite even where D_T is 0


def _bracket_root(
    fine: Stepper,
    coarse: Stepper,
    delta: float,
    limit: float,
) -> tuple[float, float]:
    """Returns an interval of epsilon that holds the root of `_compute_excess` on the fine grid.

    The root is first computed on the coarse grid, which costs less. The interval is that root plus or minus
    0.2% if the fine grid's excess changes its sign there. Otherwise it is [0, high], where `high` is just
    above the accountant's epsilon. The caller has made sure that the fine grid's excess at 0 is positive.

    Args:
      fine: the process on the grid of the final result.
      coarse: the same process on a coarser grid.
      delta: the delta at which epsilon is computed.
      limit: the accountant's epsilon, which no adversary exceeds.

    Returns:
      (low, high)
    """
    high = 1.01 * limit + 0.01  # past the root, even with the grids' errors
    if _compute_excess(0.0, coarse, delta) > 0:
        root = scipy.optimize.brentq(_compute_excess, 0.0, high, (coarse, delta), xtol=1e-4 * limit)
        below = 0.998 * root
        above = 1.002 * root
        if _compute_excess(below, fine, delta) > 0 >= _compute_excess(above, fine, delta):
            return below, above
    return 0.0, high


def _follow_crossings(stepper: Stepper, epsilon: float) -> tuple[Array, Array]:
    """Follows the adversary that splits each step where the likelihood ratio crosses e^epsilon.

    Args:
      stepper: the process on a grid.
      epsilon: the log of the likelihood ratio at every threshold.

    Returns:
      The densities of theta_T in both worlds, (2, n), and the thresholds (T - 1,).
    """
    pair = stepper.start()
    thresholds: list[float] = []
    for _ in range(stepper.process.steps - 1):
        threshold = _find_crossing(stepper.points, pair, epsilon)
        thresholds.append(threshold)
        pair = stepper.advance(pair, threshold)
    return pair, np.array(thresholds)


def _find_crossing(points: NDArray[Any], pair: Array, epsilon: float) -> float:
    """Returns the place where log(q / p), which increases along the grid, crosses epsilon.

    Interpolates linearly between points. Points at which p or q is nearly 0 in float64 are left out. Where
    nothing crosses, returns the first or the last of the remaining points.

    Args:
      points: the grid (n,).
      pair: the densities p (without the canary) and q (with it) at the points, (2, n).
      epsilon: the level that log(q / p) crosses.
    """
    tiny = 1e-290  # well above 2e-308, below which float64 loses digits
    visible = np.flatnonzero((pair[0] > tiny) & (pair[1] > tiny))
    points = points[visible]
    log_ratio = np.log(pair[1, visible]) - np.log(pair[0, visible])
    above = np.flatnonzero(log_ratio > epsilon)
    if not above.size:
        return float(points[-1])
    right = int(above[0])
    if right == 0:
        return float(points[0])
    left = right - 1
    share = (epsilon - log_ratio[left]) / (log_ratio[right] - log_ratio[left])
    return float(points[left] + share * (points[right] - points[left]))
