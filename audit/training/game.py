"""The distinguishing game: R runs of K canaries, each in or out, become scores, chunk by chunk.

Randomness. Everything is drawn from roots under the seed, each with a name:

    theta    the shared initialisation, or run i's own from fold_in(., i)
    batches  the fixed shuffle
    guess    what an adversary that does not know theta_0 takes it to be
    canary   what the adversary draws before training
    noise    run i's noise at step t from fold_in(fold_in(., i), t), which also gives the coins by which its
             canaries join step t, where they are sampled
    presence run i's coins from fold_in(., i), where it has several canaries
    own      run i's own canaries from fold_in(., i), where an adversary draws them afresh for every run

A run's draws depend only on the seed and its index: not on its chunk, the number of devices or where a
resumed run began.
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
from jax.stages import Compiled, Wrapped
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
    StepMemory,
    Tree,
)
from audit.mechanism.ensemble import Placement
from audit.runtime.machine import Progress, SegmentProgress
from audit.storage.store import Checkpoints, Range, Scores, Store, cut, hold


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

    def presence(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether each of the K canaries is in, (R, K), for the runs of these indices (R,)."""
        if self.adversary.null.all_in:
            return np.ones((len(runs), self.adversary.canaries), bool)
        return presence(runs, self.adversary.canaries, self.seed)

    def run_keys(self, name: str, runs: NDArray[np.int64]) -> Array:
        """Returns a key for each run, (R,): its index folded into the named root."""
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        return fold(root(self.seed, name), jnp.asarray(runs, jnp.uint32))

    def describe_scores(self, first: int, scores: Array) -> Scores:
        """Returns scores with which canaries are in, and two numbers of the law of those that are out.

        For cosines of uniform directions the number is the directions' dimension p. For canaries that are
        ranked among fresh draws it is the number of draws. Elsewhere they are 0.

        Args:
          first: the index of the first of n consecutive runs.
          scores: (n, K) their scores.

        Raises:
          InputError: scores are not finite, as those of a diverged model.
        """
        scores_64 = np.asarray(scores, np.float64)
        diverged = np.flatnonzero(~np.isfinite(scores_64).all(axis=1))
        if diverged.size:
            count = f"{diverged.size} of {len(scores)} in its chunk"
            fix = "lower `learning_rate` or `noise_multiplier`"
            raise InputError(f"run {first + diverged[0]} diverged ({count}): {fix}")
        null = self.adversary.null
        dimension = 0
        if null.law_is_known:  # the size of theta, by its shape: any key will do
            dimension = jax.eval_shape(self.init, jax.random.key(0)).size
        present = self.presence(np.arange(first, first + len(scores)))
        return Scores(first, scores_64, present, dimension, null.draws)


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


Watch = Callable[[Midway], object]  # looks at a chunk after each segment


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
    key = root(seed, "presence")

    def toss(run: Array) -> Array:
        """Tosses a fair coin for each canary of a run, (K,)."""
        return jax.random.bernoulli(jax.random.fold_in(key, run), shape=(canaries,))

    return np.asarray(jax.vmap(toss)(jnp.asarray(runs, jnp.uint32)))


def chunk_size(game: Game, runs: int) -> int:
    """Returns how many of `runs` runs to train at once, for chunks of about equal size that fit memory."""
    batch_size = game.schedule.batches.shape[1]  # `batches` is (steps, B)
    example = tuple(map(jax.typeof, game.data))
    return ensemble.chunk_size(
        runs, _estimate_memory(game.mechanism, game.init, example, batch_size)
    )


@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _estimate_memory(
    mechanism: Mechanism, init: Callable[[Array], Array], data: Any, batch_size: int
) -> StepMemory:
    """Returns an estimate of the memory that a single run's step takes on data of these shapes and types."""
    theta_0 = init(jax.random.key(0))  # only its shape matters: any key will do
    return mechanism.memory(theta_0, data, batch_size)


def play(
    game: Game,
    ranges: Iterable[Range],
    chunk: int,
    progress: SegmentProgress = lambda runs, steps: None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> Iterator[Scores]:
    """Trains the runs of every range chunk by chunk and yields each chunk's scores.

    Args:
      game: the game to play.
      ranges: ranges of runs, [start, stop).
      chunk: the number of runs of a chunk.
      progress: called with (0, 0) when all is compiled, and with (runs, steps) after each segment.
      checkpoints: the place of checkpoints, if any. A chunk that was interrupted goes on from its last
        checkpoint, and its scores are the same to the bit. A chunk's checkpoints are removed once the caller
        took its scores.
      watch: called with the chunk after each segment.

    Raises:
      InputError: a model diverged.
    """
    player = Player(game, chunk)
    progress(0, 0)  # all is compiled
    for first, stop in cut(ranges, chunk):
        yield player.play(first, stop - first, progress, checkpoints, watch)
        if checkpoints is not None:
            checkpoints.drop(player.chunk)


def final_scores(game: Game, thetas: Array, first: int) -> Scores:
    """Returns the scores that a game's adversary gives to final models; it sees no other iterate.

    Args:
      game: the game whose adversary scores.
      thetas: the final models (R, p) of runs first, ..., first + R - 1.
      first: the index of the first run.

    Raises:
      InputError: a model diverged.
    """
    state, assumed_theta_0, _ = _prepare_attack(game)
    own_keys = game.run_keys("own", np.arange(first, first + len(thetas)))

    @jax.jit
    @partial(jax.vmap, in_axes=(None, 0, 0, None))
    def score(state: Tree, own_key: Array, theta: Array, assumed_theta_0: Array) -> Array:
        """Returns the scores (K,) of a run; what the adversary saw of the iterates is (), nothing."""
        own_state = game.adversary.draw_for_run(state, own_key)
        return game.adversary.score(own_state, (), theta, assumed_theta_0)

    return game.describe_scores(first, score(state, own_keys, thetas, assumed_theta_0))


class Player:
    """Plays a game's chunks; it holds the compiled programs, and the arrays that runs share, on the devices.

    Chunks are padded with further runs to one width: the same programs serve all of them.

    Attributes:
      chunk: the name of the checkpoints of the chunk that was played last.
    """

    chunk = ""

    def __init__(self, game: Game, chunk: int) -> None:
        """Puts shared arrays on the devices, and compiles the segments' programs for chunks of `chunk` runs.

        The programs that score and craft are compiled when they are first called.
        """
        self._game = game
        # A chunk's runs are divided among the devices. If the mechanism can spread a run's step over several
        # devices, there may be more devices than runs.
        placement = Placement.local(chunk if game.mechanism.spreads else None)
        self._placement = placement
        rows = placement.mesh.shape["runs"]
        self._width = -(-chunk // rows) * rows  # rounded up, so that the devices share runs evenly

        # Hyperparameters become traced scalars: other values need no other program.
        hyper = jax.tree.map(jnp.float32, game.hyper)
        segments = ensemble.segments(game.schedule, game.segment_steps)
        shared = (hyper, game.data, segments, _prepare_attack(game))
        self._hyper, self._data, self._segments, attack = placement.everywhere(shared)
        self._state, self._assumed_theta_0, self._theta_0 = attack

        # Programs do not depend on the adversary's `init`, which may hold the data.
        adversary = game.adversary._replace(init=_refuse_init)
        init = game.init if game.unknown_initialisation else None
        programs = _map_programs(game.mechanism, adversary, init, game.join, placement)
        self._begin, segment, self._score, self._craft = programs
        # Of arguments only shapes, dtypes and places matter to a program: any runs will do.
        states, drawn = self._draw(np.arange(self._width))
        self._compiled: dict[int, Compiled] = {}
        for part in self._segments:
            if len(part.mask) not in self._compiled:
                arguments = (self._hyper, states, self._data, part, self._state, drawn)
                self._compiled[len(part.mask)] = ensemble.compiled_for(arguments, segment)

    def play(
        self,
        first: int,
        size: int,
        progress: SegmentProgress = lambda runs, steps: None,
        checkpoints: Checkpoints | None = None,
        watch: Watch | None = None,
    ) -> Scores:
        """Trains runs first, ..., first + size - 1 and returns their scores.

        Args:
          first: the index of the chunk's first run.
          size: the number of runs that count; the chunk is padded to the width of the compiled programs.
          progress: called after each segment with (size, the segment's steps).
          checkpoints: where states are stored between segments, and looked for before the first.
          watch: called with the chunk after each segment.

        Raises:
          InputError: a model diverged.
        """
        # By its first run, the padded width and the number of segments.
        self.chunk = f"{first:07d}_{self._width}_{len(self._segments)}"
        states, drawn = self._draw(np.arange(first, first + self._width))
        own_keys = drawn[-1]

        def score(states: State) -> Array:
            """Returns the scores (size, K) of the chunk's runs in these states, without padding runs."""
            seen = (states.seen, states.theta, self._assumed_theta_0)
            scores: Array = self._score(self._state, own_keys, *seen)
            return scores[:size]

        def craft(states: State) -> Tree:
            """Returns the canaries that the next step may insert, with a leading axis (size,)."""
            crafted = self._craft(self._state, own_keys, states.step, states.theta)
            return jax.tree.map(lambda part: part[:size], crafted)

        done = 0  # segments, those before the checkpoint included
        if checkpoints is not None:
            done, states = checkpoints.resume(self.chunk, states, self._fits)
            # A checkpoint is read into memory: its runs are spread over the devices again.
            states = self._placement.by_run(states)
        for number, segment in enumerate(self._segments[done:], done + 1):
            steps = len(segment.mask)
            arguments = (self._hyper, states, self._data, segment, self._state, drawn)
            states = self._compiled[steps](*arguments)
            jax.block_until_ready(states)  # JAX returns before the steps are done
            progress(size, steps)
            if watch is not None:
                watch(
                    Midway(
                        first,
                        steps=int(states.step[0]),  # all runs are at the same step
                        thetas=states.theta[:size],
                        scores=partial(score, states),
                        craft=partial(craft, states),
                    )
                )
            # After the last segment scores are stored instead of a checkpoint.
            if checkpoints is not None and number < len(self._segments):
                checkpoints.offer(self.chunk, number, states)
        return self._game.describe_scores(first, score(states))

    def _fits(self, done: int, checkpoint: State) -> bool:
        """Returns whether a checkpoint's runs have taken the steps of `done` segments, and some are left."""
        steps = sum(len(segment.mask) for segment in self._segments[:done])
        return done < len(self._segments) and bool(np.all(checkpoint.step == steps))

    def _draw(self, runs: NDArray[np.int64]) -> tuple[State, tuple[Array, Array, Array]]:
        """Returns the states of runs of these indices (R,) before the first step, and their own draws.

        The draws are which canaries are present (R, K), the noise's keys (R,) and the own keys (R,). If
        canaries are sampled, the presence of one that is in is the probability of joining a step, not 1.
        """
        game = self._game
        present = jnp.float32(game.presence(runs) * game.sampling_rate)
        drawn = (present, game.run_keys("noise", runs), game.run_keys("own", runs))
        keys, drawn = self._placement.by_run((game.run_keys("theta", runs), drawn))
        return self._begin(keys, self._theta_0, self._state, self._assumed_theta_0), drawn


def initial_models(game: Game, runs: NDArray[np.int64]) -> Array:
    """Returns the models (R, p) that runs begin with: their common theta_0, or a draw of each run's own."""
    if not game.unknown_initialisation:
        theta_0 = game.init(root(game.seed, "theta"))
        return jnp.broadcast_to(theta_0, (len(runs), theta_0.size))
    return jax.vmap(game.init)(game.run_keys("theta", runs))


def _prepare_attack(game: Game) -> tuple[Tree, Array, Array]:
    """Returns the adversary's state from before training, the theta_0 that it assumes, and the runs' theta_0.

    It assumes the runs' own theta_0, unless their initialisation is unknown to it: then it draws a guess, and
    the runs' theta_0 is not used. Raises InputError if the adversary's functions break its contract.
    """
    theta_0 = game.init(root(game.seed, "theta"))
    assumed = theta_0
    if game.unknown_initialisation:
        assumed = game.init(root(game.seed, "guess"))
    clipping_norm = jnp.float32(game.hyper.clipping_norm)
    state = game.adversary.init(root(game.seed, "canary"), assumed, clipping_norm)
    leaves, structure = jax.tree.flatten(state)
    types = tuple(map(jax.typeof, leaves))
    _check_shapes(game.adversary._replace(init=_refuse_init), structure, types, theta_0.size)
    return state, assumed, theta_0


@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _check_shapes(
    adversary: Adversary, structure: PyTreeDef, types: tuple[Any, ...], parameters: int
) -> None:
    """Raises InputError if the adversary's functions, for a state of these types, break its contract."""
    shapes(adversary, jax.tree.unflatten(structure, types), parameters)


# What this function returns stays in memory, with all that its arguments refer to. So it does not get the
# game with its data. Of the arguments of a program that is mapped over runs, those with axis 0 have a leading
# axis of runs, and all runs share those with axis None.
@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _map_programs(
    mechanism: Mechanism,
    adversary: Adversary,
    init: Callable[[Array], Array] | None,
    join: Join | None,
    placement: Placement,
) -> tuple[Wrapped, Wrapped, Wrapped, Wrapped]:
    """Returns the programs of a chunk's runs: they begin, take a segment, are scored (R, K), are crafted for.

    Args:
      mechanism: what trains.
      adversary: the adversary.
      init: run key -> theta_0 (p,), if each run draws its own; None if all runs share theta_0.
      join: the draw of the canaries that join a step, if any.
      placement: the devices.
    """
    observer = adversary.observer

    def begin(key: Array, theta_0: Array, state: Tree, assumed_theta_0: Array) -> State:
        """Returns a run's state before the first step, with what the observer remembers at the start."""
        first = mechanism.start(theta_0 if init is None else init(key))
        if observer is None:
            return first
        return first._replace(seen=observer.begin(state, assumed_theta_0))

    def bind(state: Tree, presence: Array, own_key: Array) -> Canaries:
        """Returns the canaries of a run with this presence (K,) and this own key."""
        state = adversary.draw_for_run(state, own_key)
        observe = None
        if observer is not None:
            observe = partial(observer.observe, state)
        craft = partial(adversary.craft, state)
        return Canaries(craft, presence, observe, adversary.crafts_constant, join)

    def score(state: Tree, own_key: Array, seen: Tree, theta: Array, theta_0: Array) -> Array:
        """Returns the scores (K,) of a run's model."""
        return adversary.score(adversary.draw_for_run(state, own_key), seen, theta, theta_0)

    def craft(state: Tree, own_key: Array, step: Array, theta: Array) -> Tree:
        """Returns the canaries of a run's step."""
        return adversary.craft(adversary.draw_for_run(state, own_key), step, theta)

    return (
        placement.over_runs(begin, (0, None, None, None)),
        ensemble.map_segment(mechanism, bind, placement),
        placement.over_runs(score, (None, 0, 0, 0, None)),
        placement.over_runs(craft, (None, 0, 0, 0)),
    )


def _refuse_init(key: Array, theta_0: Array, clipping_norm: Array) -> Tree:
    """Stands in for an adversary's `init` where nothing calls it."""
    raise AssertionError("this adversary has no init")


class Trained(NamedTuple):
    """The scores of an audit, and what training them took in this process.

    Attributes:
      scores: the scores of all runs, whichever process trained them.
      trained_runs: the number of runs that this process trained.
      seconds: the seconds of training, without compilation and simulation.
      chunk: the number of runs of a chunk.
      model_steps: the steps of all models in these seconds; steps that a checkpoint held do not count.
    """

    scores: Scores
    trained_runs: int = 0
    seconds: float = 0.0
    chunk: int = 0
    model_steps: int = 0

    def after(self, earlier: "Trained | None") -> "Trained":
        """Returns this result with what an earlier call on the same store spent added."""
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
    """Trains the runs that the store lacks, chunk by chunk, and returns the scores of all runs.

    One process at a time trains in a store; others wait. If memory runs out, chunks are halved, with a line
    on stderr, and training goes on.

    Args:
      game: the game to train.
      store: the store of scores and checkpoints.
      runs: the number of runs to have in all.
      chunk: the number of runs of a chunk; 0: as many as this machine's memory or cache holds.
      checkpoint_seconds: the least time between two checkpoints of a chunk's states; 0: one after each
        segment.
      progress: called with the number of runs that were trained since the last call, parts of runs too.
      watch: called with a chunk after each segment.

    Raises:
      InputError: memory runs out with a single run at a time, or a run diverged.
    """
    if not store.missing(runs):
        return Trained(store.load(runs))  # nothing to train

    checkpoints = Checkpoints(store.checkpoints, checkpoint_seconds)
    begin = end = time.perf_counter()
    model_steps = 0  # since all was compiled
    trained_runs = 0

    def advance(finished_runs: int, finished_steps: int) -> None:
        """Counts a segment that some runs finished, and reports it as a number of runs, maybe a fraction."""
        nonlocal begin, end, model_steps
        end = time.perf_counter()
        finished = finished_runs * finished_steps
        model_steps += finished
        if not finished:  # the first call, once all is compiled
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
                # The chunks that are stored stay, and the others are still missing.
                size //= 2
                require(size, "out of memory with one run at a time: lower `batch_size`")
                print(f"out of memory: going on with chunks of {size} runs", file=sys.stderr)
        checkpoints.clear()
    return Trained(store.load(runs), trained_runs, end - begin, size, model_steps)


def _is_out_of_memory(error: Exception) -> bool:
    """Returns whether an error is JAX's for a device that ran out of memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


class ChunkTrainer:
    """Trains chunks of a game on request; its programs and data stay on the devices between requests."""

    def __init__(self, game: Game, size: int) -> None:
        """Makes a trainer of a game in chunks of at most `size` runs, which compiles at the first `train`."""
        self._make_player = functools.cache(partial(Player, game, size))

    def train(self, chunk: Range) -> Scores | None:
        """Trains the runs [start, stop) of a chunk; returns their scores, or None if memory ran out.

        Raises InputError if a run diverged.
        """
        first, stop = chunk
        try:
            return self._make_player().play(first, stop - first)
        except jax.errors.JaxRuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return None
