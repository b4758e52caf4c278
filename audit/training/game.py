"""The distinguishing game: R runs of K canaries, each in or out, become scores, chunk by chunk.

Every draw comes from a named root under the seed:

    theta    the shared initialisation, or run i's own from fold_in(., i)
    batches  the fixed shuffle
    guess    the theta_0 that an adversary assumes if it does not know the real one
    canary   the adversary's draws before training
    noise    run i's noise at step t, and the coins of sampled canaries, from fold_in(fold_in(., i), t)
    presence run i's coins from fold_in(., i), if it has several canaries
    own      run i's own canaries from fold_in(., i), if the adversary draws canaries for each run

A run's draws do not depend on its chunk, the number of devices or a resume.
"""

import functools
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.stages import Wrapped
from jax.tree_util import PyTreeDef
from numpy.typing import NDArray

from audit.adversaries.base import Adversary, shapes
from audit.errors import InputError, require
from audit.mechanism import ensemble
from audit.mechanism.base import (
    Canaries,
    Data,
    Hyperparameters,
    Join,
    Mechanism,
    Schedule,
    State,
    Tree,
)
from audit.mechanism.ensemble import Placement
from audit.runtime.machine import Progress, SegmentProgress
from audit.storage.store import Checkpoints, Range, Scores, Store, cut, hold


class Game(NamedTuple):
    """A training configuration and its adversary.

    Games with equal functions share compiled programs. Arrays and numbers are arguments of these programs.

    Attributes:
      mechanism, adversary: how to train, and who attacks.
      init: key -> theta_0 (p,).
      data: the training data.
      hyper: the mechanism's hyperparameters.
      schedule: the mini-batches and the insertion mask.
      seed: the seed of all randomness.
      unknown_initialisation: whether each run draws its own theta_0. The adversary then assumes another draw.
      join: draws which canaries join a step, unseen by the adversary; None if all inserted canaries join.
      sampling_rate: the presence that `join` gets for an inserted canary.
      segment_steps: the largest number of steps between two progress reports or checkpoints.
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

    def presence(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether each of the K canaries is inserted, (R, K), in the runs of these indices (R,).

        Unless all are, a single canary is inserted in runs with an odd index. Of several canaries, each is
        inserted with probability 1/2, independently.
        """
        if self.adversary.null.all_in:
            return np.ones((len(runs), self.adversary.canaries), bool)
        if self.adversary.canaries == 1:
            return np.asarray(runs[:, None] % 2 == 1)
        key = root(self.seed, "presence")

        def toss(run: Array) -> Array:
            """Tosses a fair coin for each canary of a run, (K,)."""
            run_key = jax.random.fold_in(key, run)
            return jax.random.bernoulli(run_key, shape=(self.adversary.canaries,))

        return np.asarray(jax.vmap(toss)(jnp.asarray(runs, jnp.uint32)))

    def run_keys(self, name: str, runs: NDArray[np.int64]) -> Array:
        """Returns a key for each run, (R,): its index folded into the named root."""
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        return fold(root(self.seed, name), jnp.asarray(runs, jnp.uint32))

    def describe_scores(self, first: int, scores: Array) -> Scores:
        """Returns the scores (n, K) of runs first, first + 1, ... with their presence and null law's numbers.

        Raises InputError if scores are not finite, because a model diverged.
        """
        scores_64 = np.asarray(scores, np.float64)
        diverged = np.flatnonzero(~np.isfinite(scores_64).all(axis=1))
        if diverged.size:
            count = f"{diverged.size} of {len(scores)} in its chunk"
            fix = "lower `learning_rate` or `noise_multiplier`"
            raise InputError(f"run {first + diverged[0]} diverged ({count}): {fix}")
        null = self.adversary.null
        dimension = 0
        if null.law_is_known:
            size = jax.eval_shape(self.init, jax.random.key(0)).size
            dimension = size if null.dimension is None else null.dimension
        present = self.presence(np.arange(first, first + len(scores)))
        return Scores(first, scores_64, present, dimension, null.draws)


class Midway(NamedTuple):
    """A chunk of R runs between two segments.

    Attributes:
      first: the index of its first run.
      steps: the number of completed steps.
      thetas: the models (R, p).
      scores: () -> the models' scores (R, K) if training ended now.
      state: the adversary's state, common to all runs.
      own_keys: the runs' keys (R,) for `Adversary.draw_for_run`.
    """

    first: int
    steps: int
    thetas: Array
    scores: Callable[[], Array]
    state: Tree
    own_keys: Array


Watch = Callable[[Midway], object]


def root(seed: int, name: str) -> Array:
    """Returns a named root of a seed's randomness, a typed threefry key. The module lists the names."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def chunk_size(game: Game, runs: int) -> int:
    """Returns the number of runs to train at once: chunks fit into memory and have about equal sizes."""
    batch_size = game.schedule.batches.shape[1]
    example = tuple(map(jax.typeof, game.data))
    return ensemble.chunk_size(
        runs, _estimate_memory(game.mechanism, game.init, example, batch_size)
    )


@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _estimate_memory(
    mechanism: Mechanism, init: Callable[[Array], Array], data: Any, batch_size: int
) -> int:
    """Estimates the bytes of one run's step on data of these shapes and types."""
    theta_0 = init(jax.random.key(0))  # only its shape matters
    return mechanism.memory(theta_0, data, batch_size)


def play(
    game: Game,
    ranges: Iterable[Range],
    chunk: int,
    progress: SegmentProgress = lambda runs, steps: None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> Iterator[Scores]:
    """Trains the runs of all ranges chunk by chunk and yields each chunk's scores.

    Args:
      game: the game to play.
      ranges: ranges of runs, [start, stop).
      chunk: the number of runs of a chunk.
      progress: called with (0, 0) after compilation, and with (runs, steps) after each segment.
      checkpoints: an interrupted chunk continues from its last checkpoint with bit-identical scores. Its
        checkpoints are removed after the caller took its scores.
      watch: called with the chunk after each segment.

    Raises:
      InputError: a model diverged.
    """
    player = Player(game, chunk)
    progress(0, 0)
    for first, stop in cut(ranges, chunk):
        yield player.play(first, stop - first, progress, checkpoints, watch)
        if checkpoints is not None:
            checkpoints.drop(player.chunk)


def final_scores(game: Game, thetas: Array, first: int) -> Scores:
    """Returns the scores of the final models (R, p) of runs first, first + 1, ...

    The adversary sees no other iterate. Raises InputError if a model diverged.
    """
    state, assumed_theta_0, _ = _prepare_attack(game)
    own_keys = game.run_keys("own", np.arange(first, first + len(thetas)))

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0, 0, None))
    def score(state: Tree, own_key: Array, theta: Array, assumed_theta_0: Array) -> Array:
        """Returns the scores (K,) of a run; the adversary saw no iterates: ()."""
        own_state = game.adversary.draw_for_run(state, own_key)
        return game.adversary.score(own_state, (), theta, assumed_theta_0)

    return game.describe_scores(first, score(state, own_keys, thetas, assumed_theta_0))


class Player:
    """Plays a game's chunks with its compiled programs and shared arrays, which stay on the devices.

    Chunks are padded with further runs to a common width, so they share programs. `chunk` names the last
    chunk's checkpoints.
    """

    chunk = ""

    def __init__(self, game: Game, chunk: int) -> None:
        """Compiles the segments' programs for chunks of `chunk` runs, and puts shared arrays on devices."""
        self._game = game
        # A step that is spread can use more devices than a chunk has runs.
        placement = Placement.local(chunk if game.mechanism.spreads else None)
        self._placement = placement
        rows = placement.mesh.shape["runs"]
        # Each device gets the same number of runs.
        self._width = -(-chunk // rows) * rows

        # Programs do not depend on their values.
        hyper = jax.tree.map(jnp.float32, game.hyper)
        segments = ensemble.segments(game.schedule, game.segment_steps)
        shared = (hyper, game.data, segments, _prepare_attack(game))
        self._hyper, self._data, self._segments, attack = placement.everywhere(shared)
        self._state, self._assumed_theta_0, self._theta_0 = attack

        # `init` may contain the data.
        adversary = game.adversary._replace(init=_refuse_init)
        init = game.init if game.unknown_initialisation else None
        programs = _map_programs(game.mechanism, adversary, init, game.join, placement)
        self._begin, self._train, self._score = programs
        # Any runs will do: a program depends only on its arguments' shapes, dtypes and devices. All segments
        # have the length of the first, except the last.
        states, drawn = self._draw(np.arange(self._width))
        for part in (self._segments[0], self._segments[-1]):
            arguments = (self._hyper, states, self._data, part, self._state, drawn)
            self._train.lower(*arguments).compile()

    def play(
        self,
        first: int,
        size: int,
        progress: SegmentProgress = lambda runs, steps: None,
        checkpoints: Checkpoints | None = None,
        watch: Watch | None = None,
    ) -> Scores:
        """Trains runs first, ..., first + size - 1 and returns their scores.

        `progress`, `checkpoints` and `watch` are as in `play`. Raises InputError if a model diverged.
        """
        self.chunk = f"{first:07d}_{self._width}_{len(self._segments)}"
        states, drawn = self._draw(np.arange(first, first + self._width))
        own_keys = drawn[-1]

        def score(states: State) -> Array:
            """Returns the scores (size, K) of the chunk's runs in these states."""
            seen = (states.seen, states.theta, self._assumed_theta_0)
            scores: Array = self._score(self._state, own_keys, *seen)
            return scores[:size]

        done = 0  # segments
        if checkpoints is not None:
            done, states = checkpoints.resume(self.chunk, states, self._fits)
            states = self._placement.by_run(states)
        for number, segment in enumerate(self._segments[done:], done + 1):
            states = self._train(self._hyper, states, self._data, segment, self._state, drawn)
            jax.block_until_ready(states)  # JAX returns before
            progress(size, len(segment.mask))
            if watch is not None:
                watch(
                    Midway(
                        first,
                        steps=int(states.step[0]),
                        thetas=states.theta[:size],
                        scores=partial(score, states),
                        state=self._state,
                        own_keys=own_keys[:size],
                    )
                )
            if checkpoints is not None and number < len(self._segments):
                checkpoints.offer(self.chunk, number, states)
        return self._game.describe_scores(first, score(states))

    def _fits(self, done: int, checkpoint: State) -> bool:
        """Returns whether a checkpoint's runs completed exactly `done` segments, and some are left."""
        steps = sum(len(segment.mask) for segment in self._segments[:done])
        return done < len(self._segments) and bool(np.all(checkpoint.step == steps))

    def _draw(self, runs: NDArray[np.int64]) -> tuple[State, tuple[Array, Array, Array]]:
        """Returns the states of runs of these indices (R,) before the first step, and the runs' draws.

        The draws are the presence of canaries (R, K), or their probability of joining a step, the noise's
        keys (R,) and the own keys (R,).
        """
        game = self._game
        present = jnp.float32(game.presence(runs) * game.sampling_rate)
        drawn = (present, game.run_keys("noise", runs), game.run_keys("own", runs))
        keys, drawn = self._placement.by_run((game.run_keys("theta", runs), drawn))
        return self._begin(keys, self._theta_0, self._state, self._assumed_theta_0), drawn


def initial_models(game: Game, runs: NDArray[np.int64]) -> Array:
    """Returns the initial models (R, p) of runs: their common theta_0, or a draw for each run."""
    if not game.unknown_initialisation:
        theta_0 = game.init(root(game.seed, "theta"))
        return jnp.broadcast_to(theta_0, (len(runs), theta_0.size))
    return jax.vmap(game.init)(game.run_keys("theta", runs))


def _prepare_attack(game: Game) -> tuple[Tree, Array, Array]:
    """Returns the adversary's state before training, the theta_0 that it assumes, and the runs' theta_0.

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
    # Without `init`, which may contain the data, adversaries of many cells are equal.
    _check_shapes(game.adversary._replace(init=_refuse_init), structure, types, theta_0.size)
    return state, assumed, theta_0


@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _check_shapes(
    adversary: Adversary, structure: PyTreeDef, types: tuple[Any, ...], parameters: int
) -> None:
    """Raises InputError if the adversary's functions, for a state of these types, break its contract."""
    shapes(adversary, jax.tree.unflatten(structure, types), parameters)


# The cache keeps all arguments in memory, so it does not get the game with its data.
@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _map_programs(
    mechanism: Mechanism,
    adversary: Adversary,
    init: Callable[[Array], Array] | None,
    join: Join | None,
    placement: Placement,
) -> tuple[Wrapped, Wrapped, Wrapped]:
    """Returns the programs that begin a chunk's runs, train a segment, and score (R, K).

    `init` is run key -> theta_0 (p,) if each run draws its own, or None if all runs share theta_0.
    """
    observer = adversary.observer

    def begin(key: Array, theta_0: Array, state: Tree, assumed_theta_0: Array) -> State:
        """Returns a run's state before the first step, with the observer's first memory."""
        first = mechanism.start(theta_0 if init is None else init(key))
        if observer is None:
            return first
        return first._replace(seen=observer.begin(state, assumed_theta_0))

    def take_segment(
        hyper: Hyperparameters,
        before: State,
        data: Data,
        schedule: Schedule,
        state: Tree,
        drawn: tuple[Array, Array, Array],
    ) -> State:
        """Returns a run after a schedule; `drawn` is its presence (K,), noise key and own key."""
        presence, noise_key, own_key = drawn
        state = adversary.draw_for_run(state, own_key)
        observe = None
        if observer is not None:
            observe = partial(observer.observe, state)
        craft = partial(adversary.craft, state)
        canaries = Canaries(craft, presence, observe, adversary.crafts_constant, join)
        return mechanism.segment(hyper, before, data, schedule, canaries, noise_key)

    def score(state: Tree, own_key: Array, seen: Tree, theta: Array, theta_0: Array) -> Array:
        """Returns the scores (K,) of a run's model."""
        return adversary.score(adversary.draw_for_run(state, own_key), seen, theta, theta_0)

    return (
        placement.over_runs(begin, (0, None, None, None)),
        placement.over_runs(take_segment, (None, 0, None, None, None, 0), donated=(1,)),
        placement.over_runs(score, (None, 0, 0, 0, None)),
    )


def _refuse_init(key: Array, theta_0: Array, clipping_norm: Array) -> Tree:
    """Replaces an adversary's `init` in programs that never call it."""
    raise AssertionError("this adversary has no init")


class Trained(NamedTuple):
    """The scores of an audit, and the cost of training in this process.

    Attributes:
      scores: the scores of all runs, also those that other processes trained.
      trained_runs: the number of runs that this process trained.
      seconds: the training time, without compilation and simulation.
      chunk: the number of runs of a chunk.
      model_steps: the steps of all models in this time, without those from checkpoints.
    """

    scores: Scores
    trained_runs: int = 0
    seconds: float = 0.0
    chunk: int = 0
    model_steps: int = 0

    def after(self, earlier: "Trained | None") -> "Trained":
        """Returns this result with the cost of an earlier call on the same store added."""
        if earlier is None:
            return self
        return self._replace(
            trained_runs=earlier.trained_runs + self.trained_runs,
            seconds=earlier.seconds + self.seconds,
            chunk=max(earlier.chunk, self.chunk),
            model_steps=earlier.model_steps + self.model_steps,
        )


def train(
    game: Game,
    store: Store,
    runs: int,
    chunk: int = 0,
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda runs: None,
    watch: Watch | None = None,
) -> Trained:
    """Trains the missing runs of a store chunk by chunk, and returns the scores of all runs.

    One process at a time trains in a store; others wait. If memory runs out, training continues with chunks
    of half the size, and reports this on stderr.

    Args:
      game: the game to train.
      store: the store of scores and checkpoints.
      runs: the total number of runs.
      chunk: the number of runs of a chunk; 0: what fits into this machine's memory or cache.
      checkpoint_seconds: the minimum time between two checkpoints; 0: one after each segment.
      progress: called with the number of runs trained since the last call, which may be a fraction.
      watch: called with a chunk after each segment.

    Raises:
      InputError: memory runs out with a single run at a time, or a run diverged.
    """
    if not store.missing(runs):
        return Trained(store.load(runs))

    checkpoints = Checkpoints(store.checkpoints, checkpoint_seconds)
    begin = end = time.perf_counter()
    model_steps = 0  # since compilation
    trained_runs = 0

    def advance(finished_runs: int, finished_steps: int) -> None:
        """Counts a finished segment, and reports it as a fractional number of runs."""
        nonlocal begin, end, model_steps
        end = time.perf_counter()
        finished = finished_runs * finished_steps
        model_steps += finished
        if not finished:  # the first call, after compilation
            begin = end
            model_steps = 0
        progress(finished / len(game.schedule.mask))

    size = min(chunk, runs) or chunk_size(game, runs)
    with hold(store.path):
        while missing := store.missing(runs):
            try:
                for scores in play(game, cut(missing, size), size, advance, checkpoints, watch):
                    store.save(scores)
                    trained_runs += len(scores.scores)
            except jax.errors.JaxRuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                size //= 2
                require(size, "out of memory with one run at a time: lower `batch_size`")
                print(f"out of memory: going on with chunks of {size} runs", file=sys.stderr)
        checkpoints.clear()
    return Trained(store.load(runs), trained_runs, end - begin, size, model_steps)


def _is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error is JAX's for a device that ran out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


class ChunkTrainer:
    """Trains chunks of a game on request, and keeps its programs and data on the devices between requests."""

    def __init__(self, game: Game, size: int) -> None:
        """Makes a trainer for chunks of at most `size` runs; the first `train` compiles."""
        self._make_player = functools.cache(partial(Player, game, size))

    def train(self, chunk: Range) -> Scores | None:
        """Trains the runs [start, stop) of a chunk; returns their scores, or None if memory ran out."""
        first, stop = chunk
        try:
            return self._make_player().play(first, stop - first)
        except jax.errors.JaxRuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return None
