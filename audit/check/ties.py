"""Draws of the noise that agree: whole draws that repeat, and numbers with few values.

Noise on a grid that the sum of gradients is not on, or clamped noise, gives the same number for two seeds
more often than continuous noise does. If the sum is rounded or clamped after the noise, draws at another
batch give that number too, and the noise may be right.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.check import noise
from audit.check.noise import DrawnNoise, StepNoise
from audit.check.trees import Vector

_DENSITY = 0.2821  # 1 / sqrt(4 pi), the density at 0 of the difference of two standard normal draws
_FLOAT32 = 2.0**-22  # how often two draws of a float32 generator agree
_MIN_TIES = 30  # on a grid, beyond three times the expected number
_MIN_AT_ENDS = 4  # the same for a clamp
_MIN_SHARED = 0.15  # the share of another batch's ties that are with draws at the batch as given


class Ties(NamedTuple):
    """Numbers of the noise that agree between seeds more often than by chance and rounding.

    Attributes:
      agreeing: how many draws agree with another draw in a parameter, over all compared parameters.
      is_at_ends: whether most of them agree at the largest and smallest values, as clamped noise does.
      is_at_one: whether they agree at one value of a parameter, as if noise is missing there.
      is_shared: whether draws at another batch agree with them, as if the sum were rounded or clamped too.
    """

    agreeing: int = 0
    is_at_ends: bool = False
    is_at_one: bool = False
    is_shared: bool = False


def find_ties(drawn: DrawnNoise) -> Ties:
    """Returns the ties of the noise's numbers, with `agreeing` 0 if they may be due to chance."""
    given = drawn.given
    columns = (given.freedom[given.layer] > 0) & given.exact & (given.values.std(axis=0) > 0)
    if not np.any(columns):
        return Ties()
    draws = np.sort(given.draws[:, columns], axis=0)
    seeds = len(draws)
    # Two draws agree if they are equal or neighbours in the parameter's floating-point type. The second term
    # is for the errors of float64 arithmetic.
    tolerances = 1.5 * given.rounding[columns] + 1e-12 * np.max(np.abs(draws), axis=0)
    is_tie = np.diff(draws, axis=0) <= tolerances
    count = int(np.sum(is_tie))
    runs = count - np.sum(is_tie[1:] & is_tie[:-1])  # groups of draws that agree
    at_ends = np.abs(draws - draws[[0, -1]][:, None]) <= tolerances  # (2, seeds, columns)
    num_at_ends = np.sum(at_ends) - at_ends[:, 0].size
    # Two draws agree by chance if their normal difference is within the tolerance, or if a float32 generator
    # repeats a number.
    rates = 2 * tolerances * _DENSITY / given.deviations[given.layer[columns]] + _FLOAT32
    expected = float(np.sum(np.minimum(rates, 1))) * seeds * (seeds - 1) / 2
    # Noise with two values has most draws at an end, and clamped noise has few.
    is_clamped = 0.5 * count < num_at_ends < 0.5 * draws.size
    is_at_ends = bool(is_clamped and num_at_ends > 3 * expected + _MIN_AT_ENDS)
    if not is_at_ends and count < 3 * expected + _MIN_TIES:
        return Ties()
    is_shared = False
    other = drawn.others.get(noise.QUARTER, drawn.others.get(noise.FEATURES))
    if other is not None:
        others = np.sort(other.draws[:, columns], axis=0)
        own = _count_ties(others, tolerances)
        joined = np.sort(np.concatenate([draws, others]), axis=0)
        shared = _count_ties(joined, tolerances) - count - own
        is_shared = bool(shared > _MIN_SHARED * (own + shared))
    is_at_one = not is_at_ends and bool(runs < 1.5 * draws.shape[1])
    return Ties(count, is_at_ends, is_at_one, is_shared)


def _count_ties(draws: Vector, tolerances: Vector) -> int:
    """Returns how many values of sorted columns agree with the value before."""
    return int(np.sum(np.diff(draws, axis=0) <= tolerances))


class Repeats(NamedTuple):
    """Seeds that repeat another seed's noise exactly.

    Attributes:
      repeated: the number of these seeds; 0 if chance may explain them.
      is_missing: whether the seeds that agree have no noise, and the others have some.
    """

    repeated: int = 0
    is_missing: bool = False


def find_repeats(given: StepNoise) -> Repeats:
    """Returns the repeated draws of a batch's noise, in noisy parameters without visible rounding."""
    varies = given.values.std(axis=0) > 0
    is_telling: NDArray[np.bool_] = given.exact & (varies | ~np.any(varies))
    # This many parameters do not all repeat by chance. A type of 16 bits has few values and needs more of
    # them. Its tolerance, four spacings, is at least 0.0039; that of float32 is 5e-7.
    least = 4
    if np.max(given.tolerance) > 1e-6:
        least = 16
    if np.sum(is_telling) < least:
        return Repeats()
    draws, counts = np.unique(given.values[:, is_telling], axis=0, return_counts=True)
    # Draws without noise are near the mean of all seeds.
    lengths = np.linalg.norm(draws, axis=1)
    is_repeated = counts > 1
    is_near = lengths[is_repeated] < 0.5 * np.median(lengths)
    is_missing = len(draws) > 1 and np.sum(is_repeated) == 1 and np.all(is_near)
    return Repeats(len(given.values) - len(draws), bool(is_missing))
