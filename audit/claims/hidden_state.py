"""Upper bounds on how much the last iterate of DP-SGD leaks if every training step is Lipschitz.

Source: Bok, Su and Altschuler (2024, arXiv 2403.00278).
audit/methods/README.md derives the bound for arbitrary schedules, step sizes and constants.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.claims import accounting
from audit.claims.accounting import Composition
from audit.claims.measured import MEASURED
from audit.errors import LAST, InputError, insert_step, number, plain, require
from audit.evidence import arrays
from audit.evidence.arrays import Array, Integers
from audit.laws import conversions
from audit.methods.method import Assumption
from audit.written import at_most

MAX_STEPS = 10**7
# These limits on constants and noise prevent overflow in squares of their ratios.
_MIN = 1e-50
_MAX = 1e50
MAX_MU = 1e12  # larger values cannot be converted to epsilon
_FACTORS = {2: "twice", 10: "ten times"}  # for `HiddenState.margins`


class HiddenStateBound(NamedTuple):
    """The bound on the last of T iterates, its proof (`masked`), and maps that attain it.

    `hidden_state_bound` explains the symbols. The distance that noise has not masked after step t is z_t =
    c_t z_(t-1) + s_t - a_t. At the end, z_T = 0. mu^2 is the sum of (a_t / n_t)^2.

    Attributes:
      mu: The last iterate is mu-GDP.
      epsilon: The epsilon of mu-GDP.
      masked: (T,) a_t, the part of the distance that step t's noise masks.
      worst_slopes: (T,) slopes, from 0 to c_t, of one-dimensional linear maps that leak exactly mu.
    """

    mu: float
    epsilon: float
    masked: Array
    worst_slopes: Array


class Periods(NamedTuple):
    """The schedule of insertions and the Lipschitz constants of the steps.

    Attributes:
      lipschitz: The Lipschitz constant of a noiseless step without the canary: a number, or one for each
        step.
      k: The number of steps in a period; one of them inserts the canary.
      insert: The step of the period that inserts it, from 1 to k.
    """

    lipschitz: ArrayLike
    k: int
    insert: int


class HiddenState(NamedTuple):
    """The bound on a schedule's last model and the assumptions behind it.

    Attributes:
      bound: The bound.
      periods: The schedule and its Lipschitz constants.
      margins: The bounds for larger constants, c + (f - 1) |c - 1|, keyed by the factor f (2 or 10).
      reason: Why the constants are valid.
      runs: The number of training runs used to measure the constants; 0 if they are proven or given.
    """

    bound: HiddenStateBound
    periods: Periods
    margins: dict[int, HiddenStateBound]
    reason: str = "as given"
    runs: int = 0

    @property
    def assumes(self) -> Assumption:
        """Returns the bound's assumption in words: the Lipschitz constants and the schedule.

        If constants were measured, we add the number of rehearsals (measurement runs) and the epsilons for
        larger constants (`margins`).
        """
        least, largest = self.range
        constants = f"{largest:.6g}"
        if f"{least:.6g}" != constants:
            constants = f"{least:.6g} to {constants}"
        steps = f"steps with Lipschitz constant {constants} ({self.reason})"
        schedule = "the canary in every step"
        if self.periods.k > 1:
            schedule = f"the canary in step {self.periods.insert} of every {self.periods.k}"

        note = f"{steps}, {schedule}"
        sentence = f"the adversary sees only the last model; {note}; sensitivity C, Gaussian noise"
        given = Assumption(text=steps, word="Lipschitz", sentence=sentence, note=note)
        if not self.runs:
            return given
        margins = ", ".join(map(self._describe_margin, self.margins))
        source = f"in {self.runs} rehearsals, not proven ({margins})"
        return given._replace(
            word=MEASURED, sentence=f"{sentence}; measured {source}", note=f"{source}; {note}"
        )

    def _describe_margin(self, factor: int) -> str:
        """Returns the epsilon for a factor in `margins`, in words: "9.1 if steps expand twice as much"."""
        rounded_up = at_most(self.margins[factor].epsilon, 1).removesuffix(".0")
        least, _ = self.range
        if least < 1:  # some steps contract; c is a Lipschitz constant
            return f"{rounded_up} if each c is {factor - 1} |c - 1| larger"
        return f"{rounded_up} if steps expand {_FACTORS[factor]} as much"

    @property
    def range(self) -> tuple[float, float]:
        """Returns the smallest and the largest Lipschitz constant."""
        constants = np.asarray(self.periods.lipschitz)
        return constants.min(), constants.max()


def hidden_state_bound(
    shifts: ArrayLike, lipschitz: ArrayLike, noise: ArrayLike, delta: float
) -> HiddenStateBound:
    """Returns an upper bound on how much the last of T models leaks about a canary, for any Lipschitz steps.

    Step t computes theta_t = phi_t(theta_(t-1)) + s_t g_t + n_t N(0, I), for t from 1 to T. The maps phi_t,
    with Lipschitz constants c_t, are the same with and without the canary. Only the canary's part differs:
    |g_t| <= 1 with the canary, and g_t = 0 without it.

    A step stretches the distance between the models with and without the canary by a factor of at most c_t,
    and the canary adds at most s_t. Then noise of standard deviation n_t masks a part a_t of the distance. As
    in a Gaussian mechanism, masking costs mu = a_t / n_t. Composing all steps costs mu = |a / n|. We choose
    the parts that mask the whole distance by step T at the lowest cost (Bok et al., 2024).

    The bound is infinite if a step has a shift but no noise.

    Args:
      shifts: (T,) s_t >= 0, in units of C / batch: eta_t in steps that insert the canary, 0 in others.
      lipschitz: c_t >= 0, the maps' constants: a number or (T,).
      noise: n_t, a number or (T,), in the same units as the shifts: eta_t sigma.

    Raises:
      InputError: The constants, noise or delta are out of range, or shapes do not match.
    """
    s = np.asarray(shifts, np.float64)
    steps = len(s)
    c = spread_over_steps("lipschitz", lipschitz, steps)
    n = spread_over_steps("noise", noise, steps)

    if not n[s > 0].all():
        # A shift without noise leaks completely, so any parts and slopes will do.
        return HiddenStateBound(mu=np.inf, epsilon=np.inf, masked=s, worst_slopes=c)

    a_over_n = np.zeros(steps)  # 0 before `first`, since earlier shifts do not reach the last model
    worst_slopes = c.copy()
    first = _find_first_relevant_step(s, c)
    if first < steps:
        a_over_n[first:], starts, log_x = _choose_masked_parts(s[first:], c[first:], n[first:])
        # The worst slopes are c_t x_(t-1) / x_t (audit/methods/README.md), with x = a / (W n^2) and W the
        # product of later constants. x changes only at the start of a block.
        worst_slopes[first + starts[1:]] *= np.exp(-np.diff(log_x))
        worst_slopes[first] = 0.0  # any slope will do, since both models are still equal
    mu = float(np.linalg.norm(a_over_n))
    require(
        mu <= MAX_MU, f"mu must be at most {MAX_MU:g}, got {mu:g}: raise `noise` or lower `shifts`"
    )
    epsilon = conversions.epsilon_from_mu(mu, delta)
    return HiddenStateBound(mu, epsilon, masked=a_over_n * n, worst_slopes=worst_slopes)


def bound_periods(
    composition: Composition, periods: Periods, delta: float, step_sizes: ArrayLike = 1.0
) -> HiddenStateBound:
    """Returns the bound on the last model of DP-SGD that inserts the canary once every k steps.

    The bound is also valid if each insertion happens only with some probability.

    Args:
      composition: The noise multiplier and the number of insertions. Its sampling rate is ignored.
      periods: The schedule and its Lipschitz constants.
      step_sizes: eta_t, the learning rates: a number, or one for each step. Only their ratios matter.

    Raises:
      InputError: Values out of range.
    """
    sigma, insertions, _ = composition
    accounting.mu_upper_bound(sigma, insertions)  # checks both
    k = periods.k
    steps = insertions * k
    require(
        steps <= MAX_STEPS,
        f"`insertions={insertions}` and `k={k}` make {steps:,} steps: give at most {MAX_STEPS:,}",
    )
    eta = spread_over_steps("step_sizes", step_sizes, steps)
    shifts = np.where(np.arange(steps) % k == periods.insert - 1, eta, 0.0)
    return hidden_state_bound(shifts, periods.lipschitz, eta * sigma, delta)


def hidden_state_epsilon(
    *,
    noise_multiplier: float,
    insertions: int,
    lipschitz: ArrayLike,
    k: int = 1,
    insert: str | int = LAST,
    step_sizes: ArrayLike = 1.0,
    delta: float = 1e-5,
) -> float:
    """Returns an upper bound on epsilon for an adversary who sees only the last model of DP-SGD.

    No smaller bound is valid for every loss with these Lipschitz constants. The bound is at most the epsilon
    from composition.

    Args:
      noise_multiplier: the standard deviation of the noise, divided by the clipping norm.
      insertions: the number of steps that insert the canary.
      lipschitz: the Lipschitz constant of a noiseless training step without the canary, as a map between
        models: a number, or one for each of the insertions * k steps. If gradients, after clipping, come from
        a convex loss, the constant is 1 for learning rates of at most 2 / smoothness. With an unclipped L2
        penalty, it is 1 - learning rate * weight decay for learning rates of at most
        2 / (smoothness + 2 * weight decay). See `audit/methods/README.md`. The bound does not apply to
        momentum or Adam.
      k: the number of steps from one insertion to the next.
      insert: the step that inserts the canary in each period of k steps: "last", "first" or 1 to k.
      step_sizes: the learning rate: a number, or one for each step. Only their ratios matter.
      delta: the delta of the bound.

    Raises:
      InputError: a value is out of range.

    >>> round(audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=1.0), 2)
    8.68
    >>> round(audit.hidden_state_epsilon(noise_multiplier=4.0, insertions=250, k=5, lipschitz=0.99), 2)
    3.08
    """
    # NumPy would read None as NaN.
    require(lipschitz is not None, "`lipschitz=None`: give a number, or one for each step")
    k = number("k", k, int)
    periods = Periods(lipschitz, k=k, insert=insert_step(plain(insert), k))
    sigma = number("noise_multiplier", noise_multiplier, float)
    composition = Composition(sigma, number("insertions", insertions, int))
    return bound_periods(composition, periods, number("delta", delta, float), step_sizes).epsilon


def make_hidden_state(
    compute: Callable[[Periods], HiddenStateBound], periods: Periods
) -> HiddenState:
    """Returns the bound on the last model, with bounds for larger Lipschitz constants in `margins`.

    The margins show the effect of errors in the constants: each c becomes c + |c - 1| or c + 9 |c - 1|.
    `compute` returns the bound for any constants and schedule (`Periods`).
    """
    bound = compute(periods)
    constants = np.asarray(periods.lipschitz, np.float64)
    margins = dict.fromkeys(_FACTORS, bound)
    if np.any(constants != 1):  # else |c - 1| is 0
        for factor in margins:
            raised = periods._replace(lipschitz=raise_constants(constants, factor))
            margins[factor] = compute(raised)
    return HiddenState(bound, periods, margins)


def raise_constants(constants: Array, factor: float) -> Array:
    """Returns c + (factor - 1) |c - 1| for each Lipschitz constant c, up to the largest valid constant.

    If `factor` is 2, steps expand twice as much (1.1 becomes 1.2) or contract less (0.9 becomes 1).
    """
    return np.minimum(constants + (factor - 1) * np.abs(constants - 1), _MAX)


def spread_over_steps(name: str, given: ArrayLike, steps: int) -> Array:
    """Returns a new array of shape (steps,) from a number, or from an array with a number for each step.

    Raises InputError for any other shape and for values that are neither 0 nor between 1e-50 and 1e50.
    """
    array = arrays.floats(f"values of `{name}`", given)
    require(
        array.shape in ((), (steps,)),
        f"`{name}` has shape {array.shape}: give a number, or one for each of {steps:,} steps",
    )
    in_range = (array == 0) | ((array >= _MIN) & (array <= _MAX))
    if not in_range.all():
        value = array[~in_range][0]
        raise InputError(
            f"values of `{name}` must be 0 or from {_MIN:g} to {_MAX:g}, got {value:g}"
        )
    return np.array(np.broadcast_to(array, steps))


def _find_first_relevant_step(shifts: Array, lipschitz: Array) -> int:
    """Returns the index of the first step whose shift reaches the last iterate; else len(shifts).

    A step with Lipschitz constant 0 erases earlier shifts, but not its own shift.
    """
    start = np.flatnonzero(lipschitz == 0).max(initial=0)  # 0 if no step erases
    shifted = np.flatnonzero(shifts > 0)
    return int(shifted[shifted >= start].min(initial=len(shifts)))


def _choose_masked_parts(s: Array, c: Array, n: Array) -> tuple[Array, Integers, Array]:
    """Chooses a_t, the part of the distance that noise masks at step t, to minimize mu = |a / n|.

    The distance between models with and without the canary is z_t = c_t z_(t-1) + s_t - a_t. Noise must mask
    (hide) it by step T.

    Let W_t be the product of all c_j with j > t. The masked parts W_t a_t must have the same sum as the
    shifts W_t s_t. Without other constraints, x_t = a_t / (W_t n_t^2) would be the same for all steps. But
    noise cannot mask later shifts (z_t >= 0), so isotonic regression divides the steps into blocks (derived
    in audit/methods/README.md). Each block masks its own shifts, and x increases from block to block:

        x = sum W_t s_t / sum (W_t n_t)^2,    a_t / n_t = W_t n_t x.

    We work with logarithms, since W_t spans thousands of orders of magnitude.

    Args:
      s: (T,) the shifts s_t. The first must be above 0.
      c: (T,) the Lipschitz constants c_t, which must be above 0 except for the first, which has no effect.
      n: (T,) the noise n_t, above 0 at steps with a shift.

    Returns:
      a_t / n_t, (T,).
      The index of the first step of each block, (B,).
      The log of each block's x, (B,), ascending.
    """
    log_c = np.log(c[:0:-1])  # from the last step to the second
    log_w = np.cumsum(np.append(0.0, log_c))[::-1]
    with np.errstate(divide="ignore"):  # -inf without noise
        log_wn = log_w + np.log(n)

    # Find the blocks. The regression's P points are the shifts, each with the noise up to the next shift.
    shifted = np.flatnonzero(s > 0)  # (P,)
    log_sums = log_w[shifted] + np.log(s[shifted])
    log_weights = np.logaddexp.reduceat(2 * log_wn, shifted)
    starts = shifted[_find_blocks(log_sums.tolist(), log_weights.tolist())]  # of B blocks, (B,)
    sizes = np.diff([*starts, len(s)])

    # Scaling W_t n_t down and x up by the same factor avoids overflow without changing a_t / n_t.
    log_scales = np.maximum.reduceat(log_wn, starts)
    scaled_wn = np.exp(log_wn - np.repeat(log_scales, sizes))
    s_over_n = np.divide(s, n, out=np.zeros(len(s)), where=n > 0)
    sums = np.add.reduceat(scaled_wn * s_over_n, starts)  # W_t s_t is W_t n_t times s_t / n_t
    weights = np.add.reduceat(scaled_wn**2, starts)
    scaled_x = sums / weights  # (B,)
    a_over_n = scaled_wn * np.repeat(scaled_x, sizes)
    with np.errstate(divide="ignore"):  # x may underflow to 0, with logarithm -inf
        log_x = np.log(scaled_x) - log_scales
    return a_over_n, starts, log_x


def _find_blocks(log_sums: list[float], log_weights: list[float]) -> list[int]:
    """Returns the index of each block's first point in an isotonic regression of sum / weight.

    We pool adjacent violators on a log scale, since `scipy.optimize.isotonic_regression` would overflow.
    """
    # Blocks as (first point, log sum, log weight). The difference of the logs is a block's log value.
    blocks: list[tuple[int, float, float]] = []
    for start, (log_sum, log_weight) in enumerate(zip(log_sums, log_weights, strict=True)):
        # We pool the point with the blocks before it until values increase.
        while blocks:
            start_before, sum_before, weight_before = blocks[-1]
            if sum_before - weight_before < log_sum - log_weight:
                break
            blocks.pop()
            start = start_before
            log_sum = float(np.logaddexp(sum_before, log_sum))
            log_weight = float(np.logaddexp(weight_before, log_weight))
        blocks.append((start, log_sum, log_weight))
    return [start for start, _, _ in blocks]
