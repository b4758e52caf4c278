"""Draws the canaries that join each step of a run: functions of type `audit.mechanism.base.Join`.

Draws depend only on the run's key and the step, not on chunks or segments.
"""

import functools
import math
import zlib

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.base import Join

# We fold these numbers into a step's key. They exceed any p, because the noise uses counters below p with the
# same key.
_COINS = zlib.crc32(b"joins")
_PLACES = zlib.crc32(b"places")


def draw_by_coins(presence: Array, run_key: Array, step: Array) -> Array:
    """Draws which of K canaries join a step, with independent coin flips (Poisson sampling).

    `presence` (K,) is the sampling rate for an inserted canary, and 0 for a held-out canary. Returns an array
    (K,): 1.0 for a canary that joins the step, else 0.0.
    """
    step_key = jax.random.fold_in(run_key, step)  # also used by the noise
    coins_key = jax.random.fold_in(step_key, _COINS)
    # "high" draws more random bits, which small probabilities need.
    joins = jax.random.bernoulli(coins_key, presence, mode="high")
    return joins.astype(jnp.float32)


@functools.lru_cache  # JAX reuses compiled programs only for identical functions
def draw_by_epochs(batches: int, shuffles: bool) -> Join:
    """Returns a function that lets each canary join one random step in each epoch of `batches` steps.

    If `shuffles`, all steps have the same number of slots, and each canary takes a different random slot.
    Some slots may remain empty. Otherwise each canary joins a uniformly random step, independently of the
    others (balls-in-bins sampling).
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns an array (K,): 1 for an inserted canary that joins the step, else 0."""
        # All steps of an epoch use the key of its first step, so they draw the same `own_steps` (the step of
        # each canary).
        first_step = step // batches * batches
        step_key = jax.random.fold_in(run_key, first_step)
        key = jax.random.fold_in(step_key, _PLACES)  # the step's noise uses `step_key`
        canaries = len(presence)
        if shuffles:
            # Shuffled batches have equal numbers of canary slots, so we round up.
            slots = batches * math.ceil(canaries / batches)
            own_slots = jax.random.permutation(key, slots)[:canaries]
            own_steps = own_slots % batches
        else:
            own_steps = jax.random.randint(key, (canaries,), 0, batches)
        return presence * (own_steps == step % batches)

    return join
