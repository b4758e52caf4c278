"""CotS: a random direction on the sphere, scored by the cosine with the model's displacement
(hidden-state paper, Algorithms 7 and 8, after Andrew et al., 2024)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Expect
from audit.mechanism.base import Craft, Directions, Tree, unit_direction

_TINY = 1e-30


class RandomDirection(NamedTuple):
    """The canary C * u (1, p), and the model (p,) that the final one is compared with."""

    gradient: Array
    origin: Array


def itself(theta_0: Array) -> Array:
    """The model (p,) as it was before training."""
    return theta_0


def nothing(theta_0: Array) -> Array:
    """The model (p,) of zeros, from which the final weights are the displacement."""
    return jnp.zeros_like(theta_0)


def random_direction(origin: Callable[[Array], Array] = itself) -> Adversary:
    """Inserts C * u for a uniform unit vector u; scored by the cosine of u and origin(theta_0) - theta_T."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirection:
        normal = jax.random.normal(key, theta_0.shape, theta_0.dtype)
        gradient = jnp.asarray(clipping_norm * normal / jnp.linalg.norm(normal))[None]
        return RandomDirection(gradient, origin(theta_0))

    return Adversary(init, _craft, _score)


def _craft(state: RandomDirection, step: Array, theta: Array) -> Array:
    """One direction (1, p), whatever the step."""
    return state.gradient


def _score(state: RandomDirection, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    """The cosine of direction and displacement."""
    direction, displacement = state.gradient[0], state.origin - theta_t
    lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(displacement)
    return (jnp.vdot(direction, displacement) / jnp.maximum(lengths, _TINY))[None]


class RandomDirections(NamedTuple):
    """K directions as typed keys (K,), C (), and the model (p,) that the final one is compared with."""

    keys: Array
    norm: Array
    origin: Array


def random_directions(canaries: int, expect: Expect) -> Adversary:
    """CotS with K canaries: C * u_k for uniform unit vectors u_k, drawn when needed. A score is the cosine of
    u_k and how far below its expected place the model ended; `weights` expects nothing."""

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirections:
        keys = jax.random.split(key, canaries)
        blank = RandomDirections(keys, clipping_norm, jnp.zeros_like(theta_0))
        return blank._replace(origin=expect(_craft_directions, blank, theta_0))

    return Adversary(init, _craft_directions, _score_directions, canaries=canaries, constant=True)


def weights(craft: Craft, state: Tree, theta_0: Array) -> Array:
    """Zeros (p,) in place of an expectation, so that the final weights are scored (LiDP paper, Section 6: a
    cosine with all of them, whose length is that of the initialisation too)."""
    return nothing(theta_0)


def _craft_directions(state: RandomDirections, step: Array, theta: Array) -> Directions:
    """The canaries, whatever the step."""
    return Directions(state.keys, state.norm)


def _score_directions(state: RandomDirections, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    """The cosines (K,), one direction after the other."""
    displacement = state.origin - theta_t
    unit = displacement / jnp.maximum(jnp.linalg.norm(displacement), _TINY)
    cosines: Array = jax.lax.map(lambda key: jnp.vdot(unit_direction(key, unit), unit), state.keys)
    return cosines
