"""How many runs an audit needs to prove a given share of the truth, if scores are Gaussian."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from audit.calibration.calibration import KnownMechanism, Value, calibrate
from audit.errors import require
from audit.evidence.canaries import Design
from audit.laws import conversions
from audit.methods import estimate, lifted
from audit.methods.claimed_curve import (
    THRESHOLDS,
    Exceedances,
    draw_shares,
    examine_claim,
    gaussian_power,
)

LEAST_RUNS, MOST_RUNS = 40, 1_000_000
_FIRST_TRIED = 1000  # runs
# At each number of runs that is tried, audits are simulated: as many as have about _ALL_RUNS runs in all,
# within the limits _AUDITS.
_ALL_RUNS = 200_000
_AUDITS = (8, 40)
# The same for runs with several canaries, whose audits take longer.
_ALL_RUNS_OF_SEVERAL = 4_000
_AUDITS_OF_SEVERAL = (2, 12)
_BUG_AUDITS = 40  # simulated audits of a claim whose real noise is not as stated
_BUG_RUNS = 1000  # of each of these audits


def mean_if_gaussian(setting: KnownMechanism) -> float:
    """Returns the mean of the bound `if_gaussian` on epsilon, over simulated audits.

    Scores are N(mu, 1) in half of the runs and N(0, 1) in the others. The bound assumes that the trade-off
    curve is Gaussian, which is true here.

    Args:
      setting: mu, the number of runs and of audits, delta, confidence and seed.
    """
    rng = np.random.default_rng(setting.seed)
    half = setting.runs // 2
    epsilons = []
    for _ in range(setting.audits):
        scores_in = rng.normal(setting.mu, 1, half)
        scores_out = rng.normal(0, 1, half)
        bound = estimate.if_gaussian(scores_in, scores_out, setting.delta, setting.confidence)
        epsilons.append(bound.epsilon)
    return float(np.mean(epsilons))


def runs_needed(setting: KnownMechanism, tightness: float) -> int | None:
    """Returns the number of runs at which an audit proves, on average, a given share of the true epsilon.

    The bound is `if_gaussian`. Audits are simulated, which takes seconds, and the number has two digits.

    Args:
      setting: the mechanism; its numbers of runs and audits are not read.
      tightness: the share, between 0 and 1.

    Returns:
      The number of runs; None if a million do not suffice.

    Raises:
      InputError: A tightness out of range, or a truth of epsilon = 0.
    """
    truth = _require_truth(setting, tightness)

    def compute_share(runs: int) -> float:
        """Returns the mean bound of simulated audits of so many runs, as a share of the true epsilon.

        So that each call takes about as long, fewer audits are simulated the more runs each has: all together
        have about _ALL_RUNS runs, within the limits _AUDITS on the number of audits.
        """
        audits = int(np.clip(_ALL_RUNS // runs, *_AUDITS))
        return mean_if_gaussian(setting._replace(runs=runs, audits=audits)) / truth

    return first_to_reach(tightness, compute_share)


def _require_truth(setting: KnownMechanism, tightness: float) -> float:
    """Returns a mechanism's true epsilon; raises InputError if it is 0, or for a tightness out of range."""
    require(0 < tightness < 1, f"`tightness={tightness}`: give more than 0, less than 1")
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    message = f"`mu={setting.mu:g}` is epsilon = 0 at delta {setting.delta:g}: give more"
    require(truth > 0, message)
    return truth


def runs_needed_of_many(setting: KnownMechanism, tightness: float) -> int | None:
    """Returns the number of runs, of several canaries each, that prove a given share of the true epsilon.

    The share is proved on average over simulated audits, by the bound `lifted_gaussian`.

    Args:
      setting: the mechanism; its numbers of runs and audits are not read.
      tightness: the share, between 0 and 1.

    Returns:
      The number of runs, to two digits; None if a million do not suffice.

    Raises:
      InputError: A tightness out of range, or a truth of epsilon = 0.
    """
    truth = _require_truth(setting, tightness)
    method = lifted.METHODS[lifted.LIFTED_GAUSSIAN]

    def bound_epsilon(design: Design, tried: KnownMechanism) -> list[Value]:
        """Audits by the bound `lifted_gaussian` alone, in place of all methods."""
        return [Value(method.name, method.bound(design, tried.delta, tried.confidence).epsilon)]

    def compute_share(runs: int) -> float:
        """Returns the mean bound of simulated audits of so many runs, as a share of the true epsilon.

        So that each call takes about as long, fewer audits are simulated the more runs each has: all together
        have about _ALL_RUNS_OF_SEVERAL runs, within the limits _AUDITS_OF_SEVERAL on the number of audits.
        """
        audits = int(np.clip(_ALL_RUNS_OF_SEVERAL // runs, *_AUDITS_OF_SEVERAL))
        # A law that audits by a single method, so that `calibrate` returns a single row.
        law = setting.law._replace(audit=bound_epsilon)
        [row] = calibrate(setting._replace(law=law, runs=runs, audits=audits))
        return row.mean_epsilon / truth

    return first_to_reach(tightness, compute_share)


def first_to_reach(target: float, compute_share: Callable[[int], float]) -> int | None:
    """Returns the least number of runs, to two digits, at which a growing share reaches a target.

    Numbers of runs are tried until the largest that is too small and the least that is enough differ by at
    most 5%. LEAST_RUNS counts as too small from the start, without being tried. Which number to try next is
    predicted from 1 - share, which falls about as 1 / sqrt(runs).

    Args:
      target: the share to reach, between 0 and 1.
      compute_share: number of runs -> the share, which grows with it.

    Returns:
      The number of runs; None if MOST_RUNS do not suffice.
    """
    too_few = LEAST_RUNS
    enough = math.inf  # no number is known to be enough
    runs = _FIRST_TRIED
    while enough > 1.05 * too_few and too_few < MOST_RUNS:
        share = compute_share(runs)
        if share >= target:
            enough = runs
        else:
            too_few = runs
        # A simulated share may be 1 or more, which would predict 0 runs.
        predicted = runs * ((1 - min(share, 0.99)) / (1 - target)) ** 2
        # At least 2% inside the bracket, so that it shrinks. While no number is known to be enough, at
        # least twice as many.
        if enough < math.inf:
            following = min(max(predicted, 1.02 * too_few), enough / 1.02)
        else:
            following = max(predicted, 2 * too_few)
        runs = round(min(following, MOST_RUNS))
    if enough == math.inf:
        return None
    # Rounded up to two digits.
    unit: int = 10 ** max(len(str(enough)) - 2, 0)
    return math.ceil(int(enough) / unit) * unit


class RunsUntilRefuted(NamedTuple):
    """How soon audits refute a claim whose real noise is smaller than stated.

    Attributes:
      noise: the real noise, as a multiple of the stated noise.
      median: the number of training runs after which half of the audits refute the claim; None if 1,000 runs
        do not suffice.
      most: the number after which 9 of 10 audits refute it; None likewise.
    """

    noise: float
    median: int | None
    most: int | None


def runs_until_refuted(
    mu: float, noise: float, canaries: int, confidence: float, seed: int = 0
) -> RunsUntilRefuted:
    """Returns after how many training runs with fresh directions a claim of mu-GDP is refuted.

    Audits are simulated. Scores are ideal, N(mu / noise, 1) each. Those above each of a grid of thresholds
    are counted, and the claim is tested after every run (`claimed_curve`).

    Args:
      mu: the claimed mu.
      noise: the real noise, as a multiple of the stated noise.
      canaries: the number of directions of a run.
      confidence: the confidence of the test.
      seed: the seed of the simulations.

    Raises:
      InputError: the noise is no number above 0.
    """
    # The command's flag `bug` gives the noise.
    require(0 < noise < math.inf, f"`bug={noise:g}`: give a number above 0, as 0.9")
    rng = np.random.default_rng(seed)
    # The log of the probability with which a score N(0, 1) of a canary that is out exceeds each threshold.
    log_rates = special.log_ndtr(-THRESHOLDS)
    means = np.full((_BUG_RUNS, 1), mu / noise)  # of each run's scores, all canaries in
    power = gaussian_power(mu)
    needed = []
    for _ in range(_BUG_AUDITS):
        shares = draw_shares(means, 1.0, THRESHOLDS, canaries, rng)  # of scores of deviation 1
        # In order: then the test may refute the claim after any run, and says after which it did first.
        test = examine_claim(Exceedances(shares, log_rates, in_order=True), power, confidence)
        needed.append(test.runs if test.refuted else math.inf)

    def find_quantile(share: float) -> int | None:
        """Returns after how many runs this share of the audits refuted; None if fewer ever did."""
        runs = float(np.quantile(needed, share, method="higher"))
        return int(runs) if math.isfinite(runs) else None

    return RunsUntilRefuted(noise, find_quantile(0.5), find_quantile(0.9))
