"""Scores of canaries, and each run's errors at a given threshold.

A canary is in if the run inserted it, and out if not. A miss is an inserted canary that is guessed to be out;
a false alarm is the reverse. There are two designs. In both, runs are independent, each has K canaries from
the same distribution, and a guess depends only on its canary.

Sets (LiDP paper, Section 3): the runs of one set insert K canaries and yield misses. The other runs insert K
- 1 canaries and score fresh, left-out canaries, which yield false alarms.

Coins: each run inserts each canary with probability 1/2, independently, so every run yields misses and false
alarms. Fix a canary k and the coins of all other canaries. Runs with and without k are then neighbours, so if
the mechanism is f-DP, the error rates of guesses about k satisfy FNR_k >= f(FPR_k). The expectation of
2 / K sum_k coin_k miss_k is the mean of FNR_k over k, even if the canaries in a run depend on each other.

If a mechanism is f-DP, FNR >= f(FPR) for all neighbours and rejection regions. Averaging over random
canaries, data and regions gives E[FNR] >= E[f(FPR)] >= f(E[FPR]), since f is convex. Therefore, upper limits
on both average rates give a lower bound on the privacy parameter.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from audit.errors import require
from audit.evidence import arrays
from audit.evidence.arrays import (
    Array,
    Bits,
    Integers,
    hash_ranks,
    make_finite,
    require_few_failed,
    require_usable,
)
from audit.laws import cosine_law, intervals
from audit.written import counted

_PILOT_FRACTION = 0.05  # share of each set's runs used to choose the threshold
_MIN_PILOT = 4  # runs
_LIMITS_FRACTION = 0.1  # share of a bound's error probability spent on limits for a user's coins
# The number of quantiles of a known distribution in figures.
_MIN_QUANTILES = 1_000
_MAX_QUANTILES = 20_000
FAILED = -1.0  # the cosine assigned to failed runs, below all others
# The dimension d of the cosines that represent ranks. Up to 9 standard deviations, the probabilities of
# sqrt(d) times such a cosine match the normal distribution to within 1e-11.
RANK_DIMENSION = 10**12


class RunErrors(NamedTuple):
    """Each run's errors if we guess that canaries with scores above a threshold were inserted.

    Attributes:
      misses: (n,) the number of inserted canaries in each run that do not score above the threshold.
      alarms: (m,) the number of left-out canaries in each run that score above the threshold.
      canaries_in, canaries_out: how many canaries per run can count as misses, and how many as false alarms.
      scale_in: the mean of scale_in * misses / canaries_in is at least the average false-negative rate.
      scale_out: the mean of scale_out * alarms / canaries_out is at least the average false-positive rate.
      same_runs: True if misses and alarms come from the same runs (m = n); else they are independent.
    """

    misses: Array
    alarms: Array
    canaries_in: int
    canaries_out: int
    scale_in: float
    scale_out: float
    same_runs: bool

    def rates(self) -> tuple[Array, Array]:
        """Returns each run's estimates of the false-positive rate (m,) and the false-negative rate (n,).

        A rate is scale * errors / canaries. With coins, `canaries` counts all K, so the scale is the inverse
        of the probability that a canary is in (for misses) or out (for false alarms). It is 2 for fair coins,
        and 1 without coins. Canaries are left out in m runs and inserted in n.
        """
        false_positive_rates = self.scale_out * self.alarms / self.canaries_out
        false_negative_rates = self.scale_in * self.misses / self.canaries_in
        return false_positive_rates, false_negative_rates

    def guesses(self) -> tuple[int, int]:
        """Returns how many guesses, over all runs, can be misses and how many can be false alarms."""
        return len(self.misses) * self.canaries_in, len(self.alarms) * self.canaries_out


class Counted(NamedTuple):
    """A threshold and the resulting errors.

    Attributes:
      threshold: we guess that canaries with higher scores were inserted.
      pilot: the errors in the runs used to choose the threshold.
      rest: the errors in the other runs, used for the bound.
    """

    threshold: float
    pilot: RunErrors
    rest: RunErrors


class Rows(NamedTuple):
    """A table with one row per run, for finding repeated rows.

    Attributes:
      scores: (n, K), K scores in each of n rows.
      presence: (n, K), True if the score's canary was in; None if the design has no presence bits.
      has_no_ties: True if independent scores are never equal, except in failed runs.
    """

    scores: Array
    presence: Bits | None = None
    has_no_ties: bool = False


class Coins(NamedTuple):
    """The scores from runs that flip a fair coin for each canary.

    Attributes:
      scores: (R, K) float64, the scores of K canaries in each of R runs.
      presence: (R, K) bool, True if the canary was in.
      from_user: True if the coins come from a user and may be unfair.
      failed: the number of scores from failed runs.
    """

    scores: Array
    presence: Bits
    from_user: bool = False
    failed: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        """Returns (K, K), since each of the K canaries can be in or out."""
        canaries = self.scores.shape[1]
        return canaries, canaries

    def rows(self) -> list[Rows]:
        """Returns a single table with a row for each run."""
        return [Rows(self.scores, self.presence)]

    def select(self, chosen: Bits | Integers) -> "Coins":
        """Returns the chosen runs; `chosen` is an array of indices or a mask."""
        return self._replace(scores=self.scores[chosen], presence=self.presence[chosen])

    def __str__(self) -> str:
        return f"{_describe_shape(self.scores)}, each inserted by its own coin"

    def split(self) -> tuple["Coins", "Coins"]:
        """Returns (pilot, rest): the runs used to choose a threshold, and the other runs.

        The scores' ranks seed the draw, so it is invariant under increasing transformations.
        """
        ranks = np.searchsorted(np.unique(self.scores), self.scores)
        # The sum maps each (rank, bit) pair to a different integer.
        pilot, rest = _draw_pilots(2 * ranks + self.presence)
        return self.select(*pilot), self.select(*rest)

    def pooled(self) -> tuple[Array, Array]:
        """Returns the scores of all canaries that were in, (n,), and of those that were out, (m,)."""
        return self.scores[self.presence], self.scores[~self.presence]

    def errors(self, threshold: float) -> RunErrors:
        """Returns each run's errors if we guess that canaries with scores above a threshold were inserted."""
        guessed_in = self.scores > threshold
        canaries = guessed_in.shape[1]
        # On average, half of the K canaries are in, so error rates are 2 * errors / K.
        return RunErrors(
            misses=(self.presence & ~guessed_in).sum(1, dtype=np.float64),
            alarms=(~self.presence & guessed_in).sum(1, dtype=np.float64),
            canaries_in=canaries,
            canaries_out=canaries,
            scale_in=2.0,
            scale_out=2.0,
            same_runs=True,
        )

    def widen(self, errors: RunErrors, error: float) -> tuple[RunErrors, float]:
        """Returns `errors`, with larger scales if coins may be unfair, and the remaining error probability.

        `error` is the error probability of a bound. For a user's coins, we spend a tenth of `error` on
        confidence limits, low and high, for the probability of "in". An error rate is
        scale * errors / canaries. For fair coins, scales are 1 / 0.5 = 2. The scales 1 / low and
        1 / (1 - high) overestimate both error rates.
        """
        # Our own coins are fair.
        if not self.from_user:
            return errors, error
        spent = _LIMITS_FRACTION * error
        total_in = int(self.presence.sum())
        low, high = intervals.clopper_pearson(total_in, self.presence.size, confidence=1 - spent)
        widened = errors._replace(scale_in=1 / float(low), scale_out=1 / float(1 - high))
        return widened, error - spent


class Sets(NamedTuple):
    """The scores of two sets of runs: with and without the canaries.

    Attributes:
      inserted: (n, K), the scores of K inserted canaries in each of n runs.
      fresh: (m, M), the scores of M left-out canaries in each of m other runs.
      failed: the number of scores from failed runs.
      labelled: True if a single list contained all scores, each with a presence bit.
    """

    inserted: Array
    fresh: Array
    failed: int = 0
    labelled: bool = False

    @property
    def canaries(self) -> tuple[int, int]:
        """Returns (K, M), the number of canaries scored in each run of each set."""
        return self.inserted.shape[1], self.fresh.shape[1]

    def rows(self) -> list[Rows]:
        """Returns two tables: the runs with the canaries, and the other runs."""
        return [Rows(self.inserted), Rows(self.fresh)]

    def select(self, runs_in: Bits | Integers, runs_out: Bits | Integers) -> "Sets":
        """Returns the chosen runs of each set. Arguments are arrays of indices or masks."""
        return self._replace(inserted=self.inserted[runs_in], fresh=self.fresh[runs_out])

    def __str__(self) -> str:
        return (
            f"{_describe_shape(self.inserted)} inserted, {_describe_shape(self.fresh)} not inserted"
        )

    def split(self) -> tuple["Sets", "Sets"]:
        """Returns (pilot, rest), each with runs from both sets; pilot runs are used to choose a threshold.

        The draw is seeded as in `Coins.split`.
        """
        distinct = np.unique(np.concatenate(self.pooled()))
        ranks_in = np.searchsorted(distinct, self.inserted)
        ranks_out = np.searchsorted(distinct, self.fresh)
        pilot, rest = _draw_pilots(ranks_in, ranks_out)
        return self.select(*pilot), self.select(*rest)

    def pooled(self) -> tuple[Array, Array]:
        """Returns the scores of all canaries that were in, (n K,), and of those that were out, (m M,)."""
        return self.inserted.ravel(), self.fresh.ravel()

    def errors(self, threshold: float) -> RunErrors:
        """Returns each run's errors if we guess that canaries with scores above a threshold were inserted.

        Misses come from `inserted` (n, K), and false alarms from `fresh` (m, M).
        """
        misses = (self.inserted <= threshold).sum(1, dtype=np.float64)
        alarms = (self.fresh > threshold).sum(1, dtype=np.float64)
        # There are at most K misses and M false alarms, so rates are misses / K and alarms / M.
        return RunErrors(
            misses,
            alarms,
            canaries_in=self.inserted.shape[1],
            canaries_out=self.fresh.shape[1],
            scale_in=1.0,
            scale_out=1.0,
            same_runs=False,
        )

    def widen(self, errors: RunErrors, error: float) -> tuple[RunErrors, float]:
        """Returns both arguments unchanged, since this design has no coins (`Coins.widen`)."""
        return errors, error


# The scores of several runs.
Design = Sets | Coins


class Fresh(NamedTuple):
    """Scores of canaries drawn afresh in every run. Left-out canaries have a known score distribution.

    Ranks among fresh draws are stored as cosines in RANK_DIMENSION dimensions (`audit.evidence.ranks`).

    Attributes:
      cosines: (R, K), the cosines of K canaries in each of R runs; FAILED for a failed run.
      presence: (R, K), True if the canary was in.
      dimension: d, the dimension of the directions.
      separate: True if a canary's score does not depend on other canaries' directions; False for ranks.
      from_user: True if scores and directions come from a user.
      in_order: True if rows are sorted by the start times of their runs.
      draws: M, the number of fresh draws per run for ranks; 0 for cosines.
      ranked: (R, K + M), a user's scores of canaries and fresh draws, before ties were broken; else None.
    """

    cosines: Array
    presence: Bits
    dimension: int
    separate: bool = False
    from_user: bool = False
    in_order: bool = True
    draws: int = 0
    ranked: Array | None = None

    @property
    def canaries(self) -> tuple[int, int]:
        """Returns (K, K), since each of the K canaries can be in or out."""
        canaries = self.cosines.shape[1]
        return canaries, canaries

    def rows(self) -> list[Rows]:
        """Returns a single table with a row for each run: its ranked scores if known, else its cosines.

        Independent cosines are never equal, but ranks often are. With `draws`, cosines represent ranks.
        """
        if self.ranked is not None:
            return [Rows(self.ranked, self.presence)]
        return [Rows(self.cosines, self.presence, has_no_ties=not self.draws)]

    def select(self, chosen: Bits | Integers) -> "Fresh":
        """Returns the chosen runs; `chosen` is an array of indices or a mask."""
        ranked = None if self.ranked is None else self.ranked[chosen]
        return self._replace(
            cosines=self.cosines[chosen], presence=self.presence[chosen], ranked=ranked
        )

    def __str__(self) -> str:
        """Describes the runs and canaries.

        Examples are "10 runs x 256 fresh directions, all inserted" for cosines and "20 runs x 64 canaries,
        ranked among 10,000 fresh draws, all inserted" for ranks.
        """
        runs, canaries = self.cosines.shape
        scored = counted(canaries, "fresh direction")
        if self.draws:
            scored = f"{counted(canaries, 'canary', 'canaries')}, ranked among {self.draws:,} fresh draws"
        world = "all inserted" if self.presence.all() else "inserted by coins"
        return f"{counted(runs, 'run')} x {scored}, {world}"

    def is_out(self) -> Bits:
        """Returns a mask (R, K) of the left-out canaries in runs that did not fail."""
        return ~self.presence & (self.cosines != FAILED)

    def out(self) -> Array:
        """Returns the cosines (n,) of left-out canaries in runs that did not fail."""
        return self.cosines[self.is_out()]

    def ranks(self) -> Integers:
        """Returns the ranks that cosines represent, (R, K), from 1 (the highest score) to `draws` + 1."""
        # The cosine of rank r has tail probability r / (draws + 1), up to rounding.
        tails = np.exp(cosine_law.log_sf(self.cosines, self.dimension))
        return np.asarray(np.rint(tails * (self.draws + 1)), np.int64)

    @property
    def failed(self) -> int:
        """Returns how many of a user's scores come from failed runs."""
        if not self.from_user:
            return 0
        return int(np.count_nonzero(self.cosines == FAILED))

    def pooled(self) -> tuple[Array, Array]:
        """Returns scores for figures: those of inserted canaries, (n,), and of left-out canaries, (m,).

        Scores of left-out canaries are quantiles of their known distribution at evenly spaced levels. All
        scores are cosines or, with `draws`, the normal deviates of ranks.
        """
        cosines_in = self.cosines[self.presence]
        # As many quantiles as scores, within limits.
        quantiles = int(np.clip(cosines_in.size, _MIN_QUANTILES, _MAX_QUANTILES))
        levels = (np.arange(quantiles) + 0.5) / quantiles
        if not self.draws:
            return cosines_in, cosine_law.quantile(levels, self.dimension)
        # A left-out canary's rank is uniform. The ranks descend, so the deviates ascend like the cosines.
        ranks_out = np.ceil(levels[::-1] * (self.draws + 1))
        ranks_in = self.ranks()[self.presence]
        return self._convert_to_deviates(ranks_in), self._convert_to_deviates(ranks_out)

    def _convert_to_deviates(self, ranks: Array | Integers) -> Array:
        """Converts ranks, from 1 (the highest score) to `draws` + 1, to normal deviates."""
        # Rank r has tail probabilities from (r - 1) / (draws + 1) to r / (draws + 1). We use the midpoint.
        return -special.ndtri((ranks - 0.5) / (self.draws + 1))


def make_coins(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """Returns a user's scores and presence bits, after all checks except fairness.

    Args:
      scores: (R, K), for K canaries in each of R runs; NaN for a failed run.
      presence: (R, K), 1 if the canary was in, else 0.

    Raises:
      InputError: if shapes differ, bits are invalid or all equal, or scores are all equal or mostly NaN.
    """
    values = arrays.matrix("the scores", scores)
    present = arrays.bits(presence, values.shape)
    require(
        present.any() and not present.all(),
        "presence puts all canaries in the same world: both are needed",
    )
    failed = _count_failed(values)
    (finite,) = make_finite(values)
    require_usable(finite)
    return Coins(finite, present, failed=failed)


def make_sets(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """Checks and returns the evidence from runs with the canaries and from other runs without them.

    Args:
      scores_in: (n,) or (n, K), the scores of the K canaries in each of n runs; higher means in, NaN for a
        failed run.
      scores_out: (m,) or (m, M), the scores of M left-out canaries in each of m other runs. Those runs must
        insert K - 1 canaries, one fewer than the n runs do. If runs differ in more than one canary, bounds
        are too high.

    Raises:
      InputError: for values that are not scores, if `scores_out` are presence bits (1 if a canary was in,
        else 0), if one of the arrays is empty, or if scores are all equal or mostly NaN.
    """
    matrices = []
    for name, values in (("the in-scores", scores_in), ("the out-scores", scores_out)):
        array = arrays.scores(name, values)
        require(array.size, f"{name} are empty: give runs from both worlds")
        one_each = array[:, None] if array.ndim == 1 else array
        matrices.append(arrays.matrix(name, one_each))
    _require_no_presence(*matrices)
    failed = _count_failed(*matrices)
    finite_in, finite_out = make_finite(*matrices)
    design = Sets(finite_in, finite_out, failed)
    require_usable(np.concatenate(design.pooled()))
    return design


def _require_no_presence(scores_in: Array, scores_out: Array) -> None:
    """Raises InputError if `scores_out` seem to be the presence bits of `scores_in`."""
    only_bits_out = np.array_equal(np.unique(scores_out), (0, 1))
    # If `scores_in` also contains only whole numbers, both arrays may be guesses or votes.
    known_in = scores_in[~np.isnan(scores_in)]
    has_fractions_in = (known_in != np.round(known_in)).any()
    is_presence = only_bits_out and has_fractions_in and scores_in.shape == scores_out.shape
    require(
        not is_presence,
        "the out-scores are only 0 and 1, like presence bits: give the scores of each world, "
        "scores[presence] and scores[~presence]",
    )


def _count_failed(*worlds: Array) -> int:
    """Returns how many scores are NaN because runs failed; raises InputError if more than half are."""
    failed = np.isnan(np.concatenate([*map(np.ravel, worlds)]))
    require_few_failed("scores", failed)
    return int(failed.sum())


def _describe_shape(scores: Array) -> str:
    """Returns the shape of scores, (runs, canaries), in words: "400 runs x 64 canaries"."""
    runs, canaries = scores.shape
    return f"{runs:,} runs x {counted(canaries, 'canary', 'canaries')}"


def _draw_pilots(*sets: Integers) -> tuple[list[Integers], list[Integers]]:
    """Draws a twentieth of each set's runs, but at least 4, as pilot runs.

    The draw is seeded with the sorted scores, so the order of runs and canaries does not matter.

    Args:
      sets: (runs, K), the scores in each set as integers, such as ranks.

    Returns:
      (pilot, rest), each with the indices of its runs in every set.

    Raises:
      InputError: if a set has fewer than 8 runs.
    """
    # Sort the canaries of each run, and then the runs of each set.
    orders = []  # each set's runs in sorted order
    sorted_sets = []
    for ranks in sets:
        sorted_ranks = np.sort(ranks, axis=1)
        order = np.lexsort(sorted_ranks.T[::-1])  # lexsort sorts by its last row first
        orders.append(order)
        sorted_sets.append(sorted_ranks[order])
    rng = np.random.default_rng(hash_ranks(*sorted_sets))
    pilot = []
    rest = []
    least = 2 * _MIN_PILOT
    for order in orders:
        runs = len(order)
        require(runs >= least, f"there are {runs} runs in a set: give at least {least}")
        drawn = order[rng.permutation(runs)]
        size = max(round(_PILOT_FRACTION * runs), _MIN_PILOT)
        pilot.append(drawn[:size])
        rest.append(drawn[size:])
    return pilot, rest
