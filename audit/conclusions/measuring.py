"""Measures how much an audit's steps stretch distances, where nothing proves it, and keeps it in the store.

`audit.training.rehearsal` says along which runs, and `audit.claims.hidden_state` what follows.
"""

import math
import time

import jax
import numpy as np

from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import Steps
from audit.conclusions.rehearsals import USUAL, find_measured
from audit.mechanism.clipping.base import ClippedSum
from audit.runtime import progress
from audit.settings import build
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks import zoo
from audit.tasks.task import Dataset
from audit.training import rehearsal
from audit.training.game import Game
from audit.training.rehearsal import Effort, Secant


def measure_zoo(store: Store, setting: Setting, dataset: Dataset, runs: int = USUAL) -> None:
    """Measures the steps of a model of the zoo of which nothing is proven, and keeps them.

    Args:
      store: Of the setting.
      setting: Of the audit.
      dataset: The model's.
      runs: To rehearse.
    """
    model = build.trainee(setting.model, dataset).model
    game = build.build(setting, dataset)
    clipped_sum = build.choices(setting, model).clipped_sum
    kinks = not zoo.task(setting.model).smooth
    measure(store, setting, game, clipped_sum, runs, kinks)


def measure(
    store: Store,
    setting: Setting,
    game: Game,
    clipped_sum: ClippedSum,
    runs: int = USUAL,
    kinks: bool = False,
) -> Steps:
    """Returns the steps that the store has, or measures them along rehearsed runs and keeps them.

    They are measured again where they were along fewer runs, or by another version.

    Args:
      store: Of the setting.
      setting: Of the audit.
      game: The audit's.
      clipped_sum: Its clipping strategy.
      runs: To rehearse.
      kinks: Whether the model has kinks for certain, whatever secants show.
    """
    with store.turn("lipschitz"):
        steps = find_measured(store, runs)
        if steps is None:
            theta_0 = jax.eval_shape(game.init, jax.random.key(0))
            effort = rehearsal.usual_effort(theta_0.size)
            if runs != USUAL:
                effort = effort._replace(runs=runs)
            steps = measure_steps(setting, game, clipped_sum, effort, kinks)
            lipschitz.keep(store, steps)
    return steps


def measure_steps(
    setting: Setting, game: Game, clipped_sum: ClippedSum, effort: Effort, kinks: bool = False
) -> Steps:
    """Returns the steps of a setting, measured along rehearsed runs under a progress bar.

    Args:
      setting: Of the audit.
      game: The audit's.
      clipped_sum: Its clipping strategy.
      effort: How much to measure.
      kinks: Whether the model has kinks for certain, whatever secants show.
    """
    begun = time.monotonic()
    if kinks:
        # What secants find changes no bound: that there is none is known.
        effort = effort._replace(walked=1, searched=1)
    count = rehearsal.count_measured(setting.schedule.steps, effort)
    with (
        jax.default_matmul_precision("float32"),
        progress.bar(count, lambda: "measuring", unit="steps") as line,
    ):
        unexpanded = lipschitz.coupling_distances(setting, 1.0)
        measured = rehearsal.rehearse(game, clipped_sum, effort, unexpanded, line)
        constants = measured.constants
        distances = lipschitz.coupling_distances(setting, constants)
        climbed = rehearsal.search_secants(game, clipped_sum, measured, distances, effort)

    secants = [*measured.secants, *climbed]
    worst = max(secants, key=lambda secant: secant.excess)
    kink = _describe_kink(worst, kinks)
    seconds = math.ceil(time.monotonic() - begun)
    grid = f"{count:,} of {setting.schedule.steps:,} steps"
    reason = f"measured at {grid}, mean {np.mean(constants):.6g}, in {seconds} s"
    return Steps(constants, reason, measured.runs, kink, lipschitz.MEASUREMENT)


def _describe_kink(worst: Secant, kinks: bool) -> str:
    """Returns why derivatives do not say how far steps separate models; empty where they do."""
    if worst.excess > 0:
        stretch = worst.stretch
        return (
            f"steps have kinks: a displacement is stretched {stretch.secant:.4g} times "
            f"where derivatives say {stretch.derivative:.4g}"
        )
    if kinks:
        return "steps have kinks where ReLU or max-pooling switches"
    return ""
