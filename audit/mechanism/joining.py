"""How canaries that are in join the steps of a run: functions under the contract `audit.mechanism.base.Join`.

They draw only from the run's key and the step, so the draws do not depend on chunks or segments.
"""

import functools
import zlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.base import Join

# Folded into a step's key. They are beyond any p, since the noise uses the same key entry by entry.
_COINS = zlib.crc32(b"joins")
_PLACES = zlib.crc32(b"places")


def draw_by_coins(presence: Array, run_key: Array, step: Array) -> Array:
    """Draws which of K canaries join a step, by independent coins (Poisson sampling): 1.0 or 0.0, (K,).

    presence (K,) is the sampling rate for a canary that is in, 0 for a canary that is out.
    """
    step_key = jax.random.fold_in(run_key, step)
    # The noise uses `step_key`.
    coins_key = jax.random.fold_in(step_key, _COINS)
    # "high" draws more random bits, for small probabilities.
    joins = jax.random.bernoulli(coins_key, presence, mode="high")
    return joins.astype(jnp.float32)


@functools.lru_cache
def draw_by_dice(batches: int) -> Join:
    """Returns the function that draws, by balls-in-bins sampling, which canaries join a step.

    Each canary joins one uniformly drawn step of each epoch of `batches` steps, independently of the others.
    """

    def draw_places(key: Array, canaries: int) -> Array:
        return jax.random.randint(key, (canaries,), 0, batches)

    return _join_at_places(draw_places, batches)


@functools.lru_cache
def draw_by_shuffling(batches: int) -> Join:
    """Returns the function that draws, by shuffling, which canaries join a step.

    In each epoch of `batches` steps every canary gets a distinct random slot and joins the step of that
    slot. All steps have the same number of slots. Some stay empty.
    """

    def draw_places(key: Array, canaries: int) -> Array:
        slots = batches * -(-canaries // batches)  # at least one per canary
        return jax.random.permutation(key, slots)[:canaries] % batches

    return _join_at_places(draw_places, batches)


def _join_at_places(draw_places: Callable[[Array, int], Array], batches: int) -> Join:
    """Returns the function that makes each canary join a single step of each epoch of `batches` steps.

    `draw_places` maps an epoch's key and K to the canaries' steps (K,), from 0.
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns which canaries (K,) join a step: 1 for a canary that is in and joins, else 0."""
        # All steps of an epoch draw the same places.
        first_step = step // batches * batches
        step_key = jax.random.fold_in(run_key, first_step)
        key = jax.random.fold_in(step_key, _PLACES)
        places = draw_places(key, len(presence))
        return presence * (places == step % batches)

    return join
