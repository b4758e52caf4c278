"""The Lipschitz constants of an audit's steps, which the accountant of hidden states needs.

A step without the canary and noise is theta -> theta - eta (mean of clipped gradients + lambda theta), with
learning rate eta and weight decay lambda. Take a loss l(w'x, y), convex in w'x with l'' at most b. Clipping
its gradient clips l' alone, and leaves the gradient of the Huberised loss, which is convex too and
b |x|^2-smooth. So the mean over a batch of B examples is beta-smooth, with beta the largest eigenvalue of
b / B times the sum of x x', and the step is max(|1 - eta lambda|, |1 - eta (lambda + beta)|)-Lipschitz (Bok,
Su and Altschuler 2024, arXiv 2403.00278). If no row of any data set is longer than X, beta is at most b X^2.
"""

import functools
import json
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.claims import samplers
from audit.claims.hidden_state import (
    HiddenState,
    HiddenStateBound,
    Periods,
    hidden_state_bound,
    make_hidden_state,
    spread_over_steps,
)
from audit.claims.measured import MEASURED, UNMEASURED
from audit.errors import InputError, require
from audit.laws.conversions import epsilon_from_mu
from audit.settings.setting import Sampling, Setting
from audit.storage import files
from audit.storage.store import Store
from audit.tasks import task
from audit.version import __version__

# How steps are measured. Raise the number where equal steps give other constants: stores measure again then.
MEASUREMENT = f"{__version__}, measurement 3"
_FILE = "lipschitz.json"
_SIMULATED = 100_000  # orders of batches that are simulated
_MOST_STRATA = (
    1000  # up to so many orders are enumerated; more are simulated, in so many strata at most
)
_ROUNDING = 1e-6  # a distance below this is rounding, in units of the shift by an insertion
OTHER_CANARIES = "the gradients of the other canaries depend on the model"  # why there is no bound
# Adversaries whose canaries are examples: the canaries' gradients depend on the model.
_READS_THETA = ("loss", "poisoned", "clip_bkd", "examples")


class Steps(NamedTuple):
    """The Lipschitz constants of an audit's T steps, and why they hold.

    Attributes:
      constants: (T,), a constant for each step, or one number for all.
      reason: why the constants hold.
      runs: how many training runs they were measured along; 0 where they are proven or vouched for.
      kink: why measured derivatives do not bound how far a step separates two models; empty where they do.
      version: `MEASUREMENT` of the library that measured them; empty where they were not measured.
    """

    constants: ArrayLike
    reason: str
    runs: int = 0
    kink: str = ""
    version: str = ""


def hidden_state(
    setting: Setting, delta: float, given: Steps | None = None, own_model: bool = False
) -> HiddenState | str:
    """Returns the upper bound on what the last model of a setting leaks, or why there is none, a string.

    The bound is infinite without noise. Where there is none, only composition bounds the last model.

    Args:
      setting: the setting of the audit.
      delta: the delta of the bound's epsilon.
      given: the Lipschitz constants of a caller's own model, or those measured of a model of the zoo; None
        where these are unknown. Not used for a model whose constants are proven.
      own_model: whether the model is a caller's own.

    Raises:
      InputError: if the constants are out of range.
    """
    reason = _why_uncovered(setting, own_model)
    if reason:
        return reason
    row = None
    if not own_model:
        row = task.tasks().get(setting.model)
    if row is not None and row.curved is not None:  # the loss's curvature is bounded on any data
        negative, positive, largest_gradient, reason = row.curved
        may_clip = setting.mechanism.clipping_norm < largest_gradient
        constant = _find_constant(setting, negative, positive, may_clip)
        return _bound(setting, Steps(constant, reason), delta)
    if row is not None and row.convex is not None:
        smoothness = row.convex.curvature * row.convex.norm**2  # beta
        constant = _find_constant(setting, 0.0, smoothness)
        reason = f"convex loss, any data with |x| <= {row.convex.norm:g}"
        state = _bound(setting, Steps(constant, reason), delta)
        # The bound comes with the mu of an adversary who inserts along a direction without features, in which
        # a loss of w'x has no gradient, to show how much of the bound is attained. There is none next to an
        # infinite bound, nor for insertions at unknown steps.
        if not np.isfinite(state.bound.mu) or setting.sampling.is_hidden:
            return state
        return state._replace(constant=compute_mu_along_one_direction(setting))
    if given is None:
        if row is None:
            return "nobody vouches for how Lipschitz its steps are"
        return row.not_convex
    state = _bound(setting, given, delta)
    if given.kink:  # derivatives do not bound how far displacements are stretched
        return f"{given.kink}; by derivatives alone epsilon {state.bound.epsilon:.4g}, an estimate"
    return state


def compute_mu_along_one_direction(setting: Setting) -> float:
    """Returns mu of an adversary that inserts along a single direction in which the data never vary.

    With learning rate eta and weight decay lambda, the insertion and the noise of step t of T shrink by
    w_t = (1 - eta lambda)^(T - t) in the steps after it. So mu = (sum of w_t over steps with an insertion) /
    (sigma |w|), with the norm |w| over all steps.

    This is the hidden-state bound itself for steps of Lipschitz constant 1 - eta lambda, from 0 to 1, if the
    canary comes first in its period and all periods are whole.
    """
    schedule = setting.schedule
    mechanism = setting.mechanism
    decay = mechanism.learning_rate * mechanism.weight_decay
    steps_after = np.arange(schedule.steps - 1, -1, -1.0)  # T - t for each step t
    # A common factor of the weights cancels. It is chosen such that no weight exceeds 1 in size, which could
    # overflow: for |1 - decay| above 1, the exponents are shifted to be negative.
    exponents = steps_after
    if decay > 2:
        exponents = steps_after - schedule.steps
    weights = (1 - decay) ** exponents
    # The canary comes at step `place` of every period.
    inserted = weights[schedule.place - 1 :: schedule.periodicity]
    mu_at_sigma_1 = float(abs(inserted.sum()) / np.linalg.norm(weights))
    return mu_at_sigma_1 / mechanism.noise_multiplier


def keep(store: Store, steps: Steps | None) -> None:
    """Writes the constants of a setting's steps to the store's lipschitz.json; None deletes that file."""
    if steps is None:
        (store.path / _FILE).unlink(missing_ok=True)
        return
    content = {"constants": np.asarray(steps.constants).tolist(), "reason": steps.reason}
    if steps.runs:  # the constants were measured
        content |= {"runs": steps.runs, "kink": steps.kink, "version": steps.version}
    store.write_text(_FILE, json.dumps(content) + "\n")


def find_current(store: Store) -> Steps | None:
    """Returns the constants that a store holds; None if it holds none or another version measured them.

    Raises InputError if their file is damaged.
    """
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        steps = Steps(**json.loads(content))  # the file's keys are the fields of `Steps`
    # ValueError: no JSON. TypeError: other fields, or no record. RecursionError: JSON nested too deeply.
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{store.path / _FILE} is damaged: move it away") from None
    # Only measured constants, whose `runs` is not 0, state the version that they come from.
    if steps.runs and steps.version != MEASUREMENT:
        return None
    return steps


def find_measured(store: Store, rehearsals: int) -> Steps | None:
    """Returns the constants of the steps that were measured along at least `rehearsals` runs.

    None if the store has none of them, or another version measured them. `USUAL` asks for any number.
    """
    steps = find_current(store)
    # Constants that were not measured have 0 runs.
    if steps is None or steps.runs < max(rehearsals, FEWEST):
        return None
    return steps


def _bound(setting: Setting, steps: Steps, delta: float) -> HiddenState:
    """Returns the upper bound on the last model, with its reason and margins: bounds for larger constants."""
    schedule = setting.schedule
    reason = steps.reason
    mixture = _find_mixture(setting, steps.constants, delta)
    if mixture is not None:
        reason += "; a mixture over orders of batches"
        if mixture.error:
            reason += f", simulated from above, too low with probability {mixture.error:g}"
    compute = functools.partial(_bound_for, setting, delta=delta)
    periods = Periods(steps.constants, schedule.periodicity, schedule.place)
    return make_hidden_state(compute, periods, reason, steps.runs)


def _bound_for(setting: Setting, constants: ArrayLike, delta: float) -> HiddenStateBound:
    """Returns the hidden-state bound for Lipschitz constants, a number or (T,); infinite without noise.

    An order is a list of the steps that take a canary. If the adversary does not know it, mu and epsilon are
    those of the mixture over orders; `paid` and `attained_by` stay those of the order of `_find_shifts`.
    """
    sigma = setting.mechanism.noise_multiplier
    shifts = _find_shifts(setting)
    if sigma == 0:
        # As in composition, each step pays for its own shift. Slopes are the constants themselves.
        slopes = spread_over_steps("lipschitz", constants, len(shifts))
        return HiddenStateBound(np.inf, np.inf, shifts, slopes)
    bound = hidden_state_bound(shifts, constants, sigma, delta)
    limit = _find_mixture(setting, constants, delta)
    if limit is None:
        return bound
    # Both hold: the mixture's epsilon, and that of its bound on mu over all orders.
    epsilon = min(limit.epsilon, epsilon_from_mu(limit.mu, delta))
    return bound._replace(mu=limit.mu, epsilon=epsilon)


def _find_mixture(
    setting: Setting, constants: ArrayLike, delta: float
) -> samplers.MixtureLimit | None:
    """Returns the bound on the last model by the mixture over orders of batches; None if it does not apply.

    It does not if the adversary knows the order. Nor does it with k > 1, since `samplers` takes every step
    for a step that may take a canary, nor without noise, where the bound is infinite.
    """
    schedule = setting.schedule
    sigma = setting.mechanism.noise_multiplier
    if not setting.sampling.is_hidden or schedule.periodicity > 1 or sigma == 0:
        return None
    each_step = spread_over_steps("lipschitz", constants, schedule.steps)
    return _mix_orders(setting.sampling, sigma, tuple(each_step.tolist()), delta)


def _find_shifts(setting: Setting) -> NDArray[np.float64]:
    """Returns the shift by the canary at each of T steps (T,): 1 where it is inserted, 0 elsewhere.

    The unit is eta C / B: the learning rate times the clipping norm over the batch size.

    A sampler that draws a single step of each epoch has no fixed steps: the epoch's last step stands for the
    drawn step. Any other step would do, since mu and epsilon come from all orders of steps (`_find_mixture`).
    With Poisson sampling the canary counts as inserted at every step that may take it.
    """
    schedule = setting.schedule
    period = setting.sampling.batches or schedule.periodicity
    place = setting.sampling.batches or schedule.place
    shifts = np.zeros(schedule.steps)
    shifts[place - 1 :: period] = 1
    return shifts


@functools.lru_cache(maxsize=64)
def _mix_orders(
    sampler: Sampling, noise_multiplier: float, constants: tuple[float, ...], delta: float
) -> samplers.MixtureLimit:
    """Returns the bound on the last model by the mixture over orders of batches.

    Few orders are enumerated. Many are simulated, which takes seconds.
    """
    batches = sampler.batches or 1  # Poisson sampling has no epochs: each step counts as an epoch
    schedule = samplers.make_schedule(
        noise_multiplier, batches, len(constants) // batches, constants
    )
    if sampler.batches:
        return samplers.bound_one_of_each_epoch(
            schedule, delta, most_enumerated=_MOST_STRATA, simulated=_SIMULATED
        )
    return samplers.bound_poisson(schedule, delta, simulated=_SIMULATED, rate=sampler.rate)


def coupling_distances(setting: Setting, constants: ArrayLike) -> NDArray[np.float64]:
    """Returns the distance (T,) of the two worlds' coupled models before each step, in units of eta C / B.

    It is z_(t-1) of the hidden-state bound, with z_0 = 0 and z_t = c_t z_(t-1) + s_t - a_t. Here c_t is the
    Lipschitz constant of step t, s_t its shift by the canary, and a_t the part of the distance that its noise
    pays for. The unit is the learning rate times the clipping norm over the batch size.
    """
    shifts = _find_shifts(setting)
    paid = _bound_for(setting, constants, delta=1e-5).paid  # which no delta changes
    c = np.broadcast_to(np.asarray(constants, np.float64), len(shifts))
    before = np.zeros(len(shifts))
    for t in range(len(shifts) - 1):
        distance = c[t] * before[t] + shifts[t] - paid[t]
        # A remainder of rounding in place of 0 would grow with every step that stretches it.
        if distance > _ROUNDING:
            before[t + 1] = distance
    return before


def _find_constant(
    setting: Setting, negative: float, positive: float, may_clip: bool = False
) -> float:
    """Returns the Lipschitz constant, on any data, of the steps of a model with bounded curvature.

    A step is theta - eta (g + lambda theta), with learning rate eta, weight decay lambda, and the mean g of
    clipped gradients. The eigenvalues of an example's Hessian lie between -`negative` and `positive`.

    Without clipping, the derivative of g is the mean Hessian. A step multiplies a direction of curvature h by
    1 - eta (lambda + h), which is farthest from 0 at one of both ends.

    If clipping may act, the derivative of g need not be symmetric, but its norm is at most max(m, L):
    clipping is a projection, which moves no two gradients apart. The constant is then
    |1 - eta lambda| + eta max(m, L), by the triangle inequality. Losses that are convex in w'x stay so if
    clipped: for them clipping changes nothing.
    """
    rate = setting.mechanism.learning_rate
    decay = setting.mechanism.weight_decay
    if may_clip:
        return abs(1 - rate * decay) + rate * max(negative, positive)
    return max(abs(1 - rate * (decay - negative)), abs(1 - rate * (decay + positive)))


def _why_uncovered(setting: Setting, own_model: bool) -> str:
    """Returns why the hidden-state bound does not hold for a setting, whatever its model; empty if it may.

    The bound needs steps that are a map of the model before them alone. The map must be the same in both
    worlds and computed precisely. The adversary must see only the last model, and the steps of a canary must
    be fixed, or drawn by a sampler that the bound covers.

    Args:
      setting: the setting of the audit.
      own_model: whether the model is a caller's own.
    """
    mechanism = setting.mechanism
    adversary = setting.adversary
    if mechanism.optimizer != "sgd":
        return f"a step of {mechanism.optimizer} depends on more than the last model"
    if adversary.sees_every_model:
        return "this adversary sees every model"
    if setting.sampling.times:  # each canary has so many steps, drawn beforehand
        return "each canary comes at random steps"
    # A step's map then has the canaries' gradients in it, beside those of the data.
    if setting.canaries > 1 and adversary.name in _READS_THETA:
        return OTHER_CANARIES
    # The zoo's models are bounded for exact products alone; a caller answers for an own model's constants.
    if mechanism.precision != "float32" and not own_model:
        return f"products are rounded to {mechanism.precision}"
    return ""


USUAL = 0  # rehearsals: as many as are usual for the model's size
FEWEST = 2  # rehearsals, one of them in each world


def count_rehearsals(
    setting: Setting, requested: str | None = None, rehearsals: int | None = None
) -> int | None:
    """Returns the number of runs along which to measure a zoo model's steps, or `USUAL`; None for not at all.

    Models of which constants are proven are not measured. Without a request, another model is measured if it
    is smooth, canaries come only at every k-th step, with k > 1, and the last model can have a bound.

    Args:
      setting: the setting of the audit.
      requested: what a caller requests, "measured" or "none"; None without a request.
      rehearsals: the number of runs that a caller requests; None for the usual number.

    Raises:
      InputError: for other words, for too few runs, and for a request to measure if the last model can have
        no bound, whatever is measured.
    """
    # The type comes first: an array of a caller's gives no single answer to `in`.
    is_word = requested is None or isinstance(requested, str)
    require(
        is_word and requested in (None, MEASURED, UNMEASURED),
        f"`lipschitz={requested!r}`: give {MEASURED} or {UNMEASURED}, or drop it",
    )
    if rehearsals is not None:
        require_rehearsals(requested, rehearsals)
    why_not = _why_uncovered(setting, own_model=False)
    is_wanted = requested == MEASURED
    message = f"`lipschitz={MEASURED}` bounds what the last model leaks, and {why_not}: drop it"
    require(not is_wanted or not why_not, message)
    row = task.task(setting.model)
    # No bound is stated for a model with kinks. With a canary in every step, the bound is that of composition
    # unless some steps contract. In such cases measuring is left to a request.
    if requested is None:
        is_wanted = row.smooth and setting.schedule.periodicity > 1 and not why_not
    is_proven = row.convex is not None or row.curved is not None
    if is_proven or not is_wanted:
        return None
    return rehearsals or USUAL


def require_rehearsals(requested: object, rehearsals: int) -> None:
    """Raises InputError for a number of rehearsals that is below 2, or comes without `lipschitz=measured`.

    Args:
      requested: the caller's `lipschitz`, a word or numbers.
      rehearsals: the number of runs that the caller requests.
    """
    is_measured = isinstance(requested, str) and requested == MEASURED
    require(is_measured, f"`rehearsals` goes with `lipschitz={MEASURED}`: give it, or drop it")
    least = f"give at least {FEWEST}, one of them in each world"
    require(rehearsals >= FEWEST, f"`rehearsals={rehearsals}`: {least}")
