"""CotS: a random direction on the sphere, scored by the cosine with the model's displacement
(hidden-state paper, Algorithms 7 and 8, after Andrew et al., 2024)."""

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary
from audit.mechanism.base import Tree

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
