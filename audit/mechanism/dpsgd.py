"""Example-level DP-SGD over a flat parameter vector, with canaries.

    m_t = (sum_i clip(g_i, C) + mask_t sum_k b_k clip(v_tk, C) + Z_t) / B
    theta_{t+1} = optimizer(theta_t, m_t + lambda theta_t)

g_i is the gradient of example i, v_tk is canary k, and mask_t is 1 if step t inserts canaries. Z_t ~ N(0,
(sigma C)^2 I) is the noise (hidden-state paper, Equation 2 and Algorithm 4), unless it is correlated across
steps (`Coefficients`). b_k is 1 if canary k is present and, if canaries are sampled, joins step t. The weight
decay lambda theta_t is not clipped.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.mechanism.base import (
    Canaries,
    Data,
    Hyperparameters,
    Mechanism,
    Schedule,
    State,
    Tree,
    make_inserter,
    step_memory,
)
from audit.mechanism.clipping.base import Batch, ClippedSum

_THETAS_IN_MEMORY = 4  # vectors (p,) held in memory by a run's step


class Coefficients(NamedTuple):
    """The traced coefficients of correlated noise: DP-SGD's `Hyperparameters.mechanism_specific`.

    The noise n_t of step t satisfies sum_j B_j n_{t-j} = sum_j A_j z_{t-j}, for independent raw noise z_t.

    Attributes:
      of_noise: (b,), the coefficients B_0, B_1, ...
      of_raw_noise: (a,), the coefficients A_0, A_1, ...; or (T, a), with a row for each of T steps.
    """

    of_noise: Array
    of_raw_noise: Array


class DPSGD(NamedTuple):
    """The DP-SGD settings that are compiled into programs.

    Attributes:
      clipped_sum: the clipping strategy.
      optimizer: learning rate -> the Optax optimizer.
      bands: b, the number of coefficients of correlated noise (`Coefficients.of_noise`).
    """

    clipped_sum: ClippedSum
    optimizer: Callable[[Any], optax.GradientTransformation] = optax.sgd
    bands: int = 1


def mechanism(choices: DPSGD) -> Mechanism:
    """Returns DP-SGD as a `Mechanism` (`audit.mechanism.base`)."""

    def start(theta_0: Array) -> State:
        """Returns the state before the first step, with zeros for earlier noise."""
        optimizer = choices.optimizer(0.0)  # its state does not depend on the learning rate
        earlier: Tree = ()  # not an empty array, which JAX cannot place on several devices
        if choices.bands > 1:  # a step's noise depends on earlier noise
            earlier = jnp.zeros((choices.bands - 1, theta_0.size), theta_0.dtype)
        return State(theta_0, optimizer.init(theta_0), step=jnp.int32(0), noise=earlier)

    def segment(
        hyper: Hyperparameters,
        state: State,
        data: Data,
        schedule: Schedule,
        canaries: Canaries,
        run_key: Array,
    ) -> State:
        """Takes the steps of a schedule. Mini-batches have no padding, so `step` divides by their length."""
        norm = jnp.asarray(hyper.clipping_norm)
        insert = make_inserter(canaries, state, norm, run_key, choices.clipped_sum)

        def advance(before: State, now: Schedule) -> tuple[State, None]:
            """Takes one step, given its mini-batch of B indices and its insertion mask, () or (K,)."""
            indices, mask = now
            extra = insert(before.step, before.theta, mask)  # the sum of the canaries, (p,)
            batch = (data[0][indices], data[1][indices])
            after = step(choices, hyper, before, batch, extra, run_key)
            # Updates `State.seen`, the record of an adversary that observes every model.
            return canaries.record(before.step, after), None

        final, _ = jax.lax.scan(advance, state, schedule)
        return final

    def memory(theta_0: Array, data: Data, batch_size: int) -> int:
        """Estimates the bytes that a run's step needs: the clipped sum and _THETAS_IN_MEMORY vectors (p,)."""
        # Only shapes and dtypes matter.
        batch = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct((batch_size, *array.shape[1:]), array.dtype), data
        )
        theta = jax.typeof(theta_0)
        clipping_norm = jnp.float32(1)
        of_sum = step_memory(choices.clipped_sum, theta, batch, clipping_norm)
        return of_sum + _THETAS_IN_MEMORY * theta_0.nbytes

    return Mechanism(start, segment, memory)


def step(
    choices: DPSGD,
    hyper: Hyperparameters,
    state: State,
    batch: Batch,
    extra: Array,
    run_key: Array,
) -> State:
    """Takes a single step of DP-SGD: theta becomes optimizer(theta, (S + extra + Z) / B + lambda theta).

    S is the sum of the mini-batch's clipped gradients, and Z is the noise, drawn from `run_key`. `extra` (p,)
    is the sum of the clipped canaries that join this step. The caller updates `state.seen`, the adversary's
    record.
    """
    norm = jnp.asarray(hyper.clipping_norm)
    clipped_gradients = choices.clipped_sum(state.theta, batch, norm)
    deviation = hyper.deviation(norm)
    # `mechanism_specific` holds the coefficients of correlated noise. Later steps need the noise in `stored`.
    noise, stored = _draw_step_noise(hyper.mechanism_specific, state, run_key, deviation)
    total = clipped_gradients + extra + noise

    _, labels = batch
    mean = total / len(labels)
    optimizer = choices.optimizer(hyper.learning_rate)
    decay = hyper.weight_decay
    if decay is not None and choices.optimizer == optax.adamw:
        optimizer = optax.adamw(hyper.learning_rate, weight_decay=decay)  # applies the decay itself
    elif decay is not None:
        mean += decay * state.theta

    updates, optimizer_state = optimizer.update(mean, state.optimizer, state.theta)
    theta: Any = optax.apply_updates(state.theta, updates)
    return State(theta, optimizer_state, state.step + 1, state.seen, noise=stored)


def _draw_step_noise(
    coefficients: Coefficients | tuple[()], state: State, run_key: Array, deviation: Array
) -> tuple[Array, Tree]:
    """Draws the noise n_t (p,) of step t = state.step, and returns it with the next `State.noise`.

    For independent noise, `coefficients` is (). A matrix mechanism (Denisov et al., 2022) computes noise n
    from independent raw noise z, with coefficients B (b,) for n and A for z:

        n_t = (sum_j A_j z_{t-j} - sum_{j>0} B_j n_{t-j}) / B_0.

    We draw the raw noise z_t from the key fold_in(run_key, t), so later steps can regenerate it.
    `State.noise` stores the last b - 1 vectors n, newest first, (b - 1, p). `deviation` is sigma C, the
    standard deviation of raw noise.
    """
    theta = state.theta
    if not coefficients:
        key = jax.random.fold_in(run_key, state.step)
        return draw_noise(key, deviation, theta), ()
    of_noise, of_raw_noise = coefficients  # B, A
    if of_raw_noise.ndim == 2:  # a row for each step
        of_raw_noise = of_raw_noise[state.step]

    def add_raw_noise(total: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
        """Regenerates the raw noise z_{t-j} and adds A_j z_{t-j} to the total, for `term` (j, A_j).

        Adds 0 if t < j.
        """
        lag, coefficient = term
        # Fold numbers must not be negative.
        key = jax.random.fold_in(run_key, jnp.maximum(state.step - lag, 0))
        raw = draw_noise(key, deviation, theta)
        return total + jnp.where(lag <= state.step, coefficient, 0) * raw, None

    lags = jnp.arange(len(of_raw_noise))
    total, _ = jax.lax.scan(add_raw_noise, jnp.zeros_like(theta), (lags, of_raw_noise))
    if len(of_noise) == 1:  # no earlier n_{t-j} contributes
        return total / of_noise[0], ()
    noise = (total - of_noise[1:] @ state.noise) / of_noise[0]
    return noise, jnp.concatenate([noise[None], state.noise[:-1]])


def draw_noise(key: Array, deviation: Array, theta: Array) -> Array:
    """Draws a vector from N(0, deviation^2 I), with the shape (p,) and dtype of theta.

    On a CPU, we put the draw in a branch, because XLA would not vectorise it together with the gradients. The
    branch skips the draw if the deviation is 0.
    """

    def draw() -> Array:
        """Draws the vector, even if the deviation is 0."""
        return deviation * jax.random.normal(key, theta.shape, theta.dtype)

    zeros = partial(jnp.zeros_like, theta)
    draw_in_branch = partial(jax.lax.cond, deviation > 0, draw, zeros)
    return jax.lax.platform_dependent(cpu=draw_in_branch, default=draw)
