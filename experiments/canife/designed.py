"""Designs a canary for a frozen model, with a gradient that is nearly orthogonal to clients' updates.

Gradient descent on the sample minimizes a penalty on its gradient g in R^p. A step uses the updates u_i of a
minibatch of n mock clients, clipped to norm C. The penalties also lengthen g to norm C or to a constant k:

    as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as in the public code (Errata C3)
    as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, Equation 2 and "loss 2" of Appendix A
    of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of Appendix A

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

_TINY = 1e-12  # makes the derivative of a norm finite at 0

# (theta (p,), sample, key) -> the model's loss on the sample. The key is for drawing a text.
SampleLoss = Callable[[Array, Tree, Array], Array]
# (the sample's gradient (p,), clipped updates (n, p)) -> the penalty
Penalty = Callable[[Array, Array], Array]


class Designed(NamedTuple):
    """The result of a design.

    Attributes:
      last: The sample after all steps, as in the paper.
      best: The sample with the smallest penalty.
      losses: (steps + 1,) the penalties before each step and after the last one, on different minibatches.
    """

    last: Tree
    best: Tree
    losses: Array


class Designer(NamedTuple):
    """Compiled functions that design samples.

    Attributes:
      run: (theta (p,), first sample, clipped updates (n, p), steps, key) -> the result. Raises InputError if
        a penalty is not finite.
      gradient: (theta, sample) -> the gradient (p,) of the loss on an image or a drawn text.
      penalty: (gradient (p,), clipped updates (n, p)) -> the penalty.
    """

    run: Callable[[Array, Tree, Array, int, Array], Designed]
    gradient: Callable[[Array, Tree], Array]
    penalty: Penalty


def as_run(norm_constant: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the public code's penalty for a gradient of shape (p,) and updates of shape (n, p).

    It is p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, with the norm constant k and clipping norm C.
    """
    products = updates @ (clipping_norm * gradient / _norm(gradient))
    return gradient.size * (_shortfall(norm_constant, gradient) + jnp.mean(products**2))


def as_printed(_: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty of the paper's Equation 2 for a gradient of shape (p,) and updates of shape (n, p).

    The first argument, the norm constant of `as_run`, has no effect.
    """
    products = updates @ gradient
    return _shortfall(clipping_norm, gradient) + jnp.sum(products**2)


def of_the_mean(_: float, clipping_norm: float, gradient: Array, updates: Array) -> Array:
    """Returns the penalty "loss 1" of Appendix A for a gradient of shape (p,) and updates of shape (n, p).

    The first argument, the norm constant of `as_run`, has no effect.
    """
    products = updates @ gradient
    return _shortfall(clipping_norm, gradient) + jnp.mean(products) ** 2


def _shortfall(min_norm: float, gradient: Array) -> Array:
    """Returns max(min_norm - |gradient|, 0)^2."""
    return jnp.maximum(min_norm - _norm(gradient), 0.0) ** 2


def _norm(gradient: Array) -> Array:
    """Returns the norm of a gradient, with a finite derivative at 0."""
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)


def make_designer(
    loss: SampleLoss, penalty: Penalty, optimizer: optax.GradientTransformation, minibatch: int
) -> Designer:
    """Returns functions that design a sample by minimizing a penalty on the sample's gradient.

    `penalty` applies to the gradient of `loss` at the sample, and `optimizer` changes the sample. Each step
    draws `minibatch` clients' updates without replacement.
    """

    def compute_penalty(sample: Tree, theta: Array, updates: Array, key: Array) -> Array:
        """Returns the penalty of a sample for a random minibatch of the updates of shape (n, p).

        `loss`, `penalty` and `minibatch` are the arguments of `make_designer`.
        """
        draw_key, loss_key = jax.random.split(key)
        gradient = jax.grad(loss)(theta, sample, loss_key)
        if minibatch < len(updates):
            chosen = jax.random.choice(draw_key, len(updates), (minibatch,), replace=False)
            updates = updates[chosen]
        return penalty(gradient, updates)

    @jax.jit
    def take_steps(theta: Array, sample: Tree, updates: Array, keys: Array) -> Designed:
        """Takes a step for each key. Returns the last and the best of the samples before these steps.

        We discard the sample after the last step, because no step computes its penalty. Penalties use the
        gradients of the model theta and clients' updates (n, p).
        """

        def descend(carry: Any, key: Array) -> tuple[Any, tuple[Tree, Array]]:
            """Takes a step of gradient descent on `compute_penalty`; the body of a scan.

            `carry` has the sample and the optimizer's state. Returns the next carry, and the sample before
            the step with its penalty.
            """
            sample, state = carry
            penalty_before, slope = jax.value_and_grad(compute_penalty)(sample, theta, updates, key)
            changes, state = optimizer.update(slope, state, sample)
            return (optax.apply_updates(sample, changes), state), (sample, penalty_before)

        start = (sample, optimizer.init(sample))
        _, (samples, penalties) = jax.lax.scan(descend, start, keys)

        def choose(index: Any) -> Tree:
            """Returns the sample before the step with this index."""
            return jax.tree.map(lambda leaf: leaf[index], samples)

        return Designed(choose(-1), choose(jnp.argmin(penalties)), penalties)

    def run(theta: Array, sample: Tree, updates: Array, steps: int, key: Array) -> Designed:
        """Designs a sample; see `Designer`."""
        # `take_steps` returns samples from before its steps, so it takes an extra step to return the last
        # one.
        keys = jax.random.split(key, steps + 1)
        result: Designed = take_steps(theta, sample, updates, keys)
        is_finite = jnp.isfinite(result.losses).all()
        require(is_finite, "the canary's design diverged: lower `design_rate`")
        return result

    # The key does not matter: images are not drawn, and drawing from a drawn text returns this text.
    gradient = partial(jax.grad(loss), key=jax.random.key(0))
    return Designer(run, jax.jit(gradient), jax.jit(penalty))
