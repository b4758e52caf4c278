"""Measures how much an audit's steps stretch distances, where nothing proves it, and keeps it in the store.

`audit.training.rehearsal` says along which runs, and `audit.claims.hidden_state` what follows.
"""

import math
import time

import jax
import numpy as np

from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import MEASURED, Steps
from audit.errors import InputError
from audit.mechanism.clipping.base import ClippedSum
from audit.runtime import progress
from audit.settings import build
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks import zoo
from audit.tasks.task import Dataset
from audit.training import rehearsal
from audit.training.game import Game

# By how much of its excess over 1, and by how much beside, a secant may exceed the derivative's stretch:
# rounding to float32, and third derivatives.
_RELATIVE = 0.1
_ABSOLUTE = 5e-4


def require_measurable(setting: Setting, own_model: bool = False) -> None:
    """Raises InputError for a setting whose last model has no bound, whatever is measured."""
    reason = lipschitz.hidden_state(setting, 1e-5, Steps(1.0, ""), own_model)
    if isinstance(reason, str):
        message = f"`lipschitz={MEASURED}` bounds what the last model leaks, and {reason}: drop it"
        raise InputError(message)


def measure_zoo(store: Store, setting: Setting, dataset: Dataset) -> None:
    """Measures the steps of a model of the zoo and keeps them, where nothing is proven of them."""
    row = zoo.task(setting.model)
    if row.convex is not None or row.curved is not None:
        return
    trained = build.trainee(setting.model, dataset)
    game = build.build(setting, dataset)
    clipped_sum = build.choices(setting, trained.model).clipped_sum
    measure(store, setting, game, clipped_sum, kinks=not row.smooth)


def measure(
    store: Store, setting: Setting, game: Game, clipped_sum: ClippedSum, kinks: bool = False
) -> Steps:
    """Returns the steps that the store has, or measures them along rehearsed runs and keeps them.

    Args:
      store: Of the setting.
      setting: Of the audit.
      game: The audit's.
      clipped_sum: Its clipping strategy.
      kinks: Whether the model is known to have kinks, whatever secants show.
    """
    steps = lipschitz.kept(store)
    if steps is None or not steps.runs:
        steps = _measure(setting, game, clipped_sum, kinks)
        lipschitz.keep(store, steps)
    return steps


def _measure(setting: Setting, game: Game, clipped_sum: ClippedSum, kinks: bool) -> Steps:
    """Measures the steps of a setting."""
    begun = time.monotonic()
    theta_0 = jax.eval_shape(game.init, jax.random.key(0))
    effort = rehearsal.usual_effort(theta_0.size)
    count = min(setting.schedule.steps, effort.steps)
    with (
        jax.default_matmul_precision("float32"),
        progress.bar(count, lambda: "measuring", unit="steps") as line,
    ):
        measured = rehearsal.rehearse(game, clipped_sum, effort, line)
        constants = measured.constants
        distances = lipschitz.coupling_distances(setting, constants)
        secants = rehearsal.search_secants(game, clipped_sum, measured, distances, effort.rounds)

    worst = max(secants, key=lambda found: found[1] - constants[found[0].step])
    kink = _describe_kink(worst[1], float(constants[worst[0].step]), kinks)
    seconds = math.ceil(time.monotonic() - begun)
    grid = f"{len(measured.measured)} of {setting.schedule.steps:,} steps"
    reason = f"measured at {grid}, mean {np.mean(constants):.6g}, in {seconds} s"
    return Steps(constants, reason, measured.runs, kink)


def _describe_kink(secant: float, derivative: float, kinks: bool) -> str:
    """Returns why derivatives do not say how far steps move models apart; empty where they do."""
    if secant - 1 > (1 + _RELATIVE) * (derivative - 1) + _ABSOLUTE:
        return (
            f"steps have kinks: a displacement is stretched {secant:.4g} times "
            f"where derivatives say {derivative:.4g}"
        )
    if kinks:
        return "steps have kinks where ReLU or max-pooling switches"
    return ""
