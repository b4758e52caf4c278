"""How many runs a bound needs, from kept scores: any number of runs is a random part of all of them."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from audit.statistics import lifted
from audit.statistics.canaries import Design, sets
from audit.storage.store import Scores
from experiments.cells.cell import Levels

SINGLE, ORDER_2, ORDER_4, LIFTED = "lidp_wilson_1", "lidp_wilson_2", "lidp_wilson_4", "lifted"
METHODS = {SINGLE: "order 1", ORDER_2: "order 2", ORDER_4: "order 4", LIFTED: "lifted"}
LEAST_RUNS, _PLACES, _PARTS = 40, 7, 8
_LEAST_CANARIES = {ORDER_2: 2, ORDER_4: 4}


class Gain(NamedTuple):
    """An entry of Table 1: mean epsilons at most runs; each order's gain, None if one side proves none."""

    label: str
    single: float
    several: Mapping[str, float]
    by_order: Mapping[str, float | None]


class Lifted(NamedTuple):
    """An attack's audits: epsilon by method at each number of canaries, from all runs, and over the runs:
    with one canary (None where that is not there) and by method with so many."""

    attack: str
    over_canaries: Mapping[int, Mapping[str, float]]
    runs: Sequence[int]
    single: Sequence[float] | None
    canaries: int | None
    several: Mapping[str, Sequence[float]]


def entry(label: str, single: Scores, several: Scores, levels: Levels) -> Gain:
    """An entry of Table 1."""
    runs = places(len(single.scores))
    alone = curve(SINGLE, single, runs, levels)
    orders = [order for order in _usable(several.scores.shape[1]) if order in _LEAST_CANARIES]
    curves = {order: curve(order, several, runs, levels) for order in orders}
    highest = {order: max(epsilons) for order, epsilons in curves.items()}
    return Gain(label, max(alone), highest, {order: gain(runs, alone, one) for order, one in curves.items()})


def over_runs_and_canaries(attack: str, by_canaries: Mapping[int, Scores], levels: Levels) -> Lifted:
    """An attack's audits; over the runs with the number of canaries nearest to the root of all runs."""
    all_runs = len(next(iter(by_canaries.values())).scores)
    runs = places(all_runs)
    over = {
        k: {method: curve(method, scores, [all_runs], levels)[0] for method in _usable(k)}
        for k, scores in sorted(by_canaries.items())
    }
    single = curve(SINGLE, by_canaries[1], runs, levels) if 1 in by_canaries else None
    nearest = min((k for k in by_canaries if k > 1), key=lambda k: abs(k - all_runs**0.5), default=None)
    methods = [] if nearest is None else _usable(nearest)
    several = {method: curve(method, by_canaries[nearest], runs, levels) for method in methods if nearest}
    return Lifted(attack, over, runs, single, nearest, several)


def places(runs: int) -> list[int]:
    """Even numbers of runs, evenly spaced in their logarithm, up to half of all: a bound is then the mean of
    many parts, where one audit of all runs has its luck."""
    most = max(runs // 2, 2)
    found = np.geomspace(min(LEAST_RUNS, most), most, _PLACES) / 2
    return sorted({2 * round(half) for half in found})


def curve(method: str, scores: Scores, runs: Sequence[int], levels: Levels) -> list[float]:
    """The mean of a method's epsilon over random parts of the scores, at each number of runs."""
    rng = np.random.default_rng(0)
    bound = lifted.METHODS[method].bound
    found = []
    for count in runs:
        parts = 1 if count == len(scores.scores) else _PARTS
        each = [bound(_part(scores, count, rng), *levels).epsilon for _ in range(parts)]
        found.append(float(np.mean(each)))
    return found


def gain(runs: Sequence[int], single: Sequence[float], several: Sequence[float]) -> float | None:
    """How many times fewer runs reach the larger bound that both curves reach; None where one is 0."""
    level = min(max(single), max(several))
    return None if level <= 0 else _needed(runs, single, level) / _needed(runs, several, level)


def mean(found: Sequence[Gain], order: str) -> float | None:
    """The paper's average of an order's gains, their harmonic mean; None where there is none."""
    known = [gain for one in found if (gain := one.by_order.get(order)) is not None]
    return len(known) / sum(1 / one for one in known) if known else None


def _usable(canaries: int) -> list[str]:
    return [method for method in METHODS if canaries >= _LEAST_CANARIES.get(method, 1)]


def _part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """A random part of the runs; where each has one canary, half of them in each world, as two sets."""
    if scores.scores.shape[1] > 1:
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        return scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn]).design()
    worlds = (rng.choice(world, count // 2, replace=False) for world in scores.worlds())
    inserted, fresh = (world[:, None] for world in worlds)
    return sets(inserted, fresh)


def _needed(runs: Sequence[int], epsilons: Sequence[float], level: float) -> float:
    """The fewest runs at which a curve, made monotone, reaches a level, between two places by logarithms."""
    highest = np.maximum.accumulate(epsilons)
    last = int(np.argmax(highest >= level))
    if last == 0:
        return runs[0]
    share = (level - highest[last - 1]) / (highest[last] - highest[last - 1])
    return math.exp((1 - share) * math.log(runs[last - 1]) + share * math.log(runs[last]))
