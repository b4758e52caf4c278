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
most `error` (Ville, 1939), wherever the audit stops. A run that no other follows is bet on whole, c = 1: its
e-value is the mean over thresholds of h(t) / m(a(t)), by Markov's inequality. No threshold may be chosen by
a part of its canaries, as `exact_null` does: among thresholds that the run itself chooses, the curve allows
more than m(a(t)).

Three readings. Is the claim refuted (`examine_claim`)? Which mu is too small for *any* Gaussian guarantee:
the largest mu whose curve is refuted; nothing is assumed of the scores' law (`find_least_mu`). And which
smaller noise than stated would have been refuted by so many runs (`find_least_departure`)?

A test that refutes nothing shows something only with what it would have refuted. With r times the noise,
scores have 1 / r times the mean. `find_least_departure` simulates such scores, with the observed deviations
between and within runs, and tests them as the real scores are tested. It is no confidence bound.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.laws.intervals import find_largest_refuted

Array = NDArray[np.float64]
Power = Callable[
    [Array], Array
]  # false-positive rates -> the largest power that a claim allows at them

# Thresholds in standard deviations of a score that is out: values of Student's T for cosines, normal deviates
# for others. Scores of a claim of mu = 4 lie around 4; beyond 7 a canary that is out comes once in 10^12.
NEAR = np.arange(0.0, 7.01, 0.5)
# Only scores that leak far more than usual claims come here; up to 37, where the rate is the least float.
FAR = np.concatenate([np.arange(7.5, 12.1, 0.5), np.arange(13.0, 37.1)])
THRESHOLDS = np.concatenate([NEAR, FAR])
_FAR_SHARE = 0.05  # of the capital, which costs the near thresholds a twentieth of what they win
# c, the shares of a component's capital that it stakes on each run: small ones for small departures, which
# many runs have to show, large ones for bugs that a run or two show. More of them gain nothing.
BETS = np.array([0.05, 0.2, 0.5, 0.9])

_HALVINGS = 24  # of an interval of mu, to 1e-7 of it
_PATH_STEPS = 128  # values of mu that a path distinguishes
_MIN_ALLOWED = 1e-300  # of m, in the place of 0
_MAX_LOG = 700.0  # exp of more overflows
SEEN_PROBABILITY = 0.9  # with which a departure that "would have been seen" is refuted
# Simulated audits of each departure that is tried: as many as give so many runs, within these limits. With
# 200 the probability 0.9 is known to 0.02, with 20 to 0.07.
_SIMULATED_RUNS = 10_000
_MIN_AUDITS = 20
_MAX_AUDITS = 200
_FAR_DEVIATIONS = 3.0  # of a score, beyond which thresholds are out of reach
_MIN_DEVIATION = 1e-9  # in the place of 0
# Noise as multiples of what is stated: to half a percent from 0.995 on, to a percent below 0.9.
_RATIOS = np.concatenate([np.arange(0.995, 0.9, -0.005), np.arange(0.9, 0.09, -0.01)])


class Exceedances(NamedTuple):
    """How many canaries exceed thresholds, run by run.

    Attributes:
      shares: (R, T) the share of each run's canaries in that exceed each of the first T THRESHOLDS.
      log_rates: (T,) log of the exact probability that a canary that is out exceeds it.
      in_order: whether rows are in the order in which runs were begun.
      is_only_run: whether no other run follows the only one, so that all of the capital is staked on it.
    """

    shares: Array
    log_rates: Array
    in_order: bool
    is_only_run: bool = False


class Departure(NamedTuple):
    """The smallest departure from a claim that runs would have refuted.

    Attributes:
      noise: The departing mechanism's noise as a multiple of the stated noise, below 1.
      probability: The probability with which runs like these would have refuted it.
    """

    noise: float
    probability: float


class ClaimTest(NamedTuple):
    """The result of the test of a claim.

    Attributes:
      e_value: The evidence against the claim; at most 1 on average if it is true.
      refuted: Whether the e-value has reached 1 / (1 - confidence).
      runs: The number of runs after which the claim was refuted; where it was not, or where the order of runs
        is unknown, the number of all runs.
      seen: The smallest departure that so many runs would have refuted; None where none that was tried would
        have been, or where none was looked for.
    """

    e_value: float
    refuted: bool
    runs: int
    seen: Departure | None = None


def gaussian_power(mu: float) -> Power:
    """Returns the function a -> Phi(Phi^-1(a) + mu): the power that mu-GDP allows at false-positive rate a.

    Source: Dong, Roth and Su, 2022, Equation 6.
    """

    def power(rates: Array) -> Array:
        return np.asarray(special.ndtr(special.ndtri(rates) + mu))

    return power


def examine_claim(counted: Exceedances, power: Power, confidence: float) -> ClaimTest:
    """Tests a claimed curve by betting against it in each run; no departures are simulated.

    Where rows are in the order in which runs were begun, the test stays valid when more runs follow.

    Args:
      counted: The exceedances of each run.
      power: The claimed curve.
      confidence: The confidence of a refutation.
    """
    return judge_capital(compute_log_capital(counted, power), counted.in_order, confidence)


def compute_log_capital(counted: Exceedances, power: Power) -> Array:
    """Returns the log capital (R,) of a gambler against a claim, after each run.

    It is that of a mixture of bets with a component for each threshold t and each of BETS. A component starts
    with a share of the capital, which run i multiplies by 1 + c (h_i(t) / m(a(t)) - 1), with h_i(t) the share
    of the run's canaries above t, and m(a(t)) the power that the claim allows at the false-positive rate
    a(t). On an only run all is staked, c = 1.

    Args:
      counted: The exceedances of each run.
      power: The claimed curve m.
    """
    log_factors = _compute_log_factors(counted, power)
    runs, bets, thresholds = log_factors.shape
    log_components = np.cumsum(log_factors, axis=0).reshape(runs, bets * thresholds)
    # Each threshold's share is split evenly over bets. With fewer than all thresholds, the shares of the
    # others stay unused.
    start_shares = np.tile(_SHARES[:thresholds] / bets, bets)
    # The log of a weighted sum of exponentials, as by scipy.special.logsumexp, in a third of its time: the
    # tests spend nearly all their time here. The capital is 0 where all of it was staked in vain.
    largest = np.maximum(log_components.max(axis=1), -_MAX_LOG)
    relative = np.exp(log_components - largest[:, None])
    with np.errstate(divide="ignore"):
        return np.asarray(largest + np.log(relative @ start_shares))


def judge_capital(log_capital: Array, in_order: bool, confidence: float) -> ClaimTest:
    """Returns the result of the test of a claim, from the log capital against it after each run.

    Where rows are in the order in which runs were begun, the largest capital decides (Ville's inequality).
    Otherwise the capital after all runs decides alone. The result's number of runs is the number after which
    the claim was refuted first, or of all runs where it was not refuted or their order is not given.

    Args:
      log_capital: (R,) the log capital after each run.
      in_order: Whether rows are in the order in which runs were begun.
      confidence: The confidence of a refutation.
    """
    log_capital_needed = -np.log1p(-confidence)  # log(1 / error), with the error 1 - confidence
    reached = float(log_capital[-1])
    runs = len(log_capital)
    if in_order:
        reached = max(float(log_capital.max()), 0.0)  # before the first run the log capital is 0
        refuting = np.flatnonzero(log_capital >= log_capital_needed)
        runs = int(refuting[0]) + 1 if len(refuting) else runs
    e_value = float(np.exp(min(reached, _MAX_LOG)))
    return ClaimTest(e_value, refuted=bool(reached >= log_capital_needed), runs=runs)


def find_least_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the mu below which the runs refute every Gaussian guarantee; 0 where they refute none."""
    return find_largest_refuted(
        lambda mu: examine_claim(counted, gaussian_power(mu), confidence).refuted,
        low=0.0,
        first=1.0,
        halvings=_HALVINGS,
    )


def trace_least_mu(counted: Exceedances, least_mu: float, confidence: float) -> Array:
    """Returns a path (R,): after each run, the mu below which runs so far refute every Gaussian guarantee.

    Entry i is `find_least_mu` of the first i + 1 runs, rounded down to a multiple of `least_mu` / 128. It is
    empty, (0,), where rows are not in the order in which runs were begun.

    Args:
      counted: The exceedances of each run.
      least_mu: `find_least_mu` of all runs.
      confidence: The confidence of a refutation.
    """
    if not counted.in_order:
        return np.zeros(0)
    path = np.zeros(len(counted.shares))
    for mu in np.linspace(0.0, least_mu, _PATH_STEPS + 1):
        test = examine_claim(counted, gaussian_power(float(mu)), confidence)
        # The values of mu ascend, and a larger value is refuted no sooner. From the run on that refutes
        # it, it replaces the smaller.
        if test.refuted:
            path[test.runs - 1 :] = mu
    return path


def find_main_threshold(counted: Exceedances, power: Power) -> int:
    """Returns the index of the threshold that holds most of the capital against a claim after all runs."""
    log_components = _compute_log_factors(counted, power).sum(axis=0)
    # A threshold's bets begin with equal parts of its share, so that their common factor changes nothing.
    by_threshold = special.logsumexp(log_components, axis=0) + np.log(_SHARES)
    return int(by_threshold.argmax())


def _compute_log_factors(counted: Exceedances, power: Power) -> Array:
    """Returns the log (R, bets, T) of the factor by which each run multiplies each bet on each threshold."""
    allowed = np.asarray(power(np.exp(counted.log_rates)), np.float64)
    # The power divides, so it is kept above 0. It may be 0 where a rate is too small for a float.
    gains = counted.shares / np.maximum(allowed, _MIN_ALLOWED) - 1
    bets = np.ones(1) if counted.is_only_run else BETS
    with np.errstate(divide="ignore"):
        return np.asarray(np.log1p(bets[:, None] * gains[:, None, :]))


# The share of the capital on each of THRESHOLDS (T,): 95% on NEAR and 5% on FAR, evenly.
_SHARES = np.repeat(
    [(1 - _FAR_SHARE) / len(NEAR), _FAR_SHARE / len(FAR)],
    [len(NEAR), len(FAR)],
)


class ScoreSummary(NamedTuple):
    """What simulations with other noise need to know of the scores of canaries that are in.

    Attributes:
      mean: The mean score, on the scale of the thresholds: in standard deviations of a score that is out.
      between: The standard deviation of runs' means beyond what the canaries' own deviation explains.
      within: The standard deviation of scores among the canaries of a run.
      runs: The number of runs.
      canaries: The number of canaries that are in, in a run.
    """

    mean: float
    between: float
    within: float
    runs: int
    canaries: int


def summarise_scores(runs: list[Array]) -> ScoreSummary:
    """Returns the means and standard deviations of runs' scores, for simulations of runs like them.

    Where each run has a single canary, the spreads within and between runs cannot be told apart. The first is
    then taken to be that of scores out, 1, and the second 0. It is 0 for a single run, too.

    Args:
      runs: An array (K,) for each run, the scores of its canaries that are in, at least one, in standard
        deviations of a score that is out. K may differ between runs.
    """
    means = np.array([run.mean() for run in runs])
    canaries = max(1, round(float(np.mean([len(run) for run in runs]))))
    deviations = np.concatenate([run - mean for run, mean in zip(runs, means, strict=True)])
    degrees = len(deviations) - len(runs)  # a mean is fitted to each run
    within = 1.0
    between = 0.0
    if degrees > 0:
        within = float(np.sqrt(deviations @ deviations / degrees))
        if len(runs) > 1:
            # The variance of runs' means, less what the spread within runs adds to it.
            excess = float(means.var(ddof=1)) - within**2 / canaries
            between = float(np.sqrt(max(excess, 0.0)))
    return ScoreSummary(float(means.mean()), between, within, len(runs), canaries)


def find_least_departure(
    scores: ScoreSummary, counted: Exceedances, power: Power, confidence: float, seed: int = 0
) -> Departure | None:
    """Returns the smallest departure of the noise that runs like these would refute in 9 of 10 cases.

    A departure is noise of r < 1 times what is stated, which multiplies the mean score by 1 / r. Audits with
    such noise are simulated, and tested as the real scores are.

    Args:
      scores: The summary of scores of canaries that are in, under the stated noise.
      counted: The exceedances of the real scores, with the exact rates of THRESHOLDS.
      power: Maps false-positive rates to the largest true-positive rates that the claim allows.
      confidence: The confidence of the test.
      seed: The seed of the simulations.

    Returns:
      The departure's noise as a multiple of the stated noise, and the probability with which it would be
      refuted. None where not even a tenth of the stated noise would be refuted.
    """
    # Far thresholds are left out, to save time, where scores hardly reach them under the stated noise: bets
    # on them gain next to nothing at small departures. Without them the capital is never larger.
    thresholds = NEAR if scores.mean < NEAR[-1] - _FAR_DEVIATIONS else THRESHOLDS
    counted = counted._replace(log_rates=counted.log_rates[: len(thresholds)])
    # The claim's power is computed once: that of a privacy loss distribution takes a while.
    allowed = power(np.exp(counted.log_rates))

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the share of simulated audits, with this multiple of the noise, that refute the claim."""
        rng = np.random.default_rng(seed)  # the same draws at every ratio
        audits = _simulate(scores, noise_ratio, thresholds, rng)
        tests = [
            examine_claim(counted._replace(shares=shares), lambda rates: allowed, confidence)
            for shares in audits
        ]
        return float(np.mean([test.refuted for test in tests]))

    def is_refuted(index: int) -> bool:
        """Returns whether noise of one of _RATIOS, which fall, is refuted often enough."""
        return estimate_refutation_probability(_RATIOS[index]) >= SEEN_PROBABILITY

    # The less noise there is, the more often it is refuted.
    last = len(_RATIOS) - 1
    if not is_refuted(last):
        return None
    ratio = float(_RATIOS[bisect_left(range(last), True, key=is_refuted)])
    return Departure(round(ratio, 3), estimate_refutation_probability(ratio))


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
    audits = int(np.clip(_SIMULATED_RUNS // scores.runs, _MIN_AUDITS, _MAX_AUDITS))
    size = (audits, scores.runs, 1)
    # Scores are in standard deviations of a score that is out. On that scale r times the noise leaves
    # deviations as they are, and divides the mean by r.
    means = scores.mean / noise_ratio + scores.between * rng.standard_normal(size)
    within = max(scores.within, _MIN_DEVIATION)  # `draw_shares` divides by it
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
    # The probabilities to lie between -inf, the thresholds, and inf, (..., T + 1). Rounding may leave them
    # below 0, and their sum may differ from 1, which `multinomial` refuses.
    ends = [(0, 0)] * (above.ndim - 1) + [(1, 1)]
    edges = np.pad(above, ends, constant_values=(1, 0))
    cells = np.maximum(-np.diff(edges), 0.0)
    counts = rng.multinomial(canaries, cells / cells.sum(axis=-1, keepdims=True))
    below = np.cumsum(counts, axis=-1)[..., :-1]  # the last cell ends at inf, which is no threshold
    return np.asarray(1 - below / canaries)
