"""Scores of many canaries per run, and the errors of a threshold, run by run.

There are two designs. In both the training runs are independent, each with K canaries from the same
distribution, and a threshold's guess on a canary depends only on that canary.

Sets (LiDP paper, Section 3): K canaries are inserted in the runs of one set; runs of another, with K - 1 of
them, score canaries that were never inserted. Runs of the first set give misses, runs of the second false
alarms. By exchangeability the left-out canary, given the others, is a fresh draw.

Coins: every canary of every run is in with probability 1/2, independently, so every run gives both. Fix a
canary k and condition on all other coins: the run with k in and the run with k out are neighbours, and the
others are random data. So FNR_k and FPR_k, its error rates given its coin, satisfy the trade-off inequality
FNR_k >= f(FPR_k), and 2 / K sum_k coin_k miss_k has the mean of FNR_k over k, for any dependence between the
canaries of a run. This is not true for the share of misses among inserted canaries: it divides by a number
that depends on the run's other coins.

A user's coins may pass every test of fairness and still be unfair: if all coins have the probability p, the
factors are 1 / p and 1 / (1 - p) instead of 2. With exact limits of p from all coins they are 1 / p_low and 1
/ (1 - p_high), which overestimates both rates. The limits use a tenth of the error.

Averages. If a mechanism is f-DP, FNR >= f(FPR) for every pair of neighbours and every rejection region.
Average both sides over random canaries, data and regions: f is convex, so E[FNR] >= E[f(FPR)] >= f(E[FPR]).
So upper limits of the two average error rates bound the privacy parameter from below.
"""

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.evidence import arrays
from audit.evidence.arrays import Array, hash_ranks, rank_all, require_apart, require_few_failed
from audit.written import counted

Places = NDArray[np.int64]
_PILOT_SHARE = 0.05  # of a set's runs, to choose the threshold
_MIN_PILOT = 4  # runs
_LIMITS_SHARE = 0.1  # share of a bound's error for the limits of a user's coins
_MIN_QUANTILES = 1_000  # of a known law, instead of scores out
_MAX_QUANTILES = 20_000
FAILED = -1.0  # the cosine of a failed run, which ranks below all others
RANK_DIMENSION = 10**12  # sqrt(d) times a cosine there is normal to 1e-11, up to 9 deviations


class Shape(enum.Enum):
    """The shape of evidence, which decides the methods and the presentation."""

    ONE_CANARY = enum.auto()  # several runs with one canary each: scores are independent
    MANY_CANARIES = enum.auto()  # several runs with several each: a run's scores may be dependent
    FRESH_DIRECTIONS = enum.auto()  # canaries drawn anew in each run: scores out have a known law
    ONE_RUN = enum.auto()  # a single run with many canaries


def _find_shape(canaries: tuple[int, int]) -> Shape:
    """Returns the shape of evidence from several runs, given the scored canaries per run (in, out)."""
    return Shape.ONE_CANARY if canaries == (1, 1) else Shape.MANY_CANARIES


class RunErrors(NamedTuple):
    """The errors of guessing that a canary is in if its score is above a threshold, run by run.

    Attributes:
      misses: (n,) number of canaries of each run that were in and not above the threshold.
      alarms: (m,) number of canaries of each run that were out and above the threshold.
      canaries_in, canaries_out: numbers of canaries of a run that can give a miss, and a false alarm.
      scale_in: scale_in * misses / canaries_in has a mean of at least the average false-negative rate (equal
        to it if the chance of being in is known).
      scale_out: likewise the factor of alarms / canaries_out, for the average false-positive rate.
      paired: whether misses and alarms come from the same runs (m = n); else they are independent.
    """

    misses: Array
    alarms: Array
    canaries_in: int
    canaries_out: int
    scale_in: float
    scale_out: float
    paired: bool

    def rates(self) -> tuple[Array, Array]:
        """Returns an estimate of each error rate from each run: (false-positive (m,), false-negative (n,)).

        It is between 0 and the scale, so it may exceed 1 with fair coins, which have the scale 2.
        """
        false_positive_rates = self.scale_out * self.alarms / self.canaries_out
        false_negative_rates = self.scale_in * self.misses / self.canaries_in
        return false_positive_rates, false_negative_rates

    def guesses(self) -> tuple[int, int]:
        """Returns the largest possible counts of (misses, false alarms) over all runs."""
        return len(self.misses) * self.canaries_in, len(self.alarms) * self.canaries_out


class Counted(NamedTuple):
    """A threshold and its errors.

    Attributes:
      threshold: the score above which a canary is guessed to be in.
      pilot: its errors in the runs that chose it.
      rest: its errors in the other runs, which a bound uses.
    """

    threshold: float
    pilot: RunErrors
    rest: RunErrors


class Rows(NamedTuple):
    """Rows of scores as in a file, a row for each run, for the search of repeated rows.

    Attributes:
      scores: (n, K), K scores in each of n rows.
      presence: (n, K), whether the canary of each score was in; None if the file does not have such bits.
      has_no_ties: whether independent scores are never equal, except those of failed runs.
    """

    scores: Array
    presence: NDArray[np.bool_] | None = None
    has_no_ties: bool = False


class Coins(NamedTuple):
    """The scores of runs with a fair coin for each canary.

    Attributes:
      scores: (R, K) float64, the scores of K canaries in each of R runs.
      presence: (R, K) bool, whether the canary was in.
      given: whether the coins are a user's, and may be unfair.
      failed: the number of scores of failed runs.
    """

    scores: Array
    presence: NDArray[np.bool_]
    given: bool = False
    failed: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        return self.scores.shape[1], self.scores.shape[1]

    @property
    def shape(self) -> Shape:
        return _find_shape(self.canaries)

    def rows(self) -> list[Rows]:
        """Returns a single table with a row for each run."""
        return [Rows(self.scores, self.presence)]

    def select(self, kept: list[NDArray[np.bool_]]) -> "Coins":
        """Returns some of the runs."""
        (chosen,) = kept
        return self._replace(scores=self.scores[chosen], presence=self.presence[chosen])

    def __str__(self) -> str:
        return f"{_describe_shape(self.scores)}, each inserted by its own coin"

    def split(self) -> tuple["Coins", "Coins"]:
        """Returns (pilot, rest): runs drawn by `_draw_pilots`, and the others, with `failed` = 0."""
        keys = 2 * _ranks(self.scores) + self.presence  # a number for each pair of rank and bit
        (parts,) = _draw_pilots(keys)
        pilot, rest = (Coins(self.scores[part], self.presence[part], self.given) for part in parts)
        return pilot, rest

    def pooled(self) -> tuple[Array, Array]:
        """Returns (scores in, scores out), flat."""
        return self.scores[self.presence], self.scores[~self.presence]

    def errors(self, threshold: float) -> RunErrors:
        """Returns each run's errors at a threshold."""
        guessed_in = self.scores > threshold
        misses = (self.presence & ~guessed_in).sum(1).astype(np.float64)
        alarms = (~self.presence & guessed_in).sum(1).astype(np.float64)
        # Half of the canaries are in, on average.
        return RunErrors(misses, alarms, *self.canaries, 2.0, 2.0, paired=True)

    def widen(self, errors: RunErrors, error: float) -> tuple[RunErrors, float]:
        """Returns errors with rates that are at least the true rates on average, and the error that is left.

        The library's own coins are fair, and their errors do not change. For a user's coins see the module's
        docstring; `error` is the probability that a bound fails.
        """
        from audit.laws import intervals  # loads SciPy

        if not self.given:
            return errors, error
        spent = _LIMITS_SHARE * error
        total_in = int(self.presence.sum())
        low, high = intervals.clopper_pearson(total_in, self.presence.size, 1 - spent)
        widened = errors._replace(scale_in=1 / float(low), scale_out=1 / float(1 - high))
        return widened, error - spent


class Sets(NamedTuple):
    """The scores of two sets of runs: with and without the canaries.

    Attributes:
      inserted: (n, K), the scores of K inserted canaries in each of n runs.
      fresh: (m, M), the scores of M left-out canaries in each of m other runs.
      failed: the number of scores of failed runs.
      labelled: whether scores came in one list with a bit of presence each.
    """

    inserted: Array
    fresh: Array
    failed: int = 0
    labelled: bool = False

    @property
    def canaries(self) -> tuple[int, int]:
        return self.inserted.shape[1], self.fresh.shape[1]

    @property
    def shape(self) -> Shape:
        return _find_shape(self.canaries)

    def rows(self) -> list[Rows]:
        """Returns a table of the runs with the canaries, and one of the runs without."""
        return [Rows(self.inserted), Rows(self.fresh)]

    def select(self, kept: list[NDArray[np.bool_]]) -> "Sets":
        """Returns some of the runs of each world."""
        kept_in, kept_out = kept
        return self._replace(inserted=self.inserted[kept_in], fresh=self.fresh[kept_out])

    def __str__(self) -> str:
        return (
            f"{_describe_shape(self.inserted)} inserted, {_describe_shape(self.fresh)} not inserted"
        )

    def split(self) -> tuple["Sets", "Sets"]:
        """Returns (pilot, rest): runs of each world drawn by `_draw_pilots`, and the others."""
        pooled = np.concatenate(self.pooled())
        ranks_in, ranks_out = np.split(_ranks(pooled), [self.inserted.size])
        parts_in, parts_out = _draw_pilots(
            ranks_in.reshape(self.inserted.shape), ranks_out.reshape(self.fresh.shape)
        )
        pilot, rest = (
            Sets(self.inserted[part_in], self.fresh[part_out])
            for part_in, part_out in zip(parts_in, parts_out, strict=True)
        )
        return pilot, rest

    def pooled(self) -> tuple[Array, Array]:
        """Returns (scores in, scores out), flat."""
        return self.inserted.ravel(), self.fresh.ravel()

    def errors(self, threshold: float) -> RunErrors:
        """Returns each run's errors at a threshold: misses with the canaries, false alarms without."""
        misses = (self.inserted <= threshold).sum(1).astype(np.float64)
        alarms = (self.fresh > threshold).sum(1).astype(np.float64)
        return RunErrors(misses, alarms, *self.canaries, 1.0, 1.0, paired=False)

    def widen(self, errors: RunErrors, error: float) -> tuple[RunErrors, float]:
        """Returns errors and error unchanged, because this design does not use coins."""
        return errors, error


Design = Sets | Coins
"""The scores of several runs, in either of the module's two designs."""


class Fresh(NamedTuple):
    """Scores of canaries that every run drew afresh. The law of the scores of left-out canaries is known.

    The scores are cosines with uniform directions, or ranks among fresh draws, stored as cosines in
    RANK_DIMENSION dimensions (`audit.evidence.ranks`).

    Attributes:
      cosines: (R, K), the cosines of K canaries in each of R runs; FAILED for a failed run.
      presence: (R, K), whether the canary was in.
      dimension: d, the dimension of the directions.
      plain: whether a canary's score does not depend on other canaries' directions. False for ranks: the
        ranks of a run share its fresh draws.
      given: whether scores and directions are a user's.
      in_order: whether rows are in start order.
      draws: M, the number of fresh draws for a run's ranks; 0 for cosines.
      ranked: (R, K + M), the scores of a run's canaries and fresh draws; None if only their ranks are known.
    """

    cosines: Array
    presence: NDArray[np.bool_]
    dimension: int
    plain: bool = False
    given: bool = False
    in_order: bool = True
    draws: int = 0
    ranked: Array | None = None

    @property
    def canaries(self) -> tuple[int, int]:
        return self.cosines.shape[1], self.cosines.shape[1]

    @property
    def shape(self) -> Shape:
        return Shape.FRESH_DIRECTIONS

    def rows(self) -> list[Rows]:
        if self.ranked is not None:
            return [Rows(self.ranked, self.presence)]
        return [Rows(self.cosines, self.presence, has_no_ties=not self.draws)]

    def select(self, kept: list[NDArray[np.bool_]]) -> "Fresh":
        """Returns some of the runs."""
        (chosen,) = kept
        ranked = None if self.ranked is None else self.ranked[chosen]
        return self._replace(
            cosines=self.cosines[chosen], presence=self.presence[chosen], ranked=ranked
        )

    def __str__(self) -> str:
        """Returns the numbers of runs and canaries: "10 runs x 256 fresh directions, all inserted"."""
        runs, canaries = self.cosines.shape
        scored = counted(canaries, "fresh direction")
        if self.draws:
            number = counted(canaries, "canary", "canaries")
            scored = f"{number}, ranked among {self.draws:,} fresh draws"
        world = "all inserted" if self.presence.all() else "inserted by coins"
        return f"{counted(runs, 'run')} x {scored}, {world}"

    def is_out(self) -> NDArray[np.bool_]:
        """Returns which canaries (R, K) were out, in runs that did not fail."""
        return np.asarray(~self.presence & (self.cosines != FAILED))

    def out(self) -> Array:
        """Returns the cosines (n,) of canaries that were out, in runs that did not fail."""
        out: Array = self.cosines[self.is_out()]
        return out

    def ranks(self) -> Places:
        """Returns the ranks (R, K) of the cosines, from 1, the highest score, to `draws` + 1."""
        from audit.laws import cosine_law  # loads SciPy

        tails = np.exp(cosine_law.log_sf(self.cosines, self.dimension))
        ranks: Places = np.rint(tails * (self.draws + 1)).astype(np.int64)
        return ranks

    @property
    def failed(self) -> int:
        """Returns the number of a user's scores of failed runs."""
        if not self.given:
            return 0
        return int(np.count_nonzero(self.cosines == FAILED))

    def pooled(self) -> tuple[Array, Array]:
        """Returns (scores in, scores out), flat, for figures and rates.

        Scores out are evenly spaced quantiles of the known law: equal in number to the cosines, but at least
        1,000 and at most 20,000. Ranks are shown as normal deviates, higher for a better rank.
        """
        from scipy import special  # slow to load

        from audit.laws import cosine_law

        cosines_in = self.cosines[self.presence]
        quantiles = int(np.clip(cosines_in.size, _MIN_QUANTILES, _MAX_QUANTILES))
        levels = (np.arange(quantiles) + 0.5) / quantiles
        if not self.draws:
            return cosines_in, cosine_law.quantile(levels, self.dimension)
        # Each deviate is that of the rank's middle tail probability.
        places = self.draws + 1
        ranks_in = self.ranks()[self.presence]
        ranks_out = np.ceil(levels[::-1] * places)
        deviates_in: Array = -special.ndtri((ranks_in - 0.5) / places)
        deviates_out: Array = -special.ndtri((ranks_out - 0.5) / places)
        return deviates_in, deviates_out


def make_coins(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """Returns a user's scores and coins after all checks except that of the coins' fairness.

    Args:
      scores: (R, K), K canaries in each of R runs; NaN for a failed run.
      presence: (R, K), 1 if the canary was in, else 0.

    Raises:
      InputError: for different shapes, invalid or equal bits, and scores that are all equal or mostly NaN.
    """
    values = arrays.matrix("the scores", scores)
    present = arrays.bits(presence, values.shape)
    both = "presence puts all canaries into one world: both are needed"
    require(present.any() and not present.all(), both)
    failed = _count_failed(values)
    (ranked,) = rank_all(values)  # finite, with failed runs below all others
    require_apart(ranked)
    return Coins(ranked, present, failed=failed)


def make_sets(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """Returns the evidence of runs with the canaries and of other runs without them, after checks.

    Args:
      scores_in: (n,) or (n, K), the scores of n runs with the canary or canaries; higher means in, NaN for a
        failed run.
      scores_out: (m,) or (m, M), the scores of left-out canaries in m other runs. Each of these runs must
        contain K - 1 canaries, which are not scored: runs without any would make bounds too high.

    Raises:
      InputError: for values that are not scores, bits of presence instead of the scores out, an empty world,
        or scores that are all equal or mostly NaN.
    """
    array_in = arrays.scores("the scores in", scores_in)
    array_out = arrays.scores("the scores out", scores_out)
    arrays.require_size("the scores", array_in.size + array_out.size)
    _require_no_presence(array_in, array_out)
    matrices = []
    for name, array in (("in", array_in), ("out", array_out)):
        require(array.size, f"there are no {name} scores: give runs of both worlds")
        one_each = array[:, None] if array.ndim == 1 else array
        matrices.append(arrays.matrix(f"the {name} scores", one_each))
    failed = _count_failed(*matrices)
    ranked_in, ranked_out = rank_all(*matrices)
    design = Sets(ranked_in, ranked_out, failed)
    require_apart(np.concatenate(design.pooled()))
    return design


def _require_no_presence(scores_in: Array, scores_out: Array) -> None:
    """Raises InputError if a user gave bits of presence (1 for a canary in) instead of the scores out."""
    # Scores out of 0 and 1 may be real, such as guesses or votes, if the scores in are whole numbers too.
    only_bits_out = np.array_equal(np.unique(scores_out), (0, 1))
    known_in = scores_in[~np.isnan(scores_in)]
    has_fractions_in = bool((known_in != np.round(known_in)).any())
    is_presence = only_bits_out and has_fractions_in and scores_in.shape == scores_out.shape
    fix = "give the scores of each world, scores[presence] and scores[~presence]"
    require(
        not is_presence, f"the scores out are only 0 and 1, a presence instead of scores: {fix}"
    )


def _count_failed(*worlds: Array) -> int:
    """Returns the number of NaN in all scores; raises InputError if that is more than half."""
    scores = np.concatenate([*map(np.ravel, worlds)])
    failed = int(np.isnan(scores).sum())
    require_few_failed("scores", failed, scores.size)
    return failed


def _describe_shape(scores: Array) -> str:
    """Returns the shape of scores (runs, canaries) in words: "400 runs x 64 canaries"."""
    runs, canaries = scores.shape
    return f"{runs:,} runs x {counted(canaries, 'canary', 'canaries')}"


def _ranks(scores: Array) -> Places:
    """Returns each score's place among the distinct scores, from 0, in the scores' shape."""
    places = np.unique(scores, return_inverse=True)[1]
    return places.astype(np.int64).reshape(scores.shape)


def _draw_pilots(*worlds: Places) -> list[tuple[Places, Places]]:
    """Draws a pilot of each world's runs, a twentieth but at least 4, to choose a threshold.

    The draw does not depend on the order of runs or of the canaries in a run.

    Args:
      worlds: the keys (runs, K) of the scores of each world, such as ranks.

    Returns:
      For each world, the rows of the pilot's runs and of the other runs.

    Raises:
      InputError: if there are fewer than 8 runs.
    """
    all_rows = []
    ordered = []
    for keys in worlds:
        sorted_keys = np.sort(keys, axis=1)
        rows = np.lexsort(sorted_keys.T[::-1])  # lexsort sorts by its last key first
        all_rows.append(rows)
        ordered.append(sorted_keys[rows])
    rng = np.random.default_rng(hash_ranks(*ordered))
    pairs = []
    for rows in all_rows:
        runs = len(rows)
        least = 2 * _MIN_PILOT
        require(runs >= least, f"there are {runs} runs in a set: give at least {least}")
        drawn = rows[rng.permutation(runs)]
        size = max(round(_PILOT_SHARE * runs), _MIN_PILOT)
        pairs.append((drawn[:size], drawn[size:]))
    return pairs
