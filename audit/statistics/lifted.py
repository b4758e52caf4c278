"""Lower bounds on a privacy parameter from many canaries a run.

    lidp_wilson_L       epsilon from two intervals for exchangeable bits of order L = 1, 2, 4, in both
                        directions of the inequality (LiDP paper, Sections 4 and 5): asymptotic, the paper's
    lidp_bernstein_L    likewise, with finite-sample intervals
    lifted              epsilon by betting on the per-run averages: finite-sample, assumes nothing
    lifted_gaussian     mu likewise, against Gaussian trade-off curves
    clustered           mu from the two average rates with a normal error that runs, not canaries, give

`canaries` says why average error rates obey the trade-off inequality. A null hypothesis H(t) says that the
average rates (a, b) of false positives and negatives have b >= f_t(a), for a family f_t that decreases in t.
The betting tests reject it where the capital is large enough on all of the curve b = f_t(a); the bound is the
least t that is not rejected, which exceeds the truth with probability at most the error.

    sets     misses and false alarms are of different runs: C_in(b) C_out(a), the least over the curve
    coins    both are of one run: bets on z = part FN + (1 - part) FP, whose mean is part b + (1 - part) a

On the curve, capitals are taken at corners (a_j, f_t(a_(j + 1))) of cells, where they are least, so that the
grid makes no bound too large. Threshold, stakes and parts come from a pilot of runs that are not counted.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import betting, conversions, exact, exchangeable, thresholds
from audit.statistics.canaries import Design, RunErrors
from audit.statistics.estimate import GAUSSIAN_CURVE, NOTHING, Bound
from audit.statistics.exact import Family
from audit.statistics.names import CLUSTERED, LIFTED, LIFTED_GAUSSIAN

Array = NDArray[np.float64]

MANY_RUNS = "many runs"
GAUSSIAN_AND_MANY_RUNS = "a Gaussian trade-off curve, and many runs"
_LEVELS = np.concatenate([[0.0], special.ndtr(np.linspace(-8.0, 8.0, 3201)), [1.0]])
_COARSE = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 241)), [1.0]])
_MEANS = np.concatenate([[0.0], special.ndtr(np.linspace(-6.0, 6.0, 1601)), [1.0]])
_COARSE_MEANS = _MEANS[::2]
_PARTS = 1 / (1 + np.geomspace(1 / 64, 64.0, 25))
_BEST_SHARE, _ALONE_SHARE = 0.7, 0.1  # of the capital on the pilot's pair, and on bets on one world alone
_STEPS = np.array([-12, -8, -5, -3, -2, -1, 1, 2, 3, 5])  # along STAKES
_MOST_PARAMETER = 16.0  # that a pilot promises
_HALVINGS, _COARSE_HALVINGS = 24, 12
_GRID = 401  # thresholds on a normal fit
_REACH = 4.0  # deviations beyond its centres


class Counted(NamedTuple):
    """The errors of a threshold in the pilot that it was chosen on, and in the runs that are counted."""

    threshold: float
    pilot: RunErrors
    rest: RunErrors


class CanaryMethod(NamedTuple):
    """A method: the family (of a delta) that its threshold is chosen for, (errors, delta, confidence) -> its
    bound, and the least canaries a run that it needs."""

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


def lower_bound(family: Family, counted: Counted, error: float) -> float:
    """The betting test's lower limit of the parameter, at least 0: it exceeds the truth with probability at
    most `error`."""
    least = _least_of_coins if counted.rest.paired else _least_of_sets
    log_least = least(family, counted, float(-np.log(error)))
    return _last(lambda parameter: log_least(parameter) >= -np.log(error), _observed(family, counted))


def lifted(counted: Counted, delta: float, confidence: float) -> Bound:
    """epsilon at delta, for any trade-off curve and any number of runs."""
    epsilon = lower_bound(exact.approximate_dp(delta), counted, 1 - confidence)
    return _bound(LIFTED, (epsilon, None), counted, delta, confidence, NOTHING)


def lifted_gaussian(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu for any number of runs; epsilon follows if the average trade-off curve is Gaussian."""
    mu = lower_bound(exact.GAUSSIAN, counted, 1 - confidence)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(LIFTED_GAUSSIAN, found, counted, delta, confidence, GAUSSIAN_CURVE)


def clustered(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu from the average rates, less its standard error over runs times Student's quantile."""
    mu = max(_normal_limit(counted.rest, 1 - confidence), 0.0)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(CLUSTERED, found, counted, delta, confidence, GAUSSIAN_AND_MANY_RUNS)


def lidp(order: int, interval: exchangeable.Interval, assumes: str) -> CanaryMethod:
    """The method of one order and interval: upper limits of both rates, each at half the error."""

    def conclude(counted: Counted, delta: float, confidence: float) -> Bound:
        error, rest = (1 - confidence) / 2, counted.rest

        def upper(sums: Array, canaries: int) -> float:
            limit = exchangeable.limits(sums, canaries, order, error, interval)[1]
            return min(rest.scale * limit, 1.0)

        rates = upper(rest.alarms, rest.canaries_out), upper(rest.misses, rest.canaries_in)
        epsilon = max(float(conversions.epsilon_from_rates(*rates, delta)), 0.0)
        return _bound(_lidp_name(interval, order), (epsilon, None), counted, delta, confidence, assumes)

    return CanaryMethod(exact.approximate_dp, conclude, order)


def _gaussian(delta: float) -> Family:
    """Gaussian curves, whatever delta."""
    return exact.GAUSSIAN


def _lidp_name(interval: exchangeable.Interval, order: int) -> str:
    return f"lidp_{interval.__name__}_{order}"


_LIDP = {
    _lidp_name(interval, order): lidp(order, interval, assumes)
    for interval, assumes in ((exchangeable.wilson, MANY_RUNS), (exchangeable.bernstein, NOTHING))
    for order in (1, 2, 4)
}
METHODS = {
    **_LIDP,
    LIFTED: CanaryMethod(exact.approximate_dp, lifted),
    LIFTED_GAUSSIAN: CanaryMethod(_gaussian, lifted_gaussian),
    CLUSTERED: CanaryMethod(_gaussian, clustered),
}


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
    of_in, of_out = (round(count / counted.rest.scale) for count in _guesses(counted.rest))
    return Bound(
        method, epsilon, mu, delta, confidence, counted.threshold, alarms, misses, of_in, of_out, assumes
    )


def _guesses(errors: RunErrors) -> tuple[int, int]:
    """How many guesses stand behind the misses and the false alarms, times the scale."""
    return len(errors.misses) * errors.canaries_in, len(errors.alarms) * errors.canaries_out


def _observed(family: Family, counted: Counted) -> float:
    """The parameter of the curve through the smoothed average rates."""
    of_in, of_out = _guesses(counted.rest)
    rates = [
        min((counted.rest.scale * errors.sum() + 0.5) / (guesses + 1), 1.0)
        for errors, guesses in ((counted.rest.alarms, of_out), (counted.rest.misses, of_in))
    ]
    return float(family.parameter(*rates))


def _last(holds: Callable[[float], bool], start: float) -> float:
    """The largest parameter >= 0 up to which a monotone condition holds; 0 where it never does."""
    if not start > 0 or not holds(0.0):
        return 0.0
    low, high = 0.0, start
    while holds(high):
        low, high = high, 2 * high
    return _halved(holds, low, high, _HALVINGS)


def _halved(holds: Callable[[float], bool], low: float, high: float, times: int) -> float:
    """The lower end of an interval, halved so often, up to which a monotone condition holds."""
    for _ in range(times):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _cut(growth: Array, shares: Array, target: float) -> float:
    """The least log capital over points of the curve (L, G) of a mixture, cut at the target."""
    alone = (growth + np.log(shares)[:, None]).max(0)  # at most the mixture's
    short = alone < target
    return min(float(betting.mixed(growth[:, short], shares).min(initial=target)), target)


def _shares(alone: int) -> Array:
    """The capital's shares: the pilot's best bet, those beside it, and so many on each world alone."""
    beside = (1 - _BEST_SHARE - _ALONE_SHARE) / len(_STEPS)
    parts = [_BEST_SHARE, beside, _ALONE_SHARE / (2 * alone)]
    return np.repeat(parts, [1, len(_STEPS), 2 * alone])


def _least_of_sets(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """parameter -> the least log capital on its curve, cut at the target, of two sets of runs: pairs of
    stakes, one a world."""
    rates, stakes = counted.rest.rates(), betting.STAKES
    promised = [
        betting.log_growth(pilot, _COARSE, stakes) * (len(values) / len(pilot))
        for values, pilot in zip(rates, counted.pilot.rates(), strict=True)
    ]
    pairs = _pairs(family, promised[0], promised[1], target)
    out, into = (betting.log_growth(values, _LEVELS, stakes) for values in rates)

    def least(parameter: float) -> float:
        corners = _corners(family, parameter, _LEVELS)
        return _cut(out[pairs.out, :-1] + into[pairs.into[:, None], corners], pairs.shares, target)

    return least


class _Pairs(NamedTuple):
    """A mixture of pairs of stakes, as places in betting.STAKES, and the shares (L,) of the capital."""

    out: NDArray[np.int64]
    into: NDArray[np.int64]
    shares: Array


def _pairs(family: Family, out: Array, into: Array, target: float) -> _Pairs:
    """The pair that promises the largest parameter by the log growths (L, G) of the pilot, pairs that are
    larger and smaller by a common factor, and all bets on one world alone."""
    size = len(betting.STAKES)
    alone = np.arange(1, size, 3)
    single = np.log(_ALONE_SHARE / (2 * len(alone)))

    def enough(parameter: float) -> NDArray[np.bool_]:
        corners = _corners(family, parameter, _COARSE)
        first, second = out[:, :-1], into[:, corners]
        covered = np.maximum(first[alone].max(0), second[alone].max(0)) + single >= target
        sums = first[:, None, ~covered] + second[None][:, :, ~covered]
        return np.asarray((sums + np.log(_BEST_SHARE) >= target).all(-1))

    promised = _halved(
        lambda parameter: bool(enough(parameter).any()), 0.0, _MOST_PARAMETER, _COARSE_HALVINGS
    )
    i, j = np.unravel_index(int(enough(promised).argmax()), (size, size))
    scaled = np.clip(np.array([[i], [j]]) + _STEPS, 1, size - 1)
    zeros = np.zeros_like(alone)
    return _Pairs(
        np.concatenate([[i], scaled[0], alone, zeros]),
        np.concatenate([[j], scaled[1], zeros, alone]),
        _shares(len(alone)),
    )


def _corners(family: Family, parameter: float, levels: Array) -> NDArray[np.int64]:
    """For each cell of false-positive rates the level at or below the curve's false-negative rate at its
    upper end."""
    rates_in = family.trade_off(parameter, levels[1:])
    return np.clip(np.searchsorted(levels, rates_in, side="right") - 1, 0, None)


class _CoinBets(NamedTuple):
    """A mixture of bets on z = part * FN + (1 - part) * FP: the parts (L,), the stakes (L,) on z, and the
    shares (L,) of the capital."""

    parts: Array
    stakes: Array
    shares: Array


def _least_of_coins(family: Family, counted: Counted, target: float) -> Callable[[float], float]:
    """parameter -> the least log capital on its curve, cut at the target, where a run gives both rates."""
    bets = _coin_bets(family, counted, target)
    growth = np.concatenate(
        [
            _growth(counted.rest, part, _MEANS, np.array([stake]))
            for part, stake in zip(bets.parts, bets.stakes, strict=True)
        ]
    )
    parts, rows = bets.parts[:, None], np.arange(len(bets.parts))[:, None]

    def least(parameter: float) -> float:
        means = parts * family.trade_off(parameter, _LEVELS[1:]) + (1 - parts) * _LEVELS[:-1]
        below = np.searchsorted(_MEANS, means, side="right") - 1
        return _cut(np.where(below >= 0, growth[rows, below], -np.inf), bets.shares, target)

    return least


def _coin_bets(family: Family, counted: Counted, target: float) -> _CoinBets:
    """The bet that promises the largest parameter by the pilot, with larger and smaller stakes, and all bets
    on one rate alone."""
    stakes, alone = betting.STAKES[1:], betting.STAKES[1::3]
    scale = len(counted.rest.misses) / len(counted.pilot.misses)

    def critical(part: float, of: Array, share: float) -> Array:
        enough = scale * _growth(counted.pilot, part, _COARSE_MEANS, of) >= target - np.log(share)
        return np.where(enough.any(1), _COARSE_MEANS[enough.argmax(1)], 2.0)

    rate_out, rate_in = (critical(part, alone, _ALONE_SHARE / (2 * len(alone))).min() for part in (0.0, 1.0))
    least_means = np.array([critical(part, stakes, _BEST_SHARE) for part in _PARTS])  # (parts, stakes)

    def margins(parameter: float) -> Array:
        out, into = _COARSE[:-1], family.trade_off(parameter, _COARSE[1:])
        short = (out < rate_out) & (into < rate_in)
        means = _PARTS[:, None] * into[short] + (1 - _PARTS[:, None]) * out[short]
        beyond: Array = means.min(1, initial=1.0)[:, None] - least_means
        return beyond

    promised = _halved(lambda p: bool(margins(p).max() >= 0), 0.0, _MOST_PARAMETER, _COARSE_HALVINGS)
    part, best = np.unravel_index(int(margins(promised).argmax()), least_means.shape)
    scaled = stakes[np.clip(best + np.concatenate([[0], _STEPS]), 0, len(stakes) - 1)]
    return _CoinBets(
        np.repeat([_PARTS[part], 0.0, 1.0], [len(scaled), len(alone), len(alone)]),
        np.concatenate([scaled, alone, alone]),
        _shares(len(alone)),
    )


def _growth(errors: RunErrors, part: float, means: Array, stakes: Array) -> Array:
    """log growth (stakes, means) of bets on z; each canary adds to one of the rates, so that z is at most
    scale * max(part, 1 - part)."""
    false_positive, false_negative = errors.rates()
    most = errors.scale * max(part, 1 - part)
    return betting.log_growth(part * false_negative + (1 - part) * false_positive, means, stakes, most)


def _normal_limit(errors: RunErrors, error: float) -> float:
    """mu's lower limit by the delta method."""
    rates = errors.rates()
    smoothed = [
        (errors.scale * sums.sum() + 0.5) / (guesses + 1)
        for sums, guesses in zip((errors.alarms, errors.misses), reversed(_guesses(errors)), strict=True)
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
    depth, (of_in, of_out) = -np.log(error), _guesses(rest)

    def raised(rates: Array, guesses: int, runs: int) -> Array:
        deviation = np.sqrt(2 * depth * rest.scale * rates * (1 - rates) / guesses)
        above: Array = np.minimum(rates + deviation + rest.scale * depth / runs, 1.0)
        return above

    rates = raised(rates_out, of_out, len(rest.alarms)), raised(rates_in, of_in, len(rest.misses))
    promised: Array = family.parameter(*rates)
    return promised
