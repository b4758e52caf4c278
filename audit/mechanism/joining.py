"""How canaries that are in join the steps of a run: functions under the contract `audit.mechanism.base.Join`.

Each draws from the run's key and the step alone, so that the draws depend on neither chunks nor segments.
"""

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

    Canary k joins with probability presence[k], by a coin of its own. The mode "high" draws more random bits,
    for probabilities below float32's steps.

    Args:
      presence: (K,), the sampling rate for a canary that is in, 0 for a canary that is out.
      run_key: the run's key.
      step: the number of the step.
    """
    coins = jax.random.fold_in(jax.random.fold_in(run_key, step), _COINS)
    return jax.random.bernoulli(coins, presence, mode="high").astype(jnp.float32)


def draw_by_dice(batches: int) -> Join:
    """Returns the draw of balls-in-bins sampling: a canary joins a single, uniform step of each epoch.

    Args:
      batches: the number of steps of an epoch.
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns the presence (K,), with 0 in place of that of each canary that does not join the step."""
        key = _make_epoch_key(run_key, step, batches)
        # The step of the epoch, from 0, that each canary joins.
        places = jax.random.randint(key, presence.shape, 0, batches)
        return presence * (places == step % batches)

    return join


def draw_by_shuffling(batches: int) -> Join:
    """Returns the draw of sampling by shuffling: each epoch deals a permutation of all canaries to its steps.

    Every step has the same number of slots for canaries. Some stay empty where the slots are more.

    Args:
      batches: the number of steps of an epoch.
    """

    def join(presence: Array, run_key: Array, step: Array) -> Array:
        """Returns the presence (K,), with 0 in place of that of each canary that does not join the step."""
        (canaries,) = presence.shape
        # Rounded up, so that all canaries have a slot.
        slots_per_step = -(-canaries // batches)
        slots = batches * slots_per_step
        key = _make_epoch_key(run_key, step, batches)
        # Canary k gets slot permutation[k], and the other slots stay empty. `places` are the steps of the
        # epoch to which the canaries' slots belong.
        places = jax.random.permutation(key, slots)[:canaries] % batches
        return presence * (places == step % batches)

    return join


def _make_epoch_key(run_key: Array, step: Array, batches: int) -> Array:
    """Returns the key of an epoch's draws, which all of its steps share."""
    first_step = step // batches * batches
    return jax.random.fold_in(jax.random.fold_in(run_key, first_step), _PLACES)
