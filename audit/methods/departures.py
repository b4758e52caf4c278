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
    judge_capital,
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
    """What simulations with other noise need to know of the scores of canaries that are in.

    Attributes:
      mean: The mean score, on the scale of the thresholds: in standard deviations of a score that is out.
      between: The standard deviation of runs' means beyond what the canaries' own deviation explains.
      within: The standard deviation of scores among the canaries of a run.
      runs: The number of runs.
      canaries: The number of canaries that are in, in a run.
      in_order: Whether the runs are in the order in which they were begun. The test of a claim then looks at
        the scores after each run, and else after all runs alone.
    """

    mean: float
    between: float
    within: float
    runs: int
    canaries: int
    in_order: bool


def summarise_scores(runs: list[Array], in_order: bool) -> ScoreSummary:
    """Returns the means and standard deviations of runs' scores, for simulations of runs like them.

    Scores are in standard deviations of a score that is out. The deviation within runs is 1 where each run
    has a single canary. The deviation between runs is 0 where it cannot be estimated: with a single canary a
    run, or a single run.

    Args:
      runs: An array (K,) for each run, the scores of its canaries that are in, at least one. K may differ
        between runs.
      in_order: Whether the runs are in the order in which they were begun.
    """
    means = np.array([run.mean() for run in runs])
    # Simulations draw the same number of canaries in every run: the mean number, as a whole number. It is at
    # least 1, since every run has a canary.
    canaries = max(1, round(float(np.mean([len(run) for run in runs]))))
    deviations = np.concatenate([run - mean for run, mean in zip(runs, means, strict=True)])
    # The degrees of freedom of the spread within runs: a mean is fitted to each run.
    degrees = len(deviations) - len(runs)
    # Where each run has a single canary, the spreads within and between runs cannot be told apart. The first
    # is then taken to be that of scores out, 1, and the second 0.
    within = 1.0
    between = 0.0
    if degrees > 0:
        within = float(np.sqrt(deviations @ deviations / degrees))
    if degrees > 0 and len(runs) > 1:
        # The variance of runs' means, less what the spread within runs adds to it.
        excess = float(means.var(ddof=1)) - within**2 / canaries
        between = float(np.sqrt(max(excess, 0.0)))
    return ScoreSummary(float(means.mean()), between, within, len(runs), canaries, in_order)


def find_least_departure(
    scores: ScoreSummary,
    log_rates: Array,
    power: Power,
    confidence: float,
    bet: LogCapital = compute_log_capital,
    seed: int = 0,
) -> Departure | None:
    """Returns the smallest departure of the noise that runs like these would refute in 9 of 10 cases.

    A departure is noise of r < 1 times what is stated, which multiplies the mean score by 1 / r. Audits with
    such noise are simulated, and tested as the real scores are.

    Args:
      scores: The summary of scores of canaries that are in, under the stated noise.
      log_rates: (T,) the log false-positive rates of THRESHOLDS.
      power: Maps false-positive rates to the largest true-positive rates that the claim allows.
      confidence: The confidence of the test.
      bet: How the test bets on what exceeds the thresholds.
      seed: The seed of the simulations.

    Returns:
      The departure's noise as a multiple of the stated noise, and the probability with which it would be
      refuted. None where not even a tenth of the stated noise would be refuted.
    """
    # Far thresholds are left out, to save time, where scores hardly reach them under the stated noise: bets
    # on them gain next to nothing at small departures. Without them the capital is never larger.
    thresholds = NEAR if scores.mean < NEAR[-1] - _FAR_DEVIATIONS else THRESHOLDS
    log_rates = log_rates[: len(thresholds)]
    # The claim's power is computed once: that of a privacy loss distribution takes a while.
    allowed = power(np.exp(log_rates))

    def get_allowed(rates: Array) -> Array:
        """Returns the claim's power at the rates of the thresholds, which all simulated audits share."""
        return allowed

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the share of simulated audits, with this multiple of the noise, that refute the claim."""
        rng = np.random.default_rng(seed)  # the same draws at every ratio
        audits = _simulate(scores, noise_ratio, thresholds, rng)
        n_refuted = 0
        for shares in audits:
            log_capital = bet(Exceedances(shares, log_rates, scores.in_order), get_allowed)
            test = judge_capital(log_capital, scores.in_order, confidence)
            n_refuted += test.refuted
        return n_refuted / len(audits)

    return _find_largest_ratio(estimate_refutation_probability)


def _find_largest_ratio(estimate_probability: Callable[[float], float]) -> Departure | None:
    """Returns the largest of the noise ratios _RATIOS that is refuted with at least SEEN_PROBABILITY.

    None where not even the least ratio is. Bisection finds the largest: the less noise there is, the more
    often it is refuted.

    Args:
      estimate_probability: Maps a ratio to the probability with which noise of this ratio is refuted.
    """
    last = len(_RATIOS) - 1
    if estimate_probability(_RATIOS[last]) < SEEN_PROBABILITY:
        return None
    # Indices into _RATIOS, which fall. The ratio at `too_large` is refuted too seldom, unless that is -1.
    too_large = -1
    refuted = last
    while refuted - too_large > 1:
        middle = (too_large + refuted) // 2
        if estimate_probability(_RATIOS[middle]) >= SEEN_PROBABILITY:
            refuted = middle
        else:
            too_large = middle
    ratio = float(_RATIOS[refuted])
    return Departure(round(ratio, 3), estimate_probability(ratio))


def _simulate(
    scores: ScoreSummary, noise_ratio: float, thresholds: Array, rng: np.random.Generator
) -> Array:
    """Simulates audits of mechanisms with `noise_ratio` times the stated noise.

    Args:
      scores: The summary of scores under the stated noise.
      noise_ratio: r, the noise as a multiple of the stated noise.
      thresholds: (T,) thresholds in ascending order.
      rng: The randomness.

    Returns:
      (S, R, T) for S audits of R runs: the share of each run's canaries whose scores exceed each threshold.
    """
    # As many audits as take 10,000 runs in all, from 20 to 200.
    audits = int(np.clip(_SIMULATED_RUNS // scores.runs, _LEAST_AUDITS, _MOST_AUDITS))
    size = (audits, scores.runs, 1)
    # Scores are in standard deviations of a score that is out. On that scale r times the noise leaves
    # deviations as they are, and divides the mean by r.
    means = scores.mean / noise_ratio + scores.between * rng.standard_normal(size)
    within = max(scores.within, _LEAST_DEVIATION)  # `draw_shares` divides by it
    return draw_shares(means, within, thresholds, scores.canaries, rng)


def draw_shares(
    means: Array, deviation: float, thresholds: Array, canaries: int, rng: np.random.Generator
) -> Array:
    """Draws which share of a run's canaries exceeds each threshold, if their scores are normal.

    Scores themselves are not drawn, only how many lie between neighbouring thresholds, which takes less time.

    Args:
      means: (..., 1) the mean score of each run.
      deviation: The standard deviation of scores within a run.
      thresholds: (T,) thresholds in ascending order.
      canaries: The number of canaries of each run.
      rng: The randomness of the counts.

    Returns:
      (..., T) shares.
    """
    above = special.ndtr((means - thresholds) / deviation)  # falls along T
    # The probability to lie above -inf, above each threshold, and above inf, (..., T + 2).
    ones = np.ones(means.shape)
    edges = np.concatenate([ones, above, 0 * ones], axis=-1)
    # The probabilities to lie between neighbours. Rounding may leave them below 0, and their sum may differ
    # from 1, which `multinomial` refuses.
    cells = np.maximum(-np.diff(edges, axis=-1), 0.0)
    counts = rng.multinomial(canaries, cells / cells.sum(axis=-1, keepdims=True))
    # The last cell ends at inf, which is no threshold.
    below = np.cumsum(counts, axis=-1)[..., :-1]
    return np.asarray(1 - below / canaries)
