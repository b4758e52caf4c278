"""DP-SGD over a flat parameter vector, with something inserted: one step, and a segment of steps.

    theta_{t+1} = optimizer(theta_t, (sum_i clip(g_i, C) + mask_t * presence * clip(v_t, C) + Z_t) / B)

with Z_t ~ N(0, (sigma C)^2 I) (hidden-state paper, Equation 2 and Algorithm 4). Learning rate, C,
sigma, mask, presence and what is inserted are traced, so that one compiled program serves both worlds
and every setting of the same shapes. Everything is written for one run; `ensemble` maps it over many.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.mechanism.clipping.base import Batch, ClippedSum, clip


class Hyperparameters(NamedTuple):
    """Traced scalars. The noise's standard deviation is noise_multiplier * clipping_norm."""

    learning_rate: Array | float
    clipping_norm: Array | float
    noise_multiplier: Array | float


class Mechanism(NamedTuple):
    """What is compiled in: a clipping strategy, and learning rate -> Optax optimizer."""

    clipped_sum: ClippedSum
    optimizer: Callable[[Array], optax.GradientTransformation] = optax.sgd


class Schedule(NamedTuple):
    """A segment's mini-batches, indices (steps, B) into the data, and its insertion mask (steps,)."""

    batches: Array
    mask: Array


class State(NamedTuple):
    """A run between two steps: theta (p,), the optimizer's state, steps done."""

    theta: Array
    optimizer: optax.OptState
    step: Array


Craft = Callable[[Array, Array], Array]  # (step, theta) -> (p,)


def start(mechanism: Mechanism, theta_0: Array) -> State:
    """The state before the first step."""
    return State(theta_0, mechanism.optimizer(jnp.float32(0)).init(theta_0), jnp.int32(0))


def step(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    state: State,
    batch: Batch,
    inserted: Array,
    noise_key: Array,
) -> State:
    """One step. `inserted` (p,) must be clipped and multiplied by mask and presence already."""
    genuine = mechanism.clipped_sum(state.theta, batch, jnp.asarray(hyper.clipping_norm))
    deviation = jnp.where(
        jnp.asarray(hyper.noise_multiplier) > 0, hyper.noise_multiplier * hyper.clipping_norm, 0.0
    )
    noise = deviation * jax.random.normal(noise_key, state.theta.shape, state.theta.dtype)
    mean = (genuine + inserted + noise) / len(batch[1])
    optimizer = mechanism.optimizer(jnp.asarray(hyper.learning_rate))
    updates, optimizer_state = optimizer.update(mean, state.optimizer, state.theta)
    return State(optax.apply_updates(state.theta, updates), optimizer_state, state.step + 1)


def segment(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    state: State,
    data: Batch,
    schedule: Schedule,
    craft: Craft,
    presence: Array,
    run_key: Array,
) -> State:
    """The steps of a schedule. Noise of step t comes from fold_in(run_key, t), wherever segments begin.

    What `craft` returns is clipped here, so nothing that is inserted leaves the sensitivity bound.
    """
    return traced_segment(mechanism, hyper, state, data, schedule, craft, presence, run_key)[0]


def traced_segment(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    state: State,
    data: Batch,
    schedule: Schedule,
    craft: Craft,
    presence: Array,
    run_key: Array,
) -> tuple[State, Array]:
    """`segment`, and the norms (steps,) of what was crafted, before clipping, inserted or not."""

    def advance(state: State, now: tuple[Array, Array]) -> tuple[State, Array]:
        indices, insert = now
        crafted = craft(state.step, state.theta)
        clipped = clip(crafted, jnp.asarray(hyper.clipping_norm))
        batch = (data[0][indices], data[1][indices])
        noise_key = jax.random.fold_in(run_key, state.step)
        inserted = presence * insert * clipped
        return step(mechanism, hyper, state, batch, inserted, noise_key), jnp.linalg.norm(crafted)

    return jax.lax.scan(advance, state, schedule)


class Trajectory(NamedTuple):
    """A run as its simulator sees it: final theta (p,) and the summed squares of all updates (p,)."""

    theta: Array
    squared_updates: Array


def simulate(
    mechanism: Mechanism,
    hyper: Hyperparameters,
    theta_0: Array,
    data: Batch,
    batches: Array,
    run_key: Array,
) -> Trajectory:
    """Trains without insertion and accumulates squared updates (hidden-state paper, Algorithm 3)."""

    def advance(carry: tuple[State, Array], indices: Array) -> tuple[tuple[State, Array], None]:
        state, squares = carry
        batch = (data[0][indices], data[1][indices])
        noise_key = jax.random.fold_in(run_key, state.step)
        after = step(mechanism, hyper, state, batch, jnp.zeros_like(theta_0), noise_key)
        return (after, squares + (after.theta - state.theta) ** 2), None

    initial = (start(mechanism, theta_0), jnp.zeros_like(theta_0))
    (final, squares), _ = jax.lax.scan(advance, initial, batches)
    return Trajectory(final.theta, squares)


def without_privacy(hyper: Hyperparameters) -> Hyperparameters:
    """The same training without noise and without clipping."""
    return hyper._replace(clipping_norm=jnp.inf, noise_multiplier=0.0)


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


def insertion_mask(steps: int, periodicity: int) -> Array:
    """1.0 at steps k, 2k, ... counted from 1 (hidden-state paper, Algorithm 4), else 0.0; (steps,)."""
    return (jnp.arange(1, steps + 1) % periodicity == 0).astype(jnp.float32)
