"""Fresh directions for several training runs of any framework, in NumPy alone (leave-one-out loads SciPy).

Each canary is a gradient along a uniform direction that every run draws afresh. The law of its cosine in a
model that was trained without it is known exactly, so that all canaries take part in every run, and a few
runs prove much (`exact_null` of audit/methods):

    total = directions.inserted(seed, run, count, dimension, norm)     # once a run, before training
    clipped_sum += total                                               # at every step with the canaries
    ...
    u = theta_0 - theta_T + drift                                      # where steps subtract gradients
    rows.append(directions.cosines(u, seed, run, count))               # after the run
    audit.bounds(audit.cosines(rows, dimension, in_order=True))

Every run that was begun is a row, in the order of beginning; a run that failed is a row of NaN.
u points to where the canaries push, turned: theta_T - theta_0 - drift where steps add updates. drift is how
one rehearsed training moves without noise and without canaries, theta_T - theta_0 of it; it says nothing of
the directions, so that it may be anything, 0 too, but less of u is then the canaries'. Where count is more
than a percent of dimension, leave_one_out=True takes the other canaries' part out of u, and audit.cosines
needs its leave_one_out=True as well. Parameters that are not trained do not count.

Coordinates depend on (seed, run, index, place) alone, in one version of NumPy. They are drawn in blocks, so
that count times dimension numbers are never in memory. The seed is a secret of the auditor's: beside what is
inserted, training must not know it, and its own noise and batches come from another.

>>> import numpy as np
>>> rows = []
>>> for run in range(3):                                # a training of ten steps whose gradients are 0
...     pushed = sum(audit.directions.inserted(7, run, 32, 2000, norm=1.0) for _ in range(10))
...     noise = np.random.default_rng(run).normal(0, 2 * 10**0.5, 2000)
...     rows.append(audit.directions.cosines(pushed + noise, 7, run, 32))
>>> audit.bounds(audit.cosines(rows, 2000, in_order=True)).epsilon > 1
True
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import number, require, require_type
from audit.one_run import (
    MOST_DIMENSION,
    MOST_SEED,
    check_displacement,
    check_seed,
    check_whole_number,
)

Array = NDArray[np.float64]
MOST_COUNT = 20_000  # the Gram matrix of so many canaries takes 3 GB
_ROOT = 2  # tells this random stream from those of `audit.one_run` under the same seed, 0 and 1
_BLOCK = 1 << 13  # how many coordinates of each canary are in memory at once


def canaries(seed: int, run: int, count: int, dimension: int) -> Iterator[Array]:
    """Returns an iterator over a run's canaries: `count` uniform unit vectors (dimension,).

    The same numbers give the same canaries. Each is drawn only when the iterator comes to it, to save memory.

    Args:
      seed: the seed of all runs' canaries, 0 to 2^63 - 1.
      run: the run's index, from 0.
      count: how many canaries the run has.
      dimension: the number of trained parameters.

    Raises:
      InputError: numbers out of range.
    """
    seed, run, count, size = _check_numbers(seed, run, count, dimension)
    for index in range(count):
        direction = np.concatenate([*_draw_blocks(seed, run, index, size)])
        yield direction / np.linalg.norm(direction)


def inserted(seed: int, run: int, count: int, dimension: int, norm: float) -> Array:
    """Returns the vector (dimension,) that a run's canaries add to the sum of clipped gradients.

    It is the sum of their directions, each scaled to the clipping norm.

    Args:
      seed: the seed of all runs' canaries, 0 to 2^63 - 1.
      run: the run's index, from 0.
      count: how many canaries the run has.
      dimension: the number of trained parameters.
      norm: the clipping norm.
    """
    length = number("norm", norm, float)
    require(0 < length < np.inf, f"`norm={length:g}`: give the clipping norm, more than 0")
    unit_vectors = canaries(seed, run, count, dimension)  # checks the dimension
    # The sum starts from an array, so that its type is an array's: [0.] broadcasts to the vectors' length.
    total: Array = length * sum(unit_vectors, start=np.zeros(1))
    return total


def cosines(
    displacement: ArrayLike, seed: int, run: int, count: int, leave_one_out: bool = False
) -> Array:
    """Returns the cosines (count,) of a run's directions with the model's displacement.

    An inserted direction has a larger cosine than it would have otherwise.

    Memory is count times 64 kB; leave-one-out takes a few matrices (count, count) more.

    Args:
      displacement: (dimension,) the parameters' movement, signed so that an inserted direction raises its
        cosine: theta_0 - theta_T + drift where steps subtract gradients, theta_T - theta_0 - drift where they
        add updates. drift is theta_T - theta_0 of a rehearsal without noise and canaries; 0 in its place is
        allowed.
      seed: the seed of all runs' canaries, 0 to 2^63 - 1.
      run: the run's index, from 0.
      count: how many canaries the run has.
      leave_one_out: if True, the other directions are projected out of the displacement before each cosine
        (`audit.evidence.leave_one_out`); needs count < dimension.

    Raises:
      InputError: the displacement is no finite vector, or is 0.
    """
    require_type("leave_one_out", leave_one_out, bool)
    unit = check_displacement(displacement)
    seed, run, count, size = _check_numbers(seed, run, count, len(unit))
    few = f"`count={count}`: leave-one-out needs fewer canaries than the {size} coordinates"
    require(not leave_one_out or count < size, few)

    # Directions are drawn and multiplied block by block of coordinates, since all of them at once, an array
    # (count, dimension), may not fit in memory.
    products = np.zeros(count)
    squares = np.zeros(count)
    gram = np.zeros((count, count) if leave_one_out else (0, 0))
    block_streams = [_draw_blocks(seed, run, index, size) for index in range(count)]
    for start in range(0, size, _BLOCK):
        directions = np.stack([next(blocks) for blocks in block_streams])
        products += directions @ unit[start : start + _BLOCK]
        if leave_one_out:
            gram += directions @ directions.T
        else:
            squares += np.square(directions).sum(1)

    # The rows of `directions` are normal vectors, not yet of length 1: their products and Gram matrix
    # are divided by their lengths.
    if not leave_one_out:
        return products / np.sqrt(squares)
    from audit.evidence import leave_one_out as projection  # loads SciPy

    lengths = np.sqrt(np.diagonal(gram))
    return projection.cosines(gram / np.outer(lengths, lengths), products / lengths, 1.0)


def _draw_blocks(seed: int, run: int, index: int, size: int) -> Iterator[Array]:
    """Yields a direction's normal coordinates, not yet scaled to length 1, in blocks of _BLOCK at most.

    Each block is drawn from a seed of its own: `seed`, `run`, `index` and the block's place. `_ROOT` in front
    tells this random stream from others under the same `seed`.

    Args:
      seed: the seed of all runs' canaries.
      run: the run's index.
      index: the direction's index within the run.
      size: how many coordinates a direction has.
    """
    for place, start in enumerate(range(0, size, _BLOCK)):
        rng = np.random.default_rng([_ROOT, seed, run, index, place])
        yield rng.standard_normal(min(_BLOCK, size - start))


def _check_numbers(seed: int, run: int, count: int, dimension: int) -> tuple[int, int, int, int]:
    """Returns (seed, run, count, dimension) as Python's ints; raises InputError for those out of range."""
    seed = check_seed(seed)
    run = check_whole_number("run", run, 0, MOST_SEED)  # `run` is a part of a random seed
    count = check_whole_number("count", count, 1, MOST_COUNT)
    # In a single dimension every cosine is 1 or -1.
    dimension = check_whole_number("dimension", dimension, 2, MOST_DIMENSION)
    return seed, run, count, dimension
