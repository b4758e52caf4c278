"""Measures how much training steps stretch the distance between models, in runs separate from any audit.

These runs train like the audit's runs, with and without canaries, but with different noise. A step's constant
is the largest value over all runs.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array
from numpy.typing import NDArray

from audit.mechanism import base, expansion
from audit.mechanism.base import Tree
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.expansion import Line, Stretch
from audit.runtime.machine import Progress
from audit.settings.setting import MAX_RUNS
from audit.training import game as games
from audit.training.game import Game, Midway

# The default number of measured steps per run is this divided by the number of parameters, within limits.
_PARAMETERS_TIMES_STEPS = 600_000
_MAX_MEASURED = 1250
_MIN_MEASURED = 20
# Models count as equal if their distance is at most this fraction of their largest distance at any step.
_MIN_FRACTION = 0.01
_LARGE = 10_000  # parameters


class Effort(NamedTuple):
    """The amount of work that a measurement takes.

    Attributes:
      runs: The number of runs; every other run has the canary.
      steps: The maximum number of measured steps per run.
      secant_steps: The maximum number of steps per run at which secants are measured.
      reach: The number of secants on each side of the model along a line.
    """

    runs: int
    steps: int
    secant_steps: int
    reach: int


class Rehearsal(NamedTuple):
    """The result of measuring runs of T steps.

    Attributes:
      constants: (T,) the largest singular value of each step's Jacobian, over all runs.
      secants: For each run and step with secants, the secant that exceeds the derivative the most.
    """

    constants: NDArray[np.float64]
    secants: list[Stretch]


def usual_effort(parameters: int) -> Effort:
    """Returns the default `Effort` for a model of this size: a minute or two on two cores.

    Steps of large models take seconds to measure, so we use fewer runs, steps and secants.
    """
    steps = int(np.clip(_PARAMETERS_TIMES_STEPS // parameters, _MIN_MEASURED, _MAX_MEASURED))
    if parameters < _LARGE:
        return Effort(runs=4, steps=steps, secant_steps=200, reach=16)
    return Effort(runs=2, steps=steps, secant_steps=20, reach=1)


def count_measured(steps: int, effort: Effort) -> int:
    """Returns the number of measured steps in a run: the first step, then one per interval."""
    return math.ceil(steps / _choose_interval(steps, effort))


def _choose_interval(steps: int, effort: Effort) -> int:
    """Returns the shortest interval that keeps the number of measured steps within `effort.steps`."""
    return math.ceil(steps / effort.steps)


def rehearse(
    game: Game,
    clipped_sum: ClippedSum,
    effort: Effort,
    distances: NDArray[np.float64],
    progress: Progress,
) -> Rehearsal:
    """Trains a few runs separately from any audit, and measures how much their steps stretch distances.

    `_Meter` finds the largest singular value of a step's Jacobian. To find jumps in the gradient, it also
    measures how much the step stretches secants, short lines near the model.

    Args:
      game: The audited game, with T steps of plain SGD.
      effort: The numbers of runs (at least 2), steps and secants.
      distances: (T,) the length of the lines at each step (`lipschitz.coupling_distances`), in units of
        learning rate * clipping norm / batch size.
      progress: Called with 1.0 after each measured step.
    """
    steps = len(game.schedule.mask)
    meter = _Meter(
        game,
        step_map=expansion.make_step_map(clipped_sum, game.hyper),
        lengths=_choose_lengths(game, distances, effort),
        reach=effort.reach,
        constants={},
        secants=[],
        most_stretched={},
    )
    compute_insertion = _make_inserter(game, clipped_sum)
    # An audit's runs have indices below MAX_RUNS, so these runs have different randomness.
    indices_of_runs = MAX_RUNS + np.arange(effort.runs)
    canary_keys = game.run_keys("own", indices_of_runs)

    def watch(midway: Midway) -> None:
        """Measures how much the next step stretches distances, unless training has ended."""
        if midway.steps < steps:
            # Canaries may separate models in this direction.
            inserted = compute_insertion(midway.state, canary_keys, midway.thetas, midway.steps)
            meter.measure(midway.steps, midway.thetas, inserted)
            progress(1.0)

    thetas = games.initial_models(game, indices_of_runs)
    # Before the first step, no insertion has moved a model.
    meter.measure(0, thetas, jnp.zeros_like(thetas))
    progress(1.0)
    # Training segments end just before measured steps.
    rehearsed = game._replace(segment_steps=_choose_interval(steps, effort))
    games.Player(rehearsed, effort.runs, watch=watch).play(MAX_RUNS, effort.runs)
    return Rehearsal(_fill_steps(meter.constants, steps), meter.secants)


class _Meter(NamedTuple):
    """Measures how much the steps of a game stretch distances, and collects the results.

    Attributes:
      lengths: The secants' length, keyed by step; only for steps with secants.
      reach: As in `Effort`.
      constants: The largest singular value of a step's Jacobian over all runs, keyed by step.
      secants: As in `Rehearsal`.
      most_stretched: {run: the direction (p,) that its last measured step stretched most}.
    """

    game: Game
    step_map: expansion.StepMap
    lengths: dict[int, float]
    reach: int
    constants: dict[int, float]
    secants: list[Stretch]
    most_stretched: dict[int, NDArray[np.float64]]

    def measure(self, step: int, thetas: Array, inserted: Array) -> None:
        """Measures a step that starts from the runs' models (R, p); `inserted` is as in `_find_secants`."""
        indices = self.game.schedule.batches[step]
        features, labels = self.game.data
        batch = (features[indices], labels[indices])
        models = jnp.asarray(np.asarray(thetas))  # copied to a single device
        self.constants[step] = self._find_constant(step, models, batch)
        if step in self.lengths:
            self._find_secants(step, models, batch, inserted)

    def _find_constant(self, step: int, models: Array, batch: Batch) -> float:
        """Returns the largest singular value of a step's Jacobian, over the runs' models (R, p)."""
        constants_of_runs = []
        for run, theta in enumerate(models):
            # We start from the last measured direction, because the new one is often close to it.
            start = self.most_stretched.get(run)
            found = expansion.largest_expansion(
                self.step_map, theta, batch, start, seed=(step, run)
            )
            self.most_stretched[run] = found.direction
            constants_of_runs.append(found.constant)
        return max(constants_of_runs)

    def _find_secants(self, step: int, models: Array, batch: Batch, inserted: Array) -> None:
        """Finds jumps: for each run, adds to `secants` the secant that exceeds the derivative the most.

        A secant measures how much the step stretches part of a line. Lines pass through a run's model in
        directions that may separate the audit's models. These include `inserted` (R, p), a canary's
        contribution to each run's step, because earlier insertions moved the model roughly that way.
        """
        line = Line(
            length=self.lengths[step],
            reach=self.reach,
            stretch_at_models=self.constants[step],
            # Derivatives far above this count as jumps.
            largest_stretch_at_models=max(self.constants.values()),
        )
        line_directions = (
            self.most_stretched,
            inserted,
            # To the next run's model: runs with and without a single canary alternate.
            jnp.roll(models, -1, axis=0) - models,
            [self.step_map.descend(theta, batch) for theta in models],
            np.random.default_rng(step).normal(size=models.shape),
        )
        for run, theta in enumerate(models):
            directions = np.stack([of_runs[run] for of_runs in line_directions])
            worst = expansion.worst_on_lines(self.step_map, theta, batch, directions, line)
            self.secants.append(worst)


def _make_inserter(
    game: Game, clipped_sum: ClippedSum
) -> Callable[[Tree, Array, Array, int], Array]:
    """Returns a function that computes a single canary's clipped contribution to a step in each run.

    It maps (the adversary's state, the runs' canary keys (R,), models (R, p), step t) to (R, p). To save
    time, canaries take turns: step t uses canary t modulo K.
    """
    adversary = game.adversary
    clipping_norm = jnp.float32(game.hyper.clipping_norm)

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0, 0, None))
    def insert(state: Tree, canary_key: Array, theta: Array, step: Array) -> Array:
        """Returns the contribution (p,) of one canary to a step of a single run."""
        craft = partial(adversary.craft, adversary.draw_for_run(state, canary_key))
        chosen = jnp.arange(adversary.canaries) == step % adversary.canaries
        canaries = base.Canaries(craft, jnp.float32(chosen))
        mask = jnp.float32(1)
        return base.sum_canaries(canaries, step, theta, clipping_norm, mask, clipped_sum)

    return insert


def _choose_lengths(game: Game, distances: NDArray[np.float64], effort: Effort) -> dict[int, float]:
    """Chooses the steps at which to measure secants, and returns the secants' lengths, keyed by step.

    A secant's length is the distance, before the step, between models trained with and without the canary.
    `distances` (T,) are in units of learning rate * clipping norm / batch size.

    We choose up to `effort.secant_steps` of the measured steps whose distance exceeds _MIN_FRACTION of the
    largest, evenly spaced. If no step qualifies, we choose from all measured steps and use the largest
    distance as the length, because shorter secants would show only rounding errors.
    """
    are_separate = distances > _MIN_FRACTION * distances.max()
    steps = len(distances)
    measured = np.arange(0, steps, _choose_interval(steps, effort))
    chosen = measured[are_separate[measured]]
    if not chosen.size:
        chosen = measured
    stride = math.ceil(len(chosen) / effort.secant_steps)
    batch_size = game.schedule.batches.shape[1]
    unit = float(game.hyper.learning_rate) * float(game.hyper.clipping_norm) / batch_size
    lengths = np.where(are_separate, distances, distances.max()) * unit
    return {int(step): float(lengths[step]) for step in chosen[::stride]}


def _fill_steps(constants: dict[int, float], steps: int) -> NDArray[np.float64]:
    """Returns an estimate of each step's Lipschitz constant (T,), given {measured step: constant} in order.

    To be cautious, we assign a step between two measured steps the larger of their constants. Steps after the
    last measured step get its constant. Step 0 is always measured.
    """
    by_step = pd.Series(constants).reindex(range(steps))
    before = by_step.ffill()
    after = by_step.bfill().fillna(before)
    return np.maximum(before, after).to_numpy()
