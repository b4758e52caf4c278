"""Canaries in random directions on the sphere, scored by cosines with the model's displacement.

CotS is the hidden-state paper's (Algorithms 7 and 8, after Andrew et al., 2024). One-shot canaries (Andrew et
al., 2024) are many, each clipped to C as it is inserted: `final_cosines` sees the final model (Algorithm 2),
`largest_cosines` every iterate (Algorithm 3).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from audit.adversaries.base import Adversary, Expect, Observer
from audit.mechanism.base import Craft, Directions, Tree, draw_unit_direction

_TINY = 1e-30  # in the place of a length of 0
# The entries (K, p) of directions that stay in memory, 1 GiB; more are drawn each time they are needed.
_MOST_KEPT = 1 << 28


class RandomDirection(NamedTuple):
    """The canary C * u (1, p), and the model (p,) with which the final model is compared."""

    gradient: Array
    origin: Array


def initial_model(theta_0: Array) -> Array:
    """Returns theta_0 (p,) as the origin: the displacement from it is what training changed."""
    return theta_0


def zero_model(theta_0: Array) -> Array:
    """Returns zeros (p,) as the origin: the displacement from them is the final weights."""
    return jnp.zeros_like(theta_0)


def random_direction(origin: Callable[[Array], Array] = initial_model) -> Adversary:
    """Returns the adversary that inserts C * u for a uniform unit vector u.

    The score is the cosine of u and origin(theta_0) - theta_T.

    Args:
      origin: theta_0 (p,) -> the model (p,) from which the displacement is measured.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirection:
        normal = jax.random.normal(key, theta_0.shape, theta_0.dtype)
        gradient = jnp.asarray(clipping_norm * normal / jnp.linalg.norm(normal))[None]
        return RandomDirection(gradient, origin(theta_0))

    def craft(state: RandomDirection, step: Array, theta: Array) -> Array:
        return state.gradient

    def score(state: RandomDirection, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
        direction = state.gradient[0]
        displacement = state.origin - theta_t
        lengths = jnp.linalg.norm(direction) * jnp.linalg.norm(displacement)
        return (jnp.vdot(direction, displacement) / jnp.maximum(lengths, _TINY))[None]

    return Adversary(init, craft, score)


class RandomDirections(NamedTuple):
    """K directions as typed keys (K,), C (), and the model (p,) with which the final model is compared."""

    keys: Array
    norm: Array
    origin: Array


def random_directions(canaries: int, expect: Expect) -> Adversary:
    """Returns CotS with K canaries: C * u_k for uniform unit vectors u_k, drawn when needed.

    A score is the cosine of u_k and how far below its expected place the model ended.

    Args:
      canaries: K.
      expect: the model (p,) that the adversary expects; `weights` expects zeros.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirections:
        keys = jax.random.split(key, canaries)
        # `_craft_many` does not read the origin, so that this state is enough to train with.
        blank = RandomDirections(keys, clipping_norm, jnp.zeros_like(theta_0))
        return blank._replace(origin=expect(_craft_many, blank, theta_0))

    return Adversary(init, _craft_many, _score_many, canaries=canaries, crafts_constant=True)


def weights(craft: Craft, state: Tree, theta_0: Array) -> Array:
    """Returns zeros (p,) where other functions return the model that they expect: final weights are scored.

    It is an `Expect`, whose arguments it has no use for. The LiDP paper (Section 6) takes a cosine with all
    of the weights, whose length is that of the initialisation too.
    """
    return zero_model(theta_0)


def _craft_many(state: RandomDirections, step: Array, theta: Array) -> Directions:
    return Directions(state.keys, state.norm)


def _score_many(state: RandomDirections, seen: Tree, theta_t: Array, theta_0: Array) -> Array:
    return _draw_cosines(state.keys, _scale_to_unit(state.origin - theta_t))


class OneShot(NamedTuple):
    """The state of `largest_cosines`.

    Attributes:
      keys: K directions as typed keys (K,).
      units: the drawn directions (K, p) where memory holds them, else (0, p).
      momentum: the server's, ().
    """

    keys: Array
    units: Array
    momentum: Array


class Seen(NamedTuple):
    """What was seen: the last iterate (p,), the move to it (p,), each canary's largest cosine (K,)."""

    theta: Array
    moved: Array
    largest: Array


def final_cosines(
    canaries: int, origin: Callable[[Array], Array] = initial_model, fresh: bool = False
) -> Adversary:
    """Returns one-shot canaries (Andrew et al., 2024, Algorithm 2), scored by the final model.

    The score of canary k is the cosine of its direction u_k with origin(theta_0) - theta_T.

    Args:
      canaries: K.
      origin: theta_0 (p,) -> the model (p,) from which the displacement of the final model is measured.
        `initial_model`: the cosines are those with what training changed. `zero_model`: those with the final
        weights, as in the paper; the initial weights dilute them.
      fresh: whether every run draws directions of its own. Only then is the law of cosines of canaries that
        are out the same in every run and independent between runs, as bounds on fresh directions need it.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> RandomDirections:
        keys = jax.random.split(key, canaries)
        # The norm is infinite: the mechanism clips each canary to its own C, which may change by round.
        return RandomDirections(keys, jnp.float32(jnp.inf), origin(theta_0))

    def draw(state: RandomDirections, key: Array) -> RandomDirections:
        return state._replace(keys=jax.random.split(key, canaries))

    return Adversary(
        init,
        _craft_unclipped,
        _score_many,
        canaries=canaries,
        crafts_constant=True,
        draw=draw if fresh else None,
        law_is_known=fresh,
    )


def largest_cosines(canaries: int, momentum: float = 0.0, most_kept: int = _MOST_KEPT) -> Adversary:
    """Returns one-shot canaries, each scored by the largest of its cosines with theta_{t-1} - theta_t.

    The largest is over all steps t; it is -1 before the first. That is what the public code of Andrew et al.
    (2024) does. Algorithm 3 of that paper takes the step's noisy mean, which is the move less `momentum`
    times the move before, for a server that takes Optax's SGD with this momentum.

    Args:
      canaries: K.
      momentum: the server's.
      most_kept: directions of up to so many entries (K, p) stay in memory; others are drawn each time.
    """

    def init(key: Array, theta_0: Array, clipping_norm: Array) -> OneShot:
        """Draws the directions' keys, and the directions themselves where memory holds them."""
        keys = jax.random.split(key, canaries)
        stored = canaries if canaries * theta_0.size <= most_kept else 0
        units = jax.lax.map(
            lambda direction_key: draw_unit_direction(direction_key, theta_0),
            keys[:stored],
        )
        return OneShot(keys, units, jnp.float32(momentum))

    def begin(state: OneShot, theta_0: Array) -> Seen:
        return Seen(theta_0, jnp.zeros_like(theta_0), jnp.full(canaries, -1.0))

    def score(state: OneShot, seen: Seen, theta_t: Array, theta_0: Array) -> Array:
        return seen.largest

    observer = Observer(begin, _observe)
    return Adversary(
        init, _craft_unclipped, score, canaries=canaries, observer=observer, crafts_constant=True
    )


def _craft_unclipped(state: OneShot | RandomDirections, step: Array, theta: Array) -> Directions:
    """Returns canaries of infinite norm: the mechanism clips them to C as it inserts them."""
    return Directions(state.keys, jnp.float32(jnp.inf))


def _observe(state: OneShot, seen: Seen, step: Array, released: Array) -> Seen:
    """Takes in the iterate (p,) that a step released, and updates each canary's largest cosine.

    The cosine is with the move to the iterate, theta_{t-1} - theta_t, less `momentum` times the move before.

    Args:
      state: the directions, by keys or themselves, and the momentum.
      seen: the iterate before, the move to it, and the largest cosines so far.
      step: its number, which decides nothing.
      released: the iterate.
    """
    moved = seen.theta - released
    unit = _scale_to_unit(moved - state.momentum * seen.moved)
    cosines = state.units @ unit if len(state.units) else _draw_cosines(state.keys, unit)
    return Seen(released, moved, jnp.maximum(seen.largest, cosines))


def _scale_to_unit(displacement: Array) -> Array:
    """Returns the displacement at length 1; 0 where there is none."""
    return displacement / jnp.maximum(jnp.linalg.norm(displacement), _TINY)


def _draw_cosines(keys: Array, unit: Array) -> Array:
    """Returns the cosines (K,) of directions with a unit vector (p,), drawing one direction at a time."""

    def draw_cosine(key: Array) -> Array:
        return jnp.vdot(draw_unit_direction(key, unit), unit)

    cosines: Array = jax.lax.map(draw_cosine, keys)
    return cosines
