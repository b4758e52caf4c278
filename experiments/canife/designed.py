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

_TINY = 1e-12  # added to a norm, so that its derivative at 0 is finite
_BYTES_A_NUMBER = 4  # of float32


# (theta (p,), sample, key) -> the model's loss of the sample; the key is for samples relaxed by random draws
SampleLoss = Callable[[Array, Tree, Array], Array]
# (sample's gradient (p,), clipped updates (b, p)) -> what is minimised
Penalty = Callable[[Array, Array], Array]


class SampleDesign(NamedTuple):
    """A design's choices, all compiled in.

    Attributes:
      loss: the model's loss of a sample.
      penalty: the function that the design minimises.
      optimizer: the optimizer that changes the sample.
      minibatch: the number of updates in a step, drawn without replacement from a block that has more.
    """

    loss: SampleLoss
    penalty: Penalty
    optimizer: optax.GradientTransformation
    minibatch: int


class Designed(NamedTuple):
    """A design's result.

    Attributes:
      last: the sample after the last step, which the paper takes.
      best: the sample of the smallest penalty on its minibatch.
      losses: (steps + 1,) the penalty of each sample, from the first to the last, on its minibatch.
    """

    last: Tree
    best: Tree
    losses: Array


# (theta (p,), first sample, blocks, steps, key) -> the design's result
Designer = Callable[[Array, Tree, Sequence[Callable[[], Array]], int, Array], Designed]


class _Carry(NamedTuple):
    """A design between two steps.

    Attributes:
      sample: the sample.
      optimizer: the optimizer's state.
      best: the best sample so far.
      least: the best sample's penalty on its minibatch.
    """

    sample: Tree
    optimizer: Tree
    best: Tree
    least: Array


def health(first: Array | float, last: Array | float) -> float:
    """Returns a canary's health: the share of its first sample's penalty that the design removed.

    It is (first - last) / first for the first and the last sample's penalty. It is 0 where the first penalty
    is 0, and negative where the design made the penalty larger.
    """
    return float((first - last) / first) if float(first) else 0.0


def as_run(norm_constant: float, clipping_norm: float) -> Penalty:
    """Returns the public code's penalty, p max(k - |g|, 0)^2 + p mean_i <C g / |g|, u_i>^2 (Errata C3).

    Here g is the sample's gradient in R^p, and u_i are the clipped updates of mock clients.

    Args:
      norm_constant: k, the norm below which a gradient is penalised; 5 in the code's instructions.
      clipping_norm: C, the clipping norm.
    """

    def penalty(gradient: Array, updates: Array) -> Array:
        """Returns the penalty of a sample's gradient (p,) against clients' clipped updates (b, p).

        It is p ((k - |g|)^2 + mean_i <C g / |g|, u_i>^2) for the gradient g and the updates u_i. The first
        term is 0 where |g| exceeds k.
        """
        norm = _norm(gradient)
        products = updates @ (clipping_norm * gradient / norm)  # (b,) with g scaled to the norm C
        shortfall = jnp.maximum(norm_constant - norm, 0.0)
        return gradient.size * (shortfall**2 + jnp.mean(products**2))

    return penalty


def as_printed(clipping_norm: float) -> Penalty:
    """Returns the penalty of the paper's Equation 2: max(C - |g|, 0)^2 + sum_i <u_i, g>^2.

    Here g is the sample's gradient, u_i are the clipped updates of mock clients, and C is the clipping norm.
    """
    return _with_norm(clipping_norm, lambda products: jnp.sum(products**2))


def of_the_mean(clipping_norm: float) -> Penalty:
    """Returns the penalty "loss 1" of the paper's Appendix A: max(C - |g|, 0)^2 + <mean_i u_i, g>^2.

    Here g is the sample's gradient, u_i are the clipped updates of mock clients, and C is the clipping norm.
    """
    return _with_norm(clipping_norm, lambda products: jnp.mean(products) ** 2)


def _with_norm(clipping_norm: float, penalise: Callable[[Array], Array]) -> Penalty:
    """Returns the penalty max(C - |g|, 0)^2 + penalise(products), of a sample's gradient g.

    Args:
      clipping_norm: C, the clipping norm.
      penalise: a function of the dot products (b,) of g with the updates.
    """

    def penalty(gradient: Array, updates: Array) -> Array:
        """Returns the penalty of a sample's gradient (p,) against clients' clipped updates (b, p)."""
        shortfall = jnp.maximum(clipping_norm - _norm(gradient), 0.0)
        return shortfall**2 + penalise(updates @ gradient)

    return penalty


def designer(design: SampleDesign) -> Designer:
    """Returns the function that designs a sample by gradient descent on a penalty.

    The function is compiled once for all models (p,) of the same shape. It is (model, first sample, blocks,
    number of steps, key) -> the designed samples and their penalties.

    Blocks are arrays of clients' clipped updates (b, p), all of the same shape. Each is given as a function
    that returns it, so that not all blocks need be in memory at once. The design's steps are divided evenly
    among the blocks.

    The returned function raises InputError without blocks, for fewer steps than blocks, and if a penalty is
    not finite.

    Args:
      design: The penalty, its optimizer and minibatch.
    """
    objective = _make_objective(design)

    def step(theta: Array, updates: Array, carry: _Carry, key: Array) -> tuple[_Carry, Array]:
        """Takes a step of gradient descent on the sample, and keeps the sample of least penalty so far.

        A sample's penalty is the one on the minibatch of its own step.

        Args:
          theta: The frozen model (p,).
          updates: A block of clipped updates (b, p).
          carry: The design before the step.
          key: The key of the step's random draws.

        Returns:
          The design after the step, and the penalty before it.
        """
        penalty, slope = jax.value_and_grad(objective)(carry.sample, theta, updates, key)
        # The penalty is that of the sample before the step, so that sample may be the best.
        best = _select(penalty < carry.least, carry.sample, carry.best)
        least = jnp.minimum(penalty, carry.least)

        changes, optimizer_state = design.optimizer.update(slope, carry.optimizer, carry.sample)
        sample = optax.apply_updates(carry.sample, changes)
        return _Carry(sample, optimizer_state, best, least), penalty

    @jax.jit
    def take_steps(
        theta: Array, updates: Array, carry: _Carry, keys: Array
    ) -> tuple[_Carry, Array]:
        """Takes a step of gradient descent for each key, all on the same block of updates (b, p).

        Args:
          theta: The frozen model (p,).
          updates: The block of clipped updates (b, p).
          carry: The design before the steps.
          keys: (steps,) the keys of the steps' random draws.

        Returns:
          The design after the steps, and the penalties (steps,) before each of them.
        """

        def advance(carry: _Carry, key: Array) -> tuple[_Carry, Array]:
            """Takes a step, with its arguments in the order of `jax.lax.scan`."""
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
        """Designs a sample by gradient descent, on one block of updates after the other.

        The steps are divided evenly among the blocks, and a block is in memory only during its steps.

        Args:
          theta: The frozen model (p,).
          sample: The sample that the design begins with.
          blocks: Functions that each return a block of clipped updates (b, p).
          steps: The number of steps in all.
          key: The key of all random draws.

        Returns:
          The last sample, the best sample, and the penalties (steps + 1,) of all samples.

        Raises:
          InputError: There are no blocks, or fewer steps than blocks, or a penalty is not finite.
        """
        require(len(blocks) >= 1, "no updates to design a canary for: give at least one block")
        require(
            steps >= len(blocks),
            f"`design_steps={steps}`: give at least {len(blocks)}, one for each block of updates",
        )
        # Before any penalty is computed, the first sample is the best, and the least penalty is infinite.
        infinity = jnp.asarray(jnp.inf, theta.dtype)
        carry = _Carry(sample, design.optimizer.init(sample), sample, infinity)
        # A key for each step, and one for the penalty of the sample after the last step.
        keys = jax.random.split(key, steps + 1)

        penalties_by_block = []
        for i, block in enumerate(blocks):
            first = i * steps // len(blocks)
            stop = (i + 1) * steps // len(blocks)
            updates = block()
            carry, block_penalties = take_steps(theta, updates, carry, keys[first:stop])
            penalties_by_block.append(block_penalties)
        # Each step returned the penalty before it. The last sample's penalty is still to be computed, on the
        # last block, which is in memory.
        final_penalty = measure(carry.sample, theta, updates, keys[-1])

        penalties = jnp.concatenate([*penalties_by_block, final_penalty[None]])
        require(
            jnp.isfinite(penalties).all(),
            "the canary's design diverged: lower `design_rate`",
        )
        best = _select(final_penalty < carry.least, carry.sample, carry.best)
        return Designed(carry.sample, best, penalties)

    return run


def in_blocks(pool: int, parameters: int, budget: int) -> list[range]:
    """Cuts a pool of clients 0, 1, ... into as few blocks of equal size as memory allows.

    The updates of a block's clients must fit into memory at once. Clients that are left over, fewer than
    there are blocks, are in no block.

    Args:
      pool: The number of clients.
      parameters: The number of parameters of an update, in float32.
      budget: The bytes of memory that a block may take.

    Raises:
      InputError: The pool is empty, or a single update does not fit.
    """
    require(pool >= 1, "no clients whose updates design the canary: raise `pool`")
    most_clients = budget // (_BYTES_A_NUMBER * parameters)  # whose updates fit into memory
    require(
        most_clients >= 1,
        f"`memory={budget}` holds no update of {parameters:,} parameters: raise it",
    )
    blocks = -(-pool // most_clients)  # pool / most_clients, rounded up
    size = pool // blocks
    return [range(i * size, (i + 1) * size) for i in range(blocks)]


def _select(condition: Array, if_true: Tree, if_false: Tree) -> Tree:
    """Selects between two pytrees by a traced condition."""
    return jax.tree.map(lambda x, y: jnp.where(condition, x, y), if_true, if_false)


def _make_objective(design: SampleDesign) -> Callable[[Tree, Array, Array, Array], Array]:
    """Returns the function that a design minimises: the penalty of a sample on a minibatch of updates.

    It is (sample, model theta (p,), clients' clipped updates (b, p), key) -> penalty.
    """

    def objective(sample: Tree, theta: Array, updates: Array, key: Array) -> Array:
        """Returns the penalty of the sample's gradient against a minibatch drawn from the updates.

        All updates are taken where there are no more than `design.minibatch`. The key decides the minibatch,
        and the Gumbel-softmax draws of a text's characters.
        """
        draw_key, relax_key = jax.random.split(key)
        gradient = jax.grad(design.loss)(theta, sample, relax_key)
        if design.minibatch < len(updates):
            chosen = jax.random.choice(draw_key, len(updates), (design.minibatch,), replace=False)
            updates = updates[chosen]
        return design.penalty(gradient, updates)

    return objective


def _norm(gradient: Array) -> Array:
    """Returns a gradient's Euclidean norm, to which _TINY is added so that it has a derivative at 0."""
    return jnp.sqrt(jnp.sum(gradient**2) + _TINY**2)
