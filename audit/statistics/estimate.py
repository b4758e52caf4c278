"""Scores in, scores out -> a Bound that says what it stands on, or an Estimate that says it is none.

Four estimators, from what the paper prints to what needs no assumption. Each takes the scores of
independent runs with the canary (in) and without (out), higher meaning "in":

    in_sample        hidden-state paper, Algorithm 4: the best of all thresholds on the scores that it
                     then counts. An Estimate, not a confidence bound: with 5,000 scores it exceeds the
                     truth in up to 15% of audits where 5% is said, and more with more (Errata H10);
                     `noise_floor` says what it shows where nothing leaks.
    held_out         the threshold from one half, two Clopper-Pearson limits on the other.
    if_gaussian      the threshold from a twentieth, one exact test of both counts on the rest.
    assumption_free  likewise, against the trade-off function of (epsilon, delta)-DP itself.

The first three give mu; their epsilon follows if the mechanism's trade-off curve is Gaussian (Errata H11).
Rates are bounded from above, for a bound on mu from below (Errata H12).
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions, exact, intervals, thresholds
from audit.statistics.arrays import floats, require_apart
from audit.statistics.method import (
    GAUSSIAN_CURVE,
    NO_BOUND,
    NOTHING,
    ONE_CANARY,
    Assumption,
    Mark,
    Method,
    NoiseFloor,
)

Array = NDArray[np.float64]
Worlds = tuple[Array, Array]

IN_SAMPLE, HELD_OUT = "in_sample", "held_out"
IF_GAUSSIAN, ASSUMPTION_FREE = ONE_CANARY
_HELD_OUT_SHARE, _PILOT_SHARE, _LEAST_PILOT = 0.5, 0.05, 20
_FINENESS = 300  # neighbouring thresholds differ in a 300th of the scores outside of them, or in one
_COUNTS = 1_000_000  # of all audits together that simulate a noise floor
_MOST = 1000  # audits


@dataclasses.dataclass(frozen=True)
class _Counted:
    """The common part of a bound and an estimate: epsilon at delta, mu or None where the method gives epsilon
    directly, and the scores that were counted, n_in + n_out of them, at the threshold."""

    method: str
    epsilon: float
    mu: float | None
    delta: float
    confidence: float
    threshold: float
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
    """A lower bound at a confidence, and what it assumes."""

    assumes: Assumption

    def __str__(self) -> str:
        return self._line(">=", "confidence", f"assumes {self.assumes}")


@dataclasses.dataclass(frozen=True)
class Estimate(_Counted):
    """A value that is no confidence bound, and in `caveat` why; no verdict rests on it.

    `confidence` is the level that its formula uses, which it does not keep.
    """

    caveat: str

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
    counts, epsilon = _count(s_in, s_out, threshold), conversions.epsilon_from_mu(max(mu, 0.0), delta)
    found = (IN_SAMPLE, epsilon, max(mu, 0.0), delta, confidence, threshold)
    return Estimate(*found, *counts, caveat=_IN_SAMPLE.text)


def held_out(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Bound:
    """The threshold from one half, bounded on the other with two Clopper-Pearson limits."""
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    (choose_in, choose_out), (rest_in, rest_out) = _split(s_in, s_out, _HELD_OUT_SHARE)
    error = (1 - confidence) / 2
    threshold = thresholds.choose_on_pilot(
        choose_in, choose_out, len(rest_in), len(rest_out), conversions.mu_from_rates, error
    )
    counts = _count(rest_in, rest_out, threshold)
    fpr = intervals.upper_limits(counts.n_out, error)[counts.false_positives]
    fnr = intervals.upper_limits(counts.n_in, error)[counts.false_negatives]
    mu = float(conversions.mu_from_rates(fpr, fnr))
    return _gaussian(HELD_OUT, mu, counts, threshold, delta, confidence)


def if_gaussian(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Bound:
    """A threshold from a pilot, mu from one exact test of both counts (see `exact`)."""
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    mu, counts, threshold = _tested(s_in, s_out, exact.GAUSSIAN, confidence)
    return _gaussian(IF_GAUSSIAN, mu, counts, threshold, delta, confidence)


def assumption_free(scores_in: ArrayLike, scores_out: ArrayLike, delta: float, confidence: float) -> Bound:
    """A threshold from a pilot, epsilon from one exact test against (epsilon, delta)-DP itself.

    It holds whatever the trade-off curve; n scores a world prove at most about
    log(2 n / 3).
    """
    conversions.require_levels(delta, confidence)
    s_in, s_out = check_scores(scores_in, scores_out)
    epsilon, counts, threshold = _tested(s_in, s_out, exact.approximate_dp(delta), confidence)
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
        name=HELD_OUT,
        compute=held_out,
        assumes=GAUSSIAN_CURVE,
        label="held-out",
        legend="if the curve is Gaussian: held-out threshold",
        mark=Mark("green", "s", 4.5, 2),
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
    """The scores as flat float64 arrays; raises InputError for what no estimator can use: an empty
    world, values that are not finite, scores that are all equal."""
    arrays = []
    for name, scores in (("in", scores_in), ("out", scores_out)):
        array = floats(f"the {name} scores", scores)
        require(array.ndim == 1, f"the {name} scores have shape {array.shape}: give a flat array")
        require(array.size, f"there are no {name} scores: both worlds need runs")
        bad = np.flatnonzero(~np.isfinite(array))
        first = bad[0] if bad.size else 0
        found = f"{bad.size} of {array.size} {name} scores are not finite (the first is number {first})"
        require(not bad.size, f"{found}: a model diverged, lower its learning rate or drop the run")
        arrays.append(array)
    require_apart(np.concatenate(arrays))
    return arrays[0], arrays[1]


def _split(scores_in: Array, scores_out: Array, share: float) -> tuple[Worlds, Worlds]:
    """(chosen on, counted), each (in, out): a random share of each world.

    The order of a file proves nothing, it may come sorted, and a fixed shuffle of sorted scores would
    count fixed ranks. So the shuffle's seed is a hash of the ranks as they come: the same for the same
    scores in any unit, and as good as random between audits. What is left unprotected is a file of few
    distinct values that comes sorted: its ranks hardly vary, so shuffle such scores before.
    """
    values, worlds = np.unique(np.concatenate([scores_in, scores_out])), [scores_in, scores_out]
    ranks = [np.searchsorted(values, world).astype("<i8").tobytes() for world in worlds]
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(b"/".join(ranks)).digest(), "big"))
    chosen, counted = [], []
    for world in worlds:
        size = min(max(round(share * len(world)), _LEAST_PILOT), len(world) // 2)
        order = rng.permutation(len(world))
        chosen.append(world[order[:size]])
        counted.append(world[order[size:]])
    return (chosen[0], chosen[1]), (counted[0], counted[1])


def _count(scores_in: Array, scores_out: Array, threshold: float) -> exact.Counts:
    errors = thresholds.count_errors(scores_in, scores_out, np.array([threshold]))
    wrong = int(errors.false_positives[0]), int(errors.false_negatives[0])
    return exact.Counts(*wrong, len(scores_in), len(scores_out))


def _tested(
    scores_in: Array, scores_out: Array, family: exact.Family, confidence: float
) -> tuple[float, exact.Counts, float]:
    (pilot_in, pilot_out), (rest_in, rest_out) = _split(scores_in, scores_out, _PILOT_SHARE)
    threshold = thresholds.choose_on_pilot(
        pilot_in, pilot_out, len(rest_in), len(rest_out), family.parameter, (1 - confidence) / 2
    )
    counts = _count(rest_in, rest_out, threshold)
    return exact.lower_bound(family, counts, 1 - confidence), counts, threshold


def _gaussian(
    method: str, mu: float, counts: exact.Counts, threshold: float, delta: float, confidence: float
) -> Bound:
    mu = max(mu, 0.0)
    epsilon = conversions.epsilon_from_mu(mu, delta)
    return Bound(method, epsilon, mu, delta, confidence, threshold, *counts, assumes=GAUSSIAN_CURVE)
