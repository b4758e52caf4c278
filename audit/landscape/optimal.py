"""Adversaries of the crafted landscape: the paper's, the best constant threshold, and the optimal one.

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
    (tests/audit/landscape/test_optimal.py).
"""

from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.landscape import law
from audit.landscape.law import PER_DEVIATION, Stepper, is_separated, last_law
from audit.landscape.process import Process, constant, upper_bound, validate
from audit.statistics import conversions, densities

Array = NDArray[np.float64]
_COARSER = 2  # times as coarse is the grid while searching


class Thresholds(NamedTuple):
    """A threshold a step, values (T - 1,) in units of C, and the exact epsilon that they reach at T."""

    values: Array
    epsilon: float


def half(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """The paper's adversary: the threshold C / 2 at every step, which is not the best (Errata H13)."""
    return _at_constant(process, 0.5, delta, per_deviation)


def best_constant(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """The threshold of largest epsilon, by grid and golden section over h >= 1/2: reflection swaps worlds."""

    def searched(threshold: float) -> float:
        return _at_constant(process, threshold, delta, per_deviation // _COARSER).epsilon

    top = _crossing_of_first_step(process, upper_bound(process, delta))
    grid = np.linspace(0.5, 0.5 + 1.25 * (top - 0.5), 11)
    best = int(np.argmax([searched(h) for h in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found = scipy.optimize.minimize_scalar(
        lambda h: -searched(h), bounds=(low, high), method="bounded", options={"xatol": 3e-3 * (high - low)}
    )
    candidates = (float(found.x), float(grid[best]))
    refined = [_at_constant(process, h, delta, per_deviation) for h in candidates]
    return max(refined, key=lambda thresholds: thresholds.epsilon)


def optimal(process: Process, delta: float, per_deviation: int = PER_DEVIATION) -> Thresholds:
    """The optimal adversary (see the module's docstring): a threshold a step, at the crossing of the
    likelihood ratio with e^epsilon, for the epsilon that these thresholds reach themselves. Where B / sigma
    is at least 9 the first crossing is kept for all steps, as nothing recrosses it."""
    validate(process)
    conversions.require_delta(delta)
    limit = upper_bound(process, delta)
    if process.steps == 1 or limit == 0:
        return _at_constant(process, 0.5, delta, per_deviation)
    if is_separated(process):
        return _at_constant(process, _crossing_of_first_step(process, limit), delta, per_deviation)
    fine = law.stepper(process, per_deviation)
    coarse = law.stepper(process, per_deviation // _COARSER)
    if _excess(0.0, fine, delta) <= 0:
        return Thresholds(_follow_crossings(fine, 0.0)[1], 0.0)
    bracket = _bracket(fine, coarse, delta, limit)
    epsilon = float(scipy.optimize.brentq(_excess, *bracket, (fine, delta), xtol=1e-6 * limit))
    return Thresholds(_follow_crossings(fine, epsilon)[1], epsilon)


def _at_constant(process: Process, threshold: float, delta: float, per_deviation: int) -> Thresholds:
    """A constant threshold and its epsilon; one step is known in closed form."""
    thresholds = constant(process, threshold)
    if process.steps == 1:
        return Thresholds(thresholds, upper_bound(process, delta))
    return Thresholds(thresholds, densities.epsilon_at(last_law(process, thresholds, per_deviation), delta))


def _crossing_of_first_step(process: Process, epsilon: float) -> float:
    return 0.5 + process.noise_multiplier**2 * epsilon


def _excess(epsilon: float, stepper: Stepper, delta: float) -> float:
    """log(D_T / delta) of the thresholds at the crossings with e^epsilon."""
    pair, _ = _follow_crossings(stepper, epsilon)
    reached = densities.hockey_stick(pair[0], pair[1], stepper.spacing, epsilon)
    return float(np.log(max(reached, 1e-300)) - np.log(delta))


def _bracket(fine: Stepper, coarse: Stepper, delta: float, limit: float) -> tuple[float, float]:
    """An interval with the root of the fine grid's excess: close about the coarse grid's, if it is there."""
    high = 1.01 * limit + 0.01
    if _excess(0.0, coarse, delta) > 0:
        near = scipy.optimize.brentq(_excess, 0.0, high, (coarse, delta), xtol=1e-4 * limit)
        low, above = 0.998 * near, 1.002 * near
        if _excess(low, fine, delta) > 0 >= _excess(above, fine, delta):
            return low, above
    return 0.0, high


def _follow_crossings(stepper: Stepper, epsilon: float) -> tuple[Array, Array]:
    """(last densities (2, n), thresholds) of the adversary that splits at the crossing with e^epsilon."""
    pair = stepper.start()
    found: list[float] = []
    for _ in range(stepper.process.steps - 1):
        threshold = _crossing(stepper.points, pair, epsilon)
        found.append(threshold)
        pair = stepper.advance(pair, threshold)
    return pair, np.array(found)


def _crossing(points: NDArray[Any], pair: Array, epsilon: float) -> float:
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
