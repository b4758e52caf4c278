"""How many runs a bound needs, from kept scores: any number of runs is a random part of all of them."""

import math
from collections.abc import Sequence

import numpy as np

from audit.statistics import lifted
from audit.statistics.canaries import Design, sets
from audit.storage.scores import Scores
from experiments.cells.cell import Levels

LEAST_RUNS, _PLACES, _PARTS = 40, 7, 8


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
    """How many times fewer runs reach the larger bound that both curves of epsilon reach; None where one of
    them proves nothing."""
    level = min(max(single), max(several))
    return None if level <= 0 else _needed(runs, single, level) / _needed(runs, several, level)


def harmonic_mean(gains: Sequence[float]) -> float:
    """The paper's average of gains; at least one."""
    return len(gains) / sum(1 / one for one in gains)


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
