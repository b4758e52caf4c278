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

# Of each run so many steps are measured that these times the parameters are a constant, within limits.
_PARAMETERS_TIMES_STEPS = 1_250_000
_MOST_MEASURED = 1250
_FEWEST_MEASURED = 20
_LEAST_SHARE = 0.01  # of the largest distance: processes that are nearer are together
_LARGE = 10_000  # parameters from which on measuring a step takes seconds


class Effort(NamedTuple):
    """How much is measured.

    Attributes:
      runs: Half of them with the canary.
      steps: Measured of each run, at most.
      walked: Steps of each run from whose models secants go along lines, at most.
      reach: How many secants a line has to either side.
      searched: Steps of each run at which secants are searched.
      starts: How many directions each search climbs from.
      rounds: In which a search climbs from each start.
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
      expansion: What the derivative says there.
    """

    step: int
    theta: NDArray[np.float32]
    expansion: Expansion


class Secant(NamedTuple):
    """How much a step of a run stretches displacements of a length.

    Attributes:
      step: Its number from 0.
      stretch: The one furthest beyond what derivatives say.
    """

    step: int
    stretch: Stretch

    @property
    def excess(self) -> float:
        """By how much it stretches more than a smooth step would; 0 or less: no more."""
        return float(expansion.compute_excess(*self.stretch))


class Rehearsal(NamedTuple):
    """What runs show of how much steps stretch distances.

    Attributes:
      constants: (T,) for each step the largest singular value of its Jacobian, over runs and neighbours on
        the grid.
      secants: The worst secant on lines of each run, at the steps at which there were lines.
      runs: How many runs were measured.
      moments: Where secants can be searched.
    """

    constants: NDArray[np.float64]
    secants: tuple[Secant, ...]
    runs: int
    moments: tuple[Moment, ...]


class _Recorder:
    """Measures the runs of a chunk at the start and whenever it stops between two segments.

    Attributes:
      values: The largest singular value over runs, by the step's number from 0.
      secants: The worst secant on lines of each run, at the steps at which there are lines.
      moments: The runs at every few of the measured steps.
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
          game: That is rehearsed.
          clipped_sum: Its clipping strategy.
          distances: (T,) as in `search_secants`, how long secants on lines are.
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
        count = count_measured(len(game.schedule.mask), effort)
        self._search_interval = max(count // effort.searched, 1)
        # By the run's place in the chunk: what its last measured step stretched most.
        self._directions: dict[int, NDArray[np.float64]] = {}
        self.values: dict[int, float] = {}
        self.secants: list[Secant] = []
        self.moments: list[Moment] = []

    def measure(self, step: int, thetas: Array, inserted: NDArray[np.float32]) -> None:
        """Measures a step.

        A run's search starts from the direction of its step before, which is close.

        Args:
          step: From 0.
          thetas: The models (R, p) before it.
          inserted: (R, p) what a canary adds to the step of each run.
        """
        batch = _take_batch(self._game, step)
        number = len(self.values)
        # The middle one of each interval.
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
        towards: NDArray[np.float64],
    ) -> None:
        """Finds the worst secant on lines through the models before a step.

        They go along given directions, to the model of another world, along the gradient and at random.

        Args:
          step: From 0.
          batch: The step's mini-batch.
          models: (R, p) before it.
          towards: (R, n, p) the given directions.
        """
        line = expansion.Line(
            length=float(self._lengths[step]),
            reach=self._reach,
            derivative=self.values[step],
            most=max(self.values.values()),
        )
        at_random = np.random.default_rng(step).normal(size=models.shape)
        others = np.roll(models, -1, axis=0)
        for run, theta in enumerate(models):
            model = jnp.asarray(theta)
            descent = np.asarray(self._step.descend(model, batch))
            directions = np.stack([*towards[run], others[run] - theta, descent, at_random[run]])
            stretch = expansion.worst_on_lines(self._step, model, batch, directions, line)
            self.secants.append(Secant(step, stretch))

    def watch(self, midway: Midway) -> None:
        """Measures the next step, if any."""
        if midway.steps < len(self._game.schedule.mask):
            inserted = np.asarray(self._insert(midway.craft(), midway.thetas, midway.steps))
            self.measure(midway.steps, midway.thetas, inserted)


def _make_inserter(game: Game, clipped_sum: ClippedSum) -> Callable[[Tree, Array, int], Array]:
    """Returns the function that computes what a canary adds to a step of each run.

    It takes the canaries that the step may insert, with a leading axis (R,), the models (R, p) before it and
    the step's number from 0, and returns (R, p). Of several canaries it takes each in turn, step by step.
    """
    canaries = game.adversary.canaries
    norm = jnp.float32(game.hyper.clipping_norm)

    def insert(crafted: Tree, theta: Array, step: Array) -> Array:
        chosen = jnp.float32(jnp.arange(canaries) == step % canaries)
        inserted = base.Canaries(lambda step, theta: crafted, chosen)
        return base.sum_canaries(inserted, step, theta, norm, jnp.float32(1), clipped_sum)

    mapped: Callable[[Tree, Array, int], Array] = jax.jit(jax.vmap(insert, (0, 0, None)))
    return mapped


def _take_batch(game: Game, step: int) -> Batch:
    """Returns the mini-batch of a step, from 0."""
    features, labels = game.data
    indices = game.schedule.batches[step]
    return features[indices], labels[indices]


def usual_effort(parameters: int) -> Effort:
    """Returns how much of the rehearsals is measured: what takes a minute or two on two cores.

    Args:
      parameters: The number of the model's parameters.
    """
    steps = min(max(_PARAMETERS_TIMES_STEPS // parameters, _FEWEST_MEASURED), _MOST_MEASURED)
    if parameters < _LARGE:
        return Effort(runs=4, steps=steps, walked=200, reach=16, searched=8, starts=64, rounds=12)
    return Effort(runs=2, steps=steps, walked=20, reach=1, searched=1, starts=16, rounds=1)


def count_measured(steps: int, effort: Effort) -> int:
    """Returns how many of a run's steps are measured: the first, and every so many steps after it."""
    return math.ceil(steps / _choose_interval(steps, effort))


def _choose_interval(steps: int, effort: Effort) -> int:
    """Returns after how many steps the next is measured."""
    return math.ceil(steps / effort.steps)


def rehearse(
    game: Game,
    clipped_sum: ClippedSum,
    effort: Effort,
    distances: NDArray[np.float64],
    progress: Progress = lambda steps: None,
) -> Rehearsal:
    """Trains runs of a game that are in no audit, and measures their steps on the way.

    Args:
      game: What is audited, by plain SGD.
      clipped_sum: The game's clipping strategy.
      effort: How much to measure; at least 2 runs, of which every other run has the canary.
      distances: (T,) how long the secants on lines are, as in `search_secants`.
      progress: Called with 1.0 after each measured step.
    """
    runs = effort.runs
    require(runs >= 2, f"`runs={runs}`: give at least 2, one of them in each world")
    steps = len(game.schedule.mask)
    rehearsed = game._replace(segment_steps=_choose_interval(steps, effort))
    first = MOST_RUNS + MOST_RUNS % 2  # an even run, beyond those of any audit
    recorder = _Recorder(game, clipped_sum, distances, effort, progress)

    thetas = games.initial_models(game, np.arange(first, first + runs))
    # Nothing is inserted before the first step, and what it inserts matters to later ones alone.
    recorder.measure(0, thetas, np.zeros(thetas.shape, np.float32))
    for _ in games.play(rehearsed, [(first, first + runs)], runs, watch=recorder.watch):
        pass

    measured = np.array(sorted(recorder.values))
    values = np.array([recorder.values[step] for step in measured])
    constants = _spread(measured, values, steps)
    return Rehearsal(constants, tuple(recorder.secants), runs, tuple(recorder.moments))


def _choose_steps_with_lines(distances: NDArray[np.float64], effort: Effort) -> set[int]:
    """Returns the measured steps from whose models secants go along lines: where processes are apart."""
    steps = len(distances)
    measured = np.arange(0, steps, _choose_interval(steps, effort))
    apart = measured[_are_apart(distances)[measured]]
    chosen = apart if apart.size else measured
    return set(chosen[:: math.ceil(len(chosen) / effort.walked)].tolist())


def _choose_lengths(game: Game, distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns (T,) how long secants are, of distances in units of eta C / B.

    Where processes are together, the largest distance counts: so short a secant would show rounding alone.
    """
    batch_size = game.schedule.batches.shape[1]
    unit = float(game.hyper.learning_rate) * float(game.hyper.clipping_norm) / batch_size
    return np.where(_are_apart(distances), distances, distances.max()) * unit


def _are_apart(distances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns (T,) whether distances are more than a small share of the largest."""
    apart: NDArray[np.bool_] = distances > _LEAST_SHARE * distances.max()
    return apart


def _spread(
    measured: NDArray[np.int64], values: NDArray[np.float64], steps: int
) -> NDArray[np.float64]:
    """Returns (T,) values, of each step the largest of the measured steps beside it, or its own."""
    numbers = np.arange(steps)
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
    """Returns the secant on which a search ends, at each of the rehearsed moments.

    Args:
      game: That was rehearsed.
      clipped_sum: Its clipping strategy.
      rehearsal: Of the game.
      distances: (T,) how far apart the two processes are that the bound on the last model couples, before
        each step, in units of eta C / B (`audit.conclusions.lipschitz`); where they are together, the
        largest distance is searched.
      effort: How much to search.
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
        stretched = moment.expansion.direction[None]
        climbed = expansion.largest_secant(step_map, theta, batch, search, stretched)
        line = expansion.Line(
            length=length, reach=1, derivative=constants[moment.step], most=constants.max()
        )
        towards = climbed.direction[None]
        stretch = expansion.worst_on_lines(step_map, theta, batch, towards, line)
        secants.append(Secant(moment.step, stretch))
    return secants
