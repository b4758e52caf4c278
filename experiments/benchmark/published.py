"""Estimators that exist as papers' formulas or code: in words of our own, as they are printed there.

What this project corrects in them is in the errata of experiments/lidp and experiments/one_shot, cited below.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.statistics import conversions, exact, lifted, one_run_bounds, one_shot, rounds
from audit.statistics.canaries import Coins
from audit.statistics.gaussians import Gaussian
from audit.statistics.lifted import moments, wilson
from audit.statistics.one_shot import Cosines
from experiments.benchmark.contract import (
    DIRECTIONS,
    ENOUGH_RUNS,
    FAIR,
    GAUSSIAN,
    INDEPENDENT,
    ONE_CANARY,
    ONE_RUN,
    PAPER,
    SEVERAL,
    AuditScores,
    Estimator,
)

Array = NDArray[np.float64]
Function = Callable[[AuditScores, float, float], float]
_BOOTSTRAPS = 2000
_GUESSED = 0.2  # of the coins, where the number of guesses is fixed beforehand
_SHARES = np.linspace(0.05, 1.0, 20)  # of the coins, where the best number is taken
_HALVINGS = 30


def canife(estimate: Callable[..., rounds.RoundEstimate]) -> Function:
    """CANIFE (2023), Algorithm 2: the best threshold on the scores that it counts."""

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        return estimate(*evidence.worlds(), confidence, delta).estimate.epsilon

    return epsilon


def bootstrapped_gaussian(evidence: AuditScores, delta: float, confidence: float) -> float:
    """dpsgd-auditbench's lower limit: epsilon between two Gaussians with the scores' means and their pooled
    deviation, at the quantile 1 - confidence of 2,000 bootstrap samples of it.

    epsilon rises with the distance of the means in deviations, in whichever direction: so its quantile is
    taken, and converted once.
    """
    rng, moments_of = np.random.default_rng(0), []
    for world in evidence.worlds():
        drawn = np.stack([world[rng.integers(len(world), size=len(world))] for _ in range(_BOOTSTRAPS)])
        moments_of.append((drawn.mean(1), drawn.var(1, ddof=1)))
    (mean_in, var_in), (mean_out, var_out) = moments_of
    distances = np.abs(mean_in - mean_out) / np.sqrt((var_in + var_out) / 2)
    return conversions.epsilon_from_mu(float(np.quantile(distances, 1 - confidence)), delta)


def lidp_order_4(evidence: AuditScores, delta: float, confidence: float) -> float:
    """LiDP's fourth-order Wilson interval with the variance of its public code: the last term of Var(m_2) is
    h(0) (mu_4 - mu_3^2), with the limit on mu_3, in place of h(0) (mu_4 - mu_2^2) (Errata L1)."""
    design = Coins(evidence.scores, evidence.presence)
    counted = lifted.count(design, exact.approximate_dp(delta), 1 - confidence)
    rest, error = counted.rest, (1 - confidence) / 2
    rates = [2 * _fourth_order(sums, rest.canaries_in, error) for sums in (rest.alarms, rest.misses)]
    return max(float(conversions.epsilon_from_rates(min(rates[0], 1.0), min(rates[1], 1.0), delta)), 0.0)


def _fourth_order(sums: Array, canaries: int, error: float) -> float:
    """The upper limit of mu_1; 1 where the printed variance leaves no root."""
    means, n, level = moments(sums, canaries, 4), len(sums), error / 4
    third, fourth = (wilson(means[j], n, level)[1] for j in (3, 4))
    none, one = (canaries - 2) * (canaries - 3), 4 * (canaries - 2)  # shared by two pairs, times 2 C(K, 2)
    pairs = canaries * (canaries - 1)
    h_0, h_1, h_2 = none / pairs, one / pairs, 2 / pairs
    cut = special.ndtri(1 - level) ** 2 / n  # (x - mean)^2 = cut * variance(x)
    rest = h_1 * third + h_0 * (fourth - third**2)
    a, b = 1 + cut * (1 - h_0), means[2] + cut * h_2 / 2
    inside = b * b - a * (means[2] ** 2 - cut * rest)
    second = min((b + np.sqrt(inside)) / a, 1.0) if inside >= 0 else 1.0
    return wilson(means[1], n, level, lifted._Variance(1 / canaries, (1 - 1 / canaries) * second))[1]


def steinke(best: bool) -> Function:
    """Steinke, Nasr and Jagielski (2023), Algorithm 1 and Theorem 5.2: the largest scores guessed in, as
    many of the lowest guessed out. best: of 20 numbers of guesses the one that gives most."""

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        right = _right(evidence)
        return max(
            one_run_bounds.epsilon_from_guesses(len(right), number, hits, delta, 1 - confidence)
            for number, hits in _guesses(right, best)
        )

    return epsilon


def mahloujifar(best: bool) -> Function:
    """Mahloujifar, Melis and Chaudhuri (2024), Algorithm 3 with Gaussian trade-off curves: for c right of c'
    guesses among m coins, at the error tau,

        h = tau (c' - c) / m,  r = tau c / m;  for i = c - 1, ..., 0: h' = max(h, f(r)), r' = r + i / (c' - i)
        (h' - h), with f(r) = Phi(Phi^-1(r) - mu);  mu is refuted if r + h > c' / m.
    """

    def refuted(coins: int, number: int, right: int, error: float, mu: float) -> bool:
        r, h = error * right / coins, error * (number - right) / coins
        for i in range(right - 1, -1, -1):
            raised = max(h, float(special.ndtr(special.ndtri(min(r, 1.0)) - mu)))
            r, h = r + i / (number - i) * (raised - h), raised
            if r + h > number / coins:
                return True
        return False

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        right, error, low = _right(evidence), 1 - confidence, 0.0
        for number, hits in _guesses(right, best):
            low = _largest(partial(refuted, len(right), number, hits, error), low)
        return conversions.epsilon_from_mu(low, delta)

    return epsilon


def _largest(refuted: Callable[[float], bool], low: float) -> float:
    """The largest parameter from low on that is refuted, or low."""
    if not refuted(low):
        return low
    high = max(2 * low, 1.0)
    while refuted(high):
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _right(evidence: AuditScores) -> NDArray[np.bool_]:
    """Which guesses are right (m,): the largest score, guessed in, the lowest, guessed out, the next."""
    order = np.argsort(-evidence.scores[0], kind="stable")
    bits, half = evidence.presence[0][order], (len(order) + 1) // 2
    guesses = np.empty(len(order), bool)
    guesses[::2], guesses[1::2] = bits[:half], ~bits[half:][::-1]
    return guesses


def _guesses(right: NDArray[np.bool_], best: bool) -> list[tuple[int, int]]:
    """(guesses, right ones) for a fifth of the coins, or for 20 numbers of them."""
    numbers = np.maximum((len(right) * (_SHARES if best else np.array([_GUESSED]))).astype(int) // 2 * 2, 2)
    return [(int(number), int(right[:number].sum())) for number in numbers]


def one_shot_fit(name: str) -> Function:
    """One-shot (2024), a fit taken for the truth (`one_shot.FITTED`)."""

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        seen = one_shot.fit(evidence.scores[0], evidence.dimension)
        return float(one_shot.FITTED[name](Gaussian(0.0, 1.0), seen, delta))

    return epsilon


def one_shot_limit(prior: float) -> Function:
    """One-shot's eps_lo (`one_shot.in_sample`)."""

    def epsilon(evidence: AuditScores, delta: float, confidence: float) -> float:
        found = Cosines(evidence.scores[0], np.empty(0), evidence.dimension)
        return one_shot.in_sample(found, delta, 1 - confidence, prior)

    return epsilon


def _printed(
    name: str, source: str, design: str, says: str, epsilon: Function, *assumes: str, level: bool = True
) -> Estimator:
    cost = 10 if epsilon is bootstrapped_gaussian or name.endswith("best number") else 1
    return Estimator(name, PAPER, source, design, says, frozenset(assumes), epsilon, level, cost=cost)


_CANIFE, _LIDP = "CANIFE (Maddock et al., 2023)", "LiDP (Pillutla et al., 2023)"
_STEINKE, _F_DP = "Steinke et al. (2023)", "Mahloujifar et al. (2024)"
_ONE_SHOT, _FITS = "One-shot (Andrew et al., 2024)", "normal cosines; an estimate"
_BEST = "fair coins; the best of 20 numbers of guesses, for which no theorem gives a level"
_LIMIT = "a 95% lower limit, by independent canaries"
ESTIMATORS = (
    _printed(
        "CANIFE", _CANIFE, ONE_CANARY, "an empirical estimate", canife(rounds.best_epsilon), level=False
    ),
    _printed(
        *("CANIFE, first version", _CANIFE, ONE_CANARY, "an empirical estimate"),
        canife(rounds.best_accuracy),
        level=False,
    ),
    _printed(
        *("auditbench: Gaussian limit", "dpsgd-auditbench, ndis_eps_lower_bound_with_ci", ONE_CANARY),
        "normal scores of equal variance; a bootstrap confidence lower bound",
        bootstrapped_gaussian,
        GAUSSIAN,
    ),
    _printed(
        *("LiDP: order 4 as printed", _LIDP, SEVERAL, "exchangeable canaries; many runs (asymptotic)"),
        lidp_order_4,
        *(ENOUGH_RUNS, FAIR),
    ),
    _printed(
        *(
            "Steinke: a fifth guessed",
            _STEINKE,
            ONE_RUN,
            "fair coins; the number of guesses fixed beforehand",
        ),
        steinke(False),
        FAIR,
    ),
    _printed(
        *("Steinke: best number", _STEINKE, ONE_RUN, _BEST),
        steinke(True),
        FAIR,
        level=False,
    ),
    _printed(
        *("Mahloujifar: a fifth guessed", _F_DP, ONE_RUN, "fair coins; a Gaussian trade-off curve"),
        mahloujifar(False),
        *(FAIR, GAUSSIAN),
    ),
    _printed(
        *("Mahloujifar: best number", _F_DP, ONE_RUN, f"{_BEST}; a Gaussian trade-off curve"),
        mahloujifar(True),
        *(FAIR, GAUSSIAN),
        level=False,
    ),
    *(
        _printed(name, _ONE_SHOT, DIRECTIONS, _FITS, one_shot_fit(name), GAUSSIAN, level=False)
        for name in one_shot.FITTED
    ),
    *(
        _printed(name, _ONE_SHOT, DIRECTIONS, _LIMIT, one_shot_limit(prior), INDEPENDENT)
        for name, prior in one_shot.LIMITS.items()
    ),
)
