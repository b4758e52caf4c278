"""Tests of a claimed trade-off curve by scores whose law without the canary is known exactly.

A claim is a curve: to a test of false-positive rate a it allows a power of at most m(a), which is concave and
increasing (Dong, Roth and Su, "Gaussian differential privacy", 2022). Where the rate a(t) at which a canary
that is out exceeds a threshold t is known exactly, as for fresh directions (`exact_null`) and for ranks among
fresh draws (`audit.evidence.ranks`), the rate of a fixed canary may be another, but its mean over canaries is
a(t). By Jensen's inequality the canaries that are in exceed t with a probability of at most m(a(t)) on
average, so that h_i(t), the share of run i's canaries above t, has a mean of at most m(a(t)) given the runs
before it, however the canaries of a run depend on each other. A gambler who doubts the claim and bets the
share c of the capital has, after n runs,

    prod_i (1 + c (h_i(t) / m(a(t)) - 1)),    0 < c < 1,

a nonnegative supermartingale from 1 if the claim is true, and so is a mixture over thresholds and bets with
fixed shares. Its largest value so far is an e-value at any time: it reaches 1 / error with probability at
most `error` (Ville, 1939), whenever one stops.

Three readings. Is the claim refuted? Which mu is too small for *any* Gaussian guarantee: the largest mu whose
curve is refuted; nothing is assumed of the scores' law. And which smaller noise than stated would have been
refuted by so many runs (`find_least_departure`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.laws.bisection import find_largest_refuted

Array = NDArray[np.float64]
Power = Callable[[Array], Array]

# Thresholds on the scale of Student's T, or of normal deviates.
NEAR = np.arange(0.0, 7.01, 0.5)
FAR = np.concatenate([np.arange(7.5, 12.1, 0.5), np.arange(13.0, 37.1)])
THRESHOLDS = np.concatenate([NEAR, FAR])
BETS = np.array([0.05, 0.2, 0.5, 0.9])
_FAR_SHARE = 0.05  # of the capital
_HALVINGS = 24
_PATH_STEPS = 128  # values of mu that a path distinguishes
_MOST_LOG = 700.0  # exp of more overflows

SEEN_PROBABILITY = 0.9
_SIMULATIONS = 200  # of each departure that is tried, where runs are few
_LEAST_SIMULATIONS = 20
_SIMULATED_RUNS = 10_000  # of each departure that is tried
_FAR_DEVIATIONS = 3.0
_RATIOS = np.concatenate([np.arange(0.995, 0.9, -0.005), np.arange(0.9, 0.09, -0.01)])


class Exceedances(NamedTuple):
    """How many canaries exceed thresholds, run by run.

    Attributes:
      shares: (R, T) the share of each run's canaries in that exceed each threshold.
      log_rates: (T,) log of the exact probability that a canary that is out exceeds it.
      in_order: whether rows are in the order in which runs were begun.
    """

    shares: Array
    log_rates: Array
    in_order: bool


class Departure(NamedTuple):
    """The smallest departure from a claim that runs would have refuted.

    Attributes:
      noise: as a multiple of the stated noise, below 1.
      probability: with which runs like these would have refuted it.
    """

    noise: float
    probability: float


class ClaimTest(NamedTuple):
    """The test of a claim.

    Attributes:
      e_value: the evidence against the claim; at most 1 on average if it is true.
      refuted: whether the e-value has reached 1 / (1 - confidence).
      runs: after how many runs the claim was refuted, or how many there are.
      seen: the smallest departure that so many runs would have refuted; None where none tried would be.
    """

    e_value: float
    refuted: bool
    runs: int
    seen: Departure | None = None


def compute_log_capital(counted: Exceedances, power: Power) -> Array:
    """Returns the log capital (R,) against a claim after each run.

    Args:
      counted: the shares above THRESHOLDS.
      power: what the claim allows at false-positive rates.
    """
    gains = _compute_gains(counted, power)
    return _mix(gains)


def examine_claim(counted: Exceedances, power: Power, confidence: float) -> ClaimTest:
    """Returns the test of a claim, without what it would have seen."""
    log_capital = compute_log_capital(counted, power)
    if not counted.in_order:
        log_capital = log_capital[-1:]
    log_capital_needed = -np.log1p(-confidence)
    refuting = np.flatnonzero(log_capital >= log_capital_needed)
    runs = len(counted.shares)
    if counted.in_order and len(refuting):
        runs = int(refuting[0]) + 1
    largest = max(float(log_capital.max()), 0.0 if counted.in_order else -np.inf)
    e_value = float(np.exp(min(largest, _MOST_LOG)))
    return ClaimTest(e_value, bool(len(refuting)), runs)


def find_least_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the mu below which no Gaussian guarantee can hold; 0 where the runs refute none."""
    log_capital_needed = -np.log1p(-confidence)

    def is_refuted(mu: float) -> bool:
        log_capital = compute_log_capital(counted, gaussian_power(mu))
        if counted.in_order:
            return bool(log_capital.max() >= log_capital_needed)
        return bool(log_capital[-1] >= log_capital_needed)

    return find_largest_refuted(is_refuted, 0.0, 1.0, _HALVINGS)


def trace_least_mu(counted: Exceedances, least_mu: float, confidence: float) -> Array:
    """Returns `find_least_mu` of the first n runs (R,), to a 128th of that of all; empty without an order."""
    if not counted.in_order:
        return np.zeros(0)
    log_capital_needed = -np.log1p(-confidence)
    path = np.zeros(len(counted.shares))
    for mu in np.linspace(0.0, least_mu, _PATH_STEPS + 1):
        log_capital = compute_log_capital(counted, gaussian_power(float(mu)))
        refuting = np.flatnonzero(log_capital >= log_capital_needed)
        if len(refuting):
            path[refuting[0] :] = mu
    return path


def find_main_threshold(counted: Exceedances, power: Power) -> int:
    """Returns the index of the threshold that most capital is on after all runs."""
    log_factors = np.log1p(BETS[:, None] * _compute_gains(counted, power)[:, None, :])
    by_threshold = special.logsumexp(log_factors.sum(axis=0), axis=0) + np.log(_SHARES)
    return int(by_threshold.argmax())


class ScoreSummary(NamedTuple):
    """What simulations of other noise need of the scores of canaries that are in.

    Attributes:
      mean: of the scores, on the thresholds' scale.
      between: the standard deviation of a run's mean beyond what its canaries' own deviation explains.
      within: the standard deviation of the canaries of a run.
      runs, canaries: how many runs, and canaries in of each.
    """

    mean: float
    between: float
    within: float
    runs: int
    canaries: int


def summarise_scores(runs: list[Array]) -> ScoreSummary:
    """Returns the summary of scores, an array a run."""
    means = np.array([run.mean() for run in runs])
    canaries = max(1, round(float(np.mean([len(run) for run in runs]))))
    deviations = np.concatenate([run - mean for run, mean in zip(runs, means, strict=True)])
    degrees = len(deviations) - len(runs)
    within = float(np.sqrt(deviations @ deviations / degrees)) if degrees > 0 else 1.0
    between = 0.0
    if len(runs) > 1 and degrees > 0:
        excess = float(means.var(ddof=1)) - within**2 / canaries
        between = float(np.sqrt(max(excess, 0.0)))
    return ScoreSummary(float(means.mean()), between, within, len(runs), canaries)


def find_least_departure(
    scores: ScoreSummary, log_rates: Array, power: Power, confidence: float, seed: int = 0
) -> Departure | None:
    """Returns the smallest departure of the noise that runs like these would refute, in 9 of 10 cases.

    With r times the noise, scores have 1 / r times the mean. Scores are simulated as normal, with their
    observed deviations between and within runs.

    Args:
      scores: the scores of canaries that are in, with the noise that is stated.
      log_rates: (T,) the log false-positive rates of THRESHOLDS.
      power: the largest true-positive rate that the claim allows at a false-positive rate.
      confidence: the confidence of the test.
      seed: the seed of the simulations.

    Returns:
      None where noise of a tenth would not be refuted either.
    """
    log_capital_needed = -np.log1p(-confidence)
    # Capital on far thresholds is left out where scores do not reach them: none is gained by that.
    thresholds = NEAR if scores.mean < NEAR[-1] - _FAR_DEVIATIONS else THRESHOLDS
    log_rates = log_rates[: len(thresholds)]

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the share of simulated audits, with so many times the noise, that refute the claim."""
        rng = np.random.default_rng(seed)  # the same draws at every ratio
        audits = _simulate(scores, noise_ratio, thresholds, rng)
        n_refuted = 0
        for shares in audits:
            exceedances = Exceedances(shares, log_rates, in_order=True)
            log_capital = compute_log_capital(exceedances, power)
            if log_capital.max() >= log_capital_needed:
                n_refuted += 1
        return n_refuted / len(audits)

    last = len(_RATIOS) - 1
    if estimate_refutation_probability(_RATIOS[last]) < SEEN_PROBABILITY:
        return None
    low = -1
    high = last
    while high - low > 1:
        middle = (low + high) // 2
        if estimate_refutation_probability(_RATIOS[middle]) >= SEEN_PROBABILITY:
            high = middle
        else:
            low = middle
    ratio = float(_RATIOS[high])
    return Departure(round(ratio, 3), estimate_refutation_probability(ratio))


def _simulate(
    scores: ScoreSummary, ratio: float, thresholds: Array, rng: np.random.Generator
) -> Array:
    """Returns simulated audits with `ratio` times the stated noise.

    Returns:
      (S, R, T) for S audits of R runs: the share of a run's canaries whose scores exceed each threshold.
    """
    simulations = _SIMULATED_RUNS // scores.runs
    simulations = min(max(simulations, _LEAST_SIMULATIONS), _SIMULATIONS)
    size = (simulations, scores.runs, 1)
    means = scores.mean / ratio + scores.between * rng.standard_normal(size)
    within = max(scores.within, 1e-9)
    above = special.ndtr((means - thresholds) / within)  # (S, R, T), which falls along T
    edges = np.concatenate([np.ones(size), above, np.zeros(size)], axis=-1)
    cells = np.maximum(-np.diff(edges, axis=-1), 0.0)
    counts = rng.multinomial(scores.canaries, cells / cells.sum(axis=-1, keepdims=True))
    below = np.cumsum(counts, axis=-1)[..., :-1]
    return np.asarray(1 - below / scores.canaries)


def _compute_gains(counted: Exceedances, power: Power) -> Array:
    """Returns h / m - 1 of each run and threshold (R, T)."""
    allowed = np.asarray(power(np.exp(counted.log_rates)), np.float64)
    allowed = np.maximum(allowed, 1e-300)
    return counted.shares / allowed - 1


def _mix(gains: Array) -> Array:
    """Returns the log capital (R,) of the mixture of bets on the first T thresholds, from gains (R, T)."""
    log_factors = np.log1p(BETS[:, None] * gains[:, None, :])  # (R, bets, T)
    log_components = np.cumsum(log_factors, axis=0).reshape(len(gains), -1)
    shares = np.tile(_SHARES[: gains.shape[1]] / len(BETS), len(BETS))
    largest = log_components.max(axis=1)
    relative = np.exp(log_components - largest[:, None])
    return np.asarray(largest + np.log(relative @ shares))


def gaussian_power(mu: float) -> Power:
    """Returns the power that mu-GDP allows (Dong, Roth and Su, 2022, Equation 6)."""

    def power(rates: Array) -> Array:
        return np.asarray(special.ndtr(special.ndtri(rates) + mu))

    return power


def _split_capital() -> Array:
    """Returns the share of the capital on each of THRESHOLDS."""
    near = np.full(len(NEAR), (1 - _FAR_SHARE) / len(NEAR))
    far = np.full(len(FAR), _FAR_SHARE / len(FAR))
    return np.concatenate([near, far])


_SHARES = _split_capital()
