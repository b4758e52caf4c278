"""Example-level DP-SGD over a flat parameter vector, with canaries inserted.

    m_t = (sum_i clip(g_i, C) + mask_t sum_k b_k clip(v_tk, C) + Z_t) / B
    theta_{t+1} = optimizer(theta_t, m_t + lambda theta_t)

with Z_t ~ N(0, (sigma C)^2 I) (hidden-state paper, Equation 2 and Algorithm 4), b_k the presence of canary k,
or whether it joins step t where canaries are sampled, and weight decay lambda outside the clipping, as by
`optax.add_decayed_weights` before any optimizer. Learning rate, C, sigma, lambda, mask, presence and canaries
are traced.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.mechanism import base
from audit.mechanism.clipping.base import Batch, ClippedSum
from audit.mechanism.memory import StepMemory, step_memory

_KEPT_THETAS = 4  # of a run's state and updates


class DPSGD(NamedTuple):
    """DP-SGD's choices that are compiled in: a clipping strategy, and learning rate -> Optax optimizer."""

    clipped_sum: ClippedSum
    optimizer: Callable[[Array], optax.GradientTransformation] = optax.sgd


def mechanism(choices: DPSGD) -> base.Mechanism:
    """DP-SGD under the contract of `audit.mechanism.base`."""

    def start(theta_0: Array) -> base.State:
        return base.State(theta_0, choices.optimizer(jnp.float32(0)).init(theta_0), jnp.int32(0))

    def segment(
        hyper: base.Hyperparameters,
        state: base.State,
        data: base.Data,
        schedule: base.Schedule,
        canaries: base.Canaries,
        run_key: Array,
    ) -> base.State:
        norm = jnp.asarray(hyper.clipping_norm)
        insert = base.inserter(canaries, state, norm, run_key, choices.clipped_sum)

        def advance(state: base.State, now: tuple[Array, Array]) -> tuple[base.State, None]:
            indices, mask = now
            extra = insert(state.step, state.theta, mask)
            batch = (data[0][indices], data[1][indices])
            noise_key = jax.random.fold_in(run_key, state.step)
            after = step(choices, hyper, state, batch, extra, noise_key)
            return base.observed(canaries, after, state.step), None

        return jax.lax.scan(advance, state, schedule)[0]

    def memory(theta_0: Array, data: base.Data, batch_size: int) -> StepMemory:
        batch = tuple(jax.ShapeDtypeStruct((batch_size, *part.shape[1:]), part.dtype) for part in data)
        one = jax.ShapeDtypeStruct((), jnp.float32)
        found = step_memory(choices.clipped_sum, jax.typeof(theta_0), batch, one)
        return found.times(1, _KEPT_THETAS * theta_0.nbytes)

    return base.Mechanism(start, segment, memory)


def step(
    choices: DPSGD,
    hyper: base.Hyperparameters,
    state: base.State,
    batch: Batch,
    extra: Array,
    noise_key: Array,
) -> base.State:
    """One step. `extra` (p,), what is inserted, must be clipped and multiplied by mask and presence."""
    genuine = choices.clipped_sum(state.theta, batch, jnp.asarray(hyper.clipping_norm))
    deviation = jnp.where(
        jnp.asarray(hyper.noise_multiplier) > 0, hyper.noise_multiplier * hyper.clipping_norm, 0.0
    )
    mean = (genuine + extra + _noise(noise_key, deviation, state.theta)) / len(batch[1])
    if hyper.weight_decay is not None:
        mean += jnp.asarray(hyper.weight_decay) * state.theta
    optimizer = choices.optimizer(jnp.asarray(hyper.learning_rate))
    updates, optimizer_state = optimizer.update(mean, state.optimizer, state.theta)
    theta = jnp.asarray(optax.apply_updates(state.theta, updates))
    return base.State(theta, optimizer_state, state.step + 1, state.seen)


def _noise(key: Array, deviation: Array, theta: Array) -> Array:
    """N(0, deviation^2 I), of theta's size; in a branch, or XLA on a CPU would not vectorise the draw."""

    def drawn() -> Array:
        return deviation * jax.random.normal(key, theta.shape, theta.dtype)

    def by_branch() -> Array:
        branch: Array = jax.lax.cond(deviation > 0, drawn, lambda: jnp.zeros_like(theta))
        return branch

    noise: Array = jax.lax.platform_dependent(cpu=by_branch, default=drawn)
    return noise


def without_privacy(hyper: base.Hyperparameters) -> base.Hyperparameters:
    """The training without noise and without clipping."""
    return hyper._replace(clipping_norm=jnp.inf, noise_multiplier=0.0)
