"""A canary sample, designed against a frozen model so that its gradient is orthogonal to clients' updates.

The design is gradient descent over the sample, through second derivatives of the loss. A penalty reads the
sample's gradient g in R^p and a minibatch of n mock updates u_i, clipped to C. It pushes |g| above C, or
above a constant k:

    as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as the public code (Errata C3)
    as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, the paper's Equation 2
    of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of its Appendix A

"Loss 2" of that appendix is the printed sum: n g^T S g with the updates' uncentred covariance S.

Source: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Section 3.2, Algorithm 1 and Appendix A.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.errors import require
from audit.mechanism.base import Tree

_TINY = 1e-12  # added to a norm, so that its derivative at 0 is finite

# (theta (p,), sample, key) -> the model's loss of the sample; the key is for samples relaxed by random draws
SampleLoss = Callable[[Array, Tree, Array], Array]
# (sample's gradient (p,), clipped updates (b, p)) -> what is minimised
Penalty = Callable[[Array, Array], Array]
# A design: sample, optimizer's state, best sample, its penalty
Carry = tuple[Tree, Tree, Tree, Array]


class Designed(NamedTuple):
    """A design's result.

    Attributes:
      last: The sample after the last step, which the paper takes.
      best: The sample of the smallest penalty on its minibatch.
      losses: (steps + 1,) the penalty of each sample, from the first to the last, on its minibatch.
    """

    last: Tree
    best: Tree
    losses: Array


class Designer(NamedTuple):
    """Compiled functions that design samples, and judge them.

    Attributes:
      run: (theta (p,), first sample, clipped updates (n, p), steps, key) -> the design's result. Raises
        InputError if a penalty is not finite.
      gradient: (theta, settled sample) -> the sample's gradient (p,).
      penalty: (gradient, updates) -> what the design minimises.
    """

    run: Callable[[Array, Tree, Array, int, Array], Designed]
    gradient: Callable[[Array, Tree], Array]
    penalty: Penalty


def as_run(norm_constant: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the public code's penalty of a gradient (p,) against updates (b, p), with k and C."""
    norm = _norm(gradient)
    products = updates @ (clipping_norm * gradient / norm)
    return gradient.size * (_shortfall(norm_constant, norm) + jnp.mean(products**2))


def as_printed(clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty of the paper's Equation 2 of a gradient (p,) against updates (b, p)."""
    return _shortfall(clipping_norm, _norm(gradient)) + jnp.sum((updates @ gradient) ** 2)


def of_the_mean(clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty "loss 1" of Appendix A of a gradient (p,) against updates (b, p)."""
    return _shortfall(clipping_norm, _norm(gradient)) + jnp.mean(updates @ gradient) ** 2


def _shortfall(least: float, norm: Array) -> Array:
    """Returns the square of what a gradient's norm lacks of the least norm."""
    return jnp.maximum(least - norm, 0.0) ** 2


def _norm(gradient: Array) -> Array:
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)


def designer(
    loss: SampleLoss, penalty: Penalty, optimizer: optax.GradientTransformation, minibatch: int
) -> Designer:
    """Returns functions that design a sample by gradient descent on a penalty.

    Args:
      loss: The model's loss of a sample.
      penalty: The function that the design minimises.
      optimizer: The optimizer that changes the sample.
      minibatch: The number of updates in a step, drawn without replacement from a pool that has more.
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
    def take_steps(theta: Array, updates: Array, carry: Carry, keys: Array) -> tuple[Carry, Array]:
        """Takes a step for each key on the updates; returns the penalties before the steps, too."""

        def step(carry: Carry, key: Array) -> tuple[Carry, Array]:
            sample, state, best, least = carry
            value, slope = jax.value_and_grad(objective)(sample, theta, updates, key)
            # The penalty is that of the sample before the step, so that sample may be the best.
            best = _select(value < least, sample, best)
            changes, state = optimizer.update(slope, state, sample)
            moved = optax.apply_updates(sample, changes)
            return (moved, state, best, jnp.minimum(value, least)), value

        result: tuple[Carry, Array] = jax.lax.scan(step, carry, keys)
        return result

    measure = jax.jit(objective)

    def run(theta: Array, sample: Tree, updates: Array, steps: int, key: Array) -> Designed:
        carry: Carry = (sample, optimizer.init(sample), sample, jnp.asarray(jnp.inf, theta.dtype))
        # A key for each step, and one for the penalty of the sample after the last step.
        keys = jax.random.split(key, steps + 1)
        (last, _, best, least), penalties = take_steps(theta, updates, carry, keys[:-1])
        final = measure(last, theta, updates, keys[-1])
        losses = jnp.append(penalties, final)
        message = "the canary's design diverged: lower `design_rate`"
        require(jnp.isfinite(losses).all(), message)
        return Designed(last, _select(final < least, last, best), losses)

    @jax.jit
    def compute_gradient(theta: Array, sample: Tree) -> Array:
        """Returns the gradient of a settled sample, which draws nothing: any key will do."""
        gradient: Array = jax.grad(loss)(theta, sample, jax.random.key(0))
        return gradient

    return Designer(run, compute_gradient, jax.jit(penalty))


def _select(condition: Array, if_true: Tree, if_false: Tree) -> Tree:
    """Selects between two pytrees by a traced condition."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)
