"""Scores of many canaries a run, and the errors of a threshold, run by run.

Two designs. In both the training runs are independent, each with K canaries drawn from the same
distribution, and a threshold's guess on a canary looks at that canary alone.

Sets (LiDP paper, Section 3): K canaries are inserted in the runs of one set; runs of another, with K - 1 of
    them, score canaries that were never inserted. Runs of the first set give misses, runs of the second
    false alarms. By exchangeability the left-out canary, given the others, is a fresh draw.

Coins: every canary of every run is in with probability 1/2, independently, so that every run gives both. Fix
    a canary k and condition on all other coins: the run with k in and the run with k out are neighbours, and
    the others are random data. So FNR_k and FPR_k, its error rates given its coin, satisfy the trade-off
    inequality FNR_k >= f(FPR_k), and 2 / K sum_k coin_k miss_k has the mean of FNR_k over k, whatever ties
    the canaries of a run together. The share of misses among those that happened to be in has not: it divides
    by a number that the run's other coins change.

Coins that a caller gives may be fair by every test and not in truth: if all coins have the probability p, the
    factors are 1 / p and 1 / (1 - p) in place of 2. With exact limits of p from all coins they are 1 / p_low
    and 1 / (1 - p_high), so that both rates are overestimated, and the limits take a tenth of the error.

Averages. If a mechanism is f-DP, FNR >= f(FPR) for every pair of neighbours and every rejection region.
Average both sides over random canaries, data and regions: f is convex, so E[FNR] >= E[f(FPR)] >= f(E[FPR]).
Upper limits of the two average error rates therefore bound the privacy parameter from below, as for one
canary.
"""

import enum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.evidence.arrays import floats, hash_ranks, rank_all, require_apart, require_few_failed

Array = NDArray[np.float64]
Places = NDArray[np.int64]
_PILOT_SHARE = 0.05  # of the runs of a set
_LEAST_PILOT = 4  # runs
_LIMITS_SHARE = 0.1  # of the error, for the limits of a caller's coins
_LEAST_QUANTILES = 1_000
_MOST_QUANTILES = 20_000
_TINY = 1e-12  # in place of a probability of 0, by which is divided
FAILED = -1.0  # the cosine of a run that failed: it ranks below all others
RANK_DIMENSION = 10**12  # sqrt(d) times a cosine there is normal to 1e-11, up to 9 deviations


class Shape(enum.Enum):
    """The shape of evidence, which decides what follows from it and how it is shown."""

    ONE_CANARY = enum.auto()  # a run: scores are independent
    MANY_CANARIES = enum.auto()  # a run: scores of a single run may depend on each other
    FRESH_DIRECTIONS = enum.auto()  # whose cosines have a known law where they are out
    ONE_RUN = enum.auto()  # with many canaries


def _find_shape(canaries: tuple[int, int]) -> Shape:
    """Returns the shape of several runs' scores, of a run's number of canaries (in, out)."""
    return Shape.ONE_CANARY if canaries == (1, 1) else Shape.MANY_CANARIES


class RunErrors(NamedTuple):
    """The errors of a threshold, run by run.

    Attributes:
      misses: (n,) how many canaries of each run were in and below the threshold.
      alarms: (m,) how many canaries of each run were out and above it.
      canaries_in, canaries_out: how many canaries a run has that can be missed, or give a false alarm.
      scale_in: the mean of scale_in * misses / canaries_in is the average false-negative rate, or above it.
      scale_out: that of scale_out * alarms / canaries_out is the average false-positive rate, or above it.
      paired: whether misses and alarms are of the same runs; else they are independent of each other.
    """

    misses: Array
    alarms: Array
    canaries_in: int
    canaries_out: int
    scale_in: float
    scale_out: float
    paired: bool

    def rates(self) -> tuple[Array, Array]:
        """Returns each run's unbiased (false-positive rate (m,), false-negative rate (n,)).

        Each is at most the scale.
        """
        false_positive_rates = self.scale_out * self.alarms / self.canaries_out
        false_negative_rates = self.scale_in * self.misses / self.canaries_in
        return false_positive_rates, false_negative_rates

    def guesses(self) -> tuple[int, int]:
        """Returns how many guesses could be (a miss, a false alarm): canaries over all runs."""
        return len(self.misses) * self.canaries_in, len(self.alarms) * self.canaries_out

    def smoothed(self) -> list[float]:
        """Returns the average [false-positive rate, false-negative rate], never 0.

        Each counts half an error more, and one guess more, than there are (Jeffreys' prior).
        """
        guesses_in, guesses_out = self.guesses()
        false_positive_rate = (self.scale_out * self.alarms.sum() + 0.5) / (guesses_out + 1)
        false_negative_rate = (self.scale_in * self.misses.sum() + 0.5) / (guesses_in + 1)
        return [false_positive_rate, false_negative_rate]


class Counted(NamedTuple):
    """The errors of a threshold in the pilot that it was chosen on, and in the runs that are counted."""

    threshold: float
    pilot: RunErrors
    rest: RunErrors


class Rows(NamedTuple):
    """Rows of scores as a file has them.

    Attributes:
      name: of all rows together, as in messages: "the scores in".
      row: the word for a row: "row", or "canary" where each is a canary of a single run.
      scores: (n, K).
      presence: (n, K) or None, the bits that belong to a row.
    """

    name: str
    row: str
    scores: Array
    presence: NDArray[np.bool_] | None = None


class Design(Protocol):
    """The scores of an audit with many canaries a run, in either design.

    Attributes:
      canaries: how many canaries a run scores that are in, at most, and how many that are out.
      shape: of the evidence.
      failed: how many scores are those of runs that failed.
    """

    @property
    def canaries(self) -> tuple[int, int]: ...

    @property
    def shape(self) -> Shape: ...

    @property
    def failed(self) -> int: ...

    def count_scores(self) -> str:
        """Returns how many scores there are, in words."""

    def rows(self) -> list[Rows]:
        """Returns the rows of scores, a table for each world if the worlds are different runs."""

    def __str__(self) -> str:
        """Returns its runs and canaries in words, "400 runs with 64 canaries each"."""

    def split(self) -> tuple["Design", "Design"]:
        """Returns (pilot, rest), disjoint runs; raises InputError for too few runs.

        They are drawn by a hash of the ranks, so that the order of runs, that of the canaries of a run and an
        increasing map of scores change nothing.
        """

    def pooled(self) -> tuple[Array, Array]:
        """Returns (scores in, scores out), flat."""

    def by_run(self) -> "list[Coins]":
        """Returns scores and presence (runs, canaries) of each set of runs."""

    def errors(self, threshold: float) -> RunErrors:
        """Returns the errors of guessing that a canary is in where its score is above a threshold."""

    def limits(self, error: float) -> "CoinLimits | None":
        """Returns limits of the probability that a caller's coin is in, which miss with a part of `error`.

        None where the probability is certain.
        """


class CoinLimits(NamedTuple):
    """Limits of the probability that a coin is in.

    Attributes:
      low, high: the limits.
      error: what is left, after the limits' own error, of the error that a bound is allowed.
    """

    low: float
    high: float
    error: float

    def widened(self, errors: RunErrors) -> RunErrors:
        """Returns errors whose rates are on average at least the true rates, if the limits hold.

        With a probability p of being in, the unbiased scales are 1 / p and 1 / (1 - p).
        """
        scale_in = 1 / max(self.low, _TINY)
        scale_out = 1 / max(1 - self.high, _TINY)
        return errors._replace(scale_in=scale_in, scale_out=scale_out)


class Coins(NamedTuple):
    """The scores of runs in which each canary is in with probability 1/2.

    Attributes:
      scores: (R, K) float64.
      presence: (R, K) bool.
      given: whether only a caller says that the coins are fair.
      failed: how many scores are those of runs that failed.
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

    def count_scores(self) -> str:
        return f"{self.scores.size:,} scores"

    def rows(self) -> list[Rows]:
        if len(self.scores) == 1:
            return [Rows("the run", "canary", self.scores.T, self.presence.T)]
        return [Rows("the scores", "row", self.scores, self.presence)]

    def __str__(self) -> str:
        return f"{_describe_shape(self.scores)} each, in by a coin of its own"

    def split(self) -> tuple["Coins", "Coins"]:
        """Returns (pilot, rest): runs drawn at random, by a hash of the ranks, and the others."""
        keys = 2 * _ranks(self.scores) + self.presence  # a number for each pair of rank and bit
        places = _canonical_places(keys)
        pilot, rest = _draw_pilot(places, np.random.default_rng(hash_ranks(keys.flat[places])))
        return self._select(pilot), self._select(rest)

    def pooled(self) -> tuple[Array, Array]:
        return self.scores[self.presence], self.scores[~self.presence]

    def by_run(self) -> "list[Coins]":
        return [self]

    def errors(self, threshold: float) -> RunErrors:
        """Returns each run's errors of guessing that a canary is in where its score is above a threshold."""
        guessed = self.scores > threshold
        misses = (self.presence & ~guessed).sum(1).astype(np.float64)
        alarms = (~self.presence & guessed).sum(1).astype(np.float64)
        # A canary is in, or out, in half of the runs: errors count twice.
        return RunErrors(misses, alarms, *self.canaries, scale_in=2.0, scale_out=2.0, paired=True)

    def limits(self, error: float) -> CoinLimits | None:
        """Returns Clopper-Pearson limits of the probability that a coin is in; None for the game's own coins.

        The limits take a tenth of the error that a bound is allowed.
        """
        from audit.laws import intervals  # loads SciPy

        if not self.given:
            return None
        spent = _LIMITS_SHARE * error
        total = int(self.presence.sum())
        low, high = intervals.clopper_pearson(total, self.presence.size, 1 - spent)
        return CoinLimits(float(low), float(high), error - spent)

    def _select(self, places: Places) -> "Coins":
        """Returns the scores and bits at places (runs, K), which index the flattened arrays.

        Failed scores are not counted anew: only notes on all runs tell their number.
        """
        return Coins(self.scores.flat[places], self.presence.flat[places], self.given)


class Sets(NamedTuple):
    """The scores of two sets of runs.

    Attributes:
      inserted: (n, K), of canaries that are in.
      fresh: (m, M), of canaries that were never inserted, in other runs.
      failed: how many scores are those of runs that failed.
    """

    inserted: Array
    fresh: Array
    failed: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        return self.inserted.shape[1], self.fresh.shape[1]

    @property
    def shape(self) -> Shape:
        return _find_shape(self.canaries)

    def count_scores(self) -> str:
        return f"{self.inserted.size + self.fresh.size:,} scores"

    def rows(self) -> list[Rows]:
        return [
            Rows("the scores in", "row", self.inserted),
            Rows("the scores out", "row", self.fresh),
        ]

    def __str__(self) -> str:
        return f"{_describe_shape(self.inserted)} inserted, {_describe_shape(self.fresh)} left out"

    def split(self) -> tuple["Sets", "Sets"]:
        """Returns (pilot, rest): runs of each world drawn at random, by a hash of ranks, and the others."""
        # Scores are ranked among those of both worlds; each world's runs get a canonical order.
        ranks = _ranks(np.concatenate(self.pooled()))
        keys_in = ranks[: self.inserted.size].reshape(self.inserted.shape)
        keys_out = ranks[self.inserted.size :].reshape(self.fresh.shape)
        places_in = _canonical_places(keys_in)
        places_out = _canonical_places(keys_out)

        rng = np.random.default_rng(hash_ranks(keys_in.flat[places_in], keys_out.flat[places_out]))
        pilot_in, rest_in = _draw_pilot(places_in, rng)
        pilot_out, rest_out = _draw_pilot(places_out, rng)
        pilot = Sets(self.inserted.flat[pilot_in], self.fresh.flat[pilot_out])
        rest = Sets(self.inserted.flat[rest_in], self.fresh.flat[rest_out])
        return pilot, rest

    def pooled(self) -> tuple[Array, Array]:
        return self.inserted.ravel(), self.fresh.ravel()

    def by_run(self) -> list[Coins]:
        inserted = Coins(self.inserted, np.ones(self.inserted.shape, bool))
        fresh = Coins(self.fresh, np.zeros(self.fresh.shape, bool))
        return [inserted, fresh]

    def errors(self, threshold: float) -> RunErrors:
        misses = (self.inserted <= threshold).sum(1).astype(np.float64)
        alarms = (self.fresh > threshold).sum(1).astype(np.float64)
        return RunErrors(misses, alarms, *self.canaries, scale_in=1.0, scale_out=1.0, paired=False)

    def limits(self, error: float) -> None:
        return None


class Fresh(NamedTuple):
    """Scores of canaries that every run drew afresh, whose law is known where they are out.

    They are cosines of uniform directions; or they stand for ranks among fresh draws
    (`audit.evidence.ranks`), each as the cosine in RANK_DIMENSION dimensions that is exceeded as often as the
    rank is reached.

    Attributes:
      cosines: (R, K), a row a run.
      presence: (R, K), mostly true everywhere.
      dimension: d, of the directions.
      plain: whether no cosine uses anything of the other canaries' directions. Ranks do: those of a run share
        its fresh draws.
      given: whether scores and directions are a caller's, and not of this library's own training runs.
      in_order: whether rows are in the order in which runs were begun.
      draws: M, the fresh draws among which a run's canaries are ranked; 0 where scores are cosines.
    """

    cosines: Array
    presence: NDArray[np.bool_]
    dimension: int
    plain: bool = False
    given: bool = False
    in_order: bool = True
    draws: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        return self.cosines.shape[1], self.cosines.shape[1]

    @property
    def shape(self) -> Shape:
        return Shape.FRESH_DIRECTIONS

    @property
    def unit(self) -> str:
        """Returns the word for its scores, "cosines" or "ranks"."""
        return "ranks" if self.draws else "cosines"

    def count_scores(self) -> str:
        """Returns how many cosines or ranks there are, in words."""
        return f"{self.cosines.size:,} {self.unit}"

    def rows(self) -> list[Rows]:
        """Returns the cosines or ranks as a single table, a row a run."""
        return [Rows(f"the {self.unit}", "row", self.cosines)]

    def __str__(self) -> str:
        """Returns its runs and canaries in words, "10 runs with 256 fresh directions each, all in"."""
        runs, canaries = self.cosines.shape
        run_word = "run" if runs == 1 else "runs"
        world = "all in" if self.presence.all() else "in by coins"
        if self.draws:
            canary_word = "canary" if canaries == 1 else "canaries"
            among = f"ranked among {self.draws:,} fresh draws"
            return f"{runs:,} {run_word} with {canaries:,} {canary_word} each, {among}, {world}"
        direction_word = "direction" if canaries == 1 else "directions"
        return f"{runs:,} {run_word} with {canaries:,} fresh {direction_word} each, {world}"

    def is_out(self) -> NDArray[np.bool_]:
        """Returns which canaries (R, K) were out, in runs that did not fail."""
        return np.asarray(~self.presence & (self.cosines != FAILED))

    def out(self) -> Array:
        """Returns the cosines (n,) of canaries that were out, in runs that did not fail."""
        out: Array = self.cosines[self.is_out()]
        return out

    def ranks(self) -> Places:
        """Returns the ranks (R, K) that the cosines stand for, from 1, the highest score, to M + 1.

        Rank r is stored as the cosine that is exceeded with probability r / (M + 1).
        """
        from audit.laws import cosine_law  # loads SciPy

        tails = np.exp(cosine_law.log_sf(self.cosines, self.dimension))
        ranks: Places = np.rint(tails * (self.draws + 1)).astype(np.int64)
        return ranks

    @property
    def failed(self) -> int:
        """Returns how many of a caller's cosines are those of runs that failed."""
        if not self.given:
            return 0
        return int(np.count_nonzero(self.cosines == FAILED))

    def pooled(self) -> tuple[Array, Array]:
        """Returns (scores in, scores out), flat: cosines of canaries in, and quantiles of the law without.

        There are as many quantiles as cosines, but at least 1,000 and at most 20,000. Of ranks both are
        normal deviates of the middle of each rank's probability.
        """
        from audit.laws import cosine_law  # loads SciPy

        cosines_in = self.cosines[self.presence]
        number = min(max(cosines_in.size, _LEAST_QUANTILES), _MOST_QUANTILES)
        levels = (np.arange(number) + 0.5) / number
        if self.draws:
            ranks_in = self.ranks()[self.presence]
            # The rank of a canary that is out is uniform; deviates ascend as ranks fall.
            ranks_out = np.ceil(levels[::-1] * (self.draws + 1)).astype(np.int64)
            return self._deviates(ranks_in), self._deviates(ranks_out)
        return cosines_in, cosine_law.quantile(levels, self.dimension)

    def _deviates(self, ranks: Places) -> Array:
        """Returns normal deviates that are exceeded as often as a rank is bettered, half of equal ranks too.

        That is with probability (rank - 1/2) / (M + 1), of the shape of `ranks`.
        """
        from scipy import special

        return np.asarray(-special.ndtri((ranks - 0.5) / (self.draws + 1)))


def make_coins(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """Returns scores and coins, checked except for the coins' fairness.

    Args:
      scores: (R, K), NaN for a run that failed.
      presence: (R, K), 1 where the canary was in.

    Raises:
      InputError: shapes that differ, bits that are none, or scores that are all equal or mostly NaN.
    """
    values = _matrix("", scores)
    bits = floats("the bits of presence", presence)
    fits = bits.shape == values.shape
    require(fits, f"presence has shape {bits.shape}, scores {values.shape}: give one bit each")
    require(np.isin(bits, (0, 1)).all(), "presence holds values that are no bits: give 0 or 1")
    present = bits.astype(bool)
    require(
        present.any() and not present.all(),
        "presence puts all canaries into one world: both are needed",
    )
    failed = _count_failed(values)
    (ranked,) = rank_all(values)
    require_apart(ranked)
    return Coins(ranked, present, failed=failed)


def make_sets(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """Returns a caller's scores by world, checked.

    Args:
      scores_in: (n,) or (n, K), of runs with the canary; NaN for a run that failed.
      scores_out: (m,) or (m, M), of runs without it.

    Raises:
      InputError: no array of scores, bits of presence in the place of the scores out, more than half of the
        scores NaN, or, of several canaries a run, scores that are all equal.
    """
    array_in = _array("in", scores_in)
    array_out = _array("out", scores_out)
    is_bits = np.asarray(scores_out).dtype.kind == "b" and np.asarray(scores_in).dtype.kind != "b"
    _require_no_presence(array_in, array_out, is_bits)

    matrix_in = _as_matrix(array_in)
    matrix_out = _as_matrix(array_out)
    has_several_canaries = matrix_in.shape[1] != 1 or matrix_out.shape[1] != 1
    if has_several_canaries:
        _matrix("in ", matrix_in)
        _matrix("out ", matrix_out)
    failed = _count_failed(matrix_in, matrix_out)
    ranked_in, ranked_out = rank_all(matrix_in, matrix_out)
    design = Sets(ranked_in, ranked_out, failed)
    if has_several_canaries:
        require_apart(np.concatenate(design.pooled()))
    return design


def _as_matrix(scores: Array) -> Array:
    """Returns scores (runs,) or (runs, canaries) as (runs, canaries)."""
    if scores.ndim == 2:
        return scores
    return scores[:, None]


def _array(world: str, values: ArrayLike) -> Array:
    """Returns a world's scores, (runs,) or (runs, canaries), as float64; raises InputError for another shape.

    `world` is "in" or "out", for messages.
    """
    array = floats(f"the scores {world}", values)
    fits = array.ndim in (1, 2)
    require(fits, f"the scores {world} have shape {array.shape}: give (runs,) or (runs, canaries)")
    return array


def _require_no_presence(scores_in: Array, scores_out: Array, is_bits: bool) -> None:
    """Raises InputError where the scores out are bits of presence, which say which scores are in.

    Args:
      scores_in: what the caller gave as scores in, of any shape.
      scores_out: what the caller gave as scores out.
      is_bits: whether only the scores out had the type bool.
    """
    bits_alone = (
        np.array_equal(np.unique(scores_out), (0, 1)) and scores_in.shape == scores_out.shape
    )
    scores_differ = not np.isin(scores_in, (0, 1)).all()
    looks_like_presence = is_bits or (bits_alone and scores_differ)
    fix = "give the scores of each world, scores[presence] and scores[~presence]"
    require(
        not looks_like_presence, f"the scores out are only 0 and 1, a presence and no scores: {fix}"
    )


def _count_failed(*worlds: Array) -> int:
    """Counts the NaN in all of these scores; raises InputError where they are more than half."""
    failed = sum(int(np.isnan(world).sum()) for world in worlds)
    total = sum(world.size for world in worlds)
    require_few_failed("scores", failed, total)
    return failed


def single(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """Returns scores of a single canary a run, (n,) in and (m,) out, as columns, without checks."""
    return Sets(
        np.asarray(scores_in, np.float64)[:, None], np.asarray(scores_out, np.float64)[:, None]
    )


def _describe_shape(scores: Array) -> str:
    """Returns how many runs and canaries scores (runs, canaries) are of, in words."""
    runs, canaries = scores.shape
    canary_word = "canary" if canaries == 1 else "canaries"
    return f"{runs:,} runs with {canaries:,} {canary_word}"


def _matrix(name: str, values: ArrayLike) -> Array:
    """Returns scores (runs, canaries) as float64; raises InputError for another shape.

    `name` comes before "scores" in messages: "in ", "out " or nothing.
    """
    array = floats(f"the {name}scores", values)
    fits = array.ndim == 2 and array.size > 0
    require(fits, f"the {name}scores have shape {array.shape}: give (runs, canaries)")
    return array


def _ranks(scores: Array) -> Places:
    """Returns each score's place among the distinct scores, ascending from 0, in the scores' shape."""
    places = np.unique(scores, return_inverse=True)[1]
    return places.astype(np.int64).reshape(scores.shape)


def _canonical_places(keys: Places) -> Places:
    """Returns places (R, K), indices into the flattened keys, that put keys (R, K) into a canonical order.

    It does not depend on the order of runs, or of the canaries of a run: each row's keys ascend, and rows are
    in lexicographic order.
    """
    columns = np.argsort(keys, axis=1, kind="stable")
    sorted_rows = np.take_along_axis(keys, columns, axis=1)
    rows = np.lexsort(sorted_rows.T[::-1])  # whose last key is the first to sort by
    # Row r and column c are at r K + c of the flattened keys.
    return np.asarray(rows[:, None] * keys.shape[1] + columns[rows])


def _draw_pilot(places: Places, rng: np.random.Generator) -> tuple[Places, Places]:
    """Draws the pilot, a twentieth of the runs but at least 4, on which a threshold is chosen.

    Args:
      places: (R, K), indices into the flattened scores, a row a run.
      rng: the randomness.

    Returns:
      (places of the pilot's runs, places of the other runs).

    Raises:
      InputError: fewer than 8 runs.
    """
    runs = len(places)
    require(
        runs >= 2 * _LEAST_PILOT,
        f"there are {runs} runs of a kind: give at least {2 * _LEAST_PILOT}",
    )
    order = rng.permutation(runs)
    size = max(round(_PILOT_SHARE * runs), _LEAST_PILOT)
    return places[order[:size]], places[order[size:]]
