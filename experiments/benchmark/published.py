"""Estimators that exist as papers' formulas or code: in words of our own, as they are printed there.

What this project corrects in them is in the errata of experiments/lidp and experiments/one_shot, cited below.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.calibration.calibration import ENOUGH_RUNS, FAIR, GAUSSIAN_CURVE, INDEPENDENT
from audit.evidence.canaries import Coins, Fresh
from audit.evidence.one_run import Cosines
from audit.laws import conversions
from audit.laws.bisection import find_largest_refuted
from audit.laws.gaussians import Gaussian
from audit.methods import exact, lifted, one_run_bounds, one_shot
from audit.methods.lifted import moments, wilson
from experiments.benchmark.contract import (
    DIRECTIONS,
    ONE_CANARY,
    ONE_RUN,
    PAPER,
    SEVERAL,
    EpsilonFunction,
    Estimator,
)
from experiments.canife import rounds

Array = NDArray[np.float64]
_BOOTSTRAPS = 2000
_FIXED_SHARE = 0.2  # of the coins is guessed, where the number of guesses is fixed beforehand
_SHARES = np.linspace(0.05, 1.0, 20)  # of the coins, where the best number of guesses is taken
_HALVINGS = 30


def canife(estimate: Callable[..., rounds.RoundEstimate]) -> EpsilonFunction:
    """Returns CANIFE's estimate (2023), Algorithm 2: by the best threshold on the scores that it counts."""

    def epsilon(coins: Coins, delta: float, confidence: float) -> float:
        scores_in, scores_out = coins.pooled()
        return estimate(scores_in, scores_out, confidence, delta).estimate.epsilon

    return epsilon


def bootstrapped_gaussian(coins: Coins, delta: float, confidence: float) -> float:
    """Returns dpsgd-auditbench's lower limit.

    That is epsilon between two Gaussians with the scores' means and their pooled deviation, at the quantile
    1 - confidence of 2,000 bootstrap samples of it.

    epsilon rises with the distance of the means in deviations, in whichever direction: so its quantile is
    taken, and converted once.
    """
    rng = np.random.default_rng(0)
    scores_in, scores_out = coins.pooled()
    mean_in, variance_in = _bootstrap_moments(rng, scores_in)
    mean_out, variance_out = _bootstrap_moments(rng, scores_out)

    deviation = np.sqrt((variance_in + variance_out) / 2)
    distances = np.abs(mean_in - mean_out) / deviation
    distance = float(np.quantile(distances, 1 - confidence))
    return conversions.epsilon_from_mu(distance, delta)


def _bootstrap_moments(rng: np.random.Generator, scores: Array) -> tuple[Array, Array]:
    """Returns the means and the variances of bootstrap samples of the scores."""
    size = len(scores)
    samples = np.stack([scores[rng.integers(size, size=size)] for _ in range(_BOOTSTRAPS)])
    return samples.mean(1), samples.var(1, ddof=1)


def lidp_order_4(coins: Coins, delta: float, confidence: float) -> float:
    """Returns LiDP's bound by the fourth-order Wilson interval with the variance of its public code.

    There the last term of Var(m_2) is h(0) (mu_4 - mu_3^2), with the limit on mu_3, in place of
    h(0) (mu_4 - mu_2^2) (Errata L1).
    """
    counts = lifted.count(coins, exact.approximate_dp(delta), 1 - confidence)
    rest = counts.rest
    error = (1 - confidence) / 2
    # A canary is in, or out, in half of the runs: errors count twice.
    false_alarms = 2 * fourth_order_limit(rest.alarms, rest.canaries_in, error)
    misses = 2 * fourth_order_limit(rest.misses, rest.canaries_in, error)
    epsilon = conversions.epsilon_from_rates(min(false_alarms, 1.0), min(misses, 1.0), delta)
    return max(float(epsilon), 0.0)


def fourth_order_limit(sums: Array, canaries: int, error: float) -> float:
    """Returns LiDP's upper limit of mu_1 as its public code has it.

    mu_l is the probability that l canaries of a run are all counted (`lifted.moments`). Where the variance of
    mu_2's estimate leaves no root, mu_2 is taken to be 1.

    Args:
      sums: (n,) how many canaries of each run were counted.
      canaries: K, the canaries of a run.
      error: The probability with which the limit may fail; each of four moments gets a fourth of it.
    """
    means = moments(sums, canaries, 4)
    n = len(sums)
    level = error / 4
    mu_3 = wilson(means[3], n, level)[1]
    mu_4 = wilson(means[4], n, level)[1]

    # h(j) is the probability that two random pairs of canaries have j canaries in common.
    pairs = canaries * (canaries - 1)
    h_0 = (canaries - 2) * (canaries - 3) / pairs
    h_1 = 4 * (canaries - 2) / pairs
    h_2 = 2 / pairs

    # The limit of mu_2 is the larger root x of (x - mean)^2 = cut * variance(x), where variance(x) is
    # h_2 x + constant - (1 - h_0) x^2.
    cut = special.ndtri(1 - level) ** 2 / n
    # mu_3^2 stands where mu_2^2 belongs: so the public code has it (Errata L1).
    constant = h_1 * mu_3 + h_0 * (mu_4 - mu_3**2)
    a = 1 + cut * (1 - h_0)
    b = means[2] + cut * h_2 / 2
    discriminant = b * b - a * (means[2] ** 2 - cut * constant)
    mu_2 = 1.0
    if discriminant >= 0:
        mu_2 = min((b + np.sqrt(discriminant)) / a, 1.0)

    variance = lifted.VarianceBound(1 / canaries, (1 - 1 / canaries) * mu_2)
    return wilson(means[1], n, level, variance)[1]


def steinke(best: bool) -> EpsilonFunction:
    """Returns the bound of Steinke, Nasr and Jagielski (2023), Algorithm 1 and Theorem 5.2.

    The largest scores are guessed in, as many of the lowest guessed out.

    Args:
      best: Whether to try 20 numbers of guesses and take the largest result.
    """

    def epsilon(coins: Coins, delta: float, confidence: float) -> float:
        is_right = judge_guesses(coins)
        number = len(is_right)
        epsilons = []
        for guesses, right in count_right_guesses(is_right, best):
            bound = one_run_bounds.epsilon_from_guesses(
                number, guesses, right, delta, 1 - confidence
            )
            epsilons.append(bound)
        return max(epsilons)

    return epsilon


def mahloujifar(best: bool) -> EpsilonFunction:
    """Returns the bound of Mahloujifar, Melis and Chaudhuri (2024), Algorithm 3.

    The trade-off curves are Gaussian.

    Args:
      best: Whether to try 20 numbers of guesses and take the largest result.
    """

    def epsilon(coins: Coins, delta: float, confidence: float) -> float:
        is_right = judge_guesses(coins)
        number = len(is_right)
        mu = 0.0
        for guesses, right in count_right_guesses(is_right, best):
            # Searched from the largest mu so far, which stays where these guesses do not refute it.
            is_refuted = partial(_is_mu_refuted, number, guesses, right, 1 - confidence)
            mu = find_largest_refuted(is_refuted, mu, max(2 * mu, 1.0), _HALVINGS)
        return conversions.epsilon_from_mu(mu, delta)

    return epsilon


def _is_mu_refuted(coins: int, guesses: int, right: int, error: float, mu: float) -> bool:
    """Returns whether so many right guesses refute mu (Mahloujifar, Melis and Chaudhuri, Algorithm 3).

    For c right of c' guesses among m coins, at the error tau:

        h = tau (c' - c) / m,  r = tau c / m;  for i = c - 1, ..., 0: h' = max(h, f(r)), r' = r + i / (c' - i)
        (h' - h), with f(r) = Phi(Phi^-1(r) - mu);  mu is refuted if r + h > c' / m.
    """
    r = error * right / coins
    h = error * (guesses - right) / coins
    for i in range(right - 1, -1, -1):
        f_of_r = float(special.ndtr(special.ndtri(min(r, 1.0)) - mu))
        raised = max(h, f_of_r)
        r = r + i / (guesses - i) * (raised - h)
        h = raised
        if r + h > guesses / coins:
            return True
    return False


def judge_guesses(coins: Coins) -> NDArray[np.bool_]:
    """Returns which guesses about the coins of one run are right, the surest first.

    The largest score is guessed in, the lowest out, the second largest in, and so on.

    Returns:
      (m,) a value for each of the run's m coins.
    """
    descending = np.argsort(-coins.scores[0], kind="stable")
    presence = coins.presence[0][descending]
    guessed_in = (len(presence) + 1) // 2
    is_right = np.empty(len(presence), bool)
    is_right[::2] = presence[:guessed_in]
    is_right[1::2] = ~presence[guessed_in:][::-1]
    return is_right


def count_right_guesses(is_right: NDArray[np.bool_], best: bool) -> list[tuple[int, int]]:
    """Returns how many guesses are made, and how many of them are right.

    Args:
      is_right: (m,) from `judge_guesses`.
      best: False for a fifth of the coins; True for 20 numbers of guesses.
    """
    shares = _SHARES if best else np.array([_FIXED_SHARE])
    even_numbers = (len(is_right) * shares).astype(int) // 2 * 2
    counts = []
    for number in np.maximum(even_numbers, 2):
        right = is_right[:number].sum()
        counts.append((int(number), int(right)))
    return counts


def one_shot_fit(name: str) -> EpsilonFunction:
    """Returns an estimate of One-shot (2024): a fit taken for the truth (`one_shot.FITTED`)."""

    def epsilon(directions: Fresh, delta: float, confidence: float) -> float:
        fitted = one_shot.fit(directions.cosines[0], directions.dimension)
        # Without its canary a cosine has the law N(0, 1), in units of 1/sqrt(d), as the fit is.
        return float(one_shot.FITTED[name](Gaussian(0.0, 1.0), fitted, delta))

    return epsilon


def one_shot_limit(prior: float) -> EpsilonFunction:
    """Returns One-shot's eps_lo (`one_shot.in_sample`)."""

    def epsilon(directions: Fresh, delta: float, confidence: float) -> float:
        cosines = Cosines(directions.cosines[0], np.empty(0), directions.dimension)
        return one_shot.in_sample(cosines, delta, 1 - confidence, prior)

    return epsilon


_CANIFE = "CANIFE (Maddock et al., 2023)"
_LIDP = "LiDP (Pillutla et al., 2023)"
_STEINKE = "Steinke et al. (2023)"
_MAHLOUJIFAR = "Mahloujifar et al. (2024)"
_ONE_SHOT = "One-shot (Andrew et al., 2024)"
_BEST = "fair coins; the best of 20 numbers of guesses, for which no theorem gives a level"
_SLOW = 10  # the cost of an estimator whose audits take a tenth of a second or more


_make = partial(Estimator, kind=PAPER)
_one_shot = partial(_make, source=_ONE_SHOT, design=DIRECTIONS)
_steinke = partial(_make, source=_STEINKE, design=ONE_RUN)
_mahloujifar = partial(_make, source=_MAHLOUJIFAR, design=ONE_RUN)
_canife = partial(
    _make, source=_CANIFE, design=ONE_CANARY, assumption="an empirical estimate", claims_level=False
)


def _make_one_shot_estimators() -> list[Estimator]:
    """Returns the records of One-shot's fits and limits."""
    estimators = []
    for name in one_shot.FITTED:
        fit = _one_shot(
            name,
            assumption="normal cosines; an estimate",
            epsilon=one_shot_fit(name),
            assumes=frozenset([GAUSSIAN_CURVE]),
            claims_level=False,
        )
        estimators.append(fit)
    for name, prior in one_shot.LIMITS.items():
        limit = _one_shot(
            name,
            assumption="a 95% lower limit, by independent canaries",
            epsilon=one_shot_limit(prior),
            assumes=frozenset([INDEPENDENT]),
        )
        estimators.append(limit)
    return estimators


ESTIMATORS = (
    _canife("CANIFE", epsilon=canife(rounds.best_epsilon)),
    _canife("CANIFE, first version", epsilon=canife(rounds.best_accuracy)),
    _make(
        "auditbench: Gaussian limit",
        source="dpsgd-auditbench, ndis_eps_lower_bound_with_ci",
        design=ONE_CANARY,
        assumption="normal scores of equal variance; a bootstrap confidence lower bound",
        epsilon=bootstrapped_gaussian,
        assumes=frozenset([GAUSSIAN_CURVE]),
        cost=_SLOW,
    ),
    _make(
        "LiDP: order 4 as printed",
        source=_LIDP,
        design=SEVERAL,
        assumption="exchangeable canaries; many runs (asymptotic)",
        epsilon=lidp_order_4,
        assumes=frozenset([ENOUGH_RUNS, FAIR]),
    ),
    _steinke(
        "Steinke: a fifth guessed",
        assumption="fair coins; the number of guesses fixed beforehand",
        epsilon=steinke(best=False),
        assumes=frozenset([FAIR]),
    ),
    _steinke(
        "Steinke: best number",
        assumption=_BEST,
        epsilon=steinke(best=True),
        assumes=frozenset([FAIR]),
        claims_level=False,
        cost=_SLOW,
    ),
    _mahloujifar(
        "Mahloujifar: a fifth guessed",
        assumption="fair coins; a Gaussian trade-off curve",
        epsilon=mahloujifar(best=False),
        assumes=frozenset([FAIR, GAUSSIAN_CURVE]),
    ),
    _mahloujifar(
        "Mahloujifar: best number",
        assumption=f"{_BEST}; a Gaussian trade-off curve",
        epsilon=mahloujifar(best=True),
        assumes=frozenset([FAIR, GAUSSIAN_CURVE]),
        claims_level=False,
        cost=_SLOW,
    ),
    *_make_one_shot_estimators(),
)
