"""CotS: a random direction on the sphere, scored by the cosine with the model's displacement
(hidden-state paper, Algorithms 7 and 8, after Andrew et al., 2024)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Expect
from audit.mechanism.base import Directions, Tree, unit_direction

_TINY = 1e-30


def random_direction() -> Adversary:
    """Inserts C * u for a uniform unit vector u; the score is the cosine of u and theta_0 - theta_T."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> Array:
        normal = jax.random.normal(key, theta_0.shape, theta_0.dtype)
        return jnp.asarray(clipping_norm * normal / jnp.linalg.norm(normal))[None]

    return Adversary(init, _craft, _score)


def _craft(state: Array, step: Array, theta: Array) -> Array:
    """One direction (1, p), whatever the step."""
    return state


def _score(state: Array, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    """The cosine of direction and displacement."""
    displacement = theta_0 - theta_t
    lengths = jnp.linalg.norm(state[0]) * jnp.linalg.norm(displacement)
    return (jnp.vdot(state[0], displacement) / jnp.maximum(lengths, _TINY))[None]


class RandomDirections(NamedTuple):
    """K directions as typed keys (K,), C (), and where the adversary expects the model to end (p,)."""

    keys: Array
    norm: Array
    expected: Array


def random_directions(canaries: int, expect: Expect) -> Adversary:
    """CotS with K canaries: C * u_k for uniform unit vectors u_k, drawn when needed. A score is the cosine of
    u_k and how far below its expected place the model ended."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirections:
        keys = jax.random.split(key, canaries)
        blank = RandomDirections(keys, clipping_norm, jnp.zeros_like(theta_0))
        return blank._replace(expected=expect(_craft_directions, blank, theta_0))

    return Adversary(init, _craft_directions, _score_directions, canaries=canaries, constant=True)


def _craft_directions(state: RandomDirections, step: Array, theta: Array) -> Directions:
    """The canaries, whatever the step."""
    return Directions(state.keys, state.norm)


def _score_directions(state: RandomDirections, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    """The cosines (K,), one direction after the other."""
    displacement = state.expected - theta_t
    unit = displacement / jnp.maximum(jnp.linalg.norm(displacement), _TINY)
    cosines: Array = jax.lax.map(lambda key: jnp.vdot(unit_direction(key, unit), unit), state.keys)
    return cosines
