"""Computes the number of runs needed to prove a fraction of the true epsilon."""

import math
from collections.abc import Callable

import numpy as np

from audit.calibration.calibration import KnownMechanism, draw
from audit.errors import require
from audit.laws import conversions
from audit.methods import estimate, lifted

MIN_RUNS = 40
MAX_RUNS = 1_000_000


def planned_method(canaries: int) -> str:
    """Returns the name of the method that `mean_epsilon` uses for this number of canaries per run."""
    if canaries > 1:
        return lifted.LIFTED_GAUSSIAN
    return estimate.IF_GAUSSIAN


def mean_epsilon(setting: KnownMechanism) -> float:
    """Returns the mean lower bound on epsilon over simulated audits, for a Gaussian trade-off curve."""
    epsilons = []
    for index in range(setting.audits):
        design = draw(setting, index)
        if setting.canaries > 1:  # the scores in a run may depend on each other
            method = lifted.METHODS[lifted.LIFTED_GAUSSIAN]
            bound = method.bound(design, setting.delta, setting.confidence)
        else:  # all scores are independent
            scores_in, scores_out = design.pooled()
            bound = estimate.if_gaussian(scores_in, scores_out, setting.delta, setting.confidence)
        epsilons.append(bound.epsilon)
    return float(np.mean(epsilons))


def runs_needed(setting: KnownMechanism, tightness: float) -> int | None:
    """Returns the number of runs at which the mean lower bound reaches a given fraction of the true epsilon.

    Args:
      setting: A Gaussian mechanism. The search ignores its `runs` and `audits`.
      tightness: The fraction, between 0 and 1.

    Returns:
      The number of runs, rounded up to two significant digits; None if a million runs are not enough.
    """
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    require(
        truth > 0,
        f"`mu={setting.mu:g}` gives epsilon = 0 at delta {setting.delta:g}: use a larger mu",
    )
    # To save time, we limit the total number of runs in a candidate's audits. Audits with several canaries
    # per run take longer.
    total_runs = 200_000
    max_audits = 40
    if setting.canaries > 1:
        total_runs = 4_000
        max_audits = 12

    def compute_tightness(runs: int) -> float:
        """Returns the mean bound from this number of runs, as a fraction of the true epsilon."""
        audits = int(np.clip(total_runs // runs, max_audits // 5, max_audits))
        return mean_epsilon(setting._replace(runs=runs, audits=audits)) / truth

    return first_to_reach(tightness, compute_tightness)


def first_to_reach(target: float, compute_tightness: Callable[[int], float]) -> int | None:
    """Returns the smallest number of runs (rounded up to two digits) that reaches a tightness of `target`.

    `compute_tightness` maps a number of runs to the bound on epsilon as a fraction of the true epsilon. This
    fraction must increase with the number of runs.

    Returns:
      The number of runs, above MIN_RUNS; None if at least MAX_RUNS are needed.
    """
    enough = find_fewest_runs(
        lambda runs: compute_tightness(runs) >= target,
        too_few=MIN_RUNS,
        enough=MAX_RUNS,
        precision=1.05,  # 5%, since we round to two digits
    )
    if enough == MAX_RUNS:  # no smaller number was enough, and the search never tries MAX_RUNS
        return None
    unit = 10 ** max(len(str(enough)) - 2, 0)  # the value of the second digit
    return math.ceil(enough / unit) * unit


def find_fewest_runs(
    is_enough: Callable[[int], bool], too_few: int, enough: int, precision: float
) -> int:
    """Finds the smallest sufficient number of runs by bisection on a logarithmic scale.

    Args:
      too_few, enough: The initial range. The search assumes that `enough` runs suffice and `too_few` do not.
      precision: The search ends when `enough` is at most this multiple of `too_few`, or `too_few` + 1.
    """
    while enough > max(precision * too_few, too_few + 1):
        runs = round(math.sqrt(too_few * enough))
        if is_enough(runs):
            enough = runs
        else:
            too_few = runs
    return enough
