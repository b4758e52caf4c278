"""How canaries that are in join the steps of a run: functions under the contract `audit.mechanism.base.Join`.

Each draws from the run's key and the step alone, so that the draws depend on neither chunks nor segments.
Equal numbers of batches give the same function, which is compiled once.
"""

import functools
import zlib

import jax
import jax.numpy as jnp
from jax import Array

from audit.mechanism.base import Join

# Folded into a step's key. Beyond any p, since that key also gives the noise, entry by entry.
_COINS = zlib.crc32(b"joins")
_PLACES = zlib.crc32(b"places")


def draw_by_coins(presence: Array, run_key: Array, step: Array) -> Array:
    """Draws which of K canaries join a step, by Poisson sampling: 1.0 for those that do, else 0.0, (K,).

    Canary k joins with probability presence[k], by a coin of its own.

    Args:
      presence: (K,), the sampling rate for a canary that is in, 0 for a canary that is out.
      run_key: the run's key.
      step: the number of the step.
    """
    step_key = jax.random.fold_in(run_key, step)
    # The noise of the step is drawn from `step_key` too: the coins get a key of their own.
    coins_key = jax.random.fold_in(step_key, _COINS)
    # The mode "high" draws more random bits, for probabilities below float32's steps.
    joins = jax.random.bernoulli(coins_key, presence, mode="high")
    return joins.astype(jnp.float32)


@functools.lru_cache
def draw_by_dice(batches: int) -> Join:
    """Returns the function that draws, by balls-in-bins sampling, which canaries join a step.

    Each canary joins a single step of each epoch, uniform among them and independent of other canaries.

    Args:
      batches: the number of steps of an epoch.
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns which canaries (K,) join a step: 1 for a canary that is in and joins, else 0.

        Args:
          presence: (K,) 1 for a canary that is in, 0 for a canary that is out, which never joins.
          run_key: the run's key.
          step: the number of the step, over all epochs.
        """
        # All steps of an epoch share the key, so that they draw the same places.
        key = _make_epoch_key(run_key, step, batches)
        # The step of the epoch, from 0, that each canary joins.
        places = jax.random.randint(key, presence.shape, 0, batches)
        return presence * (places == step % batches)

    return join


@functools.lru_cache
def draw_by_shuffling(batches: int) -> Join:
    """Returns the function that draws, by shuffling, which canaries join a step.

    In each epoch every canary gets a random slot of its own, and joins the step to which the slot belongs.
    All steps have equally many slots. If there are more slots than canaries, the others stay empty.

    Args:
      batches: the number of steps of an epoch.
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns which canaries (K,) join a step: 1 for a canary that is in and joins, else 0.

        Args:
          presence: (K,) 1 for a canary that is in, 0 for a canary that is out, which never joins.
          run_key: the run's key.
          step: the number of the step, over all epochs.
        """
        (canaries,) = presence.shape
        slots_per_step = -(-canaries // batches)  # rounded up, so that all canaries have a slot
        slots = batches * slots_per_step
        # All steps of an epoch share the key, so that they draw the same permutation.
        key = _make_epoch_key(run_key, step, batches)
        slot_of_canary = jax.random.permutation(key, slots)[:canaries]
        # The step of the epoch, from 0, that each canary joins: slot s belongs to step s % batches.
        places = slot_of_canary % batches
        return presence * (places == step % batches)

    return join


def _make_epoch_key(run_key: Array, step: Array, batches: int) -> Array:
    """Returns the key of an epoch's draws, which all of its steps share."""
    first_step = step // batches * batches
    return jax.random.fold_in(jax.random.fold_in(run_key, first_step), _PLACES)
