"""One-shot canaries (Andrew et al., 2024): K random directions, each clipped to C as it is inserted, scored
by cosines. `final_cosines` sees the final model (Algorithm 2), `largest_cosines` every iterate (3)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Observer
from audit.adversaries.sphere import itself
from audit.mechanism.base import Directions, Tree, unit_direction

_TINY = 1e-30
_MOST_KEPT = 1 << 28  # entries (K, p) of directions that are kept, 1 GiB; more are drawn at each look


class OneShot(NamedTuple):
    """K directions as typed keys (K,), and drawn (K, p) where they are kept, else (0, p); the model (p,) that
    the final one is compared with; the server's momentum ()."""

    keys: Array
    units: Array
    origin: Array
    momentum: Array


class Seen(NamedTuple):
    """What was seen of the iterates: the last one (p,), the move to it (p,), and each canary's largest cosine
    so far (K,)."""

    theta: Array
    moved: Array
    largest: Array


def final_cosines(canaries: int, origin: Callable[[Array], Array] = itself) -> Adversary:
    """A canary's score is its cosine with origin(theta_0) - theta_T. With `sphere.nothing` that is the cosine
    with the final weights, as in the paper, which the initial weights dilute."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OneShot:
        keys = jax.random.split(key, canaries)
        return OneShot(keys, jnp.zeros((0, theta_0.size)), origin(theta_0), jnp.float32(0))

    def score(state: OneShot, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        return _cosines(state, state.origin - theta_t)

    return Adversary(init, _craft, score, canaries=canaries, constant=True)


def largest_cosines(canaries: int, momentum: float = 0.0, most_kept: int = _MOST_KEPT) -> Adversary:
    """A canary's score is the largest of its cosines with theta_{t-1} - theta_t, over all steps t; -1 before
    the first.

    That is what the authors' code does. Their Algorithm 3 takes the step's noisy mean, which is the move less
    `momentum` times the one before, for a server that takes Optax's SGD with this momentum. Directions of up
    to `most_kept` entries (K, p) are kept, others drawn at each look.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OneShot:
        keys = jax.random.split(key, canaries)
        kept = canaries if canaries * theta_0.size <= most_kept else 0
        units = jax.lax.map(lambda one: unit_direction(one, theta_0), keys[:kept])
        return OneShot(keys, units, theta_0, jnp.float32(momentum))

    observer = Observer(_begin, _observe)
    return Adversary(init, _craft, _largest, canaries=canaries, observer=observer, constant=True)


def _craft(state: OneShot, step: Array, theta: Array) -> Directions:
    """The canaries, whatever the step, of the largest norm that they can have."""
    return Directions(state.keys, jnp.float32(jnp.inf))


def _begin(state: OneShot, theta_0: Array) -> Seen:
    """Nothing was seen."""
    return Seen(theta_0, jnp.zeros_like(theta_0), jnp.full(len(state.keys), -1.0))


def _observe(state: OneShot, seen: Seen, step: Array, released: Array) -> Seen:
    """What is seen with one more iterate."""
    moved = seen.theta - released
    cosines = _cosines(state, moved - state.momentum * seen.moved)
    return Seen(released, moved, jnp.maximum(seen.largest, cosines))


def _largest(state: OneShot, seen: Seen, theta_t: Array, theta_0: Array) -> Array:
    """The largest cosines (K,)."""
    return seen.largest


def _cosines(state: OneShot, displacement: Array) -> Array:
    """The cosines (K,) of directions and displacement, 0 where there is none."""
    unit = displacement / jnp.maximum(jnp.linalg.norm(displacement), _TINY)
    if len(state.units):
        return state.units @ unit
    cosines: Array = jax.lax.map(lambda key: jnp.vdot(unit_direction(key, unit), unit), state.keys)
    return cosines
