"""Measures and stores the Lipschitz constants of training steps, for models without proven constants."""

import math
import time

import jax
import numpy as np

from audit.adversaries.base import Adversary
from audit.conclusions import lipschitz
from audit.conclusions.lipschitz import USUAL, Steps, find_measured
from audit.mechanism import expansion
from audit.mechanism.clipping.base import ClippedSum
from audit.mechanism.expansion import Stretch
from audit.runtime import machine
from audit.settings.setting import Setting
from audit.storage.store import Store, hold
from audit.tasks import task
from audit.tasks.task import Dataset
from audit.training import build, rehearsal
from audit.training.build import Trainee
from audit.training.game import Game
from audit.training.rehearsal import Effort


def measure(
    store: Store,
    setting: Setting,
    dataset: Dataset,
    runs: int,
    trained: Trainee | None = None,
    own: Adversary | None = None,
) -> Steps:
    """Returns measured Lipschitz constants of the steps, from the store or from new training runs.

    Args:
      runs: the number of training runs to measure; for `USUAL` (0), it depends on the model's size.
      trained, own: a custom model and a custom adversary, or None.
    """
    # Another process that needs the same constants waits here and then reads them from the store.
    with hold(store.path):
        steps = find_measured(store, runs)
        if steps is not None:
            return steps
        # Kinks, such as ReLU's, are jumps in the gradient that derivatives miss. In custom models,
        # `measure_steps` looks for kinks.
        has_known_kinks = trained is None and not task.task(setting.model).smooth
        game = build.build(setting, dataset, trained, own)
        trainee = trained or build.trainee(setting.model, dataset)
        clipped_sum = build.make_dpsgd(setting, trainee).clipped_sum
        theta_0 = jax.eval_shape(game.init, jax.random.key(0))  # the same shape for any key
        effort = rehearsal.usual_effort(theta_0.size)  # runs and steps
        if runs != USUAL:
            effort = effort._replace(runs=runs)
        steps = measure_steps(setting, game, clipped_sum, effort, has_known_kinks)
        lipschitz.keep(store, steps)
        return steps


def measure_steps(
    setting: Setting, game: Game, clipped_sum: ClippedSum, effort: Effort, has_kinks: bool
) -> Steps:
    """Returns Lipschitz constants of a setting's steps, measured in training runs.

    Each constant is the largest singular value of a step's Jacobian, so it is valid only for smooth steps. To
    detect kinks, like those of a ReLU, we also measure secants: the distance between two models after a step,
    divided by their distance before it. A secant above the singular value reveals a kink (`Steps.kink`).

    Args:
      effort: the numbers of runs, steps and secants to measure.
      has_kinks: True if the model is known to have kinks.
    """
    begun = time.monotonic()
    if has_kinks:
        effort = effort._replace(secant_steps=1)  # one step is enough to describe known kinks
    count = rehearsal.count_measured(setting.schedule.steps, effort)
    with (
        # By default, some devices use lower precision.
        jax.default_matmul_precision("float32"),
        machine.bar(count, lambda: "measuring", unit="steps") as line,  # the progress bar
    ):
        # We measure secants at the distances between the models with and without the canary.
        distances = lipschitz.coupling_distances(setting)
        measured = rehearsal.rehearse(game, clipped_sum, effort, distances, line)

    worst = max(measured.secants, key=lambda secant: expansion.compute_excess(*secant))
    kink = _describe_kink(worst, has_kinks)
    constants = measured.constants
    seconds = math.ceil(time.monotonic() - begun)
    reason = (
        f"measured at {count:,} of {setting.schedule.steps:,} steps, mean {np.mean(constants):.6g}, "
        f"in {seconds} s"
    )
    return Steps(constants, reason, effort.runs, kink, version=lipschitz.MEASUREMENT)


def _describe_kink(worst: Stretch, has_kinks: bool) -> str:
    """Returns why the largest derivative is not a Lipschitz constant of the steps; "" if it may be one.

    `worst` is the secant that most exceeds the derivatives along it. `has_kinks` is True if the model is
    known to have kinks, even if no secant shows one.
    """
    if expansion.compute_excess(*worst) > 0:
        return (
            f"steps have kinks: a displacement is stretched {worst.secant:.4g} times "
            f"but derivatives give {worst.derivative:.4g}"
        )
    if has_kinks:
        return "steps have kinks, where ReLU or max-pooling switches"
    return ""
