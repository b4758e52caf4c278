"""The conclusion from an audit's scores: every lower bound beside the accountant's upper bound."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.statistics import accounting, estimate, gaussian_curve, lifted, names
from audit.statistics import looks as schedules
from audit.statistics.accounting import Composition
from audit.statistics.canaries import Design
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, Bound, Estimate, Finding
from audit.statistics.gaussian_curve import CURVE_LEVEL, CURVE_POWER, CurveTest
from audit.statistics.looks import Look, Looks

Worlds = tuple[NDArray[np.float64], NDArray[np.float64]]
_LEAST_P_VALUE = 1e-6  # smaller ones rest on the tail of an approximation


class Conclusion(NamedTuple):
    """Scores (n_in,) and (n_out,), the estimates and the lower bounds on them, at one delta and confidence.

    The upper bounds on epsilon and mu are infinite without noise, None where the mechanism is not known; mu's
    is None too where steps are sampled, or the bound on epsilon was given.
    composition: the mechanism's.
    curve: the test of the Gaussian curve that bounds on mu assume, None where it was not made; curve_power,
    its least power against the curves of other mechanisms.
    reason: why the curve should be Gaussian, where the mechanism's own law is a reason; else empty.
    looks: the declared looks where there were some: the bounds are then the best of those taken, and hold at
    the confidence together with all others.
    design: the scores by run and canary, where runs have several; the flat ones are then of all canaries.
    """

    scores_in: NDArray[np.float64]
    scores_out: NDArray[np.float64]
    estimates: tuple[Estimate, ...]
    bounds: tuple[Bound, ...]
    upper_bound: float | None = None
    mu_upper_bound: float | None = None
    curve: CurveTest | None = None
    curve_power: float = 0.0
    composition: Composition | None = None
    reason: str = ""
    looks: Looks | None = None
    design: Design | None = None

    @property
    def gaussian(self) -> Bound:
        """The bound that stands for those that assume a Gaussian curve."""
        return self.bound(IF_GAUSSIAN if self.design is None else names.LIFTED_GAUSSIAN)

    @property
    def assumption_free(self) -> Bound:
        """The bound that stands for those that assume nothing."""
        return self.bound(ASSUMPTION_FREE if self.design is None else names.LIFTED)

    def ranked(self) -> tuple[Bound, ...]:
        """The bounds, those first that a verdict rests on: `assumption_free` where the curve is refuted or
        doubted or not tested and the mechanism is no reason for it, else `gaussian`."""
        shaky = self.design is not None or self.doubts_gaussian
        pair = (self.gaussian, self.assumption_free)
        if self.refutes_gaussian or (shaky and not self.reason):
            pair = pair[::-1]
        named = {bound.method for bound in pair}
        return (*pair, *(bound for bound in self.bounds if bound.method not in named))

    @property
    def delta(self) -> float:
        """delta of every finding."""
        return self.rows()[0].delta

    @property
    def confidence(self) -> float:
        """Confidence of every bound, and the level that estimates use."""
        return self.rows()[0].confidence

    @property
    def refutes_gaussian(self) -> bool:
        """Whether the scores refute a Gaussian trade-off curve, at the test's level."""
        return self.curve is not None and self.curve.p_value < CURVE_LEVEL

    @property
    def doubts_gaussian(self) -> bool:
        """Whether the curve was tested and not refuted, by too few scores to tell it from others."""
        tested = self.curve is not None and not self.refutes_gaussian
        return tested and self.curve_power < CURVE_POWER

    def p_value(self) -> str:
        """The p-value of the Gaussian curve in words, "p = 0.41" or "p < 1e-06"; empty where it was not
        tested."""
        if self.curve is None:
            return ""
        p_value = self.curve.p_value
        return f"p = {p_value:.2g}" if p_value >= _LEAST_P_VALUE else f"p < {_LEAST_P_VALUE:g}"

    def with_curve_test(self) -> "Conclusion":
        """The conclusion with the test of the Gaussian curve, and its power; without them where runs have
        several canaries, whose scores may depend on each other: the test counts independent ones."""
        if self.design is not None:
            return self
        curve, power = gaussian_curve.examine_with_power(self.scores_in, self.scores_out)
        return self._replace(curve=curve, curve_power=power)

    def rows(self) -> tuple[Finding, ...]:
        """Estimates and bounds in the order of tables."""
        return (*self.estimates, *self.bounds)

    def bound(self, method: str) -> Bound:
        """One method's bound; raises KeyError for an estimate's or an unknown name."""
        return {bound.method: bound for bound in self.bounds}[method]

    def finding(self, method: str) -> Finding:
        """One method's bound or estimate; raises KeyError for an unknown name."""
        return {row.method: row for row in self.rows()}[method]


def conclude(
    worlds: Worlds,
    composition: Composition | None,
    delta: float,
    confidence: float,
    upper_bound: float | None = None,
) -> Conclusion:
    """The conclusion from (scores in, scores out) and the mechanism's composition or, of another accountant,
    the upper bound on epsilon, where one of them is known.

    Raises InputError for scores or values that nothing can be concluded from.
    """
    epsilon, mu = _upper(composition, delta, upper_bound)
    found = estimate.findings(*worlds, delta, confidence)
    estimates = tuple(one for one in found if isinstance(one, Estimate))
    bounds = tuple(one for one in found if isinstance(one, Bound))
    return Conclusion(*worlds, estimates, bounds, epsilon, mu, composition=composition)


def conclude_looks(
    seen: Mapping[int, Worlds],
    schedule: Sequence[int],
    composition: Composition | None,
    delta: float,
    confidence: float,
    upper_bound: float | None = None,
) -> Conclusion:
    """The conclusion from the looks that were taken of a declared schedule: (scores in, scores out) by the
    number of runs, of which the last is what estimates and the curve's test are made on.

    The best bound of all looks, whenever one stops, holds at the confidence. Raises InputError as `conclude`,
    and for a look that was not declared.
    """
    schedules.require_schedule(schedule)
    for runs in seen:
        said = f"`looks={','.join(map(str, schedule))}`"
        require(
            runs in schedule, f"{said}: none is at {runs} runs, as these scores are: give those of a look"
        )
    last = conclude(seen[max(seen)], composition, delta, confidence, upper_bound)
    each = schedules.confidence_of_each(confidence, len(schedule))
    taken = tuple(Look(runs, _bounds(worlds, delta, each)) for runs, worlds in sorted(seen.items()))
    looks = Looks(tuple(schedule), each, taken)
    return last._replace(bounds=schedules.best(taken, confidence), looks=looks)


def _bounds(worlds: Worlds, delta: float, confidence: float) -> tuple[Bound, ...]:
    """The findings that are bounds."""
    found = estimate.findings(*worlds, delta, confidence)
    return tuple(one for one in found if isinstance(one, Bound))


def conclude_design(
    design: Design,
    composition: Composition | None,
    delta: float,
    confidence: float,
    upper_bound: float | None = None,
) -> Conclusion:
    """The conclusion from runs with several canaries each; `conclude`'s where each has one.

    Raises InputError as `conclude` does, and for too few runs.
    """
    worlds = design.pooled()
    if design.canaries == (1, 1):
        return conclude(worlds, composition, delta, confidence, upper_bound)
    epsilon, mu = _upper(composition, delta, upper_bound)
    bounds = tuple(lifted.bounds(design, delta, confidence))
    return Conclusion(*worlds, (), bounds, epsilon, mu, composition=composition, design=design)


def _upper(
    composition: Composition | None, delta: float, given: float | None
) -> tuple[float | None, float | None]:
    """(epsilon at delta, mu) that cannot be exceeded: of the mechanism, or epsilon as given."""
    alone = given is None or (given >= 0 and composition is None)
    require(alone, f"`upper_bound={given}`: give epsilon, at least 0, and no mechanism beside it")
    return (given, None) if composition is None else _upper_bounds(composition, delta)


def _upper_bounds(composition: Composition, delta: float) -> tuple[float, float | None]:
    """(epsilon at delta, mu) of the composition; no mu where steps are sampled: the curve isn't Gaussian."""
    sigma, insertions, rate = composition
    epsilon = accounting.sampled_upper_bound(sigma, insertions, delta, rate)
    return epsilon, accounting.mu_upper_bound(sigma, insertions) if rate == 1 else None
