"""How Lipschitz an audit's steps are: what the accountant of hidden states needs of a training run.

A step without the canary and noise is theta -> theta - eta (mean of clipped gradients + lambda theta). Of a
loss l(w'x, y), convex in w'x with l'' at most b, clipping a gradient clips l' alone, and leaves the gradient
of the Huberised loss, which is convex too and b |x|^2-smooth. So the mean of a batch is beta-smooth, with
beta the largest eigenvalue of b / B times the sum of x x', and the step is max(|1 - eta lambda|, |1 - eta
(lambda + beta)|)-Lipschitz (Bok, Su and Altschuler 2024, arXiv 2403.00278). Where the rows of any data set
are at most X long, beta is at most b X^2.
"""

import functools
import json
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.adversaries.cosines import OneShotCanaries
from audit.claims import samplers
from audit.claims.hidden_state import (
    HiddenState,
    HiddenStateBound,
    Periods,
    hidden_state_bound,
    make_hidden_state,
)
from audit.errors import InputError
from audit.laws.conversions import epsilon_from_mu
from audit.settings.sampler import Sampling
from audit.settings.setting import Setting
from audit.storage import files
from audit.storage.store import Store
from audit.tasks import zoo
from audit.tasks.task import Convex, Curved, Dataset
from audit.version import __version__

# How steps are measured. Raise the number where equal steps give other constants: stores measure again then.
MEASUREMENT = f"{__version__}, measurement 2"
_FILE = "lipschitz.json"
_SIMULATED = 100_000  # orders of batches
_MOST_STRATA = 1000  # of them
_ROUNDING = 1e-6  # of distances, in units of what an insertion shifts
# Adversaries whose canaries are examples, whose gradients depend on the model.
_READS_THETA = ("loss", "poisoned", "clip_bkd", "examples")


class Steps(NamedTuple):
    """The Lipschitz constants of an audit's steps, a number or (T,), and why they hold.

    Attributes:
      constants: a number or (T,).
      reason: why they hold.
      runs: how many training runs they were measured along; 0 where they are proven or vouched for.
      kink: why derivatives do not say how far steps separate models; empty where they do.
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
    """Returns the upper bound on the last model of a setting, infinite without noise.

    Where there is no bound but that of composition, returns the reason instead.

    Args:
      setting: of the audit.
      delta: of (epsilon, delta).
      given: the steps of a caller's own model, or those of a model of the zoo on its data, where there are
        any.
      own_model: whether the model is a caller's own.

    Raises:
      InputError: constants are out of range.
    """
    if reason := _why_uncovered(setting, own_model):
        return reason
    row = None if own_model else zoo.tasks().get(setting.model)
    if row is None:
        if given is None:
            return "nobody vouches for how Lipschitz its steps are"
        return _bound_measured(setting, given, delta)
    if row.curved is not None:
        constants = _compute_constant_of_curved(setting, row.curved)
        return _bound(setting, Steps(constants, row.curved.reason), delta)
    if row.convex is None:
        if given is None:
            return row.not_convex
        return _bound_measured(setting, given, delta)

    any_data = f"any data with |x| <= {row.convex.norm:g}"
    steps_of_any = Steps(_constant_of_any_data(setting, row.convex), f"convex loss, {any_data}")
    state = _bound(setting, steps_of_any, delta)
    if given is not None:
        reason = f"{given.reason}; {any_data}: epsilon {state.bound.epsilon:.4g}"
        state = _bound(setting, given._replace(reason=reason), delta)
    if not np.isfinite(state.bound.mu) or setting.sampling.is_hidden:
        return state
    return state._replace(constant=compute_mu_along_one_direction(setting))


def compute_mu_along_one_direction(setting: Setting) -> float:
    """Returns mu of an adversary that inserts along one direction in which the data never vary.

    What is inserted at step t, and its noise, shrink by w_t = (1 - eta lambda)^(T - t), so mu = sum of w_t
    over insertions / (sigma |w|). Where the canary comes first in its period this is the hidden-state bound
    itself.
    """
    schedule = setting.schedule
    mechanism = setting.mechanism
    decay = mechanism.learning_rate * mechanism.weight_decay
    steps_after = np.arange(schedule.steps - 1, -1, -1.0)
    # Weights count up to a common factor: take a factor that leaves no weight above 1 in size.
    exponents = steps_after if decay <= 2 else steps_after - schedule.steps
    weights = (1 - decay) ** exponents
    inserted = weights[schedule.place - 1 :: schedule.periodicity]
    mu_at_sigma_1 = float(abs(inserted.sum()) / np.linalg.norm(weights))
    return mu_at_sigma_1 / mechanism.noise_multiplier


def of_data(store: Store, setting: Setting, dataset: Dataset) -> Steps | None:
    """Returns the steps of a model of the zoo on its data, and keeps them in the store.

    None where they cannot be less Lipschitz than on any data.
    """
    row = zoo.tasks().get(setting.model)
    if row is None or row.curved is not None:
        return None
    if row.convex is None:
        return find_current(store)
    # With smoothness 0, of a flat loss, the constant is the least that any data give.
    if _constant_of_any_data(setting, row.convex) <= _constant(setting, 0.0):
        return None
    steps = kept(store)
    if steps is None:
        from audit.settings.build import batches_of  # loads JAX

        batches = np.asarray(batches_of(setting, len(dataset.labels)))
        steps = _steps_of_batches(setting, row.convex, dataset.features, batches)
        keep(store, steps)
    return steps


def keep(store: Store, steps: Steps | None) -> None:
    """Stores the constants of a setting's steps, or that there are none, beside its scores."""
    if steps is None:
        (store.path / _FILE).unlink(missing_ok=True)
        return
    content = {"constants": np.asarray(steps.constants).tolist(), "reason": steps.reason}
    if steps.runs:
        content |= {"runs": steps.runs, "kink": steps.kink, "version": steps.version}
    store.write_text(_FILE, json.dumps(content) + "\n")


def kept(store: Store) -> Steps | None:
    """Returns the constants in a store; None where there are none.

    Raises InputError where they are damaged.
    """
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        return Steps(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{store.path / _FILE} is damaged: move it away") from None


def find_current(store: Store) -> Steps | None:
    """Returns the constants in a store, as `kept`; None where another version measured them."""
    steps = kept(store)
    if steps is not None and steps.runs and steps.version != MEASUREMENT:
        return None
    return steps


def _bound(setting: Setting, steps: Steps, delta: float) -> HiddenState:
    """Returns the hidden-state bound for steps with these constants.

    Where the adversary does not know which steps take a canary, epsilon is that of the mixture over orders.
    """
    schedule = setting.schedule

    def compute(constants: ArrayLike) -> HiddenStateBound:
        return _bound_for(setting, constants, delta)

    periods = Periods(steps.constants, schedule.periodicity, schedule.place)
    mixture = _find_mixture(setting, steps.constants, delta)
    reason = steps.reason + _describe_mixture(mixture)
    return make_hidden_state(compute, periods, reason, steps.runs)


def _bound_for(setting: Setting, constants: ArrayLike, delta: float) -> HiddenStateBound:
    """Returns the hidden-state bound for constants, a number or (T,); infinite without noise."""
    sigma = setting.mechanism.noise_multiplier
    shifts = _find_shifts(setting)
    if sigma == 0:
        slopes = np.broadcast_to(np.asarray(constants, np.float64), shifts.shape)
        return HiddenStateBound(np.inf, np.inf, shifts, slopes)
    bound = hidden_state_bound(shifts, constants, sigma, delta)
    limit = _find_mixture(setting, constants, delta)
    if limit is None:
        return bound
    epsilon = min(limit.epsilon, epsilon_from_mu(limit.mu, delta))
    return bound._replace(mu=limit.mu, epsilon=epsilon)


def _find_mixture(
    setting: Setting, constants: ArrayLike, delta: float
) -> samplers.MixtureLimit | None:
    """Returns the bound of the mixture over orders; None where the adversary knows the canary's steps."""
    schedule = setting.schedule
    sigma = setting.mechanism.noise_multiplier
    if not setting.sampling.is_hidden or schedule.periodicity > 1 or sigma == 0:
        return None
    each_step = np.broadcast_to(np.asarray(constants, np.float64), schedule.steps)
    return _mix_orders(setting.sampling, sigma, tuple(each_step.tolist()), delta)


def _describe_mixture(limit: samplers.MixtureLimit | None) -> str:
    """Returns the words for a bound by a mixture over orders, after a semicolon; empty without a mixture."""
    if limit is None:
        return ""
    words = "; a mixture over orders of batches"
    if limit.error:
        words += f", simulated from above, too low with probability {limit.error:g}"
    return words


def _find_shifts(setting: Setting) -> NDArray[np.float64]:
    """Returns (T,) 1 at steps that take a canary, and 0 at others.

    With a sampler that draws a step of each epoch, it is the last step.
    """
    schedule = setting.schedule
    shifts = np.zeros(schedule.steps)
    batches = setting.sampling.batches
    if batches:
        shifts[batches - 1 :: batches] = 1
    else:
        shifts[schedule.place - 1 :: schedule.periodicity] = 1
    return shifts


@functools.lru_cache(maxsize=64)
def _mix_orders(
    sampler: Sampling, noise_multiplier: float, constants: tuple[float, ...], delta: float
) -> samplers.MixtureLimit:
    """Returns the bound on the last model that the mixture over orders gives; simulating takes seconds."""
    batches = sampler.batches or 1
    schedule = samplers.make_schedule(
        noise_multiplier, batches, len(constants) // batches, constants
    )
    if sampler.batches:
        return samplers.bound_one_of_each_epoch(
            schedule, delta, most_enumerated=_MOST_STRATA, simulated=_SIMULATED
        )
    return samplers.bound_poisson(schedule, delta, simulated=_SIMULATED, rate=sampler.rate)


def _bound_measured(setting: Setting, steps: Steps, delta: float) -> HiddenState | str:
    """Returns the bound for constants that may be measured.

    Where displacements are stretched more than derivatives say, returns that instead, with an estimate.
    """
    state = _bound(setting, steps, delta)
    if steps.kink:
        return f"{steps.kink}; by derivatives alone epsilon {state.bound.epsilon:.4g}, an estimate"
    return state


def coupling_distances(setting: Setting, constants: ArrayLike) -> NDArray[np.float64]:
    """Returns (T,) the distance of the coupled processes before each step, in units of eta C / B.

    It is what the bound's payments leave: z_(t-1), from z_t = c_t z_(t-1) + s_t - a_t.
    """
    shifts = _find_shifts(setting)
    paid = _bound_for(setting, constants, delta=1e-5).paid  # which no delta changes
    schedule = setting.schedule
    c = np.broadcast_to(np.asarray(constants, np.float64), schedule.steps)
    before = np.zeros(schedule.steps)
    for t in range(schedule.steps - 1):
        distance = c[t] * before[t] + shifts[t] - paid[t]
        # What rounding leaves of 0 would grow with every step that stretches it.
        before[t + 1] = distance if distance > _ROUNDING else 0.0
    return before


def _compute_constant_of_curved(setting: Setting, curved: Curved) -> float:
    """Returns the Lipschitz constant of steps theta - eta (g + lambda theta) on any data.

    The eigenvalues of the loss's Hessian lie between -m and L. Where clipping never acts, the Hessian is the
    derivative of g, so that the eigenvalues of the step's Jacobian lie between 1 - eta (lambda + L) and
    1 - eta (lambda - m). Where it may act, that derivative need not be symmetric. Its norm is at most
    max(m, L) still, since clipping is a projection, which moves no two gradients apart.
    """
    mechanism = setting.mechanism
    rate = mechanism.learning_rate
    decay = mechanism.weight_decay
    if mechanism.clipping_norm < curved.largest_gradient:
        return abs(1 - rate * decay) + rate * max(curved.largest_negative, curved.largest_positive)
    return max(
        abs(1 - rate * (decay - curved.largest_negative)),
        abs(1 - rate * (decay + curved.largest_positive)),
    )


def _why_uncovered(setting: Setting, own_model: bool) -> str:
    """Returns why the last model has no bound but composition, whatever is trained; else an empty string."""
    mechanism = setting.mechanism
    adversary = setting.adversary
    if mechanism.optimizer != "sgd":
        return f"a step of {mechanism.optimizer} depends on more than the last model"
    if isinstance(adversary, OneShotCanaries) and adversary.observe == "all":
        return "this adversary sees every model"
    if setting.sampling.times:
        return "each canary comes at random steps"
    if setting.canaries > 1 and adversary.name in _READS_THETA:
        return "the gradients of the other canaries depend on the model"
    if mechanism.precision != "float32" and not own_model:
        return f"products are rounded to {mechanism.precision}"
    return ""


def _steps_of_batches(
    setting: Setting,
    convex: Convex,
    features: NDArray[np.float32],
    batches: NDArray[np.int32],
) -> Steps:
    """Returns the steps on some features.

    A batch's largest eigenvalue is computed only where its trace does not decide already.

    Args:
      setting: of the audit.
      convex: the model's loss.
      features: (N, p).
      batches: indices (T, B).
    """
    least = _constant(setting, 0.0)
    constants = np.full(len(batches), least)
    squared_lengths = (features.astype(np.float64) ** 2).sum(axis=1)
    traces = squared_lengths[batches].mean(axis=1)
    undecided = _constant(setting, convex.curvature * traces) > least
    for t in np.flatnonzero(undecided):
        rows = features[batches[t]].astype(np.float64)
        gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
        largest = np.linalg.eigvalsh(gram)[-1]
        constants[t] = _constant(setting, convex.curvature * largest / len(rows))
    differ = np.ptp(constants) != 0
    reason = "convex loss, this data set's batches"
    return Steps(constants if differ else float(least), reason)


def _constant_of_any_data(setting: Setting, convex: Convex) -> float:
    """Returns the Lipschitz constant of steps on any data whose rows the loader bounds."""
    return float(_constant(setting, convex.curvature * convex.norm**2))


def _constant(setting: Setting, smoothness: ArrayLike) -> NDArray[np.float64]:
    """Returns the Lipschitz constant of one gradient step: max(|1 - eta lambda|, |1 - eta (lambda + beta)|).

    Args:
      setting: with the learning rate eta and the weight decay lambda.
      smoothness: beta, of the mean loss; of any shape, which the result has too.
    """
    rate = setting.mechanism.learning_rate
    decay = setting.mechanism.weight_decay
    steepest = 1 - rate * (decay + np.asarray(smoothness, np.float64))
    constant: NDArray[np.float64] = np.maximum(abs(1 - rate * decay), np.abs(steepest))
    return constant
