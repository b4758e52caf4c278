"""The noise of each step, independent or correlated across steps.

Raw noise z_t is drawn from fold_in(run key, t), so a step can draw the raw noise of earlier steps again
instead of storing it.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.base import State, Tree


class Coefficients(NamedTuple):
    """The coefficients of a strategy S = B / A, traced: `Hyperparameters.own` of DP-SGD.

    Attributes:
      numerator: (b,), those of B: the noise of step t takes away numerator[j] times that of step t - j.
      denominator: (a,), those of A: it adds denominator[j] times the raw noise of step t - j. Or (T, a), a
        row for each step.
    """

    numerator: Array
    denominator: Array


def draw_for_step(
    coefficients: Coefficients | tuple[()], state: State, run_key: Array, deviation: Array
) -> tuple[Array, Tree]:
    """Draws the noise of the step after a state.

    Without coefficients it is z_t. With coefficients it is n_t = (sum_j A_j z_{t-j} - sum_{j>0} B_j n_{t-j})
    / B_0, and the memory keeps the last b - 1 of them, (b - 1, p), or is () if b is 1.

    Args:
      coefficients: the coefficients of correlated noise, or () for independent noise.
      state: the run before the step.
      run_key: the run's key.
      deviation: sigma C, the standard deviation of raw noise z_t.

    Returns:
      (the noise (p,), the next memory).
    """
    theta = state.theta
    if not coefficients:
        key = jax.random.fold_in(run_key, state.step)
        return draw_noise(key, deviation, theta), ()
    numerator, denominator = coefficients
    if denominator.ndim == 2:
        denominator = denominator[state.step]

    def add(total: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
        """Adds a coefficient times the raw noise of an earlier step; there is none before step 0."""
        lag, coefficient = term
        key = jax.random.fold_in(run_key, jnp.maximum(state.step - lag, 0))
        is_step = lag <= state.step
        raw = draw_noise(key, deviation, theta)
        return total + jnp.where(is_step, coefficient, 0) * raw, None

    lags = jnp.arange(len(denominator))
    total, _ = jax.lax.scan(add, jnp.zeros_like(theta), (lags, denominator))
    if len(numerator) == 1:
        return total / numerator[0], ()
    noise = (total - numerator[1:] @ state.noise) / numerator[0]
    return noise, jnp.concatenate([noise[None], state.noise[:-1]])


def draw_noise(key: Array, deviation: Array, theta: Array) -> Array:
    """Draws a vector (p,) from N(0, deviation^2 I); a CPU saves the draw if the deviation is 0."""

    def draw() -> Array:
        return deviation * jax.random.normal(key, theta.shape, theta.dtype)

    # XLA vectorises a draw in a branch on a CPU.
    zeros = partial(jnp.zeros_like, theta)
    draw_in_branch = partial(jax.lax.cond, deviation > 0, draw, zeros)
    noise: Array = jax.lax.platform_dependent(cpu=draw_in_branch, default=draw)
    return noise
