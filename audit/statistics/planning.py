"""How many runs an audit needs to prove a given share of the truth, if scores are Gaussian."""

import math
from collections.abc import Callable

import numpy as np

from audit.errors import require
from audit.statistics import conversions, estimate, lifted, many_calibration
from audit.statistics.calibration import KnownMechanism
from audit.statistics.many_calibration import ManyCanaries

LEAST_RUNS, MOST_RUNS = 40, 1_000_000
_SCORES, _AUDITS = 200_000, (8, 40)  # of a number of runs that is tried: fewer audits of many runs
_RUNS, _MANY_AUDITS = 4_000, (2, 12)


def mean_if_gaussian(setting: KnownMechanism) -> float:
    """The bound `if_gaussian` on epsilon, on average over the setting's simulated audits."""
    rng, half = np.random.default_rng(setting.seed), setting.n_scores // 2
    worlds = ((rng.normal(setting.mu, 1, half), rng.normal(0, 1, half)) for _ in range(setting.audits))
    levels = (setting.delta, setting.confidence)
    return float(np.mean([estimate.if_gaussian(*both, *levels).epsilon for both in worlds]))


def runs_needed(setting: KnownMechanism, tightness: float) -> int | None:
    """Runs at which the bound `if_gaussian` is on average this share of the truth, 0 < tightness < 1.

    Two digits, from simulated audits of so many runs that take seconds together; None where a million
    runs do not suffice. The setting's own n_scores and audits do not matter. Raises InputError for a
    tightness out of range, and where the truth is epsilon = 0.
    """
    require(0 < tightness < 1, f"`tightness={tightness}`: give more than 0, less than 1")
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    require(truth > 0, f"`mu={setting.mu:g}` is epsilon = 0 at delta {setting.delta:g}: give more")

    def reached(runs: int) -> float:
        audits = int(np.clip(_SCORES // runs, *_AUDITS))
        return mean_if_gaussian(setting._replace(n_scores=runs, audits=audits)) / truth

    return first_to_reach(tightness, reached)


def runs_needed_of_many(setting: ManyCanaries, tightness: float) -> int | None:
    """Runs with several canaries at which `lifted_gaussian` is on average this share of the truth."""
    require(0 < tightness < 1, f"`tightness={tightness}`: give more than 0, less than 1")
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)

    def reached(runs: int) -> float:
        tried = setting._replace(runs=runs, audits=int(np.clip(_RUNS // runs, *_MANY_AUDITS)))
        audits = (many_calibration.draw(tried, index) for index in range(tried.audits))
        levels, method = (setting.delta, setting.confidence), lifted.METHODS[lifted.LIFTED_GAUSSIAN]
        return float(np.mean([method.bound(one, *levels).epsilon for one in audits])) / truth

    return first_to_reach(tightness, reached)


def first_to_reach(wanted: float, reached: Callable[[int], float]) -> int | None:
    """The least runs, to two digits, at which `reached`, which grows with them, is what is wanted.

    None where a million do not suffice. What is missing to 1 falls about as 1 / sqrt(runs), which says
    where to look next between too few and enough.
    """
    low, high, runs = LEAST_RUNS, math.inf, 1000
    while high > 1.05 * low and low < MOST_RUNS:
        share = reached(runs)
        low, high = (low, runs) if share >= wanted else (runs, high)
        ahead = runs * ((1 - min(share, 0.99)) / (1 - wanted)) ** 2
        between = min(max(ahead, 1.02 * low), high / 1.02) if high < math.inf else max(ahead, 2 * low)
        runs = round(min(between, MOST_RUNS))
    if high == math.inf:
        return None
    unit: int = 10 ** max(len(str(high)) - 2, 0)
    return -(-int(high) // unit) * unit
