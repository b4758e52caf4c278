"""Lower bounds on a privacy parameter from many canaries a run.

    lidp_wilson_L       epsilon from two intervals for exchangeable bits of order L = 1, 2, 4, in both
                        directions of the inequality (LiDP paper, Sections 4 and 5): asymptotic, the paper's
    lidp_bernstein_L    likewise, with finite-sample intervals
    lifted              epsilon by betting on the per-run averages: finite-sample, assumes nothing
    lifted_gaussian     mu likewise, against Gaussian trade-off curves
    clustered           mu from the two average rates with a normal error that runs, not canaries, give

`canaries` says why average error rates obey the trade-off inequality, `betting` how they are tested. The
threshold, and what is bet, come from a pilot of runs that are not counted. Pilots are drawn by a hash of the
set of runs, and a threshold is a score of the pilot, chosen by ranks: neither the order of runs, nor that of
the canaries of a run, nor an increasing map of all scores changes a bound.

Exchangeable bits (LiDP paper, Section 4 and Appendix): a run gives K of them, x_1..x_K, of which only the sum
S matters. With m_l = C(S, l) / C(K, l), the share of l-tuples that are all ones, and mu_l = E m_l, the mean
over n runs of m_l estimates mu_l, and two random l-subsets overlap in i places with probability h_l(i), so
that

    Var(m_l) = sum_i h_l(i) mu_(2l - i) - mu_l^2.

A bound of order 1 uses the variance mu_1 - mu_1^2, as for one bit a run. A bound of order L = 2, 4, 8, ...
first bounds mu_j for L/2 < j <= L likewise, then goes down to mu_1: each variance is bounded by upper limits
of higher moments and by the unknown itself. With L invocations each has an L-th of the error. The term of
order 4 that the authors' code has in a wrong form (mu_4 less the square of the bound on mu_3) is the
identity's here (Errata L1 in experiments/lidp/README.md).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import betting, conversions, exact, thresholds
from audit.statistics.canaries import Counted, Design, RunErrors
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, Bound
from audit.statistics.exact import Family
from audit.statistics.method import COINS, GAUSSIAN_CURVE, MANY_CANARIES, NOTHING, Assumption, Method

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


class _Variance(NamedTuple):
    """The bound a x + b - x^2 on the variance of a moment whose mean is x."""

    a: float
    b: float


_FIRST = _Variance(1.0, 0.0)
Limits = tuple[float, float]
Interval = Callable[[float, int, float, _Variance], Limits]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryMethod(Method):
    """A method of several canaries a run: the family (of a delta) that its threshold is chosen for, (errors,
    delta, confidence) -> its bound, and the least canaries a run that it needs."""

    family: Callable[[float], Family]
    conclude: Callable[[Counted, float, float], Bound]
    canaries: int = 1

    def bound(self, design: Design, delta: float, confidence: float) -> Bound:
        return _concluded(self, design, count(design, self.family(delta), 1 - confidence), delta, confidence)


def count(design: Design, family: Family, error: float) -> Counted:
    """Splits off the pilot, chooses the threshold that promises most for the family, counts errors."""
    pilot, rest = design.split()
    threshold = _choose(pilot, rest.errors(0.0), family, error)
    return Counted(threshold, pilot.errors(threshold), rest.errors(threshold))


def lifted(counted: Counted, delta: float, confidence: float) -> Bound:
    """epsilon at delta, for any trade-off curve and any number of runs."""
    epsilon = betting.lower_bound(exact.approximate_dp(delta), counted, 1 - confidence)
    return _bound(LIFTED, (epsilon, None), counted, delta, confidence, NOTHING)


def lifted_gaussian(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu for any number of runs; epsilon follows if the average trade-off curve is Gaussian."""
    mu = betting.lower_bound(exact.GAUSSIAN, counted, 1 - confidence)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(LIFTED_GAUSSIAN, found, counted, delta, confidence, GAUSSIAN_CURVE)


def clustered(counted: Counted, delta: float, confidence: float) -> Bound:
    """mu from the average rates, less its standard error over runs times Student's quantile."""
    mu = max(_normal_limit(counted.rest, 1 - confidence), 0.0)
    found = conversions.epsilon_from_mu(mu, delta), mu
    return _bound(CLUSTERED, found, counted, delta, confidence, GAUSSIAN_AND_MANY_RUNS)


def lidp(order: int, interval: Interval, assumes: Assumption) -> CanaryMethod:
    """The method of one order and interval: upper limits of both rates, each at half the error."""
    name = f"lidp_{interval.__name__}_{order}"

    def conclude(counted: Counted, delta: float, confidence: float) -> Bound:
        error, rest = (1 - confidence) / 2, counted.rest

        def upper(scale: float, sums: Array, canaries: int) -> float:
            return min(scale * exchangeable_limits(sums, canaries, order, error, interval)[1], 1.0)

        fpr = upper(rest.scale_out, rest.alarms, rest.canaries_out)
        rates = fpr, upper(rest.scale_in, rest.misses, rest.canaries_in)
        epsilon = max(float(conversions.epsilon_from_rates(*rates, delta)), 0.0)
        return _bound(name, (epsilon, None), counted, delta, confidence, assumes)

    return CanaryMethod(
        name=name,
        family=exact.approximate_dp,
        conclude=conclude,
        canaries=order,
        assumes=assumes,
        label=f"LiDP {interval.__name__.capitalize()} {order}",
    )


def wilson(mean: float, n: int, error: float, variance: _Variance = _FIRST) -> Limits:
    """Limits whose one-sided normal test at level `error` does not reject, for the mean of n values in
    [0, 1]: (x - mean)^2 <= z^2 / n * variance(x). Asymptotic in n."""
    z = float(-special.ndtri(error))
    a, b, c = n + z * z, 2 * n * mean + z * z * variance.a, n * mean**2 - z * z * variance.b
    root = np.sqrt(max(b * b - 4 * a * c, 0.0))
    capped = z / (2 * np.sqrt(n))  # the variance is at most 1/4
    low, high = (b - root) / (2 * a), (b + root) / (2 * a)
    return float(np.clip(max(low, mean - capped), 0, 1)), float(np.clip(min(high, mean + capped), 0, 1))


def bernstein(mean: float, n: int, error: float, variance: _Variance = _FIRST) -> Limits:
    """Limits by Bernstein's inequality, each missed with probability at most `error`, whatever n: the x with
    |x - mean| = sqrt(2 L / n * variance(x)) + 2 L / (3 n), L = log(1 / error)."""
    depth = np.log(1 / error) / n
    slack = 2 * depth / 3
    mirrored = _Variance(2 - variance.a, variance.a + variance.b - 1)  # in terms of 1 - x
    lower = 1 - _bernstein_upper(1 - mean, depth, slack, mirrored)
    return lower, _bernstein_upper(mean, depth, slack, variance)


def _bernstein_upper(mean: float, depth: float, slack: float, variance: _Variance) -> float:
    shifted = mean + slack
    a, b = 1 + 2 * depth, 2 * (shifted + depth * variance.a)
    c = shifted**2 - 2 * depth * variance.b
    root = (b + np.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)
    capped = min(root, shifted + np.sqrt(depth / 2))  # the variance is at most 1/4
    return float(np.clip(max(capped, shifted), 0, 1))  # and at least 0


def exchangeable_limits(sums: Array, canaries: int, order: int, error: float, interval: Interval) -> Limits:
    """(lower, upper) limits of mu_1 from the sums (n,) of K bits a run: each is missed with probability at
    most `error`, as far as the interval holds. Orders 1, 2, 4, ... need that many canaries.

    Source: LiDP paper, Algorithm 2 and Appendix; orders from 8 on follow the recursion.
    """
    require(order >= 1 and order & (order - 1) == 0, f"`order={order}`: give a power of two")
    require(order <= canaries, f"order {order} needs {order} canaries a run, here are {canaries}")
    require(np.all((sums >= 0) & (sums <= canaries)), "sums of bits lie between 0 and K")
    means, n = moments(sums, canaries, order), len(sums)
    level = error / order
    if order == 1:
        return interval(means[1], n, level, _FIRST)
    above = {j: interval(means[j], n, level, _FIRST)[1] for j in range(order // 2 + 1, order + 1)}
    for j in range(order // 2, 1, -1):
        above[j] = interval(means[j], n, level, _variance(j, canaries, above))[1]
    return interval(means[1], n, level, _variance(1, canaries, above))


def moments(sums: Array, canaries: int, order: int) -> list[float]:
    """The estimates of mu_0 = 1, mu_1, .., mu_order: means over runs of C(S, l) / C(K, l)."""
    shares, means = np.ones_like(sums, np.float64), [1.0]
    for j in range(order):
        shares = shares * np.maximum(sums - j, 0) / (canaries - j)
        means.append(float(shares.mean()))
    return means


def _variance(j: int, canaries: int, above: dict[int, float]) -> _Variance:
    shares = _overlaps(j, canaries)
    return _Variance(shares[j], sum(shares[i] * above[2 * j - i] for i in range(j) if shares[i]))


def _overlaps(size: int, canaries: int) -> list[float]:
    """h(i): the probability that two random subsets of this size share i canaries."""
    choose = special.comb
    total = choose(canaries, size)
    return [float(choose(size, i) * choose(canaries - size, size - i) / total) for i in range(size + 1)]


def _gaussian(delta: float) -> Family:
    return exact.GAUSSIAN


_RECORDS = (
    *(lidp(order, wilson, MANY_RUNS) for order in (1, 2, 4)),
    *(lidp(order, bernstein, NOTHING) for order in (1, 2, 4)),
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
    conversions.require_levels(delta, confidence)
    methods = usable(min(design.canaries)).values()
    families = dict.fromkeys(method.family for method in methods)
    counted = {family: count(design, family(delta), 1 - confidence) for family in families}
    return [_concluded(method, design, counted[method.family], delta, confidence) for method in methods]


def _concluded(
    method: CanaryMethod, design: Design, counted: Counted, delta: float, confidence: float
) -> Bound:
    """The method's bound. A caller's coins widen only what is counted: what the pilot chose, limits of all
    coins must not change."""
    limits = design.limits(1 - confidence)
    if limits is None:
        return method.conclude(counted, delta, confidence)
    widened = counted._replace(rest=limits.widened(counted.rest))
    bound = method.conclude(widened, delta, 1 - limits.error)
    assumes = COINS if bound.assumes == NOTHING else bound.assumes
    return dataclasses.replace(bound, assumes=assumes, confidence=confidence)


def _bound(
    method: str,
    found: tuple[float, float | None],
    counted: Counted,
    delta: float,
    confidence: float,
    assumes: Assumption,
) -> Bound:
    """The bound (epsilon, mu); its counts are guesses, of all canaries of the runs that were counted."""
    alarms, misses = (int(errors.sum()) for errors in (counted.rest.alarms, counted.rest.misses))
    guesses, pilot = counted.rest.guesses(), counted.pilot
    of_in, of_out = round(guesses[0] / pilot.scale_in), round(guesses[1] / pilot.scale_out)
    return Bound(method, *found, delta, confidence, counted.threshold, alarms, misses, of_in, of_out, assumes)


def _normal_limit(errors: RunErrors, error: float) -> float:
    rates = errors.rates()
    runs = min(map(len, rates))
    require(runs >= 2, "a standard error over runs needs two runs of a kind")
    points = special.ndtri(np.clip(errors.smoothed(), 1e-12, 1 - 1e-12))
    slopes = np.sqrt(2 * np.pi) * np.exp(0.5 * points**2)
    if errors.paired:
        variance = float(np.var(slopes[0] * rates[0] + slopes[1] * rates[1], ddof=1)) / len(rates[0])
    else:
        variance = sum(float(s * s * np.var(r, ddof=1)) / len(r) for s, r in zip(slopes, rates, strict=True))
    return float(-points.sum() - special.stdtrit(runs - 1, 1 - error) * np.sqrt(variance))


def _choose(pilot: Design, rest: RunErrors, family: Family, error: float) -> float:
    """The score of the pilot that promises most as a threshold, by normal distributions of its ranks, or by
    its counts where these, raised by what they may err by, promise more; of no promise, the fewest errors."""
    among = thresholds.candidates(*pilot.pooled())
    normal, counted, raised = (_promise(*rates, rest, family, error) for rates in among[1:])
    usual = int(np.argmax(normal) if normal.max() > 0 else np.argmin(sum(among.counted)))
    best = int(np.argmax(raised))
    return float(among.thresholds[best if raised[best] > max(counted[usual], 0.0) else usual])


def _promise(rates_out: Array, rates_in: Array, rest: RunErrors, family: Family, error: float) -> Array:
    """The parameter through both rates, each raised by about what a test can't see: a normal deviation of
    independent guesses, and a share of log(1 / error) / n of the runs in which all is different."""
    depth, (of_in, of_out) = -np.log(error), rest.guesses()

    def raised(rates: Array, scale: float, guesses: int, runs: int) -> Array:
        deviation = np.sqrt(2 * depth * scale * rates * (1 - rates) / guesses)
        return np.asarray(np.minimum(rates + deviation + scale * depth / runs, 1.0))

    fpr = raised(rates_out, rest.scale_out, of_out, len(rest.alarms))
    return family.parameter(fpr, raised(rates_in, rest.scale_in, of_in, len(rest.misses)))
