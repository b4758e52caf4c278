"""Canaries for a single training run in any framework. Needs only NumPy.

A canary is a client (or an example) whose update is a known random direction, scaled to the clipping norm.
Train once with many of them, score the final model, and pass the cosines to `python -m audit bound
--dimension`:

    bits = one_run.coins(seed, count)                         # True: this canary takes part
    update = clipping_norm * one_run.canary(seed, i, d)       # canary i's update, if bits[i]
    scores = one_run.cosines(theta_T - theta_0, seed, count)  # negate if updates are subtracted
    numpy.savez("run.npz", scores=scores[None], presence=bits[None])

Without coins, all canaries take part, and you save observed=scores instead. The bound is then looser if
epsilon is small.

Scores use the displacement, because the initial weights do not depend on the canaries (Errata O9 of
experiments/one_shot/README.md). d counts only trained parameters. A canary depends only on (seed, index, d),
within one version of NumPy. Training must not know the seed.
"""

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require, whole_number
from audit.evidence import arrays
from audit.evidence.arrays import Array, Bits

MAX_COUNT = 5_000_000  # the largest number of scores in `bound`
MAX_DIMENSION = 10**10  # such a canary takes 80 GB
# Two random streams make the canaries and coins of a seed independent.
_CANARIES = 0
_COINS = 1
MOST_SEED = 2**63 - 1


def canary(seed: int, index: int, dimension: int) -> Array:
    """Returns a canary: a unit vector of shape (dimension,) with a uniform direction.

    Args:
      seed: the seed of all canaries, 0 to 2^63 - 1, known only to the auditor.
      index: the canary's index, starting at 0.
      dimension: the number of trained parameters.

    Raises:
      InputError: a number is out of range.
    """
    seed = check_seed(seed)
    index = whole_number("index", index, 0, MOST_SEED)
    size = whole_number("dimension", dimension, 2, MAX_DIMENSION)
    direction = np.random.default_rng([_CANARIES, seed, index]).standard_normal(size)
    return direction / np.linalg.norm(direction)


def coins(seed: int, count: int) -> Bits:
    """Returns fair coins (count,), True for canaries that take part. They are independent of the directions.

    Args:
      seed: the seed of the canaries, 0 to 2^63 - 1.
      count: the number of canaries.

    Raises:
      InputError: a number is out of range.
    """
    size = whole_number("count", count, 1, MAX_COUNT)
    rng = np.random.default_rng([_COINS, check_seed(seed)])
    return rng.random(size) < 0.5


def cosines(displacement: ArrayLike, seed: int, count: int) -> Array:
    """Returns the cosines (count,) between the canaries and the displacement.

    Cosines are larger for canaries that took part. This draws count * d numbers, about 10^8 per second.

    Args:
      displacement: (d,), the final trained parameters minus the initial ones. Negate it if training
        subtracts updates, like gradient descent.
      seed: the seed of the canaries.
      count: the number of canaries to score.

    Raises:
      InputError: the displacement is not a finite, nonzero vector, or a number is out of range.
    """
    unit = check_displacement(displacement)
    size = whole_number("count", count, 1, MAX_COUNT)
    return np.array([canary(seed, index, len(unit)) @ unit for index in range(size)])


def check_displacement(displacement: ArrayLike) -> Array:
    """Returns a displacement divided by its Euclidean length, in float64.

    Raises:
      InputError: the displacement is not a vector of at least 2 entries, is not finite, or is 0.
    """
    vector = arrays.floats("the displacement's entries", displacement)
    require(
        vector.ndim == 1, f"the displacement has shape {vector.shape}: flatten it into one vector"
    )
    require(len(vector) >= 2, f"the displacement has {len(vector)} entries: give at least 2")
    with np.errstate(over="ignore"):  # we reject an infinite length below
        length = float(np.linalg.norm(vector))
    require(
        np.isfinite(length), "the displacement is not finite, so the run failed: include it as NaN"
    )
    require(length > 0, "the displacement is 0: give the movement of a trained model")
    return vector / length


def check_seed(seed: int) -> int:
    """Returns a user's seed; raises InputError unless it is a whole number from 0 to 2^63 - 1."""
    return whole_number("seed", seed, 0, MOST_SEED)
