"""Canaries for a single training run of any framework, in NumPy alone.

A canary is a client (or an example) whose update is a known random direction, as long as the clipping norm.
Train once with many of them, score the final model, and hand the cosines to `bound --dimension`, a command of
`python -m audit`:

    bits = one_run.coins(seed, count)                         # True: this canary takes part
    update = clipping_norm * one_run.canary(seed, i, d)       # what canary i sends, for bits[i]
    scores = one_run.cosines(theta_T - theta_0, seed, count)  # turn the sign if updates are subtracted
    numpy.savez("run.npz", scores=scores[None], presence=bits[None])

Without coins, where all canaries take part, save observed=scores instead. Coins give bounds that hold
however the canaries are tied together; without coins a bound holds that is looser where little leaks.

The displacement theta_T - theta_0 keeps the initial weights, which say nothing, out of the length (Errata
O9). Parameters that are not trained do not count in d. Numbers depend on (seed, index, d) alone, in one
version of NumPy. The seed is a secret of the auditor's: training must not know it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import number, require, shown
from audit.evidence import arrays

Array = NDArray[np.float64]
MOST_COUNT = 5_000_000  # as many scores as `bound` takes
MOST_DIMENSION = 10**10  # a canary of so many coordinates takes 80 GB
_CANARIES = 0  # tells the random stream of canaries from that of coins under the same seed
_COINS = 1
MOST_SEED = 2**63 - 1


def canary(seed: int, index: int, dimension: int) -> Array:
    """Returns a canary, a unit vector (dimension,) of uniform direction.

    Args:
      seed: the seed of all canaries, 0 to 2^63 - 1, a secret of the auditor.
      index: the canary's index, from 0.
      dimension: the number of trained parameters.

    Raises:
      InputError: numbers out of range.
    """
    seed = check_seed(seed)
    index = check_whole_number("index", index, 0, MOST_SEED)
    size = check_whole_number("dimension", dimension, 2, MOST_DIMENSION)
    direction = np.random.default_rng([_CANARIES, seed, index]).standard_normal(size)
    return direction / np.linalg.norm(direction)


def coins(seed: int, count: int) -> NDArray[np.bool_]:
    """Returns fair coins (count,), True where a canary takes part, independent of the canaries' directions.

    Args:
      seed: the seed of the canaries, 0 to 2^63 - 1; coins and directions are different streams under it.
      count: the number of canaries.

    Raises:
      InputError: numbers out of range.
    """
    size = check_whole_number("count", count, 1, MOST_COUNT)
    rng = np.random.default_rng([_COINS, check_seed(seed)])
    return rng.random(size) < 0.5


def cosines(displacement: ArrayLike, seed: int, count: int) -> Array:
    """Returns each canary's cosine (count,) with the displacement, larger if the canary took part.

    It draws count * d coordinates, about 10^8 a second.

    Args:
      displacement: (d,), the final trained parameters minus the initial ones. It must point along what
        canaries send: negate it where training subtracts their updates, as gradient descent does.
      seed: the seed of the canaries.
      count: the number of canaries to score.

    Raises:
      InputError: the displacement is no finite vector, or is 0, or a number is out of range.
    """
    unit = check_displacement(displacement)
    size = check_whole_number("count", count, 1, MOST_COUNT)
    return np.array([canary(seed, index, len(unit)) @ unit for index in range(size)])


def check_displacement(displacement: ArrayLike) -> Array:
    """Returns a displacement divided by its Euclidean length, in float64.

    Raises:
      InputError: the displacement is no vector of at least 2 entries, is not finite, or is 0.
    """
    vector = arrays.floats("the displacement's entries", displacement)
    shape = f"the displacement has shape {vector.shape}: flatten it into one vector"
    require(vector.ndim == 1, shape)
    size = len(vector)
    require(size >= 2, f"the displacement has {size} entries: give at least 2")
    with np.errstate(over="ignore"):  # an overflow gives an infinite length, refused below
        length = float(np.linalg.norm(vector))
    failed = "the displacement is not finite: the run failed; it counts, as NaN"
    require(np.isfinite(length), failed)
    require(length > 0, "the displacement is 0: the model was not trained, or is its own start")
    return vector / length


def check_seed(seed: int) -> int:
    """Returns a caller's seed; raises InputError unless it is a whole number from 0 to 2^63 - 1."""
    return check_whole_number("seed", seed, 0, MOST_SEED)


def check_whole_number(name: str, value: int, least: int, most: int) -> int:
    """Returns a caller's whole number as an int.

    Args:
      name: the parameter's name, which the message repeats.
      value: the caller's value.
      least, most: the range, ends included.

    Raises:
      InputError: the value is no whole number in this range.
    """
    checked = number(name, value, int)
    end = f"{most:,}" if most < MOST_SEED else "2^63 - 1"
    require(least <= checked <= most, f"`{name}={shown(checked)}`: give {least} to {end}")
    return checked
