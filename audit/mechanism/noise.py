"""Noise strategies: the noise of each step, independent or correlated across steps.

A strategy is a pair of pure functions, in the shape of an Optax transformation. Raw noise z_t is drawn from
fold_in(run key, t), so a step can draw the raw noise of earlier steps again instead of storing it.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.base import Tree


class Coefficients(NamedTuple):
    """The coefficients of a strategy S = B / A, traced: `Hyperparameters.own` of DP-SGD.

    Attributes:
      numerator: (b,), those of B: the noise of step t takes away numerator[j] times that of step t - j.
      denominator: (a,), those of A: it adds denominator[j] times the raw noise of step t - j. Or (T, a), a
        row for each step.
    """

    numerator: Array
    denominator: Array


class Draw(NamedTuple):
    """Where a step's noise comes from; `deviation` is sigma C, the standard deviation of raw noise."""

    run_key: Array
    step: Array
    deviation: Array


class NoiseStrategy(NamedTuple):
    """A source of noise: `init` maps theta (p,) to the memory before the first step.

    `next` maps (coefficients, memory, draw, theta) to the step's noise (p,) and the next memory.
    """

    init: Callable[[Array], Tree]
    next: Callable[[Tree, Tree, Draw, Array], tuple[Array, Tree]]


def _draw_independent(
    coefficients: Tree, memory: Tree, draw: Draw, theta: Array
) -> tuple[Array, Tree]:
    """Draws a step's noise from N(0, deviation^2 I)."""
    key = jax.random.fold_in(draw.run_key, draw.step)
    return draw_noise(key, draw.deviation, theta), memory


INDEPENDENT = NoiseStrategy(lambda theta: (), _draw_independent)


@lru_cache  # equal arguments give the same programs
def correlate(bands: int) -> NoiseStrategy:
    """Returns the strategy with b = `bands` coefficients in its numerator."""

    def init(theta: Array) -> Tree:
        """Returns the noise of the b - 1 steps before the first, (b - 1, p), which is 0; () if b is 1."""
        if bands == 1:  # an array without entries has no place on several devices
            return ()
        return jnp.zeros((bands - 1, theta.size), theta.dtype)

    return NoiseStrategy(init, _draw_correlated)


def _draw_correlated(
    coefficients: Coefficients, memory: Tree, draw: Draw, theta: Array
) -> tuple[Array, Tree]:
    """Draws n_t = (sum_j A_j z_{t-j} - sum_{j>0} B_j n_{t-j}) / B_0, and remembers the last b - 1 of them."""
    numerator, denominator = coefficients
    if denominator.ndim == 2:
        denominator = denominator[draw.step]

    def add(total: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
        """Adds a coefficient times the raw noise of an earlier step; there is none before step 0."""
        lag, coefficient = term
        key = jax.random.fold_in(draw.run_key, jnp.maximum(draw.step - lag, 0))
        is_step = lag <= draw.step
        raw = draw_noise(key, draw.deviation, theta)
        return total + jnp.where(is_step, coefficient, 0) * raw, None

    lags = jnp.arange(len(denominator))
    total, _ = jax.lax.scan(add, jnp.zeros_like(theta), (lags, denominator))
    if len(numerator) == 1:
        return total / numerator[0], memory
    noise = (total - numerator[1:] @ memory) / numerator[0]
    return noise, jnp.concatenate([noise[None], memory[:-1]])


def draw_noise(key: Array, deviation: Array, theta: Array) -> Array:
    """Draws a vector (p,) from N(0, deviation^2 I); a CPU saves the draw if the deviation is 0."""

    def draw() -> Array:
        return deviation * jax.random.normal(key, theta.shape, theta.dtype)

    def draw_in_branch() -> Array:
        """Draws in a branch, which XLA vectorises on a CPU."""
        noise: Array = jax.lax.cond(deviation > 0, draw, partial(jnp.zeros_like, theta))
        return noise

    noise: Array = jax.lax.platform_dependent(cpu=draw_in_branch, default=draw)
    return noise
