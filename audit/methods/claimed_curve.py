"""Tests of a claimed trade-off curve by scores with an exactly known law without the canary.

A claim allows a test with false-positive rate a at most the power m(a), which is concave and increasing
(Dong, Roth and Su, "Gaussian differential privacy", 2022). The rate a(t) of left-out canaries above a
threshold t is known exactly, for fresh directions (`exact_null`) and for ranks among fresh draws
(`audit.evidence.ranks`). audit/methods/README.md ("Is the claim true?") derives the test: after n runs, the
capital against the claim is a mixture of

    prod_i (1 + c (h_i(t) / m(a(t)) - 1)),    0 < c < 1,

with h_i(t) the share of run i's canaries above t. For an only run, c = 1: its e-value is the mean over
thresholds of h(t) / m(a(t)), by Markov's inequality. Unlike in `exact_null`, a part of the canaries must not
choose a threshold: the curve allows more than m(a(t)) at thresholds that the run itself chooses.

`find_least_departure` is not a confidence bound: it simulates scores with the observed deviations between and
within runs.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array
from audit.laws.intervals import find_largest_refuted

Power = Callable[[Array], Array]  # false-positive rates -> the largest power that a claim allows

# Thresholds in standard deviations of a left-out score: values of Student's T for cosines, normal deviates
# for others. Scores of a claim of mu = 4 are around 4. A left-out canary exceeds 7 once in 10^12.
NEAR = np.arange(0.0, 7.01, 0.5)
# For leaks far beyond usual claims. At 37 the rate is the smallest float.
_HALF_STEPS = np.arange(7.5, 12.1, 0.5)
FAR = np.concatenate([_HALF_STEPS, np.arange(13.0, 37.1)])
THRESHOLDS = np.concatenate([NEAR, FAR])
_FAR_SHARE = 0.05  # of the capital
# c, the share of a component's capital that is staked on each run: small for small departures over many
# runs, large for bugs that a run or two show.
BETS = np.array([0.05, 0.2, 0.5, 0.9])

_HALVINGS = 24  # of an interval of mu, to 1e-7 of it
_PATH_STEPS = 128  # values of mu that a path distinguishes
_MIN_ALLOWED = 1e-300  # avoids a division by 0
_MAX_LOG = 700.0  # exp of more overflows
SEEN_PROBABILITY = 0.9  # of refuting a departure that "would have been seen"
# Runs and audits to simulate for each departure. The standard error of the probability 0.9 is 0.02 with 200
# audits and 0.07 with 20.
_SIMULATED_RUNS = 10_000
_MIN_AUDITS = 20
_MAX_AUDITS = 200
_FAR_DEVIATIONS = 3.0  # of a score; thresholds beyond are out of reach
_MIN_DEVIATION = 1e-9  # avoids a division by 0
# Noise as multiples of the stated noise.
_NEAR_RATIOS = np.arange(0.995, 0.9, -0.005)
_FAR_RATIOS = np.arange(0.9, 0.09, -0.01)
_RATIOS = np.concatenate([_NEAR_RATIOS, _FAR_RATIOS])


class Exceedances(NamedTuple):
    """The shares of canaries that exceed thresholds, run by run.

    Attributes:
      shares: (R, T) the share of each run's inserted canaries that exceed each of the first T THRESHOLDS.
      log_rates: (T,) log of the exact probability that a left-out canary exceeds it.
      in_order: whether rows are in start order.
      is_only_run: whether no other run follows the only one; all of the capital is then staked on it.
    """

    shares: Array
    log_rates: Array
    in_order: bool
    is_only_run: bool = False


class Departure(NamedTuple):
    """The smallest departure from a claim that the test would have refuted.

    Attributes:
      noise: The noise as a multiple of the stated noise, below 1.
      probability: The probability that runs like these refute it.
    """

    noise: float
    probability: float


class ClaimTest(NamedTuple):
    """The result of the test of a claim.

    Attributes:
      e_value: The evidence against the claim; at most 1 on average if it is true.
      refuted: Whether the e-value has reached 1 / (1 - confidence).
      runs: The number of runs until the refutation; all runs without one or with an unknown order.
      seen: The smallest departure that would have been refuted; None if there is none or it was not computed.
    """

    e_value: float
    refuted: bool
    runs: int
    seen: Departure | None = None


def gaussian_power(mu: float) -> Power:
    """Returns the function a -> Phi(Phi^-1(a) + mu), the power that mu-GDP allows.

    Source: Dong, Roth and Su, 2022, Equation 6.
    """

    def power(rates: Array) -> Array:
        return np.asarray(special.ndtr(special.ndtri(rates) + mu))

    return power


def examine_claim(counted: Exceedances, power: Power, confidence: float) -> ClaimTest:
    """Tests a claimed curve by betting against it in each run, without simulated departures.

    If rows are in start order, the test stays valid when more runs follow.
    """
    return judge_capital(compute_log_capital(counted, power), counted.in_order, confidence)


def compute_log_capital(counted: Exceedances, power: Power) -> Array:
    """Returns the log capital (R,) of a gambler against a claim, after each run.

    It is a mixture with a component for each threshold and each of BETS. On an only run all is staked, c = 1.
    """
    log_factors = _compute_log_factors(counted, power)
    runs, bets, thresholds = log_factors.shape
    log_components = np.cumsum(log_factors, axis=0).reshape(runs, bets * thresholds)
    # The shares of left-out thresholds stay unused.
    start_shares = np.tile(share_capital()[:thresholds] / bets, bets)
    with np.errstate(divide="ignore"):
        return np.asarray(special.logsumexp(log_components, axis=1, b=start_shares))


def judge_capital(log_capital: Array, in_order: bool, confidence: float) -> ClaimTest:
    """Returns the result of the test of a claim, from the log capital (R,) against it after each run.

    If rows are in start order, the largest capital decides (Ville's inequality), otherwise the last.
    """
    log_capital_needed = -np.log1p(-confidence)  # log(1 / error)
    reached = float(log_capital[-1])
    runs = len(log_capital)
    if in_order:
        reached = max(float(log_capital.max()), 0.0)  # before the first run the log capital is 0
        refuting = np.flatnonzero(log_capital >= log_capital_needed)
        if len(refuting):
            runs = int(refuting[0]) + 1
    e_value = float(np.exp(min(reached, _MAX_LOG)))
    return ClaimTest(e_value, refuted=bool(reached >= log_capital_needed), runs=runs)


def find_least_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the mu below which the runs refute every Gaussian guarantee, or 0."""
    return find_largest_refuted(
        lambda mu: examine_claim(counted, gaussian_power(mu), confidence).refuted,
        first=1.0,
        halvings=_HALVINGS,
    )


def trace_least_mu(counted: Exceedances, least_mu: float, confidence: float) -> Array:
    """Returns a path (R,): after each run, the mu below which runs so far refute every Gaussian guarantee.

    Entry i is `find_least_mu` of the first i + 1 runs, rounded down to a multiple of 1/128 of that of all
    runs. Rows must be in start order.
    """
    path = np.zeros(len(counted.shares))
    for mu in np.linspace(0.0, least_mu, _PATH_STEPS + 1):
        test = examine_claim(counted, gaussian_power(float(mu)), confidence)
        # A larger mu is never refuted earlier than a smaller mu.
        if test.refuted:
            path[test.runs - 1 :] = mu
    return path


def find_main_threshold(counted: Exceedances, power: Power) -> int:
    """Returns the index of the threshold with most of the capital against a claim after all runs."""
    log_components = _compute_log_factors(counted, power).sum(axis=0)
    by_threshold = special.logsumexp(log_components, axis=0) + np.log(share_capital())
    return int(by_threshold.argmax())


def _compute_log_factors(counted: Exceedances, power: Power) -> Array:
    """Returns log(1 + c (h_i(t) / m(a(t)) - 1)), (R, bets, T), for each run i, bet c and threshold t."""
    allowed = power(np.exp(counted.log_rates))
    gains = counted.shares / np.maximum(allowed, _MIN_ALLOWED) - 1
    bets = BETS
    if counted.is_only_run:
        bets = np.ones(1)  # all of the capital
    staked_gains = bets[:, None] * gains[:, None, :]
    with np.errstate(divide="ignore"):
        return np.log1p(staked_gains)


def share_capital(near: int = len(NEAR), far: int = len(FAR)) -> Array:
    """Returns the shares (near + far,) of the capital: 95% on the near thresholds, 5% on the far ones."""
    return np.repeat([(1 - _FAR_SHARE) / near, _FAR_SHARE / far], [near, far])


class ScoreSummary(NamedTuple):
    """The summary of inserted canaries' scores for simulations with other noise.

    Attributes:
      mean: The mean score, in standard deviations of a left-out score.
      between: The standard deviation of runs' means in excess of the canaries' own deviation; 0 for a single
        run, or with a single canary per run.
      within: The standard deviation of scores among the canaries of a run; 1 with a single canary per run.
      runs: The number of runs.
      canaries: The number of inserted canaries in a run.
    """

    mean: float
    between: float
    within: float
    runs: int
    canaries: int


def find_least_departure(
    scores: ScoreSummary, counted: Exceedances, power: Power, confidence: float
) -> Departure | None:
    """Returns the smallest departure of the noise that runs like these would refute in 9 of 10 cases.

    Noise of r < 1 times the stated noise multiplies the mean score by 1 / r. The result is None if not even a
    tenth of the stated noise would be refuted.
    """
    # Far thresholds are dropped to save time if scores hardly reach them. This never increases the capital.
    thresholds = NEAR if scores.mean < NEAR[-1] - _FAR_DEVIATIONS else THRESHOLDS
    counted = counted._replace(log_rates=counted.log_rates[: len(thresholds)])
    allowed = power(np.exp(counted.log_rates))
    num_audits = int(np.clip(_SIMULATED_RUNS // scores.runs, _MIN_AUDITS, _MAX_AUDITS))
    within = max(scores.within, _MIN_DEVIATION)  # `draw_shares` divides by it

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the share of simulated audits, with this multiple of the noise, that refute the claim."""
        rng = np.random.default_rng(0)  # the same draws at every ratio
        deviations = scores.between * rng.standard_normal((num_audits, scores.runs, 1))
        means = scores.mean / noise_ratio + deviations
        refuted = []
        for shares in draw_shares(means, within, thresholds, scores.canaries, rng):
            simulated = counted._replace(shares=shares)
            test = examine_claim(simulated, lambda rates: allowed, confidence)
            refuted.append(test.refuted)
        return float(np.mean(refuted))

    def is_refuted(index: int) -> bool:
        return estimate_refutation_probability(_RATIOS[index]) >= SEEN_PROBABILITY

    # The less noise there is, the more often it is refuted.
    last = len(_RATIOS) - 1
    if not is_refuted(last):
        return None
    ratio = float(_RATIOS[bisect_left(range(last), True, key=is_refuted)])
    return Departure(round(ratio, 3), estimate_refutation_probability(ratio))


def draw_shares(
    means: Array, deviation: float, thresholds: Array, canaries: int, rng: np.random.Generator
) -> Array:
    """Draws the share (..., T) of a run's canaries above each threshold, if their scores are normal.

    Args:
      means: (..., 1) the mean score of each run.
      deviation: The standard deviation of scores within a run.
      thresholds: (T,) thresholds in ascending order.
      canaries: The number of canaries of each run.
      rng: The randomness of the counts.
    """
    above = special.ndtr((means - thresholds) / deviation)  # falls along T
    # The probabilities of the intervals between -inf, the thresholds, and inf, (..., T + 1). `multinomial`
    # rejects rounding errors, so they are clipped and normalized.
    ends = [(0, 0)] * (above.ndim - 1) + [(1, 1)]
    edges = np.pad(above, ends, constant_values=(1, 0))
    cells = np.maximum(-np.diff(edges), 0.0)
    totals = cells.sum(axis=-1, keepdims=True)
    counts = rng.multinomial(canaries, cells / totals)
    below = np.cumsum(counts, axis=-1)[..., :-1]  # the last cell ends at inf
    return 1 - below / canaries
