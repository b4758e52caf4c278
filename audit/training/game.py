"""The distinguishing game: R runs of K canaries, each in or out, become scores.

Randomness. Everything is drawn from roots under the seed, each with a name:

    theta    the shared initialisation, or run i's own from fold_in(., i)
    batches  the fixed shuffle
    guess    what an adversary that does not know theta_0 takes it to be
    canary   what the adversary draws before training
    noise    run i's noise at step t from fold_in(fold_in(., i), t), which also gives the coins by which its
             canaries join step t, where they are sampled
    presence run i's coins from fold_in(., i), where it has several canaries
    own      run i's own canaries from fold_in(., i), where an adversary draws them afresh for every run

so a run's draws depend on the seed and its index alone: not on its chunk, the number of devices or
where a resumed run began.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.stages import Compiled, Wrapped
from jax.tree_util import PyTreeDef
from numpy.typing import NDArray

from audit.adversaries.base import Adversary, Observer, shapes
from audit.errors import InputError
from audit.mechanism import ensemble
from audit.mechanism.base import Data, Hyperparameters, Join, Mechanism, Schedule, State, Tree
from audit.mechanism.ensemble import Insertion, Placement, RunKeys
from audit.mechanism.memory import StepMemory
from audit.runtime.progress import SegmentProgress
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Scores


class Game(NamedTuple):
    """A training configuration and its adversary; arrays on the device, everything else static.

    Games share compiled programs if the functions that are compiled in are equal, and all other arrays and
    numbers are arguments of these programs.

    Attributes:
      mechanism: the mechanism that trains.
      adversary: the adversary that attacks it.
      init: key -> theta_0 (p,).
      data: the data that the mechanism trains on.
      hyper: the mechanism's hyperparameters.
      schedule: the mini-batches and the insertion mask.
      seed: the seed of all randomness.
      unknown_initialisation: whether every run draws its own theta_0, and the adversary assumes yet another
        draw.
      join: the draw, unseen by the adversary, of the canaries that join a step; None: all that are in join.
      sampling_rate: the presence that `join` gets for a canary that is in.
      segment_steps: the most steps of a segment, after each of which progress and checkpoints come.
    """

    mechanism: Mechanism
    adversary: Adversary
    init: Callable[[Array], Array]
    data: Data
    hyper: Hyperparameters
    schedule: Schedule
    seed: int
    unknown_initialisation: bool = False
    join: Join | None = None
    sampling_rate: float = 1.0
    segment_steps: int = ensemble.SEGMENT_STEPS

    def insertion(self) -> Insertion:
        """Returns the adversary's part in training: what it inserts, when canaries join, what it observes."""
        adversary = self.adversary
        observe = None if adversary.observer is None else adversary.observer.observe
        return Insertion(
            craft=adversary.craft,
            observe=observe,
            crafts_constant=adversary.crafts_constant,
            join=self.join,
            draw=adversary.draw,
        )

    def presence(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether each of the K canaries is in, for each of R runs: (R, K).

        Args:
          runs: the indices of the runs, (R,).
        """
        if self.adversary.null.all_in:
            return np.ones((len(runs), self.adversary.canaries), bool)
        return presence(runs, self.adversary.canaries, self.seed)

    def describe_scores(self, first: int, scores: NDArray[np.float64]) -> Scores:
        """Returns scores with what an audit needs beside them: which canaries are in, and two numbers.

        The numbers give the distribution of the score of a canary that is out, where that is known. For
        cosines of uniform directions (the adversary's `law_is_known`) it is the directions' dimension p. For
        canaries that are ranked among fresh draws it is the number of draws. Elsewhere they are 0.

        Args:
          first: the index of the first of n consecutive runs.
          scores: (n, K) their scores.
        """
        dimension = 0
        draws = self.adversary.null.draws
        if self.adversary.null.law_is_known:
            # The size of theta, by its shape alone: nothing is computed, and any key will do.
            dimension = jax.eval_shape(self.init, jax.random.key(0)).size
        runs = np.arange(first, first + len(scores))
        return Scores(first, scores, self.presence(runs), dimension, draws)

    def own_keys(self, runs: NDArray[np.int64]) -> tuple[Array, ...]:
        """Returns (keys (R,),), the runs' own keys, if each run draws its own canaries; else ()."""
        if self.adversary.draw is None:
            return ()
        return (_run_keys(root(self.seed, "own"), runs),)


class Midway(NamedTuple):
    """A chunk of R runs between two segments.

    Attributes:
      first: the index of its first run.
      steps: the number of steps done.
      thetas: the models (R, p).
      scores: () -> the models' scores (R, K), as if training ended now.
      craft: () -> the canaries that the next step may insert, with a leading axis (R,).
    """

    first: int
    steps: int
    thetas: Array
    scores: Callable[[], Array]
    craft: Callable[[], Tree]


RunKey = tuple[Array, ...]  # (key,), a run's own key, if each run draws its own canaries; else ()
Watch = Callable[[Midway], object]  # looks at a chunk after each segment


class _Attack(NamedTuple):
    """The adversary's state from before training, the theta_0 (p,) that it assumes, and the runs' theta_0.

    The last is not used if every run draws its own.
    """

    state: Tree
    assumed_theta_0: Array
    theta_0: Array


def root(seed: int, name: str) -> Array:
    """Returns the named root of a seed's randomness, a typed threefry key (see the module for the names)."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def presence(runs: NDArray[np.int64], canaries: int = 1, seed: int = 0) -> NDArray[np.bool_]:
    """Returns whether each of K canaries is in, for each of R runs: (R, K).

    A single canary is in if the run's index is odd, else out: of consecutive runs, as many have it as lack
    it, give or take a run. Several canaries are each in with probability 1/2, independently.

    Args:
      runs: the indices of the runs, (R,).
      canaries: K, the number of canaries in a run.
      seed: the seed of all randomness.
    """
    if canaries == 1:
        return np.asarray(runs[:, None] % 2 == 1)
    keys = _run_keys(root(seed, "presence"), runs)

    def toss(key: Array) -> Array:
        """Tosses a fair coin for each canary of a run, (K,)."""
        return jax.random.bernoulli(key, shape=(canaries,))

    return np.asarray(jax.vmap(toss)(keys))


def chunk_size(game: Game, runs: int) -> int:
    """Returns how many runs to train at once, for chunks of about equal size that fit cache or memory.

    Args:
      game: the game to play.
      runs: the number of runs in all.
    """
    batch_size = game.schedule.batches.shape[1]  # `batches` is (steps, B)
    example = tuple(jax.ShapeDtypeStruct(part.shape, part.dtype) for part in game.data)
    step_memory = _estimate_memory(game.mechanism, game.init, example, batch_size)
    return ensemble.chunk_size(runs, step_memory)


@functools.lru_cache(ensemble.MOST_PROGRAMS)
def _estimate_memory(
    mechanism: Mechanism,
    init: Callable[[Array], Array],
    data: tuple[Any, ...],
    batch_size: int,
) -> StepMemory:
    """Returns an estimate of the memory that a single run's step takes on data of these shapes and types."""
    theta_0 = init(jax.random.key(0))  # only its shape matters: any key will do
    return mechanism.memory(theta_0, data, batch_size)


def play(
    game: Game,
    ranges: Iterable[tuple[int, int]],
    chunk: int,
    progress: SegmentProgress = lambda runs, steps: None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> Iterator[Scores]:
    """Trains the runs of every range chunk by chunk and yields each chunk's scores.

    Args:
      game: the game to play.
      ranges: ranges of runs, [start, stop). The next is requested only after the caller took the scores of
        the one before.
      chunk: the number of runs of a chunk.
      progress: called with (0, 0) when all is compiled, and with (runs, steps) after each segment.
      checkpoints: the place of checkpoints, if any. A chunk that was interrupted goes on from its last
        checkpoint, and its scores are the same to the bit. A chunk's checkpoints are removed once the caller
        took its scores.
      watch: called with the chunk after each segment.

    Raises:
      InputError: a model diverged.
    """
    player = _ChunkPlayer(game, chunk)
    progress(0, 0)  # all is compiled
    for start, stop in ranges:
        for first in range(start, stop, chunk):
            size = min(chunk, stop - first)
            scores = player.play(first, size, progress, checkpoints, watch)
            _require_finite(scores, first)
            yield game.describe_scores(first, scores)
            if checkpoints is not None:
                checkpoints.drop(player.checkpoint_name(first))


def final_scores(game: Game, thetas: Array, first: int) -> Scores:
    """Returns the scores that a game's adversary gives to final models; it sees no other iterate.

    Args:
      game: the game whose adversary scores.
      thetas: the final models (R, p) of runs first, ..., first + R - 1.
      first: the index of the first run.

    Raises:
      InputError: a model diverged.
    """
    attack = _prepare_attack(game)
    runs = np.arange(first, first + len(thetas))
    # Models and own keys differ by run. What the adversary saw of the iterates is (), nothing.
    score = jax.jit(jax.vmap(_make_score(game.adversary), (None, None, 0, None, 0)))
    scores = score(attack.state, (), thetas, attack.assumed_theta_0, game.own_keys(runs))
    scores = np.asarray(scores, np.float64)
    _require_finite(scores, first)
    return game.describe_scores(first, scores)


class _ChunkPlayer:
    """Plays a game's chunks; it holds the compiled programs, and the arrays that runs share, on the devices.

    Chunks are padded with further runs to one width, so that the same programs serve all of them.
    """

    def __init__(self, game: Game, chunk: int) -> None:
        """Puts shared arrays on the devices, and compiles the segments' programs for chunks of `chunk` runs.

        The programs that score and craft are compiled when they are first called.
        """
        self._game = game
        # A chunk's runs are divided among the devices. If the mechanism can spread a run's step over several
        # devices, there may be more devices than runs.
        self._placement = Placement.local(chunk if game.mechanism.spreads else None)
        # A chunk is padded to this number of runs, which the devices share evenly.
        self._width = self._placement.round_up(chunk)

        # Hyperparameters become traced scalars, so that other values need no other program.
        hyper = jax.tree.map(jnp.float32, game.hyper)
        segments = ensemble.segments(game.schedule, game.segment_steps)
        shared = (hyper, _prepare_attack(game), game.data, segments)
        self._hyper, self._attack, self._data, self._segments = self._placement.everywhere(shared)

        self._begin = _map_begin(_make_begin(game), self._placement)
        # Programs do not depend on the adversary's `init`, which may hold the data.
        adversary = game.adversary._replace(init=_refuse_init)
        self._score = _map_score(adversary, self._placement)
        self._craft = _map_craft(adversary, self._placement)
        self._compiled = self._compile_segments()

    def play(
        self,
        first: int,
        size: int,
        progress: SegmentProgress,
        checkpoints: Checkpoints | None,
        watch: Watch | None,
    ) -> NDArray[np.float64]:
        """Trains runs first, ..., first + size - 1 and returns their scores (size, K).

        Args:
          first: the index of the chunk's first run.
          size: the number of runs that count; the chunk is padded to the width of the compiled programs.
          progress: called after each segment with (size, the segment's steps).
          checkpoints: where states are stored between segments, and looked for before the first.
          watch: called with the chunk after each segment.
        """
        runs = np.arange(first, first + self._width)
        name = self.checkpoint_name(first)
        own_keys = self._placement.by_run(self._game.own_keys(runs))
        drawn = self._draw(runs)

        def score(states: State) -> Array:
            """Returns the scores (size, K) of the chunk's runs in these states, without padding runs."""
            attack = self._attack
            scores: Array = self._score(
                attack.state, states.seen, states.theta, attack.assumed_theta_0, own_keys
            )
            return scores[:size]

        def craft(states: State) -> Tree:
            """Returns the canaries that the next step may insert, with a leading axis (size,)."""
            crafted = self._craft(self._attack.state, states.theta, states.step, own_keys)
            return jax.tree.map(lambda part: part[:size], crafted)

        # `number` counts the segments that are done, those before the checkpoint included.
        done, states = self._resume(checkpoints, name, self._first_states(runs))
        for number, segment in enumerate(self._segments[done:], done + 1):
            steps = len(segment.mask)
            train_segment = self._compiled[steps]
            states = train_segment(*self._arguments(states, segment, drawn))
            jax.block_until_ready(states)  # JAX returns before the steps are done
            progress(size, steps)

            if watch is not None:
                done_steps = int(states.step[0])  # all runs are at the same step
                thetas = states.theta[:size]
                crafted = partial(craft, states)
                watch(Midway(first, done_steps, thetas, partial(score, states), crafted))

            # After the last segment scores are stored instead of a checkpoint.
            if checkpoints is not None and number < len(self._segments):
                checkpoints.offer(name, number, states)
        return np.asarray(score(states), np.float64)

    def checkpoint_name(self, first: int) -> str:
        """Returns a checkpoint's name: the chunk's first run, the padded width, the number of segments."""
        return f"{first:07d}_{self._width}_{len(self._segments)}"

    def _compile_segments(self) -> dict[int, Compiled]:
        """Returns the compiled program of a segment, for each length in steps that a segment has."""
        game = self._game
        # Arguments for a segment of each length. Only their shapes, dtypes and places matter, so that any
        # runs will do.
        runs = np.arange(self._width)
        states = self._first_states(runs)
        drawn = self._draw(runs)
        arguments_by_length = {}
        for segment in self._segments:
            arguments_by_length[len(segment.mask)] = self._arguments(states, segment, drawn)

        program = ensemble.compile_segment(game.mechanism, game.insertion(), self._placement)
        compiled = {}
        for length, arguments in arguments_by_length.items():
            compiled[length] = ensemble.compiled_for(arguments, program)
        return compiled

    def _first_states(self, runs: NDArray[np.int64]) -> State:
        """Returns the states of runs of these indices (R,) before the first step."""
        keys = self._placement.by_run(_run_keys(root(self._game.seed, "theta"), runs))
        attack = self._attack
        states: State = self._begin(keys, attack.theta_0, attack.state, attack.assumed_theta_0)
        return states

    def _arguments(
        self, states: State, segment: Schedule, drawn: tuple[Array, RunKeys]
    ) -> tuple[Tree, ...]:
        """Returns the arguments of the program of `ensemble.compile_segment`, in order, on the devices.

        Args:
          states: the runs' states before the segment.
          segment: the steps to take.
          drawn: what `_draw` returns for the runs.
        """
        return self._hyper, states, self._data, segment, self._attack.state, *drawn

    def _draw(self, runs: NDArray[np.int64]) -> tuple[Array, RunKeys]:
        """Returns what differs between runs of these indices (R,) in all of their segments, on the devices.

        Returns:
          (which canaries are present (R, K), the runs' keys)
        """
        game = self._game
        # 1 for a canary that is in, else 0. If canaries are sampled, it is the probability of joining a step
        # instead of 1.
        present = jnp.float32(game.presence(runs) * game.sampling_rate)
        keys = RunKeys(_run_keys(root(game.seed, "noise"), runs), game.own_keys(runs))
        drawn: tuple[Array, RunKeys] = self._placement.by_run((present, keys))
        return drawn

    def _resume(
        self, checkpoints: Checkpoints | None, name: str, states: State
    ) -> tuple[int, State]:
        """Returns (the number of segments done, the states after them), from a chunk's checkpoint if any.

        Args:
          checkpoints: where to look; None to look nowhere.
          name: the checkpoint's name.
          states: the states before the first step, which are returned, with 0, if no checkpoint fits.
        """
        if checkpoints is None:
            return 0, states

        def fits(done: int, checkpoint: State) -> bool:
            """Returns whether a checkpoint's runs have taken the steps of `done` segments, and some are left.

            No checkpoint is made after the last segment.
            """
            steps = sum(len(segment.mask) for segment in self._segments[:done])
            return done < len(self._segments) and bool(np.all(checkpoint.step == steps))

        done, resumed = checkpoints.resume(name, states, fits)
        # A checkpoint is read into memory: its runs are spread over the devices again.
        return done, self._placement.by_run(resumed)


def initial_models(game: Game, runs: NDArray[np.int64]) -> Array:
    """Returns the models (R, p) that runs begin with: their common theta_0, or a draw of each run's own."""
    if not game.unknown_initialisation:
        theta_0 = game.init(root(game.seed, "theta"))
        return jnp.broadcast_to(theta_0, (len(runs), theta_0.size))
    return jax.vmap(game.init)(_run_keys(root(game.seed, "theta"), runs))


def _prepare_attack(game: Game) -> _Attack:
    """Returns what the adversary decides before training, the theta_0 that it assumes, and the runs' theta_0.

    It assumes the runs' own theta_0, unless their initialisation is unknown to it: then it draws a guess.

    Raises InputError if the adversary's functions break its contract.
    """
    theta_0 = game.init(root(game.seed, "theta"))
    assumed = theta_0
    if game.unknown_initialisation:
        assumed = game.init(root(game.seed, "guess"))
    clipping_norm = jnp.float32(game.hyper.clipping_norm)
    state = game.adversary.init(root(game.seed, "canary"), assumed, clipping_norm)
    leaves, structure = jax.tree.flatten(state)
    types = tuple(map(jax.typeof, leaves))
    functions = game.adversary._replace(init=_refuse_init)
    _require_contract(functions, structure, types, theta_0.size)
    return _Attack(state, assumed, theta_0)


@dataclasses.dataclass(frozen=True)
class _Begin:
    """The function that makes a run's state before the first step, by what is compiled into it.

    Attributes:
      start: theta_0 (p,) -> the mechanism's first state.
      init: run key -> theta_0 (p,), if each run draws its own; None if all runs share theta_0.
      observer: how the adversary sees every iterate, if it does.
    """

    start: Callable[[Array], State]
    init: Callable[[Array], Array] | None
    observer: Observer | None

    def __call__(self, key: Array, theta_0: Array, state: Tree, assumed_theta_0: Array) -> State:
        """Returns a run's state before the first step, with what the observer remembers at the start.

        Args:
          key: the run's key, which is read only if each run draws its own theta_0.
          theta_0: (p,) the runs' common theta_0, if they have one.
          state: the adversary's state.
          assumed_theta_0: (p,) the theta_0 that the adversary assumes.
        """
        first = self.start(theta_0 if self.init is None else self.init(key))
        if self.observer is None:
            return first
        return first._replace(seen=self.observer.begin(state, assumed_theta_0))


@functools.lru_cache(ensemble.MOST_PROGRAMS)
def _require_contract(
    adversary: Adversary,
    structure: PyTreeDef,
    types: tuple[Any, ...],
    parameters: int,
) -> None:
    """Raises InputError if an adversary's functions break its contract; equal functions are traced once.

    Args:
      adversary: the adversary.
      structure: the structure of its state.
      types: the shapes and types of the state's leaves, as by `jax.typeof`.
      parameters: p.
    """
    shapes(adversary, jax.tree.unflatten(structure, types), parameters)


def _make_begin(game: Game) -> _Begin:
    """Returns the function that makes a run's state before the first step."""
    init = game.init if game.unknown_initialisation else None
    return _Begin(game.mechanism.start, init, game.adversary.observer)


# What these functions return stays in memory, with all that their arguments refer to. So they do not get the
# game with its data. Of the arguments of a program that they map over runs, those with axis 0 have a leading
# axis of runs, and all runs share those with axis None.


@functools.lru_cache(ensemble.MOST_PROGRAMS)
def _map_begin(begin: _Begin, placement: Placement) -> Wrapped:
    """Returns the program that makes the states of a chunk's runs before the first step."""
    return placement.over_runs(begin, (0, None, None, None))


@functools.lru_cache(ensemble.MOST_PROGRAMS)
def _map_craft(adversary: Adversary, placement: Placement) -> Wrapped:
    """Returns the program that crafts the canaries which a step may insert into the runs of a chunk.

    Its arguments are the adversary's state, theta before the step, the step's number from 0, and the runs'
    keys: (keys,) if each run draws its own canaries; else ().
    """

    def craft(state: Tree, theta: Array, step: Array, own_key: RunKey) -> Tree:
        """Returns the canaries that a step may insert into a single run."""
        return adversary.craft(adversary.draw_for_run(state, own_key), step, theta)

    return placement.over_runs(craft, (None, 0, 0, 0))


@functools.lru_cache(ensemble.MOST_PROGRAMS)
def _map_score(adversary: Adversary, placement: Placement) -> Wrapped:
    """Returns the program that scores the canaries of a chunk's runs, (R, K); see `_make_score`."""
    return placement.over_runs(_make_score(adversary), (None, 0, 0, None, 0))


def _make_score(adversary: Adversary) -> Callable[[Tree, Tree, Array, Array, RunKey], Array]:
    """Returns the function that scores the canaries of a single run.

    It is (adversary's state, what the adversary remembers of the iterates that it saw, the model theta (p,)
    now or at the end, the theta_0 (p,) that the adversary assumes, run key) -> scores (K,). The run key is
    (key,) if each run draws its own canaries; else ().
    """

    def score(
        state: Tree, seen: Tree, theta: Array, assumed_theta_0: Array, own_key: RunKey
    ) -> Array:
        """Returns the scores (K,) that the adversary gives a single run."""
        return adversary.score(adversary.draw_for_run(state, own_key), seen, theta, assumed_theta_0)

    return score


def _refuse_init(key: Array, theta_0: Array, clipping_norm: Array) -> Tree:
    """Stands in for an adversary's `init` where nothing calls it."""
    raise AssertionError("this adversary has no init")


def _run_keys(key: Array, runs: NDArray[np.int64]) -> Array:
    """Returns a key for each run, (R,), folding its index into a root key."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(runs, jnp.uint32))


def _require_finite(scores: NDArray[np.float64], first: int) -> None:
    """Raises InputError for scores that are not finite, as those of a diverged model.

    Args:
      scores: (n, K) the scores of consecutive runs.
      first: the index of the first run.
    """
    diverged = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    if diverged.size:
        where = (
            f"run {first + diverged[0]} diverged ({diverged.size} of {len(scores)} in its chunk)"
        )
        raise InputError(f"{where}: lower `learning_rate` or `noise_multiplier`")
