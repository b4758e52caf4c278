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

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, number, require, shown
from audit.evidence import arrays

Array = NDArray[np.float64]
MOST_COUNT = 5_000_000  # as many scores as `bound` takes
MOST_DIMENSION = 10**10  # a canary of so many coordinates takes 80 GB
_CANARIES = 0  # tells the random stream of canaries from that of coins under the same seed
_COINS = 1
MOST_SEED = 2**63 - 1
_BLOCK = 1 << 18  # how many coordinates are in memory at once


def canary(seed: int, index: int, dimension: int) -> Array:
    """Returns a canary, a unit vector (dimension,) of uniform direction.

    Args:
      seed: the seed of all canaries, 0 to 2^63 - 1, a secret of the auditor.
      index: the canary's index, from 0.
      dimension: the number of trained parameters.

    Raises:
      InputError: numbers out of range, or a vector that does not fit into memory.
    """
    seed = check_seed(seed)
    index = check_whole_number("index", index, 0, MOST_SEED)
    size = check_whole_number("dimension", dimension, 2, MOST_DIMENSION)
    return join_to_unit_vector(_draw_blocks(seed, index, size), size)


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


def cosines(displacement: ArrayLike, seed: int, count: int, first: int = 0) -> Array:
    """Returns each canary's cosine (count,) with the displacement, larger if the canary took part.

    It takes two megabytes of memory beside the displacement. It draws count * d coordinates, about 10^8 a
    second.

    Args:
      displacement: (d,), the final trained parameters minus the initial ones. It must point along what
        canaries send: negate it where training subtracts their updates, as gradient descent does.
      seed: the seed of the canaries.
      count: the number of canaries to score.
      first: the index of the first canary to score.

    Returns:
      Cosines (count,) of canaries first, first + 1, ...

    Raises:
      InputError: the displacement is no finite vector, or is 0, or a number is out of range.
    """
    vector, length = check_displacement(arrays.real("the displacement's entries", displacement))
    seed = check_seed(seed)
    size = check_whole_number("count", count, 1, MOST_COUNT)
    start = check_whole_number("first", first, 0, MOST_SEED)
    # Canaries have length 1: a cosine is the inner product over the displacement's length.
    products = [_project(vector, seed, start + place) for place in range(size)]
    return np.array(products) / length


def check_displacement(displacement: NDArray[np.generic]) -> tuple[NDArray[np.generic], float]:
    """Checks a displacement; returns it unchanged, with its Euclidean length.

    The length is computed block by block, so that no copy in float64 is in memory.

    Raises:
      InputError: the displacement is no vector of at least 2 entries, is not finite, or is 0.
    """
    shape = displacement.shape
    require(
        displacement.ndim == 1, f"the displacement has shape {shape}: flatten it into one vector"
    )
    size = len(displacement)
    require(size >= 2, f"the displacement has {size} entries: give at least 2")
    blocks = -(-size // _BLOCK)  # rounded up
    with np.errstate(over="ignore"):  # an overflow gives an infinite length, refused below
        lengths = [np.linalg.norm(_get_block(displacement, place)) for place in range(blocks)]
        length = float(np.linalg.norm(lengths))
    require(
        np.isfinite(length), "the displacement is not finite: the run failed; it counts, as NaN"
    )
    require(length > 0, "the displacement is 0: the model was not trained, or is its own start")
    return displacement, length


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


def join_to_unit_vector(blocks: Iterable[Array], size: int) -> Array:
    """Returns blocks of normal coordinates joined into one vector (size,), divided by its length.

    Raises InputError where the vector does not fit into memory.
    """
    try:
        direction = np.empty(size)
    except MemoryError:
        raise InputError(
            f"`dimension={size}` takes {8 * size / 1e9:,.0f} GB, which are not free"
        ) from None
    end = 0
    for block in blocks:
        start = end
        end += len(block)
        direction[start:end] = block
    direction /= np.linalg.norm(direction)
    return direction


def _draw_blocks(seed: int, index: int, dimension: int) -> Iterator[Array]:
    """Yields a canary's normal coordinates, not yet scaled to length 1, in blocks of _BLOCK at most."""
    rng = np.random.default_rng([_CANARIES, seed, index])
    for start in range(0, dimension, _BLOCK):
        yield rng.standard_normal(min(_BLOCK, dimension - start))


def _project(displacement: NDArray[np.generic], seed: int, index: int) -> float:
    """Returns the inner product of a displacement (d,) and a canary, a vector of length 1.

    The canary is drawn block by block, never held in memory as a whole: its product and its squared length
    are summed over the blocks, and it is scaled to length 1 at the end.
    """
    product = 0.0
    squared_norm = 0.0
    for place, block in enumerate(_draw_blocks(seed, index, len(displacement))):
        product += float(block @ _get_block(displacement, place))
        squared_norm += float(block @ block)
    return product / float(np.sqrt(squared_norm))


def _get_block(displacement: NDArray[np.generic], place: int) -> Array:
    """Returns block number `place` of a displacement in float64, _BLOCK entries at most."""
    return np.asarray(displacement[place * _BLOCK : (place + 1) * _BLOCK], np.float64)
