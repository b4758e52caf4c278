"""Scores in, scores out -> a Bound with what it assumes, or an Estimate with why it is no bound.

Three estimators, from what the paper prints to what needs no assumption. Each takes the scores of
independent runs with the canary (in) and without (out), higher meaning "in":

    in_sample        hidden-state paper, Algorithm 4: the best of all thresholds on the scores that it
                     then counts. An Estimate, not a confidence bound: with 5,000 scores it exceeds the
                     truth in up to 15% of audits where 5% is claimed, and more with more (Errata H10);
                     `noise_floor` says what it shows where nothing leaks.
    if_gaussian      the threshold's rank from a twentieth, one exact test on the rest (`exact`).
    assumption_free  likewise from an eighth, against the trade-off function of (epsilon, delta)-DP itself.

The first two give mu; their epsilon follows if the mechanism's trade-off curve is Gaussian (Errata H11).

A bound is a function of the two sets of scores, and of their ranks alone: neither the order of rows nor an
increasing map of all scores changes it. One split into pilot and rest would leave the threshold to chance.
So 21 splits are drawn, by a hash of the ranks, and the bound is the median of their bounds, each at 11/21 of
the error. Where the median is above the truth, 11 of 21 tests reject a true hypothesis at once, which by
Markov's inequality has at most the probability `error`, however the splits depend on each other (Meinshausen,
Meier and Buehlmann, "p-Values for high-dimensional regression", 2009).
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.arrays import floats, hash_ranks, rank_all, require_apart, require_few_failed
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
_LEAST_PILOT = 20  # scores of a world, where half of them are not fewer
_SPLITS = 21  # into a pilot and the rest
_REJECTING = 11  # of the splits: the median
_PILOT_IF_GAUSSIAN = 0.05  # of the scores
_PILOT = 0.125  # of the scores, for `assumption_free`
# Neighbouring thresholds differ in a 300th of the scores outside of them, or in one score.
_FINENESS = 300
_COUNTS = 1_000_000  # thresholds that a noise floor tries in all its simulated audits together
_MOST_AUDITS = 1000  # that simulate a noise floor


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
        """Returns the finding as a line.

        Args:
          sign: between a name and its value, ">=" or "=".
          level: the word before the confidence.
          end: the last words.
        """
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
      false_positive_rate: the exact rate at the threshold, where a law gives it and no count does.
      path: (R,) the bound after each run, where it holds at any number of runs; else empty.
    """

    assumes: Assumption
    holds: bool = True
    counted: str = ""
    false_positive_rate: float | None = None
    path: tuple[float, ...] = ()

    def __str__(self) -> str:
        refuted = "" if self.holds else ", which the scores refute"
        return self._line(">=", "confidence", f"assumes {self.assumes}{refuted}")


@dataclasses.dataclass(frozen=True)
class Estimate(_Counted):
    """A value that is no confidence bound; no verdict rests on it.

    Attributes:
      confidence: the level that its formula uses, which it does not keep.
      caveat: why it is no bound.
      standard_error: of epsilon, if canaries are independent; NaN where there is none.
      noise_floor: its values where nothing leaks, of as many audits as were simulated for it; of none, its
        method knows them.
    """

    caveat: str
    standard_error: float = math.nan
    false_positive_rate: ClassVar[None] = None  # as of a bound that counts it: never known exactly
    noise_floor: NoiseFloor = NOT_SIMULATED

    def __str__(self) -> str:
        return self._line("=", "level", self.caveat)


Finding = Bound | Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreMethod(Method):
    """A method of a single canary a run; compute: (scores in, out, delta, confidence) -> its finding."""

    compute: Callable[[ArrayLike, ArrayLike, float, float], Finding]


def findings(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float
) -> list[Finding]:
    """Returns every method's finding; raises InputError for scores or parameters that none can use."""
    return [method.compute(scores_in, scores_out, delta, confidence) for method in METHODS.values()]


def in_sample(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float
) -> Estimate:
    """Returns the estimate of the hidden-state paper (Algorithm 4), which is no confidence bound.

    It is the largest mu over thresholds at every midpoint between scores, each with two-sided Clopper-Pearson
    limits of both error rates, and the epsilon of that mu.

    Args:
      scores_in: (n,) of runs with the canary, higher meaning in.
      scores_out: (m,) of runs without it.
      delta: of epsilon.
      confidence: of each rate's limits.
    """
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    threshold, mu = thresholds.best_empirical(
        s_in, s_out, conversions.mu_from_rates, (1 - confidence) / 2
    )
    mu = max(mu, 0.0)
    errors = thresholds.count_errors(s_in, s_out, np.array([threshold]))
    return Estimate(
        method=IN_SAMPLE,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        threshold=threshold,
        false_positives=int(errors.false_positives[0]),
        false_negatives=int(errors.false_negatives[0]),
        n_in=len(s_in),
        n_out=len(s_out),
        caveat=_IN_SAMPLE.text,
    )


def if_gaussian(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float
) -> Bound:
    """Returns the lower bound on mu by an exact test (see `exact`), and epsilon of a Gaussian curve.

    The threshold's rank is chosen on a pilot of a twentieth of the scores; the others are counted.

    Args:
      scores_in: (n,) of runs with the canary, higher meaning in.
      scores_out: (m,) of runs without it.
      delta: of epsilon.
      confidence: of the bound.
    """
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    mu, counts, threshold = _test_splits(
        s_in, s_out, exact.GAUSSIAN, _PILOT_IF_GAUSSIAN, confidence
    )
    epsilon = conversions.epsilon_from_mu(mu, delta)
    return Bound(
        IF_GAUSSIAN, epsilon, mu, delta, confidence, threshold, *counts, assumes=GAUSSIAN_CURVE
    )


def assumption_free(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float
) -> Bound:
    """Returns the lower bound on epsilon by an exact test of (epsilon, delta)-DP itself (see `exact`).

    It holds whatever the trade-off curve; n scores a world prove at most about log(2 n / 3). The threshold's
    rank is chosen on a pilot of an eighth of the scores; the others are counted.

    Args:
      scores_in: (n,) of runs with the canary, higher meaning in.
      scores_out: (m,) of runs without it.
      delta: of epsilon.
      confidence: of the bound.
    """
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    epsilon, counts, threshold = _test_splits(
        s_in, s_out, exact.approximate_dp(delta), _PILOT, confidence
    )
    return Bound(
        ASSUMPTION_FREE, epsilon, None, delta, confidence, threshold, *counts, assumes=NOTHING
    )


@functools.lru_cache(maxsize=64)
def noise_floor(n_in: int, n_out: int, delta: float, confidence: float) -> NoiseFloor:
    """Returns `in_sample`'s values on n_in and n_out scores where nothing leaks, by the same draws each time.

    Scores of a mechanism that leaks nothing are exchangeable: every order of the two worlds is as likely. An
    estimate that looks at ranks alone then has the same law for any distribution of scores, and random orders
    draw from it. Ties take thresholds away, so that with ties it shows less.

    Every threshold of up to 600 scores is tried; of more, only every few in the middle. 1,000 audits of few
    scores are simulated, 458 of 5,000 scores. Raises InputError for values out of range.
    """
    require(n_in >= 1 and n_out >= 1, f"there are {n_in} and {n_out} scores: both worlds need some")
    conversions.require_levels(delta, confidence)
    groups = _cut_into_groups(n_in + n_out)
    audits = min(_COUNTS // len(groups), _MOST_AUDITS)
    mus = _simulate_mus(n_in, n_out, groups, audits, (1 - confidence) / 2)
    epsilons = np.array([conversions.epsilon_from_mu(max(mu, 0.0), delta) for mu in mus])
    quantile = float(np.quantile(epsilons, 0.95))
    positive_share = float(np.mean(epsilons > 0))
    return NoiseFloor(float(epsilons.mean()), quantile, positive_share, audits)


def _cut_into_groups(n: int) -> NDArray[np.int64]:
    """Cuts n ordered scores into groups, between which thresholds are tried, and returns the groups' sizes.

    A group has a 300th (_FINENESS) of the scores between it and the nearer end, and at least 1. Of 2,000
    scores, groups from either end have 1 score up to 600, 2 up to 900, then 3: 1,568 groups.
    """
    half = n // 2
    lower_groups = []
    outside = 0
    while outside < half:
        size = min(max(outside // _FINENESS, 1), half - outside)
        lower_groups.append(size)
        outside += size
    # An odd number leaves a score in the middle.
    middle_group = [1] * (n % 2)
    return np.array(lower_groups + middle_group + lower_groups[::-1])


def _simulate_mus(
    n_in: int, n_out: int, groups: NDArray[np.int64], audits: int, error: float
) -> Array:
    """Simulates the mu of `in_sample`, (audits,), where scores in and out are ordered at random.

    Args:
      n_in: how many scores are in.
      n_out: how many are out.
      groups: sizes of the groups of ordered scores between which thresholds are tried, lowest first.
      audits: how many are simulated.
      error: of each rate's upper limit.
    """
    # mu at a threshold is z_in at its number of false negatives plus z_out at its number of false positives.
    z_in = -special.ndtri(intervals.upper_limits(n_in, error))
    z_out = -special.ndtri(intervals.upper_limits(n_out, error))
    rng = np.random.default_rng(0)
    # How many scores of each group are in (audits, groups): n_in of all scores, at random.
    present = rng.multivariate_hypergeometric(groups, n_in, size=audits, method="marginals")
    false_negatives = np.cumsum(present[:, :-1], axis=1)
    true_negatives = np.cumsum(groups[:-1]) - false_negatives
    false_positives = n_out - true_negatives
    mus = z_out[false_positives] + z_in[false_negatives]
    return np.asarray(mus.max(axis=1, initial=-np.inf))


def most_provable(n_in: int, n_out: int, delta: float, confidence: float) -> float:
    """Returns the epsilon that `assumption_free` proves of perfectly separated scores, its largest."""
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
    """Returns a caller's scores as flat float64 arrays (in, out), all finite.

    Infinite scores become numbers beyond all finite scores, and NaN of runs that failed, in either world,
    numbers below all others; finite scores stay as they are.

    Raises:
      InputError: for what no estimator can use: an empty world, scores that are all equal, and too many runs
        that failed.
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
    """Returns a caller's scores as flat float64 arrays (in, out); raises InputError unless all are finite.

    It is for methods that compute with the scores themselves, and not only with their order.
    """
    checked_in, checked_out = check_scores(scores_in, scores_out)
    for name, scores in (("in", scores_in), ("out", scores_out)):
        values = floats(f"the {name} scores", scores)
        bad = int(np.count_nonzero(~np.isfinite(values)))
        failed = f"{bad} of {values.size} {name} scores are not finite: a run failed"
        require(not bad, f"{failed}, and this method looks at more than ranks")
    return checked_in, checked_out


class _OrderedScores(NamedTuple):
    """Two worlds by their distinct scores.

    Attributes:
      values: the distinct scores, ascending.
      counts_in, counts_out: how many scores in and out equal each of them.
    """

    values: Array
    counts_in: NDArray[np.int64]
    counts_out: NDArray[np.int64]

    def seed(self) -> int:
        """Returns a hash of the ranks as a seed, which no order of runs and no unit of scores changes."""
        return hash_ranks(self.counts_in, self.counts_out)

    def places(self, rng: np.random.Generator) -> Worlds:
        """Returns the places (in, out) of all scores among the distinct values, ascending, as floats.

        They stand for the scores in tests that look at ranks alone. Ties get a random part below 1 each,
        which puts them in random order.
        """
        places = np.arange(len(self.values), dtype=np.float64)
        places_in = np.repeat(places, self.counts_in)
        places_out = np.repeat(places, self.counts_out)
        has_ties = (self.counts_in + self.counts_out).max() > 1
        if has_ties:
            places_in = np.sort(places_in + rng.random(len(places_in)))
            places_out = np.sort(places_out + rng.random(len(places_out)))
        return places_in, places_out


def _order_scores(scores_in: Array, scores_out: Array) -> _OrderedScores:
    """Counts scores (n,) in and (m,) out by their distinct values."""
    values, places = np.unique(np.concatenate([scores_in, scores_out]), return_inverse=True)
    counts_in = np.bincount(places[: len(scores_in)], minlength=len(values))
    counts_out = np.bincount(places[len(scores_in) :], minlength=len(values))
    return _OrderedScores(values, counts_in, counts_out)


def _draw_pilot(world: Array, share: float, rng: np.random.Generator) -> Worlds:
    """Splits a world's scores at random into (pilot, rest), each in the order that the scores have.

    Args:
      world: (n,) the scores.
      share: of the scores, in the pilot, which has 20 at least, or else half of them.
      rng: the randomness.
    """
    size = min(max(round(share * len(world)), _LEAST_PILOT), len(world) // 2)
    chosen = np.zeros(len(world), bool)
    chosen[rng.choice(len(world), size, replace=False, shuffle=False)] = True
    return world[chosen], world[~chosen]


def _test_splits(
    scores_in: Array, scores_out: Array, family: exact.Family, share: float, confidence: float
) -> tuple[float, _Counts, float]:
    """Returns (parameter, counts, threshold) of the split whose test decides.

    The scores are split 21 times into a pilot, which chooses the rank of a threshold, and the rest, whose
    errors at the threshold are tested. The bound is the median of the splits' bounds: where it exceeds the
    truth, 11 tests at 11/21 of the error reject at once, which by Markov's inequality has at most the
    probability of the error.

    Args:
      scores_in, scores_out: checked scores.
      family: the trade-off functions that are tested.
      share: of the scores, in the pilot of each split.
      confidence: of the bound on the family's parameter.
    """
    ordered = _order_scores(scores_in, scores_out)
    error = (1 - confidence) * _REJECTING / _SPLITS
    tests = []
    results = []
    for root in np.random.SeedSequence(ordered.seed()).spawn(_SPLITS):
        rng = np.random.default_rng(root)
        places_in, places_out = ordered.places(rng)
        pilot_in, rest_in = _draw_pilot(places_in, share, rng)
        pilot_out, rest_out = _draw_pilot(places_out, share, rng)
        n_in = len(rest_in)
        n_out = len(rest_out)

        chosen = thresholds.choose_on_pilot(
            (pilot_in, pilot_out),
            n_in,
            n_out,
            family.parameter,
            error,
            any_shape=family is not exact.GAUSSIAN,
        )
        if chosen.is_in:
            place = rest_in[chosen.rank - 1]
            false_positives = n_out - int(np.searchsorted(rest_out, place))
            counts = _Counts(false_positives, chosen.rank - 1, n_in, n_out)
            tests.append(exact.Counts(chosen.rank, n_in, false_positives, n_out))
        else:
            place = rest_out[-chosen.rank]
            false_negatives = int(np.searchsorted(rest_in, place, side="right"))
            counts = _Counts(chosen.rank - 1, false_negatives, n_in, n_out)
            tests.append(exact.Counts(chosen.rank, n_out, false_negatives, n_in))
        threshold = float(ordered.values[int(place)])
        results.append((counts, threshold))

    # The whole error: the function itself takes 11/21 of it for each test.
    parameter, deciding = exact.lower_bound(family, tests, _REJECTING, 1 - confidence)
    counts, threshold = results[deciding]
    return parameter, counts, threshold
