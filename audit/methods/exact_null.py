"""The exact null: a lower bound on epsilon from runs whose canaries are uniform directions, all of them in.

A canary's direction v is uniform on the sphere of R^d, drawn afresh for every run and canary. Whatever vector
u is computed from the released model without v, in the world without v the cosine of u and v exceeds t with a
probability a(t) that is known exactly, however small (`cosine_law`). DP holds for each fixed v; averaged over
v, at every threshold t,

    P_in(cosine > t) <= e^epsilon a(t) + delta,

so that only runs with the canary are needed, and only true positives are counted. With K canaries in, the
neighbour of canary j is the training with the other K - 1, and the inequality holds for the mean over j too:
h_i(t), the share of run i's cosines above t, has a mean of at most m(t) = e^epsilon a(t) + delta given the
runs before it, however the canaries of a run depend on each other.

A gambler who doubts epsilon may bet the share c of his capital on h(t) in every run, or bet on a ramp: for
f(x) = 1 + sum_t b_t 1{x > t} with any b >= 0, the mean of f over a run's cosines is on average at most
1 + sum_t b_t m(t). After n runs he has

    prod_i (1 + c (h_i(t) / m(t) - 1))    or    prod_i (1 + sum_t b_t h_i(t)) / (1 + sum_t b_t m(t)),

nonnegative supermartingales from 1 if epsilon is true. So is a mixture of such bets with fixed shares, and by
Ville's inequality it ever reaches 1 / error with probability at most `error`: the bound holds at all numbers
of runs at once, whenever one stops. It is the least epsilon of a grid that was never refuted, less one step.

"Ever" is along the order in which runs were begun. Rows of a file come in any order, sorted ones among them,
and the largest capital along a sorted file proves nothing. The capital after all rows is a product, the same
in every order: where the order is not vouched for, that alone decides.

Thresholds lie on the scale of Student's T, x. Ramps are likelihood ratios of N(nu, 1) and N(0, 1) over
e^epsilon, cut at 1 and at 20, which is what grows fastest where canaries shift cosines by nu. In the first
run a part of the capital is bet whole on the mean of likely thresholds, as Markov's inequality does, and goes
on in the mixture with what it won; where the order is not vouched for, only if there is no other run.

One run alone pays the logarithm of the number of thresholds. Where a cosine uses nothing of other canaries'
directions (`plain`: no leave-one-out), one half of the first run's canaries chooses a threshold for the
other: given the former, the law of each of the latter is what it was. As P_in(t chosen, hit) <= e^epsilon
P_out(t chosen) a(t) + d(t), where the d(t) sum to delta at most, the share of hits over max(e^epsilon a(t) /
(1 - eta), delta / eta) has a mean of at most (1 - eta) + eta = 1.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from audit.errors import require
from audit.evidence.arrays import floats
from audit.evidence.canaries import Fresh
from audit.laws import conversions, cosine_law
from audit.methods.estimate import Bound
from audit.methods.method import FRESH_DIRECTIONS, Assumption, Method

Array = NDArray[np.float64]
Payoff = Callable[[float], float]  # epsilon -> what a capital of 1 becomes

EXACT_NULL = FRESH_DIRECTIONS.free
LAW_LEVEL = 1e-6  # below it canaries that are out refute the law
STUDENT = np.concatenate([np.arange(0.5, 9.51, 0.25), np.arange(10.0, 41.0)])  # thresholds
BETS = np.concatenate([np.geomspace(3e-4, 0.9, 12), [0.97, 0.995]])
_FAR, _FAR_SHARE = 10.0, 0.05  # of the capital, on thresholds from there on
_BET_SHARES = np.concatenate([np.full(11, 0.5 / 11), [0.1, 0.1, 0.3]])
_LIKELY = np.arange(1.5, 7.1, 0.5)  # thresholds whose mean the first run's capital is bet on
_CHOSEN_SHARE = 0.8  # of that, on a chosen threshold where it is allowed
# shares of the capital, on ramps and bet whole on the first run: of few canaries, of many, of many and plain
_OF_FEW, _OF_MANY, _OF_PLAIN = (0.5, 0.1), (0.1, 0.3), (0.1, 0.9)
_LEAST_PILOT, _ETA = 20, 0.1
_SHIFTS = np.geomspace(0.5, 12.0, 24)  # nu of the ramps
_RAMPS_TOP = 20.0
_STEP = 2.0**-6  # of epsilon


class Proof(NamedTuple):
    """What runs prove.

    Attributes:
      epsilon: the bound from all runs; 0 where nothing is proven.
      path: (R,) the bound after each run, which never falls; empty where the order is not vouched for.
      threshold: the cosine that most capital is on at the end (of one plain run, the chosen one).
      hits: how many cosines exceed the threshold.
      cosines: how many cosines there are.
      log_rate: log of the probability that a cosine exceeds the threshold without its canary.
    """

    epsilon: float
    path: Array
    threshold: float
    hits: int
    cosines: int
    log_rate: float


def checked(cosines: ArrayLike, dimension: int) -> Array:
    """Cosines (R, K) of R runs with K canaries in; raises InputError for what are none."""
    cosine_law.require_dimension(dimension)
    found = floats("the cosines", cosines)
    fits = found.ndim == 2 and found.size > 0
    require(fits, f"the cosines have shape {found.shape}: give (runs, canaries)")
    bad = int(np.count_nonzero(~(np.abs(found) <= 1 + 1e-6)))
    require(not bad, f"{bad} of {found.size} values are no cosines, from -1 to 1: divide by both lengths")
    return np.clip(found, -1.0, 1.0)


def prove(
    cosines: Array,
    dimension: int,
    delta: float,
    confidence: float,
    present: NDArray[np.bool_] | None = None,
    plain: bool = False,
    in_order: bool = True,
) -> Proof:
    """Returns the bound from cosines (R, K).

    Args:
      cosines: (R, K), a row a run.
      dimension: d, of the directions.
      delta, confidence: of the bound.
      present: (R, K), where not all canaries are in. Only those in are bet on; runs without any are skipped.
      plain: whether no cosine uses anything of the other canaries' directions.
      in_order: whether rows stand in the order in which runs were begun; else no order of them changes
        anything, and the path is empty.
    """
    conversions.require_levels(delta, confidence)
    runs = _canaries_in(cosines, present)
    levels = cosine_of(STUDENT, dimension)
    log_rates = cosine_law.log_sf(levels, dimension)
    shares = np.stack([_shares(run, levels) for run in runs])
    many = cosines.shape[1] >= 2 * _LEAST_PILOT
    if in_order or len(runs) == 1:
        first = _first_bet(runs[0], dimension, delta, many, plain)
    else:
        first = _no_first_bet(many)
    growth = _Growth(log_rates, delta, shares, first)
    target = -float(np.log(1 - confidence))
    if in_order:
        path = _path(growth, len(runs), target)
        epsilon = float(path[-1])
    else:
        path = np.zeros(0)
        epsilon = _after_all(growth, len(runs), target)
    level = first.level
    if len(runs) > 1 or level is None:
        on_thresholds = growth.of_all(epsilon)[: len(levels) * len(BETS)].reshape(len(levels), -1)
        level = float(levels[special.logsumexp(on_thresholds, axis=1).argmax()])
    hits = sum(int(np.count_nonzero(run > level)) for run in runs)
    total = sum(len(run) for run in runs)
    return Proof(epsilon, path, level, hits, total, float(cosine_law.log_sf(level, dimension)))


def _canaries_in(cosines: Array, present: NDArray[np.bool_] | None) -> list[Array]:
    """Returns the cosines of each run's canaries that are in, without the runs that have none."""
    if present is None:
        return list(cosines)
    runs = [row[bits] for row, bits in zip(cosines, present, strict=True)]
    return [run for run in runs if len(run)]


def cosine_of(student: ArrayLike, dimension: int) -> Array:
    """The cosine at which Student's T with d - 1 degrees of freedom has a value."""
    t = np.asarray(student, np.float64)
    return np.asarray(t / np.sqrt(dimension - 1 + t * t))


@dataclasses.dataclass(frozen=True)
class ExactBound(Bound):
    """The bound `exact_null`: its threshold is the one that most capital is on, with the false-positive rate
    that is known there; path: (R,) the bound after each run, empty where their order is not vouched for."""

    false_positive_rate: float = 0.0
    path: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionsMethod(Method):
    """A method for fresh directions: (design, delta, confidence) -> its bound."""

    compute: Callable[[Fresh, float, float], ExactBound]


def of_fresh(design: Fresh, delta: float, confidence: float) -> ExactBound:
    """Returns `exact_null` of a design; 0, and refuted, where canaries that are out do not have the law."""
    proof = prove(
        design.cosines,
        design.dimension,
        delta,
        confidence,
        design.presence,
        design.plain,
        design.in_order,
    )
    holds = law_p_value(design) >= LAW_LEVEL
    return ExactBound(
        method=EXACT_NULL,
        epsilon=proof.epsilon if holds else 0.0,
        mu=None,
        delta=delta,
        confidence=confidence,
        threshold=proof.threshold,
        false_positives=0,
        false_negatives=proof.cosines - proof.hits,
        n_in=proof.cosines,
        n_out=int((~design.presence).sum()),
        assumes=_assumption(design),
        holds=holds,
        false_positive_rate=float(np.exp(proof.log_rate)),
        path=tuple((proof.path if holds else np.zeros_like(proof.path)).tolist()),
    )


def _assumption(design: Fresh) -> Assumption:
    """Returns what the bound assumes: nothing where this tool drew the directions and trained all runs."""
    if not design.given:
        return _OWN
    return _GIVEN_IN_ORDER if design.in_order and len(design.cosines) > 1 else _GIVEN


def law_p_value(design: Fresh) -> float:
    """The p-value of `law_test` for canaries that are out; 1 if all are in."""
    out = design.out()
    return law_test(out, design.dimension) if len(out) else 1.0


def law_test(cosines: ArrayLike, dimension: int) -> float:
    """The p-value of cosines (any shape) of canaries that were out having the law in R^d.

    They must be independent: those of different directions with one vector a run that depends on none of
    them, as the movement does, or what is left of it off the canaries that were in. Normal deviates of the
    law's probabilities are tested by Kolmogorov and Smirnov, and by the sum of their squares, chi-squared;
    the p-value is twice the smaller one. At LAW_LEVEL it sees in 9 of 10 audits that d was given 1.2 times
    too large or too small with 2,600 cosines, 1.5 times with 520, twice with 210.
    """
    from scipy import stats  # most of SciPy's time to load

    found = checked(np.atleast_2d(floats("the cosines", cosines)), dimension).ravel()
    upper = cosine_law.log_sf(np.abs(found), dimension)
    deviates = np.copysign(special.ndtri_exp(upper), found)
    squares = float(deviates @ deviates)
    spread = 2 * min(stats.chi2.cdf(squares, found.size), stats.chi2.sf(squares, found.size))
    return float(min(2 * min(stats.kstest(deviates, "norm").pvalue, spread), 1.0))


_DRAWN = "uniform directions, drawn afresh for every run, unknown to a model trained without them"
_OWN = Assumption("nothing", "nothing", f"{_DRAWN}: this tool drew them")
_GIVEN = Assumption(
    "uniform directions, drawn afresh for every run",
    "directions",
    f"{_DRAWN}, as whoever gave the cosines says",
    "uniform ones, drawn afresh for every run, as whoever gave them says",
)
_GIVEN_IN_ORDER = _GIVEN._replace(
    text=f"{_GIVEN.text}, rows in the order in which runs were begun",
    sentence=f"{_GIVEN.sentence}; and rows in the order in which runs were begun, as they say too",
    note=f"{_GIVEN.note}; rows in the order in which runs were begun",
)
METHODS = {
    EXACT_NULL: DirectionsMethod(
        name=EXACT_NULL,
        assumes=_OWN,
        label="exact null",
        legend="exact null (assumes nothing)",
        compute=of_fresh,
    )
}


class _First(NamedTuple):
    """The shares of the capital that are on ramps, and bet whole on the first run; what 1 wins there; the
    cosine that was chosen for it, if one was."""

    ramps: float
    whole: float
    won: Payoff
    level: float | None = None

    def log_won(self, epsilon: float) -> float:
        """log of what the share that is bet whole becomes."""
        return float(np.log(max(self.whole * self.won(epsilon), 1e-300)))


class _Growth:
    """The mixture's capital: a component for each threshold and bet, then one for each ramp."""

    def __init__(self, log_rates: Array, delta: float, shares: Array, first: _First) -> None:
        self._log_rates, self._delta, self._shares, self._first = log_rates, delta, shares, first
        self._levels, places = np.unique(shares, return_inverse=True)
        self._places = places.reshape(shares.shape)
        self._counts = np.zeros((shares.shape[1], len(self._levels)))  # of the runs after the first
        self._distinct, self._kinds = np.unique(shares, axis=0, return_inverse=True)
        self._seen = np.zeros(len(self._distinct))  # how often each of the distinct runs was, after the first

    def see(self, run: int) -> None:
        """One run more, after the first."""
        self._seen[self._kinds[run]] += 1
        self._counts[np.arange(len(self._counts)), self._places[run]] += 1

    def of_run(self, run: int, epsilon: float) -> Array:
        """log of what a run makes of each component's capital of 1."""
        most, steps = self._most(epsilon), self._steps(epsilon)
        gains = self._shares[run] / most - 1
        ramps = np.log1p(steps @ self._shares[run]) - self._expected(steps, most)
        return np.append(np.log1p(BETS * gains[:, None]), ramps)

    def of_all(self, epsilon: float) -> Array:
        """log of the components' capital against epsilon, after the first run and those that were seen."""
        first, shared = self._first, np.append(*_log_shares(self._first.ramps))
        found = (
            np.logaddexp(np.log1p(-first.whole) + self.of_run(0, epsilon), first.log_won(epsilon)) + shared
        )
        rows, columns = np.nonzero(self._counts)
        if not len(rows):
            return np.asarray(found)
        most, steps, seen = self._most(epsilon), self._steps(epsilon), self._seen > 0
        gains = (self._levels[columns] / most[rows] - 1)[:, None]
        logs = np.log1p(BETS * gains) * self._counts[rows, columns][:, None]
        bets = np.add.reduceat(logs, np.searchsorted(rows, np.arange(len(most))))
        won = np.log1p(self._distinct[seen] @ steps.T) - self._expected(steps, most)
        return np.asarray(found + np.append(bets, self._seen[seen] @ won))

    def _most(self, epsilon: float) -> Array:
        """m of each threshold."""
        return np.asarray(np.exp(np.minimum(epsilon + self._log_rates, 700.0)) + self._delta)

    def _steps(self, epsilon: float) -> Array:
        """b of each ramp and threshold (ramps, T)."""
        exponents = _SHIFTS[:, None] * (STUDENT - _SHIFTS[:, None] / 2) - epsilon
        heights = np.exp(np.clip(exponents, 0.0, np.log(_RAMPS_TOP)))
        return np.diff(heights, axis=1, prepend=1.0)

    def _expected(self, steps: Array, most: Array) -> Array:
        """log of the most that each ramp's mean is."""
        return np.asarray(np.log1p(steps @ np.minimum(most, 1.0)))


def _path(growth: _Growth, runs: int, target: float) -> Array:
    """After each run the last of _STEP's multiples before the first that was not refuted yet, or 0."""
    found, steps, capital = np.zeros(runs), 0, growth.of_all(0.0)
    for run in range(runs):
        if run:
            growth.see(run)
            capital += growth.of_run(run, steps * _STEP)
        if special.logsumexp(capital) >= target:
            steps = _leap(growth, steps, target)
            capital = growth.of_all(steps * _STEP)
        while special.logsumexp(capital) >= target:
            steps += 1
            capital = growth.of_all(steps * _STEP)
        found[run] = max(steps - 1, 0) * _STEP
    return found


def _after_all(growth: _Growth, runs: int, target: float) -> float:
    """Returns the last of _STEP's multiples before the first that the capital after all runs does not refute,
    or 0."""
    for run in range(1, runs):
        growth.see(run)
    steps = 0
    if special.logsumexp(growth.of_all(0.0)) >= target:
        steps = _leap(growth, 0, target)
    while special.logsumexp(growth.of_all(steps * _STEP)) >= target:
        steps += 1
    return max(steps - 1, 0) * _STEP


def _leap(growth: _Growth, steps: int, target: float) -> int:
    """The last step that thresholds alone refute, and so all before it: their capital falls with epsilon."""
    on_thresholds, leap = len(STUDENT) * len(BETS), 1

    def refuted(step: int) -> bool:
        return bool(special.logsumexp(growth.of_all(step * _STEP)[:on_thresholds]) >= target)

    while refuted(steps + leap):
        steps, leap = steps + leap, 2 * leap
    while leap > 1:
        leap //= 2
        steps += leap if refuted(steps + leap) else 0
    return steps


def _shares(run: Array, levels: Array) -> Array:
    """The shares (T,) of a run's cosines above each level."""
    return np.asarray((len(run) - np.searchsorted(np.sort(run), levels, side="right")) / max(len(run), 1))


def _first_bet(run: Array, dimension: int, delta: float, many: bool, plain: bool) -> _First:
    """What is bet whole on the first run: its mean over likely thresholds, and a chosen one where allowed."""
    levels = cosine_of(_LIKELY, dimension)
    log_rates, shares = cosine_law.log_sf(levels, dimension), _shares(run, levels)
    part = _OF_MANY if many else _OF_FEW

    def likely(epsilon: float) -> float:
        return float(np.mean(shares / (np.exp(np.minimum(epsilon + log_rates, 700.0)) + delta)))

    if not (plain and many) or len(run) < 2 * _LEAST_PILOT:
        return _First(*part, likely)
    pilot, rest = (run[places] for places in parted(run, len(run) // 2))
    level = _promising(pilot, len(rest), dimension)
    log_rate, share = float(cosine_law.log_sf(level, dimension)), float(np.mean(rest > level))

    def mixed(epsilon: float) -> float:
        chosen = share / max(np.exp(min(epsilon + log_rate, 700.0)) / (1 - _ETA), delta / _ETA)
        return float(_CHOSEN_SHARE * chosen + (1 - _CHOSEN_SHARE) * likely(epsilon))

    return _First(*_OF_PLAIN, mixed, level)


def _no_first_bet(many: bool) -> _First:
    """Returns shares of the capital of which nothing is bet whole on the first run."""
    ramps = _OF_MANY[0] if many else _OF_FEW[0]
    return _First(ramps, 0.0, lambda epsilon: 0.0)


def parted(values: Array, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(places of a pilot, of the rest) by a shuffle seeded by the values' ranks: files may come sorted."""
    ranks = np.unique(values, return_inverse=True)[1].astype("<i8")
    rng = np.random.default_rng(int.from_bytes(hashlib.sha256(ranks.tobytes()).digest(), "big"))
    order = rng.permutation(len(values))
    return order[:size], order[size:]


def _promising(pilot: Array, canaries: int, dimension: int) -> float:
    """The cosine that promises most on so many canaries, if cosines are normal as in the pilot: of every
    tenth of 1/sqrt(d) at first, then 1% apart."""
    root = np.sqrt(dimension)
    units = np.concatenate([np.arange(0, 100) / 10, np.geomspace(10, max(root, 11), 400)])
    grid = units[units < root] / root
    share = special.ndtr((pilot.mean() - grid) / max(float(pilot.std()), 1e-12))
    sure = np.maximum(share - 2 * np.sqrt(share / canaries), 0.0)
    with np.errstate(divide="ignore"):
        promised = np.where(sure > 0, np.log(sure) - cosine_law.log_sf(grid, dimension), -np.inf)
    return float(grid[np.argmax(promised)])


def _log_shares(ramps: float) -> tuple[Array, Array]:
    """log of the capital's shares at the start: (of thresholds and bets, of ramps)."""
    near = STUDENT < _FAR
    of_thresholds = np.where(near, (1 - _FAR_SHARE) / near.sum(), _FAR_SHARE / (~near).sum())
    on_thresholds = np.log((1 - ramps) * of_thresholds[:, None] * _BET_SHARES)
    return on_thresholds, np.full(len(_SHIFTS), np.log(ramps / len(_SHIFTS)))
