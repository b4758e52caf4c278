"""Rejects cosines that were rounded too coarsely for bounds that use the exact distribution of a cosine.

Rounding raises some cosines above a threshold, by up to half a step s of the decimal grid. The cosine of a
uniform direction has standard deviation 1/sqrt(d). Let x = s sqrt(d) be the step in standard deviations.

- The fraction of cosines above a threshold grows by at most 0.2 x: half a step times a normal density (at
most 0.4). For n independent cosines, that is at most 0.4 x sqrt(n) standard deviations of the fraction.
- The probability of a cosine beyond T standard deviations grows by a factor of about exp(T x / 2).

MAX_STEP is the largest allowed x. At this x, the fraction grows by 0.09 standard deviations for 200 runs of
256 canaries. The probability at T = 40, the last threshold of `exact_null`, grows by a factor of 1.02.
"""

import math

import numpy as np

from audit.errors import InputError
from audit.evidence.arrays import Array
from audit.written import counted

MAX_STEP = 1e-3
_PRECISION = 2.0**-23  # the largest relative distance between a rounded float32 cosine and the grid


def count_needed_decimals(dimension: int) -> int:
    """Returns the smallest number of decimals for which 10^-decimals sqrt(dimension) <= MAX_STEP."""
    return math.ceil(math.log10(dimension) / 2 - math.log10(MAX_STEP))


def require_decimals(cosines: Array, dimension: int) -> None:
    """Raises InputError if cosines were rounded too coarsely for valid bounds.

    Args:
      cosines: any shape, in [-1, 1]; -1 for a failed run, which is ignored.
      dimension: d, the number of trained parameters.
    """
    needed = count_needed_decimals(dimension)
    decimals = _find_decimals(cosines, most=needed - 1)
    if decimals is None:  # not rounded, or to enough decimals
        return
    raise InputError(
        f"cosines were rounded to {counted(decimals, 'decimal')}, which is too coarse for "
        f"`dimension={dimension}` and makes bounds wrong: save at least {needed} decimals"
    )


def _find_decimals(cosines: Array, most: int) -> int | None:
    """Returns the number of decimals to which cosines were rounded; None if it is above `most` or unclear.

    We ignore 0, 1 and -1, which lie on every decimal grid. A few other unrounded cosines may lie on a fine
    grid by chance.
    """
    sizes = np.unique(np.abs(cosines))
    is_whole = np.abs(sizes - np.round(sizes)) <= _PRECISION * sizes  # 0 or 1
    sizes = sizes[~is_whole]
    tolerances = _PRECISION * sizes
    for decimals in range(1, most + 1):
        step = 10.0**-decimals
        distances = np.abs(sizes - np.round(sizes / step) * step)
        if np.any(distances > tolerances):
            continue
        # The probability that an unrounded cosine is this close to the grid. We conclude that cosines were
        # rounded if the product over all of them is below 1e-6.
        chances = np.minimum(2 * tolerances / step, 1.0)
        if np.log(chances).sum() < np.log(1e-6):
            return decimals
    return None
