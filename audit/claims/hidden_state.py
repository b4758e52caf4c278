"""Upper bounds on what the last iterate of DP-SGD leaks where every step of training is Lipschitz.

Composition counts each insertion in full, as if every iterate were seen. To an adversary that sees only the
last iterate, an early insertion comes through the noise of all later steps, and where these steps move two
trajectories no further from each other, that hides a part of it: privacy amplification by iteration.

Source: Bok, Su and Altschuler, "Shifted Interpolation for Differential Privacy" (2024, arXiv 2403.00278).
Their closed forms are for a single constant and regular schedules; here schedule, step sizes and constants
are arbitrary, and the best shifts are computed exactly. audit/methods/README.md derives it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.claims import accounting
from audit.claims.accounting import Composition, insert_step
from audit.claims.measured import MEASURED
from audit.errors import InputError, require
from audit.evidence import arrays
from audit.evidence.arrays import Array
from audit.laws import conversions
from audit.methods.method import Assumption
from audit.written import at_most

MOST_STEPS = 10**7
LEAST, MOST = 1e-50, 1e50  # of shifts, constants and noise that are not 0
MOST_MU = 1e12  # beyond it mu does not convert to epsilon
_ATTAINED = 0.999  # the share of the bound's mu from which on it counts as attained
_TIMES = {2: "twice", 10: "ten times"}  # how much larger the constants of margins are


class HiddenStateBound(NamedTuple):
    """The bound on the last of T iterates, and a certificate by which mu can be checked from both sides.

    The certificate follows z_t, a bound on the distance between both worlds' trajectories after step t, in
    the units of the shifts: z_0 = 0 and z_t = c_t z_(t-1) + s_t - a_t, for Lipschitz constants c_t, shifts
    s_t and payments a_t. No z_t is negative, z_T is 0, and mu^2 is the sum of (a_t / n_t)^2, with n_t the
    noise.

    Attributes:
      mu: The last iterate is mu-GDP.
      epsilon: The epsilon of mu-GDP at the delta that the caller gave.
      paid: (T,) a_t, the part of the distance that step t's noise pays for.
      attained_by: (T,) slopes from 0 to c_t, of linear maps in a single dimension that leak exactly mu.
    """

    mu: float
    epsilon: float
    paid: Array
    attained_by: Array


class Periods(NamedTuple):
    """When the canary is inserted, and how steps contract.

    Attributes:
      lipschitz: The Lipschitz constant of a step (the update without canary and noise): a number for all
        steps, or one for each.
      k: The number of steps in a period; the canary is inserted in one of them.
      insert: The step of the period, 1 to k, in which it is inserted.
    """

    lipschitz: ArrayLike
    k: int
    insert: int


class HiddenState(NamedTuple):
    """The bound on the last model of a schedule, and what it rests on.

    Attributes:
      bound: The bound.
      periods: The schedule, and the Lipschitz constants of its steps.
      margins: Maps a factor f, 2 or 10, to the bound for larger constants, c + (f - 1) |c - 1|.
      reason: Why the steps have these constants.
      constant: The mu of an adversary that inserts along a direction in which nothing else happens; None
        where it was not computed.
      runs: The number of training runs along which the constants were measured, in both worlds. Measured
        constants are an assumption, no proof. 0 where they are proven or vouched for.
    """

    bound: HiddenStateBound
    periods: Periods
    margins: dict[int, HiddenStateBound]
    reason: str = "as given"
    constant: float | None = None
    runs: int = 0

    @property
    def assumes(self) -> Assumption:
        """Returns what the bound assumes, in words for tables and pages.

        The words name the steps' Lipschitz constants and the canary's schedule. Where the constants were
        measured, they also say along how many runs, and what epsilon would be if steps expanded more.
        """
        least, most = (f"{end:.6g}" for end in self.range)
        constants = most if least == most else f"{least} to {most}"
        steps = f"steps of Lipschitz constant {constants} ({self.reason})"
        schedule = "the canary in each"
        if self.periods.k > 1:
            schedule = f"the canary in step {self.periods.insert} of every {self.periods.k}"

        # In a simple attack, the canary comes along a direction in which nothing but it and the noise moves
        # the model. `constant` is the mu that leaks then. If it is clearly below the bound's mu (by more than
        # rounding), the words add that this attack does not reach the bound: only a loss crafted for it does.
        attained = ""
        if self.constant is not None and self.constant < _ATTAINED * self.bound.mu:
            attained = (
                f"; mu {self.bound.mu:.4g} is attained by a crafted landscape alone, where a "
                f"constant direction reaches {self.constant:.4g}"
            )
        note = f"{steps}, {schedule}{attained}"
        seen = "only the last model is seen"
        sentence = f"{seen}; {steps}, {schedule}; sensitivity C, Gaussian noise{attained}"
        if not self.runs:
            return Assumption(steps, "Lipschitz", sentence, note)
        wider = ", ".join(self.describe_margin(factor) for factor in self.margins)
        along = f"along {self.runs} rehearsed runs, not proven ({wider})"
        return Assumption(steps, MEASURED, f"{sentence}; measured {along}", f"{along}; {note}")

    def describe_margin(self, factor: int) -> str:
        """Returns words for what epsilon would be if constants were as much larger as `stretch_more` says."""
        epsilon = self.margins[factor].epsilon
        rounded_up = at_most(epsilon, 1).removesuffix(".0")
        least, _ = self.range
        if least < 1:  # some steps contract
            return f"{rounded_up} if each c is {factor - 1} |c - 1| larger"
        return f"{rounded_up} if steps expand {_TIMES[factor]} as much"

    @property
    def mean_constant(self) -> float:
        """Returns the mean Lipschitz constant of the steps."""
        return float(np.mean(np.asarray(self.periods.lipschitz, np.float64)))

    @property
    def range(self) -> tuple[float, float]:
        """Returns the least and the largest Lipschitz constant."""
        constants = np.asarray(self.periods.lipschitz)
        return float(constants.min()), float(constants.max())


def hidden_state_bound(
    shifts: ArrayLike, lipschitz: ArrayLike, noise: ArrayLike, delta: float
) -> HiddenStateBound:
    """Returns the upper bound on what the last of T models leaks of a canary, for any Lipschitz steps.

    Training is theta_t = phi_t(theta_(t-1)) + s_t g_t + n_t N(0, I), for t from 1 to T. The maps phi_t, of
    Lipschitz constants c_t, are the same in the worlds with and without the canary. Only the canary's part
    differs: |g_t| <= 1 in the world with it, and g_t = 0 in the other.

    The shifts s_t g_t drive the two worlds' models apart, and the noise hides this: the noise of step t pays
    for a part a_t of the distance. The last model is mu-GDP with mu^2 = sum of (a_t / n_t)^2, for all
    payments a_t that leave no distance at the end (the conditions are those of `HiddenStateBound`). This
    function computes the payments of least mu (`_compute_payments`). Composition is the case a_t = s_t, so
    that the bound is never above it. A process of linear maps attains the bound; their slopes are returned.

    Source: Bok, Su and Altschuler (2024, arXiv 2403.00278); audit/methods/README.md derives it.

    Args:
      shifts: (T,) s_t, at least 0, in units of C / batch: eta_t at the steps of the canary, 0 at others.
      lipschitz: c_t of the maps, a number or (T,), at least 0.
      noise: n_t, a number or (T,), in the units of shifts, as eta_t sigma; above 0 where the shift is.
      delta: The delta of epsilon.

    Raises:
      InputError: Values out of range, or shapes that don't fit.
    """
    s = arrays.floats("values of `shifts`", shifts)
    require(s.ndim == 1, f"`shifts` has shape {s.shape}: give a number for each step")
    steps = len(s)
    s = spread_over_steps("shifts", s, steps)  # raises InputError for values out of range
    c = spread_over_steps("lipschitz", lipschitz, steps)
    n = spread_over_steps("noise", noise, steps)
    conversions.require_delta(delta)
    noiseless = np.flatnonzero((s > 0) & (n == 0))
    if noiseless.size:
        step = noiseless[0] + 1
        raise InputError(f"`noise` is 0 at step {step}, which has a shift: give a number above 0")

    # Before the first step whose shift reaches the last model nothing is paid. Any maps attain the bound
    # there, and those of slope c_t are returned.
    in_noise = np.zeros(steps)  # a_t / n_t: the payments, in units of the noise
    attaining_slopes = c.copy()
    first = _find_first_relevant_step(s, c)
    if first < steps:
        in_noise[first:], shares_of_c = _compute_payments(s[first:], c[first:], n[first:])
        attaining_slopes[first:] *= shares_of_c
    mu = float(np.linalg.norm(in_noise))
    require(
        mu <= MOST_MU,
        f"mu is {mu:g}, beyond {MOST_MU:g}: raise `noise` beside the shifts",
    )
    return HiddenStateBound(
        mu, conversions.epsilon_from_mu(mu, delta), in_noise * n, attaining_slopes
    )


def bound_periods(
    composition: Composition, periods: Periods, delta: float, step_sizes: ArrayLike = 1.0
) -> HiddenStateBound:
    """Returns the bound on the last model of DP-SGD with the canary in one step of every k.

    It is `hidden_state_bound` of insertions * k steps. It also holds where each insertion happens only with a
    probability, but is no lower for that. If there are insertions but no noise, it is infinite; `attained_by`
    then has the Lipschitz constants themselves.

    Args:
      composition: The noise multiplier, and the number of insertions; its sampling rate is not used.
      periods: The schedule, and the Lipschitz constants.
      delta: The delta of epsilon.
      step_sizes: eta_t, the learning rates, a number or one for each step. Only their ratios count, since
        shifts and noise are both proportional to them.

    Raises:
      InputError: Values out of range.
    """
    sigma = composition.noise_multiplier
    insertions = composition.insertions
    k = periods.k
    composed_mu = accounting.mu_upper_bound(sigma, insertions)
    insert = insert_step(periods.insert, k)
    steps = insertions * k
    require(
        steps <= MOST_STEPS,
        f"`insertions={insertions}` and `k={k}` are {steps:,} steps: give at most {MOST_STEPS:,}",
    )
    eta = spread_over_steps("step_sizes", step_sizes, steps)
    shifts = np.where(np.arange(steps) % k == insert - 1, eta, 0.0)
    if math.isinf(composed_mu):  # insertions without noise
        # Without noise nothing is hidden. A payment is the part of the distance between both worlds that a
        # step's noise has to hide. As in composition, each step pays for its own shift in full.
        #
        # Linear maps whose slopes are the Lipschitz constants pass all distances on, and so leak everything
        # (unless a constant after the last insertion is 0).
        constants = spread_over_steps("lipschitz", periods.lipschitz, steps)
        return HiddenStateBound(mu=math.inf, epsilon=math.inf, paid=shifts, attained_by=constants)
    return hidden_state_bound(shifts, periods.lipschitz, eta * sigma, delta)


def make_hidden_state(
    compute: Callable[[ArrayLike], HiddenStateBound],
    periods: Periods,
    reason: str = "as given",
    runs: int = 0,
) -> HiddenState:
    """Returns the bound on the last model, and what it would be if steps expanded distances more than stated.

    There are two such other bounds, the margins: for larger Lipschitz constants (`stretch_more`), with the
    factors 2 and 10.

    Args:
      compute: Maps Lipschitz constants, a number or one for each step, to the bound.
      periods: The schedule, and its constants.
      reason: Why the steps have these constants.
      runs: The number of training runs along which they were measured; 0 where they were not measured.
    """
    bound = compute(periods.lipschitz)
    constants = np.asarray(periods.lipschitz, np.float64)
    margins = {}
    for factor in _TIMES:  # 2 and 10
        margins[factor] = bound  # where all constants are 1, no factor changes the bound
        if np.any(constants != 1):
            margins[factor] = compute(stretch_more(constants, factor))
    return HiddenState(bound, periods, margins, reason, runs=runs)


def stretch_more(constants: Array, factor: float) -> Array:
    """Returns larger Lipschitz constants, c + (factor - 1) |c - 1| in place of c.

    For a step that expands distances, the excess c - 1 is multiplied by `factor`. For a step that contracts
    them, `factor` 2 takes all of 1 - c away, and a larger one makes an expansion of it. So the true constant
    is covered if the given one is wrong by up to factor - 1 times |c - 1|, in both cases.
    """
    return np.minimum(constants + (factor - 1) * np.abs(constants - 1), MOST)


def spread_over_steps(name: str, given: ArrayLike, steps: int) -> Array:
    """Returns a caller's number, repeated for each step, or a caller's array, as (steps,).

    Values must be 0, or from 1e-50 to 1e50: squares of their ratios then neither overflow nor underflow.

    Args:
      name: The parameter's name, for messages.
      given: A number, or (steps,) numbers.
      steps: The number of steps.

    Raises:
      InputError: Another shape, or a value out of range.
    """
    array = arrays.floats(f"values of `{name}`", given)
    require(
        array.shape in ((), (steps,)),
        f"`{name}` has shape {array.shape}: give a number, or one for each of {steps:,} steps",
    )
    outside = array[~((array == 0) | ((array >= LEAST) & (array <= MOST)))]
    if outside.size:
        raise InputError(
            f"`{name}` holds {outside[0]:g}: give 0, or numbers from {LEAST:g} to {MOST:g}"
        )
    return np.array(np.broadcast_to(array, steps))  # a copy, which may be written to


def _find_first_relevant_step(shifts: Array, lipschitz: Array) -> int:
    """Returns the index of the first step whose shift reaches the last iterate; T if there is none.

    A step of Lipschitz constant 0 maps all models to one point and so erases the shifts before it. Its own
    shift is added after the map, and remains.

    Args:
      shifts: (T,) s_t.
      lipschitz: (T,) c_t.
    """
    # Index 0 if no step erases: before the first step there is no shift to erase.
    last_erasing = int(np.flatnonzero(lipschitz == 0).max(initial=0))
    remaining_shifts = shifts[last_erasing:]
    if not remaining_shifts.any():
        return len(shifts)
    return last_erasing + int(np.argmax(remaining_shifts > 0))


def _compute_payments(s: Array, c: Array, n: Array) -> tuple[Array, Array]:
    """Returns the payments a_t of `hidden_state_bound` over the noise n_t, and what attains the bound.

    W_t is the product of all c_j after t: a shift at step t counts W_t times in the last model, at most. The
    best payments have slopes x_t = a_t / (W_t n_t^2) that never fall. These are an isotonic regression: that
    of W_t s_t / (W_t n_t)^2 with weights (W_t n_t)^2. It is constant on blocks of steps, in which

        x = sum W_t s_t / sum (W_t n_t)^2,    a_t / n_t = W_t n_t x.

    The linear maps of slope c_t x_(t-1) / x_t attain the bound. audit/methods/README.md derives all this.
    W_t spans thousands of orders of magnitude. So blocks are sought in logarithms, and within a block W_t n_t
    is divided by its largest value.

    Args:
      s: (T,) the shifts s_t, the first above 0.
      c: (T,) the Lipschitz constants c_t, above 0 but for the first, which does not matter.
      n: (T,) the noise n_t, above 0 where the shift is.

    Returns:
      a_t / n_t, (T,), the payments in units of the noise.
      x_(t-1) / x_t, (T,), the shares of c_t that are the slopes of the maps; 0 for the first step.
    """
    # log W_t sums the logs of all c_j after t: from the end, where it is 0, without the first step's c.
    log_w = np.cumsum(np.r_[0.0, np.log(c[:0:-1])])[::-1]
    with np.errstate(divide="ignore"):
        log_wn = log_w + np.log(n)

    # The blocks. A step without a shift has the slope of the step before it, so that a block starts at a
    # shift: the points of the regression are the shifts, each with the noise up to the next shift.
    shifted = np.flatnonzero(s > 0)
    log_sums = log_w[shifted] + np.log(s[shifted])
    log_weights = np.logaddexp.reduceat(2 * log_wn, shifted)
    starts = shifted[_find_blocks(log_sums.tolist(), log_weights.tolist())]
    sizes = np.diff([*starts, len(s)])

    # The payments. Within a block, W_t n_t is divided by the block's scale, its largest value, and the
    # slope x is multiplied by the scale; a_t / n_t stays what it is.
    log_scales = np.maximum.reduceat(log_wn, starts)
    scaled_wn = np.exp(log_wn - np.repeat(log_scales, sizes))
    s_over_n = np.divide(s, n, out=np.zeros(len(s)), where=n > 0)
    sums = np.add.reduceat(scaled_wn * s_over_n, starts)  # W_t s_t is W_t n_t times s_t / n_t
    weights = np.add.reduceat(scaled_wn**2, starts)
    scaled_slopes = sums / weights
    in_noise = scaled_wn * np.repeat(scaled_slopes, sizes)

    # The shares x_(t-1) / x_t, which are 1 within a block.
    shares = np.ones(len(s))
    shares[0] = 0.0  # both worlds are the same before the first shift
    with np.errstate(divide="ignore"):  # a slope below the least float is 0, of logarithm -inf
        log_slopes = np.log(scaled_slopes) - log_scales
    shares[starts[1:]] = np.exp(-np.diff(log_slopes))
    return in_noise, shares


def _find_blocks(log_sums: list[float], log_weights: list[float]) -> list[int]:
    """Returns the indices of the points at which the blocks of an isotonic regression start.

    It is the best fit that never falls to the ratios sum / weight, with these weights, by
    pool-adjacent-violators. Sums and weights come as logarithms: they would overflow themselves, so that
    `scipy.optimize.isotonic_regression` cannot take them. Each point begins a block. It absorbs the blocks
    before it, one after another, as long as their ratio sum / weight is not below its own.

    Args:
      log_sums: The log of each point's sum.
      log_weights: The log of each point's weight.
    """
    blocks: list[tuple[int, float, float]] = []  # start, log of the sum, log of the weight
    for start, (log_sum, log_weight) in enumerate(zip(log_sums, log_weights, strict=True)):
        while blocks and blocks[-1][1] - blocks[-1][2] >= log_sum - log_weight:
            start, sum_before, weight_before = blocks.pop()
            log_sum = _add_logs(sum_before, log_sum)
            log_weight = _add_logs(weight_before, log_weight)
        blocks.append((start, log_sum, log_weight))
    return [start for start, _, _ in blocks]


def _add_logs(first: float, second: float) -> float:
    """Returns log(exp(first) + exp(second)) of two floats, for which `np.logaddexp` is slower."""
    high = max(first, second)
    low = min(first, second)
    return high + math.log1p(math.exp(low - high))
