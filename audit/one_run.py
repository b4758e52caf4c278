"""Canaries for one training run of any framework, in NumPy alone.

A canary is a client (or an example) whose update is a known random direction, as long as the clipping norm.
Train once with many of them, score the final model, and hand the cosines to `bound --dimension`, a command of
`python -m audit`:

    bits = one_run.coins(seed, count)                         # True: this canary takes part
    update = clipping_norm * one_run.canary(seed, i, d)       # what canary i sends, for bits[i]
    scores = one_run.cosines(theta_T - theta_0, seed, count)  # turn the sign if updates are subtracted
    numpy.savez("run.npz", scores=scores[None], presence=bits[None])

Without coins, where all canaries take part, save observed=scores instead. Coins give bounds that hold
however the canaries are tied together; without them one bound holds, which is looser where little leaks.

The displacement theta_T - theta_0 keeps the initial weights, which say nothing, out of the length (Errata
O9). Parameters that are not trained do not count in d. Numbers depend on (seed, index, d) alone, in one
version of NumPy. The seed is a secret of the auditor's: training must not know it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require
from audit.evidence import arrays
from audit.values import number, shown

Array = NDArray[np.float64]
MOST_COUNT, MOST_DIMENSION = 5_000_000, 10**10  # of scores that `bound` takes; 80 GB
_CANARIES, _COINS = 0, 1  # roots of the two streams under a seed
MOST_SEED = 2**63 - 1
_BLOCK = 1 << 18  # coordinates in memory at once


def canary(seed: int, index: int, dimension: int) -> Array:
    """Canary `index`, a uniform unit vector (dimension,); raises InputError for numbers out of range."""
    seed, index = seed_of(seed), whole("index", index, 0, MOST_SEED)
    size = whole("dimension", dimension, 2, MOST_DIMENSION)
    try:
        drawn = np.empty(size)
    except MemoryError:
        raise InputError(f"`dimension={size}` takes {8 * size / 1e9:,.0f} GB, which are not free") from None
    for place, block in enumerate(_blocks(seed, index, size)):
        drawn[place * _BLOCK : (place + 1) * _BLOCK] = block
    drawn /= np.linalg.norm(drawn)
    return drawn


def coins(seed: int, count: int) -> NDArray[np.bool_]:
    """Fair, independent coins (count,), which have nothing to do with the canaries' directions."""
    size = whole("count", count, 1, MOST_COUNT)
    return np.random.default_rng([_COINS, seed_of(seed)]).random(size) < 0.5


def cosines(displacement: ArrayLike, seed: int, count: int, first: int = 0) -> Array:
    """Cosines (count,) of canaries first, first + 1, ... with a displacement (d,): larger, if they took part.
    Memory is two megabytes beside the displacement, time about a second for 10^8 coordinates of all canaries.
    Raises InputError for a displacement that is no finite vector, or is 0."""
    moved, length = with_length(arrays.real("the displacement's entries", displacement))
    seed, size = seed_of(seed), whole("count", count, 1, MOST_COUNT)
    start = whole("first", first, 0, MOST_SEED)
    return np.array([_product(moved, seed, start + i) for i in range(size)]) / length


def with_length(moved: NDArray[np.generic]) -> tuple[NDArray[np.generic], float]:
    """A displacement and its length; raises InputError for one that is no finite vector, or is 0."""
    require(moved.ndim == 1, f"the displacement has shape {moved.shape}: flatten it into one vector")
    require(len(moved) >= 2, f"the displacement has {len(moved)} entries: give at least 2")
    with np.errstate(over="ignore"):  # what is too large is infinite, and refused
        parts = [np.linalg.norm(_part(moved, place)) for place in range(-(-len(moved) // _BLOCK))]
        length = float(np.linalg.norm(parts))
    require(np.isfinite(length), "the displacement is not finite: the run failed; it counts, as NaN")
    require(length > 0, "the displacement is 0: the model was not trained, or is its own start")
    return moved, length


def seed_of(seed: int) -> int:
    """A caller's seed; raises InputError unless it is a whole number from 0 to 2^63 - 1."""
    return whole("seed", seed, 0, MOST_SEED)


def whole(name: str, value: int, least: int, most: int) -> int:
    """A caller's whole number in a range; raises InputError for anything else."""
    found = number(name, value, int)
    end = f"{most:,}" if most < MOST_SEED else "2^63 - 1"
    require(least <= found <= most, f"`{name}={shown(found)}`: give {least} to {end}")
    return found


def _blocks(seed: int, index: int, dimension: int) -> Iterator[Array]:
    """A canary's normal coordinates, not yet of length 1, one block after the other."""
    rng = np.random.default_rng([_CANARIES, seed, index])
    for start in range(0, dimension, _BLOCK):
        yield rng.standard_normal(min(_BLOCK, dimension - start))


def _product(moved: NDArray[np.generic], seed: int, index: int) -> float:
    product = square = 0.0
    for place, block in enumerate(_blocks(seed, index, len(moved))):
        product += float(block @ _part(moved, place))
        square += float(block @ block)
    return product / float(np.sqrt(square))


def _part(moved: NDArray[np.generic], place: int) -> Array:
    return np.asarray(moved[place * _BLOCK : (place + 1) * _BLOCK], np.float64)
