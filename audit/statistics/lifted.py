"""Lower bounds on a privacy parameter from many canaries a run.

    lidp_wilson_L       epsilon from two intervals for exchangeable bits of order L = 1, 2, 4, in both
                        directions of the inequality (LiDP paper, Sections 4 and 5): asymptotic, the paper's
    lidp_bernstein_L    likewise, with finite-sample intervals
    lifted              epsilon by betting on the per-run averages: finite-sample, assumes nothing
    lifted_gaussian     mu likewise, against Gaussian trade-off curves
    clustered           mu from the two average rates with a normal error that runs, not canaries, give

`canaries` says why average error rates obey the trade-off inequality, `betting` how they are tested. The
threshold, and what is bet, come from a pilot of runs that are not counted.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import betting, conversions, exact, exchangeable, thresholds
from audit.statistics.canaries import Counted, Design, RunErrors
from audit.statistics.estimate import ASSUMPTION_FREE, HELD_OUT, IF_GAUSSIAN, Bound
from audit.statistics.exact import Family
from audit.statistics.method import GAUSSIAN_CURVE, MANY_CANARIES, NOTHING, Assumption, Method

Array = NDArray[np.float64]

LIFTED_GAUSSIAN, LIFTED = MANY_CANARIES
CLUSTERED = "clustered"
MANY_RUNS = Assumption(
    "many runs",
    "many runs",
    "independent runs, and many of them (asymptotic)",
    "asymptotic, exceeds its level with few runs",
)
GAUSSIAN_AND_MANY_RUNS = Assumption(
    "a Gaussian trade-off curve, and many runs",
    "Gaussian, runs",
    "independent runs, and many of them; for epsilon, a Gaussian trade-off curve",
    gaussian=True,
)
_GRID = 401  # thresholds on a normal fit
_REACH = 4.0  # deviations beyond its centres


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryMethod(Method):
    """A method of several canaries a run: the family (of a delta) that its threshold is chosen for, (errors,
    delta, confidence) -> its bound, and the least canaries a run that it needs."""

    family: Callable[[float], Family]
    conclude: Callable[[Counted, float, float], Bound]
    canaries: int = 1

    def bound(self, design: Design, delta: float, confidence: float) -> Bound:
        """The method's bound from scores."""
        counted = count(design, self.family(delta), 1 - confidence)
        return self.conclude(counted, delta, confidence)


def count(design: Design, family: Family, error: float) -> Counted:
    """Splits off the pilot, chooses the threshold that promises most for the family, counts errors."""
    pilot, rest = design.split()
    threshold = _choose(pilot, rest.errors(0.0), family, error)
    return Counted(threshold, pilot.errors(threshold), rest.errors(threshold))


def lifted(counted: Counted, delta: float, confidence: float) -> Bound:
    """epsilon at delta, for any trade-off curve and any number of runs."""
    epsilon = betting.lower_bound(exact.approximate_dp(delta), counted, 1 - confidence)
    return _bound(LIFTED, (epsilon, None), counted, delta, confidence, NOTHING.text)


def lifted_gaussian(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu for any number of runs; epsilon follows if the average trade-off curve is Gaussian."""
    mu = betting.lower_bound(exact.GAUSSIAN, counted, 1 - confidence)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(LIFTED_GAUSSIAN, found, counted, delta, confidence, GAUSSIAN_CURVE.text)


def clustered(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu from the average rates, less its standard error over runs times Student's quantile."""
    mu = max(_normal_limit(counted.rest, 1 - confidence), 0.0)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(CLUSTERED, found, counted, delta, confidence, GAUSSIAN_AND_MANY_RUNS.text)


def lidp(order: int, interval: exchangeable.Interval, assumes: Assumption) -> CanaryMethod:
    """The method of one order and interval: upper limits of both rates, each at half the error."""
    name = f"lidp_{interval.__name__}_{order}"

    def conclude(counted: Counted, delta: float, confidence: float) -> Bound:
        error, rest = (1 - confidence) / 2, counted.rest

        def upper(sums: Array, canaries: int) -> float:
            limit = exchangeable.limits(sums, canaries, order, error, interval)[1]
            return min(rest.scale * limit, 1.0)

        rates = upper(rest.alarms, rest.canaries_out), upper(rest.misses, rest.canaries_in)
        epsilon = max(float(conversions.epsilon_from_rates(*rates, delta)), 0.0)
        return _bound(name, (epsilon, None), counted, delta, confidence, assumes.text)

    return CanaryMethod(
        name=name,
        family=exact.approximate_dp,
        conclude=conclude,
        canaries=order,
        assumes=assumes,
        label=f"LiDP {interval.__name__.capitalize()} {order}",
    )


def _gaussian(delta: float) -> Family:
    """Gaussian curves, whatever delta."""
    return exact.GAUSSIAN


_RECORDS = (
    *(lidp(order, exchangeable.wilson, MANY_RUNS) for order in (1, 2, 4)),
    *(lidp(order, exchangeable.bernstein, NOTHING) for order in (1, 2, 4)),
    CanaryMethod(
        name=LIFTED,
        family=exact.approximate_dp,
        conclude=lifted,
        assumes=NOTHING,
        label="lifted",
        legend="lifted, assumption-free",
        counterpart=ASSUMPTION_FREE,
    ),
    CanaryMethod(
        name=LIFTED_GAUSSIAN,
        family=_gaussian,
        conclude=lifted_gaussian,
        assumes=GAUSSIAN_CURVE,
        label="lifted, if Gaussian",
        legend="lifted, if the curve is Gaussian",
        counterpart=IF_GAUSSIAN,
    ),
    CanaryMethod(
        name=CLUSTERED,
        family=_gaussian,
        conclude=clustered,
        assumes=GAUSSIAN_AND_MANY_RUNS,
        label="clustered",
        legend="clustered, if also runs are many",
        counterpart=HELD_OUT,
    ),
)
METHODS = {record.name: record for record in _RECORDS}


def counterpart(method: str) -> CanaryMethod | None:
    """The method that takes the place of one for single canaries; None where none does."""
    return next((one for one in METHODS.values() if one.counterpart == method), None)


def usable(canaries: int) -> dict[str, CanaryMethod]:
    """The methods for at least so many canaries a run."""
    return {name: method for name, method in METHODS.items() if method.canaries <= canaries}


def bounds(design: Design, delta: float, confidence: float) -> list[Bound]:
    """The bound of every usable method; raises InputError for parameters out of range or too few runs."""
    conversions.require_delta(delta)
    conversions.require_confidence(confidence)
    methods = usable(min(design.canaries)).values()
    families = dict.fromkeys(method.family for method in methods)
    counted = {family: count(design, family(delta), 1 - confidence) for family in families}
    return [method.conclude(counted[method.family], delta, confidence) for method in methods]


def _bound(
    method: str,
    found: tuple[float, float | None],
    counted: Counted,
    delta: float,
    confidence: float,
    assumes: str,
) -> Bound:
    """The bound (epsilon, mu); its counts are guesses, of all canaries of the runs that were counted."""
    epsilon, mu = found
    alarms, misses = (int(errors.sum()) for errors in (counted.rest.alarms, counted.rest.misses))
    of_in, of_out = (round(count / counted.rest.scale) for count in counted.rest.guesses())
    return Bound(
        method, epsilon, mu, delta, confidence, counted.threshold, alarms, misses, of_in, of_out, assumes
    )


def _normal_limit(errors: RunErrors, error: float) -> float:
    """mu's lower limit by the delta method."""
    rates = errors.rates()
    smoothed = [
        (errors.scale * sums.sum() + 0.5) / (guesses + 1)
        for sums, guesses in zip((errors.alarms, errors.misses), reversed(errors.guesses()), strict=True)
    ]
    require(min(map(len, rates)) >= 2, "a standard error over runs needs two runs of a kind")
    points = special.ndtri(np.clip(smoothed, 1e-12, 1 - 1e-12))
    slopes = np.sqrt(2 * np.pi) * np.exp(0.5 * points**2)
    if errors.paired:
        variance = float(np.var(slopes[0] * rates[0] + slopes[1] * rates[1], ddof=1)) / len(rates[0])
    else:
        variance = sum(float(s * s * np.var(r, ddof=1)) / len(r) for s, r in zip(slopes, rates, strict=True))
    runs = min(map(len, rates))
    return float(-points.sum() - special.stdtrit(runs - 1, 1 - error) * np.sqrt(variance))


def _choose(pilot: Design, rest: RunErrors, family: Family, error: float) -> float:
    """The threshold with the best promise on the pilot, among the best ones of two normal fits to it."""
    scores_in, scores_out = pilot.pooled()
    candidates = []
    for fit in thresholds.normal_fits(scores_in, scores_out):
        low, high = sorted([fit.centre_in, fit.centre_out])
        grid = np.linspace(low - _REACH * fit.spread, high + _REACH * fit.spread, _GRID)
        rates = (
            special.ndtr((fit.centre_out - grid) / fit.spread),
            special.ndtr((grid - fit.centre_in) / fit.spread),
        )
        candidates.append(float(grid[int(np.argmax(_promise(*rates, rest, family, error)))]))
    if not candidates:  # worlds without a spread, or one alone
        both = np.concatenate([scores_in, scores_out])
        return float(both.min() / 2 + both.max() / 2)
    counts = thresholds.count_errors(scores_in, scores_out, np.array(candidates))
    promised = _promise(
        (counts.false_positives + 0.5) / (len(scores_out) + 1),
        (counts.false_negatives + 0.5) / (len(scores_in) + 1),
        rest,
        family,
        error,
    )
    return candidates[int(np.argmax(promised))]


def _promise(rates_out: Array, rates_in: Array, rest: RunErrors, family: Family, error: float) -> Array:
    """The parameter through both rates, each raised by about what a test can't see: a normal deviation of
    independent guesses, and a share of log(1 / error) / n of the runs in which all is different."""
    depth, (of_in, of_out) = -np.log(error), rest.guesses()

    def raised(rates: Array, guesses: int, runs: int) -> Array:
        deviation = np.sqrt(2 * depth * rest.scale * rates * (1 - rates) / guesses)
        above: Array = np.minimum(rates + deviation + rest.scale * depth / runs, 1.0)
        return above

    rates = raised(rates_out, of_out, len(rest.alarms)), raised(rates_in, of_in, len(rest.misses))
    promised: Array = family.parameter(*rates)
    return promised
