"""Noise of few values: whether a step's noise lies on a grid that its sum of gradients does not lie on.

The noise of two seeds then agrees to the bit in many numbers, at a single batch. Steps at another batch never
agree with those, since its sum lies between the grid's points. So a single step shows whether only the noise
lies on a grid. Where the sum is rounded to the grid too, they agree as often, and nothing is shown.
"""

from typing import NamedTuple

import numpy as np

from audit.check.noise import StepNoise
from audit.check.trees import Vector

_DENSITY = 0.2821  # 1 / sqrt(4 pi), the density at 0 of the difference of two standard normal draws
_FLOAT32 = 2.0**-22  # how often two draws of a float32 generator agree
_MOST_PAIRS = 2e8  # pairs of draws, over all parameters, that are compared
_LEAST = 30  # agreements, beyond three times those expected, that show a grid


class NoiseGrid(NamedTuple):
    """A grid on which the noise lies.

    Attributes:
      spacing: the distance of neighbouring grid points, in stated deviations.
      is_even: whether all values are multiples of the spacing, as rounded values are and floats of few digits
        are not.
      agreements: how many pairs of seeds agree in a parameter, summed over the parameters compared.
      expected: how many would agree by chance and the parameters' own rounding.
      shared: how many pairs of a step at the batch as given and one at another batch agree in a parameter;
        None where the other batch could not be drawn.
      shared_if_rounded: how many of these would agree if the sum of gradients lay on the grid too.
    """

    spacing: float
    is_even: bool
    agreements: int
    expected: float
    shared: int | None
    shared_if_rounded: float

    @property
    def tells_batches_apart(self) -> bool:
        """Whether the sum of gradients lies off the grid; True, too, where no other batch could be drawn."""
        if self.shared is None:
            return True
        return self.shared < 0.3 * self.shared_if_rounded


def find_grid(given: StepNoise, other: StepNoise | None) -> NoiseGrid | None:
    """Finds the grid on which the noise lies: the few values to which it is rounded.

    Such noise gives the same number for two seeds much more often than continuous noise does. A grid is
    inferred from the number of pairs of draws that agree.

    Args:
      given: the noise at the batch as given.
      other: the noise at another batch, if there is any.

    Returns:
      The grid, or None where draws agree no more often than chance and rounding let them.
    """
    # Only parameters that are trained, noisy and not visibly rounded are compared. If these have more than
    # _MOST_PAIRS pairs of draws together, only the first of them are, but always at least one parameter.
    columns = np.flatnonzero((given.freedom[given.layer] > 0) & given.exact)
    columns = columns[given.values[:, columns].std(axis=0) > 0]
    seeds = len(given.draws)
    pairs_each = seeds * (seeds - 1) / 2
    columns = columns[: max(1, int(_MOST_PAIRS / pairs_each))]
    if not columns.size:
        return None

    # Two draws agree if they are the same number or neighbours in the parameter's floating-point type, which
    # lie a spacing apart. The next numbers lie two spacings apart, so that the tolerance is 1.5 times the
    # largest spacing at any draw. The second term is for the errors of float64 arithmetic.
    draws = np.sort(given.draws[:, columns], axis=0)
    tolerances = 1.5 * given.rounding[columns] + 1e-12 * np.max(np.abs(draws), axis=0)
    # Each value agrees with itself, which does not count.
    agreements = _count_agreements(draws, draws, tolerances) - draws.size
    agreements = agreements // 2  # each pair was counted in both orders

    # Whether more pairs agree than chance and rounding explain. The probability that a pair of a parameter's
    # draws agrees is the sum of two: that the normal difference of both lies within the tolerance, which is
    # about the interval's width times the density at 0; and that a float32 generator repeats a number.
    deviations = given.deviations[given.layer[columns]]
    rates = 2 * tolerances * _DENSITY / deviations + _FLOAT32
    expected = float(np.sum(pairs_each * np.minimum(rates, 1)))
    if agreements < 3 * expected + _LEAST:
        return None

    spacing, is_even = _measure_spacing(draws, tolerances)
    # If the sum of gradients lies on the grid too, draws at the other batch agree with these draws as often
    # as these agree with each other.
    shared = None
    shared_if_rounded = 0.0
    if other is not None and len(other.draws):
        other_draws = np.sort(other.draws[:, columns], axis=0)
        shared = _count_agreements(draws, other_draws, tolerances)
        # Pairs of a draw at either batch, of the same parameter.
        pairs = draws.size * len(other.draws)
        share_that_agrees = agreements / (pairs_each * columns.size)
        shared_if_rounded = share_that_agrees * pairs
    return NoiseGrid(spacing, is_even, agreements, expected, shared, shared_if_rounded)


def _count_agreements(first: Vector, second: Vector, tolerances: Vector) -> int:
    """Counts the pairs of values in `first` and `second`, of the same parameter, that agree.

    Args:
      first, second: (n, k) and (m, k) values of k parameters, sorted within each parameter.
      tolerances: (k,) how far two values that agree may differ.
    """
    total = 0
    for i, tolerance in enumerate(tolerances):
        above = np.searchsorted(second[:, i], first[:, i] + tolerance, side="right")
        below = np.searchsorted(second[:, i], first[:, i] - tolerance, side="left")
        total += int(np.sum(above - below))
    return total


def _measure_spacing(draws: Vector, tolerances: Vector) -> tuple[float, bool]:
    """Returns the spacing of the grid on which values lie, and whether all distances are multiples of it.

    A distance is that between neighbouring different values of a parameter. The spacing is the 10% quantile
    of the distances: the least of them, but for a few. "All" distances are 95% of them, and a multiple may be
    off by 0.05 spacings. Where no two values differ, returns 0 and False.

    Args:
      draws: (n, k) values of k parameters, sorted within each parameter.
      tolerances: (k,) how far two values that agree may differ.
    """
    gaps = np.diff(draws, axis=0)
    distinct = gaps[gaps > tolerances]
    if not distinct.size:
        return 0.0, False
    spacing = float(np.quantile(distinct, 0.1))
    remainders = np.abs(distinct / spacing - np.round(distinct / spacing))
    return spacing, bool(np.mean(remainders < 0.05) > 0.95)
