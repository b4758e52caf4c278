"""The evidence from a single run."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from audit.errors import require
from audit.evidence import arrays
from audit.evidence.arrays import Array
from audit.evidence.canaries import Coins

MIN_CANARIES = 10  # for observed canaries, and for unobserved ones if there are any


class Cosines(NamedTuple):
    """The checked cosines of a single run.

    Attributes:
      observed: (K,) cosines of inserted canaries.
      unobserved: (M,) cosines of left-out canaries; may be empty.
      dimension: d, the dimension of the canaries.
    """

    observed: Array
    unobserved: Array
    dimension: int


class OneRun(NamedTuple):
    """The evidence from a single run: scores with coins, cosines, or both.

    Attributes:
      coins: scores (1, K) and presence (1, K) if a fair coin put each canary in or out; else None.
      cosines: the cosines with uniform directions; None for other scores.
    """

    coins: Coins | None
    cosines: Cosines | None

    @property
    def canaries(self) -> tuple[int, int]:
        """Returns how many canaries were in and how many were out."""
        scores_in, scores_out = self.pooled()
        return len(scores_in), len(scores_out)

    @property
    def is_null_known(self) -> bool:
        """Returns True if scores are cosines with an exact rather than a fitted null distribution."""
        return self.cosines is not None and not len(self.cosines.unobserved)

    def pooled(self) -> tuple[Array, Array]:
        """Returns the scores of all canaries that were in, (n,), and of those that were out, (m,).

        If a run has both `coins` and `cosines`, their scores are equal up to rounding.
        """
        if self.coins is not None:
            return self.coins.pooled()
        assert self.cosines is not None  # a run has coins, or cosines, or both
        return self.cosines.observed, self.cosines.unobserved

    def __str__(self) -> str:
        """Returns a description: the number of canaries, and their coins or their null distribution."""
        if self.cosines is None:
            canaries_in, canaries_out = self.canaries
            return f"{canaries_in + canaries_out:,}, each inserted by its own fair coin"
        observed, unobserved, dimension = self.cosines
        counted = f"{len(observed):,} observed"
        if len(unobserved):
            return f"{counted} and {len(unobserved):,} unobserved; the null is fitted to the latter"
        return (
            f"{counted}; the null is the exact distribution of a cosine in {dimension:,} dimensions"
        )


def make_cosines(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> Cosines:
    """Returns a single run's cosines, after checking their values but not their distribution.

    Args:
      observed: (K,) cosines of inserted canaries.
      unobserved: (M,) cosines of left-out canaries, or None.
      dimension: d, the number of trained parameters.

    Raises:
      InputError: for an array of the wrong shape or an invalid cosine.
    """
    left_out = np.empty(0)
    if unobserved is not None:
        left_out = _check_cosines("unobserved", unobserved)
    return Cosines(_check_cosines("observed", observed), left_out, dimension)


def _check_cosines(name: str, values: ArrayLike) -> Array:
    """Returns a user's cosines (K,) as float64; `name` is "observed" or "unobserved".

    Raises InputError unless they form a vector of at least 10 finite values that are not all equal and lie in
    [-1, 1], up to rounding.
    """
    array = arrays.cosines(f"the {name} cosines", values)
    require(
        array.ndim == 1,
        f"the {name} cosines have shape {array.shape}: give one per canary, (K,)",
    )
    size = len(array)
    require(size >= MIN_CANARIES, f"there are {size} {name} cosines: give at least {MIN_CANARIES}")
    bad = np.count_nonzero(np.isnan(array))
    require(
        not bad,
        f"{bad} of {size} {name} cosines are not finite: the run failed; audit several runs together, "
        "including this one",
    )
    require(np.ptp(array) > 0, f"all {size} {name} cosines equal {array[0]:g}: they must differ")
    return array
