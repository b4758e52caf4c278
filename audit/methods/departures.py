"""Which smaller noise than stated would have been refuted by so many runs.

A test that refutes nothing says something only beside what it would have refuted. With r times the noise,
scores have 1 / r times the mean. Here such scores are simulated, with the deviations between and within runs
that were observed, and are tested as the real scores are (`audit.methods.claimed_curve`). The result says how
sharp the test is; it is no confidence bound.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.methods.claimed_curve import (
    NEAR,
    THRESHOLDS,
    Departure,
    Exceedances,
    LogCapital,
    Power,
    compute_log_capital,
)

Array = NDArray[np.float64]

SEEN_PROBABILITY = 0.9  # with which a departure that "would have been seen" is refuted
# Simulated audits of each departure that is tried: as many as give so many runs, within these limits. With
# 200 the probability 0.9 is known to 0.02, with 20 to 0.07.
_SIMULATED_RUNS = 10_000
_LEAST_AUDITS = 20
_MOST_AUDITS = 200
_FAR_DEVIATIONS = 3.0  # of a score, beyond which thresholds are out of reach
_LEAST_DEVIATION = 1e-9  # in the place of 0
# Noise as multiples of what is stated: to half a percent from 0.995 on, to a percent below 0.9.
_RATIOS = np.concatenate([np.arange(0.995, 0.9, -0.005), np.arange(0.9, 0.09, -0.01)])


class ScoreSummary(NamedTuple):
    """What simulations of other noise need of the scores of canaries that are in.

    Attributes:
      mean: of the scores, on the scale of the thresholds: deviations of a score that is out.
      between: the standard deviation of a run's mean beyond what its canaries' own deviation explains.
      within: the standard deviation of the canaries of a run.
      runs: how many there are.
      canaries: how many are in, in a run.
    """

    mean: float
    between: float
    within: float
    runs: int
    canaries: int


def summarise_scores(runs: list[Array]) -> ScoreSummary:
    """Returns the summary of scores, an array (K,) a run, on the scale of the thresholds."""
    means = np.array([run.mean() for run in runs])
    canaries = max(1, round(float(np.mean([len(run) for run in runs]))))
    deviations = np.concatenate([run - mean for run, mean in zip(runs, means, strict=True)])
    degrees = len(deviations) - len(runs)
    within = 1.0  # as of a score that is out, where each run has a single canary
    between = 0.0
    if degrees > 0:
        within = float(np.sqrt(deviations @ deviations / degrees))
    if degrees > 0 and len(runs) > 1:
        excess = float(means.var(ddof=1)) - within**2 / canaries
        between = float(np.sqrt(max(excess, 0.0)))
    return ScoreSummary(float(means.mean()), between, within, len(runs), canaries)


def find_least_departure(
    scores: ScoreSummary,
    log_rates: Array,
    power: Power,
    confidence: float,
    bet: LogCapital = compute_log_capital,
    seed: int = 0,
) -> Departure | None:
    """Returns the smallest departure of the noise that runs like these would refute, in 9 of 10 cases.

    Args:
      scores: the scores of canaries that are in, with the noise that is stated.
      log_rates: (T,) the log false-positive rates of THRESHOLDS.
      power: the largest true-positive rate that the claim allows at a false-positive rate.
      confidence: the confidence of the test.
      bet: how the test bets on what exceeds the thresholds.
      seed: the seed of the simulations.

    Returns:
      None where noise of a tenth would not be refuted either.
    """
    log_capital_needed = -np.log1p(-confidence)
    # Capital on far thresholds is left out where scores do not reach them: none is gained by that.
    thresholds = NEAR if scores.mean < NEAR[-1] - _FAR_DEVIATIONS else THRESHOLDS
    log_rates = log_rates[: len(thresholds)]
    allowed = power(np.exp(log_rates))  # once: that of a privacy loss distribution takes a while

    def get_allowed(rates: Array) -> Array:
        """Returns the claim's power at the rates of the thresholds, which all simulated audits share."""
        return allowed

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the share of simulated audits, with so many times the noise, that refute the claim."""
        rng = np.random.default_rng(seed)  # the same draws at every ratio
        audits = _simulate(scores, noise_ratio, thresholds, rng)
        n_refuted = 0
        for shares in audits:
            log_capital = bet(Exceedances(shares, log_rates, in_order=True), get_allowed)
            if log_capital.max() >= log_capital_needed:
                n_refuted += 1
        return n_refuted / len(audits)

    return _find_largest_ratio(estimate_refutation_probability)


def _find_largest_ratio(estimate_probability: Callable[[float], float]) -> Departure | None:
    """Returns the largest of _RATIOS that is refuted with SEEN_PROBABILITY; None where the least is not.

    Bisection finds it: the less noise there is, the more often it is refuted.
    """
    last = len(_RATIOS) - 1
    if estimate_probability(_RATIOS[last]) < SEEN_PROBABILITY:
        return None
    not_seen = -1
    is_seen = last
    while is_seen - not_seen > 1:
        middle = (not_seen + is_seen) // 2
        if estimate_probability(_RATIOS[middle]) >= SEEN_PROBABILITY:
            is_seen = middle
        else:
            not_seen = middle
    ratio = float(_RATIOS[is_seen])
    return Departure(round(ratio, 3), estimate_probability(ratio))


def _simulate(
    scores: ScoreSummary, noise_ratio: float, thresholds: Array, rng: np.random.Generator
) -> Array:
    """Returns simulated audits with `noise_ratio` times the stated noise.

    Returns:
      (S, R, T) for S audits of R runs: the share of a run's canaries whose scores exceed each threshold.
    """
    audits = int(np.clip(_SIMULATED_RUNS // scores.runs, _LEAST_AUDITS, _MOST_AUDITS))
    size = (audits, scores.runs, 1)
    means = scores.mean / noise_ratio + scores.between * rng.standard_normal(size)
    within = max(scores.within, _LEAST_DEVIATION)
    return draw_shares(means, within, thresholds, scores.canaries, rng)


def draw_shares(
    means: Array, deviation: float, thresholds: Array, canaries: int, rng: np.random.Generator
) -> Array:
    """Draws normal scores of canaries, and returns which share of them exceeds each threshold.

    Counts of canaries between thresholds are drawn, which takes less time than scores do.

    Args:
      means: (..., 1) the mean of a run's scores.
      deviation: of a score.
      thresholds: (T,), in ascending order.
      canaries: of each run.
      rng: draws the counts.

    Returns:
      (..., T).
    """
    above = special.ndtr((means - thresholds) / deviation)  # falls along T
    edge = np.ones(means.shape)
    edges = np.concatenate([edge, above, 0 * edge], axis=-1)
    cells = np.maximum(-np.diff(edges, axis=-1), 0.0)  # probabilities between thresholds
    counts = rng.multinomial(canaries, cells / cells.sum(axis=-1, keepdims=True))
    below = np.cumsum(counts, axis=-1)[..., :-1]
    return np.asarray(1 - below / canaries)
