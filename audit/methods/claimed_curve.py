"""Tests a claimed trade-off curve if the null distribution of scores is known exactly.

A claim states that any test with false-positive rate a has at most the power m(a). We know the rate a(t) at
which left-out canaries exceed a threshold t, for fresh directions (`exact_null`) and for ranks among fresh
draws (`audit.evidence.ranks`). audit/methods/README.md ("Is the claim true?") derives the test. After n runs,
the capital against the claim is a mixture of

    prod_i (1 + c (h_i(t) / m(a(t)) - 1)),    0 < c < 1.

Here h_i(t) is the fraction of run i's canaries above t. If there can only be one run, c = 1, and the e-value
is the mean over thresholds of h(t) / m(a(t)). Unlike in `exact_null`, some of the canaries cannot choose the
threshold: at a threshold that depends on the run, the curve allows more than m(a(t)).

*The first run.* If it has at least 200 canaries, we also bet on the number of small p-values. The p-value of
a canary is the probability that a left-out canary scores at least as high. A bet at rate a pays h / m(a),
where h is the fraction of p-values up to a. The claim determines the five rates: if j canaries have p-values
up to the rate for j hits, this bet alone refutes the claim (j = 1, 2, 4, 8, 16).

`find_least_departure` is not a confidence bound.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array
from audit.laws.intervals import find_largest_refuted

Power = Callable[[Array], Array]  # m: false-positive rates -> the largest power that a claim allows

# Thresholds in standard deviations of a left-out score: values of Student's T for cosines, and normal
# deviates for other scores. If mu is 4, scores are around 4. A left-out canary exceeds 7 once in 10^12.
NEAR = np.arange(0.0, 7.01, 0.5)
# For leaks far beyond usual claims. At 37, the rate is the smallest float.
FAR = np.append(np.arange(7.5, 12.1, 0.5), np.arange(13.0, 37.1))
THRESHOLDS = np.append(NEAR, FAR)
# c, the fraction of a component's capital that is staked on each run. Small bets detect small departures in
# many runs, and large bets detect large ones in one or two runs.
BETS = np.array([0.05, 0.2, 0.5, 0.9])

MIN_FIRST = 200  # canaries in the first run, for bets on its p-values
FIRST_STAKE = 0.5  # the fraction of each component's capital that is staked on these bets
_REFUTING_HITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
_REFUTING_CAPITAL = 20.0  # refutes a claim at confidence 0.95
# A grid of rates for these bets, in ascending order.
_RATES = np.append(0.0, special.ndtr(np.arange(-37.0, 0.01, 0.05)))


class Exceedances(NamedTuple):
    """The fractions of canaries that exceed thresholds, run by run.

    Attributes:
      fractions: (R, T) the fraction of each run's inserted canaries above each of the first T THRESHOLDS.
      log_rates: (T,) log a(t), the log of the exact probability that a left-out canary exceeds it.
      in_order: Whether rows are in start order.
      is_only_run: Whether no other run can follow. We then stake all of the capital on the single run.
      first_log_p_values: (K,) the log p-values of the first run's canaries in ascending order; empty without
        bets on them.
    """

    fractions: Array
    log_rates: Array
    in_order: bool
    is_only_run: bool = False
    first_log_p_values: Array = np.zeros(0)


class Allowed(NamedTuple):
    """The largest mean fractions of canaries that a claim allows above thresholds.

    Attributes:
      fractions: (T,) m(a(t)) at the first T of THRESHOLDS.
      first_log_rates: (J,) log a for the bets on the first run's p-values; empty without these bets.
      first_fractions: (J,) an upper bound on m(a) for each of them.
    """

    fractions: Array
    first_log_rates: Array
    first_fractions: Array


class Departure(NamedTuple):
    """The smallest departure from a claim that the test would refute.

    Attributes:
      noise: The actual noise as a multiple of the claimed noise, below 1.
      probability: The probability that runs like these refute the claim at this noise.
    """

    noise: float
    probability: float


class ClaimTest(NamedTuple):
    """The result of the test of a claim.

    Attributes:
      e_value: The evidence against the claim; at most 1 on average if the claim is true.
      refuted: Whether the e-value has reached 1 / (1 - confidence).
      runs: The number of runs until the refutation; all runs if the claim is not refuted or the order is
        unknown.
      seen: The smallest departure that the test would detect; None if there is none or we did not search.
    """

    e_value: float
    refuted: bool
    runs: int
    seen: Departure | None = None


def gaussian_power(mu: float) -> Power:
    """Returns the function a -> Phi(Phi^-1(a) + mu), the power that mu-GDP allows.

    Source: Dong, Roth and Su, 2022, Equation 6.
    """

    return lambda rates: special.ndtr(special.ndtri(rates) + mu)


def examine_claim(counted: Exceedances, power: Power, confidence: float) -> ClaimTest:
    """Tests a claimed curve by betting against it in each run. The result's field `seen` is None.

    If rows are in start order, the test remains valid if you add runs.
    """
    log_capital = compute_log_capital(counted, tabulate_claim(counted, power))
    return judge_capital(log_capital, counted.in_order, confidence)


def choose_refuting_powers(canaries: int) -> Array:
    """Returns the powers (J,) at which the claim is refuted by j of the first run's K canaries, for each j.

    Each of the J bets gets an equal part of the stake. At this power, j hits multiply this part so that it
    refutes the claim at confidence 0.95.
    """
    stake = FIRST_STAKE / _REFUTING_HITS.size
    return stake * _REFUTING_HITS / (_REFUTING_CAPITAL * canaries)


def tabulate_claim(counted: Exceedances, power: Power) -> Allowed:
    """Returns the fractions that a claim allows, for the thresholds and bets of `counted`."""
    first_log_rates = np.zeros(0)
    first_fractions = np.zeros(0)
    if counted.first_log_p_values.size:
        powers = np.maximum.accumulate(power(_RATES))  # ascending despite rounding
        # An (epsilon, delta) claim allows a power of delta even at a rate of 0.
        first_fractions = powers[0] + choose_refuting_powers(counted.first_log_p_values.size)
        places = np.searchsorted(powers, first_fractions, side="right") - 1
        with np.errstate(divide="ignore"):
            first_log_rates = np.log(_RATES[places])
    return Allowed(power(np.exp(counted.log_rates)), first_log_rates, first_fractions)


def compute_log_capital(counted: Exceedances, allowed: Allowed) -> Array:
    """Returns the log of the capital after each of R runs, shape (R,), of a gambler who bets against a claim.

    The gambler starts with a capital of 1, split among components: one for each of THRESHOLDS and each bet c.
    If `counted` only has the first T thresholds, the capital on the others is lost. In the first run, each
    component stakes a part of its capital on p-values, if there are bets on them.
    """
    log_factors = _compute_log_factors(counted, allowed.fractions)
    runs, bets, thresholds = log_factors.shape
    if counted.first_log_p_values.size:
        payoff = compute_payoff(
            counted.first_log_p_values, allowed.first_log_rates, allowed.first_fractions
        )
        staked = np.log(max(FIRST_STAKE * payoff, 1e-300))
        log_factors[0] = np.logaddexp(np.log1p(-FIRST_STAKE) + log_factors[0], staked)
    log_components = np.cumsum(log_factors, axis=0).reshape(runs, bets * thresholds)
    # Each threshold's starting capital is split evenly among its bets.
    start = np.tile(split_capital()[:thresholds] / bets, bets)
    # This is a logsumexp, ten times as fast as SciPy's. If all components have lost everything, their logs
    # are -inf, and `initial` avoids inf - inf.
    largest = log_components.max(axis=1, keepdims=True, initial=np.finfo(float).min)
    with np.errstate(divide="ignore"):
        return largest[:, 0] + np.log(np.exp(log_components - largest) @ start)


def compute_payoff(log_p_values: Array, log_rates: Array, allowed: Array) -> float:
    """Returns the payoff of a stake of 1 on the first run; its mean is at most 1 if the claim is true.

    Args:
      log_p_values: (K,) the log p-values of the run's canaries, in ascending order.
      log_rates: (J,) the log rates of the bets.
      allowed: (J,) the largest mean fraction of p-values up to each rate.
    """
    hits = np.searchsorted(log_p_values, log_rates, side="right")
    return float(np.mean(hits / log_p_values.size / allowed))


def judge_capital(log_capital: Array, in_order: bool, confidence: float) -> ClaimTest:
    """Returns the result of a claim's test, from the log capital (R,) against the claim after each run.

    If rows are in start order, the largest capital decides (Ville's inequality), otherwise the last one.
    """
    log_capital_needed = -np.log1p(-confidence)  # log(1 / error)
    reached = log_capital[-1]
    runs = log_capital.size
    if in_order:
        reached = log_capital.max(initial=0.0)  # the log capital before the first run is 0
        refuting = np.flatnonzero(log_capital >= log_capital_needed)
        if refuting.size:
            runs = int(refuting[0]) + 1
    e_value = float(np.exp(min(reached, 700.0)))  # exp of more overflows
    return ClaimTest(e_value, refuted=bool(reached >= log_capital_needed), runs=runs)


def find_least_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the largest mu such that the runs refute a mu-GDP claim, or 0 if they do not refute any."""
    return find_largest_refuted(
        lambda mu: examine_claim(counted, gaussian_power(mu), confidence).refuted,
        first=1.0,
        halvings=24,  # to 1e-7 of mu
    )


def trace_least_mu(counted: Exceedances, least_mu: float, confidence: float) -> Array:
    """Returns the result of `find_least_mu` for the first 1, 2, ..., R runs, of shape (R,).

    We round it down to a multiple of `least_mu` / 128. `least_mu` is the result for all runs. Rows must be in
    start order.
    """
    path = np.zeros(len(counted.fractions))
    for mu in np.linspace(0.0, least_mu, 128 + 1):
        test = examine_claim(counted, gaussian_power(mu), confidence)
        # The runs never refute a larger mu before a smaller one, so later values overwrite earlier ones.
        if test.refuted:
            path[test.runs - 1 :] = mu
    return path


def find_main_threshold(counted: Exceedances, power: Power) -> int:
    """Returns the index of the threshold with most of the capital against a claim after all runs."""
    allowed = power(np.exp(counted.log_rates))
    log_components = _compute_log_factors(counted, allowed).sum(axis=0)  # (bets, T)
    # The bets on a threshold start with equal capital, so their number does not change the largest.
    by_threshold = special.logsumexp(log_components, axis=0) + np.log(split_capital())
    return int(by_threshold.argmax())


def _compute_log_factors(counted: Exceedances, allowed: Array) -> Array:
    """Returns log(1 + c (h_i(t) / m(a(t)) - 1)) for run i, bet c and threshold t, of shape (R, bets, T).

    `allowed` (T,) are m(a(t)).
    """
    gains = counted.fractions / np.maximum(allowed, 1e-300) - 1  # without a division by 0
    bets = BETS
    if counted.is_only_run:
        bets = np.ones(1)  # a single bet of all capital
    with np.errstate(divide="ignore"):  # a bet may lose all of its capital
        return np.log1p(bets[:, None] * gains[:, None, :])


def split_capital(near: int = len(NEAR), far: int = len(FAR)) -> Array:
    """Returns the capital (near + far,) on each threshold: 95% on the near thresholds, 5% on the far ones."""
    return np.repeat([(1 - 0.05) / near, 0.05 / far], [near, far])


class ScoreSummary(NamedTuple):
    """A summary of inserted canaries' scores, used to simulate runs with other noise.

    Attributes:
      mean: The mean score, in standard deviations of a left-out score.
      between: The standard deviation of the runs' true means; 0 for a single run, or with a single canary per
        run.
      within: The standard deviation of scores within a run; 1 with a single canary per run.
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
    """Returns the smallest departure of the noise from the claim that 9 of 10 audits would detect.

    If the actual noise is r < 1 times the claimed noise, the mean score is 1 / r times as large. Returns None
    if audits detect a tenth of the claimed noise less often. The simulated audits differ from
    `counted` only in the fractions.
    """
    thresholds = THRESHOLDS
    if scores.mean < NEAR[-1] - 3:
        # Scores rarely exceed their mean by 3. Dropping the far thresholds saves time, and never increases
        # the capital.
        thresholds = NEAR
    counted = counted._replace(log_rates=counted.log_rates[: thresholds.size])
    allowed = tabulate_claim(counted, power)
    # An estimate of the probability 0.9 has a standard error of 0.02 with 200 audits, and 0.07 with 20.
    num_audits = int(np.clip(10_000 // scores.runs, 20, 200))
    within = max(scores.within, 1e-9)  # above 0, as `draw_fractions` requires

    def estimate_refutation_probability(noise_ratio: float) -> float:
        """Returns the fraction of simulated audits that refute the claim if the noise has this ratio."""
        rng = np.random.default_rng(0)  # the same draws at every ratio
        deviations = scores.between * rng.standard_normal((num_audits, scores.runs, 1))
        means = scores.mean / noise_ratio + deviations
        refuted = []
        fractions_of_audits = draw_fractions(means, within, thresholds, scores.canaries, rng)
        for first_mean, fractions in zip(means[:, 0], fractions_of_audits, strict=True):
            simulated = counted._replace(fractions=fractions)
            canaries = counted.first_log_p_values.size
            if canaries:
                first_scores = first_mean + within * rng.standard_normal(canaries)
                log_p_values = np.sort(special.log_ndtr(-first_scores))
                simulated = simulated._replace(first_log_p_values=log_p_values)
            log_capital = compute_log_capital(simulated, allowed)
            test = judge_capital(log_capital, counted.in_order, confidence)
            refuted.append(test.refuted)
        return float(np.mean(refuted))

    # The ratios decrease. Audits with less noise refute the claim more often, so bisection finds the first
    # ratio with 9 of 10.
    noise_ratios = np.append(np.arange(0.995, 0.9, -0.005), np.arange(0.9, 0.09, -0.01))
    place = bisect_left(noise_ratios, 0.9, key=estimate_refutation_probability)
    if place == noise_ratios.size:
        return None
    ratio = noise_ratios[place]
    return Departure(round(float(ratio), 3), estimate_refutation_probability(ratio))


def draw_fractions(
    means: Array, deviation: float, thresholds: Array, canaries: int, rng: np.random.Generator
) -> Array:
    """Draws the fraction of each run's canaries above each threshold, of shape (..., T), for normal scores.

    `means` (..., 1) are the mean scores of runs, and `deviation` > 0 is the standard deviation within a run.
    The `thresholds` (T,) are ascending. Each run has the same number of `canaries`.
    """
    above = special.ndtr((means - thresholds) / deviation)  # decreases along T
    # The probabilities of the intervals between -inf, the thresholds, and inf, (..., T + 1). `multinomial`
    # requires nonnegative probabilities that sum to 1, so we remove rounding errors.
    cells = -np.diff(above, prepend=1.0, append=0.0)
    cells = np.maximum(cells, 0.0)
    counts = rng.multinomial(canaries, cells / cells.sum(axis=-1, keepdims=True))
    below = np.cumsum(counts, axis=-1)[..., :-1]  # the last cell ends at inf
    return 1 - below / canaries
