"""Noise of few values: on a grid that the sum of gradients does not lie on, or clamped to a range.

Such noise gives the same number for two seeds more often than continuous noise does. If the sum of gradients
is rounded or clamped with the noise, draws at another batch give that number too, and nothing is shown.
"""

from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from audit.check.noise import StepNoise
from audit.check.trees import Vector

_DENSITY = 0.2821  # 1 / sqrt(4 pi), the density at 0 of the difference of two standard normal draws
_FLOAT32 = 2.0**-22  # how often two draws of a float32 generator agree
_MAX_PAIRS = 2e8  # pairs of draws, over all parameters, that are compared
_MIN_AGREEMENTS = 30  # beyond three times those expected, that show a grid
_MIN_TIES = 4  # beyond three times those expected, that show a clamp


class NoiseGrid(NamedTuple):
    """A grid or a range to which noise is rounded or clamped.

    Attributes:
      agreements: how many pairs of seeds agree in a parameter, summed over the parameters compared.
      is_clamped: whether they agree mostly at the largest and smallest values.
      is_shared: whether draws at another batch agree as often, as if the sum were rounded or clamped too;
        None if the step takes no other batch.
    """

    agreements: int
    is_clamped: bool
    is_shared: bool | None


def find_grid(given: StepNoise, other: StepNoise | None) -> NoiseGrid | None:
    """Returns the grid or range of noise; None if draws agree no more often than by chance and rounding.

    Args:
      given: the noise at the batch as given.
      other: the noise at another batch, if there is any.
    """
    # Parameters that are trained, noisy and not visibly rounded, as many as _MAX_PAIRS allows.
    columns = np.flatnonzero((given.freedom[given.layer] > 0) & given.exact)
    columns = columns[given.values[:, columns].std(axis=0) > 0]
    seeds = len(given.draws)
    pairs_each = seeds * (seeds - 1) / 2
    columns = columns[: max(1, int(_MAX_PAIRS / pairs_each))]
    if not columns.size:
        return None

    # Two draws agree if they are the same number or neighbours in the parameter's floating-point type. The
    # second term is for the errors of float64 arithmetic.
    draws = np.sort(given.draws[:, columns], axis=0)
    tolerances = 1.5 * given.rounding[columns] + 1e-12 * np.max(np.abs(draws), axis=0)
    agreements = (_count_agreements(draws, draws, tolerances) - draws.size) // 2
    # The probability that two draws agree by chance: their normal difference lies within the tolerance, or a
    # float32 generator repeats a number.
    deviations = given.deviations[given.layer[columns]]
    rates = 2 * tolerances * _DENSITY / deviations + _FLOAT32
    expected = float(np.sum(pairs_each * np.minimum(rates, 1)))

    ties = [np.sum(np.abs(draws - draws[end]) <= tolerances, axis=0) for end in (0, -1)]
    pairs_at_ends = sum(float(np.sum(scipy.special.comb(tie, 2))) for tie in ties)
    share_at_ends = sum(int(np.sum(tie)) for tie in ties) / draws.size
    # Noise of two values has most draws at an end, and noise that is clamped the fewest.
    is_clamped = pairs_at_ends > 0.5 * agreements and share_at_ends < 0.5
    is_clamped = is_clamped and pairs_at_ends > 3 * expected + _MIN_TIES
    if not is_clamped and agreements < 3 * expected + _MIN_AGREEMENTS:
        return None

    is_shared = None
    if other is not None and len(other.draws):
        other_draws = np.sort(other.draws[:, columns], axis=0)
        shared = _count_agreements(draws, other_draws, tolerances)
        # If the sum is rounded too, draws at the other batch agree with these as often as these do.
        pairs = draws.size * len(other.draws)
        is_shared = bool(shared >= 0.3 * agreements / (pairs_each * columns.size) * pairs)
    return NoiseGrid(agreements, is_clamped, is_shared)


def _count_agreements(first: Vector, second: Vector, tolerances: NDArray[np.float64]) -> int:
    """Returns how many pairs of values in `first` (n, k) and `second` (m, k), sorted by column, agree."""
    total = 0
    for i, tolerance in enumerate(tolerances):
        above = np.searchsorted(second[:, i], first[:, i] + tolerance, side="right")
        below = np.searchsorted(second[:, i], first[:, i] - tolerance, side="left")
        total += int(np.sum(above - below))
    return total
