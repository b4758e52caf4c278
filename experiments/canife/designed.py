"""Designs a canary sample with a gradient that is orthogonal to clients' updates, for a frozen model.

Gradient descent over the sample minimizes a penalty of the sample's gradient g in R^p against a minibatch of
n mock updates u_i, clipped to C. It raises |g| to C or to a constant k:

    as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as the public code (Errata C3)
    as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, the paper's Equation 2
    of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of its Appendix A

"Loss 2" of that appendix is the printed sum.

Source: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Section 3.2, Algorithm 1 and Appendix A.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.errors import require
from audit.mechanism.base import Tree

_TINY = 1e-12  # keeps the derivative of a norm at 0 finite

# (theta (p,), sample, key) -> the model's loss of the sample; the key draws relaxed samples
SampleLoss = Callable[[Array, Tree, Array], Array]
# (sample's gradient (p,), clipped updates (b, p)) -> the objective
Penalty = Callable[[Array, Array], Array]


class Designed(NamedTuple):
    """The result of a design: the last sample, as in the paper, and that with the smallest penalty.

    Penalties are on each step's minibatch; `losses` (steps + 1,) has all.
    """

    last: Tree
    best: Tree
    losses: Array


class Designer(NamedTuple):
    """Compiled functions that design samples.

    Attributes:
      run: (theta (p,), first sample, clipped updates (n, p), steps, key) -> the result. Raises InputError if
        a penalty is not finite.
      gradient: (theta, settled sample) -> the sample's gradient (p,).
      penalty: (gradient, updates) -> the objective.
    """

    run: Callable[[Array, Tree, Array, int, Array], Designed]
    gradient: Callable[[Array, Tree], Array]
    penalty: Penalty


def as_run(norm_constant: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the public code's penalty of a gradient (p,) against updates (b, p), with k and C."""
    products = updates @ (clipping_norm * gradient / _norm(gradient))
    return gradient.size * (_shortfall(norm_constant, gradient) + jnp.mean(products**2))


def as_printed(_: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty of the paper's Equation 2 of a gradient (p,) against updates (b, p)."""
    products = updates @ gradient
    return _shortfall(clipping_norm, gradient) + jnp.sum(products**2)


def of_the_mean(_: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty "loss 1" of Appendix A of a gradient (p,) against updates (b, p)."""
    products = updates @ gradient
    return _shortfall(clipping_norm, gradient) + jnp.mean(products) ** 2


def _shortfall(least: float, gradient: Array) -> Array:
    """Returns max(least - |gradient|, 0)^2."""
    return jnp.maximum(least - _norm(gradient), 0.0) ** 2


def _norm(gradient: Array) -> Array:
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)


def designer(
    loss: SampleLoss, penalty: Penalty, optimizer: optax.GradientTransformation, minibatch: int
) -> Designer:
    """Returns functions that design a sample by gradient descent on a penalty of its gradient.

    `loss` is the model's loss of a sample. A step draws a minibatch of updates without replacement.
    """

    def objective(sample: Tree, theta: Array, updates: Array, key: Array) -> Array:
        """Returns the penalty of the sample's gradient against a minibatch of the updates (b, p)."""
        draw_key, relax_key = jax.random.split(key)
        gradient = jax.grad(loss)(theta, sample, relax_key)
        if minibatch < len(updates):
            chosen = jax.random.choice(draw_key, len(updates), (minibatch,), replace=False)
            updates = updates[chosen]
        return penalty(gradient, updates)

    @jax.jit
    def take_steps(theta: Array, sample: Tree, updates: Array, keys: Array) -> Designed:
        """Takes a step for each key, and returns the samples and penalties before the steps."""

        def descend(carry: Any, key: Array) -> tuple[Any, tuple[Tree, Array]]:
            """Takes a step of gradient descent from `carry`, a sample and the optimizer's state.

            Returns the next pair, and the sample before the step with its penalty on the step's minibatch.
            """
            sample, state = carry
            value, slope = jax.value_and_grad(objective)(sample, theta, updates, key)
            changes, state = optimizer.update(slope, state, sample)
            return (optax.apply_updates(sample, changes), state), (sample, value)

        start = (sample, optimizer.init(sample))
        _, (samples, losses) = jax.lax.scan(descend, start, keys)

        def choose(index: Any) -> Tree:
            return jax.tree.map(lambda leaf: leaf[index], samples)

        return Designed(choose(-1), choose(jnp.argmin(losses)), losses)

    def run(theta: Array, sample: Tree, updates: Array, steps: int, key: Array) -> Designed:
        # An additional step gives the penalty of the sample after all steps. Its change is discarded.
        keys = jax.random.split(key, steps + 1)
        result: Designed = take_steps(theta, sample, updates, keys)
        require(
            jnp.isfinite(result.losses).all(), "the canary's design diverged: lower `design_rate`"
        )
        return result

    gradient = partial(jax.grad(loss), key=jax.random.key(0))
    return Designer(run, jax.jit(gradient), jax.jit(penalty))
