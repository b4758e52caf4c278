"""A canary sample, designed against a frozen model so that its gradient is orthogonal to other clients'
updates: gradient descent over the sample, through second derivatives of the loss.

A sample is a pytree of numbers, such as pixels and a label's log-probabilities; `SampleLoss` turns it into a
loss of the model. A penalty reads the sample's gradient g in R^p, p the number of the model's parameters, and
a minibatch of n mock updates u_i, clipped to C. It pushes |g| above C or above k, a constant of the design:

    as_run        p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2, as the public code (Errata C3)
    as_printed    max(C - |g|, 0)^2 + sum_i <u_i, g>^2, the paper's Equation 2
    of_the_mean   max(C - |g|, 0)^2 + <mean_i u_i, g>^2, "loss 1" of its Appendix A

"Loss 2" of that appendix is the printed sum: n g^T S g with the updates' uncentred covariance S.

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
_BYTES_A_NUMBER = 4  # of float32


# (theta (p,), sample, key) -> the model's loss of the sample; the key is for samples relaxed by random draws
SampleLoss = Callable[[Array, Tree, Array], Array]
# (sample's gradient (p,), clipped updates (b, p)) -> what is minimised
Penalty = Callable[[Array, Array], Array]


class SampleDesign(NamedTuple):
    """A design's choices, all compiled in.

    Attributes:
      loss: the model's loss of a sample.
      penalty: what is minimised.
      optimizer: of the sample.
      minibatch: updates a step, drawn without replacement from a block where it has more.
      project: sample -> the nearest sample that is allowed.
    """

    loss: SampleLoss
    penalty: Penalty
    optimizer: optax.GradientTransformation
    minibatch: int
    project: Callable[[Tree], Tree] = lambda sample: sample


class Designed(NamedTuple):
    """A design's result.

    Attributes:
      last: the sample after the last step, which the paper takes.
      best: the sample of the smallest penalty on its minibatch.
      losses: penalties on the minibatches, of first to last sample, (steps + 1,).
    """

    last: Tree
    best: Tree
    losses: Array


# (theta (p,), first sample, blocks, steps, key) -> the design's result
Designer = Callable[[Array, Tree, Sequence[Callable[[], Array]], int, Array], Designed]


class _Carry(NamedTuple):
    """A design between two steps: the sample, its optimizer's state, the best sample and its penalty."""

    sample: Tree
    optimizer: Tree
    best: Tree
    least: Array


def health(first: Array | float, last: Array | float) -> float:
    """Returns (first - last) / first of a design's first and last penalty: the health of its canary.

    It is 0 where the first penalty is 0, and below 0 where the design ends with a larger penalty.
    """
    return float((first - last) / first) if float(first) else 0.0


def as_run(norm_constant: float, clipping_norm: float) -> Penalty:
    """Returns the public code's penalty, p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2 (Errata C3).

    Args:
      norm_constant: k, 5 in the code's instructions: shorter gradients are penalised.
      clipping_norm: C.
    """

    def penalty(gradient: Array, updates: Array) -> Array:
        norm = _norm(gradient)
        products = updates @ (clipping_norm * gradient / norm)
        shortfall = jnp.maximum(norm_constant - norm, 0.0)
        return gradient.size * (shortfall**2 + jnp.mean(products**2))

    return penalty


def as_printed(clipping_norm: float) -> Penalty:
    """Returns the penalty of the paper's Equation 2: max(C - |g|, 0)^2 + sum_i <u_i, g>^2."""
    return _with_norm(clipping_norm, lambda products: jnp.sum(products**2))


def of_the_mean(clipping_norm: float) -> Penalty:
    """Returns the mean update's penalty, "loss 1" of Appendix A: max(C - |g|, 0)^2 + <mean_i u_i, g>^2."""
    return _with_norm(clipping_norm, lambda products: jnp.mean(products) ** 2)


def _with_norm(clipping_norm: float, penalise: Callable[[Array], Array]) -> Penalty:
    """Returns the penalty max(C - |g|, 0)^2 + penalise(g's products with the updates (b,))."""

    def penalty(gradient: Array, updates: Array) -> Array:
        shortfall = jnp.maximum(clipping_norm - _norm(gradient), 0.0)
        return shortfall**2 + penalise(updates @ gradient)

    return penalty


def designer(design: SampleDesign) -> Designer:
    """Returns the function that designs a sample, compiled once for all models of the same shape.

    Its blocks are functions that each return a block of clipped updates (b, p), all of the same shape; steps
    are divided among them, and no two are in memory at once. It raises InputError for no blocks, no steps, or
    a penalty that is not finite.
    """
    objective = _make_objective(design)

    def step(theta: Array, updates: Array, carry: _Carry, key: Array) -> tuple[_Carry, Array]:
        """Takes a step of gradient descent on the sample, and remembers the best sample so far.

        Args:
          theta: The frozen model (p,).
          updates: A block of clipped updates (b, p).
          carry: The design before the step.
          key: Of the step's draws.

        Returns:
          The design after the step, and the penalty before it.
        """
        value, slope = jax.value_and_grad(objective)(carry.sample, theta, updates, key)
        best = _select(value < carry.least, carry.sample, carry.best)
        changes, optimizer = design.optimizer.update(slope, carry.optimizer, carry.sample)
        sample = design.project(optax.apply_updates(carry.sample, changes))
        return _Carry(sample, optimizer, best, jnp.minimum(value, carry.least)), value

    @jax.jit
    def take_steps(
        theta: Array, updates: Array, carry: _Carry, keys: Array
    ) -> tuple[_Carry, Array]:
        """Takes a step for each key, all on a single block of updates (b, p); returns the penalties."""

        def advance(carry: _Carry, key: Array) -> tuple[_Carry, Array]:
            return step(theta, updates, carry, key)

        result: tuple[_Carry, Array] = jax.lax.scan(advance, carry, keys)
        return result

    measure = jax.jit(objective)

    def run(
        theta: Array,
        sample: Tree,
        blocks: Sequence[Callable[[], Array]],
        steps: int,
        key: Array,
    ) -> Designed:
        """Designs a sample, block by block; the last key measures the sample after the last step.

        Args:
          theta: The frozen model (p,).
          sample: That the design begins with.
          blocks: Each gives a block of clipped updates (b, p); block i serves the steps from i * steps /
            blocks on.
          steps: How many in all.
          key: Of all draws.
        """
        least_steps = len(blocks) or 1
        require(
            blocks and steps >= len(blocks),
            f"`design_steps={steps}`: give at least {least_steps}",
        )
        infinity = jnp.asarray(jnp.inf, theta.dtype)
        carry = _Carry(sample, design.optimizer.init(sample), sample, infinity)
        keys = jax.random.split(key, steps + 1)

        parts = []
        for i, block in enumerate(blocks):
            first = i * steps // len(blocks)
            stop = (i + 1) * steps // len(blocks)
            updates = block()
            carry, values = take_steps(theta, updates, carry, keys[first:stop])
            parts.append(values)
        final_loss = measure(carry.sample, theta, updates, keys[-1])

        losses = jnp.concatenate([*parts, final_loss[None]])
        require(
            jnp.isfinite(losses).all(),
            "the canary's design diverged: lower `design_rate`",
        )
        best = _select(final_loss < carry.least, carry.sample, carry.best)
        return Designed(carry.sample, best, losses)

    return run


def in_blocks(pool: int, parameters: int, budget: int) -> list[range]:
    """Cuts a pool of clients 0, 1, ... into blocks of equal size whose updates fit into memory.

    The clients that are left over, fewer than there are blocks, serve nowhere. Raises InputError where one
    update does not fit.

    Args:
      pool: How many clients.
      parameters: p, of an update.
      budget: In bytes.
    """
    most = budget // (_BYTES_A_NUMBER * parameters)
    require(
        most >= 1,
        f"`memory={budget}` holds no update of {parameters:,} parameters: raise it",
    )
    count = -(-pool // most)  # rounded up
    size = pool // count
    return [range(i * size, (i + 1) * size) for i in range(count)]


def _select(condition: Array, if_true: Tree, if_false: Tree) -> Tree:
    """Selects between two pytrees by a traced condition."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)


def _make_objective(design: SampleDesign) -> Callable[[Tree, Array, Array, Array], Array]:
    """Returns (sample, theta (p,), updates (b, p), key) -> the penalty on a minibatch of the updates."""

    def objective(sample: Tree, theta: Array, updates: Array, key: Array) -> Array:
        """Returns the penalty of the sample's gradient against a minibatch drawn from the updates."""
        draw_key, relax_key = jax.random.split(key)
        gradient = jax.grad(design.loss)(theta, sample, relax_key)
        if design.minibatch < len(updates):
            chosen = jax.random.choice(draw_key, len(updates), (design.minibatch,), replace=False)
            updates = updates[chosen]
        return design.penalty(gradient, updates)

    return objective


def _norm(gradient: Array) -> Array:
    """Returns the norm, in a form that can be differentiated at 0."""
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)
