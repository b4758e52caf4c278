"""The Lipschitz constants of an audit's steps, which the accountant of hidden states needs.

audit/methods/README.md ("Hidden states") derives the constants of convex and of smooth losses (Bok, Su and
Altschuler 2024, arXiv 2403.00278).
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
from audit.claims.strategies import INDEPENDENT
from audit.errors import InputError, number, require
from audit.laws.conversions import epsilon_from_mu
from audit.settings.setting import Sampling, Setting
from audit.storage import files
from audit.storage.store import Store
from audit.tasks import task
from audit.version import __version__

# Raise the number if equal steps give other constants: stores measure again then.
MEASUREMENT = f"{__version__}, measurement 3"
_FILE = "lipschitz.json"
_SIMULATED = 100_000  # orders of batches that are simulated
_MOST_STRATA = 1000  # the largest number of enumerated orders, and of strata of simulated orders
_ROUNDING = 1e-6  # in units of the shift by an insertion
MOMENTUM_LEAKS = "with momentum 0.9 a convex loss leaks 18.6 where SGD leaks at most 8.7 (k = 5)"
OTHER_CANARIES = "the gradients of the other canaries depend on the model"  # why there is no bound
# Adversaries whose canaries are examples: the canaries' gradients depend on the model.
_READS_THETA = ("loss", "poisoned", "clip_bkd", "examples")


class Steps(NamedTuple):
    """The Lipschitz constants of an audit's T steps, with a reason.

    Attributes:
      constants: (T,), a constant for each step, or one number for all.
      reason: why the constants are valid.
      runs: the number of training runs with measured constants; 0 if they are proven or given.
      kink: why measured derivatives do not bound how far a step separates two models; empty if they do.
      version: `MEASUREMENT` of the library that measured them; empty if not measured.
    """

    constants: ArrayLike
    reason: str
    runs: int = 0
    kink: str = ""
    version: str = ""


def hidden_state(
    setting: Setting, delta: float, given: Steps | None = None, own_model: bool = False
) -> HiddenState | str:
    """Returns the upper bound on the leak of the last model, or why only composition bounds it, a string.

    The bound is infinite without noise.

    Args:
      setting: the setting of the audit.
      delta: the delta of the bound's epsilon.
      given: the constants of a custom model, or the measured constants of a model of the zoo, or None. Not
        used for a model with proven constants.
      own_model: whether the model is custom.

    Raises:
      InputError: if the constants are out of range.
    """
    reason = _why_uncovered(setting, own_model)
    if reason:
        return reason
    row = None
    if not own_model:
        row = task.find_task(setting.model)
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
        # The mu of an adversary who inserts along a direction without features, and so without gradients,
        # shows how much of a finite bound is attained. It needs insertions at known steps.
        if not np.isfinite(state.bound.mu) or setting.sampling.is_hidden:
            return state
        return state._replace(constant=compute_mu_along_one_direction(setting))
    if given is None:
        if row is None:
            return "the Lipschitz constants of its steps are unknown"
        return row.not_convex
    state = _bound(setting, given, delta)
    if given.kink:  # derivatives do not bound how far displacements are stretched
        return f"{given.kink}; by derivatives alone epsilon {state.bound.epsilon:.4g}, an estimate"
    return state


def compute_mu_along_one_direction(setting: Setting) -> float:
    """Returns mu of an adversary who inserts along a single direction without gradients.

    The insertion and the noise of step t of T shrink by w_t = (1 - eta lambda)^(T - t) in the steps after it.
    So mu = (sum of w_t over steps with an insertion) / (sigma |w|), with the norm |w| over all steps.

    This equals the hidden-state bound for steps with Lipschitz constant 1 - eta lambda, from 0 to 1, if the
    canary comes first in its period and all periods are whole.
    """
    schedule = setting.schedule
    mechanism = setting.mechanism
    decay = mechanism.learning_rate * mechanism.weight_decay
    steps_after = np.arange(schedule.steps - 1, -1, -1.0)  # T - t for each step t
    # A common factor of the weights cancels. For |1 - decay| above 1, negative exponents avoid overflow.
    exponents = steps_after
    if decay > 2:
        exponents = steps_after - schedule.steps
    weights = (1 - decay) ** exponents
    inserted = weights[schedule.place - 1 :: schedule.periodicity]
    mu_at_sigma_1 = float(abs(inserted.sum()) / np.linalg.norm(weights))
    return mu_at_sigma_1 / mechanism.noise_multiplier


def keep(store: Store, steps: Steps | None) -> None:
    """Writes the constants to the store's lipschitz.json; None deletes that file."""
    if steps is None:
        (store.path / _FILE).unlink(missing_ok=True)
        return
    plain = steps._replace(constants=np.asarray(steps.constants).tolist())
    store.write_text(_FILE, json.dumps(plain._asdict()) + "\n")


def find_current(store: Store) -> Steps | None:
    """Returns the constants in a store; None without any or if another version measured them.

    Raises InputError if their file is damaged.
    """
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        steps = Steps(**json.loads(content))  # the file's keys are the fields of `Steps`
    # ValueError: not JSON. TypeError: other fields, or not a record. RecursionError: JSON nested too deeply.
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{store.path / _FILE} is damaged: move it away") from None
    if steps.runs and steps.version != MEASUREMENT:
        return None
    return steps


def find_measured(store: Store, rehearsals: int) -> Steps | None:
    """Returns constants that this version measured along at least `rehearsals` runs; None without them."""
    steps = find_current(store)
    if steps is None or steps.runs < max(rehearsals, FEWEST):
        return None
    return steps


def _bound(setting: Setting, steps: Steps, delta: float) -> HiddenState:
    """Returns the upper bound on the last model, with its reason and bounds for larger constants."""
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

    If the adversary does not know the order, mu and epsilon are those of the mixture over orders; `paid` and
    `attained_by` are those of the order of `_find_shifts`.
    """
    sigma = setting.mechanism.noise_multiplier
    shifts = _find_shifts(setting)
    if sigma == 0:
        # As in composition, each step pays for its own shift.
        slopes = spread_over_steps("lipschitz", constants, len(shifts))
        return HiddenStateBound(np.inf, np.inf, shifts, slopes)
    bound = hidden_state_bound(shifts, constants, sigma, delta)
    limit = _find_mixture(setting, constants, delta)
    if limit is None:
        return bound
    # Both are valid: the mixture's epsilon, and that of its bound on mu over all orders.
    epsilon = min(limit.epsilon, epsilon_from_mu(limit.mu, delta))
    return bound._replace(mu=limit.mu, epsilon=epsilon)


def _find_mixture(
    setting: Setting, constants: ArrayLike, delta: float
) -> samplers.MixtureLimit | None:
    """Returns bounds on mu and epsilon of the last model if a sampler hides which steps insert the canary.

    It is the mixture over orders of `audit.claims.samplers`, for constants that are a number or (T,). It is
    None if the adversary knows the steps, without noise, or with k > 1, since the mixture needs a canary that
    any step may insert.
    """
    schedule = setting.schedule
    sigma = setting.mechanism.noise_multiplier
    if not setting.sampling.is_hidden or schedule.periodicity > 1 or sigma == 0:
        return None
    each_step = spread_over_steps("lipschitz", constants, schedule.steps)
    return _mix_orders(setting.sampling, sigma, tuple(each_step.tolist()), delta)


def _find_shifts(setting: Setting) -> NDArray[np.float64]:
    """Returns the canary's shift (T,) at each of T steps in units of eta C / B: 1 if inserted, otherwise 0.

    If a sampler draws a single step of each epoch, the epoch's last step represents it (`_find_mixture`).
    With Poisson sampling the canary is inserted at every step that may take it.
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
    """Returns the bound on the last model by the mixture over orders of batches; simulation takes seconds."""
    batches = sampler.batches or 1  # Poisson sampling has no epochs: each step counts as an epoch
    schedule = samplers.make_schedule(
        noise_multiplier, batches, len(constants) // batches, constants
    )
    if sampler.batches:
        return samplers.bound_one_of_each_epoch(
            schedule, delta, most_enumerated=_MOST_STRATA, simulated=_SIMULATED
        )
    return samplers.bound_poisson(schedule, delta, simulated=_SIMULATED, rate=sampler.rate)


def coupling_distances(setting: Setting) -> NDArray[np.float64]:
    """Returns the distance (T,) of the two worlds' coupled models before each step, in units of eta C / B.

    Steps are assumed to have the Lipschitz constant 1. The distance before step t is then z_(t-1) of the
    hidden-state bound.
    """
    shifts = _find_shifts(setting)
    paid = _bound_for(setting, 1.0, delta=1e-5).paid  # does not depend on delta
    after = np.cumsum(shifts - paid)
    before = np.append(0.0, after[:-1])
    return np.where(before > _ROUNDING, before, 0.0)


def _find_constant(
    setting: Setting, negative: float, positive: float, may_clip: bool = False
) -> float:
    """Returns the Lipschitz constant, on any data, of the steps of a model with bounded curvature.

    A step is theta - eta (g + lambda theta), with the mean g of clipped gradients. The eigenvalues of an
    example's Hessian are between -`negative` and `positive`.

    Without clipping, a step multiplies a direction of curvature h by 1 - eta (lambda + h), which is farthest
    from 0 at an extreme curvature.

    With clipping, the derivative of g may be asymmetric, but its norm is at most max(negative, positive),
    since clipping is a projection. By the triangle inequality the constant is |1 - eta lambda| + eta
    max(negative, positive). Losses that are convex in w'x remain so with clipping.
    """
    rate = setting.mechanism.learning_rate
    decay = setting.mechanism.weight_decay
    if may_clip:
        return abs(1 - rate * decay) + rate * max(negative, positive)
    return max(abs(1 - rate * (decay - negative)), abs(1 - rate * (decay + positive)))


def _why_uncovered(setting: Setting, own_model: bool) -> str:
    """Returns why the hidden-state bound is not valid for a setting with any model; empty if it may be.

    Each step must be a map of only the previous model, the same in both worlds and computed precisely. The
    adversary must see only the last model.
    """
    mechanism = setting.mechanism
    adversary = setting.adversary
    if mechanism.optimizer != "sgd":
        why = f"a step of {mechanism.optimizer} depends on more than the last model"
        return f"{why}, and {MOMENTUM_LEAKS}"
    if mechanism.noise != INDEPENDENT:
        return "its noise is correlated across steps"
    if adversary.sees_every_model:
        return "this adversary sees every model"
    if setting.sampling.times:  # each canary has so many steps, drawn beforehand
        return "each canary comes at random steps"
    if setting.canaries > 1 and adversary.name in _READS_THETA:
        return OTHER_CANARIES
    # The caller is responsible for the constants of custom models.
    if mechanism.precision != "float32" and not own_model:
        return f"products are rounded to {mechanism.precision}"
    return ""


USUAL = 0  # the usual number of rehearsals for the model's size
FEWEST = 2  # rehearsals, one in each world


def count_rehearsals(
    setting: Setting, requested: str | None = None, rehearsals: int | None = None
) -> int | None:
    """Returns the number of runs for measuring a zoo model's steps, or `USUAL`; None to measure none.

    Models with proven constants are not measured. Unless `requested`, "measured" or "none", other models are
    measured if they are smooth, k > 1, and the last model can have a bound.

    Raises:
      InputError: for other words, too few runs, and a request to measure if the last model cannot have a
        bound.
    """
    # The type comes first: `in` is ambiguous for an array.
    is_word = requested is None or isinstance(requested, str)
    require(
        is_word and requested in (None, MEASURED, UNMEASURED),
        f"`lipschitz` must be {MEASURED} or {UNMEASURED}, got {requested!r}",
    )
    if rehearsals is not None:
        require_rehearsals(requested, rehearsals)
    why_not = _why_uncovered(setting, own_model=False)
    is_wanted = requested == MEASURED
    require(
        not is_wanted or not why_not,
        f"`lipschitz={MEASURED}` bounds what the last model leaks, and {why_not}: drop it",
    )
    row = task.task(setting.model)
    # A model with kinks does not get a bound, and with k = 1 the bound is that of composition unless some
    # steps contract.
    if requested is None:
        is_wanted = row.smooth and setting.schedule.periodicity > 1 and not why_not
    is_proven = row.convex is not None or row.curved is not None
    if is_proven or not is_wanted:
        return None
    return rehearsals or USUAL


def require_rehearsals(requested: object, rehearsals: int) -> None:
    """Raises InputError for a number of rehearsals below 2 or without `lipschitz=measured`."""
    is_measured = isinstance(requested, str) and requested == MEASURED
    require(is_measured, f"`rehearsals` requires `lipschitz={MEASURED}`")
    number("rehearsals", rehearsals, int)
    require(
        rehearsals >= FEWEST,
        f"`rehearsals={rehearsals}`: give at least {FEWEST}, one of them in each world",
    )
