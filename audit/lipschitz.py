"""How Lipschitz an audit's steps are: what the accountant of hidden states has to know of a training.

A step without the canary and noise is theta -> theta - eta (mean of clipped gradients + lambda theta). Of a
loss l(w'x, y), convex in w'x with l'' at most b, clipping a gradient clips l' alone, and leaves the gradient
of a convex loss, a Huberised one, that is b |x|^2-smooth. So the mean of a batch is beta-smooth, with beta
the largest eigenvalue of b / B times the sum of x x', and the step is max(|1 - eta lambda|, |1 - eta (lambda
+ beta)|)-Lipschitz (Bok, Su and Altschuler 2024, arXiv 2403.00278). Where the rows of any data set are at
most X long, beta is at most b X^2.
"""

import json
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit import zoo
from audit.errors import InputError
from audit.settings.adversaries import OneShotCanaries
from audit.settings.setting import Setting
from audit.statistics.hidden_state import HiddenState, HiddenStateBound, Periods, hidden_state_bound
from audit.storage import files
from audit.storage.store import Store
from audit.task import Convex, Dataset

_KEPT = "lipschitz.json"
_READS_THETA = ("loss", "poisoned", "clip_bkd")


class Steps(NamedTuple):
    """The Lipschitz constants of an audit's steps, a number or (T,), and why they hold."""

    constants: ArrayLike
    reason: str


def hidden_state(
    setting: Setting, delta: float, given: Steps | None = None, own_model: bool = False
) -> HiddenState | str:
    """The upper bound on the last model of a setting, infinite without noise; or why none is known but
    composition. given: the steps of a caller's own model, or those of a model of the zoo on its data, where
    they are known. Raises InputError for constants out of range."""
    if reason := _why_uncovered(setting, own_model):
        return reason
    row = None if own_model else zoo.tasks().get(setting.model)
    if row is None:
        return (
            "nobody vouches for how Lipschitz its steps are"
            if given is None
            else _bound(setting, given, delta)
        )
    if row.convex is None:
        return row.not_convex
    whatever = f"any data with |x| <= {row.convex.norm:g}"
    found = _bound(setting, Steps(_of_any(setting, row.convex), f"convex loss, {whatever}"), delta)
    if given is not None:
        said = f"{given.reason}; {whatever}: epsilon {found.bound.epsilon:.4g}"
        found = _bound(setting, given._replace(reason=said), delta)
    return found._replace(constant=constant_direction(setting)) if np.isfinite(found.bound.mu) else found


def constant_direction(setting: Setting) -> float:
    """mu of who inserts along one direction that the data never vary in: what is inserted at step t, and its
    noise, shrink by w_t = (1 - eta lambda)^(T - t), so mu = sum of w_t over insertions / (sigma |w|). Where
    the canary comes first in its period this is the hidden-state bound itself."""
    schedule, decay = setting.schedule, setting.mechanism.learning_rate * setting.mechanism.weight_decay
    after = np.arange(schedule.steps - 1, -1, -1.0)  # steps after each
    exponents = after if decay <= 2 else after - schedule.steps  # so that none is above 1
    weights = (1 - decay) ** exponents
    inserted = weights[schedule.place - 1 :: schedule.periodicity]
    return float(abs(inserted.sum()) / np.linalg.norm(weights)) / setting.mechanism.noise_multiplier


def of_data(store: Store, setting: Setting, dataset: Dataset) -> Steps | None:
    """The steps of a model of the zoo on its data, kept in the store, where they can be less Lipschitz than
    on any data."""
    row = zoo.tasks().get(setting.model)
    if row is None or row.convex is None or _of_any(setting, row.convex) <= _constant(setting, 0.0):
        return None
    found = kept(store)
    if found is None:
        from audit.settings.build import batches_of  # loads JAX

        batches = np.asarray(batches_of(setting, len(dataset.labels)))
        found = _of_batches(setting, row.convex, dataset.features, batches)
        keep(store, found)
    return found


def keep(store: Store, steps: Steps | None) -> None:
    """Keeps the constants of a setting's steps, or that none are known, beside its scores."""
    if steps is None:
        (store.path / _KEPT).unlink(missing_ok=True)
        return
    content = {"constants": np.asarray(steps.constants).tolist(), "reason": steps.reason}
    store.write_text(_KEPT, json.dumps(content) + "\n")


def kept(store: Store) -> Steps | None:
    """The constants that a store keeps; None where there are none. Raises InputError where it is damaged."""
    content = files.read(store.path / _KEPT)
    try:
        return None if content is None else Steps(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{store.path / _KEPT} is damaged: move it away") from None


def _bound(setting: Setting, steps: Steps, delta: float) -> HiddenState:
    schedule, sigma = setting.schedule, setting.mechanism.noise_multiplier
    shifts = np.zeros(schedule.steps)
    shifts[schedule.place - 1 :: schedule.periodicity] = 1
    if sigma > 0:
        bound = hidden_state_bound(shifts, steps.constants, sigma, delta)
    else:
        slopes = np.broadcast_to(np.asarray(steps.constants, np.float64), shifts.shape)
        bound = HiddenStateBound(np.inf, np.inf, shifts, slopes)
    return HiddenState(bound, Periods(steps.constants, schedule.periodicity, schedule.place), steps.reason)


def _why_uncovered(setting: Setting, own_model: bool) -> str:
    """Why the last model has no bound but composition, whatever is trained; else empty."""
    mechanism, adversary = setting.mechanism, setting.adversary
    if mechanism.optimizer != "sgd":
        return f"a step of {mechanism.optimizer} depends on more than the last model"
    if isinstance(adversary, OneShotCanaries) and adversary.observe == "all":
        return "this adversary sees every model"
    if setting.repetitions:
        return "each canary comes at random steps"
    if setting.canaries > 1 and adversary.name in _READS_THETA:
        return "the gradients of the other canaries depend on the model"
    if mechanism.precision != "float32" and not own_model:
        return f"products are rounded to {mechanism.precision}"
    return ""


def _of_batches(
    setting: Setting, convex: Convex, features: NDArray[np.float32], batches: NDArray[np.int32]
) -> Steps:
    """The constants (T,) on features (N, p) in batches (T, B) of indices, by a batch's largest eigenvalue
    where its trace does not decide already."""
    least, lengths = _constant(setting, 0.0), (features.astype(np.float64) ** 2).sum(axis=1)
    constants = np.full(len(batches), least)
    for t in np.flatnonzero(_constant(setting, convex.curvature * lengths[batches].mean(axis=1)) > least):
        rows = features[batches[t]].astype(np.float64)
        gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
        constants[t] = _constant(setting, convex.curvature * np.linalg.eigvalsh(gram)[-1] / len(rows))
    return Steps(constants if np.ptp(constants) else float(least), "convex loss, this data set's batches")


def _of_any(setting: Setting, convex: Convex) -> float:
    return float(_constant(setting, convex.curvature * convex.norm**2))


def _constant(setting: Setting, smoothness: ArrayLike) -> NDArray[np.float64]:
    """max(|1 - eta lambda|, |1 - eta (lambda + beta)|)."""
    rate, decay = setting.mechanism.learning_rate, setting.mechanism.weight_decay
    shrunk = 1 - rate * (decay + np.asarray(smoothness, np.float64))
    found: NDArray[np.float64] = np.maximum(abs(1 - rate * decay), np.abs(shrunk))
    return found
