"""Bounds and estimates from independent runs, each with (in) or without (out) one canary.

`if_gaussian` and `in_sample` return a mu, which determines epsilon if the trade-off curve is Gaussian (Errata
H11 of experiments/hidden_state/README.md). A bound depends only on the ranks of the scores.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from audit.evidence.arrays import Array, hash_ranks
from audit.laws import conversions, intervals
from audit.methods import exact, thresholds
from audit.methods.method import (
    GAUSSIAN_CURVE,
    NO_BOUND,
    NOT_SIMULATED,
    NOTHING,
    ONE_CANARY,
    Assumption,
    Method,
    NoiseFloor,
)

IN_SAMPLE = "in_sample"
IF_GAUSSIAN, ASSUMPTION_FREE = ONE_CANARY
_SPLITS = 21  # into a pilot and the rest
_REJECTING = 11  # splits that must reject, more than half


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Counted:
    """The fields shared by bounds and estimates.

    Attributes:
      epsilon: The bound or estimate of epsilon at `delta`.
      mu: The mu that implies epsilon; None if the method computes epsilon directly.
      threshold: The threshold on the scores; None if the method does not use one.
      false_positives, false_negatives: The numbers of errors at the threshold, or 0 if we do not count them.
      n_in, n_out: The numbers of counted scores.
    """

    method: str
    epsilon: float
    mu: float | None = None
    delta: float
    confidence: float
    threshold: float | None = None
    false_positives: int = 0
    false_negatives: int = 0
    n_in: int
    n_out: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound(_Counted):
    """A lower bound with a confidence level.

    Attributes:
      assumes: The bound's assumption.
      holds: False if the scores refute the assumption; the bound is then invalid.
      counted: A description of the counts, if they are not the errors at a threshold.
      false_positive_rate: The exact rate at the threshold, if known without counting.
      path: (R,) the bound after each run, if it is valid after any number of runs; else empty.
    """

    assumes: Assumption
    holds: bool = True
    counted: str = ""
    false_positive_rate: float | None = None
    path: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate(_Counted):
    """A value that is not a confidence bound and never decides a verdict.

    Attributes:
      confidence: The nominal confidence level in the formula, which the estimate does not guarantee.
      caveat: Why the estimate is not a bound.
      standard_error: The standard error of epsilon for independent canaries; NaN if it is unknown.
      noise_floor: The estimate's values without any leakage; NOT_SIMULATED for most methods.
    """

    caveat: str
    standard_error: float = math.nan
    false_positive_rate: ClassVar[None] = None  # never known exactly
    noise_floor: NoiseFloor = NOT_SIMULATED


Finding = Bound | Estimate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreMethod(Method):
    """A method for one canary per run, or for fresh directions.

    Attributes:
      compute: Maps (in-scores, out-scores, delta, confidence), or (design, delta, confidence), to the
        method's bound or estimate.
    """

    compute: Callable[..., Any]


def findings(scores_in: Array, scores_out: Array, delta: float, confidence: float) -> list[Finding]:
    """Returns every method's bound or estimate from finite in-scores (n,) and out-scores (m,)."""
    return [method.compute(scores_in, scores_out, delta, confidence) for method in METHODS.values()]


def in_sample(scores_in: Array, scores_out: Array, delta: float, confidence: float) -> Estimate:
    """Returns the estimate from the hidden-state paper (Algorithm 4), which is not a confidence bound.

    For each threshold, we compute the mu of the Gaussian trade-off curve through the Clopper-Pearson upper
    limits on both error rates (Errata H12 of experiments/hidden_state/README.md). We return the largest mu (0
    if all are negative) and its epsilon. Thresholds are midpoints between neighbouring distinct scores. To
    save time, we use at most 200,000 thresholds.

    The scores must not all be equal. `confidence` is the level of the two-sided limits on each error rate.
    """
    distinct = np.unique(np.concatenate([scores_in, scores_out]))
    points = distinct[:-1] / 2 + distinct[1:] / 2  # the sum of two scores might overflow
    points = points[:: 1 + len(points) // 200_000]
    false_positives, false_negatives = thresholds.count_errors(scores_in, scores_out, points)
    error = (1 - confidence) / 2
    fpr = intervals.clopper_pearson_upper(false_positives, len(scores_out), error)
    fnr = intervals.clopper_pearson_upper(false_negatives, len(scores_in), error)
    mus = conversions.mu_from_rates(fpr, fnr)
    best = np.argmax(mus)
    mu = max(float(mus[best]), 0.0)
    return Estimate(
        method=IN_SAMPLE,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        threshold=float(points[best]),
        false_positives=int(false_positives[best]),
        false_negatives=int(false_negatives[best]),
        n_in=len(scores_in),
        n_out=len(scores_out),
        caveat=_IN_SAMPLE.text,
    )


def if_gaussian(scores_in: Array, scores_out: Array, delta: float, confidence: float) -> Bound:
    """Returns the lower bound on mu from exact tests (see `exact`), and the epsilon of its Gaussian curve.

    In-scores have shape (n,), out-scores (m,). We report the median bound of 21 random splits.
    """
    mu, errors = _test_splits(scores_in, scores_out, exact.GAUSSIAN, confidence)
    return Bound(
        method=IF_GAUSSIAN,
        epsilon=conversions.epsilon_from_mu(mu, delta),
        mu=mu,
        delta=delta,
        confidence=confidence,
        **errors,
        assumes=GAUSSIAN_CURVE,
    )


def assumption_free(scores_in: Array, scores_out: Array, delta: float, confidence: float) -> Bound:
    """Returns the lower bound on epsilon from exact tests of (epsilon, delta)-DP itself (see `exact`).

    The bound is valid for any trade-off curve. In-scores have shape (n,), out-scores (m,). We report the
    median bound of 21 random splits (`_test_splits`). For n = m, the bound is at most about log(n / 2), since
    n scores without errors prove a rate below about 2 / n.
    """
    epsilon, errors = _test_splits(scores_in, scores_out, exact.approximate_dp(delta), confidence)
    return Bound(
        method=ASSUMPTION_FREE,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        **errors,
        assumes=NOTHING,
    )


def find_most_provable(n_in: int, n_out: int, family: exact.Family, confidence: float) -> float:
    """Returns the largest possible bound on a family's parameter (mu or epsilon) with this many scores.

    A test reaches this bound only if it makes no errors at the lowest in-score or the highest out-score. Even
    perfectly separated scores may prove less, because we choose the threshold using a pilot.
    """
    rest_in = n_in - _find_pilot_size(n_in, family)
    rest_out = n_out - _find_pilot_size(n_out, family)
    # Without errors, the tests of all 21 splits are the same, so we run only one. At least 11 of the 21 tests
    # must reject, so each may use this level (Markov's inequality).
    level = (1 - confidence) * _REJECTING / _SPLITS
    bounds = []
    for scores, trials in ((rest_in, rest_out), (rest_out, rest_in)):
        perfect = exact.Counts(rank=1, scores=scores, errors=0, trials=trials)
        bound, _ = exact.lower_bound(family, [perfect], rejecting=1, error=level)
        bounds.append(bound)
    return max(bounds)


_IN_SAMPLE = Assumption(
    "in-sample: not a confidence bound",
    NO_BOUND,
    "not a confidence bound: the best of all thresholds, chosen using the same scores",
    "in-sample, best of all thresholds; not a confidence bound",
)
METHODS = {
    IN_SAMPLE: ScoreMethod(
        name=IN_SAMPLE,
        compute=in_sample,
        assumes=_IN_SAMPLE,
        legend="in-sample, as in the paper (no bound)",
    ),
    IF_GAUSSIAN: ScoreMethod(
        name=IF_GAUSSIAN,
        compute=if_gaussian,
        assumes=GAUSSIAN_CURVE,
        legend="if the curve is Gaussian: one exact test",
    ),
    ASSUMPTION_FREE: ScoreMethod(
        name=ASSUMPTION_FREE, compute=assumption_free, assumes=NOTHING, legend="assumption-free"
    ),
}


def _find_pilot_size(scores: int, family: exact.Family) -> int:
    """Returns how many of a world's scores go into the pilot.

    The bound is valid for any number. A Gaussian curve needs a smaller pilot, because we only estimate mu.
    """
    fraction = 0.05 if family is exact.GAUSSIAN else 0.125
    return min(max(round(fraction * scores), 20), scores // 2)


def _test_splits(
    scores_in: Array, scores_out: Array, family: exact.Family, confidence: float
) -> tuple[float, dict[str, Any]]:
    """Returns the bound on a family's parameter from 21 splits of in-scores (n,) and out-scores (m,).

    In each split, we choose a threshold using the pilot, count its errors in the rest, and test parameters at
    11/21 of the total error. To reduce the effect of chance, we require that 11 tests reject a parameter. On
    average, at most 11 (1 - confidence) tests reject a true parameter. So by Markov's inequality, 11 tests
    reject it with probability at most 1 - confidence. Source: Meinshausen, Meier and Buehlmann, "p-Values for
    high-dimensional regression", 2009.

    Returns:
      (the bound; the threshold, the errors and the numbers of scores in the deciding split)
    """
    # We replace scores with their indices among the distinct scores, so neither the order of runs nor the
    # unit of scores matters.
    pooled = np.concatenate([scores_in, scores_out])
    distinct, indices = np.unique(pooled, return_inverse=True)
    worlds = np.split(indices, [len(scores_in)])  # the in-scores, then the out-scores
    ordered = [np.sort(world).astype(float) for world in worlds]
    counts = [np.bincount(world, minlength=len(distinct)) for world in worlds]
    level = (1 - confidence) * _REJECTING / _SPLITS  # of each split's test
    splits = []
    # The seed depends only on these indices, so the same scores always give the same splits.
    for seed in np.random.SeedSequence(hash_ranks(*counts)).spawn(_SPLITS):
        rng = np.random.default_rng(seed)
        drawn = ordered
        if len(distinct) < len(pooled):
            # Adding random fractions to indices puts equal scores in random order.
            drawn = [np.sort(world + rng.random(len(world))) for world in ordered]
        splits.append(_split_and_count(drawn[0], drawn[1], distinct, family, level, rng))

    tests, errors = zip(*splits, strict=True)
    parameter, deciding = exact.lower_bound(family, tests, _REJECTING, 1 - confidence)
    return parameter, errors[deciding]


def _split_and_count(
    indices_in: Array,
    indices_out: Array,
    distinct: Array,
    family: exact.Family,
    level: float,
    rng: np.random.Generator,
) -> tuple[exact.Counts, dict[str, Any]]:
    """Splits scores at random, chooses a threshold's rank r using the pilot, and counts errors in the rest.

    The threshold is the r-th lowest in-score or the r-th highest out-score of the rest. Since r - 1 scores of
    the threshold's world are always errors, we test the errors in the other world.

    In-scores (n,) and out-scores (m,) are given as ascending indices in `distinct`, plus fractions below 1
    that order equal scores. Returns (the input of the exact test, the errors as fields of `Bound`).
    """
    pilot_in, rest_in = _split(indices_in, family, rng)
    pilot_out, rest_out = _split(indices_out, family, rng)
    n_in = len(rest_in)
    n_out = len(rest_out)
    is_in, rank = thresholds.choose_on_pilot(pilot_in, pilot_out, n_in, n_out, family, level)
    threshold = rest_in[rank - 1] if is_in else rest_out[-rank]
    false_negatives = int(np.searchsorted(rest_in, threshold))
    false_positives = n_out - int(np.searchsorted(rest_out, threshold, side="right"))
    if is_in:
        test = exact.Counts(rank=rank, scores=n_in, errors=false_positives, trials=n_out)
    else:
        test = exact.Counts(rank=rank, scores=n_out, errors=false_negatives, trials=n_in)
    return test, {
        "threshold": float(distinct[int(threshold)]),  # `int` removes the fraction
        "false_negatives": false_negatives,
        "false_positives": false_positives,
        "n_in": n_in,
        "n_out": n_out,
    }


def _split(world: Array, family: exact.Family, rng: np.random.Generator) -> tuple[Array, Array]:
    """Splits a world's scores at random into (pilot, rest), without changing their order."""
    chosen = np.zeros(len(world), bool)
    size = _find_pilot_size(len(world), family)
    chosen[rng.choice(len(world), size, replace=False, shuffle=False)] = True
    return world[chosen], world[~chosen]
