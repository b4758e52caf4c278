"""A canary sample, designed against a frozen model so that its gradient is orthogonal to other clients'
updates: gradient descent over the sample, through second derivatives of the loss.

A sample is a pytree of numbers, such as pixels and a label's log-probabilities; `SampleLoss` turns it into a
loss of the model. A penalty reads the sample's gradient g and a minibatch of mock updates u_i, clipped to C:

    as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as the public code (Errata C3)
    as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, the paper's Equation 2
    of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of its Appendix A

"Loss 2" of that appendix is the printed sum: n g' S g with the updates' uncentred covariance S.

The pool's updates are computed once. A pool that memory cannot hold comes in blocks, each of which serves
some iterations before the next takes its place.

Source: Maddock, Sablayrolles and Stock, "CANIFE" (ICLR 2023), Section 3.2, Algorithm 1 and Appendix A.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from audit.errors import require
from audit.mechanism.base import Tree

_TINY = 1e-12


# (theta (p,), sample, key) -> the model's loss of the sample; the key is for samples relaxed by random draws
SampleLoss = Callable[[Array, Tree, Array], Array]
# (sample's gradient (p,), clipped updates (b, p)) -> what is minimised
Penalty = Callable[[Array, Array], Array]


class SampleDesign(NamedTuple):
    """A design's choices, all compiled in. project: (sample) -> the nearest one that is allowed. minibatch:
    updates a step, drawn without replacement from a block where it has more."""

    loss: SampleLoss
    penalty: Penalty
    optimizer: optax.GradientTransformation
    minibatch: int
    project: Callable[[Tree], Tree] = lambda sample: sample


class Designed(NamedTuple):
    """A design's result: the sample after the last step, as the paper keeps it, and that of the smallest
    penalty on its minibatch. losses (steps + 1,): penalties on the minibatches, of first to last sample."""

    last: Tree
    best: Tree
    losses: Array

    @property
    def health(self) -> float:
        """(L_first - L_last) / L_first, as the paper has it: 1 is perfect. On minibatches."""
        return health(self.losses[0], self.losses[-1])


class _Carry(NamedTuple):
    sample: Tree
    optimizer: Tree
    best: Tree
    least: Array


def health(first: Array | float, last: Array | float) -> float:
    """(first - last) / first of two penalties, in float; 0 where the first is 0."""
    return float((first - last) / first) if float(first) else 0.0


def as_run(norm_constant: float, clipping_norm: float) -> Penalty:
    """The public code's penalty; k = norm_constant, 5 in its instructions."""

    def penalty(gradient: Array, updates: Array) -> Array:
        norm = _norm(gradient)
        along = updates @ (clipping_norm * gradient / norm)
        return gradient.size * (jnp.maximum(norm_constant - norm, 0.0) ** 2 + jnp.mean(along**2))

    return penalty


def as_printed(clipping_norm: float) -> Penalty:
    """The paper's Equation 2."""
    return _with_norm(clipping_norm, lambda along: jnp.sum(along**2))


def of_the_mean(clipping_norm: float) -> Penalty:
    """The mean update's penalty, "loss 1" of Appendix A."""
    return _with_norm(clipping_norm, lambda along: jnp.mean(along) ** 2)


def _with_norm(clipping_norm: float, of_products: Callable[[Array], Array]) -> Penalty:
    """A penalty of a gradient's products with the updates, and of a norm below C."""

    def penalty(gradient: Array, updates: Array) -> Array:
        return jnp.maximum(clipping_norm - _norm(gradient), 0.0) ** 2 + of_products(updates @ gradient)

    return penalty


def designer(
    design: SampleDesign,
) -> Callable[[Array, Tree, Sequence[Callable[[], Array]], int, Array], Designed]:
    """(theta (p,), first sample, blocks, steps, key) -> Designed, compiled once for all models of one shape.

    blocks: functions that return a block of clipped updates (b, p) each, all of one shape; steps are divided
    among them, and no two are in memory at once. Raises InputError for no blocks, no steps, or a penalty that
    is not finite.
    """

    def step(theta: Array, updates: Array, carry: _Carry, key: Array) -> tuple[_Carry, Array]:
        value, slope = jax.value_and_grad(_objective(design))(carry.sample, theta, updates, key)
        better = value < carry.least
        best = jax.tree.map(lambda new, old: jnp.where(better, new, old), carry.sample, carry.best)
        changes, optimizer = design.optimizer.update(slope, carry.optimizer, carry.sample)
        sample = design.project(optax.apply_updates(carry.sample, changes))
        return _Carry(sample, optimizer, best, jnp.minimum(value, carry.least)), value

    @jax.jit
    def several(theta: Array, updates: Array, carry: _Carry, keys: Array) -> tuple[_Carry, Array]:
        found: tuple[_Carry, Array] = jax.lax.scan(lambda c, key: step(theta, updates, c, key), carry, keys)
        return found

    measured = jax.jit(_objective(design))

    def run(
        theta: Array, sample: Tree, blocks: Sequence[Callable[[], Array]], steps: int, key: Array
    ) -> Designed:
        require(blocks and steps >= len(blocks), f"`design_steps={steps}`: give at least {len(blocks) or 1}")
        carry = _Carry(sample, design.optimizer.init(sample), sample, jnp.asarray(jnp.inf, theta.dtype))
        keys, losses = jax.random.split(key, steps + 1), []
        for i, block in enumerate(blocks):
            part = keys[i * steps // len(blocks) : (i + 1) * steps // len(blocks)]
            updates = block()
            carry, values = several(theta, updates, carry, part)
            losses.append(values)
        losses.append(measured(carry.sample, theta, updates, keys[-1])[None])
        found = jnp.concatenate(losses)
        require(jnp.isfinite(found).all(), "the canary's design diverged: lower `design_rate`")
        last_is_best = losses[-1][0] < carry.least
        best = jax.tree.map(lambda new, old: jnp.where(last_is_best, new, old), carry.sample, carry.best)
        return Designed(carry.sample, best, found)

    return run


def in_blocks(pool: int, parameters: int, budget: int) -> list[range]:
    """The pool's clients in blocks of one size whose updates fit into a budget of bytes; the clients that are
    left over, fewer than there are blocks, serve nowhere. Raises InputError where one update does not fit."""
    most = budget // (4 * parameters)  # of 4 bytes
    require(most >= 1, f"`memory={budget}` holds no update of {parameters:,} parameters: raise it")
    count = -(-pool // most)
    size = pool // count
    return [range(i * size, (i + 1) * size) for i in range(count)]


def _objective(design: SampleDesign) -> Callable[[Tree, Array, Array, Array], Array]:
    def objective(sample: Tree, theta: Array, updates: Array, key: Array) -> Array:
        draw, relax = jax.random.split(key)
        gradient = jax.grad(design.loss)(theta, sample, relax)
        if design.minibatch < len(updates):
            chosen = jax.random.choice(draw, len(updates), (design.minibatch,), replace=False)
            updates = updates[chosen]
        return design.penalty(gradient, updates)

    return objective


def _norm(gradient: Array) -> Array:
    """With a gradient at 0."""
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)
