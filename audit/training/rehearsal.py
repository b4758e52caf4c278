"""How much steps stretch distances, along runs of a game that nobody audits.

The runs are trained as the game's own, in both worlds, with the adversary's canaries and without, and with
noise of their own. Of small models every step is measured, of large models a grid of steps, where every step
in between takes the larger of its neighbours. For each step the largest value over all runs counts.
"""

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism import expansion
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.expansion import Expansion, StepMap
from audit.runtime.progress import Progress
from audit.settings.setting import MOST_RUNS
from audit.training import game as games
from audit.training.game import Game, Midway

# Of each run so many steps are measured that these times the parameters are a constant, within limits.
_PARAMETERS_TIMES_STEPS = 1_250_000
_MOST_MEASURED = 1250
_FEWEST_MEASURED = 20
_LARGE = 10_000  # parameters from which on measuring a step takes seconds


class Effort(NamedTuple):
    """How much is measured.

    Attributes:
      runs: Half of them with the canary.
      steps: Measured of each run, at most.
      searched: Steps of each run at which secants are searched.
      starts: How many directions each search climbs from.
      rounds: In which a search climbs from each start.
    """

    runs: int
    steps: int
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
      constant: The largest stretch that the search reached.
    """

    step: int
    constant: float


class Rehearsal(NamedTuple):
    """What runs show of how much steps stretch distances.

    Attributes:
      constants: (T,) for each step the largest singular value of its Jacobian, over runs and neighbours on
        the grid.
      runs: How many runs were measured.
      moments: Where secants can be searched.
    """

    constants: NDArray[np.float64]
    runs: int
    moments: tuple[Moment, ...]


class _Recorder:
    """Measures the runs of a chunk at the start and whenever it stops between two segments.

    Attributes:
      values: The largest singular value over runs, by the step's number from 0.
      moments: The runs at every `interval`-th of the measured steps.
    """

    def __init__(self, game: Game, step: StepMap, interval: int, progress: Progress) -> None:
        self._game = game
        self._step = step
        self._interval = interval
        self._progress = progress
        # By the run's place in the chunk: what its last measured step stretched most.
        self._directions: dict[int, NDArray[np.float64]] = {}
        self.values: dict[int, float] = {}
        self.moments: list[Moment] = []

    def measure(self, step: int, thetas: Array) -> None:
        """Measures a step, from 0, at the models (R, p) before it.

        A run's search starts from the direction of its step before, which is close.
        """
        batch = _take_batch(self._game, step)
        # The middle one of each interval.
        is_kept = len(self.values) % self._interval == self._interval // 2
        largest = 0.0
        for run, theta in enumerate(np.asarray(thetas)):
            start = self._directions.get(run)
            measured = expansion.largest_expansion(self._step, jnp.asarray(theta), batch, start)
            self._directions[run] = measured.direction
            largest = max(largest, measured.constant)
            if is_kept:
                self.moments.append(Moment(step, theta, measured))
        self.values[step] = largest
        self._progress(1.0)

    def watch(self, midway: Midway) -> None:
        """Measures the next step, if any."""
        if midway.steps < len(self._game.schedule.mask):
            self.measure(midway.steps, midway.thetas)


def _take_batch(game: Game, step: int) -> Batch:
    """Returns the mini-batch of a step, from 0."""
    features, labels = game.data
    indices = game.schedule.batches[step]
    return features[indices], labels[indices]


def usual_effort(parameters: int) -> Effort:
    """Returns what takes a minute or two on two cores, for a model of so many parameters."""
    steps = min(max(_PARAMETERS_TIMES_STEPS // parameters, _FEWEST_MEASURED), _MOST_MEASURED)
    if parameters < _LARGE:
        return Effort(runs=4, steps=steps, searched=8, starts=64, rounds=12)
    return Effort(runs=2, steps=steps, searched=1, starts=16, rounds=1)


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
    progress: Progress = lambda steps: None,
) -> Rehearsal:
    """Trains runs of a game that are in no audit, and measures their steps on the way.

    Args:
      game: What is audited, by plain SGD.
      clipped_sum: The game's clipping strategy.
      effort: How much to measure; at least 2 runs, of which every other run has the canary.
      progress: Called with 1.0 after each measured step.
    """
    runs = effort.runs
    require(runs >= 2, f"`runs={runs}`: give at least 2, one of them in each world")
    steps = len(game.schedule.mask)
    rehearsed = game._replace(segment_steps=_choose_interval(steps, effort))
    first = MOST_RUNS + MOST_RUNS % 2  # an even run, beyond those of any audit
    step_map = expansion.make_step_map(clipped_sum, game.hyper, program=game.program)
    search_interval = max(count_measured(steps, effort) // effort.searched, 1)
    recorder = _Recorder(game, step_map, search_interval, progress)

    recorder.measure(0, games.initial_models(game, np.arange(first, first + runs)))
    for _ in games.play(rehearsed, [(first, first + runs)], runs, watch=recorder.watch):
        pass

    measured = np.array(sorted(recorder.values))
    values = np.array([recorder.values[step] for step in measured])
    return Rehearsal(_spread(measured, values, steps), runs, tuple(recorder.moments))


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
    """Returns the largest stretch of displacements at each of the rehearsed moments.

    Args:
      game: That was rehearsed.
      clipped_sum: Its clipping strategy.
      rehearsal: Of the game.
      distances: (T,) the distance between the two processes that the bound on the last model couples, before
        each step, in units of eta C / B (`audit.conclusions.lipschitz`); where that is 0, the largest is
        searched.
      effort: How much to search.
    """
    step_map = expansion.make_step_map(clipped_sum, game.hyper, effort.rounds, game.program)
    batch_size = game.schedule.batches.shape[1]
    unit = float(game.hyper.learning_rate) * float(game.hyper.clipping_norm) / batch_size
    secants = []
    for number, moment in enumerate(rehearsal.moments):
        distance = distances[moment.step] or float(distances.max())
        search = expansion.SecantSearch(distance * unit, effort.starts, seed=number)
        constant = expansion.largest_secant(
            step_map,
            jnp.asarray(moment.theta),
            _take_batch(game, moment.step),
            search,
            moment.expansion.direction[None],
        )
        secants.append(Secant(moment.step, constant))
    return secants
