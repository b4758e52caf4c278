"""The distinguishing game: R runs of K canaries, each in or out, become scores.

Randomness. Everything hangs on named roots under one seed:

    theta    the shared initialisation, or run i's own from fold_in(., i)
    batches  the fixed shuffle
    guess    what an adversary that does not know theta_0 takes it to be
    canary   what the adversary draws before training
    noise    run i's noise at step t from fold_in(fold_in(., i), t), which also gives the coins by which its
             canaries join step t, where they are sampled
    presence run i's coins from fold_in(., i), where it has several canaries
    own      run i's own canaries from fold_in(., i), where an adversary draws them afresh for every run

so a run's draws depend on the seed and its index alone: not on its chunk, the number of devices or
where a resume began.
"""

import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.stages import Compiled, Traced, Wrapped
from numpy.typing import NDArray

from audit.adversaries.base import Adversary, Shapes, shapes
from audit.errors import require
from audit.mechanism import ensemble
from audit.mechanism.base import Data, Hyperparameters, Mechanism, Schedule, State, Tree
from audit.mechanism.ensemble import Insertion, Placement, Programs
from audit.mechanism.memory import Hardware, StepMemory
from audit.progress import SegmentProgress
from audit.storage.checkpoints import Checkpoints
from audit.storage.store import Scores

Arguments = Callable[[NDArray[np.int64], State, Schedule], tuple[Tree, ...]]
_MAPPED: Programs[Wrapped] = Programs()
_MEMORY: Programs[StepMemory] = Programs()
_SHAPES: Programs[Shapes] = Programs()


class Game(NamedTuple):
    """A training and who attacks it; arrays on the device, everything else static. init: (key) -> theta_0.

    Each step with an insertion takes a present canary with probability sampling_rate, which nobody sees.
    With unknown_initialisation every run draws its own theta_0, and the adversary works with one more draw
    of the same distribution. Progress and checkpoints come every segment_steps, or a little more often. Games
    of an equal `program` must have the same functions (mechanism's, init, adversary's craft, score and
    observer) and then share compiled programs; None: shared with no other.
    """

    mechanism: Mechanism
    adversary: Adversary
    init: Callable[[Array], Array]
    data: Data
    hyper: Hyperparameters
    schedule: Schedule
    seed: int
    unknown_initialisation: bool = False
    program: Hashable = None
    sampling_rate: float = 1.0
    segment_steps: int = ensemble.SEGMENT_STEPS

    def insertion(self) -> Insertion:
        """The adversary's part in training."""
        adversary = self.adversary
        observe = None if adversary.observer is None else adversary.observer.observe
        sampled = self.sampling_rate < 1
        return Insertion(adversary.craft, observe, adversary.constant, sampled, adversary.draw)

    def presence(self, runs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which canary is in in which run, (R, K)."""
        if self.adversary.all_in:
            return np.ones((len(runs), self.adversary.canaries), bool)
        return presence(runs, self.adversary.canaries, self.seed)

    def scored(self, first: int, scores: NDArray[np.float64]) -> Scores:
        """The scores (n, K) of runs from `first` on with what is known of them."""
        dimension = 0 if self.adversary.draw is None else jax.eval_shape(self.init, jax.random.key(0)).size
        return Scores(first, scores, self.presence(np.arange(first, first + len(scores))), dimension)

    def own_keys(self, runs: NDArray[np.int64]) -> tuple[Array, ...]:
        """The runs' own keys, ((R,),), where each draws canaries of its own; else ()."""
        return () if self.adversary.draw is None else (_run_keys(root(self.seed, "own"), runs),)

    def score(
        self, state: Tree, seen: Tree, theta_t: Array, known: Array, own_keys: tuple[Array, ...]
    ) -> Array:
        """One run's scores (K,)."""
        return self.adversary.score(self.adversary.draw_for_run(state, own_keys), seen, theta_t, known)


class Midway(NamedTuple):
    """A chunk between two segments: first run, steps done, models (R, p), scores now () -> (R, K)."""

    first: int
    steps: int
    thetas: Array
    scores: Callable[[], Array]


Watch = Callable[[Midway], object]  # looks at a chunk after each segment


class _Attack(NamedTuple):
    """An adversary's decision, its knowledge of theta_0, and the runs' common theta_0."""

    state: Tree
    known: Array
    theta_0: Array


def root(seed: int, name: str) -> Array:
    """The named root of a seed's randomness, a typed threefry key."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), zlib.crc32(name.encode()))


def presence(runs: NDArray[np.int64], canaries: int = 1, seed: int = 0) -> NDArray[np.bool_]:
    """Which canary is in in which run, (R, K). Of one canary odd runs are in and even ones out, as many of
    each in every even chunk. Several are each in with probability 1/2, independently."""
    if canaries == 1:
        return np.asarray(runs[:, None] % 2 == 1)
    keys = _run_keys(root(seed, "presence"), runs)
    return np.asarray(jax.vmap(lambda key: jax.random.bernoulli(key, shape=(canaries,)))(keys))


def chunk_size(game: Game, runs: int, hardware: Hardware | None = None) -> int:
    """Runs a chunk, all equal: as many as the cache or memory of these, or our own, devices hold."""
    batch_size = game.schedule.batches.shape[1]
    key = None if game.program is None else (game.program, batch_size)

    def memory() -> StepMemory:
        return game.mechanism.memory(game.init(jax.random.key(0)), game.data, batch_size)

    return ensemble.chunk_size(runs, _MEMORY.get(key, memory), hardware)


def traced_for(game: Game, placement: Placement, chunk: int) -> Traced:
    """A chunk's first segment as `play` compiles it, for devices that need not be there."""
    runs = np.arange(placement.round_up(chunk))
    attack = jax.eval_shape(lambda: _attack(game))
    keys = jax.eval_shape(lambda: _run_keys(root(game.seed, "noise"), runs))
    begin = jax.vmap(_first_state(game), (0, None, None, None))
    states = jax.eval_shape(begin, keys, attack.theta_0, attack.state, attack.known)
    present = jax.ShapeDtypeStruct((len(runs), game.adversary.canaries), jnp.float32)
    part = ensemble.segments(game.schedule, game.segment_steps)[0]
    hyper = jax.tree.map(jnp.float32, game.hyper)
    shared = placement.describe((hyper, game.data, part, attack.state), by_run=False)
    own = placement.describe(
        (states, present, keys, jax.eval_shape(lambda: game.own_keys(runs))), by_run=True
    )
    (hyper, data, part, state), (states, present, keys, own_keys) = shared, own
    program = ensemble.compile_segment(game.mechanism, game.insertion(), placement)
    return program.trace(hyper, states, data, part, state, present, keys, own_keys)


def play(
    game: Game,
    ranges: Iterable[tuple[int, int]],
    chunk: int,
    progress: SegmentProgress = lambda runs, steps: None,
    checkpoints: Checkpoints | None = None,
    watch: Watch | None = None,
) -> Iterator[Scores]:
    """Trains the runs of every range [start, stop) chunk by chunk and yields each chunk's scores. A range is
    asked for when the scores before it were taken. With `checkpoints` a chunk goes on from its last one, to
    the bit; they are removed when its scores were taken. Raises InputError where a model diverged."""
    placement = Placement.spread(chunk) if game.mechanism.spreads else Placement.local()
    segments = ensemble.segments(game.schedule, game.segment_steps)
    width = placement.round_up(chunk)  # chunks are padded: one program serves all, on all devices
    hyper, attack, data, segments = placement.everywhere(
        (jax.tree.map(jnp.float32, game.hyper), _attack(game), game.data, segments)
    )
    begin = _over_runs(game, placement, "begin", _first_state(game), (0, None, None, None))
    score = _over_runs(game, placement, "score", game.score, (None, 0, 0, None, 0))

    def first_states(runs: NDArray[np.int64]) -> State:
        keys = placement.by_run(_run_keys(root(game.seed, "theta"), runs))
        first: State = begin(keys, attack.theta_0, attack.state, attack.known)
        return first

    def arguments(runs: NDArray[np.int64], states: State, part: Schedule) -> tuple[Tree, ...]:
        present = jnp.float32(game.presence(runs) * game.sampling_rate)
        noise_keys = _run_keys(root(game.seed, "noise"), runs)
        by_run = placement.by_run((present, noise_keys, game.own_keys(runs)))
        return hyper, states, data, part, attack.state, *by_run

    compiled = _compiled(game, placement, arguments, first_states(np.arange(width)), segments)
    progress(0, 0)
    for start, stop in ranges:
        for first in range(start, stop, chunk):
            size = min(chunk, stop - first)
            runs = np.arange(first, first + width)
            name, own = f"{first:07d}_{width}_{len(segments)}", placement.by_run(game.own_keys(runs))
            done, states = _resumed(checkpoints, name, first_states(runs), placement, segments)
            for number, part in enumerate(segments[done:], done + 1):
                states = compiled[len(part.mask)](*arguments(runs, states, part))
                jax.block_until_ready(states)
                progress(size, len(part.mask))
                if watch is not None:
                    watch(_midway(first, size, states, partial(score, attack.state), (attack.known, own)))
                if checkpoints is not None and number < len(segments):
                    checkpoints.offer(name, number, states)
            now = states.seen, states.theta
            scores = np.asarray(score(attack.state, *now, attack.known, own), np.float64)
            _require_finite(scores[:size], first)
            yield game.scored(first, scores[:size])
            if checkpoints is not None:
                checkpoints.drop(name)


def final_scores(game: Game, thetas: Array, first: int) -> Scores:
    """What a game's adversary says of the final models (R, p) of runs first, first + 1, ..., of which it sees
    nothing else. Raises InputError where a model diverged."""
    attack, runs = _attack(game), np.arange(first, first + len(thetas))
    score = jax.jit(jax.vmap(game.score, (None, None, 0, None, 0)))
    scores = np.asarray(score(attack.state, (), thetas, attack.known, game.own_keys(runs)), np.float64)
    _require_finite(scores, first)
    return game.scored(first, scores)


def _midway(
    first: int, size: int, states: State, score: Callable[..., Array], known: tuple[Tree, ...]
) -> Midway:
    """A chunk as it is, without the runs that pad it."""
    now = first, int(states.step[0]), states.theta[:size]
    return Midway(*now, lambda: score(states.seen, states.theta, *known)[:size])


def _attack(game: Game) -> _Attack:
    theta_0 = game.init(root(game.seed, "theta"))
    known = game.init(root(game.seed, "guess")) if game.unknown_initialisation else theta_0
    norm = jnp.float32(game.hyper.clipping_norm)
    state = game.adversary.init(root(game.seed, "canary"), known, norm)
    key = None if game.program is None else (game.program, theta_0.size, game.adversary.canaries)
    _SHAPES.get(key, lambda: shapes(game.adversary, state, theta_0.size))  # before anything is trained
    return _Attack(state, known, theta_0)


def _compiled(
    game: Game, placement: Placement, arguments: Arguments, states: State, segments: list[Schedule]
) -> dict[int, Compiled]:
    runs = np.arange(len(states.step))
    key = None if game.program is None else (game.program, placement)
    program = partial(ensemble.compile_segment, game.mechanism, game.insertion(), placement)
    by_length = {len(part.mask): arguments(runs, states, part) for part in segments}
    return {steps: ensemble.compiled_for(given, program, key) for steps, given in by_length.items()}


def _resumed(
    checkpoints: Checkpoints | None, name: str, states: State, placement: Placement, segments: list[Schedule]
) -> tuple[int, State]:
    """(segments done, states) of a chunk's checkpoint, or of its start."""
    if checkpoints is None:
        return 0, states

    def fits(done: int, found: State) -> bool:
        steps = sum(len(part.mask) for part in segments[:done])
        return done < len(segments) and bool(np.all(found.step == steps))

    done, found = checkpoints.resume(name, states, fits)
    return done, placement.by_run(found)


def _over_runs(
    game: Game, placement: Placement, name: str, one: Callable[..., Tree], axes: tuple[int | None, ...]
) -> Wrapped:
    """A function of one run, mapped over the runs of a chunk and compiled once for games of one program."""
    key = None if game.program is None else (name, game.program, game.unknown_initialisation, placement)
    return _MAPPED.get(key, lambda: placement.over_runs(one, axes))


def _first_state(game: Game) -> Callable[[Array, Array, Tree, Array], State]:
    """(run key, theta_0 (p,), the adversary's state, what it knows of theta_0) -> a run's first state."""
    own, observer = game.unknown_initialisation, game.adversary.observer

    def one(key: Array, theta_0: Array, state: Tree, known: Array) -> State:
        first = game.mechanism.start(game.init(key) if own else theta_0)
        return first if observer is None else first._replace(seen=observer.begin(state, known))

    return one


def _run_keys(key: Array, runs: NDArray[np.int64]) -> Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(runs, jnp.uint32))


def _require_finite(scores: NDArray[np.float64], first: int) -> None:
    bad = np.flatnonzero(~np.isfinite(scores).all(axis=1))
    diverged = f"run {first + bad[0] if bad.size else 0} diverged ({bad.size} of {len(scores)} in its chunk)"
    require(not bad.size, f"{diverged}: lower `learning_rate` or `noise_multiplier`")
