"""Gradients of norm C along uniform directions that every run draws afresh, so that the law of a score is
known exactly where its canary is out (`audit.statistics.exact_null`).

A score is the cosine of a canary's direction and u, how far below its expected place the model ended: that of
a training without noise and without canaries. Where canaries are many for the dimension, they blur each
other: u moves along all of them. Leave-one-out takes from u what lies along the other canaries' directions.
The adversary knows them, and they tell nothing of the one that is scored, so that its law stays what it was.

Directions come from a run's own key, in blocks of coordinates: K x p numbers are never in memory.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import BLOCK, Directions, Tree, block_of

_TINY, _PRECISE = 1e-30, 1e-8
_LEAST_EDGE = 0.2  # of the least eigenvalue in the limit


class Sphere(NamedTuple):
    """K directions as typed keys (K, blocks), C (), and the model (p,) that is expected without canaries."""

    keys: Array
    norm: Array
    expected: Array


def fresh_directions(
    canaries: int, rehearse: Callable[[Array], Array], leave_one_out: bool, all_in: bool
) -> Adversary:
    """Inserts C * v_k for uniform unit vectors v_k, K of them in every run.

    rehearse: theta_0 (p,) -> the final model without noise and canaries. leave_one_out: of at most half as
    many canaries as parameters, whose Gram matrix is well conditioned in float32. all_in: no coins.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Sphere:
        return Sphere(_keys(key, canaries, theta_0.size), clipping_norm, rehearse(theta_0))

    def draw(state: Sphere, key: Array) -> Sphere:
        # the number of canaries is read off the state: games of one program share this function
        return state._replace(keys=_keys(key, len(state.keys), state.expected.size))

    def score(state: Sphere, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        u = state.expected - theta_t
        return _apart(state.keys, u) if leave_one_out else _plain(state.keys, u)

    variant = "leave-one-out" if leave_one_out else ""
    return Adversary(init, _craft, score, canaries, constant=True, draw=draw, all_in=all_in, variant=variant)


def _craft(state: Sphere, step: Array, theta: Array) -> Directions:
    return Directions(state.keys, state.norm)


def _keys(key: Array, canaries: int, parameters: int) -> Array:
    return jax.random.split(key, (canaries, -(-parameters // BLOCK)))


def _over_blocks(keys: Array, u: Array, start: Tree, add: Callable[[Tree, Array, Array], Tree]) -> Tree:
    """Folds add(total, directions (K, B) before they have length 1, u (B,)) over blocks of B coordinates."""
    blocks, size = keys.shape[1], min(BLOCK, u.size)
    padded = jnp.pad(u, (0, blocks * size - u.size)).reshape(blocks, size)
    filled = jnp.arange(blocks * size).reshape(blocks, size) < u.size

    def one(total: Tree, now: tuple[Array, Array, Array]) -> tuple[Tree, None]:
        own, part, inside = now
        drawn = jax.vmap(block_of, (0, None))(own, u) * inside
        return add(total, drawn, part), None

    return jax.lax.scan(one, start, (keys.T, padded, filled))[0]


def _inverse(gram: Array, parameters: int) -> Array:
    """The inverse of a Gram matrix (K, K) of K <= p / 2 uniform directions of R^p, by Newton's iteration of
    products alone: a CPU's LAPACK waits for ever where several devices of a process call it."""
    low, high = _eigenvalues(len(gram), parameters)
    left = (high - low) / (high + low)  # of the error, at first
    steps = math.ceil(math.log2(math.log(_PRECISE) / math.log(left)))
    unit = jnp.eye(len(gram))

    def improve(found: Array, _: None) -> tuple[Array, None]:
        return found @ (2 * unit - gram @ found), None

    found: Array = jax.lax.scan(improve, unit * (2 / (high + low)), length=steps)[0]
    return found


def _eigenvalues(canaries: int, parameters: int) -> tuple[float, float]:
    """Limits of a Gram matrix's eigenvalues: (1 - s)^2 to (1 + s)^2, s^2 = K / p (Marchenko and Pastur), and
    six times the scale of their edges' fluctuations beyond (Johnstone 2001, Theorem 1.1)."""
    less, more = (math.sqrt(parameters) + sign * math.sqrt(canaries) for sign in (-1, 1))
    scale = 6 * (canaries * parameters) ** (-1 / 6)
    low, high = 1 - scale * less ** (-2 / 3), 1 + scale * more ** (-2 / 3)
    return less**2 * max(low, _LEAST_EDGE) / parameters, more**2 * high / parameters


def _plain(keys: Array, u: Array) -> Array:
    """Each direction's cosine (K,) with u."""

    def add(total: tuple[Array, Array], drawn: Array, part: Array) -> tuple[Array, Array]:
        return total[0] + drawn @ part, total[1] + jnp.sum(drawn**2, axis=1)

    zeros = jnp.zeros(len(keys))
    along, squares = _over_blocks(keys, u, (zeros, zeros), add)
    return jnp.asarray(along / jnp.maximum(jnp.sqrt(squares) * jnp.linalg.norm(u), _TINY))


def _apart(keys: Array, u: Array) -> Array:
    """Each direction's cosine (K,) with what is left of u off all other directions; by the inverse H of the
    Gram matrix, with w = H V u: cos_k = (w_k / H_kk) / sqrt(|u|^2 - (V u)' w + w_k^2 / H_kk)."""

    def add(total: tuple[Array, Array], drawn: Array, part: Array) -> tuple[Array, Array]:
        return total[0] + drawn @ part, total[1] + drawn @ drawn.T

    size = len(keys)
    along, gram = _over_blocks(keys, u, (jnp.zeros(size), jnp.zeros((size, size))), add)
    lengths = jnp.sqrt(jnp.diagonal(gram))
    along, inverse = along / lengths, _inverse(gram / jnp.outer(lengths, lengths), u.size)
    weights, own = inverse @ along, jnp.diagonal(inverse)
    left = jnp.maximum(jnp.vdot(u, u) - jnp.vdot(along, weights), 0.0)
    return jnp.asarray((weights / own) / jnp.maximum(jnp.sqrt(left + weights**2 / own), _TINY))
