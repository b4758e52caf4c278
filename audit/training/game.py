"""Trains the runs of an audit in chunks and scores their canaries.

An audit has R runs with K canaries each. All randomness comes from keys derived from the seed and a name:

    theta     the initial model that all runs share; otherwise run i draws its own from fold_in(key, i)
    batches   the mini-batches, the same in all runs
    guess     the adversary's guessed initial model, if it does not know the real one
    canary    the adversary's draws before training
    noise     fold_in(fold_in(key, i), t): run i's noise at step t, and which sampled canaries join the step
    presence  fold_in(key, i): which of several canaries run i inserts
    own       fold_in(key, i): the canaries of run i, if every run draws its own

So a run's draws do not depend on chunks, devices or interruptions.
"""

import functools
import math
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
from numpy.typing import NDArray

from audit.adversaries.base import Adversary, check_shapes
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
from audit.runtime.machine import Progress
from audit.storage.store import Checkpoints, Range, Scores, Store, cut, hold


class Game(NamedTuple):
    """The distinguishing game: how models are trained, and how an adversary inserts and scores canaries.

    Games with equal functions share compiled programs.

    Attributes:
      mechanism: the functions that train.
      adversary: the functions that insert and score canaries.
      init: (key) -> an initial model theta_0 (p,).
      schedule: the mini-batches, and the steps that insert canaries.
      unknown_initialisation: True if each run draws its own theta_0. The adversary then guesses it at random.
      join: draws the inserted canaries that join a step, hidden from the adversary; None if they all join.
      sampling_rate: the probability that an inserted canary joins a step under Poisson sampling; else 1.
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
        """Returns a mask (R, K) of the canaries inserted by the runs with these indices (R,).

        With `null.all_in`, every run inserts all canaries, because held-out scores have a known
        distribution. Otherwise, odd-numbered runs insert a single canary; with several, a fair coin decides
        for each.
        """
        canaries = self.adversary.canaries
        if self.adversary.null.all_in:
            return np.ones((len(runs), canaries), bool)
        if canaries == 1:
            return runs[:, None] % 2 == 1  # (R, 1)
        toss = partial(jax.random.bernoulli, shape=(canaries,))
        return np.asarray(jax.vmap(toss)(self.run_keys("presence", runs)))

    def run_keys(self, name: str, runs: NDArray[np.int64]) -> Array:
        """Returns the keys (R,) of runs: a named key with each run's index folded in."""
        fold = jax.vmap(jax.random.fold_in, (None, 0))
        return fold(root(self.seed, name), jnp.asarray(runs, jnp.uint32))

    def describe_scores(self, first: int, scores: Array) -> Scores:
        """Returns the scores (n, K) of runs `first` to `first + n - 1` as a record for the store.

        Raises InputError if a score is not finite, which means that the model diverged.
        """
        scores_64 = np.asarray(scores, np.float64)
        diverged = np.flatnonzero(~np.isfinite(scores_64).all(axis=1))
        if diverged.size:
            raise InputError(
                f"run {first + diverged[0]} diverged ({diverged.size} of {len(scores)} in its chunk): "
                "lower `learning_rate` or `noise_multiplier`"
            )
        null = self.adversary.null
        present = self.presence(np.arange(first, first + len(scores)))
        return Scores(first, scores_64, present, null.dimension, null.draws)


class Draws(NamedTuple):
    """The random inputs of R runs; inside compiled programs, those of a single run.

    Attributes:
      presence: (R, K) 0 for held-out canaries; `Game.sampling_rate` for others.
      noise_keys: (R,) the keys for the noise.
      canary_keys: (R,) the keys for `Adversary.draw_for_run`.
    """

    presence: Array
    noise_keys: Array
    canary_keys: Array


class Midway(NamedTuple):
    """A chunk of R runs between two segments.

    Attributes:
      first: the index of the chunk's first run.
      steps: the number of completed steps.
      thetas: the models (R, p).
      state: the adversary's state, shared by all runs.
    """

    first: int
    steps: int
    thetas: Array
    state: Tree


Watch = Callable[[Midway], object]  # called after each segment


def root(seed: int, name: str) -> Array:
    """Returns the key for a seed and a kind of random draw, such as "noise" (see the module docstring)."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def chunk_size(game: Game, runs: int) -> int:
    """Returns how many of `runs` runs to train at once, in chunks of nearly equal size."""
    batch_size = game.schedule.batches.shape[1]
    data_types = tuple(map(jax.typeof, game.data))
    memory = _estimate_memory(game.mechanism, game.init, data_types, batch_size)
    return ensemble.chunk_size(runs, memory)


@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _estimate_memory(
    mechanism: Mechanism, init: Callable[[Array], Array], data: Any, batch_size: int
) -> int:
    """Estimates the memory, in bytes, that one run needs for a step.

    `data` contains only shapes and types, because the cache would keep arrays in memory.
    """
    theta_0 = init(jax.random.key(0))  # any model of the right shape
    return mechanism.memory(theta_0, data, batch_size)


def final_scores(game: Game, thetas: Array, first: int) -> Scores:
    """Scores the final models (R, p) of runs `first` to `first + R - 1`.

    The adversary must not observe earlier models. Raises InputError if a model diverged.
    """
    state, guessed_theta_0, _ = _prepare_attack(game)
    canary_keys = game.run_keys("own", np.arange(first, first + len(thetas)))
    seen = ()
    score = jax.jit(jax.vmap(game.adversary.score_run, (None, 0, None, 0, None)))
    return game.describe_scores(first, score(state, canary_keys, seen, thetas, guessed_theta_0))


class Player:
    """Trains a game's runs in chunks, and keeps compiled programs and shared arrays on the devices."""

    def __init__(
        self,
        game: Game,
        chunk: int,
        progress: Progress = lambda runs: None,
        checkpoints: Checkpoints | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Compiles programs for chunks of up to `chunk` runs and copies shared arrays to the devices.

        Args:
          progress: called with 0 after compilation, and after each segment with its share of the runs, such
            as 2.5 for a quarter of 10 runs.
          checkpoints: let interrupted chunks continue, with bit-identical scores.
          watch: called with the chunk after each segment.

        Raises:
          InputError: the adversary's functions break its contract.
        """
        self._game = game
        self._chunk = chunk
        self._progress = progress
        self._checkpoints = checkpoints
        self._watch = watch
        # `local` needs the number of concurrent runs only to spread a run over several devices.
        placement = Placement.local(chunk if game.mechanism.spreads else None)
        self._placement = placement
        # The mesh axis "runs" splits a chunk into equal parts. We pad shorter chunks to this width, so they
        # can use the same programs.
        parts = placement.mesh.shape["runs"]
        self._width = math.ceil(chunk / parts) * parts

        # Programs do not call `init`, which may hold a reference that keeps the data in memory.
        adversary = game.adversary._replace(init=None)  # type: ignore[arg-type]
        # Arrays become arguments of the programs instead of compiled constants.
        hyper = jax.tree.map(jnp.float32, game.hyper)
        segments = ensemble.segments(game.schedule, game.segment_steps)
        shared = (hyper, game.data, segments, _prepare_attack(game))
        self._hyper, self._data, self._segments, attack = placement.everywhere(shared)
        self._attack_state, self._guessed_theta_0, self._theta_0 = attack
        _check_shapes(adversary, self._attack_state, self._theta_0)

        draw_own_theta_0 = game.init if game.unknown_initialisation else None
        self._begin, self._train, self._score = _map_programs(
            game.mechanism, adversary, draw_own_theta_0, game.join, placement
        )
        self._compile()
        progress(0)

    def _compile(self) -> None:
        """Compiles the program for a segment, so training time excludes compilation.

        The other programs compile quickly when first called.
        """
        states, draws = self._draw(np.arange(self._width))
        # Only the last segment may differ in length from the first.
        for segment in (self._segments[0], self._segments[-1]):
            self._train.lower(
                self._hyper, states, self._data, segment, self._attack_state, draws
            ).compile()

    def play_all(self, ranges: Iterable[Range]) -> Iterator[Scores]:
        """Trains the runs in ranges [start, stop), one chunk at a time, and yields each chunk's scores."""
        for first, stop in cut(ranges, self._chunk):
            yield self.play(first, stop - first)
            # The caller stores the scores before it asks for more.
            if self._checkpoints is not None:
                self._checkpoints.drop(self._name_chunk(first))

    def play(self, first: int, size: int) -> Scores:
        """Trains runs `first` to `first + size - 1` and returns their scores.

        Programs train `_width` runs at once, so runs beyond `size` are dropped. Raises InputError if a model
        diverged.
        """
        states, draws = self._draw(np.arange(first, first + self._width))
        name = self._name_chunk(first)
        checkpoints = self._checkpoints

        resumed = 0  # segments completed before an interruption
        if checkpoints is not None:
            resumed, states = checkpoints.resume(name, states)
            states = self._placement.by_run(states)
        all_steps = len(self._game.schedule.mask)
        for completed, segment in enumerate(self._segments[resumed:], resumed + 1):
            states = self._train(
                self._hyper, states, self._data, segment, self._attack_state, draws
            )
            jax.block_until_ready(states)  # JAX calls return before the computation ends
            self._progress(size * len(segment.mask) / all_steps)
            if self._watch is not None:
                self._watch(
                    Midway(
                        first,
                        steps=int(states.step[0]),
                        thetas=states.theta[:size],  # without padding
                        state=self._attack_state,
                    )
                )
            if checkpoints is not None and completed < len(self._segments):
                checkpoints.offer(name, completed, states)
        # The adversary may not know theta_0.
        scores = self._score(
            self._attack_state, draws.canary_keys, states.seen, states.theta, self._guessed_theta_0
        )
        return self._game.describe_scores(first, scores[:size])

    def _name_chunk(self, first: int) -> str:
        """Returns the name of the checkpoints for the chunk that begins with run `first`.

        The name includes the width and the segments, so a `Player` with other widths or segments ignores
        these checkpoints.
        """
        steps = len(self._segments[0].mask)  # in each segment, except perhaps the last
        return f"{first:07d}_{self._width}_{len(self._segments)}x{steps}"

    def _draw(self, runs: NDArray[np.int64]) -> tuple[State, Draws]:
        """Returns the initial states and the random inputs of the runs with these indices (R,).

        Both are split across the devices.
        """
        game = self._game
        draws = Draws(
            # With Poisson sampling, presence is the probability that a canary joins a step.
            presence=jnp.float32(game.presence(runs) * game.sampling_rate),
            noise_keys=game.run_keys("noise", runs),
            canary_keys=game.run_keys("own", runs),
        )
        keys, draws = self._placement.by_run((game.run_keys("theta", runs), draws))
        # Runs with their own initial models draw them from `keys` and ignore theta_0. The adversary uses its
        # guess.
        return self._begin(keys, self._theta_0, self._attack_state, self._guessed_theta_0), draws


def initial_models(game: Game, runs: NDArray[np.int64]) -> Array:
    """Returns the initial models (R, p) of the runs with these indices (R,)."""
    if not game.unknown_initialisation:
        theta_0 = game.init(root(game.seed, "theta"))
        return jnp.broadcast_to(theta_0, (len(runs), theta_0.size))
    return jax.vmap(game.init)(game.run_keys("theta", runs))


def _prepare_attack(game: Game) -> tuple[Tree, Array, Array]:
    """Returns the adversary's state before training, its guessed theta_0 (p,), and the shared theta_0."""
    theta_0 = game.init(root(game.seed, "theta"))
    guessed = theta_0
    if game.unknown_initialisation:
        guessed = game.init(root(game.seed, "guess"))
    clipping_norm = jnp.float32(game.hyper.clipping_norm)
    state = game.adversary.init(root(game.seed, "canary"), guessed, clipping_norm)
    return state, guessed, theta_0


@partial(jax.jit, static_argnums=0)  # to check equal functions only once
def _check_shapes(adversary: Adversary, state: Tree, theta_0: Array) -> None:
    """Raises InputError if the adversary's functions break the contract of `Adversary`."""
    check_shapes(adversary, state, theta_0.size)


# The cache keeps all arguments in memory, so we do not pass the game, which contains the data.
@functools.lru_cache(ensemble.MAX_PROGRAMS)
def _map_programs(
    mechanism: Mechanism,
    adversary: Adversary,
    draw_initial: Callable[[Array], Array] | None,
    join: Join | None,
    placement: Placement,
) -> tuple[Wrapped, Wrapped, Wrapped]:
    """Returns three programs for R runs: to begin, train for some steps, and score the models (R, p).

    `draw_initial` maps a run's key to its own theta_0 (p,); it is None if all runs share theta_0. `join` is
    as in `Game`.
    """
    observer = adversary.observer

    def begin(key: Array, theta_0: Array, attack_state: Tree, guessed_theta_0: Array) -> State:
        """Returns a run's state before the first step.

        Its theta_0 (p,) is shared, or drawn from `key`. The adversary's record starts from its guessed
        theta_0.
        """
        if draw_initial is not None:
            theta_0 = draw_initial(key)
        start = mechanism.start(theta_0)
        if observer is None:
            return start
        return start._replace(seen=observer.begin(attack_state, guessed_theta_0))

    def take_segment(
        hyper: Hyperparameters,
        before: State,
        data: Data,
        schedule: Schedule,
        attack_state: Tree,
        draws: Draws,
    ) -> State:
        """Returns a run's state after the steps of a schedule, given its state `before` them.

        `attack_state` is the adversary's state, which all runs share.
        """
        state_of_run = adversary.draw_for_run(attack_state, draws.canary_keys)
        observe = None
        if observer is not None:
            observe = partial(observer.observe, state_of_run)
        canaries = Canaries(
            craft=partial(adversary.craft, state_of_run),
            presence=draws.presence,
            observe=observe,
            crafts_constant=adversary.crafts_constant,
            join=join,
        )
        return mechanism.segment(hyper, before, data, schedule, canaries, draws.noise_keys)

    # For each argument, 0 if it has a leading axis over runs, or None if runs share it.
    return (
        placement.over_runs(begin, (0, None, None, None)),
        # The states after a segment overwrite argument 1, `before`.
        placement.over_runs(take_segment, (None, 0, None, None, None, 0), donated=(1,)),
        # score_run(state, key, seen, final, guessed theta_0)
        placement.over_runs(adversary.score_run, (None, 0, 0, 0, None)),
    )


class Trained(NamedTuple):
    """The scores of an audit, and the cost of training in this process.

    Attributes:
      scores: the scores of all runs, including those that other processes trained.
      trained_runs: the number of runs that this process trained.
      seconds: the training time, excluding compilation and the adversary's simulations.
    """

    scores: Scores
    trained_runs: int = 0
    seconds: float = 0.0


def train(
    game: Game,
    store: Store,
    runs: int,
    chunk: int | None = None,
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda runs: None,
    watch: Watch | None = None,
) -> Trained:
    """Trains a store's missing runs in chunks and returns the scores of all runs.

    If memory runs out, it halves the chunk size.

    Args:
      chunk: the number of runs in a chunk; None for `chunk_size`.
      checkpoint_seconds: the minimum time between checkpoints.
      progress, watch: as in `Player`.

    Raises:
      InputError: memory runs out even with one run at a time, or a model diverged.
    """
    if not store.missing(runs):
        return Trained(store.load(runs))

    checkpoints = Checkpoints(store.checkpoints, checkpoint_seconds)
    trained_runs = 0
    seconds = 0.0
    size = min(chunk or chunk_size(game, runs), runs)
    with hold(store.path):  # only one process at a time may train in a store
        while missing := store.missing(runs):
            try:
                player = Player(game, size, progress, checkpoints, watch)
                begin = time.perf_counter() - seconds  # `Player` has compiled the program
                for scores in player.play_all(missing):
                    store.save(scores)
                    trained_runs += len(scores.scores)
                    seconds = time.perf_counter() - begin
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                size //= 2
                require(size, "out of memory with one run at a time: lower `batch_size`")
                print(f"out of memory: continuing with chunks of {size} runs", file=sys.stderr)
        checkpoints.clear()
    return Trained(store.load(runs), trained_runs, seconds)
