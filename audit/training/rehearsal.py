"""How much steps stretch distances, along runs of a game that nobody audits.

The runs are trained as the game's own, in both worlds, with the adversary's canaries and without, and with
noise of their own. Of small models every step is measured, of large models a grid of steps, where every
step in between takes the larger of its neighbours. For each step the largest value over all runs counts.

What jumps beside a model, which its derivative does not show, is looked for by secants, end to end on lines
through models of all runs. Lines go where a training run's own noise, its gradient and its canaries take the
models: other runs may well come by.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism import base, expansion
from audit.mechanism.base import Tree
from audit.mechanism.clipping.base import ClippedSum
from audit.mechanism.expansion import Stretch
from audit.runtime.machine import Progress
from audit.settings.setting import MOST_RUNS
from audit.training import game as games
from audit.training.game import Game, Midway

# The number of measured steps of a run is this over the number of parameters, within the limits below.
_PARAMETERS_TIMES_STEPS = 600_000
_MOST_MEASURED = 1250
_FEWEST_MEASURED = 20
_LEAST_SHARE = 0.01  # of the largest distance; processes that are nearer count as together
_LARGE = 10_000  # parameters from which on measuring a step takes seconds


class Effort(NamedTuple):
    """How much is measured.

    Attributes:
      runs: The number of runs; every other run has the canary.
      steps: The most steps of each run that are measured.
      walked: The most steps of each run at whose models secants are measured along lines.
      reach: The number of secants of a line to either side of the model.
    """

    runs: int
    steps: int
    walked: int
    reach: int


class Rehearsal(NamedTuple):
    """How much the steps of T-step runs stretch distances, as measured.

    Attributes:
      constants: (T,) for each step the largest singular value of its Jacobian, over all runs. A step that was
        not measured takes the larger value of the two measured steps beside it.
      secants: The stretch of the worst secant on lines of each run, at the steps at which there were lines:
        the one that most exceeds what derivatives explain.
      runs: The number of runs that were measured.
    """

    constants: NDArray[np.float64]
    secants: list[Stretch]
    runs: int


def usual_effort(parameters: int) -> Effort:
    """Returns the usual effort of measuring a model, which takes a minute or two on two cores.

    The number of measured steps is inversely proportional to the number of parameters, within limits. A large
    model also has fewer runs, and fewer and shorter lines of secants, which are segments between two models.

    Args:
      parameters: The number of the model's parameters.
    """
    steps = min(max(_PARAMETERS_TIMES_STEPS // parameters, _FEWEST_MEASURED), _MOST_MEASURED)
    if parameters < _LARGE:
        return Effort(runs=4, steps=steps, walked=200, reach=16)
    return Effort(runs=2, steps=steps, walked=20, reach=1)


def count_measured(steps: int, effort: Effort) -> int:
    """Returns how many of a run's steps are measured: the first, and then one in each interval."""
    return math.ceil(steps / _choose_interval(steps, effort))


def _choose_interval(steps: int, effort: Effort) -> int:
    """Returns the interval between measured steps, so that at most `effort.steps` are measured."""
    return math.ceil(steps / effort.steps)


def rehearse(
    game: Game,
    clipped_sum: ClippedSum,
    effort: Effort,
    distances: NDArray[np.float64],
    progress: Progress = lambda steps: None,
) -> Rehearsal:
    """Trains a few runs that no audit uses, and measures how much their steps stretch distances.

    Args:
      game: The audited game, which trains by plain SGD, of T steps.
      clipped_sum: The game's clipping strategy.
      effort: How much to measure; at least 2 runs. With a single canary, every other run has it.
      distances: (T,) how far apart the two models are, before each step, that the hidden-state bound couples
        (`lipschitz.coupling_distances`). The lengths of secants follow from it. The unit is the learning rate
        times the clipping norm over the batch size.
      progress: Called with 1.0 after each measured step.
    """
    runs = effort.runs
    require(runs >= 2, f"`runs={runs}`: give at least 2, one of them in each world")
    steps = len(game.schedule.mask)
    step_map = expansion.make_step_map(clipped_sum, game.hyper)
    insert = _make_inserter(game, clipped_sum)
    lengths = _choose_lengths(game, distances)
    with_lines = _choose_steps_with_lines(distances, effort)
    values: dict[int, float] = {}  # by step, the largest stretch by its derivative
    # By run, what its last measured step stretched most.
    directions: dict[int, NDArray[np.float64]] = {}
    secants: list[Stretch] = []

    def measure(step: int, thetas: Array, inserted: NDArray[np.float32]) -> None:
        """Measures by which factor a step stretches distances between models close to each run's model.

        Close to a model, the factor is at most the largest singular value of the step's Jacobian. A Jacobian
        misses jumps beside the model. So at some steps secants are measured as well.

        Args:
          step: The step's number from 0.
          thetas: The models (R, p) before it.
          inserted: (R, p) what a canary adds to the step of each run, along which secants are measured.
        """
        indices = game.schedule.batches[step]
        batch = (game.data[0][indices], game.data[1][indices])
        models = np.asarray(thetas)
        constants = []
        for run, theta in enumerate(models):
            # The search begins with the direction at the last measured step, which is close.
            largest = expansion.largest_expansion(
                step_map, jnp.asarray(theta), batch, directions.get(run), (step, run)
            )
            directions[run] = largest.direction
            constants.append(largest.constant)
        values[step] = max(constants)
        if step in with_lines:
            line = expansion.Line(
                length=float(lengths[step]),
                reach=effort.reach,
                derivative=values[step],
                # Over the steps so far; it limits what derivatives beside the models explain.
                most=max(values.values()),
            )
            # Towards the next run's model: with a single canary, that run is of the other world.
            to_next = np.roll(models, -1, axis=0) - models
            at_random = np.random.default_rng(step).normal(size=models.shape)
            for run, theta in enumerate(models):
                model = jnp.asarray(theta)
                # The mean clipped gradient, plus the weight decay's term.
                descent = np.asarray(step_map.descend(model, batch))
                along = (directions[run], inserted[run], to_next[run], descent, at_random[run])
                secants.append(
                    expansion.worst_on_lines(step_map, model, batch, np.stack(along), line)
                )
        progress(1.0)

    def watch(midway: Midway) -> None:
        """Measures the step that comes next, if any, at a chunk's models between two segments."""
        if midway.steps < steps:
            inserted = np.asarray(insert(midway.craft(), midway.thetas, midway.steps))
            measure(midway.steps, midway.thetas, inserted)

    # A run's index decides its randomness. An audit's indices are below MOST_RUNS, so that none of its runs
    # is trained here. The first index is even: with a single canary, even runs are without it, odd with it.
    first = MOST_RUNS + MOST_RUNS % 2
    thetas = games.initial_models(game, np.arange(first, first + runs))
    # Zeros: no line goes along a canary at the first step, since what it inserts matters only to later steps.
    measure(0, thetas, np.zeros(thetas.shape, np.float32))
    # A segment ends where a step is to be measured. All runs are a single chunk, whose scores are not used.
    rehearsed = game._replace(segment_steps=_choose_interval(steps, effort))
    for _ in games.play(rehearsed, [(first, first + runs)], runs, watch=watch):
        pass
    return Rehearsal(_spread(values, steps), secants, runs)


def _make_inserter(game: Game, clipped_sum: ClippedSum) -> Callable[[Tree, Array, int], Array]:
    """Returns a function that computes what a single canary adds to a step of each run, (R, p), clipped.

    Of the K canaries of a run it takes canary t modulo K for step t, so that each has its turn.

    Returns:
      (canaries that the step may insert, with a leading axis (R,); models (R, p) before it; its number t from
      0) -> (R, p).
    """
    canaries = game.adversary.canaries
    norm = jnp.float32(game.hyper.clipping_norm)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))  # canaries and models differ by run; the step does not
    def insert(crafted: Tree, theta: Array, step: Array) -> Array:
        """Returns what the step's canary adds to the step of a single run, (p,)."""
        chosen = jnp.float32(jnp.arange(canaries) == step % canaries)
        inserted = base.Canaries(lambda step, theta: crafted, chosen)
        return base.sum_canaries(inserted, step, theta, norm, jnp.float32(1), clipped_sum)

    return insert


def _choose_steps_with_lines(distances: NDArray[np.float64], effort: Effort) -> set[int]:
    """Returns the measured steps at whose models secants are measured along lines, at most `effort.walked`.

    They are taken evenly from the measured steps at which the two models that the hidden-state bound couples
    are apart, since only there it matters how a step stretches their distance. If they are never apart, all
    measured steps are candidates.
    """
    steps = len(distances)
    measured = np.arange(0, steps, _choose_interval(steps, effort))
    apart = measured[_are_apart(distances)[measured]]
    chosen = apart if apart.size else measured
    # A stride that leaves at most `effort.walked` of them.
    return set(chosen[:: math.ceil(len(chosen) / effort.walked)].tolist())


def _choose_lengths(game: Game, distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the length of secants at each step, (T,), a Euclidean distance between parameter vectors.

    It is the distance of the two models that the hidden-state bound couples, which is what a step stretches.
    Where these are together, it is the largest distance of any step: a shorter secant would show only
    rounding. If they are together at all steps, that is 0, and such secants count as not stretched.
    """
    batch_size = game.schedule.batches.shape[1]
    unit = float(game.hyper.learning_rate) * float(game.hyper.clipping_norm) / batch_size
    return np.where(_are_apart(distances), distances, distances.max()) * unit


def _are_apart(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns at which steps the coupled processes are apart: by over _LEAST_SHARE of the largest, (T,)."""
    apart: NDArray[np.bool_] = distances > _LEAST_SHARE * distances.max()
    return apart


def _spread(values: dict[int, float], steps: int) -> NDArray[np.float64]:
    """Spreads the values of measured steps over all T steps, (T,).

    A measured step keeps its value; any other takes the larger of those of the measured steps beside it.
    Steps after the last measured step take its value.
    """
    measured = np.array(sorted(values))
    numbers = np.arange(steps)
    # For each step, the place in `measured` of the last measured step up to it, and of the first from it on.
    before = np.searchsorted(measured, numbers, side="right") - 1
    # Beyond the last measured step there is no next, and its own place is taken.
    after = np.minimum(np.searchsorted(measured, numbers), len(measured) - 1)
    at_measured = np.array([values[step] for step in measured])
    return np.asarray(np.maximum(at_measured[before], at_measured[after]))
