"""The contract of a mechanism: pure functions, in the shape of an Optax transformation.

Everything is written for one run; `ensemble` maps it over many. A mechanism knows a loss, a configuration
and canaries to insert; it knows no adversary by name.
"""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.clipping.base import ClippedSum, clip
from audit.mechanism.memory import StepMemory

Tree = Any  # a pytree of arrays, whose structure only its maker knows
Data = tuple[Array, ...]  # features (N, ...), labels (N, ...), and what else a mechanism's data have

_JOINS = zlib.crc32(b"joins")  # beyond any p: a step's key also gives its noise, entry by entry
_MOST_KEPT = 1 << 25  # entries (K, p) of directions that a segment keeps
BLOCK = 1 << 12  # coordinates that a key of a direction drawn in blocks gives
PARTS = "parts"  # the axis of devices over which a mechanism that `spreads` divides a run's step


class Hyperparameters(NamedTuple):
    """Traced scalars; noise has deviation noise_multiplier * clipping_norm. own: a mechanism's further.
    weight_decay: lambda, of DP-SGD; None: a step without it, which rounds otherwise than one of 0."""

    learning_rate: Array | float
    clipping_norm: Array | float
    noise_multiplier: Array | float
    own: Tree = ()
    weight_decay: Array | float | None = None


class Schedule(NamedTuple):
    """A segment's mini-batches, indices (steps, B); its insertion mask (steps,), or (steps, K) by canary."""

    batches: Array
    mask: Array


class State(NamedTuple):
    """A run between two steps: theta (p,), the optimizer's state, steps done, and what an adversary
    who sees every iterate remembers (nothing where it sees the last one only)."""

    theta: Array
    optimizer: Tree
    step: Array
    seen: Tree = ()


class Coordinates(NamedTuple):
    """K canaries along coordinates: canary k is values[k] (K,) at indices[k] (K,), and 0 elsewhere."""

    indices: Array
    values: Array


class Directions(NamedTuple):
    """K canaries in random directions: canary k has a norm (), along the uniform direction of keys[k], of
    keys (K,), or (K, blocks) where each BLOCK coordinates are drawn by a key of their own. A direction is
    drawn when it is needed, so that (K, p) is never in memory."""

    keys: Array
    norm: Array


class Examples(NamedTuple):
    """Canaries that are examples (K, ...) with labels (K, ...): each inserts its clipped gradient."""

    features: Array
    labels: Array


Crafted = Array | Coordinates | Directions | Examples  # an array is (K, p)


class Craft(Protocol):
    """(state, step from 0, theta (p,)) -> canaries, which the mechanism clips to C by itself."""

    def __call__(self, state: Tree, step: Array, theta: Array, /) -> Crafted: ...


class Observe(Protocol):
    """(state, what was seen so far, step, the iterate (p,) that it released) -> what is remembered."""

    def __call__(self, state: Tree, seen: Tree, step: Array, released: Array, /) -> Tree: ...


BoundCraft = Callable[[Array, Array], Crafted]  # (step, theta), as a Craft whose state is known
BoundObserve = Callable[[Tree, Array, Array], Tree]  # (seen, step, released), likewise of an Observe


class Canaries(NamedTuple):
    """K things to insert into one run, each in or out by its own traced bit of presence (K,); `observe`,
    where there is one, is called after every step and its result is kept in State.seen.

    constant: whether craft gives the same at every step and for every theta, so that a segment sums up once.
    sampled: whether presence is the probability with which a canary joins a step, by a coin of that step.
    """

    craft: BoundCraft
    presence: Array
    observe: BoundObserve | None = None
    constant: bool = False
    sampled: bool = False


Inserter = Callable[[Array, Array, Array], Array]  # (step, theta, mask) -> the clipped sum (p,) of canaries


class Segment(Protocol):
    """The steps of a schedule. The draws of step t come from fold_in(run_key, t), wherever segments begin.

    Each canary is clipped by itself (see `inserted`), so that nothing leaves the sensitivity bound. All
    arguments are traced but the functions in `canaries`: one compiled program serves both worlds and every
    setting of the same shapes.
    """

    def __call__(
        self,
        hyper: Hyperparameters,
        state: State,
        data: Data,
        schedule: Schedule,
        canaries: Canaries,
        run_key: Array,
        /,
    ) -> State: ...


class Mechanism(NamedTuple):
    """A private training. start: theta_0 (p,) -> the state before the first step. memory: (theta_0, data,
    batch size) -> that of one run's step, an estimate. spreads: whether a step is divided over the devices of
    the axis PARTS, along which the segment is mapped."""

    start: Callable[[Array], State]
    segment: Segment
    memory: Callable[[Array, Data, int], StepMemory]
    spreads: bool = False


def inserted(
    canaries: Canaries, step: Array, theta: Array, clipping_norm: Array, mask: Array, clipped_sum: ClippedSum
) -> Array:
    """sum_k mask_k presence_k clip(v_k, C), (p,), of the canaries v_k of a step; mask () or (K,)."""
    crafted = canaries.craft(step, theta)
    if isinstance(crafted, Directions) and jnp.ndim(mask):

        def joining(weight: Array, k: Array) -> Array:  # runs that share the mask share draws, whoever is in
            return weight * canaries.presence[k] * unit_direction(crafted.keys[k], theta)

        return jnp.minimum(crafted.norm, clipping_norm) * _sum_of_present(mask, theta, joining)
    return _summed(crafted, canaries.presence * mask, theta, clipping_norm, clipped_sum)


def _summed(
    crafted: Crafted, weights: Array, theta: Array, clipping_norm: Array, clipped_sum: ClippedSum
) -> Array:
    if isinstance(crafted, Examples):

        def gradient(weight: Array, k: Array) -> Array:
            one = crafted.features[k][None], crafted.labels[k][None]
            return weight * clipped_sum(theta, one, clipping_norm)

        return _sum_of_present(weights, theta, gradient)
    if isinstance(crafted, Coordinates):
        clipped = jnp.clip(crafted.values, -clipping_norm, clipping_norm)
        return jnp.zeros_like(theta).at[crafted.indices].add(weights * clipped)
    if isinstance(crafted, Directions):

        def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
            return total + one[1] * unit_direction(one[0], theta), None

        along, _ = jax.lax.scan(add, jnp.zeros_like(theta), (crafted.keys, weights))
        return jnp.minimum(crafted.norm, clipping_norm) * along
    clipped = jax.vmap(clip, (0, None))(crafted, clipping_norm)
    return jnp.sum(weights[:, None] * clipped, axis=0)


def _sum_of_present(weights: Array, theta: Array, term: Callable[[Array, Array], Array]) -> Array:
    """The sum (p,) of term(weight, k) over the weights (K,) above 0, one after the other."""

    def add(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        left, total = carry
        k = jnp.argmax(left)
        return left.at[k].set(0), total + term(left[k], k)

    found: tuple[Array, Array] = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0] > 0), add, (weights, jnp.zeros_like(theta))
    )
    return found[1]


def unit_direction(key: Array, like: Array) -> Array:
    """A uniform direction (p,) of a key, or of the keys (blocks,) of its blocks, as an array is."""
    if jnp.ndim(key):
        normal = jax.vmap(lambda one: block_of(one, like))(key).ravel()[: like.size]
    else:
        normal = jax.random.normal(key, like.shape, like.dtype)
    return jnp.asarray(normal / jnp.linalg.norm(normal))


def block_of(key: Array, like: Array) -> Array:
    """A block's normal coordinates, BLOCK or all, of a direction (p,) that is drawn in blocks, before it has
    length 1."""
    return jax.random.normal(key, (min(BLOCK, like.size),), like.dtype)


def inserter(
    canaries: Canaries, state: State, clipping_norm: Array, run_key: Array, clipped_sum: ClippedSum
) -> Inserter:
    """`inserted` for a segment from this state, or a sample of it; constant canaries are summed up once."""
    if canaries.sampled:
        return _sampler(canaries, state, clipping_norm, run_key, clipped_sum)
    if not canaries.constant:
        return lambda step, theta, mask: inserted(canaries, step, theta, clipping_norm, mask, clipped_sum)
    total = inserted(canaries, state.step, state.theta, clipping_norm, jnp.float32(1), clipped_sum)

    def insert(step: Array, theta: Array, mask: Array) -> Array:
        if jnp.ndim(mask):
            return inserted(canaries, step, theta, clipping_norm, mask, clipped_sum)
        return mask * total

    return insert


def joins(presence: Array, run_key: Array, step: Array) -> Array:
    """Which canaries (K,) join a step, 1.0 or 0.0: each with its presence (K,), by the run's coins."""
    coins = jax.random.fold_in(jax.random.fold_in(run_key, step), _JOINS)
    return jax.random.bernoulli(coins, presence, mode="high").astype(jnp.float32)


def _sampler(
    canaries: Canaries, state: State, clipping_norm: Array, run_key: Array, clipped_sum: ClippedSum
) -> Inserter:
    """Inserts the canaries that join a step; constant directions that fit are drawn once a segment."""
    kept = None
    crafted = canaries.craft(state.step, state.theta) if canaries.constant else None
    if isinstance(crafted, Directions) and crafted.keys.size * state.theta.size <= _MOST_KEPT:
        units = jax.vmap(unit_direction, (0, None))(crafted.keys, state.theta)
        kept = jnp.minimum(crafted.norm, clipping_norm) * units

    def insert(step: Array, theta: Array, mask: Array) -> Array:
        weights = mask * joins(canaries.presence, run_key, step)
        if kept is not None:
            return weights @ kept
        return _summed(canaries.craft(step, theta), weights, theta, clipping_norm, clipped_sum)

    return insert


def observed(canaries: Canaries, state: State, step: Array) -> State:
    """The state after `observe` saw the iterate that a step released."""
    if canaries.observe is None:
        return state
    return state._replace(seen=canaries.observe(state.seen, step, state.theta))


def no_canaries() -> Canaries:
    """Nothing to insert, K = 0."""
    return Canaries(lambda step, theta: jnp.zeros((0, theta.size), theta.dtype), jnp.zeros(0))


def fixed_shuffle(key: Array, n_examples: int, batch_size: int, steps: int) -> Array:
    """Mini-batches (steps, B) of a new permutation an epoch, each cut into whole batches; step t's is
    the same whatever `steps`. The adversary knows them."""
    per_epoch = n_examples // batch_size
    epochs = -(-steps // per_epoch)
    shuffles = jax.vmap(lambda e: jax.random.permutation(jax.random.fold_in(key, e), n_examples))(
        jnp.arange(epochs)
    )
    whole = shuffles[:, : per_epoch * batch_size]
    return whole.reshape(epochs * per_epoch, batch_size)[:steps].astype(jnp.int32)


def insertion_mask(steps: int, periodicity: int, place: int = 0) -> Array:
    """1.0 at steps place, place + k, ... counted from 1, by default k, 2k, ... (hidden-state paper, Algorithm
    4), else 0.0; (steps,)."""
    return (jnp.arange(1, steps + 1) % periodicity == place % periodicity).astype(jnp.float32)


class Trajectory(NamedTuple):
    """A run as its simulator sees it: final theta (p,) and the summed squares of all updates (p,)."""

    theta: Array
    squared_updates: Array


def rehearse(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    theta_0: Array,
    data: Data,
    schedule: Schedule,
    canaries: Canaries,
) -> Array:
    """theta (p,) after training without noise, with canaries whose presence may be a probability: what an
    adversary who knows all but the noise and the coins expects of the final model."""
    silent = hyper._replace(noise_multiplier=jnp.float32(0))
    key = jax.random.key(0, impl="threefry2x32")
    return mechanism.segment(silent, mechanism.start(theta_0), data, schedule, canaries, key).theta


def simulate(
    mechanism: Mechanism, hyper: Hyperparameters, theta_0: Array, data: Data, batches: Array, run_key: Array
) -> Trajectory:
    """Trains without canaries, a step a segment, and sums squared updates (hidden-state, Algorithm 3)."""

    def advance(carry: tuple[State, Array], batch: Array) -> tuple[tuple[State, Array], None]:
        state, squares = carry
        one = Schedule(batch[None], jnp.zeros(1))
        after = mechanism.segment(hyper, state, data, one, no_canaries(), run_key)
        return (after, squares + (after.theta - state.theta) ** 2), None

    initial = (mechanism.start(theta_0), jnp.zeros_like(theta_0))
    (final, squares), _ = jax.lax.scan(advance, initial, batches)
    return Trajectory(final.theta, squares)
