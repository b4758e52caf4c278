"""How canaries that are in join the steps of a run: functions under the contract `audit.mechanism.base.Join`.

They draw only from the run's key and the step, so the draws do not depend on chunks or segments.
"""

import functools
import zlib

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
def draw_by_epochs(batches: int, shuffles: bool) -> Join:
    """Returns the function that draws which canaries join a step, one step in each epoch of `batches` steps.

    If it shuffles, every canary gets a distinct random slot and joins the step of that slot. All steps have
    the same number of slots. Some stay empty. Otherwise each canary joins a uniformly drawn step,
    independently of the others (balls-in-bins sampling).
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns which canaries (K,) join a step: 1 for a canary that is in and joins, else 0."""
        # All steps of an epoch draw the same places.
        first_step = step // batches * batches
        step_key = jax.random.fold_in(run_key, first_step)
        key = jax.random.fold_in(step_key, _PLACES)
        canaries = len(presence)
        if shuffles:
            slots = batches * -(-canaries // batches)  # at least one per canary
            places = jax.random.permutation(key, slots)[:canaries] % batches
        else:
            places = jax.random.randint(key, (canaries,), 0, batches)
        return presence * (places == step % batches)

    return join
