"""How many runs an audit needs to prove a given share of the truth, if scores are Gaussian."""

import math
from collections.abc import Callable

import numpy as np

from audit.calibration.calibration import KnownMechanism, draw
from audit.errors import require
from audit.laws import conversions
from audit.methods import estimate, lifted

LEAST_RUNS, MOST_RUNS = 40, 1_000_000
_FIRST_TRIED = 1000  # runs
# For each number of runs that is tried: the scores of all simulated audits together, and the (fewest, most)
# audits that share them.
_SCORES = 200_000
_AUDITS = (8, 40)
_RUNS = 4_000  # of several canaries each
_MANY_AUDITS = (2, 12)


def mean_if_gaussian(setting: KnownMechanism) -> float:
    """Returns the bound `if_gaussian` on epsilon, on average over the setting's simulated audits."""
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
    """Returns the number of runs at which the bound `if_gaussian` is on average this share of the truth.

    It is right to two digits, from simulated audits of so many runs that take seconds together.

    Args:
      setting: Its runs and audits do not matter.
      tightness: The share, between 0 and 1.

    Returns:
      The runs; None where a million do not suffice.

    Raises:
      InputError: A tightness out of range, or a truth of epsilon = 0.
    """
    require(0 < tightness < 1, f"`tightness={tightness}`: give more than 0, less than 1")
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    require(
        truth > 0,
        f"`mu={setting.mu:g}` is epsilon = 0 at delta {setting.delta:g}: give more",
    )

    def compute_share(runs: int) -> float:
        audits = int(np.clip(_SCORES // runs, *_AUDITS))
        return mean_if_gaussian(setting._replace(runs=runs, audits=audits)) / truth

    return first_to_reach(tightness, compute_share)


def runs_needed_of_many(setting: KnownMechanism, tightness: float) -> int | None:
    """Returns `runs_needed` of runs with several canaries, for the bound `lifted_gaussian`."""
    require(0 < tightness < 1, f"`tightness={tightness}`: give more than 0, less than 1")
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    method = lifted.METHODS[lifted.LIFTED_GAUSSIAN]

    def compute_share(runs: int) -> float:
        audits = int(np.clip(_RUNS // runs, *_MANY_AUDITS))
        tried = setting._replace(runs=runs, audits=audits)
        epsilons = []
        for index in range(audits):
            design = draw(tried, index)
            epsilons.append(method.bound(design, setting.delta, setting.confidence).epsilon)
        return float(np.mean(epsilons)) / truth

    return first_to_reach(tightness, compute_share)


def first_to_reach(target: float, compute_share: Callable[[int], float]) -> int | None:
    """Returns the least runs, to two digits, at which a share that grows with them reaches a target.

    The distance of the share from 1 falls about as 1 / sqrt(runs), which predicts where to look next between
    too few and enough.

    Returns:
      The runs; None where a million do not suffice.
    """
    too_few = LEAST_RUNS
    enough = math.inf
    runs = _FIRST_TRIED
    while enough > 1.05 * too_few and too_few < MOST_RUNS:
        share = compute_share(runs)
        if share >= target:
            enough = runs
        else:
            too_few = runs
        predicted = runs * ((1 - min(share, 0.99)) / (1 - target)) ** 2
        if enough < math.inf:
            following = min(max(predicted, 1.02 * too_few), enough / 1.02)
        else:
            following = max(predicted, 2 * too_few)
        runs = round(min(following, MOST_RUNS))
    if enough == math.inf:
        return None
    unit: int = 10 ** max(len(str(enough)) - 2, 0)
    return math.ceil(int(enough) / unit) * unit
