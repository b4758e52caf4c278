"""Lower bounds on a privacy parameter from many canaries per run.

    lidp_wilson_L       epsilon from two intervals for exchangeable bits of order L = 1, 2, 4, with both
                        directions of the inequality (LiDP paper, Sections 4 and 5): asymptotic, as published
    lidp_bernstein_L    the same with finite-sample intervals
    lifted              epsilon by betting on the per-run averages: finite-sample, assumes nothing
    lifted_gaussian     mu by the same bets, against Gaussian trade-off curves
    clustered           mu from both average error rates, with a standard error over runs (not canaries)

`canaries` explains why average error rates obey the trade-off inequality, `betting` how they are tested. The
threshold and the bets are chosen on a pilot: runs that are not counted. A hash of the set of runs decides
which runs these are, and the threshold is a score of the pilot, chosen by ranks. Therefore a bound does not
change with the order of the runs, the order of the canaries in a run, or an increasing map of all scores.

Exchangeable bits (LiDP paper, Section 4 and Appendix): a run gives K bits x_1..x_K, of which only the sum S
matters. Let m_l = C(S, l) / C(K, l), the share of l-tuples whose bits are all 1, and mu_l = E m_l. The mean
of m_l over n runs estimates mu_l, and two random l-subsets share i canaries with probability h_l(i), so that

    Var(m_l) = sum_i h_l(i) mu_(2l - i) - mu_l^2.

A bound of order 1 uses the variance mu_1 - mu_1^2 of a single bit. A bound of order L = 2, 4, 8, ... first
bounds mu_j for L/2 < j <= L in the same way and then descends to mu_1: each variance is bounded in terms of
upper limits of the higher moments and of the unknown moment itself. There are L such limits, and each gets an
L-th of the error. The authors' code has a wrong term at order 4 (mu_4 minus the square of the bound on mu_3);
here it follows from the identity (Errata L1 in experiments/lidp/README.md).
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.evidence.canaries import Counted, Design, RunErrors
from audit.laws import conversions
from audit.methods import betting, exact, thresholds
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, Bound
from audit.methods.exact import Family
from audit.methods.method import COINS, GAUSSIAN_CURVE, MANY_CANARIES, NOTHING, Assumption, Method

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


class VarianceBound(NamedTuple):
    """An upper bound on the variance of a moment whose mean is x: linear * x + constant - x^2."""

    linear: float
    constant: float

    def mirror(self) -> "VarianceBound":
        """Returns the same bound as a function of 1 - x."""
        return VarianceBound(2 - self.linear, self.linear + self.constant - 1)


_VARIANCE_OF_BIT = VarianceBound(1.0, 0.0)
Limits = tuple[float, float]
Interval = Callable[[float, int, float, VarianceBound], Limits]


class Proven(NamedTuple):
    """What a method proves: epsilon, and mu where epsilon follows from that."""

    epsilon: float
    mu: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryMethod(Method):
    """A lower bound from runs with several canaries each.

    Attributes:
      family: Maps delta to the family of trade-off functions that the threshold is chosen for.
      prove: Maps (error counts, delta, confidence) to the values of the bound.
      canaries: The least number of canaries per run that the method needs.
    """

    family: Callable[[float], Family]
    prove: Callable[[Counted, float, float], Proven]
    canaries: int = 1

    def bound(self, design: Design, delta: float, confidence: float) -> Bound:
        """Returns the method's bound from the scores of a design."""
        counted = count(design, self.family(delta), 1 - confidence)
        return _conclude(self, design, counted, delta, confidence)


def count(design: Design, family: Family, error: float) -> Counted:
    """Splits off a pilot of runs, chooses a threshold on it, and counts the errors of both parts.

    Args:
      design: the scores.
      family: the trade-off functions for whose parameter the threshold is chosen.
      error: of the bound that will be computed.
    """
    pilot, rest = design.split()
    # Of the errors only the numbers of runs and canaries are used, which any threshold gives.
    threshold = _choose_threshold(pilot, rest.errors(0.0), family, error)
    return Counted(threshold, pilot.errors(threshold), rest.errors(threshold))


def lifted(counted: Counted, delta: float, confidence: float) -> Proven:
    """Returns the bound on epsilon at delta by betting, for any trade-off curve and any number of runs."""
    return Proven(betting.lower_bound(exact.approximate_dp(delta), counted, 1 - confidence))


def lifted_gaussian(counted: Counted, delta: float, confidence: float) -> Proven:
    """Returns the bound on mu by betting against Gaussian trade-off curves, for any number of runs.

    Its epsilon follows if the average trade-off curve is Gaussian.
    """
    mu = betting.lower_bound(exact.GAUSSIAN, counted, 1 - confidence)
    return Proven(conversions.epsilon_from_mu(mu, delta), mu)


def clustered(counted: Counted, delta: float, confidence: float) -> Proven:
    """Returns the bound on mu from both average rates: mu minus Student's quantile times its standard error.

    The standard error is taken over runs, which are the independent units.
    """
    mu = max(_compute_normal_limit(counted.rest, 1 - confidence), 0.0)
    return Proven(conversions.epsilon_from_mu(mu, delta), mu)


def lidp(order: int, interval: Interval, assumes: Assumption) -> CanaryMethod:
    """Returns the record of a method of the LiDP paper, for an order and an interval.

    Its bound is the epsilon of the upper limits of both error rates, each at half the error.

    Args:
      order: the highest moment of a run's errors that is used, a power of two.
      interval: `wilson` or `bernstein`.
      assumes: what the interval needs.
    """

    def bound_rate(scale: float, sums: Array, canaries: int, error: float) -> float:
        """Returns the upper limit of an error rate from each run's errors (n,) among its canaries.

        The mean share of errors, times the scale, is the rate (`RunErrors`).
        """
        _, upper = exchangeable_limits(sums, canaries, order, error, interval)
        return min(scale * upper, 1.0)

    def prove(counted: Counted, delta: float, confidence: float) -> Proven:
        """Returns epsilon of the trade-off curve through both rates' upper limits."""
        error = (1 - confidence) / 2
        rest = counted.rest
        fpr = bound_rate(rest.scale_out, rest.alarms, rest.canaries_out, error)
        fnr = bound_rate(rest.scale_in, rest.misses, rest.canaries_in, error)
        return Proven(max(float(conversions.epsilon_from_rates(fpr, fnr, delta)), 0.0))

    return CanaryMethod(
        name=f"lidp_{interval.__name__}_{order}",
        family=exact.approximate_dp,
        prove=prove,
        canaries=order,
        assumes=assumes,
        label=f"LiDP {interval.__name__.capitalize()} {order}",
    )


def wilson(mean: float, n: int, error: float, variance: VarianceBound = _VARIANCE_OF_BIT) -> Limits:
    """Returns Wilson's limits of the mean of n values in [0, 1].

    They are the x that a one-sided normal test at level `error` does not reject,
    (x - mean)^2 <= z^2 / n * variance(x): the roots of a quadratic in x. Asymptotic in n.

    Args:
      mean: The average of the values.
      n: The number of values.
      error: The probability with which each of the limits may miss.
      variance: An upper bound on the variance of a value, as a function of x.

    Returns:
      (lower, upper)
    """
    z = float(-special.ndtri(error))
    a = n + z * z
    b = 2 * n * mean + z * z * variance.linear
    c = n * mean**2 - z * z * variance.constant
    root = np.sqrt(max(b * b - 4 * a * c, 0.0))
    low = (b - root) / (2 * a)
    high = (b + root) / (2 * a)

    # The variance of a value in [0, 1] is at most 1/4.
    largest_width = z / (2 * np.sqrt(n))
    lower = np.clip(max(low, mean - largest_width), 0, 1)
    upper = np.clip(min(high, mean + largest_width), 0, 1)
    return float(lower), float(upper)


def bernstein(
    mean: float, n: int, error: float, variance: VarianceBound = _VARIANCE_OF_BIT
) -> Limits:
    """Returns limits by Bernstein's inequality, each missed with probability at most `error` for every n.

    They are the x with |x - mean| = sqrt(2 L / n * variance(x)) + 2 L / (3 n), L = log(1 / error).

    Args:
      mean: The average of the values, which are in [0, 1].
      n: The number of values.
      error: The probability with which each of the limits may miss.
      variance: An upper bound on the variance of a value, as a function of its mean x.

    Returns:
      (lower, upper)
    """
    depth = np.log(1 / error) / n  # L / n
    # The lower limit of a mean is 1 less the upper limit of 1 less the values.
    lower = 1 - _compute_bernstein_upper(1 - mean, depth, variance.mirror())
    upper = _compute_bernstein_upper(mean, depth, variance)
    return lower, upper


def _compute_bernstein_upper(mean: float, depth: float, variance: VarianceBound) -> float:
    """Returns Bernstein's upper limit of a mean: the larger root of its quadratic in x.

    Args:
      mean: The average of the values, in [0, 1].
      depth: L / n, with L the log of 1 / error.
      variance: An upper bound on the variance of a value, as a function of its mean x.
    """
    shifted = mean + 2 * depth / 3
    a = 1 + 2 * depth
    b = 2 * (shifted + depth * variance.linear)
    c = shifted**2 - 2 * depth * variance.constant
    root = (b + np.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a)

    largest = shifted + np.sqrt(depth / 2)  # the variance is at most 1/4
    least = shifted  # the variance is at least 0
    return float(np.clip(max(min(root, largest), least), 0, 1))


def exchangeable_limits(
    sums: Array, canaries: int, order: int, error: float, interval: Interval
) -> Limits:
    """Returns confidence limits of the mean mu_1 of K exchangeable bits, from their sums in n runs.

    An interval for the moment mu_j, the probability that j random bits of a run are all 1, needs a bound on
    the variance of mu_j's estimate, which upper limits of mu_(j + 1), ..., mu_(2 j) give. So the limits are
    computed from the highest moment down; moments above order / 2 are bounded as bits are.

    Source: LiDP paper, Algorithm 2 and Appendix; orders from 8 on follow the recursion.

    Args:
      sums: (n,) the sum of each run's bits.
      canaries: K, at least `order`.
      order: The highest moment that is estimated, a power of two.
      error: The probability with which each of the limits may miss, as far as the interval holds.
      interval: `wilson` or `bernstein`.

    Returns:
      (lower, upper)
    """
    require(order >= 1 and order & (order - 1) == 0, f"`order={order}`: give a power of two")
    require(
        order <= canaries,
        f"order {order} needs {order} canaries a run, here are {canaries}",
    )
    require(np.all((sums >= 0) & (sums <= canaries)), "sums of bits lie between 0 and K")
    means = moments(sums, canaries, order)
    n = len(sums)
    error_per_moment = error / order
    if order == 1:
        return interval(means[1], n, error_per_moment, _VARIANCE_OF_BIT)

    upper_limits: dict[int, float] = {}  # of mu_j, by j
    for j in range(order // 2 + 1, order + 1):
        _, upper_limits[j] = interval(means[j], n, error_per_moment, _VARIANCE_OF_BIT)
    for j in range(order // 2, 1, -1):
        variance = _variance(j, canaries, upper_limits)
        _, upper_limits[j] = interval(means[j], n, error_per_moment, variance)
    variance = _variance(1, canaries, upper_limits)
    return interval(means[1], n, error_per_moment, variance)


def moments(sums: Array, canaries: int, order: int) -> list[float]:
    """Returns estimates of mu_0 = 1, mu_1, ..., mu_order; mu_l is the probability that l bits of a run are 1.

    Each is the mean over runs of C(S, l) / C(K, l), the share of l-tuples whose bits are all 1.

    Args:
      sums: S (n,), the sum of each run's bits.
      canaries: K, the number of bits.
      order: the highest l.
    """
    shares = np.ones_like(sums, np.float64)
    means = [1.0]
    for j in range(order):
        shares = shares * np.maximum(sums - j, 0) / (canaries - j)
        means.append(float(shares.mean()))
    return means


def _variance(j: int, canaries: int, upper: dict[int, float]) -> VarianceBound:
    """Returns the bound on Var(m_j) = sum_i h_j(i) mu_(2j - i) - mu_j^2 as a function of x = mu_j.

    h_j(i) is the probability that two random j-subsets of the canaries share i (LiDP paper, Appendix). The
    subsets that coincide (i = j) give the linear term h_j(j) x, the others the constant.

    Args:
      j: The order of the moment.
      canaries: K.
      upper: Upper limits of mu_(j + 1), ..., mu_(2 j), by order.
    """
    overlaps = _overlaps(j, canaries)
    terms = [overlaps[i] * upper[2 * j - i] for i in range(j) if overlaps[i]]
    return VarianceBound(overlaps[j], sum(terms))


def _overlaps(size: int, canaries: int) -> list[float]:
    """Returns h(i) for i = 0..size: the probability that two random subsets of this size share i canaries."""
    all_subsets = special.comb(canaries, size)
    probabilities = []
    for shared in range(size + 1):
        subsets = special.comb(size, shared) * special.comb(canaries - size, size - shared)
        probabilities.append(float(subsets / all_subsets))
    return probabilities


def _gaussian(delta: float) -> Family:
    """Returns the Gaussian family, which is the same for every delta."""
    return exact.GAUSSIAN


_RECORDS = (
    lidp(1, wilson, MANY_RUNS),
    lidp(2, wilson, MANY_RUNS),
    lidp(4, wilson, MANY_RUNS),
    lidp(1, bernstein, NOTHING),
    lidp(2, bernstein, NOTHING),
    lidp(4, bernstein, NOTHING),
    CanaryMethod(
        name=LIFTED,
        family=exact.approximate_dp,
        prove=lifted,
        assumes=NOTHING,
        label="lifted",
        legend="lifted, assumption-free",
        counterpart=ASSUMPTION_FREE,
    ),
    CanaryMethod(
        name=LIFTED_GAUSSIAN,
        family=_gaussian,
        prove=lifted_gaussian,
        assumes=GAUSSIAN_CURVE,
        label="lifted, if Gaussian",
        legend="lifted, if the curve is Gaussian",
        counterpart=IF_GAUSSIAN,
    ),
    CanaryMethod(
        name=CLUSTERED,
        family=_gaussian,
        prove=clustered,
        assumes=GAUSSIAN_AND_MANY_RUNS,
        label="clustered",
        legend="clustered, if also runs are many",
    ),
)
METHODS = {record.name: record for record in _RECORDS}


def counterpart(method: str) -> CanaryMethod | None:
    """Returns the method of many canaries that replaces a method of single canaries, or None."""
    for record in METHODS.values():
        if record.counterpart == method:
            return record
    return None


def usable(canaries: int) -> dict[str, CanaryMethod]:
    """Returns the methods, by name, that need no more than this number of canaries per run."""
    return {name: method for name, method in METHODS.items() if method.canaries <= canaries}


def bounds(design: Design, delta: float, confidence: float) -> list[Bound]:
    """Returns the bounds of every method that the number of canaries allows, in the table's order.

    Methods of the same family share the pilot, the threshold and the counts.

    Raises:
      InputError: Parameters out of range, or too few runs.
    """
    conversions.require_levels(delta, confidence)
    counted: dict[Callable[[float], Family], Counted] = {}
    results = []
    for method in usable(min(design.canaries)).values():
        if method.family not in counted:
            counted[method.family] = count(design, method.family(delta), 1 - confidence)
        results.append(_conclude(method, design, counted[method.family], delta, confidence))
    return results


def _conclude(
    method: CanaryMethod, design: Design, counted: Counted, delta: float, confidence: float
) -> Bound:
    """Returns the record of a method's bound; the bound is lower if a caller's coins may be slightly unfair.

    Limits of the coins' probability widen only the counted runs' errors, not the pilot's: they come from all
    coins, those of the counted runs too, and so must not change what the pilot chose.

    Args:
      method: whose bound it is.
      design: the scores, with their coins.
      counted: the errors of the threshold.
      delta: of epsilon.
      confidence: of the bound.
    """
    limits = design.limits(1 - confidence)
    assumes = method.assumes
    if limits is None:
        proven = method.prove(counted, delta, confidence)
    else:
        widened = counted._replace(rest=limits.widened(counted.rest))
        proven = method.prove(widened, delta, 1 - limits.error)
        if assumes == NOTHING:
            assumes = COINS
    # With coins, a guess on each canary counts for both worlds with a scale of about 2: about half of a run's
    # canaries are in, and half are out.
    guesses_in, guesses_out = counted.rest.guesses()
    return Bound(
        method=method.name,
        epsilon=proven.epsilon,
        mu=proven.mu,
        delta=delta,
        confidence=confidence,
        threshold=counted.threshold,
        false_positives=int(counted.rest.alarms.sum()),
        false_negatives=int(counted.rest.misses.sum()),
        n_in=round(guesses_in / counted.rest.scale_in),
        n_out=round(guesses_out / counted.rest.scale_out),
        assumes=assumes,
    )


def _compute_normal_limit(errors: RunErrors, error: float) -> float:
    """Returns the lower limit of mu = -(Phi^-1(FPR) + Phi^-1(FNR)) by the delta method.

    A normal quantile moves by slope = 1 / phi(quantile) times its rate, so that the variance of mu is that of
    slope_out * FPR + slope_in * FNR over runs: of the sum where both rates are of the same runs, else the
    sum of both variances. Student's quantile has the degrees of freedom of the smaller set of runs.

    Args:
      errors: the errors of a threshold, run by run.
      error: the probability with which the limit may exceed mu, if runs are many.
    """
    rates_out, rates_in = errors.rates()
    runs = min(len(rates_out), len(rates_in))
    require(runs >= 2, "a standard error over runs needs two runs of a kind")
    quantiles = special.ndtri(np.clip(errors.smoothed(), 1e-12, 1 - 1e-12))
    slope_out, slope_in = np.sqrt(2 * np.pi) * np.exp(0.5 * quantiles**2)
    if errors.paired:
        variance = float(np.var(slope_out * rates_out + slope_in * rates_in, ddof=1)) / len(
            rates_out
        )
    else:
        variance_out = float(slope_out * slope_out * np.var(rates_out, ddof=1)) / len(rates_out)
        variance_in = float(slope_in * slope_in * np.var(rates_in, ddof=1)) / len(rates_in)
        variance = variance_out + variance_in
    return float(-quantiles.sum() - special.stdtrit(runs - 1, 1 - error) * np.sqrt(variance))


def _choose_threshold(pilot: Design, rest: RunErrors, family: Family, error: float) -> float:
    """Returns the pilot's score that, as a threshold, should prove the largest parameter.

    The pilot's rates at each score are estimated in three ways (`thresholds.Candidates`). The best score by
    normal distributions wins, unless the pilot's counts, even when raised by their error, predict more
    elsewhere. Where normal distributions predict nothing, the score of the fewest errors takes their place.

    The raised counts elsewhere are compared with the plain counts at the usual score. The largest of many
    predictions may be large by chance alone, so that it moves the threshold only if its error does not
    explain it.

    Args:
      pilot: the scores of the pilot's runs.
      rest: the numbers of runs and canaries that are counted; its errors do not matter.
      family: the trade-off functions.
      error: the error of the bound.
    """
    candidates = thresholds.candidates(*pilot.pooled())
    normal = _predict_parameters(*candidates.normal, rest, family, error)
    counted = _predict_parameters(*candidates.counted, rest, family, error)
    raised = _predict_parameters(*candidates.raised, rest, family, error)
    if normal.max() > 0:
        usual = int(np.argmax(normal))
    else:
        counted_out, counted_in = candidates.counted
        usual = int(np.argmin(counted_out + counted_in))

    best = int(np.argmax(raised))
    if raised[best] > max(counted[usual], 0.0):
        return float(candidates.thresholds[best])
    return float(candidates.thresholds[usual])


def _predict_parameters(
    rates_out: Array, rates_in: Array, rest: RunErrors, family: Family, error: float
) -> Array:
    """Returns the parameter that a test of the counted runs would about prove at each pair of rates.

    It is the parameter of the trade-off curve through both rates, each raised by what such a test cannot
    exclude: a normal deviation of independent guesses, and a share log(1 / error) / n of the n runs in which
    every guess is wrong.

    Args:
      rates_out: (T,) false-positive rates.
      rates_in: (T,) false-negative rates.
      rest: The numbers of runs and canaries that are counted; its errors do not matter.
      family: The trade-off functions.
      error: The error of the bound.
    """
    depth = -np.log(error)

    def raise_rates(rates: Array, scale: float, guesses: int, runs: int) -> Array:
        deviation = np.sqrt(2 * depth * scale * rates * (1 - rates) / guesses)
        return np.asarray(np.minimum(rates + deviation + scale * depth / runs, 1.0))

    guesses_in, guesses_out = rest.guesses()
    fpr = raise_rates(rates_out, rest.scale_out, guesses_out, len(rest.alarms))
    fnr = raise_rates(rates_in, rest.scale_in, guesses_in, len(rest.misses))
    return family.parameter(fpr, fnr)
