"""Example-level DP-SGD over a flat parameter vector, with canaries inserted.

    m_t = (sum_i clip(g_i, C) + mask_t sum_k b_k clip(v_tk, C) + Z_t) / B
    theta_{t+1} = optimizer(theta_t, m_t + lambda theta_t)

Z_t ~ N(0, (sigma C)^2 I) is the noise (hidden-state paper, Equation 2 and Algorithm 4), or noise that is
correlated across steps (`audit.mechanism.noise`). b_k is the presence of canary k, or if canaries are
sampled, whether it joins step t. The weight decay lambda is outside the clipping, as with
`optax.add_decayed_weights` before any optimizer. Only `optax.adamw` gets m_t, and lambda as its own decay.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.mechanism import base, noise
from audit.mechanism.base import step_memory
from audit.mechanism.clipping.base import Batch, ClippedSum

_THETAS_IN_MEMORY = 4  # vectors (p,) of a run


class DPSGD(NamedTuple):
    """The choices of DP-SGD that are compiled in.

    Attributes:
      clipped_sum: the clipping strategy.
      optimizer: learning rate -> the Optax optimizer.
      bands: b, the number of coefficients in the numerator of correlated noise (`Hyperparameters.own`).
    """

    clipped_sum: ClippedSum
    optimizer: Callable[[Array], optax.GradientTransformation] = optax.sgd
    bands: int = 1


def mechanism(choices: DPSGD) -> base.Mechanism:
    """Returns DP-SGD under the contract of `audit.mechanism.base`."""

    def start(theta_0: Array) -> base.State:
        optimizer = choices.optimizer(jnp.float32(0))
        memory: base.Tree = ()
        if choices.bands > 1:  # an array without entries has no place on several devices
            memory = jnp.zeros((choices.bands - 1, theta_0.size), theta_0.dtype)
        return base.State(theta_0, optimizer.init(theta_0), jnp.int32(0), noise=memory)

    def segment(
        hyper: base.Hyperparameters,
        state: base.State,
        data: base.Data,
        schedule: base.Schedule,
        canaries: base.Canaries,
        run_key: Array,
    ) -> base.State:
        """Takes the steps of a schedule; every mini-batch has B examples, without padding."""
        norm = jnp.asarray(hyper.clipping_norm)
        insert = base.make_inserter(canaries, state, norm, run_key, choices.clipped_sum)

        def advance(state: base.State, now: base.Schedule) -> tuple[base.State, None]:
            """Takes a single step: `now` is its mini-batch (B,) of indices and its mask, () or (K,)."""
            indices, mask = now
            extra = insert(state.step, state.theta, mask)
            batch = (data[0][indices], data[1][indices])
            after = step(choices, hyper, state, batch, extra, run_key)
            return canaries.remember(state.step, after), None

        final, _ = jax.lax.scan(advance, state, schedule)
        return final

    def memory(theta_0: Array, data: base.Data, batch_size: int) -> int:
        """Estimates the bytes of a single run's step: the clipped sum's results and a few vectors (p,)."""
        batch = []
        for part in data:
            shape = (batch_size, *part.shape[1:])
            batch.append(jax.ShapeDtypeStruct(shape, part.dtype))
        theta = jax.typeof(theta_0)
        clipped_sum = step_memory(choices.clipped_sum, theta, tuple(batch), jnp.float32(1))
        return clipped_sum + _THETAS_IN_MEMORY * theta_0.nbytes

    return base.Mechanism(start, segment, memory)


def step(
    choices: DPSGD,
    hyper: base.Hyperparameters,
    state: base.State,
    batch: Batch,
    extra: Array,
    run_key: Array,
) -> base.State:
    """Takes a single step of DP-SGD: theta becomes optimizer(theta, (S + extra + Z) / B + lambda theta).

    S is the sum of the mini-batch's clipped gradients, and Z ~ N(0, (sigma C)^2 I) the noise (hidden-state
    paper, Equation 2).

    Args:
      choices: the clipping strategy and the optimizer.
      hyper: the hyperparameters.
      state: the run before the step.
      batch: the mini-batch, features (B, ...) and labels (B, ...).
      extra: the sum (p,) of the canaries, already clipped and multiplied by mask and presence.
      run_key: the key of the run's noise.
    """
    norm = jnp.asarray(hyper.clipping_norm)
    clipped_gradients = choices.clipped_sum(state.theta, batch, norm)
    is_noisy = jnp.asarray(hyper.noise_multiplier) > 0
    # C may be infinite, and 0 times infinity is NaN.
    deviation = jnp.where(is_noisy, hyper.noise_multiplier * hyper.clipping_norm, 0.0)
    added, memory = noise.draw_for_step(hyper.own, state, run_key, deviation)
    total = clipped_gradients + extra + added

    mean = total / len(batch[1])
    learning_rate = jnp.asarray(hyper.learning_rate)
    optimizer = choices.optimizer(learning_rate)
    if hyper.weight_decay is not None:
        decay = jnp.asarray(hyper.weight_decay)
        if choices.optimizer == optax.adamw:
            optimizer = optax.adamw(learning_rate, weight_decay=decay)
        else:
            mean += decay * state.theta

    updates, optimizer_state = optimizer.update(mean, state.optimizer, state.theta)
    theta = jnp.asarray(optax.apply_updates(state.theta, updates))
    return base.State(theta, optimizer_state, state.step + 1, state.seen, memory)
