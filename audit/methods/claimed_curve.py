"""Tests a claimed trade-off curve when the null distribution of scores is known exactly.

A claim states that any test with false-positive rate a has power at most m(a). We know the rate a(t) at which
left-out canaries exceed a threshold t. README.md ("Is the claim true?") derives the test. Unlike in
`exact_null`, we must not choose a threshold using some of a run's canaries and test it on the others: the
mean fraction above it could then exceed m(a(t)), even if the claim is true.
"""

import functools
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.evidence.arrays import Array
from audit.laws.intervals import find_largest_refuted
from audit.methods.betting import mix_bets

Power = Callable[[Array], Array]  # m: false-positive rates -> the largest power that a claim allows

# Thresholds in standard deviations of a left-out score: values of Student's t for cosines, and normal
# deviates for other scores. A left-out score exceeds 7 with probability 1e-12.
NEAR = np.arange(0.0, 7.01, 0.5)
# Higher thresholds detect rare but large leaks. At 37, the rate is close to the smallest positive float.
FAR = np.append(np.arange(7.5, 12.1, 0.5), np.arange(13.0, 37.1))
THRESHOLDS = np.append(NEAR, FAR)
# c, the fraction of its capital that a bet stakes on each run. Small stakes detect small departures from the
# claim in many runs, and large stakes detect large departures in one or two runs.
STAKES = np.array([0.05, 0.2, 0.5, 0.9])

MIN_P_VALUES = 500  # canaries per run needed for bets on the first run's p-values
FIRST_STAKE = 0.5  # the fraction of the capital that is staked on these bets
_REFUTING_HITS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])  # j, for each of J = 5 bets
_REFUTING_CAPITAL = 20.0  # refutes a claim with 95% confidence
# The rates that these bets may use, in ascending order.
_RATES = np.append(0.0, special.ndtr(np.arange(-37.0, 0.01, 0.05)))


class Exceedances(NamedTuple):
    """The fractions of each run's canaries that exceed thresholds, and the first run's p-values.

    Attributes:
      fractions: (R, T) the fraction of each run's inserted canaries above each of the first T THRESHOLDS.
      log_rates: (T,) log a(t), the log of the exact probability that a left-out canary exceeds a threshold t.
      in_order: Whether rows are sorted by the start times of their runs.
      is_only_run: Whether this is the only run. If so, we stake the whole capital on it.
      first_log_p_values: (K,) the log p-values of the first run's canaries, ascending; empty if we do not bet
        on them.
    """

    fractions: Array
    log_rates: Array
    in_order: bool
    is_only_run: bool = False
    first_log_p_values: Array = np.zeros(0)


class Allowed(NamedTuple):
    """The largest mean fractions of canaries that a claim allows.

    Attributes:
      above_thresholds: (T,) the fraction above each of the first T of THRESHOLDS.
      log_rates: (J,) log a for each bet on p-values up to a in the first run; may be empty.
      at_rates: (J,) an upper limit on the mean fraction of p-values at or below each a.
    """

    above_thresholds: Array
    log_rates: Array
    at_rates: Array


class Departure(NamedTuple):
    """The smallest departure from a claim that the test would detect.

    Attributes:
      noise: The actual noise divided by the claimed noise; below 1.
      probability: The probability that runs like these would refute the claim at this noise level.
    """

    noise: float
    probability: float


class ClaimTest(NamedTuple):
    """The result of testing a claim.

    Attributes:
      e_value: The evidence against the claim; its mean is at most 1 if the claim is true.
      refuted: Whether the e-value has reached 1 / (1 - confidence).
      runs: The number of runs needed to refute the claim; all runs if the claim is not refuted or the order
        is unknown.
      seen: The smallest departure that the test would detect; None if it was not found or not computed.
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


def examine_claim(counted: Exceedances, allowed_power: Power, confidence: float) -> ClaimTest:
    """Tests a claim by betting in each run that more canaries exceed thresholds than the claim allows.

    If the runs in `counted` are in start order, you may test again after each run, because we use the largest
    capital so far (Ville's inequality).
    """
    log_capital = compute_log_capital(counted, tabulate_claim(counted, allowed_power))
    return judge_capital(log_capital, counted.in_order, confidence)


def choose_refuting_powers(canaries: int) -> Array:
    """Chooses the power m of each of J bets on p-values: j = 1, 2, 4, 8 or 16 hits refute a claim.

    A run has K `canaries`. A hit is a p-value no larger than the rate at which the claim allows power m. A
    bet multiplies its stake by (j / K) / m, the observed fraction of hits divided by the largest mean that
    the claim allows. We choose m such that j hits raise the stake to _REFUTING_CAPITAL.
    """
    stake_per_bet = FIRST_STAKE / _REFUTING_HITS.size
    return stake_per_bet * _REFUTING_HITS / (_REFUTING_CAPITAL * canaries)


def tabulate_claim(counted: Exceedances, allowed_power: Power) -> Allowed:
    """Returns the largest mean fractions of canaries that a claim allows.

    We bet that the fraction above each threshold is larger. If `counted` contains the first run's p-values,
    we also bet on the fraction of small p-values (`_choose_p_value_bets`).
    """
    above_thresholds = allowed_power(np.exp(counted.log_rates))
    log_rates = powers = np.zeros(0)
    num_p_values = counted.first_log_p_values.size
    if num_p_values:
        log_rates, powers = _choose_p_value_bets(num_p_values, allowed_power)
    return Allowed(above_thresholds, log_rates, at_rates=powers)


def _choose_p_value_bets(canaries: int, allowed_power: Power) -> tuple[Array, Array]:
    """Returns log a (J,) for J bets on p-values up to a, and limits (J,) on the mean fraction of such values.

    Each limit is the power that the claim allows at the false-positive rate a. First, we choose powers small
    enough for a few p-values to refute the claim. Then we find the largest rates at which the claim allows at
    most these powers.
    """
    powers = np.maximum.accumulate(allowed_power(_RATES))  # ascending despite rounding
    # An (epsilon, delta) claim allows a power of delta even at the first rate, 0, so we add this power.
    chosen_powers = powers[0] + choose_refuting_powers(canaries)
    indices = np.searchsorted(powers, chosen_powers, side="right") - 1
    with np.errstate(divide="ignore"):  # the rate may be 0
        return np.log(_RATES[indices]), chosen_powers


def compute_log_capital(counted: Exceedances, allowed: Allowed) -> Array:
    """Returns the log capital (R,) of a gambler who bets against a claim, after each of R runs.

    A capital of 1 is split among bets, one for each pair from THRESHOLDS and STAKES. In each run, a bet
    stakes a fraction of its capital on finding more canaries above its threshold than the claim allows. If
    `counted` covers only the first T thresholds, the capital on the others counts as lost. If it contains the
    first run's p-values, each bet stakes FIRST_STAKE of its capital on them, because a few tiny p-values can
    refute a claim in one run.
    """
    log_factors = _compute_log_factors(counted, allowed.above_thresholds)
    runs, stakes, thresholds = log_factors.shape
    if counted.first_log_p_values.size:
        payoff = compute_payoff(counted.first_log_p_values, allowed.log_rates, allowed.at_rates)
        # The first factor becomes (1 - FIRST_STAKE) * factor + FIRST_STAKE * payoff.
        log_won = np.log(max(FIRST_STAKE * payoff, 1e-300))  # avoids the logarithm of 0
        log_factors[0] = np.logaddexp(np.log1p(-FIRST_STAKE) + log_factors[0], log_won)
    log_growth = np.cumsum(log_factors, axis=0).reshape(runs, stakes * thresholds)
    # Each threshold's starting capital is split evenly among the stakes.
    start = np.tile(split_capital()[:thresholds] / stakes, stakes)
    return mix_bets(log_growth.T, start)


def compute_payoff(log_p_values: Array, log_rates: Array, allowed: Array) -> float:
    """Returns the payoff of a stake of 1, divided evenly among J bets on the first run's p-values.

    A bet pays the fraction of p-values at or below its rate a, divided by the largest mean fraction that the
    claim allows. So if the claim is true, the mean payoff is at most 1.

    Args:
      log_p_values: (K,) the log p-values of the run's canaries, in ascending order.
      log_rates: (J,) log a for each bet.
      allowed: (J,) the largest mean fraction for each bet.
    """
    hits = np.searchsorted(log_p_values, log_rates, side="right")  # p-values up to each rate
    return float(np.mean(hits / log_p_values.size / allowed))


def judge_capital(log_capital: Array, in_order: bool, confidence: float) -> ClaimTest:
    """Returns the result of testing a claim, given the log capital (R,) against it after each run.

    If runs are in start order, we use the largest capital (Ville's inequality), otherwise the last.
    """
    log_capital_needed = -np.log1p(-confidence)  # log(1 / error)
    reached = log_capital[-1]
    runs = log_capital.size
    if in_order:
        reached = log_capital.max(initial=0.0)  # the log capital before the first run is 0
        refuting = np.flatnonzero(log_capital >= log_capital_needed)
        if refuting.size:
            runs = int(refuting[0]) + 1
    e_value = float(np.exp(min(reached, 700.0)))  # avoids overflow in exp
    return ClaimTest(e_value, refuted=bool(reached >= log_capital_needed), runs=runs)


def find_refuted_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the largest mu such that the runs refute a claim of mu-GDP, or 0 if they refute none.

    The result is a lower bound on the true mu at this confidence level. The runs also refute all smaller mu,
    because these allow fewer canaries above each threshold.
    """
    return find_largest_refuted(
        lambda mu: examine_claim(counted, gaussian_power(mu), confidence).refuted,
        first=1.0,
        halvings=24,  # to 1e-7 of mu
    )


def trace_refuted_mu(counted: Exceedances, largest: float, confidence: float) -> Array:
    """Returns the largest mu (R,) that the first 1, 2, ..., R runs refute, or 0 if they refute none.

    `largest` is the value for all R runs (`find_refuted_mu`). Other values are rounded down to multiples of
    `largest` / 128. The runs must be in start order.
    """
    path = np.zeros(len(counted.fractions))
    for mu in np.linspace(0.0, largest, 128 + 1):
        test = examine_claim(counted, gaussian_power(mu), confidence)
        if test.refuted:
            # The first `test.runs` runs suffice. A larger mu never needs fewer runs, so we can overwrite
            # values.
            path[test.runs - 1 :] = mu
    return path


def find_strongest_threshold(counted: Exceedances, allowed_power: Power) -> int:
    """Returns the index of the threshold with the strongest evidence against a claim, for reports.

    The bets on this threshold have the most capital after the last run.
    """
    allowed = allowed_power(np.exp(counted.log_rates))
    log_growth = _compute_log_factors(counted, allowed).sum(axis=0)  # of each bet, (stakes, T)
    by_threshold = special.logsumexp(log_growth, axis=0) + np.log(split_capital())
    return int(by_threshold.argmax())


def _compute_log_factors(counted: Exceedances, allowed: Array) -> Array:
    """Returns the log factors (R, stakes, T) by which each run multiplies the capital of each bet.

    For a stake c on a threshold t, the factor is 1 + c (h / m - 1), where h is the fraction of the run's
    canaries above t. `allowed` (T,) contains m, the largest mean of h that the claim allows.
    """
    gains = counted.fractions / np.maximum(allowed, 1e-300) - 1  # avoids a division by 0
    # Without later runs, we stake everything.
    stakes = np.ones(1) if counted.is_only_run else STAKES
    with np.errstate(divide="ignore"):  # log(0) if a bet loses all of its capital
        return np.log1p(stakes[:, None] * gains[:, None, :])


def split_capital(near: int = len(NEAR), far: int = len(FAR)) -> Array:
    """Returns the starting capital (near + far,) on each threshold: 95% on the near ones, 5% on the far ones.

    `near` and `far` are the numbers of these thresholds. Any split is valid.
    """
    return np.repeat([(1 - 0.05) / near, 0.05 / far], [near, far])


class ScoreSummary(NamedTuple):
    """A summary of the scores of inserted canaries, used to simulate runs with less noise.

    Scores are in units of a left-out score's standard deviation.

    Attributes:
      std_between_runs: The standard deviation of the runs' true means; 0 with a single run or a single canary
        per run.
      std_within_run: The standard deviation of scores in a run; 1 with a single canary per run.
      canaries: The number of inserted canaries in a run.
    """

    mean: float
    std_between_runs: float
    std_within_run: float
    runs: int
    canaries: int


def find_least_departure(
    scores: ScoreSummary, counted: Exceedances, allowed_power: Power, confidence: float
) -> Departure | None:
    """Returns the smallest noise reduction that the test of a claim would detect in 9 of 10 audits.

    The result is not a confidence bound: we estimate it from simulated audits with the design of `counted`.
    If the noise is r < 1 times the claimed noise, the mean score is `scores.mean` / r. Returns None if fewer
    than 9 of 10 audits would detect noise at a tenth of the claimed level.
    """
    # If the last near threshold is more than 3 standard deviations (of a left-out score) above the mean, few
    # scores exceed it, and bets on far thresholds would lose. To save time, we omit these bets and count
    # their capital as lost.
    thresholds = NEAR if scores.mean < NEAR[-1] - 3 else THRESHOLDS
    counted = counted._replace(log_rates=counted.log_rates[: thresholds.size])
    allowed = tabulate_claim(counted, allowed_power)
    estimate_probability = functools.partial(
        _estimate_refutation_probability, scores, counted, allowed, confidence
    )
    # At lower ratios, more audits refute the claim, so bisection finds the largest ratio at which 9 of 10 do.
    noise_ratios = np.append(np.arange(0.995, 0.9, -0.005), np.arange(0.9, 0.09, -0.01))
    index = bisect_left(noise_ratios, 0.9, key=estimate_probability)
    if index == noise_ratios.size:  # no such ratio
        return None
    ratio = noise_ratios[index]
    return Departure(round(float(ratio), 3), estimate_probability(ratio))


def _estimate_refutation_probability(
    scores: ScoreSummary,
    counted: Exceedances,
    allowed: Allowed,
    confidence: float,
    noise_ratio: float,
) -> float:
    """Simulates audits with the design of `counted`; returns the fraction that refute a claim.

    `noise_ratio` is the actual noise divided by the claimed noise. For simplicity, we draw the fractions of
    scores above thresholds and the first run's p-values independently. Scores within a run are normal, and so
    are the runs' means.
    """
    # To save time, we simulate fewer audits if they have many runs. The estimate of a probability of 0.9 has
    # a standard error of 0.02 with 200 audits, and of 0.07 with 20.
    num_audits = int(np.clip(10_000 // scores.runs, 20, 200))
    num_p_values = counted.first_log_p_values.size  # 0 if we do not bet on them
    std_within_run = max(scores.std_within_run, 1e-9)  # above 0, as `draw_fractions` requires
    thresholds = THRESHOLDS[: counted.log_rates.size]
    rng = np.random.default_rng(0)  # the same draws at every ratio
    deviations = scores.std_between_runs * rng.standard_normal((num_audits, scores.runs, 1))
    means = scores.mean / noise_ratio + deviations  # of each run's scores
    refuted = []
    fractions_of_audits = draw_fractions(means, std_within_run, thresholds, scores.canaries, rng)
    for first_mean, fractions in zip(means[:, 0], fractions_of_audits, strict=True):
        first_scores = first_mean + std_within_run * rng.standard_normal(num_p_values)
        # The p-value of a score s is Phi(-s).
        log_p_values = np.sort(special.log_ndtr(-first_scores))
        simulated = counted._replace(fractions=fractions, first_log_p_values=log_p_values)
        log_capital = compute_log_capital(simulated, allowed)
        refuted.append(judge_capital(log_capital, counted.in_order, confidence).refuted)
    return float(np.mean(refuted))


def draw_fractions(
    means: Array, deviation: float, thresholds: Array, canaries: int, rng: np.random.Generator
) -> Array:
    """Draws the fraction (..., T) of each run's normally distributed scores above each threshold.

    `means` (..., 1) are the runs' mean scores, and `deviation` > 0 is the standard deviation within a run.
    The `thresholds` (T,) are ascending.
    """
    above = special.ndtr((means - thresholds) / deviation)  # decreases along T
    # The probabilities (..., T + 1) of the intervals between -inf, the thresholds, and inf. `multinomial`
    # requires nonnegative probabilities that sum to 1, so we remove rounding errors.
    cells = np.maximum(-np.diff(above, prepend=1.0, append=0.0), 0.0)
    counts = rng.multinomial(canaries, cells / cells.sum(axis=-1, keepdims=True))
    below = np.cumsum(counts, axis=-1)[..., :-1]  # the last cell ends at inf
    return 1 - below / canaries
