"""The distinguishing game: R runs, each in or out, become scores.

Randomness. Everything hangs on named roots under one seed:

    theta    the shared initialisation, or run i's own from fold_in(., i)
    batches  the fixed shuffle
    guess    what an adversary that does not know theta_0 takes it to be
    canary   what the adversary draws before training
    noise    run i's noise at step t from fold_in(fold_in(., i), t)

so a run's draws depend on the seed and its index alone: not on its chunk, the number of devices or
where a resume began.
"""

import functools
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.adversaries.base import Adversary
from audit.errors import require
from audit.mechanism import dpsgd, ensemble
from audit.storage.checkpoints import Checkpoints
from audit.storage.scores import Scores

_PROGRAMS = 64  # compiled programs that are kept


class Game(NamedTuple):
    """What is trained and who attacks it; arrays on the device, everything else static.

    Games that have the same mechanism and craft and score functions, and data of the same shapes, share
    their compiled programs.

    init(key) -> theta_0 (p,). With unknown_initialisation every run draws its own theta_0, and the
    adversary works with one more draw of the same distribution.
    """

    mechanism: dpsgd.Mechanism
    adversary: Adversary
    init: Callable[[Array], Array]
    data: tuple[Array, Array]
    hyper: dpsgd.Hyperparameters
    schedule: dpsgd.Schedule
    seed: int
    unknown_initialisation: bool = False


def root(seed: int, name: str) -> Array:
    """The named root of a seed's randomness, a typed threefry key."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), zlib.crc32(name.encode()))


def presence(runs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Odd runs are in, even ones out: as many of each in every even chunk."""
    return runs % 2 == 1


def play(
    game: Game,
    ranges: list[tuple[int, int]],
    chunk: int,
    advanced: Callable[[int, int], object] = lambda runs, steps: None,
    checkpoints: Checkpoints | None = None,
) -> Iterator[Scores]:
    """Trains the runs of every range [start, stop) chunk by chunk and yields each chunk's scores.

    `advanced` hears of (0, 0) when all is compiled and of (runs, steps) as segments end. With
    `checkpoints` a chunk goes on from its last one, to the bit. Raises InputError where a model diverged.
    """
    theta_0 = game.init(root(game.seed, "theta"))
    known = game.init(root(game.seed, "guess")) if game.unknown_initialisation else theta_0
    state = game.adversary.init(root(game.seed, "canary"), known, jnp.float32(game.hyper.clipping_norm))
    placement = ensemble.Placement.local()
    own_init = game.init if game.unknown_initialisation else None
    begin = _begin(game.mechanism, own_init, placement)
    score = _score(game.adversary.score, placement)
    segments = ensemble.segments(game.schedule)
    width = placement.round_up(chunk)  # chunks are padded: one program serves all, on all devices
    hyper, state, data, segments, theta_0, known = placement.everywhere(
        (jax.tree.map(jnp.float32, game.hyper), state, game.data, segments, theta_0, known)
    )

    def first_states(runs: NDArray[np.int64]) -> dpsgd.State:
        return begin(placement.by_run(_run_keys(root(game.seed, "theta"), runs)), theta_0)

    def arguments(runs: NDArray[np.int64], states: dpsgd.State, part: dpsgd.Schedule) -> tuple:
        by_run = (jnp.float32(presence(runs)), _run_keys(root(game.seed, "noise"), runs))
        return hyper, states, data, part, state, *placement.by_run(by_run)

    runs = np.arange(width)
    states = first_states(runs)
    by_length = {len(part.mask): part for part in segments}
    mechanism, craft = game.mechanism, game.adversary.craft
    compiled = {
        steps: ensemble.compiled_segment(mechanism, craft, placement, arguments(runs, states, part))
        for steps, part in by_length.items()
    }
    advanced(0, 0)
    for start, stop in ranges:
        for first in range(start, stop, chunk):
            size = min(chunk, stop - first)
            runs = np.arange(first, first + width)
            name = f"{first:07d}_{width}_{len(segments)}"
            done, states = _resumed(checkpoints, name, first_states(runs), placement)
            for number, part in enumerate(segments[done:], done + 1):
                states = compiled[len(part.mask)](*arguments(runs, states, part))
                jax.block_until_ready(states)
                advanced(size, len(part.mask))
                if checkpoints is not None and number < len(segments):
                    checkpoints.offer(name, number, states)
            scores = np.asarray(score(state, states.theta, known), np.float64)[:size]
            _require_finite(scores, first)
            yield Scores(first, scores, presence(runs)[:size])


def _resumed(
    checkpoints: Checkpoints | None, name: str, states: dpsgd.State, placement: ensemble.Placement
) -> tuple[int, dpsgd.State]:
    """(segments done, states) of a chunk's checkpoint, or of its start."""
    if checkpoints is None:
        return 0, states
    done, found = checkpoints.resume(name, states)
    return done, placement.by_run(found)


@functools.lru_cache(maxsize=_PROGRAMS)
def _begin(
    mechanism: dpsgd.Mechanism, own_init: Callable[[Array], Array] | None, placement: ensemble.Placement
) -> jax.stages.Wrapped:
    """(run keys (R,), theta_0 (p,)) -> the runs' first states, from theta_0 or their own draws."""

    def one(key: Array, theta_0: Array) -> dpsgd.State:
        return dpsgd.start(mechanism, theta_0 if own_init is None else own_init(key))

    return placement.over_runs(one, (0, None))


@functools.lru_cache(maxsize=_PROGRAMS)
def _score(score: Callable[..., Array], placement: ensemble.Placement) -> jax.stages.Wrapped:
    """(adversary's state, theta (R, p), theta_0 (p,)) -> scores (R,)."""
    return placement.over_runs(score, (None, 0, None))


def canary_norms(game: Game, runs: NDArray[np.int64]) -> NDArray[np.float64]:
    """The norms (runs, steps) of what the adversary crafts, before clipping, at the model that each step
    starts from; every run is in, and draws its own theta_0, canary and noise (Figure 8)."""

    def one(hyper: dpsgd.Hyperparameters, data: tuple, schedule: dpsgd.Schedule, run: Array) -> Array:
        keys = [jax.random.fold_in(root(game.seed, name), run) for name in ("theta", "canary", "noise")]
        theta_0 = game.init(keys[0])
        state = game.adversary.init(keys[1], theta_0, jnp.asarray(hyper.clipping_norm))

        def craft(step: Array, theta: Array) -> Array:
            return game.adversary.craft(state, step, theta)

        first = dpsgd.start(game.mechanism, theta_0)
        present = jnp.float32(1)
        return dpsgd.traced_segment(game.mechanism, hyper, first, data, schedule, craft, present, keys[2])[1]

    placement = ensemble.Placement.local()
    hyper, data, schedule = placement.everywhere(
        (jax.tree.map(jnp.float32, game.hyper), game.data, game.schedule)
    )
    full = np.resize(runs, placement.round_up(len(runs)))
    run = placement.over_runs(one, (None, None, None, 0))
    norms = run(hyper, data, schedule, placement.by_run(jnp.asarray(full, jnp.uint32)))
    return np.asarray(norms, np.float64)[: len(runs)]


def _run_keys(key: Array, runs: NDArray[np.int64]) -> Array:
    """fold_in(key, run) for each run."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.asarray(runs, jnp.uint32))


def _require_finite(scores: NDArray[np.float64], first: int) -> None:
    """Raises InputError where a run's score is NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(scores))
    require(
        not bad.size,
        f"run {first + bad[0] if bad.size else 0} diverged ({bad.size} of {scores.size} in its chunk): "
        "lower --learning_rate or --noise_multiplier",
    )
