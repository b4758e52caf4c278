"""What is seen of a single run: its canaries' coins, their cosines, or both."""

import math
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import InputError, require
from audit.evidence import arrays
from audit.evidence.canaries import Coins, Rows, Shape
from audit.evidence.decimals import require_decimals
from audit.laws import cosine_law

Array = NDArray[np.float64]
LEAST_CANARIES = 10
_SLACK = 1e-9  # by which a cosine may exceed 1, from rounding
_SPREAD_ERROR = 1e-6  # the probability of refusing cosines whose dimension is right
_TIED_ERROR = 1e-6  # the probability of refusing pairs that are not tied
_SPREAD_FIX = (
    "count trained parameters alone, or save unobserved= too if canaries take part unequally often"
)


class Cosines(NamedTuple):
    """The checked cosines of a single run.

    Attributes:
      observed: (K,) cosines of canaries that took part.
      unobserved: (M,) cosines of canaries that did not; may be empty.
      dimension: d, the dimension of the space from which the canaries are drawn.
    """

    observed: Array
    unobserved: Array
    dimension: int


class OneRun(NamedTuple):
    """The scores of a single run's canaries: with coins, as cosines, or both.

    Attributes:
      coins: scores (1, K) and presence (1, K), where a fair coin put each canary in or out; else None.
      cosines: observed (K,) and unobserved (M,) cosines with uniform directions; None where scores are
        others, such as losses.
    """

    coins: Coins | None
    cosines: Cosines | None

    @property
    def canaries(self) -> tuple[int, int]:
        """Returns how many canaries were in, and how many were out."""
        scores_in, scores_out = self.pooled()
        return len(scores_in), len(scores_out)

    @property
    def shape(self) -> Shape:
        return Shape.ONE_RUN

    @property
    def is_null_known(self) -> bool:
        """Returns whether scores are cosines with a null law that is exact, not fitted to unobserved ones."""
        return self.cosines is not None and not len(self.cosines.unobserved)

    def rows(self) -> list[Rows]:
        """Returns a table with a row for each coin: for each canary, or for each pair of cosines."""
        if self.coins is not None:
            return self.coins.rows()
        assert self.cosines is not None  # a run has coins, or cosines, or both
        observed, unobserved, _ = self.cosines
        if not len(unobserved):
            return [Rows("canary", observed[:, None], has_no_ties=True)]
        if len(observed) == len(unobserved):
            return [Rows("row", np.column_stack([observed, unobserved]))]
        return []  # these cosines give no bound

    def select(self, kept: list[NDArray[np.bool_]]) -> "OneRun":
        """Returns the evidence of some of the canaries, or pairs."""
        cosines = self.cosines
        if self.coins is None:
            assert cosines is not None  # a run has coins, or cosines, or both
            (chosen,) = kept
            unobserved = cosines.unobserved
            unobserved = unobserved[chosen] if len(unobserved) else unobserved
            return OneRun(None, Cosines(cosines.observed[chosen], unobserved, cosines.dimension))
        coins = self.coins.select(kept)
        if cosines is not None:
            observed, unobserved = coins.pooled()
            unobserved = unobserved[: len(cosines.unobserved)]  # none where the null is known
            cosines = Cosines(observed, unobserved, cosines.dimension)
        return OneRun(coins, cosines)

    def pooled(self) -> tuple[Array, Array]:
        """Returns the scores of canaries that were in, and of those that were out."""
        if self.coins is not None:
            return self.coins.pooled()
        assert self.cosines is not None  # a run has coins, or cosines, or both
        return self.cosines.observed, self.cosines.unobserved

    @property
    def deviations(self) -> float:
        """Returns by how many normal deviates scores are higher with the canary than where nothing leaks.

        Means are compared. With canaries that are out, both means and their errors are estimated, and the
        ratio follows Student's law, with one degree of freedom less than the smaller world has canaries; it
        is turned into the normal deviate of the same probability. Without any, the mean where nothing leaks
        is 0 and its standard deviation 1 / sqrt(d), d being the dimension. NaN or infinite where no score
        differs from others of its world.
        """
        scores_in, scores_out = self.pooled()
        if self.cosines is not None:
            scores_in, scores_out, dimension = self.cosines
            if not len(scores_out):
                return float(scores_in.mean() * np.sqrt(dimension * len(scores_in)))
        freedom = min(len(scores_in), len(scores_out)) - 1
        if freedom < 1:
            return math.nan
        error_in = scores_in.std(ddof=1) / np.sqrt(len(scores_in))
        error_out = scores_out.std(ddof=1) / np.sqrt(len(scores_out))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (scores_in.mean() - scores_out.mean()) / np.hypot(error_in, error_out)
        # Of absolute values, since a probability near 1 would lose its digits.
        return float(-np.sign(ratio) * special.ndtri(special.stdtr(freedom, -abs(ratio))))

    def __str__(self) -> str:
        """Returns how many canaries the run has, in words.

        For coins alone it adds what decides which canaries are in. For cosines it says how many are
        observed and unobserved, and what the null is, whether there are coins too or not.
        """
        if self.cosines is None:
            canaries_in, canaries_out = self.canaries
            return f"{canaries_in + canaries_out:,}, each in or out by a fair coin of its own"
        observed, unobserved, dimension = self.cosines
        counted = f"{len(observed):,} observed"
        if len(unobserved):
            return f"{counted} and {len(unobserved):,} unobserved, to which the null is fitted"
        return f"{counted}; the null is the cosine's exact law in {dimension:,} dimensions"


def cosines(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> Cosines:
    """Returns a caller's cosines of a single run, after checks of each number and of all together.

    Their decimals and their spread are checked where there are no unobserved cosines. The null is then the
    exact law of a uniform direction's cosine, with standard deviation 1/sqrt(dimension), which coarse
    rounding would change. Canaries that take part equally often shift that law by the same amount, so that
    observed cosines spread around their mean as the law does. If they spread more, the dimension is too
    large, or some canaries take part more often than others.

    As many unobserved as observed cosines make pairs by position. The order of one must not depend on that of
    the other, as where both are sorted.

    Args:
      observed: (K,) cosines of canaries that took part.
      unobserved: (M,) cosines of canaries that did not, or None.
      dimension: d, the number of trained parameters.

    Raises:
      InputError: for an array of another shape, a number that is no cosine, a dimension out of range,
        observed cosines that were rounded too coarsely or spread too much, or pairs that are tied by their
        order.
    """
    checked = check_own_cosines(observed, unobserved, dimension)
    if not len(checked.unobserved):
        require_decimals(checked.observed, dimension)
        _require_spread(checked.observed, dimension)
    if len(checked.observed) == len(checked.unobserved):
        _require_untied_pairs(checked)
    return checked


def check_own_cosines(observed: ArrayLike, unobserved: ArrayLike | None, dimension: int) -> Cosines:
    """Returns cosines of a single run, after the checks of `cosines` on each number alone.

    It is for cosines that do not have to show whether they have the law of their dimension. Either that is
    certain, since the library drew the directions, or the null is fitted to unobserved cosines.

    Args:
      observed: (K,) cosines of canaries that took part.
      unobserved: (M,) cosines of canaries that did not, or None.
      dimension: d, the number of trained parameters.

    Raises:
      InputError: for an array of another shape, a number that is no cosine, or a dimension out of range.
    """
    cosine_law.require_dimension(dimension)
    checked = _check_cosines("observed", observed)
    if unobserved is None:
        return Cosines(checked, np.empty(0), dimension)
    return Cosines(checked, _check_cosines("unobserved", unobserved), dimension)


def _require_untied_pairs(cosines: Cosines) -> None:
    """Raises InputError if the two cosines of a pair depend on each other, as where both arrays are sorted.

    A pair's guess is the canary with the larger cosine. Sorted arrays pair order statistics: then all guesses
    are right, or all wrong, far more often than by fair coins. This needs an order of both arrays, so that
    what is tested is whether the ranks of either, by value or by size, are correlated with those of the
    other. A sorted array beside another in its own order is a matching by chance and is accepted, as are
    pairs that are sorted together.

    Args:
      cosines: As many observed as unobserved cosines.
    """
    correlations = []
    for observed in (cosines.observed, np.abs(cosines.observed)):
        for unobserved in (cosines.unobserved, np.abs(cosines.unobserved)):
            correlations.append(_correlate_ranks(observed, unobserved))
    largest = max(correlations, key=abs)
    # Without dependence, a rank correlation of n pairs has the variance 1 / (n - 1), also with equal values.
    # The normal law's tail is above that of the correlation.
    deviations = abs(largest) * np.sqrt(len(cosines.observed) - 1)
    p_value = len(correlations) * 2 * special.ndtr(-deviations)
    require(
        p_value >= _TIED_ERROR,
        f"observed and unobserved cosines are sorted alike, with a rank correlation of {largest:.2g}, which "
        "ties pairs: keep the canaries' own order, or shuffle each",
    )


def _correlate_ranks(first: Array, second: Array) -> float:
    """Returns Spearman's rank correlation of two arrays (n,); 0 where either has equal values alone."""
    ranks = scipy.stats.rankdata([first, second], axis=1)
    deviations = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.square(deviations).sum(axis=1))
    if lengths.min() == 0:
        return 0.0
    return float(deviations[0] @ deviations[1] / lengths.prod())


def _require_spread(cosines: Array, dimension: int) -> None:
    """Raises InputError if cosines spread significantly more than those of uniform directions.

    It is a chi-squared test with error 1e-6. A smaller spread is not refused: canaries that depend on each
    other may cause it, and bounds hold with too small a dimension.
    """
    squares = float(np.square(cosines - cosines.mean()).sum())
    freedom = len(cosines) - 1  # the mean takes a degree of freedom
    if special.chdtrc(freedom, squares * dimension) < _SPREAD_ERROR:
        raise InputError(describe_spread(squares, freedom, dimension, _SPREAD_FIX))


def describe_spread(squares: float, freedom: int, dimension: int, fix: str) -> str:
    """Returns the message on cosines that spread more than those of uniform directions.

    Args:
      squares: sum of the cosines' squared deviations from their mean.
      freedom: degrees of freedom of `squares`.
      dimension: d; a cosine's standard deviation is 1/sqrt(d).
      fix: the advice at its end.
    """
    spread = np.sqrt(squares * dimension / freedom)
    suggested = max(round(freedom / squares), 1)  # 1 / sqrt(suggested) is the observed spread
    return (
        f"`dimension={dimension}`: cosines spread by {spread:.3g} / sqrt(d), those of uniform "
        f"directions by 1, as these would in about {suggested:,} dimensions: {fix}"
    )


def _check_cosines(name: str, values: ArrayLike) -> Array:
    """Returns cosines (K,) as float64, clipped to [-1, 1] where they exceed it by rounding.

    Args:
      name: "observed" or "unobserved", for messages.
      values: the caller's cosines.

    Raises:
      InputError: unless it is a vector of at least 10 finite values in [-1, 1], not all equal.
    """
    array = arrays.scores(f"the {name} cosines", values)
    shape = f"the {name} cosines have shape {array.shape}: give one for each canary, (K,)"
    require(array.ndim == 1, shape)
    few = f"there are {len(array)} {name} cosines: give at least {LEAST_CANARIES}"
    require(len(array) >= LEAST_CANARIES, few)
    bad = int(np.count_nonzero(~np.isfinite(array)))
    failed = f"{bad} of {len(array)} {name} cosines are not finite"
    fix = "the run failed and proves nothing; audit several runs together, this one among them"
    require(not bad, f"{failed}: {fix}")
    largest = float(np.abs(array).max())
    require(largest <= 1 + _SLACK, f"{name}: {largest:g} is no cosine: divide by both lengths")
    equal = f"all {len(array)} {name} cosines equal {array[0]:g}: they have no spread"
    require(np.ptp(array) > 0, equal)
    return np.clip(array, -1.0, 1.0)
