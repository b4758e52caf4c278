"""The Lipschitz constants of training steps and the upper bound on how much the last model leaks.

audit/methods/README.md ("Hidden states") derives the constants for convex losses and for smooth losses.
"""

import functools
import json
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

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
from audit.evidence.arrays import Array
from audit.laws.conversions import epsilon_from_mu
from audit.settings.setting import Sampling, Setting
from audit.storage import files
from audit.storage.store import Store
from audit.tasks import task
from audit.version import __version__

# Raise this number if a code change affects measured constants. Audits then measure them again.
MEASUREMENT = f"{__version__}, measurement 3"
_FILE = "lipschitz.json"
_NUM_SIMULATED = 100_000  # patterns of participation
_ROUNDING = 1e-6  # smaller distances, in units of an insertion's shift, count as 0
# Reasons for a missing bound.
MOMENTUM_LEAKS = (
    "with momentum 0.9, a convex loss can leak epsilon = 18.6 where SGD leaks at most 8.7 (k = 5)"
)
OTHER_CANARIES = "the gradients of the other canaries depend on the model"


class Steps(NamedTuple):
    """The Lipschitz constants of an audit's T training steps, and why they are valid.

    Attributes:
      constants: (T,), or a single number for all steps.
      reason: why the constants are valid.
      runs: the number of training runs that measured the constants; 0 if they are proven or given.
      kink: why measured derivatives are not Lipschitz constants (jumps in the gradient); else empty.
      version: the value of `MEASUREMENT` when they were measured; else empty.
    """

    constants: ArrayLike
    reason: str
    runs: int = 0
    kink: str = ""
    version: str = ""


def hidden_state(
    setting: Setting, delta: float, given: Steps | None = None, own_model: bool = False
) -> HiddenState | str:
    """Returns the upper bound on how much the last model leaks, or the reason why it is missing.

    Args:
      given: the constants of a custom model or the measured constants of a catalogue model; None if they are
        unknown. Ignored for a model with proven constants.
      own_model: True if the model is custom.

    Raises:
      InputError: if the constants are out of range.
    """
    why_not = _why_uncovered(setting, own_model)
    if why_not:
        return why_not
    row = None  # the model's row in the catalogue
    if not own_model:
        row = task.find_task(setting.model)
    steps = given
    if row is not None and row.curvature is not None:  # constants are proven
        steps = Steps(_find_constant(setting, row.curvature), row.curvature.reason)
    if steps is None:
        if row is None:
            return "the Lipschitz constants of its steps are unknown"
        return row.why_unbounded  # why its constants are not proven
    state = _bound_last_model(setting, steps, delta)
    if not steps.kink:
        return state
    # If the gradient jumps, derivatives are not Lipschitz constants.
    return (
        f"{steps.kink}; derivatives alone would give epsilon {state.bound.epsilon:.4g}, an estimate"
    )


def compute_mu_along_one_direction(setting: Setting) -> float:
    """Returns the mu of an adversary whose canary has a fixed direction, orthogonal to all other gradients.

    With T steps, learning rate eta and weight decay lambda, the steps after step t multiply its insertion and
    noise by w_t = (1 - eta lambda)^(T - t). So mu = (sum of w_t over steps with an insertion) / (sigma |w|).
    """
    schedule = setting.schedule
    mechanism = setting.mechanism
    decay = mechanism.learning_rate * mechanism.weight_decay
    exponents = np.arange(schedule.steps - 1, -1, -1.0)  # T - t for each step t
    # If |1 - decay| is above 1, negative exponents avoid overflow. Their common factor cancels.
    if decay > 2:
        exponents -= schedule.steps
    weights = (1 - decay) ** exponents
    inserted = weights[schedule.place - 1 :: schedule.periodicity]
    mu_at_sigma_1 = float(abs(inserted.sum()) / np.linalg.norm(weights))
    return mu_at_sigma_1 / mechanism.noise_multiplier


def keep(store: Store, steps: Steps | None) -> Steps | None:
    """Writes constants to the store's lipschitz.json and returns them; None deletes the file."""
    if steps is None:
        (store.path / _FILE).unlink(missing_ok=True)
        return None
    plain = steps._replace(constants=np.asarray(steps.constants).tolist())
    store.write_text(_FILE, json.dumps(plain._asdict()) + "\n")
    return steps


def find_current(store: Store) -> Steps | None:
    """Returns the store's Lipschitz constants; None if missing or measured by a different version.

    Proven or given constants (`runs` is 0) never expire. Raises InputError for a damaged file.
    """
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        steps = Steps(**json.loads(content))  # the file's keys are the fields of `Steps`
    # ValueError: not JSON. TypeError: not an object, or wrong keys. RecursionError: nested too deeply.
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{store.path / _FILE} is damaged: move it away") from None
    if steps.runs and steps.version != MEASUREMENT:
        return None
    return steps


def find_measured(store: Store, rehearsals: int) -> Steps | None:
    """Returns the store's constants if this version measured them in at least `rehearsals` runs; else None.

    With `USUAL` (0), any number of runs is enough.
    """
    steps = find_current(store)
    if steps is None or steps.runs < max(rehearsals, 1):
        return None
    return steps


def _bound_last_model(setting: Setting, steps: Steps, delta: float) -> HiddenState:
    """Returns the upper bound for the last model, and bounds for larger constants (`make_hidden_state`)."""
    schedule = setting.schedule
    reason = steps.reason
    # Needed only for `reason`: the bound below finds the same mixture over insertion steps.
    mixture = _find_mixture(setting, steps.constants, delta)
    if mixture is not None:
        reason += "; a mixture over orders of batches"
        if mixture.error:
            reason += f", a simulated upper bound, too low with probability {mixture.error:g}"
    state = make_hidden_state(
        lambda periods: _bound_for_constants(setting, periods.lipschitz, delta),
        Periods(steps.constants, k=schedule.periodicity, insert=schedule.place),
    )
    return state._replace(reason=reason, runs=steps.runs)


def _bound_for_constants(setting: Setting, constants: ArrayLike, delta: float) -> HiddenStateBound:
    """Returns the hidden-state bound for Lipschitz constants, a number or (T,); infinite if noise is 0.

    If a sampler hides which steps insert the canary, the last model is a mixture over all patterns of
    participation. The mixture determines mu and epsilon. The other fields are for the pattern
    that `_find_shifts` assumes.
    """
    sigma = setting.mechanism.noise_multiplier
    bound = hidden_state_bound(_find_shifts(setting), constants, sigma, delta)
    mixture = _find_mixture(setting, constants, delta)
    if mixture is None:
        return bound
    epsilon = min(mixture.epsilon, epsilon_from_mu(mixture.mu, delta))  # both are upper bounds
    return bound._replace(mu=mixture.mu, epsilon=epsilon)


def _find_mixture(
    setting: Setting, constants: ArrayLike, delta: float
) -> samplers.MixtureBound | None:
    """Returns the bound on the last model if a sampler hides which steps insert the canary; else None.

    It averages over patterns of insertion steps, and requires noise and a schedule in which any step may
    insert the canary (`periodicity` is 1). `constants` are the Lipschitz constants, a number or (T,).
    """
    schedule = setting.schedule
    sigma = setting.mechanism.noise_multiplier
    if not setting.sampling.is_hidden or schedule.periodicity > 1 or sigma == 0:
        return None
    each_step = spread_over_steps("lipschitz", constants, schedule.steps)
    return _mix_patterns(setting.sampling, sigma, tuple(each_step.tolist()), delta)


def _find_shifts(setting: Setting) -> Array:
    """Returns the shift that the canary causes at each step, (T,): 1 if inserted there, else 0.

    The unit is eta C / B, for learning rate eta, clipping norm C and batch size B. If a sampler draws one
    step per epoch, we assume the last one, which is followed by the least noise. For Poisson sampling
    (`batches` is 0), we assume insertions at all possible steps.
    """
    schedule = setting.schedule
    batches = setting.sampling.batches
    # For a sampler, a period is an epoch. `place` counts from 1.
    period = batches or schedule.periodicity
    place = batches or schedule.place
    shifts = np.zeros(schedule.steps)
    shifts[place - 1 :: period] = 1
    return shifts


@functools.lru_cache(maxsize=64)
def _mix_patterns(
    sampler: Sampling, noise_multiplier: float, constants: tuple[float, ...], delta: float
) -> samplers.MixtureBound:
    """Returns the bound on the last model's leakage if a sampler secretly chooses the canary's steps.

    `constants` are the steps' Lipschitz constants. We simulate the sampler if it is Poisson, or if there are
    more than 1000 patterns of steps. Simulations take seconds, so we cache results.
    """
    batches = sampler.batches or 1  # 0 for Poisson sampling, which has no epochs
    epochs = len(constants) // batches
    schedule = samplers.make_schedule(noise_multiplier, batches, epochs, constants)
    if sampler.batches:
        return samplers.bound_one_of_each_epoch(
            schedule, delta, max_enumerated=1000, simulated=_NUM_SIMULATED
        )
    return samplers.bound_poisson(schedule, delta, simulated=_NUM_SIMULATED, rate=sampler.rate)


def coupling_distances(setting: Setting) -> Array:
    """Returns the distance between the models with and without the canary before each step, (T,).

    We measure Lipschitz constants at these distances, in units of eta C / B. Since the constants are still
    unknown, we assume 1. In step t, the canary adds s_t (`_find_shifts`) to the distance z, and noise masks
    a_t of it (`hidden_state_bound`): z_t = z_(t-1) + s_t - a_t.
    """
    bound = _bound_for_constants(setting, constants=1.0, delta=1e-5)  # any delta will do
    after = np.cumsum(_find_shifts(setting) - bound.masked)
    before = np.append(0.0, after[:-1])
    return np.where(before > _ROUNDING, before, 0.0)


def _find_constant(setting: Setting, curvature: task.Curvature) -> float:
    """Returns a Lipschitz constant of the steps, valid on any data, for a convex model.

    A step maps theta to theta - eta (g + lambda theta), where g is the mean of the clipped gradients, eta the
    learning rate and lambda the weight decay. The eigenvalues of an example's Hessian are between 0 and L
    (`Curvature`).

    Without clipping, a step multiplies a direction of curvature h by 1 - eta (lambda + h). With clipping, the
    derivative of g may be asymmetric, but its norm is at most L, since clipping is a projection. By the
    triangle inequality, the constant is |1 - eta lambda| + eta L.
    """
    rate = setting.mechanism.learning_rate
    decay = setting.mechanism.weight_decay
    without_curvature = abs(1 - rate * decay)
    if setting.mechanism.clipping_norm < curvature.largest_gradient:  # some gradients are clipped
        return without_curvature + rate * curvature.largest_eigenvalue
    # The largest factors are at the ends, h = 0 and h = L.
    return max(without_curvature, abs(1 - rate * (decay + curvature.largest_eigenvalue)))


def _why_uncovered(setting: Setting, own_model: bool) -> str:
    """Returns why there is no upper bound for a setting's last model; empty if there may be one.

    The bound requires float32 steps that depend only on the previous model, the canary and independent noise.
    """
    mechanism = setting.mechanism
    adversary = setting.adversary
    if mechanism.optimizer != "sgd":
        return f"a step of {mechanism.optimizer} depends on more than the last model, and {MOMENTUM_LEAKS}"
    if mechanism.noise != INDEPENDENT:
        return "its noise is correlated across steps"
    if adversary.sees_every_model:
        return "this adversary sees every model"
    if setting.sampling.times:  # each canary is inserted at this many random steps
        return "each canary is inserted at random steps"
    # Lipschitz constants do not include other canaries' gradients, which then depend on the model.
    if setting.canaries > 1 and adversary.reads_theta:
        return OTHER_CANARIES
    # The user is responsible for the constants of custom models.
    if mechanism.precision != "float32" and not own_model:
        return f"matrix products are rounded to {mechanism.precision}"
    return ""


USUAL = 0  # the usual number of rehearsals
_MIN_REHEARSALS = 2  # one with the canary and one without


def count_rehearsals(
    setting: Setting, requested: str | None = None, rehearsals: int | None = None
) -> int | None:
    """Returns the number of rehearsals for a catalogue model; None if constants are proven or not measured.

    A rehearsal is a training run that measures Lipschitz constants, to bound the last model's leakage. If the
    result is 0 (`USUAL`), the number depends on the model's size.

    Args:
      requested: "measured" to measure the constants, or "none". By default (None), we measure them if they
        are likely to give a tighter bound than composition.
      rehearsals: the number of rehearsals; None for `USUAL`.

    Raises:
      InputError: for any other word, too few rehearsals, or "measured" if the last model cannot have a bound.
    """
    # Comparing an array with strings would return an array.
    require(
        isinstance(requested, str | None) and requested in (None, MEASURED, UNMEASURED),
        f"`lipschitz` must be {MEASURED} or {UNMEASURED}, got {requested!r}",
    )
    require_rehearsals(requested == MEASURED, rehearsals)
    row = task.task(setting.model)
    are_proven = row.curvature is not None
    if not _wants_measurement(setting, requested, row.smooth) or are_proven:
        return None
    return rehearsals or USUAL


def _wants_measurement(setting: Setting, requested: str | None, is_smooth: bool) -> bool:
    """Returns whether to measure constants; raises InputError if "measured" is impossible."""
    why_not = _why_uncovered(setting, own_model=False)
    if requested == MEASURED:
        require(
            not why_not,
            f"`lipschitz={MEASURED}` is for a bound on the last model's leakage, but {why_not}: drop it",
        )
        return True
    # If every step inserts the canary (k = 1), the bound rarely improves on composition.
    is_useful = is_smooth and setting.schedule.periodicity > 1 and not why_not
    return requested is None and is_useful


def require_rehearsals(is_measured: bool, rehearsals: int | None) -> None:
    """Raises InputError if `rehearsals` (measurement runs) is below 2, or given without `is_measured`."""
    if rehearsals is None:
        return
    require(is_measured, f"`rehearsals` requires `lipschitz={MEASURED}`")
    require(
        number("rehearsals", rehearsals, int) >= _MIN_REHEARSALS,
        f"`rehearsals={rehearsals}`: give at least {_MIN_REHEARSALS}, one with the canary and one without",
    )
