"""Scores in, scores out -> a Bound that says what it stands on, or an Estimate that says it is none.

Three estimators, from what the paper prints to what needs no assumption. Each takes the scores of
independent runs with the canary (in) and without (out), higher meaning "in":

    in_sample        hidden-state paper, Algorithm 4: the best of all thresholds on the scores that it
                     then counts. An Estimate, not a confidence bound: with 5,000 scores it exceeds the
                     truth in up to 15% of audits where 5% is said, and more with more (Errata H10);
                     `noise_floor` says what it shows where nothing leaks.
    if_gaussian      the threshold's rank from a twentieth, one exact test on the rest (`exact`).
    assumption_free  likewise from an eighth, against the trade-off function of (epsilon, delta)-DP itself.

The first two give mu; their epsilon follows if the mechanism's trade-off curve is Gaussian (Errata H11).

A bound is a function of the two sets of scores, and of their ranks alone: neither the order of rows nor an
increasing map of all scores changes it. One split into pilot and rest would leave the threshold to chance.
So 21 splits are drawn, by a hash of the ranks, and the bound is the median of theirs, each at 11/21 of the
error. Where the median is above the truth, 11 of 21 tests reject a true hypothesis at once, which by Markov's
inequality has at most the probability `error`, however the splits depend on each other (Meinshausen, Meier
and Buehlmann, "p-Values for high-dimensional regression", 2009).
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.arrays import floats, rank_all, require_apart, require_few_failed
from audit.laws import conversions, intervals
from audit.methods import exact, thresholds
from audit.methods.method import (
    GAUSSIAN_CURVE,
    NO_BOUND,
    NOT_SIMULATED,
    NOTHING,
    ONE_CANARY,
    Assumption,
    Mark,
    Method,
    NoiseFloor,
)

Array = NDArray[np.float64]
Worlds = tuple[Array, Array]

IN_SAMPLE = "in_sample"
IF_GAUSSIAN, ASSUMPTION_FREE = ONE_CANARY
_LEAST_PILOT, _SPLITS, _REJECTING = 20, 21, 11
_PILOT_IF_GAUSSIAN, _PILOT = 0.05, 0.125  # shares of the scores
_FINENESS = 300  # neighbouring thresholds differ in a 300th of the scores outside of them, or in one
_COUNTS = 1_000_000  # of all audits together that simulate a noise floor
_MOST = 1000  # audits


class _Counts(NamedTuple):
    """The errors of a threshold, and the scores that they are among."""

    false_positives: int
    false_negatives: int
    n_in: int
    n_out: int


@dataclasses.dataclass(frozen=True)
class _Counted:
    """The common part of a bound and an estimate.

    Attributes:
      method: the name of its method.
      epsilon: at delta.
      mu: None where the method gives epsilon directly.
      delta, confidence: its levels.
      threshold: of the scores; None where the method has none.
      false_positives, false_negatives: errors of the threshold.
      n_in, n_out: how many scores were counted.
    """

    method: str
    epsilon: float
    mu: float | None
    delta: float
    confidence: float
    threshold: float | None
    false_positives: int
    false_negatives: int
    n_in: int
    n_out: int

    def _line(self, sign: str, level: str, end: str) -> str:
        mu = "" if self.mu is None else f", mu {sign} {self.mu:.3f}"
        where = f"at delta {self.delta:g}, {level} {self.confidence:g}; {end}"
        return f"{self.method}: epsilon {sign} {self.epsilon:.3f}{mu} {where}"


@dataclasses.dataclass(frozen=True)
class Bound(_Counted):
    """A lower bound at a confidence.

    Attributes:
      assumes: what it assumes.
      holds: whether the scores did not refute that; a bound that does not hold proves nothing.
      counted: in words, what it counted, where that is no threshold's errors.
    """

    assumes: Assumption
    holds: bool = True
    counted: str = ""

    def __str__(self) -> str:
        refuted = "" if self.holds else ", which the scores refute"
        return self._line(">=", "confidence", f"assumes {self.assumes}{refuted}")


@dataclasses.dataclass(frozen=True)
class Estimate(_Counted):
    """A value that is no confidence bound; no verdict rests on it.

    Attributes:
      confidence: the level that its formula uses, which it does not keep.
      caveat: why it is no bound.
      standard_error: of epsilon, if canaries are independent; NaN where it is not known.
      noise_floor: its values where nothing leaks, of as many audits as were simulated for it; of none, its
        method knows them.
    """

    caveat: str
    standard_error: float = math.nan
    noise_floor: NoiseFloor = NOT_SIMULATED

    def __str__(self) -> str:
        return self._line("=", "level", self.caveat)


Finding = Bound | Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreMethod(Method):
    """A method of one canary a run; compute: (scores in, scores out, delta, confidence) -> its finding."""

    compute: Callable[[ArrayLike, ArrayLike, float, float], Finding]


def findings(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> list[Finding]:
    """Every method's finding; raises InputError for scores or parameters that none can use."""
    return [method.compute(scores_in, scores_out, delta, confidence) for method in METHODS.values()]


def in_sample(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Estimate:
    """The paper's estimator (Algorithm 4): every midpoint as threshold, two-sided Clopper-Pearson."""
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    threshold, mu = thresholds.best_empirical(s_in, s_out, conversions.mu_from_rates, (1 - confidence) / 2)
    errors = thresholds.count_errors(s_in, s_out, np.array([threshold]))
    counts = _Counts(int(errors.false_positives[0]), int(errors.false_negatives[0]), len(s_in), len(s_out))
    found = (IN_SAMPLE, conversions.epsilon_from_mu(max(mu, 0.0), delta), max(mu, 0.0), delta, confidence)
    return Estimate(*found, threshold, *counts, caveat=_IN_SAMPLE.text)


def if_gaussian(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Bound:
    """A threshold's rank from a pilot, mu from one exact test (see `exact`)."""
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    mu, counts, threshold = _tested(s_in, s_out, exact.GAUSSIAN, _PILOT_IF_GAUSSIAN, confidence)
    found = (IF_GAUSSIAN, conversions.epsilon_from_mu(mu, delta), mu, delta, confidence, threshold)
    return Bound(*found, *counts, assumes=GAUSSIAN_CURVE)


def assumption_free(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Bound:
    """A threshold's rank from a pilot, epsilon from one exact test against (epsilon, delta)-DP itself.

    It holds whatever the trade-off curve; n scores a world prove at most about
    log(2 n / 3).
    """
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    epsilon, counts, threshold = _tested(s_in, s_out, exact.approximate_dp(delta), _PILOT, confidence)
    return Bound(ASSUMPTION_FREE, epsilon, None, delta, confidence, threshold, *counts, assumes=NOTHING)


@functools.lru_cache(maxsize=64)
def noise_floor(n_in: int, n_out: int, delta: float, confidence: float) -> NoiseFloor:
    """`in_sample`'s values on n_in and n_out scores where nothing leaks, by the same draws each time.

    Scores of a mechanism that leaks nothing are exchangeable: every order of the two worlds is as likely. An
    estimate that looks at ranks alone then has one law, whatever the scores' distribution, and random orders
    draw from it. Ties take thresholds away, so that with ties it shows less.

    Every threshold of up to 600 scores is tried, of more only every so many in the middle; in 1,000 audits
    of few scores, 458 of 5,000. Raises InputError for values out of range.
    """
    require(n_in >= 1 and n_out >= 1, f"there are {n_in} and {n_out} scores: both worlds need some")
    conversions.require_levels(delta, confidence)
    groups = _groups(n_in + n_out)
    audits = min(_COUNTS // len(groups), _MOST)
    mus = _largest_mus(n_in, n_out, groups, audits, (1 - confidence) / 2)
    epsilons = np.array([conversions.epsilon_from_mu(max(mu, 0.0), delta) for mu in mus])
    quantile = float(np.quantile(epsilons, 0.95))
    return NoiseFloor(float(epsilons.mean()), quantile, float(np.mean(epsilons > 0)), audits)


def _groups(n: int) -> NDArray[np.int64]:
    """How many ordered scores lie between the thresholds that are tried: one in the tails."""
    sizes, outside = [], 0
    while outside < n // 2:
        sizes.append(min(max(outside // _FINENESS, 1), n // 2 - outside))
        outside += sizes[-1]
    return np.array([*sizes, *[1] * (n % 2), *sizes[::-1]])


def _largest_mus(n_in: int, n_out: int, groups: NDArray[np.int64], audits: int, error: float) -> Array:
    """Algorithm 4's mu, (audits,), where scores in and out are ordered at random."""
    z_in = -special.ndtri(intervals.upper_limits(n_in, error))
    z_out, rng = -special.ndtri(intervals.upper_limits(n_out, error)), np.random.default_rng(0)
    present = rng.multivariate_hypergeometric(groups, n_in, size=audits, method="marginals")
    false_negatives = np.cumsum(present[:, :-1], axis=1)
    false_positives = n_out - (np.cumsum(groups[:-1]) - false_negatives)
    return np.asarray((z_out[false_positives] + z_in[false_negatives]).max(axis=1, initial=-np.inf))


def most_provable(n_in: int, n_out: int, delta: float, confidence: float) -> float:
    """epsilon that `assumption_free` proves with so many scores where no guess is wrong: the most it can."""
    return assumption_free(np.ones(n_in), np.zeros(n_out), delta, confidence).epsilon


_IN_SAMPLE = Assumption(
    "in-sample: not a confidence bound",
    NO_BOUND,
    "no confidence bound: the best of all thresholds on the scores that it then bounds",
    "in-sample, the best of all thresholds; not a confidence bound",
)
_RECORDS = (
    ScoreMethod(
        name=IN_SAMPLE,
        compute=in_sample,
        assumes=_IN_SAMPLE,
        label="in-sample",
        legend="in-sample, as the paper (no bound)",
        noise_floor=noise_floor,
        mark=Mark("vermilion", "o", 5, 0, filled=False),
    ),
    ScoreMethod(
        name=IF_GAUSSIAN,
        compute=if_gaussian,
        assumes=GAUSSIAN_CURVE,
        label="if Gaussian",
        legend="if the curve is Gaussian: one exact test",
        mark=Mark("blue", "o", 6.5, 1, line=1.6),
    ),
    ScoreMethod(
        name=ASSUMPTION_FREE,
        compute=assumption_free,
        assumes=NOTHING,
        label="assumption-free",
        legend="assumption-free",
        mark=Mark("orange", "^", 5.5, 3, outline="0.3"),
    ),
)
METHODS = {record.name: record for record in _RECORDS}


def check_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Array, Array]:
    """Returns the scores as flat float64 arrays, in which infinite ones and those of runs that failed (NaN)
    keep their rank (`arrays.rank_all`).

    Raises InputError for what no estimator can use: an empty world, scores that are all equal, and too many
    runs that failed.
    """
    arrays = []
    for name, scores in (("in", scores_in), ("out", scores_out)):
        array = floats(f"the {name} scores", scores)
        require(array.ndim == 1, f"the {name} scores have shape {array.shape}: give a flat array")
        require(array.size, f"there are no {name} scores: both worlds need runs")
        arrays.append(array)
    pooled = np.concatenate(arrays)
    require_few_failed("scores", int(np.isnan(pooled).sum()), pooled.size)
    ranked_in, ranked_out = rank_all(*arrays)
    require_apart(np.concatenate([ranked_in, ranked_out]))
    return ranked_in, ranked_out


def check_finite_scores(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Array, Array]:
    """Returns the scores as `check_scores`; raises InputError for infinite ones and NaN too, of which methods
    that look at more than ranks can make nothing."""
    ranked_in, ranked_out = check_scores(scores_in, scores_out)
    for name, scores in (("in", scores_in), ("out", scores_out)):
        values = floats(f"the {name} scores", scores)
        bad = int(np.count_nonzero(~np.isfinite(values)))
        failed = f"{bad} of {values.size} {name} scores are not finite: a run failed"
        require(not bad, f"{failed}, and this method looks at more than ranks")
    return ranked_in, ranked_out


class _Ordered(NamedTuple):
    """Two worlds by their distinct scores, ascending, and how many scores in and out equal each."""

    values: Array
    counts_in: NDArray[np.int64]
    counts_out: NDArray[np.int64]

    def seed(self) -> int:
        """A hash of the ranks: the same in any order and any unit, as good as random between audits."""
        counts = self.counts_in.astype("<i8").tobytes() + b"/" + self.counts_out.astype("<i8").tobytes()
        return int.from_bytes(hashlib.sha256(counts).digest(), "big")

    def places(self, rng: np.random.Generator) -> Worlds:
        """Ascending places (in, out) among the distinct scores, those of equal scores in random order."""
        where = np.arange(len(self.values), dtype=np.float64)
        worlds = [np.repeat(where, counts) for counts in (self.counts_in, self.counts_out)]
        if (self.counts_in + self.counts_out).max() > 1:
            worlds = [np.sort(world + rng.random(len(world))) for world in worlds]
        return worlds[0], worlds[1]


def _ordered(scores_in: Array, scores_out: Array) -> _Ordered:
    values, places = np.unique(np.concatenate([scores_in, scores_out]), return_inverse=True)
    split = places[: len(scores_in)], places[len(scores_in) :]
    return _Ordered(values, *(np.bincount(world, minlength=len(values)) for world in split))


def _drawn(world: Array, share: float, rng: np.random.Generator) -> Worlds:
    """(pilot, rest) of a world: a random part of it, and the others, in their order."""
    size = min(max(round(share * len(world)), _LEAST_PILOT), len(world) // 2)
    chosen = np.zeros(len(world), bool)
    chosen[rng.choice(len(world), size, replace=False, shuffle=False)] = True
    return world[chosen], world[~chosen]


def _tested(
    scores_in: Array, scores_out: Array, family: exact.Family, share: float, confidence: float
) -> tuple[float, _Counts, float]:
    """(parameter, counts, threshold): of all splits' tests, those of the one that decides."""
    ordered, error = _ordered(scores_in, scores_out), (1 - confidence) * _REJECTING / _SPLITS
    roots, tests, found = np.random.SeedSequence(ordered.seed()).spawn(_SPLITS), [], []
    for root in roots:
        rng = np.random.default_rng(root)
        drawn = [_drawn(world, share, rng) for world in ordered.places(rng)]
        pilot, (rest_in, rest_out) = (drawn[0][0], drawn[1][0]), (drawn[0][1], drawn[1][1])
        sizes = len(rest_in), len(rest_out)
        chosen = thresholds.choose_on_pilot(
            pilot, *sizes, family.parameter, error, family is not exact.GAUSSIAN
        )
        if chosen.is_in:
            place = rest_in[chosen.rank - 1]
            errors = sizes[1] - int(np.searchsorted(rest_out, place))
            counts = _Counts(errors, chosen.rank - 1, *sizes)
            tests.append(exact.Counts(chosen.rank, sizes[0], errors, sizes[1]))
        else:
            place = rest_out[-chosen.rank]
            errors = int(np.searchsorted(rest_in, place, side="right"))
            counts = _Counts(chosen.rank - 1, errors, *sizes)
            tests.append(exact.Counts(chosen.rank, sizes[1], errors, sizes[0]))
        found.append((counts, float(ordered.values[int(place)])))
    parameter, decides = exact.lower_bound(family, tests, _REJECTING, 1 - confidence)
    return parameter, *found[decides]
