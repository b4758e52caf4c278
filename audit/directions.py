"""Fresh directions for training runs in any framework. Requires only NumPy (and SciPy for leave-one-out).

Each canary is a gradient along a uniformly random direction, and every run draws new directions. If a canary
is not inserted, its cosine with the model update has a known distribution, so a few runs are enough for a
strong bound (the method `exact_null`). Cosines are computed with the update, because the initial weights do
not depend on the canaries (Errata O9 of experiments/one_shot/README.md):

    total = directions.inserted(seed, run, count, dimension, norm)     # once per run, before training
    clipped_sum += total                                               # at every step with the canaries
    ...
    u = theta_0 - theta_T + drift                                      # if steps subtract gradients
    rows.append(directions.cosines(u, seed, run, count))               # after the run
    audit.bounds(audit.cosines(rows, dimension, in_order=True))

Include every run you started, in start order, with a row of NaN for each failed run. The drift is the change
theta_T - theta_0 in a rehearsal, a run without noise or canaries. Any other drift that does not depend on the
directions, such as 0, is valid but may lower the cosines. If count exceeds 1% of dimension (the number of
trained parameters), pass leave_one_out=True to directions.cosines and audit.cosines.

Directions are reproducible within one version of NumPy. Use the seed only for canaries, and a different seed
for noise and batches.

>>> import numpy as np
>>> rows = []
>>> for run in range(3):                                # ten steps with zero gradients
...     pushed = sum(audit.directions.inserted(7, run, 32, 2000, norm=1.0) for _ in range(10))
...     noise = np.random.default_rng(run).normal(0, 2 * 10**0.5, 2000)
...     rows.append(audit.directions.cosines(pushed + noise, 7, run, 32))
>>> audit.bounds(audit.cosines(rows, 2000, in_order=True)).epsilon > 1
True
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import number, require, require_type, whole_number
from audit.evidence.arrays import Array, floats

MAX_SEED = 2**63 - 1
MAX_DIMENSION = 10**10  # 80 GB per canary
MAX_COUNT = 20_000  # 3 GB for the Gram matrix
_BLOCK = 1 << 13  # coordinates of each canary in memory

# Pairs of n adjacent columns of a matrix, (count, n), and the matching entries of a vector, (n,).
_Blocks = Iterable[tuple[Array, Array]]


def canaries(seed: int, run: int, count: int, dimension: int) -> Iterator[Array]:
    """Yields a run's canaries, `count` uniformly random unit vectors (dimension,), one at a time.

    Args:
      seed: the seed of all runs' canaries, 0 to 2^63 - 1.
      run: the index of the run, starting at 0.
      count: the number of canaries in the run.
      dimension: the number of trained parameters.

    Raises:
      InputError: a number is out of range.
    """
    seed, run, count, size = _check_numbers(seed, run, count, dimension)
    for index in range(count):
        direction = np.concatenate([*_draw_blocks(seed, run, index, size)])
        yield direction / np.linalg.norm(direction)


def inserted(seed: int, run: int, count: int, dimension: int, norm: float) -> Array:
    """Returns the vector (dimension,) that the canaries of a run add to the sum of clipped gradients.

    The vector is the sum of all directions, each scaled to the clipping norm `norm`. The other arguments are
    those of `canaries`.
    """
    norm = number("norm", norm, float)
    require(0 < norm < np.inf, f"`norm={norm:g}`: give a clipping norm greater than 0")
    # We add in place, because a canary of a large model takes gigabytes.
    unit_vectors = canaries(seed, run, count, dimension)
    total = next(unit_vectors)
    for vector in unit_vectors:
        total += vector
    return norm * total


def cosines(
    displacement: ArrayLike, seed: int, run: int, count: int, leave_one_out: bool = False
) -> Array:
    """Returns the cosines between a run's directions and the model's displacement, of shape (count,).

    Args:
      displacement: (dimension,) the change in the parameters, signed so that inserting a canary increases its
        cosine: theta_0 - theta_T + drift if steps subtract gradients, otherwise theta_T - theta_0 - drift.
        The drift is theta_T - theta_0 in a run without noise or canaries.
      seed, run, count: as in `canaries`.
      leave_one_out: True to project the other directions out of the displacement before computing each cosine
        (`audit.evidence.leave_one_out`). `count` must be less than the dimension.

    Raises:
      InputError: the displacement is 0 or is not a finite vector.
    """
    require_type("leave_one_out", leave_one_out, bool)
    unit = _check_displacement(displacement)
    seed, run, count, size = _check_numbers(seed, run, count, len(unit))
    require(
        not leave_one_out or count < size,
        f"`count={count}`: leave-one-out needs fewer canaries than the {size} coordinates",
    )

    # The matrix (count, size) of all directions may not fit in memory, so we draw blocks of its columns. A
    # block takes `count` times 64 kB, and leave-one-out needs a few matrices of shape (count, count).
    streams = [_draw_blocks(seed, run, index, size) for index in range(count)]
    blocks = map(np.stack, zip(*streams, strict=True))
    parts = np.split(unit, range(_BLOCK, size, _BLOCK))
    compute = _compute_leave_one_out if leave_one_out else _compute_cosines
    return compute(count, zip(blocks, parts, strict=True))


def _compute_cosines(count: int, blocks: _Blocks) -> Array:
    """Returns the cosines between the `count` rows of a matrix and a unit vector, both given in blocks."""
    products = np.zeros(count)
    squared_lengths = np.zeros(count)
    for columns, part in blocks:
        products += columns @ part
        squared_lengths += np.square(columns).sum(1)
    return products / np.sqrt(squared_lengths)


def _compute_leave_one_out(count: int, blocks: _Blocks) -> Array:
    """Returns the leave-one-out cosines between the `count` rows of a matrix and a unit vector, in blocks.

    Before computing each row's cosine, we project all other rows out of the vector.
    """
    from audit.evidence import leave_one_out  # loads SciPy

    products = np.zeros(count)  # of each row and the vector
    gram = np.zeros((count, count))  # the rows' inner products
    for columns, part in blocks:
        products += columns @ part
        gram += columns @ columns.T
    lengths = np.sqrt(np.diagonal(gram))
    unit_gram = gram / np.outer(lengths, lengths)
    return leave_one_out.cosines(unit_gram, products / lengths, squared_length=1.0)  # the vector's


def _draw_blocks(seed: int, run: int, index: int, size: int) -> Iterator[Array]:
    """Yields the `size` Gaussian coordinates of an unscaled direction in blocks.

    A block has at most _BLOCK coordinates and its own random stream.
    """
    for block, start in enumerate(range(0, size, _BLOCK)):
        # The prefix 2 separates these random streams from all others.
        rng = np.random.default_rng([2, seed, run, index, block])
        yield rng.standard_normal(min(_BLOCK, size - start))


def _check_numbers(seed: int, run: int, count: int, dimension: int) -> tuple[int, int, int, int]:
    """Returns (seed, run, count, dimension) as Python ints; raises InputError if one is out of range."""
    seed = whole_number("seed", seed, 0, MAX_SEED)
    run = whole_number("run", run, 0, MAX_SEED)
    count = whole_number("count", count, 1, MAX_COUNT)
    # In one dimension, every cosine is 1 or -1.
    dimension = whole_number("dimension", dimension, 2, MAX_DIMENSION)
    return seed, run, count, dimension


def _check_displacement(displacement: ArrayLike) -> Array:
    """Returns a displacement divided by its Euclidean length, in float64; raises InputError if invalid."""
    vector = floats("the displacement's entries", displacement)
    require(
        vector.ndim == 1, f"the displacement has shape {vector.shape}: flatten it into one vector"
    )
    with np.errstate(over="ignore"):  # we reject an infinite length below
        length = float(np.linalg.norm(vector))
    require(
        np.isfinite(length), "the displacement is not finite, so the run failed: include it as NaN"
    )
    require(length > 0, "the displacement is 0: give the movement of a trained model")
    return vector / length
