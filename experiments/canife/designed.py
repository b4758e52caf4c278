"""Designs a canary for a frozen model: a sample whose gradient is nearly orthogonal to clients' updates.

Gradient descent on the sample minimizes a penalty on its gradient (`compute_penalty`). Each step uses the
updates of a minibatch of mock clients.

Source: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Section 3.2, Algorithm 1 and Appendix A.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.mechanism.base import Tree
from experiments.canife.attacked import Attacked

_TINY = 1e-12  # makes the derivative of a norm finite at 0

# (theta (p,), sample, key for drawing a text) -> the model's loss on the sample.
SampleLoss = Callable[[Array, Tree, Array], Array]


# (theta (p,), first sample, clipped updates (n, p), keys (steps + 1,)) -> the designed sample, and the
# penalties (steps + 1,) before each step and after the last one, each on its own minibatch.
Design = Callable[[Array, Tree, Array, Array], tuple[Tree, Array]]


def compute_penalty(setting: Attacked, gradient: Array, updates: Array) -> Array:
    """Returns the setting's penalty on a canary's gradient g (p,), given clients' clipped updates u_i (n, p).

    A canary is easy to detect if g is long and nearly orthogonal to the updates. With the clipping norm C and
    `norm_constant` k, the penalty is

        as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as in the public code (Errata C3)
        as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, Equation 2 and "loss 2" of Appendix A
        of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of Appendix A
    """
    norm = jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)
    if setting.penalty == "as_run":
        shortfall = jnp.maximum(setting.norm_constant - norm, 0.0) ** 2
        products = updates @ (setting.clipping_norm * gradient / norm)
        return gradient.size * (shortfall + jnp.mean(products**2))
    shortfall = jnp.maximum(setting.clipping_norm - norm, 0.0) ** 2
    products = updates @ gradient
    if setting.penalty == "as_printed":
        return shortfall + jnp.sum(products**2)
    return shortfall + jnp.mean(products) ** 2  # of_the_mean


def make_design(setting: Attacked, loss: SampleLoss) -> Design:
    """Returns a function that designs a sample by minimizing the setting's penalty on its gradient of `loss`.

    Adam changes the sample. Each step draws a minibatch of clients' updates without replacement.
    """
    optimizer = optax.adam(setting.design_rate)
    minibatch = setting.design_batch or setting.cohort

    @jax.jit
    def design(theta: Array, sample: Tree, updates: Array, keys: Array) -> tuple[Tree, Array]:
        """Returns a sample and all penalties.

        The sample is the one before the last step or, if `keep_best` is set, the one with the smallest
        penalty. We discard the sample after the last step, because no step computes its penalty. `theta` is
        the frozen model, and `updates` (n, p) are the mock clients' updates.
        """

        def compute_random_penalty(sample: Tree, key: Array) -> Array:
            """Returns the penalty of a sample for a random minibatch of the updates."""
            draw_key, loss_key = jax.random.split(key)
            gradient = jax.grad(loss)(theta, sample, loss_key)
            drawn = updates
            if minibatch < len(updates):
                chosen = jax.random.choice(draw_key, len(updates), (minibatch,), replace=False)
                drawn = updates[chosen]
            return compute_penalty(setting, gradient, drawn)

        def descend(carry: Any, key: Array) -> tuple[Any, tuple[Tree, Array]]:
            """Takes a gradient descent step; also returns the sample before the step, and its penalty."""
            sample, state = carry
            penalty_before, slope = jax.value_and_grad(compute_random_penalty)(sample, key)
            changes, state = optimizer.update(slope, state, sample)
            return (optax.apply_updates(sample, changes), state), (sample, penalty_before)

        start = (sample, optimizer.init(sample))
        _, (samples, penalties) = jax.lax.scan(descend, start, keys)
        index = jnp.argmin(penalties) if setting.keep_best else -1
        return jax.tree.map(lambda leaf: leaf[index], samples), penalties

    return design
