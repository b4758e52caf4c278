"""How much steps stretch distances, along runs of a game that nobody audits.

The runs are trained as the game's own, in both worlds, with the adversary's canaries and without, and with
noise of their own. Of small models every step is measured, of large models a grid of steps, where every
step in between takes the larger of its neighbours. For each step the largest value over all runs counts.

What jumps beside a model, which its derivative does not show, is looked for by secants: end to end on lines
through models of all runs, and climbed from many starts at a few of them. Lines go where a training run's own
noise, its gradient and its canaries take the models, so that other runs may well come by.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism import base, expansion
from audit.mechanism.base import Tree
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.expansion import Expansion, Stretch
from audit.runtime.progress import Progress
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
      searched: About the number of steps of each run at which secants are searched.
      starts: The number of directions from which each search climbs.
      rounds: The number of steps of each climb.
    """

    runs: int
    steps: int
    walked: int
    reach: int
    searched: int
    starts: int
    rounds: int


class Moment(NamedTuple):
    """A run before a step, at which secants can be searched.

    Attributes:
      step: The step's number from 0.
      theta: (p,) the model before it.
      expansion: The largest stretch there by the step's derivative, and its direction.
    """

    step: int
    theta: NDArray[np.float32]
    expansion: Expansion


class Secant(NamedTuple):
    """The worst secant at a step of a run: the one that most exceeds what derivatives explain.

    Attributes:
      step: The step's number from 0.
      stretch: The secant's stretch, and the largest stretch by derivatives along it.
    """

    step: int
    stretch: Stretch

    @property
    def excess(self) -> float:
        """By how much it stretches more than a smooth step would; 0 or less means no more."""
        return float(expansion.compute_excess(*self.stretch))


class Rehearsal(NamedTuple):
    """How much the steps of T-step runs stretch distances, as measured.

    Attributes:
      constants: (T,) for each step the largest singular value of its Jacobian, over all runs. A step that was
        not measured takes the larger value of the two measured steps beside it.
      secants: The worst secant on lines of each run, at the steps at which there were lines.
      runs: The number of runs that were measured.
      moments: The runs' models at which secants can be searched.
    """

    constants: NDArray[np.float64]
    secants: tuple[Secant, ...]
    runs: int
    moments: tuple[Moment, ...]


class _Recorder:
    """Measures the runs of a chunk before their first step, and after each segment.

    Attributes:
      values: The largest singular value of a step's Jacobian over runs, by the step's number from 0.
      secants: The worst secant on lines of each run, at the steps at which there are lines.
      moments: The runs' models at every few of the measured steps.
    """

    def __init__(
        self,
        game: Game,
        clipped_sum: ClippedSum,
        distances: NDArray[np.float64],
        effort: Effort,
        progress: Progress,
    ) -> None:
        """Makes a recorder that has measured nothing.

        Args:
          game: The game that is rehearsed.
          clipped_sum: The game's clipping strategy.
          distances: (T,) the lengths of secants on lines (as in `search_secants`). The unit is the learning
            rate times the clipping norm over the batch size.
          effort: How much to measure.
          progress: Called with 1.0 after each measured step.
        """
        self._game = game
        self._step = expansion.make_step_map(clipped_sum, game.hyper, program=game.program)
        self._insert = _make_inserter(game, clipped_sum)
        self._lengths = _choose_lengths(game, distances)
        self._reach = effort.reach
        self._with_lines = _choose_steps_with_lines(distances, effort)
        self._progress = progress
        # Of this many measured steps in a row, the models of the middle step are kept as moments.
        count = count_measured(len(game.schedule.mask), effort)
        self._search_interval = max(count // effort.searched, 1)
        # By the run's place in the chunk: the direction that its last measured step stretched most.
        self._directions: dict[int, NDArray[np.float64]] = {}
        self.values: dict[int, float] = {}
        self.secants: list[Secant] = []
        self.moments: list[Moment] = []

    def measure(self, step: int, thetas: Array, inserted: NDArray[np.float32]) -> None:
        """Measures how much a step stretches distances near each run's model; at some steps, secants too.

        The stretch is the largest singular value of the step's Jacobian. Where it takes Lanczos iterations,
        these start from the direction that the run's last measured step stretched most, which is close.

        Args:
          step: The step's number from 0.
          thetas: The models (R, p) before it.
          inserted: (R, p) what a canary adds to the step of each run.
        """
        batch = _take_batch(self._game, step)
        number = len(self.values)
        # Of every `_search_interval` measured steps, the middle step's models are kept as moments.
        is_kept = number % self._search_interval == self._search_interval // 2
        measurements = []
        models = np.asarray(thetas)
        for run, theta in enumerate(models):
            start = self._directions.get(run)
            measured = expansion.largest_expansion(self._step, jnp.asarray(theta), batch, start)
            self._directions[run] = measured.direction
            measurements.append(measured)
            if is_kept:
                self.moments.append(Moment(step, theta, measured))
        self.values[step] = max(measured.constant for measured in measurements)
        if step in self._with_lines:
            directions = np.stack([measured.direction for measured in measurements])
            self._walk(step, batch, models, np.stack([directions, inserted], axis=1))
        self._progress(1.0)

    def _walk(
        self,
        step: int,
        batch: Batch,
        models: NDArray[np.float32],
        given_directions: NDArray[np.float64],
    ) -> None:
        """Finds the worst secant of a step on lines through each run's model, and keeps it in `secants`.

        Each line goes along a given direction, towards the next run's model, along the clipped gradient, or
        in a random direction. The next run is of the other world, with the canary instead of without it, or
        the reverse.

        Args:
          step: The step's number from 0.
          batch: The step's mini-batch.
          models: (R, p) the models before the step.
          given_directions: (R, n, p) the given directions, n for each run.
        """
        line = expansion.Line(
            length=float(self._lengths[step]),
            reach=self._reach,
            derivative=self.values[step],
            most=max(self.values.values()),  # over the steps that were measured so far
        )
        at_random = np.random.default_rng(step).normal(size=models.shape)
        next_models = np.roll(models, -1, axis=0)  # each run's is that of the run after it
        for run, theta in enumerate(models):
            model = jnp.asarray(theta)
            descent = np.asarray(self._step.descend(model, batch))
            to_next = next_models[run] - theta
            directions = np.stack([*given_directions[run], to_next, descent, at_random[run]])
            stretch = expansion.worst_on_lines(self._step, model, batch, directions, line)
            self.secants.append(Secant(step, stretch))

    def watch(self, midway: Midway) -> None:
        """Measures the step that comes next, if any, at a chunk's models between two segments."""
        if midway.steps < len(self._game.schedule.mask):
            inserted = np.asarray(self._insert(midway.craft(), midway.thetas, midway.steps))
            self.measure(midway.steps, midway.thetas, inserted)


def _make_inserter(game: Game, clipped_sum: ClippedSum) -> Callable[[Tree, Array, int], Array]:
    """Returns the function that computes what a single canary adds to a step of each run, (R, p).

    It takes the canaries that the step may insert, with a leading axis (R,), the models (R, p) before it and
    the step's number from 0. Of K canaries, step t takes canary t modulo K.
    """
    canaries = game.adversary.canaries
    norm = jnp.float32(game.hyper.clipping_norm)

    def insert(crafted: Tree, theta: Array, step: Array) -> Array:
        """Returns what the step's canary adds to the step of a single run, (p,), clipped.

        Of K canaries, step t takes canary t modulo K.
        """
        # (K,) 1 for the step's canary, else 0.
        chosen = jnp.float32(jnp.arange(canaries) == step % canaries)

        def get_crafted(step: Array, theta: Array) -> Tree:
            """Returns the canaries that are crafted already, whatever the step and the model."""
            return crafted

        inserted = base.Canaries(get_crafted, chosen)
        mask = jnp.float32(1)  # the step inserts
        return base.sum_canaries(inserted, step, theta, norm, mask, clipped_sum)

    mapped: Callable[[Tree, Array, int], Array] = jax.jit(jax.vmap(insert, (0, 0, None)))
    return mapped


def _take_batch(game: Game, step: int) -> Batch:
    """Returns the mini-batch (features, labels) of a step, counted from 0."""
    features, labels = game.data
    indices = game.schedule.batches[step]
    return features[indices], labels[indices]


def usual_effort(parameters: int) -> Effort:
    """Returns the usual effort of measuring a model, which takes a minute or two on two cores.

    The number of measured steps is inversely proportional to the number of parameters, within limits. A large
    model also has fewer runs, and fewer and shorter lines and searches.

    Args:
      parameters: The number of the model's parameters.
    """
    steps = min(max(_PARAMETERS_TIMES_STEPS // parameters, _FEWEST_MEASURED), _MOST_MEASURED)
    if parameters < _LARGE:
        return Effort(runs=4, steps=steps, walked=200, reach=16, searched=8, starts=64, rounds=12)
    return Effort(runs=2, steps=steps, walked=20, reach=1, searched=1, starts=16, rounds=1)


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
    """Trains runs of a game that no audit uses, and measures how much their steps stretch distances.

    Args:
      game: The audited game, which trains by plain SGD.
      clipped_sum: The game's clipping strategy.
      effort: How much to measure; at least 2 runs, of which every other run has the canary.
      distances: (T,) the lengths of secants on lines (as in `search_secants`). The unit is the learning rate
        times the clipping norm over the batch size.
      progress: Called with 1.0 after each measured step.

    Returns:
      The largest stretch at each step, the secants along lines, and the moments at which secants can be
      searched.
    """
    runs = effort.runs
    require(runs >= 2, f"`runs={runs}`: give at least 2, one of them in each world")
    steps = len(game.schedule.mask)
    rehearsed = game._replace(segment_steps=_choose_interval(steps, effort))
    first = MOST_RUNS + MOST_RUNS % 2  # an even run, beyond those of any audit
    recorder = _Recorder(game, clipped_sum, distances, effort, progress)

    thetas = games.initial_models(game, np.arange(first, first + runs))
    # Zeros: no line goes along a canary at the first step, since what it inserts matters only to later steps.
    recorder.measure(0, thetas, np.zeros(thetas.shape, np.float32))
    for _ in games.play(rehearsed, [(first, first + runs)], runs, watch=recorder.watch):
        pass  # the recorder watches the segments; the scores are not used

    measured = np.array(sorted(recorder.values))
    values = np.array([recorder.values[step] for step in measured])
    constants = _spread(measured, values, steps)
    return Rehearsal(constants, tuple(recorder.secants), runs, tuple(recorder.moments))


def _choose_steps_with_lines(distances: NDArray[np.float64], effort: Effort) -> set[int]:
    """Returns the measured steps at whose models secants are measured along lines, at most `effort.walked`.

    They are taken evenly from the measured steps at which the coupled processes are apart, if there are any.
    """
    steps = len(distances)
    measured = np.arange(0, steps, _choose_interval(steps, effort))
    apart = measured[_are_apart(distances)[measured]]
    chosen = apart if apart.size else measured
    # A stride that leaves at most `effort.walked` of them.
    return set(chosen[:: math.ceil(len(chosen) / effort.walked)].tolist())


def _choose_lengths(game: Game, distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the lengths of secants at each step, (T,), from the distances (T,) of two coupled processes.

    The unit of distances is the learning rate times the clipping norm over the batch size. The lengths that
    are returned are Euclidean distances between parameter vectors.

    Where the coupled processes are together, the largest distance is taken: a secant as short as their
    distance would show only rounding.
    """
    batch_size = game.schedule.batches.shape[1]
    unit = float(game.hyper.learning_rate) * float(game.hyper.clipping_norm) / batch_size
    return np.where(_are_apart(distances), distances, distances.max()) * unit


def _are_apart(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns at which steps the coupled processes are apart: by over _LEAST_SHARE of the largest, (T,)."""
    apart: NDArray[np.bool_] = distances > _LEAST_SHARE * distances.max()
    return apart


def _spread(
    measured: NDArray[np.int64], values: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    """Spreads the values of measured steps over all steps, (T,).

    A measured step keeps its value; any other takes the larger of those of the measured steps beside it.

    Args:
      measured: The numbers of the measured steps, rising from 0.
      values: Their values.
      steps: T.
    """
    numbers = np.arange(steps)
    # For each step, the place in `measured` of the last measured step up to it, and of the first from it on.
    before = np.searchsorted(measured, numbers, side="right") - 1
    after = np.minimum(np.searchsorted(measured, numbers), len(measured) - 1)
    return np.maximum(values[before], values[after])


def search_secants(
    game: Game,
    clipped_sum: ClippedSum,
    rehearsal: Rehearsal,
    distances: NDArray[np.float64],
    effort: Effort,
) -> list[Secant]:
    """Searches for the displacement that a step stretches most, at each moment of a rehearsal.

    Args:
      game: The game that was rehearsed.
      clipped_sum: The game's clipping strategy.
      rehearsal: The rehearsal of the game.
      distances: (T,) the distance, before each step, of the two processes that the bound on the last model
        couples (`audit.conclusions.lipschitz`). The unit is the learning rate times the clipping norm over
        the batch size. The displacements are as long as the distance, or as the largest distance where the
        processes are together.
      effort: How much to search.

    Returns:
      For each moment, the worst secant on the line through its model along the most stretched displacement.
    """
    step_map = expansion.make_step_map(clipped_sum, game.hyper, effort.rounds, game.program)
    lengths = _choose_lengths(game, distances)
    constants = rehearsal.constants
    secants = []
    for number, moment in enumerate(rehearsal.moments):
        length = float(lengths[moment.step])
        search = expansion.SecantSearch(length, effort.starts, seed=number)
        theta = jnp.asarray(moment.theta)
        batch = _take_batch(game, moment.step)
        # The search starts, among others, from the direction that the derivative stretches most.
        most_stretched = moment.expansion.direction[None]  # (1, p): a list of a single direction
        largest = expansion.largest_secant(step_map, theta, batch, search, most_stretched)
        # `largest_secant` does not say how much derivatives explain: `worst_on_lines` does.
        line = expansion.Line(
            length=length, reach=1, derivative=constants[moment.step], most=constants.max()
        )
        along = largest.direction[None]
        stretch = expansion.worst_on_lines(step_map, theta, batch, along, line)
        secants.append(Secant(moment.step, stretch))
    return secants
