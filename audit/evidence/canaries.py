"""Scores of many canaries a run, and the errors of a threshold, run by run.

Two designs. In both each run is an independent training with K canaries drawn from one distribution, and a
threshold's guess on a canary looks at that canary alone.

Sets (LiDP paper, Section 3): K canaries are inserted in the runs of one set; runs of another, with K - 1 of
    them, score canaries that were never inserted. A run of the first gives misses, one of the second false
    alarms. By exchangeability the left-out canary, given the others, is a fresh draw.

Coins: every canary of every run is in with probability 1/2, independently, so that every run gives both. Fix
    a canary k and condition on all other coins: the run with k in and the run with k out are neighbours, and
    the others are random data. So FNR_k and FPR_k, its error rates given its coin, satisfy the trade-off
    inequality FNR_k >= f(FPR_k), and 2 / K sum_k coin_k miss_k has the mean of FNR_k over k, whatever ties
    the canaries of a run together. The share of misses among those that happened to be in has not: it divides
    by a number that the run's other coins change.

Coins that a caller gives may be fair by every test and not in truth: for one probability p of all coins the
    factors are 1 / p and 1 / (1 - p) in place of 2. With exact limits of p from all coins they are 1 / p_low
    and 1 / (1 - p_high), so that both rates are overestimated, and the limits take a tenth of the error.

Averages. If a mechanism is f-DP, FNR >= f(FPR) for every pair of neighbours and every rejection region.
Average both sides over random canaries, data and regions: f is convex, so E[FNR] >= E[f(FPR)] >= f(E[FPR]).
Upper limits of the two average error rates therefore bound the privacy parameter from below, as for one
canary.
"""

import hashlib
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.errors import require
from audit.evidence.arrays import floats, rank_all, require_apart, require_few_failed

Array = NDArray[np.float64]
Places = NDArray[np.int64]
_PILOT_SHARE, _LEAST_PILOT = 0.05, 4  # of the runs of a set
_LIMITS_SHARE = 0.1  # of the error, for the limits of a caller's coins
_LEAST_QUANTILES, _MOST_QUANTILES = 1_000, 20_000
_TINY = 1e-12
FAILED = -1.0  # the cosine that stands for one of a run that failed


class RunErrors(NamedTuple):
    """The errors of a threshold: misses (n,) and false alarms (m,), a run each, of so many canaries.

    scale_in, scale_out: the mean of scale_in * misses / canaries_in is the average false-negative rate, or
        above it, that of scale_out * alarms / canaries_out the average false-positive rate.
    paired: whether misses and alarms are of the same runs, which are independent of each other.
    """

    misses: Array
    alarms: Array
    canaries_in: int
    canaries_out: int
    scale_in: float
    scale_out: float
    paired: bool

    def rates(self) -> tuple[Array, Array]:
        """Each run's unbiased (false-positive rate (m,), false-negative rate (n,)), at most the scale."""
        alarms, misses = self.scale_out * self.alarms, self.scale_in * self.misses
        return alarms / self.canaries_out, misses / self.canaries_in

    def guesses(self) -> tuple[int, int]:
        """How many guesses stand behind (misses, false alarms), times the scale."""
        return len(self.misses) * self.canaries_in, len(self.alarms) * self.canaries_out

    def smoothed(self) -> list[float]:
        """The average [false-positive rate, false-negative rate], half an error more and one guess more."""
        of_in, of_out = self.guesses()
        both = (self.scale_out, self.alarms, of_out), (self.scale_in, self.misses, of_in)
        return [(scale * errors.sum() + 0.5) / (guesses + 1) for scale, errors, guesses in both]


class Counted(NamedTuple):
    """The errors of a threshold in the pilot that it was chosen on, and in the runs that are counted."""

    threshold: float
    pilot: RunErrors
    rest: RunErrors


class Design(Protocol):
    """The scores of an audit with many canaries a run, in either design.

    canaries: how many a run scores that are in, at most, and that are out. failed: how many scores are those
    of runs that failed.
    """

    @property
    def canaries(self) -> tuple[int, int]: ...

    @property
    def failed(self) -> int: ...

    def __str__(self) -> str:
        """Its runs and canaries in words, "400 runs with 64 canaries each"."""

    def split(self) -> tuple["Design", "Design"]:
        """(pilot, rest): disjoint runs, drawn by a hash of the ranks, so that the order of runs, that of the
        canaries of a run and an increasing map of scores change nothing; raises InputError for few runs."""

    def pooled(self) -> tuple[Array, Array]:
        """(scores in, scores out), flat."""

    def by_run(self) -> "list[Coins]":
        """Scores and presence (runs, canaries) of each set of runs."""

    def errors(self, threshold: float) -> RunErrors:
        """The errors of guessing "in" above a threshold."""

    def limits(self, error: float) -> "CoinLimits | None":
        """What a caller's coins leave open; None where all is known of them."""


class CoinLimits(NamedTuple):
    """Limits (low, high) of the probability that a coin is in, and the error that they leave to a bound."""

    low: float
    high: float
    error: float

    def widened(self, errors: RunErrors) -> RunErrors:
        """The errors with rates that are at least the true ones on average, if the limits hold."""
        return errors._replace(scale_in=1 / max(self.low, _TINY), scale_out=1 / max(1 - self.high, _TINY))


class Coins(NamedTuple):
    """Scores (R, K) float64 and presence (R, K) bool, each canary in with probability 1/2.

    given: whether a caller says so, of whose coins nothing else is known. failed: how many scores are those
    of runs that failed.
    """

    scores: Array
    presence: NDArray[np.bool_]
    given: bool = False
    failed: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        return self.scores.shape[1], self.scores.shape[1]

    def __str__(self) -> str:
        return f"{_counted(self.scores)} each, in by a coin of its own"

    def split(self) -> tuple["Coins", "Coins"]:
        keys = 2 * _ranks(self.scores) + self.presence
        places = _canonical(keys)
        pilot, rest = _drawn(places, _generator(keys.flat[places]))
        return self._of(pilot), self._of(rest)

    def pooled(self) -> tuple[Array, Array]:
        return self.scores[self.presence], self.scores[~self.presence]

    def by_run(self) -> "list[Coins]":
        return [self]

    def errors(self, threshold: float) -> RunErrors:
        guessed = self.scores > threshold
        misses = (self.presence & ~guessed).sum(1).astype(np.float64)
        alarms = (~self.presence & guessed).sum(1).astype(np.float64)
        return RunErrors(misses, alarms, *self.canaries, 2.0, 2.0, True)

    def limits(self, error: float) -> CoinLimits | None:
        """Clopper-Pearson's of one probability of all coins, if a caller gave them: a tenth of the error."""
        from audit.laws import intervals  # loads SciPy

        if not self.given:
            return None
        spent, total = _LIMITS_SHARE * error, int(self.presence.sum())
        low, high = intervals.clopper_pearson(total, self.presence.size, 1 - spent)
        return CoinLimits(float(low), float(high), error - spent)

    def _of(self, places: Places) -> "Coins":
        return Coins(self.scores.flat[places], self.presence.flat[places], self.given)


class Sets(NamedTuple):
    """Scores of inserted canaries (n, K) and, of other runs, of fresh ones (m, M); failed: how many of them
    are those of runs that failed."""

    inserted: Array
    fresh: Array
    failed: int = 0

    @property
    def canaries(self) -> tuple[int, int]:
        return self.inserted.shape[1], self.fresh.shape[1]

    def __str__(self) -> str:
        return f"{_counted(self.inserted)} inserted, {_counted(self.fresh)} left out"

    def split(self) -> tuple["Sets", "Sets"]:
        ranks = np.split(_ranks(np.concatenate(self.pooled())), [self.inserted.size])
        keys = ranks[0].reshape(self.inserted.shape), ranks[1].reshape(self.fresh.shape)
        places = [_canonical(world) for world in keys]
        rng = _generator(*(world.flat[ordered] for world, ordered in zip(keys, places, strict=True)))
        (pilot_in, rest_in), (pilot_out, rest_out) = (_drawn(ordered, rng) for ordered in places)
        pilot = Sets(self.inserted.flat[pilot_in], self.fresh.flat[pilot_out])
        return pilot, Sets(self.inserted.flat[rest_in], self.fresh.flat[rest_out])

    def pooled(self) -> tuple[Array, Array]:
        return self.inserted.ravel(), self.fresh.ravel()

    def by_run(self) -> list[Coins]:
        inserted = Coins(self.inserted, np.ones(self.inserted.shape, bool))
        return [inserted, Coins(self.fresh, np.zeros(self.fresh.shape, bool))]

    def errors(self, threshold: float) -> RunErrors:
        misses = (self.inserted <= threshold).sum(1).astype(np.float64)
        alarms = (self.fresh > threshold).sum(1).astype(np.float64)
        return RunErrors(misses, alarms, *self.canaries, 1.0, 1.0, False)

    def limits(self, error: float) -> None:
        return None


class Fresh(NamedTuple):
    """Cosines of canaries that are uniform directions, drawn afresh for every run.

    Attributes:
      cosines: (R, K), a row a run.
      presence: (R, K), mostly true everywhere.
      dimension: d, of the directions.
      plain: whether no cosine uses anything of the other canaries' directions.
      given: whether a caller says all that.
      in_order: whether rows stand in the order in which runs were begun.
    """

    cosines: Array
    presence: NDArray[np.bool_]
    dimension: int
    plain: bool = False
    given: bool = False
    in_order: bool = True

    @property
    def canaries(self) -> tuple[int, int]:
        return self.cosines.shape[1], self.cosines.shape[1]

    def __str__(self) -> str:
        runs, each = self.cosines.shape
        drawn = "direction" if each == 1 else "directions"
        world = "all in" if self.presence.all() else "in by coins"
        return f"{runs:,} {'run' if runs == 1 else 'runs'} with {each:,} fresh {drawn} each, {world}"

    def out(self) -> Array:
        """Returns the cosines (n,) of canaries that were out, in runs that did not fail."""
        out: Array = self.cosines[~self.presence & (self.cosines != FAILED)]
        return out

    @property
    def failed(self) -> int:
        """How many of a caller's cosines are those of runs that failed."""
        return int(np.count_nonzero(self.cosines == FAILED)) if self.given else 0

    def pooled(self) -> tuple[Array, Array]:
        """(cosines in, flat; as many quantiles of the law where the canary is out, up to _MOST_QUANTILES)."""
        from audit.laws import cosine_law  # loads SciPy

        found = self.cosines[self.presence]
        number = min(max(found.size, _LEAST_QUANTILES), _MOST_QUANTILES)
        return found, cosine_law.quantile((np.arange(number) + 0.5) / number, self.dimension)


def coins(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """Returns the checked design of a caller's coins.

    Raises InputError for shapes, values or bits that fit no audit, for bits that fair independent coins do
    not give, and for scores of which too many are NaN, those of runs that failed.
    """
    from audit.evidence import fair_coins  # loads SciPy

    design = of_own_coins(scores, presence)
    fair_coins.require_fair(design.presence)
    return design._replace(given=True)


def of_own_coins(scores: ArrayLike, presence: ArrayLike) -> Coins:
    """Returns the checked design of coins that an audit's game drew; raises InputError for what fits none."""
    values = _matrix("", scores)
    bits = floats("the bits of presence", presence)
    fits = bits.shape == values.shape
    require(fits, f"presence has shape {bits.shape}, scores {values.shape}: give one bit each")
    require(np.isin(bits, (0, 1)).all(), "presence holds values that are no bits: give 0 or 1")
    present = bits.astype(bool)
    require(present.any() and not present.all(), "presence puts all canaries into one world: both are needed")
    (ranked,) = rank_all(values)
    require_apart(ranked)
    return Coins(ranked, present, failed=_count_failed(values))


def sets(inserted: ArrayLike, fresh: ArrayLike) -> Sets:
    """Returns the checked design of two sets of runs; raises InputError for what fits no audit."""
    worlds = _matrix("in ", inserted), _matrix("out ", fresh)
    ranked_in, ranked_out = rank_all(*worlds)
    design = Sets(ranked_in, ranked_out, _count_failed(*worlds))
    require_apart(np.concatenate(design.pooled()))
    return design


def of_arrays(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """Returns the design of a caller's scores by world, (runs,) or (runs, canaries).

    Raises InputError for what is no array of scores, for a presence in the place of the scores out, and of
    several canaries a run for all that `sets` refuses.
    """
    worlds = _array("in", scores_in), _array("out", scores_out)
    is_bits = np.asarray(scores_out).dtype.kind == "b" and np.asarray(scores_in).dtype.kind != "b"
    _require_scores(*worlds, is_bits)
    columns = [world if world.ndim == 2 else world[:, None] for world in worlds]
    if any(column.shape[1] != 1 for column in columns):
        return sets(*columns)
    ranked_in, ranked_out = rank_all(*columns)
    return Sets(ranked_in, ranked_out, _count_failed(*columns))


def _array(world: str, values: ArrayLike) -> Array:
    array = floats(f"the scores {world}", values)
    fits = array.ndim in (1, 2)
    require(fits, f"the scores {world} have shape {array.shape}: give (runs,) or (runs, canaries)")
    return array


def _require_scores(scores_in: Array, scores_out: Array, is_bits: bool) -> None:
    """Raises InputError where the scores out are bits that say which of the scores in are in."""
    bits_alone = np.array_equal(np.unique(scores_out), (0, 1)) and scores_in.shape == scores_out.shape
    scores_differ = not np.isin(scores_in, (0, 1)).all()
    looks_like_presence = is_bits or (bits_alone and scores_differ)
    fix = "give the scores of each world, scores[presence] and scores[~presence]"
    require(not looks_like_presence, f"the scores out are only 0 and 1, a presence and no scores: {fix}")


def _count_failed(*worlds: Array) -> int:
    """Returns how many scores are NaN; raises InputError where they are too many."""
    failed = sum(int(np.isnan(world).sum()) for world in worlds)
    require_few_failed("scores", failed, sum(world.size for world in worlds))
    return failed


def single(scores_in: ArrayLike, scores_out: ArrayLike) -> Sets:
    """The design of one canary a run, from flat scores (n,) and (m,), which are not checked."""
    return Sets(np.asarray(scores_in, np.float64)[:, None], np.asarray(scores_out, np.float64)[:, None])


def _counted(scores: Array) -> str:
    runs, canaries = scores.shape
    return f"{runs:,} runs with {canaries:,} {'canary' if canaries == 1 else 'canaries'}"


def _matrix(name: str, values: ArrayLike) -> Array:
    array = floats(f"the {name}scores", values)
    fits = array.ndim == 2 and array.size > 0
    require(fits, f"the {name}scores have shape {array.shape}: give (runs, canaries)")
    return array


def _ranks(scores: Array) -> Places:
    """Places among the distinct scores, in the scores' shape."""
    return np.unique(scores, return_inverse=True)[1].astype(np.int64).reshape(scores.shape)


def _canonical(keys: Places) -> Places:
    """Flat places (R, K) of keys (R, K): each row's keys ascending, and rows in lexicographic order."""
    columns = np.argsort(keys, axis=1, kind="stable")
    rows = np.lexsort(np.take_along_axis(keys, columns, axis=1).T[::-1])
    return np.asarray(rows[:, None] * keys.shape[1] + columns[rows])


def _generator(*worlds: Places) -> np.random.Generator:
    """A generator seeded by a hash of ordered keys: as good as random between audits."""
    digest = hashlib.sha256(b"/".join(world.astype("<i8").tobytes() for world in worlds)).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def _drawn(places: Places, rng: np.random.Generator) -> tuple[Places, Places]:
    """(places of the pilot's runs, those of the other runs)."""
    runs = len(places)
    require(runs >= 2 * _LEAST_PILOT, f"there are {runs} runs of a kind: give at least {2 * _LEAST_PILOT}")
    order, size = rng.permutation(runs), max(round(_PILOT_SHARE * runs), _LEAST_PILOT)
    return places[order[:size]], places[order[size:]]
