"""Estimators from papers, as printed or as in their public code.

They reproduce the papers' errors (see the errata of experiments/lidp and experiments/one_shot).
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy import special

from audit.calibration.calibration import ENOUGH_RUNS, FAIR, GAUSSIAN_CURVE, INDEPENDENT
from audit.evidence.canaries import Coins, Fresh
from audit.evidence.one_run import Cosines
from audit.laws import conversions
from audit.laws.gaussians import Gaussian
from audit.laws.intervals import Array
from audit.methods import exact, lifted, one_run_bounds, one_shot
from audit.methods.lifted import moments, wilson
from experiments.benchmark.contract import (
    DIRECTIONS,
    ONE_CANARY,
    ONE_RUN,
    PAPER,
    SEVERAL,
    Estimator,
)
from experiments.canife import rounds

_NUM_BOOTSTRAPS = 2000
FIXED_FRACTION = 0.2  # the fraction of coins to guess, if fixed
_FRACTIONS = tuple(np.linspace(0.05, 1.0, 20))  # for estimators that choose the best one


def canife(coins: Coins, delta: float, confidence: float, by_accuracy: bool = False) -> float:
    """Returns CANIFE's estimate (2023, Algorithm 2) at the threshold with the largest epsilon.

    With `by_accuracy`, it chooses the threshold with the best accuracy instead, as in the first version of
    CANIFE's code. The threshold and the estimate use the same scores. `confidence` has no effect.
    """
    return rounds.best_epsilon(*coins.pooled(), delta, by_accuracy).epsilon


def bootstrapped_gaussian(coins: Coins, delta: float, confidence: float) -> float:
    """Returns dpsgd-auditbench's bootstrap confidence bound on epsilon; it assumes that scores are normal.

    mu is the distance between the two worlds' means, in pooled standard deviations. As in the original, it is
    never negative. The bound is the epsilon at the (1 - confidence)-quantile of mu over 2,000 bootstrap
    samples.
    """
    rng = np.random.default_rng(0)
    scores_in, scores_out = coins.pooled()
    means_in, variances_in = _bootstrap_moments(rng, scores_in)
    means_out, variances_out = _bootstrap_moments(rng, scores_out)

    deviations = np.sqrt((variances_in + variances_out) / 2)
    distances = np.abs(means_in - means_out) / deviations
    distance = float(np.quantile(distances, 1 - confidence))
    return conversions.epsilon_from_mu(distance, delta)


def _bootstrap_moments(rng: np.random.Generator, scores: Array) -> tuple[Array, Array]:
    """Returns the means and the unbiased variances of 2,000 bootstrap samples from scores of shape (n,)."""
    size = len(scores)
    samples = scores[rng.integers(size, size=(_NUM_BOOTSTRAPS, size))]
    return samples.mean(1), samples.var(1, ddof=1)


def lidp_order_4(coins: Coins, delta: float, confidence: float) -> float:
    """Returns the lower bound on epsilon from fourth-order Wilson intervals, as in the LiDP paper's code.

    `fourth_order_bound` reproduces this code's error in a variance (Errata L1 of experiments/lidp/README.md).
    """
    # `count` uses some of the runs to choose a threshold with a large bound (`approximate_dp`). In the
    # `rest`, it counts each run's left-out canaries above the threshold (`alarms`) and inserted canaries
    # below it (`misses`).
    rest = lifted.count(coins, exact.approximate_dp(delta), error=1 - confidence).rest
    canaries = rest.canaries_in  # the largest number in a run: all K canaries

    error_each = (1 - confidence) / 2  # for each of the two error rates
    # Alarms divided by K estimate P(out and guessed in). Since coins are fair, this probability is half of
    # the error rate P(guessed in | out). Misses are similar.
    false_positive_rate = 2 * fourth_order_bound(rest.alarms, canaries, error_each)
    false_negative_rate = 2 * fourth_order_bound(rest.misses, canaries, error_each)
    epsilon = conversions.epsilon_from_rates(
        min(false_positive_rate, 1.0), min(false_negative_rate, 1.0), delta
    )
    return max(float(epsilon), 0.0)


def fourth_order_bound(sums: Array, canaries: int, error: float) -> float:
    """Returns an upper confidence bound on the fraction of counted canaries, as in LiDP's code.

    Let mu_l be the probability that l random canaries of a run are all counted (`lifted.moments`). The
    fraction is mu_1. The variance of its estimate depends on mu_2, and the variance of the estimate of mu_2
    depends on mu_3 and mu_4. Therefore, the code bounds the moments from mu_4 down to mu_1, and replaces each
    moment in a variance with its bound.

    Args:
      sums: (n,) the number of canaries counted in each run, for example as false alarms.
      canaries: K, the number of canaries in a run.
      error: The error probability of the bound, split equally among the bounds on the four moments.
    """
    means = moments(sums, canaries, 4)
    n = len(sums)
    error_each = error / 4
    _, mu_3 = wilson(means[3], n, error_each)
    _, mu_4 = wilson(means[4], n, error_each)
    cut = special.ndtri(1 - error_each) ** 2 / n  # z^2 / n, with a normal quantile z
    mu_2 = _bound_second_moment(means[2], cut, canaries, mu_3, mu_4)

    # The variance of a run's counted fraction is at most x / K + (1 - 1 / K) mu_2 - x^2, with x = mu_1.
    variance = lifted.VarianceBound(linear=1 / canaries, constant=(1 - 1 / canaries) * mu_2)
    _, mu_1 = wilson(means[1], n, error_each, variance)
    return mu_1


def _bound_second_moment(mean: float, cut: float, canaries: int, mu_3: float, mu_4: float) -> float:
    """Returns Wilson's upper bound on mu_2, P(two random canaries are both counted).

    This is the larger root x of (x - mean)^2 = cut * variance(x), at most 1. `mean` estimates mu_2, and
    `mu_3` and `mu_4` are upper bounds (see `fourth_order_bound`). LiDP's code has an error in the variance.
    We keep it because the benchmark measures the published estimator.
    """
    # h_j is the probability that two random pairs of canaries have j canaries in common.
    pairs = canaries * (canaries - 1)
    h_0 = (canaries - 2) * (canaries - 3) / pairs
    h_1 = 4 * (canaries - 2) / pairs
    h_2 = 2 / pairs

    # In the code, variance(x) = h_2 x + constant - (1 - h_0) x^2. The code's mu_3^2 should be mu_2^2 (Errata
    # L1). `wilson` requires the term -x^2, so it cannot solve this equation.
    constant = h_1 * mu_3 + h_0 * (mu_4 - mu_3**2)
    # Solve a x^2 - 2 b x + c = 0.
    a = 1 + cut * (1 - h_0)
    b = mean + cut * h_2 / 2
    c = mean**2 - cut * constant
    discriminant = b * b - a * c
    if discriminant < 0:  # no root
        return 1.0
    return min((b + np.sqrt(discriminant)) / a, 1.0)


def one_run(
    bound: Callable[..., float],
    fractions: Sequence[float],
    coins: Coins,
    delta: float,
    confidence: float,
) -> float:
    """Returns a paper's lower bound on epsilon from guesses about a fraction of a single run's coins.

    Given several fractions, it returns the largest bound, as papers do, although the result has no proven
    confidence level.

    `bound` is a function (number of coins, guesses, correct guesses, delta, error) -> epsilon.
    """
    num_coins = coins.scores.size
    epsilons = []
    for fraction in fractions:
        guesses, right = count_right_guesses(coins, fraction)
        epsilons.append(bound(num_coins, guesses, right, delta, 1 - confidence))
    return max(epsilons)


def mahloujifar(coins: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Returns the bound of Mahloujifar, Melis and Chaudhuri (2024, Algorithm 3) for a Gaussian curve.

    `right` is the number of correct `guesses`. `error` is the bound's error probability.
    """
    mu = one_run_bounds.mu_from_guesses(coins, guesses, right, error)
    return conversions.epsilon_from_mu(mu, delta)


def count_right_guesses(coins: Coins, fraction: float) -> tuple[int, int]:
    """Guesses a fraction of a single run's coins; returns how many guesses it made, and how many are right.

    It guesses that the canaries with the largest scores are in, and that the same number with the smallest
    scores are out, with at least one guess of each kind.
    """
    descending = np.argsort(-coins.scores[0], kind="stable")
    presence = coins.presence[0][descending]
    half = max(int(len(presence) * fraction) // 2, 1)
    right_in = presence[:half].sum()
    right_out = half - presence[-half:].sum()
    return 2 * half, int(right_in + right_out)


def one_shot_fit(name: str, directions: Fresh, delta: float, confidence: float) -> float:
    """Returns One-shot's (2024) estimate from a Gaussian fitted to a single run's cosines.

    `name` is a key of `one_shot.FITTED`, the formulas for epsilon. `confidence` has no effect.
    """
    # Row 0 is the only run. In units of 1 / sqrt(d), cosines of left-out canaries are approximately N(0, 1).
    fitted = one_shot.fit(directions.cosines[0], directions.dimension)
    return float(one_shot.FITTED[name](Gaussian(0.0, 1.0), fitted, delta))


def one_shot_lower_value(prior: float, directions: Fresh, delta: float, confidence: float) -> float:
    """Returns One-shot's (2024) eps_lo, the largest epsilon over all thresholds for a cosine.

    The epsilon at a threshold comes from the known false-positive rate and a confidence bound on the
    false-negative rate (`one_shot.in_sample`). `prior` is the parameter of this bound's beta prior: 1/2 for
    Jeffreys, 1 for Clopper-Pearson.
    """
    # Row 0, the only run, leaves out no canary.
    cosines = Cosines(directions.cosines[0], np.empty(0), directions.dimension)
    return one_shot.in_sample(cosines, delta, 1 - confidence, prior)


_make = partial(Estimator, kind=PAPER)
_canife = partial(_make, design=ONE_CANARY, assumption="an empirical estimate", claims_level=False)
_one_run = partial(_make, design=ONE_RUN)
_one_shot = partial(_make, design=DIRECTIONS)
_best = partial(_one_run, claims_level=False, cost=10)
_BEST = (
    "fair coins; the best result over 20 numbers of guesses, which has no proven confidence level"
)
_steinke = one_run_bounds.epsilon_from_guesses  # Steinke, Nasr and Jagielski (2023, Theorem 5.2)
FAIR_AND_GAUSSIAN = (FAIR, GAUSSIAN_CURVE)

ESTIMATORS = (
    _canife("CANIFE", epsilon=canife),
    _canife("CANIFE, first version", epsilon=partial(canife, by_accuracy=True)),
    _make(
        "auditbench: Gaussian limit",
        design=ONE_CANARY,
        assumption="normal scores of equal variance; a bootstrap lower confidence bound",
        epsilon=bootstrapped_gaussian,
        assumes=[GAUSSIAN_CURVE],
        cost=10,
    ),
    _make(
        "LiDP: order 4 as printed",
        design=SEVERAL,
        assumption="exchangeable canaries; many runs (asymptotic)",
        epsilon=lidp_order_4,
        assumes=[ENOUGH_RUNS, FAIR],
    ),
    _one_run(
        "Steinke: a fifth guessed",
        assumption="fair coins; a fixed number of guesses",
        epsilon=partial(one_run, _steinke, [FIXED_FRACTION]),
        assumes=[FAIR],
    ),
    _best(
        "Steinke: best number",
        assumption=_BEST,
        epsilon=partial(one_run, _steinke, _FRACTIONS),
        assumes=[FAIR],
    ),
    _one_run(
        "Mahloujifar: a fifth guessed",
        assumption="fair coins; a Gaussian trade-off curve",
        epsilon=partial(one_run, mahloujifar, [FIXED_FRACTION]),
        assumes=FAIR_AND_GAUSSIAN,
    ),
    _best(
        "Mahloujifar: best number",
        assumption=f"{_BEST}; a Gaussian trade-off curve",
        epsilon=partial(one_run, mahloujifar, _FRACTIONS),
        assumes=FAIR_AND_GAUSSIAN,
    ),
    *(
        _one_shot(
            name,
            assumption="normal cosines; an estimate",
            epsilon=partial(one_shot_fit, name),
            assumes=[GAUSSIAN_CURVE],
            claims_level=False,
        )
        for name in one_shot.FITTED
    ),
    *(
        _one_shot(
            name,
            assumption="a 95% lower limit; independent canaries",
            epsilon=partial(one_shot_lower_value, prior),
            assumes=[INDEPENDENT],
        )
        for name, prior in one_shot.PRIORS.items()
    ),
)
