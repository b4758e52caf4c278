"""Upper bounds on what the last iterate of DP-SGD leaks where every step of training is Lipschitz.

Composition counts each insertion in full, as if every iterate were seen. An adversary who sees the last one
alone sees an early insertion through the noise of all later steps too, and where these steps bring two
trajectories no further apart than they were, that hides a part of it: privacy amplification by iteration.

Source: Bok, Su and Altschuler, "Shifted Interpolation for Differential Privacy" (2024, arXiv 2403.00278).
Their closed forms are for one constant and regular schedules; here schedule, step sizes and constants are
arbitrary, and the best shifts are found exactly. README.md of this folder derives it.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import values
from audit.errors import InputError, require
from audit.statistics import accounting, arrays, conversions
from audit.statistics.accounting import Composition
from audit.statistics.arrays import Array
from audit.statistics.method import Assumption

FIRST, LAST = "first", "last"
MOST_STEPS = 10**7
_ATTAINED = 0.999  # of mu, and the bound counts as attained
LEAST, MOST, MOST_MU = 1e-50, 1e50, 1e12  # of shifts, constants and noise; what converts to epsilon


class HiddenStateBound(NamedTuple):
    """The bound on the last of T iterates: mu of Gaussian differential privacy, epsilon at a delta, and the
    certificate, from which anyone may check mu on both sides.

    paid: (T,) a_t, how much of the distance between both worlds step t's noise pays for, in the units of the
      shifts. What is apart after step t, z_t = c_t z_(t-1) + s_t - a_t with z_0 = 0, is never negative, z_T
      is 0, and mu^2 is the sum of (a_t / n_t)^2.
    attained_by: (T,) slopes from 0 to c_t, of linear maps in one dimension that leak exactly mu.
    """

    mu: float
    epsilon: float
    paid: Array
    attained_by: Array


class Periods(NamedTuple):
    """When the canary is inserted, and how steps contract: once in every k steps, at the insert-th of them
    (1 to k), with steps (the update without canary and noise) of Lipschitz constant `lipschitz`, a number or
    one for each step."""

    lipschitz: ArrayLike
    k: int
    insert: int


class HiddenState(NamedTuple):
    """The bound on the last model of a schedule, and why its steps are as Lipschitz as the periods say.
    constant: mu of who inserts along one direction in which nothing else happens, where that is known."""

    bound: HiddenStateBound
    periods: Periods
    reason: str = "as given"
    constant: float | None = None

    @property
    def assumes(self) -> Assumption:
        """The bound's assumption, in the words of tables and pages."""
        least, most = (f"{end:.6g}" for end in self.range)
        constant = most if least == most else f"{least} to {most}"
        steps, k = f"of Lipschitz constant {constant} ({self.reason})", self.periods.k
        comes = f"the canary in step {self.periods.insert} of every {k}" if k > 1 else "the canary in each"
        sentence = f"only the last model is seen; steps {steps}, {comes}; sensitivity C, Gaussian noise"
        attained = ""
        if self.constant is not None and self.constant < _ATTAINED * self.bound.mu:
            attained = f"; mu {self.bound.mu:.4g} is attained by a crafted landscape alone, where a "
            attained += f"constant direction reaches {self.constant:.4g}"
        note = f"steps {steps}, {comes}{attained}"
        return Assumption(f"steps {steps}", "Lipschitz", sentence + attained, note)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest Lipschitz constant."""
        constants = np.asarray(self.periods.lipschitz)
        return float(constants.min()), float(constants.max())


def hidden_state_bound(
    shifts: ArrayLike, lipschitz: ArrayLike, noise: ArrayLike, delta: float
) -> HiddenStateBound:
    """The bound on the last iterate of theta_t = phi_t(theta_(t-1)) + s_t g_t + n_t N(0, I), where |g_t| <= 1
    in the world with the canary, g_t = 0 in the other, and both worlds have the same maps phi_t.

    Args:
      shifts: (T,) s_t, at least 0, in units of C / batch: eta_t at the steps of the canary, 0 at others.
      lipschitz: c_t of the maps, a number or (T,), at least 0.
      noise: n_t, a number or (T,), in the units of shifts, as eta_t sigma; above 0 where the shift is.
      delta: of epsilon.

    mu^2 is the least sum of (a_t / n_t)^2 over all payments that meet the conditions of `HiddenStateBound`.
    With W_t the product of all c_j after t, the best a_t / (W_t n_t^2) are the slopes of the greatest convex
    minorant of the sums of W_t s_t over those of (W_t n_t)^2. The bound is attained by a linear process, and
    is never above composition, a_t = s_t. Raises InputError for values out of range or shapes that don't fit.
    """
    s = arrays.floats("values of `shifts`", shifts)
    require(s.ndim == 1, f"`shifts` has shape {s.shape}: give a number for each step")
    s = _each_step("shifts", s, len(s))
    c, n = _each_step("lipschitz", lipschitz, len(s)), _each_step("noise", noise, len(s))
    conversions.require_delta(delta)
    noiseless = np.flatnonzero((s > 0) & (n == 0))
    if noiseless.size:
        raise InputError(f"`noise` is 0 at step {noiseless[0] + 1}, which has a shift: give a number above 0")
    deviations, slopes = np.zeros(len(s)), c.copy()
    first = _first_that_counts(s, c)
    if first < len(s):
        deviations[first:], shares = _payments(s[first:], c[first:], n[first:])
        slopes[first:] *= shares
    mu = float(np.linalg.norm(deviations))
    require(mu <= MOST_MU, f"mu is {mu:g}, beyond {MOST_MU:g}: raise `noise` beside the shifts")
    return HiddenStateBound(mu, conversions.epsilon_from_mu(mu, delta), deviations * n, slopes)


def of_periods(
    composition: Composition, periods: Periods, delta: float, step_sizes: ArrayLike = 1.0
) -> HiddenStateBound:
    """`hidden_state_bound` of insertions * k steps of DP-SGD, infinite without noise.

    It holds where insertions are sampled too, of which it takes no advantage. step_sizes: eta_t, a number or
    one for each step; only their ratios count. Raises InputError for values out of range.
    """
    sigma, insertions, _ = composition
    lipschitz, k, _ = periods
    mu = accounting.mu_upper_bound(sigma, insertions)
    insert = insert_step(periods.insert, k)
    steps = insertions * k
    many = f"`insertions={insertions}` and `k={k}` are {steps:,} steps: give at most {MOST_STEPS:,}"
    require(steps <= MOST_STEPS, many)
    eta = _each_step("step_sizes", step_sizes, steps)
    shifts = np.where(np.arange(steps) % k == insert - 1, eta, 0.0)
    if math.isinf(mu):
        return HiddenStateBound(mu, mu, shifts, _each_step("lipschitz", lipschitz, steps))
    return hidden_state_bound(shifts, lipschitz, eta * sigma, delta)


def insert_step(insert: str | int, k: int) -> int:
    """The step of a period, 1 to k, that "last", "first" or a number says; raises InputError for others."""
    require(k >= 1, f"`k={k}`: give at least 1")
    named = {FIRST: 1, LAST: k}.get(insert, insert) if isinstance(insert, str) else insert
    whole = type(named) is int or (isinstance(named, str) and named.isdecimal() and len(named) < 20)
    known = whole and 1 <= int(named) <= k
    said = f"`insert={values.shown(insert)}`"
    require(known, f"{said}: give {LAST}, {FIRST} or a number from 1 to {k}, the steps of a period")
    return int(named)


def _each_step(name: str, given: ArrayLike, steps: int) -> Array:
    array = arrays.floats(f"values of `{name}`", given)
    shape = f"`{name}` has shape {array.shape}: give a number, or one for each of {steps:,} steps"
    require(array.shape in ((), (steps,)), shape)
    outside = array[~((array == 0) | ((array >= LEAST) & (array <= MOST)))]
    if outside.size:
        raise InputError(f"`{name}` holds {outside[0]:g}: give 0, or numbers from {LEAST:g} to {MOST:g}")
    return np.array(np.broadcast_to(array, steps))


def _first_that_counts(s: Array, c: Array) -> int:
    """The first step with a shift that no later step forgets; T where there is none."""
    kept = int(np.flatnonzero(c == 0).max(initial=0))
    return kept + int(np.argmax(s[kept:] > 0)) if s[kept:].any() else len(s)


def _payments(s: Array, c: Array, n: Array) -> tuple[Array, Array]:
    """a_t / n_t, and each step's share of c_t that attains them; s starts above 0, and c is above 0 after its
    first entry. Constants multiply over thousands of magnitudes: products are scaled block by block."""
    log_w = np.cumsum(np.r_[0.0, np.log(c[:0:-1])])[::-1]
    with np.errstate(divide="ignore"):
        log_wn = log_w + np.log(n)
    shifted = np.flatnonzero(s > 0)  # each is pooled with the steps without a shift that follow it
    log_sums = log_w[shifted] + np.log(s[shifted])
    starts = _blocks(shifted, log_sums, np.logaddexp.reduceat(2 * log_wn, shifted))
    sizes, scales = np.diff([*starts, len(s)]), np.maximum.reduceat(log_wn, starts)
    wn = np.exp(log_wn - np.repeat(scales, sizes))
    in_noise = np.divide(s, n, out=np.zeros(len(s)), where=n > 0)
    slopes = np.add.reduceat(wn * in_noise, starts) / np.add.reduceat(wn**2, starts)
    shares = np.ones(len(s))
    shares[0] = 0.0  # nothing is apart before it
    with np.errstate(divide="ignore"):  # of slopes below the least float
        shares[starts[1:]] = np.exp(-np.diff(np.log(slopes) - scales))
    return wn * np.repeat(slopes, sizes), shares


def _blocks(starts: NDArray[np.intp], log_sums: Array, log_weights: Array) -> NDArray[np.intp]:
    """Where blocks of equal slope start, of an isotonic regression of sums / weights."""
    before = math.inf
    while 2 * len(starts) <= before:  # else few are pooled at a time, which is done one by one
        before = len(starts)
        rising = np.flatnonzero(np.r_[True, np.diff(log_sums - log_weights) > 0])
        log_sums, log_weights = (np.logaddexp.reduceat(x, rising) for x in (log_sums, log_weights))
        starts = starts[rising]
    return starts[_pooled(log_sums, log_weights)]


def _pooled(log_sums: Array, log_weights: Array) -> list[int]:
    starts: list[int] = []
    sums: list[float] = []
    weights: list[float] = []
    for start, (total, weight) in enumerate(zip(log_sums.tolist(), log_weights.tolist(), strict=True)):
        while starts and sums[-1] - weights[-1] >= total - weight:
            start, total, weight = starts.pop(), _log_add(sums.pop(), total), _log_add(weights.pop(), weight)
        starts.append(start)
        sums.append(total)
        weights.append(weight)
    return starts


def _log_add(one: float, other: float) -> float:
    high, low = (one, other) if one > other else (other, one)
    return high + math.log1p(math.exp(low - high))
