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
smaller noise than stated would have been refuted by so many runs (`audit.methods.departures`)?
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.laws.bisection import find_largest_refuted

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
_LEAST_ALLOWED = 1e-300  # of m, in the place of 0
_LARGEST_LOG = 700.0  # exp of more overflows


class Exceedances(NamedTuple):
    """How many canaries exceed thresholds, run by run.

    Attributes:
      shares: (R, T) the share of each run's canaries in that exceed each of the first T THRESHOLDS.
      log_rates: (T,) log of the exact probability that a canary that is out exceeds it.
      in_order: whether rows are in the order in which runs were begun.
    """

    shares: Array
    log_rates: Array
    in_order: bool


LogCapital = Callable[[Exceedances, Power], Array]  # -> log of the capital (R,) after each run


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
    """Tests a claimed curve by betting against it in each run.

    The bets are those of `compute_log_capital`; `judge_capital` says when their capital refutes the claim.
    Where rows are in the order in which runs were begun, the test stays valid when more runs follow.

    Args:
      counted: The exceedances of each run.
      power: The claimed curve.
      confidence: The confidence of a refutation.

    Returns:
      The test's result, in which `seen` is None: no departures are simulated.
    """
    log_capital = compute_log_capital(counted, power)
    return judge_capital(log_capital, counted.in_order, confidence)


def compute_log_capital(counted: Exceedances, power: Power) -> Array:
    """Returns the log capital (R,) of a gambler against a claim, after each run.

    It is that of a mixture of bets with a component for each threshold and each of BETS.

    The component of a threshold t and a bet c starts with a share of the capital. Run i multiplies it by
    1 + c (h_i(t) / m(a(t)) - 1), with h_i(t) the share of the run's canaries above t, and m(a(t)) the power
    that the claim allows at the false-positive rate a(t).

    Args:
      counted: The exceedances of each run.
      power: The claimed curve m.
    """
    gains = _compute_gains(counted, power)
    log_factors = np.log1p(BETS[:, None] * gains[:, None, :])  # (R, bets, T)
    log_components = np.cumsum(log_factors, axis=0).reshape(len(gains), -1)  # (R, bets * T)
    # Each threshold's share is split evenly over BETS. With fewer than all thresholds, the shares of the
    # others stay unused.
    start_shares = np.tile(_SHARES[: gains.shape[1]] / len(BETS), len(BETS))
    # The log of a weighted sum of exponentials, as by scipy.special.logsumexp, in a third of its time: the
    # tests spend nearly all their time here.
    largest = log_components.max(axis=1)
    relative = np.exp(log_components - largest[:, None])
    return np.asarray(largest + np.log(relative @ start_shares))


def compute_log_capital_of_only_run(counted: Exceedances, power: Power) -> Array:
    """Returns the log capital (1,) against a claim after the only run, in which all of the capital is staked.

    It is the log of the mean over thresholds t of h(t) / m(a(t)), weighted by the thresholds' shares of the
    capital: h(t) is the share of the run's canaries above t, and m(a(t)) the power that the claim allows at
    the false-positive rate a(t).

    Args:
      counted: The exceedances of the run.
      power: The claimed curve m.
    """
    factors = 1 + _compute_gains(counted, power)  # (1, T), h / m
    capital = factors @ _SHARES[: factors.shape[1]]
    # The capital is 0 where no canary exceeds any threshold.
    return np.asarray(np.log(np.maximum(capital, _LEAST_ALLOWED)))


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
    all_runs = len(log_capital)
    log_capital_needed = -np.log1p(-confidence)  # log(1 / error), with the error 1 - confidence
    if not in_order:
        last = float(log_capital[-1])
        return ClaimTest(e_value=_exp(last), refuted=last >= log_capital_needed, runs=all_runs)

    largest = max(float(log_capital.max()), 0.0)  # before the first run the log capital is 0
    refuting = np.flatnonzero(log_capital >= log_capital_needed)
    if not len(refuting):
        return ClaimTest(e_value=_exp(largest), refuted=False, runs=all_runs)
    return ClaimTest(e_value=_exp(largest), refuted=True, runs=int(refuting[0]) + 1)


def find_least_mu(counted: Exceedances, confidence: float) -> float:
    """Returns the mu below which the runs refute every Gaussian guarantee; 0 where they refute none.

    Args:
      counted: The exceedances of each run.
      confidence: The confidence of the refutations.
    """

    def is_refuted(mu: float) -> bool:
        """Returns whether the runs refute the guarantee mu-GDP."""
        return examine_claim(counted, gaussian_power(mu), confidence).refuted

    # The search doubles mu, from 1, until it is not refuted, and then halves the last interval.
    return find_largest_refuted(is_refuted, low=0.0, first=1.0, halvings=_HALVINGS)


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
    gains = _compute_gains(counted, power)
    log_factors = np.log1p(BETS[:, None] * gains[:, None, :])  # (R, bets, T)
    log_components = log_factors.sum(axis=0)
    # A threshold's bets begin with equal parts of its share, so that their common factor changes nothing.
    by_threshold = special.logsumexp(log_components, axis=0) + np.log(_SHARES)
    return int(by_threshold.argmax())


def _compute_gains(counted: Exceedances, power: Power) -> Array:
    """Returns h / m - 1 (R, T): what a bet of the whole capital on a threshold gains in a run.

    h is the share of the run's canaries above the threshold, m the power that the claim allows there.
    """
    allowed = np.asarray(power(np.exp(counted.log_rates)), np.float64)
    # The power divides, so that it is kept above 0. It may be 0 where a rate is too small for a float.
    return counted.shares / np.maximum(allowed, _LEAST_ALLOWED) - 1


def _exp(log_value: float) -> float:
    """Returns e^log_value; e^700 where it is larger, which still fits a float."""
    return float(np.exp(min(log_value, _LARGEST_LOG)))


def _split_capital() -> Array:
    """Returns the share of the capital on each of THRESHOLDS (T,): 95% on NEAR and 5% on FAR, evenly."""
    near = np.full(len(NEAR), (1 - _FAR_SHARE) / len(NEAR))
    far = np.full(len(FAR), _FAR_SHARE / len(FAR))
    return np.concatenate([near, far])


_SHARES = _split_capital()
