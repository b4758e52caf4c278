"""The conclusion from an audit's scores: every lower bound beside the accountant's upper bound.

Runs may be added and looked at several times, at numbers of runs that were declared beforehand. Who looks
five times and keeps the best bound has five chances to exceed the truth. Here each of L looks gets an equal
share of the error, (1 - confidence) / L, so that by the union bound all of a method's looks hold at once at
the confidence, and so does the best of them, whenever one stops. It holds for numbers of runs that no score
has decided. Shares by the number of runs, or half of the error for the last look, raise the mean of the best
of five bounds on mu by less than 1%, and equal ones say the same at every look.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import Composition
from audit.claims.hidden_state import HiddenState
from audit.errors import require
from audit.evidence.canaries import Design, Fresh
from audit.methods import estimate, exact_null, lifted
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER, CurveTest
from audit.methods.method import (
    ACCOUNTED,
    FRESH_DIRECTIONS,
    GIVEN,
    MANY_CANARIES,
    ONE_CANARY,
    Assumption,
    Method,
    Pair,
)

Worlds = tuple[NDArray[np.float64], NDArray[np.float64]]
CONFIRMED, NOT_CONFIRMED, REFUTED, UNTESTED = "confirmed", "not confirmed", "refuted", "not tested"
_LEAST_P_VALUE = 1e-6  # smaller ones rest on the tail of an approximation


def method_of(finding: Finding) -> Method:
    """The record of the method that a finding is by."""
    methods: dict[str, Method] = {**estimate.METHODS, **lifted.METHODS, **exact_null.METHODS}
    return methods[finding.method]


def assumption_of(finding: Finding) -> Assumption:
    """What a bound says that it assumes, or why an estimate is none."""
    return finding.assumes if isinstance(finding, Bound) else method_of(finding).assumes


def accounted(composition: Composition) -> Assumption:
    """What composition's upper bound assumes."""
    if composition.sampling_rate == 1:
        return ACCOUNTED
    return ACCOUNTED._replace(sentence=f"{ACCOUNTED.sentence} and batches that the adversary does not know")


class Look(NamedTuple):
    """A look: the runs that it is at, and its bounds, at its own confidence."""

    runs: int
    bounds: tuple[Bound, ...]


class Looks(NamedTuple):
    """The declared numbers of runs, the confidence of each look, and the looks that were taken, in order."""

    schedule: tuple[int, ...]
    confidence: float
    taken: tuple[Look, ...]

    def number(self, look: Look) -> int:
        """A look's number in the schedule, from 1."""
        return self.schedule.index(look.runs) + 1


class UpperBound(NamedTuple):
    """An upper bound: mu is None where the curve is not Gaussian or not known. hidden: whether it is one on
    the last model alone, of steps that are Lipschitz; else it is one on all models."""

    epsilon: float
    mu: float | None
    assumes: Assumption
    hidden: bool = False

    @property
    def name(self) -> str:
        """Its name in tables and figures."""
        return "hidden-state bound" if self.hidden else "upper bound"


class Conclusion(NamedTuple):
    """Scores (n_in,) and (n_out,), the estimates and the lower bounds on them, at one delta and confidence.

    The upper bounds on epsilon and mu are composition's: infinite without noise, None where the mechanism is
    not known; mu's is None too where steps are sampled, or the bound on epsilon was given.
    hidden_state: the upper bound on the last model alone, at the delta, where steps are known Lipschitz;
    uncovered: of a known training, why they are not.
    expected: what the last model would leak under linear losses, of sampled canaries; no bound.
    test: () -> the test of the Gaussian curve that bounds on mu assume, and its least power against the
    curves of other mechanisms; None where runs have several canaries, since it counts independent scores.
    deciding: () -> how many runs would give it the power that it lacks; None where no number tried would.
    composition: the mechanism's.
    bounds: as they were computed; `ranked`, `rows`, `bound` and `finding` mark what the scores refute.
    reason: why the curve should be Gaussian, where the mechanism's own law is a reason; else empty.
    looks: the declared looks where there were some: the bounds are then the best of those taken, and hold at
    the confidence together with all others.
    notes: what is said beneath the table of the scores themselves: of runs that failed, of scores that equal
    others, of what was tested of a caller's directions.
    design: the scores by run and canary, where runs have several; the flat ones are then of all canaries.
    """

    scores_in: NDArray[np.float64]
    scores_out: NDArray[np.float64]
    estimates: tuple[Estimate, ...]
    bounds: tuple[Bound, ...]
    upper_bound: float | None = None
    mu_upper_bound: float | None = None
    test: Callable[[], tuple[CurveTest, float] | None] = lambda: None
    deciding: Callable[[], int | None] = lambda: None
    composition: Composition | None = None
    reason: str = ""
    looks: Looks | None = None
    design: Design | Fresh | None = None
    notes: tuple[str, ...] = ()
    hidden_state: HiddenState | None = None
    uncovered: str = ""
    expected: float | None = None

    @property
    def upper_bounds(self) -> tuple[UpperBound, ...]:
        """The upper bounds that are known, the smallest first: a verdict holds what is proven against it."""
        found = []
        if self.hidden_state is not None:
            bound = self.hidden_state.bound
            found.append(UpperBound(bound.epsilon, bound.mu, self.hidden_state.assumes, hidden=True))
        if self.upper_bound is not None:
            assumed = GIVEN if self.composition is None else accounted(self.composition)
            found.append(UpperBound(self.upper_bound, self.mu_upper_bound, assumed))
        return tuple(sorted(found, key=lambda bound: bound.epsilon))

    @property
    def tightest(self) -> UpperBound | None:
        """The smallest upper bound; None where none is known."""
        return next(iter(self.upper_bounds), None)

    @property
    def tightest_mu(self) -> float | None:
        """The smallest upper bound on mu; None where none is known."""
        return min((bound.mu for bound in self.upper_bounds if bound.mu is not None), default=None)

    def exceeded(self, epsilon: float) -> UpperBound | None:
        """The largest upper bound that so much exceeds; None where there is none."""
        return next((bound for bound in reversed(self.upper_bounds) if epsilon > bound.epsilon), None)

    @property
    def curve(self) -> CurveTest | None:
        """The test of the Gaussian curve, made when it is first asked for; None where there is none."""
        tested = self.test()
        return None if tested is None else tested[0]

    @property
    def curve_power(self) -> float:
        """The test's power, 0 where there is no test."""
        tested = self.test()
        return 0.0 if tested is None else tested[1]

    @property
    def gaussian(self) -> Bound:
        """The bound that stands for those that assume a Gaussian curve; of fresh directions none needs it."""
        return self.bound(self._pair.gaussian)

    @property
    def assumption_free(self) -> Bound:
        """The bound that stands for those that assume nothing."""
        return self.bound(self._pair.free)

    @property
    def _pair(self) -> Pair:
        if self.fresh is not None:
            return FRESH_DIRECTIONS
        return ONE_CANARY if self.design is None else MANY_CANARIES

    @property
    def fresh(self) -> Fresh | None:
        """The design, where its canaries are fresh directions."""
        return self.design if isinstance(self.design, Fresh) else None

    @property
    def path(self) -> tuple[float, ...]:
        """What was proven after each run, of fresh directions; else empty."""
        free = self.assumption_free
        return free.path if isinstance(free, exact_null.ExactBound) else ()

    def ranked(self) -> tuple[Bound, ...]:
        """The bounds in the order of tables, whatever was found: first the one that assumes nothing."""
        first = dict.fromkeys((self._pair.free, self._pair.gaussian))
        others = (one.method for one in self.bounds if one.method not in first)
        return tuple(map(self.bound, (*first, *others)))

    def _marked(self, bound: Bound) -> Bound:
        refuted = assumption_of(bound).gaussian and self.refutes_gaussian
        return dataclasses.replace(bound, holds=False) if refuted else bound

    @property
    def epsilon(self) -> float:
        """What is proven: the epsilon of `assumption_free`, on which every verdict relies."""
        return self.assumption_free.epsilon

    @property
    def most_provable(self) -> float | None:
        """The most that so many runs can prove without an assumption on the curve; None of several canaries
        a run."""
        if self.design is not None:
            return None
        sizes = len(self.scores_in), len(self.scores_out)
        return estimate.most_provable(*sizes, self.delta, self.assumption_free.confidence)

    @property
    def curve_status(self) -> str:
        """What the scores say of a Gaussian curve: CONFIRMED as far as they can, NOT_CONFIRMED, or REFUTED;
        UNTESTED of several canaries a run."""
        if self.curve is None:
            return UNTESTED
        if self.refutes_gaussian:
            return REFUTED
        return NOT_CONFIRMED if self.doubts_gaussian else CONFIRMED

    @property
    def delta(self) -> float:
        return self.bounds[0].delta

    @property
    def confidence(self) -> float:
        """Confidence of every bound, and the level that estimates use."""
        return self.bounds[0].confidence

    @property
    def refutes_gaussian(self) -> bool:
        """Whether the scores refute a Gaussian trade-off curve, at the test's level."""
        return self.curve is not None and self.curve.p_value < CURVE_LEVEL

    @property
    def doubts_gaussian(self) -> bool:
        """Whether the curve was tested and not refuted, by too few scores to tell it from others."""
        return self.curve is not None and not self.refutes_gaussian and self.curve_power < CURVE_POWER

    def p_value(self) -> str:
        """The Gaussian curve's p-value in words, "p = 0.41" or "p < 1e-06"; empty where untested."""
        if self.curve is None:
            return ""
        p_value = self.curve.p_value
        return f"p = {p_value:.2g}" if p_value >= _LEAST_P_VALUE else f"p < {_LEAST_P_VALUE:g}"

    def rows(self) -> tuple[Finding, ...]:
        """Estimates and bounds in the order of tables."""
        return (*self.estimates, *map(self._marked, self.bounds))

    def bound(self, method: str) -> Bound:
        """One method's bound; raises KeyError for an estimate's or an unknown name."""
        return self._marked({bound.method: bound for bound in self.bounds}[method])

    def finding(self, method: str) -> Finding:
        """One method's bound or estimate; raises KeyError for an unknown name."""
        return {row.method: row for row in self.rows()}[method]


def require_schedule(schedule: Sequence[int]) -> None:
    """Raises InputError unless the numbers of runs ascend, and the first has a run for each world."""
    said = f"`looks={','.join(map(str, schedule))}`"
    require(schedule, f"{said}: give the numbers of runs at which to look, comma-separated")
    require(schedule[0] >= 2, f"{said}: give at least 2 runs, half of them in each world")
    ascending = all(one < next_ for one, next_ in zip(schedule, schedule[1:], strict=False))
    require(ascending, f"{said}: give numbers of runs that ascend")


def confidence_of_each(confidence: float, looks: int) -> float:
    """The confidence of each of so many looks, that all hold at once at the confidence."""
    return 1 - (1 - confidence) / looks


def best_of_looks(taken: Sequence[Look], confidence: float) -> tuple[Bound, ...]:
    """Each method's best bound of the looks, at the confidence at which all looks hold at once."""
    by_method = zip(*(look.bounds for look in taken), strict=True)
    highest = (max(bounds, key=lambda bound: bound.epsilon) for bounds in by_method)
    return tuple(dataclasses.replace(bound, confidence=confidence) for bound in highest)
