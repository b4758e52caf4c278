"""Draws of the noise that agree: whole draws that repeat, and numbers with few values.

Noise on a grid that the sum of gradients is not on, or clamped noise, gives the same number for two seeds
more often than continuous noise does. If the sum is rounded or clamped after the noise, draws at another
batch give that number too, and the noise may be right.
"""

from typing import NamedTuple

import numpy as np

from audit.check import noise
from audit.check.noise import DrawnNoise
from audit.check.trees import Vector

AT_ENDS = "at ends"
AT_ONE = "at one value"
GRID = "on a grid"
_DENSITY = 0.2821  # 1 / sqrt(4 pi), the density at 0 of the difference of two standard normal draws
_ERROR = 1e-9  # deviations: more than the errors of float64 arithmetic
_FLOAT32 = 2.0**-22  # how often two draws of a float32 generator agree
_MIN_TIES = 30  # on a grid, beyond three times the expected number
_MIN_AT_ENDS = 4  # the same for a clamp
_MIN_SHARED = 0.15  # the share of another batch's ties that are with draws at the batch as given
_MIN_REPEATED = 8  # numbers: not all of them repeat by chance, even in a type of 16 bits


class Ties(NamedTuple):
    """Numbers of the noise that agree between seeds more often than by chance and rounding.

    Attributes:
      kind: AT_ENDS if most of them agree at the largest and smallest values, as clamped noise does; AT_ONE if
        they agree at one value of a parameter, as if noise is missing there; GRID otherwise; "" if chance may
        explain them.
      is_shared: whether draws at another batch agree with them, as if the sum were rounded or clamped too.
    """

    kind: str = ""
    is_shared: bool = False


def find_ties(drawn: DrawnNoise) -> Ties:
    """Returns the ties of the noise's numbers."""
    columns = drawn.has_noise
    draws = np.sort(drawn.given.draws[:, columns], axis=0)
    seeds, numbers = draws.shape
    # Two draws agree if they are equal or neighbours in the parameter's floating-point type.
    tolerances = 1.5 * drawn.rounding[columns] + _ERROR
    is_tie = np.diff(draws, axis=0) <= tolerances
    count = int(np.sum(is_tie))
    at_ends = np.abs(draws - draws[[0, -1]][:, None]) <= tolerances  # (2, seeds, numbers)
    num_at_ends = np.sum(at_ends) - 2 * numbers
    # Two draws agree by chance if their normal difference is within the tolerance, or if a float32 generator
    # repeats a number.
    rates = 2 * tolerances * _DENSITY / np.std(draws, axis=0) + _FLOAT32
    expected = np.sum(rates) * seeds * (seeds - 1) / 2
    # The number of values at which draws agree, over all parameters.
    num_values = count - np.sum(is_tie[1:] & is_tie[:-1])
    kind = GRID
    # Noise with two values has most draws at an end, and clamped noise has few.
    is_clamped = 0.5 * count < num_at_ends < 0.5 * draws.size
    if is_clamped and num_at_ends > 3 * expected + _MIN_AT_ENDS:
        kind = AT_ENDS
    elif count < 3 * expected + _MIN_TIES:
        return Ties()
    elif num_values < 1.5 * numbers:
        kind = AT_ONE

    other = drawn.others.get(noise.QUARTER, drawn.others.get(noise.FEATURES))
    if other is None:
        return Ties(kind)
    # Draws at another batch agree with these ones in more than a small share of all their agreements.
    of_other = other.draws[:, columns]
    added = _count_ties(np.concatenate([draws, of_other]), tolerances) - count
    shared = added - _count_ties(of_other, tolerances)
    return Ties(kind, bool(shared > _MIN_SHARED * added))


def _count_ties(draws: Vector, tolerances: Vector) -> int:
    """Returns how many draws (n, numbers) agree with the next smaller draw of the same number."""
    return int(np.sum(np.diff(np.sort(draws, axis=0), axis=0) <= tolerances))


def count_repeats(drawn: DrawnNoise) -> int:
    """Returns how many seeds repeat another seed's noise exactly; 0 if chance may explain them."""
    values = drawn.given.values
    num_varying = np.sum(np.any(values, axis=0))
    if 0 < num_varying < _MIN_REPEATED:
        return 0
    return len(values) - len(np.unique(values, axis=0))
