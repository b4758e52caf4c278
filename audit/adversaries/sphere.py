"""Gradients of norm C along uniform directions that every run draws afresh, so that the law of a score is
known exactly where its canary is out (`audit.methods.exact_null`).

A score is the cosine of a canary's direction and u, how far below its expected place the model ended: that of
a training run without noise and without canaries. Where canaries are many for the dimension, they blur each
other: u moves along all of them. Leave-one-out takes from u what lies along the other canaries' directions.
The adversary has them all, and they say nothing about the direction that is scored, so that its law stays
what it was.

Directions come from a run's own key, in blocks of coordinates: K x p numbers are never in memory.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import BLOCK, Directions, Tree, draw_block

_TINY = 1e-30  # in the place of a length of 0
_INVERSION_ERROR = 1e-8  # at which Newton's iteration ends
_LEAST_EDGE = 0.2  # of the least eigenvalue in the limit


class Sphere(NamedTuple):
    """K directions as typed keys (K, blocks), C (), and the model (p,) that is expected without canaries."""

    keys: Array
    norm: Array
    expected: Array


def fresh_directions(
    canaries: int, rehearse: Callable[[Array], Array], leave_one_out: bool, all_in: bool
) -> Adversary:
    """Returns the adversary that inserts C * v_k for uniform unit vectors v_k, K of them in every run.

    Args:
      canaries: K.
      rehearse: theta_0 (p,) -> the final model without noise and canaries.
      leave_one_out: whether each canary is scored without the others; of at most half as many canaries as
        parameters, whose Gram matrix is well conditioned in float32.
      all_in: whether all canaries are in, without coins.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Sphere:
        keys = _split_keys(key, canaries, theta_0.size)
        return Sphere(keys, clipping_norm, rehearse(theta_0))

    def draw(state: Sphere, key: Array) -> Sphere:
        # The number of canaries is read off the state: games of one program share this function.
        keys = _split_keys(key, len(state.keys), state.expected.size)
        return state._replace(keys=keys)

    def score(state: Sphere, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        u = state.expected - theta_t
        cosines = _leave_one_out_cosines if leave_one_out else _plain_cosines
        return cosines(state.keys, u)

    variant = "leave-one-out" if leave_one_out else ""
    return Adversary(
        init,
        _craft,
        score,
        canaries,
        crafts_constant=True,
        draw=draw,
        all_in=all_in,
        law_is_known=True,
        variant=variant,
    )


def _craft(state: Sphere, step: Array, theta: Array) -> Directions:
    return Directions(state.keys, state.norm)


def _split_keys(key: Array, canaries: int, parameters: int) -> Array:
    """Returns a key for every BLOCK coordinates of each direction, (K, blocks)."""
    blocks = -(-parameters // BLOCK)  # rounded up
    return jax.random.split(key, (canaries, blocks))


def _fold_blocks(
    keys: Array, u: Array, start: Tree, add: Callable[[Tree, Array, Array], Tree]
) -> Tree:
    """Folds a function over blocks of coordinates, whose directions are drawn when they are needed.

    Args:
      keys: of the directions' blocks, (K, blocks).
      u: (p,).
      start: the first total.
      add: (total, a block of the directions (K, B) before they have length 1, a block of u (B,)) -> total.
    """
    blocks = keys.shape[1]
    size = min(BLOCK, u.size)
    u_blocks = jnp.pad(u, (0, blocks * size - u.size)).reshape(blocks, size)
    # False for padding.
    is_coordinate = jnp.arange(blocks * size).reshape(blocks, size) < u.size

    def add_block(total: Tree, now: tuple[Array, Array, Array]) -> tuple[Tree, None]:
        block_keys, u_block, is_inside = now
        directions = jax.vmap(draw_block, (0, None))(block_keys, u) * is_inside
        return add(total, directions, u_block), None

    total, _ = jax.lax.scan(add_block, start, (keys.T, u_blocks, is_coordinate))
    return total


def _inverse(gram: Array, parameters: int) -> Array:
    """Inverts a Gram matrix (K, K) of K <= p / 2 uniform directions of R^p.

    By Newton's iteration X <- X (2 I - G X) of products alone: a CPU's LAPACK waits for ever where several
    devices of a process call it. It begins at the multiple of I whose error is least for eigenvalues between
    the limits, and ends at an error of _INVERSION_ERROR.
    """
    low, high = _eigenvalue_limits(len(gram), parameters)
    first_error = (high - low) / (high + low)
    # Each iteration squares the error.
    steps = math.ceil(math.log2(math.log(_INVERSION_ERROR) / math.log(first_error)))
    identity = jnp.eye(len(gram))

    def improve(inverse: Array, _: None) -> tuple[Array, None]:
        return inverse @ (2 * identity - gram @ inverse), None

    first_guess = identity * (2 / (high + low))
    inverse: Array = jax.lax.scan(improve, first_guess, length=steps)[0]
    return inverse


def _eigenvalue_limits(canaries: int, parameters: int) -> tuple[float, float]:
    """Returns limits (low, high) that hold the eigenvalues of the Gram matrix of K uniform directions of R^p.

    These are (1 - s)^2 to (1 + s)^2, s^2 = K / p (Marchenko and Pastur), and six times the scale of their
    edges' fluctuations beyond (Johnstone 2001, Theorem 1.1). The lower limit stays above _LEAST_EDGE of its
    value, for dimensions so small that the fluctuations exceed it.
    """
    lower_root = math.sqrt(parameters) - math.sqrt(canaries)
    upper_root = math.sqrt(parameters) + math.sqrt(canaries)
    scale = 6 * (canaries * parameters) ** (-1 / 6)
    lower_factor = max(1 - scale * lower_root ** (-2 / 3), _LEAST_EDGE)
    upper_factor = 1 + scale * upper_root ** (-2 / 3)
    low = lower_root**2 * lower_factor / parameters
    high = upper_root**2 * upper_factor / parameters
    return low, high


def _plain_cosines(keys: Array, u: Array) -> Array:
    """Returns each direction's cosine (K,) with u (p,); keys (K, blocks) draw the directions."""

    def add(total: tuple[Array, Array], directions: Array, u_block: Array) -> tuple[Array, Array]:
        products, squares = total
        return products + directions @ u_block, squares + jnp.sum(directions**2, axis=1)

    zeros = jnp.zeros(len(keys))
    products, squares = _fold_blocks(keys, u, (zeros, zeros), add)
    lengths = jnp.sqrt(squares) * jnp.linalg.norm(u)
    return jnp.asarray(products / jnp.maximum(lengths, _TINY))


def _leave_one_out_cosines(keys: Array, u: Array) -> Array:
    """Returns each direction's cosine (K,) with what is left of u (p,) off all other directions.

    By the inverse H of the Gram matrix of the directions V (K, p), with w = H V u:
    cos_k = (w_k / H_kk) / sqrt(|u|^2 - (V u)' w + w_k^2 / H_kk).

    Keys (K, blocks) draw the directions.
    """

    def add(total: tuple[Array, Array], directions: Array, u_block: Array) -> tuple[Array, Array]:
        products, gram = total
        return products + directions @ u_block, gram + directions @ directions.T

    size = len(keys)
    start = (jnp.zeros(size), jnp.zeros((size, size)))
    products, gram = _fold_blocks(keys, u, start, add)

    # The directions were folded before they had length 1.
    lengths = jnp.sqrt(jnp.diagonal(gram))
    products = products / lengths
    inverse = _inverse(gram / jnp.outer(lengths, lengths), u.size)

    weights = inverse @ products
    diagonal = jnp.diagonal(inverse)
    off_all = jnp.maximum(jnp.vdot(u, u) - jnp.vdot(products, weights), 0.0)
    along = weights / diagonal
    off_others = jnp.sqrt(off_all + weights**2 / diagonal)
    return jnp.asarray(along / jnp.maximum(off_others, _TINY))
