"""Fresh directions for several trainings of any framework, in NumPy alone (leave-one-out loads SciPy).

Each canary is a gradient along a uniform direction that every run draws afresh. The law of its cosine in a
model that was trained without it is known exactly, so that all canaries take part in every run, and a few
trainings prove much (`exact_null` of audit/statistics):

    total = directions.inserted(seed, run, count, dimension, norm)     # once a run, before training
    clipped_sum += total                                               # at every step with the canaries
    ...
    u = theta_0 - theta_T + drift                                      # where steps subtract gradients
    rows.append(directions.cosines(u, seed, run, count))               # after the run
    audit.bounds(audit.cosines(rows, dimension, in_order=True))

Every run that was begun is a row, in the order of beginning: one that failed is a row of NaN.
u points to where the canaries push, turned: theta_T - theta_0 - drift where steps add updates. drift is how
one rehearsed training moves without noise and without canaries, theta_T - theta_0 of it; it says nothing of
the directions, so that it may be anything, 0 too, but less of u is then the canaries'. Where count is more
than a percent of dimension, leave_one_out=True takes the other canaries' part out of u, and audit.bounds has
to be told: leave_one_out=True in audit.cosines too. Parameters that are not trained do not count.

Coordinates depend on (seed, run, index, place) alone, in one version of NumPy. They are drawn in blocks, so
that count times dimension numbers are never in memory. The seed is a secret of the auditor's: beside what is
inserted, training must not know it, and its own noise and batches come from another.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import InputError, require
from audit.one_run import MOST_DIMENSION, MOST_SEED, seed_of, whole, with_length
from audit.statistics import arrays
from audit.values import number, require_type

Array = NDArray[np.float64]
MOST_COUNT = 20_000  # whose Gram matrix has 3 GB
_ROOT = 2  # of the stream under a seed, beside those of one_run
_BLOCK = 1 << 13  # coordinates of all canaries in memory at once


def canaries(seed: int, run: int, count: int, dimension: int) -> Iterator[Array]:
    """A run's uniform unit vectors (dimension,), one after the other; raises InputError for numbers out of
    range."""
    seed, run, count, size = _numbers(seed, run, count, dimension)
    return (_unit(seed, run, index, size) for index in range(count))


def inserted(seed: int, run: int, count: int, dimension: int, norm: float) -> Array:
    """What a run's canaries add to a sum of clipped gradients, (dimension,): the sum of their directions,
    each as long as the clipping norm."""
    length = number("norm", norm, float)
    require(0 < length < np.inf, f"`norm={length:g}`: give the clipping norm, more than 0")
    total: Array = length * sum(canaries(seed, run, count, dimension), start=np.zeros(1))
    return total


def cosines(displacement: ArrayLike, seed: int, run: int, count: int, leave_one_out: bool = False) -> Array:
    """Cosines (count,) of a run's directions with a displacement (dimension,): larger, if they took part.

    leave_one_out: each direction's cosine with what is left of the displacement off all others, of fewer
    canaries than coordinates (`audit.statistics.leave_one_out`). Memory is count times 64 kB, and then
    a few matrices (count, count). Raises InputError for a displacement that is no finite vector, or is 0.
    """
    require_type("leave_one_out", leave_one_out, bool)
    moved, length = with_length(arrays.real("the displacement's entries", displacement))
    seed, run, count, size = _numbers(seed, run, count, len(moved))
    few = f"`count={count}`: leave-one-out needs fewer canaries than the {size} coordinates"
    require(not leave_one_out or count < size, few)
    along, gram = np.zeros(count), np.zeros((count, count) if leave_one_out else count)
    for place in range(-(-size // _BLOCK)):
        drawn = np.stack([_block(seed, run, index, place, size) for index in range(count)])
        along += drawn @ (np.asarray(moved[place * _BLOCK :][:_BLOCK], np.float64) / length)
        gram += drawn @ drawn.T if leave_one_out else np.square(drawn).sum(1)
    lengths = np.sqrt(np.diagonal(gram) if leave_one_out else gram)
    along /= lengths
    if not leave_one_out:
        return along
    from audit.statistics import leave_one_out as apart  # loads SciPy

    return apart.cosines(gram / np.outer(lengths, lengths), along, 1.0, size)


def _unit(seed: int, run: int, index: int, size: int) -> Array:
    try:
        drawn = np.empty(size)
    except MemoryError:
        raise InputError(f"`dimension={size}` takes {8 * size / 1e9:,.0f} GB, which are not free") from None
    for place in range(-(-size // _BLOCK)):
        drawn[place * _BLOCK :][:_BLOCK] = _block(seed, run, index, place, size)
    drawn /= np.linalg.norm(drawn)
    return drawn


def _block(seed: int, run: int, index: int, place: int, size: int) -> Array:
    """A block of a direction's normal coordinates, before it has length 1."""
    rng = np.random.default_rng([_ROOT, seed, run, index, place])
    return rng.standard_normal(min(_BLOCK, size - place * _BLOCK))


def _numbers(seed: int, run: int, count: int, dimension: int) -> tuple[int, int, int, int]:
    drawn = seed_of(seed), whole("run", run, 0, MOST_SEED)
    return *drawn, whole("count", count, 1, MOST_COUNT), whole("dimension", dimension, 2, MOST_DIMENSION)
