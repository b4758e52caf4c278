"""Lower bounds on a privacy parameter from many canaries per run.

The LiDP paper is Pillutla et al. (NeurIPS 2023); its authors' code differs at order 4 (Errata L1 in
experiments/lidp/README.md). `audit.evidence.canaries` derives the inequality, and `betting` tests it.

A hash of all runs seeds the draw of the pilot runs. So reordering runs or canaries, or applying an increasing
function to all scores, does not change the bounds.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array
from audit.evidence.canaries import Counted, Design, RunErrors
from audit.laws import conversions
from audit.methods import betting, exact, thresholds
from audit.methods.estimate import Bound
from audit.methods.exact import Family
from audit.methods.method import (
    COINS,
    GAUSSIAN_CURVE,
    MANY_CANARIES,
    NOTHING,
    OTHERS_IN,
    Assumption,
    Method,
)

LIFTED_GAUSSIAN, LIFTED = MANY_CANARIES
MANY_RUNS = Assumption(
    "many runs",
    "many runs",
    "many independent runs (asymptotic)",
    "asymptotic; with few runs it exceeds its error level",
)


class VarianceBound(NamedTuple):
    """An upper bound on the variance of a value, as a function of its mean x: linear * x + constant - x^2."""

    linear: float
    constant: float


_VARIANCE_OF_BIT = VarianceBound(linear=1.0, constant=0.0)  # x - x^2
Limits = tuple[float, float]  # lower, upper
# (mean, number of values, error of each limit, bound on a value's variance) -> limits on the true mean
ComputeLimits = Callable[[float, int, float, VarianceBound], Limits]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryMethod(Method):
    """A lower bound from runs with several canaries each.

    Attributes:
      prove: Maps (trade-off functions, error counts, error probability) to a bound on the functions'
        parameter: mu if the method assumes a Gaussian curve, else epsilon.
      canaries: The smallest number of canaries per run that the method accepts.
    """

    prove: Callable[[Family, Counted, float], float]
    canaries: int = 1

    def bound(self, design: Design, delta: float, confidence: float) -> Bound:
        """Returns the method's lower bound from the scores of a design.

        We choose the threshold and any bets using some of the runs (a pilot), and count errors in the others.
        """
        error = 1 - confidence
        assumes = self.assumes
        family = exact.GAUSSIAN if assumes.gaussian else exact.approximate_dp(delta)
        counted = count(design, family, error)
        errors = counted.rest  # in the runs outside the pilot
        # A user's coins may be unfair. So we raise the error rates, at the cost of some error probability.
        widened, error_left = design.widen(errors, error)
        proven = self.prove(family, counted._replace(rest=widened), error_left)
        mu = None
        epsilon = proven
        if assumes.gaussian:
            mu = proven
            epsilon = conversions.epsilon_from_mu(mu, delta)
        if assumes == NOTHING:  # about the curve, not about how canaries were inserted
            has_user_coins = error_left < error  # `widen` spent some error
            assumes = _choose_assumption(errors, user_coins=has_user_coins)
        guesses_in, guesses_out = errors.guesses()
        return Bound(
            method=self.name,
            epsilon=epsilon,
            mu=mu,
            delta=delta,
            confidence=confidence,
            threshold=counted.threshold,
            false_positives=int(errors.alarms.sum()),
            false_negatives=int(errors.misses.sum()),
            # With coins, only a fraction 1 / scale of the canaries is in each world on average.
            n_in=round(guesses_in / errors.scale_in),
            n_out=round(guesses_out / errors.scale_out),
            assumes=assumes,
        )


def _choose_assumption(errors: RunErrors, user_coins: bool) -> Assumption:
    """Returns the assumption of a bound that is valid for any trade-off curve and any number of runs.

    For `user_coins`, we assume independent coins with the same probability (COINS).
    """
    # Without coins (`same_runs` is False), we compare runs with K canaries to other runs, which we assume to
    # contain K - 1 canaries (OTHERS_IN).
    if not errors.same_runs and errors.canaries_in > 1:
        return OTHERS_IN
    return COINS if user_coins else NOTHING  # our own coins are fair


def count(design: Design, family: Family, error: float) -> Counted:
    """Chooses a threshold using pilot runs, and counts its errors in the pilot and the other runs.

    We choose the threshold that should give the largest bound on the parameter of `family` at error
    probability `error`.
    """
    pilot, rest = design.split()
    # We only use the numbers of runs and guesses, which do not depend on the threshold.
    sizes = rest.errors(0.0)
    threshold = _choose_threshold(pilot, sizes, family, error)
    return Counted(threshold, pilot.errors(threshold), rest.errors(threshold))


def _prove_lidp(
    order: int, compute_limits: ComputeLimits, family: Family, counted: Counted, error: float
) -> float:
    """Returns a lower bound on epsilon or mu, the parameter of a family of trade-off curves.

    The parameter is that of the curve through the upper limits on both error rates. Each limit gets half of
    the error probability. `exchangeable_limits` describes `order` and `compute_limits`. Source: Pillutla et
    al., 2023.
    """
    errors = counted.rest  # in the runs outside the pilot
    # Upper limits on the mean fractions of misses and false alarms among a run's canaries.
    _, missed = exchangeable_limits(
        errors.misses, errors.canaries_in, order, error / 2, compute_limits
    )
    _, alarmed = exchangeable_limits(
        errors.alarms, errors.canaries_out, order, error / 2, compute_limits
    )
    # With fair coins, half of the canaries are in each world, so the rate is twice the fraction (scale 2).
    fpr = min(errors.scale_out * alarmed, 1.0)
    fnr = min(errors.scale_in * missed, 1.0)
    return max(float(family.parameter(fpr, fnr)), 0.0)


def wilson(mean: float, n: int, error: float, variance: VarianceBound = _VARIANCE_OF_BIT) -> Limits:
    """Returns Wilson's asymptotic limits (lower, upper) for the mean of n values in [0, 1].

    The limits enclose the values x with (x - mean)^2 <= z^2 / n * variance(x), where z = Phi^-1(1 - error).

    Args:
      mean: The average of the n values.
      error: The error probability of each limit.
      variance: An upper bound on the variance of a value with mean x.
    """
    z = -special.ndtri(error)
    low, high = _solve(mean, z * z / n, variance)
    # Values in [0, 1] have a variance of at most 1/4. If `variance` exceeds 1/4, limits for 1/4 are tighter.
    largest_width = z / (2 * np.sqrt(n))
    return float(max(low, mean - largest_width, 0)), float(min(high, mean + largest_width, 1))


def bernstein(
    mean: float, n: int, error: float, variance: VarianceBound = _VARIANCE_OF_BIT
) -> Limits:
    """Returns Bernstein's limits (lower, upper) for the mean of n values in [0, 1], valid for every n.

    The limits are the values x with |x - mean| = sqrt(2 L / n * variance(x)) + 2 L / (3 n) and L = log(1 /
    error). `variance` bounds the variance of values with mean x. See `wilson` for the other arguments.
    """
    factor = 2 * np.log(1 / error) / n  # 2 L / n
    shift = factor / 3
    lower_mean = mean - shift
    upper_mean = mean + shift
    # Squaring |x - mean| - shift = sqrt(...) gives a quadratic equation for each limit.
    low, _ = _solve(lower_mean, factor, variance)
    _, high = _solve(upper_mean, factor, variance)
    # `variance` is a bound only at the true mean. At other x, it may be negative or exceed 1/4, the largest
    # variance of values in [0, 1], so we clip the square root.
    largest_width = np.sqrt(factor / 4)
    lower = np.clip(low, lower_mean - largest_width, lower_mean)
    upper = np.clip(high, upper_mean, upper_mean + largest_width)
    return float(max(lower, 0)), float(min(upper, 1))


def _solve(mean: float, factor: float, variance: VarianceBound) -> Limits:
    """Returns both solutions x of (x - mean)^2 = factor * variance(x), in ascending order."""
    a = 1 + factor
    b = 2 * mean + factor * variance.linear
    c = mean**2 - factor * variance.constant
    # Rounding errors or a negative variance bound can make the discriminant negative.
    discriminant = b * b - 4 * a * c
    root = np.sqrt(max(discriminant, 0.0))
    return (b - root) / (2 * a), (b + root) / (2 * a)


def exchangeable_limits(
    sums: Array, canaries: int, order: int, error: float, compute_limits: ComputeLimits
) -> Limits:
    """Returns confidence limits (lower, upper) for the mean mu_1 of exchangeable bits, given sums in n runs.

    mu_j is the probability that j random bits of a run are all 1. We compute limits for mu_order, ..., mu_1
    in turn. Source: LiDP paper, Algorithm 2 and Appendix.

    Args:
      sums: (n,) the sum of each run's bits.
      canaries: K, the number of bits, at least `order`.
      order: The highest moment to estimate, a power of two.
      error: The error probability of each limit of mu_1.
      compute_limits: `wilson` or `bernstein`.
    """
    means = moments(sums, canaries, order)
    limits: dict[int, Limits] = {}  # j -> limits for mu_j
    for j in range(order, 0, -1):
        variance = _VARIANCE_OF_BIT  # valid for any value in [0, 1]
        # Limits for mu_(j + 1), ..., mu_(2 j) give a tighter bound on the variance of mu_j's estimate.
        if 2 * j <= order:
            variance = _bound_variance(j, canaries, limits)
        # Each of the `order` moments gets the same share of the error.
        limits[j] = compute_limits(means[j], len(sums), error / order, variance)
    return limits[1]


def moments(sums: Array, canaries: int, order: int) -> list[float]:
    """Returns estimates of the moments mu_0 = 1, mu_1, ..., mu_order of exchangeable bits.

    mu_l is the probability that l random bits of a run are all 1. `sums` (n,) are the runs' sums of bits; a
    run has one bit for each of its `canaries`.
    """
    # If l random bits are 1, another random bit is 1 with probability (sum - l) / (canaries - l).
    taken = np.arange(order)
    ones_left = np.maximum(sums[:, None] - taken, 0)
    probabilities = np.cumprod(ones_left / (canaries - taken), axis=1)
    return [1.0, *probabilities.mean(axis=0).tolist()]


def _bound_variance(j: int, canaries: int, limits: dict[int, Limits]) -> VarianceBound:
    """Returns an upper bound on the variance of a run's estimate of the moment mu_j, as a function of mu_j.

    mu_j is the probability that j random canaries all yield errors. Two random sets of j canaries share i
    canaries with probability h(i), and the variance is sum_i h(i) mu_(2 j - i) - mu_j^2. Identical sets (i =
    j) determine the linear term. The upper `limits` for mu_(j + 1), ..., mu_(2 j) determine the constant.
    `VarianceBound` includes -mu_j^2.
    """
    common = np.arange(j + 1)  # i
    subsets = special.comb(j, common) * special.comb(canaries - j, j - common)
    overlaps = subsets / special.comb(canaries, j)  # h(i)
    upper_limits = [limits[2 * j - i][1] for i in range(j)]  # of mu_(2 j - i)
    return VarianceBound(linear=overlaps[j], constant=overlaps[:j] @ upper_limits)


METHODS: dict[str, CanaryMethod] = {}
for compute_limits, assumes in ((wilson, MANY_RUNS), (bernstein, NOTHING)):
    for order in (1, 2, 4):
        name = f"lidp_{compute_limits.__name__}_{order}"
        METHODS[name] = CanaryMethod(
            name=name,
            prove=functools.partial(_prove_lidp, order, compute_limits),
            canaries=order,
            assumes=assumes,
        )
METHODS |= {
    LIFTED: CanaryMethod(
        name=LIFTED, prove=betting.lower_bound, assumes=NOTHING, legend="lifted, assumption-free"
    ),
    LIFTED_GAUSSIAN: CanaryMethod(
        name=LIFTED_GAUSSIAN,
        prove=betting.lower_bound,
        assumes=GAUSSIAN_CURVE,
        legend="lifted, if the curve is Gaussian",
    ),
}


def bounds(design: Design, delta: float, confidence: float) -> list[Bound]:
    """Returns the bounds of all methods that accept this number of canaries, in the order of METHODS.

    Raises:
      InputError: If there are too few runs.
    """
    canaries = min(design.canaries)  # per run, inserted or left out
    return [
        method.bound(design, delta, confidence)
        for method in METHODS.values()
        if method.canaries <= canaries
    ]


def _choose_threshold(pilot: Design, sizes: RunErrors, family: Family, error: float) -> float:
    """Chooses the pilot score that should give the largest bound on epsilon or mu.

    At each score, we predict the parameter from three estimates of the error rates (`thresholds.candidates`):
    from normal distributions, from counts, and from counts plus a margin against lucky counts (`raised`).
    Normal distributions take precedence, because their predictions vary the least.

    Args:
      pilot: The runs used for this choice.
      sizes: The other runs; only the numbers of runs and guesses matter.
      error: The error probability of each rate's limit.
    """
    predict = functools.partial(_predict_parameter, sizes, family, error)
    candidates = thresholds.candidates(*pilot.pooled())
    normal = predict(candidates.normal)
    raised = predict(candidates.raised)
    choice = normal.argmax()
    if normal.max() <= 0:  # normal distributions predict no bound
        choice = candidates.counted.sum(0).argmin()  # false positives plus false negatives
    # We change this choice if its prediction from `counted` is below the largest prediction from `raised`.
    if raised.max() > max(predict(candidates.counted)[choice], 0.0):
        choice = raised.argmax()
    return float(candidates.thresholds[choice])


def _predict_parameter(sizes: RunErrors, family: Family, error: float, rates: Array) -> Array:
    """Returns the parameter (T,) that runs should prove if the true error rates are `rates` (2, T).

    The parameter is that of the curve through approximate upper limits. Each limit is the rate p plus two
    margins:

        sqrt(2 log(1 / error) scale p (1 - p) / guesses) + scale log(1 / error) / runs.

    A run's estimate of the rate is `scale` times its fraction of errors. The first margin accounts for the
    variance of this estimate. The second margin accounts for rare runs with the largest estimate, `scale`. If
    their frequency is log(1 / error) / runs, the probability of observing none is `error`.
    """
    log_inverse_error = -np.log(error)
    guesses_in, guesses_out = sizes.guesses()
    # (2, 1): for false positives, then for false negatives.
    guesses = np.array([[guesses_out], [guesses_in]])
    scales = np.array([[sizes.scale_out], [sizes.scale_in]])
    runs = np.array([[len(sizes.alarms)], [len(sizes.misses)]])
    variances = scales * rates * (1 - rates) / guesses
    margin_for_guesses = np.sqrt(2 * log_inverse_error * variances)
    margin_for_runs = scales * log_inverse_error / runs
    fpr, fnr = np.minimum(rates + margin_for_guesses + margin_for_runs, 1.0)
    return family.parameter(fpr, fnr)
