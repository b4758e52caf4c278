"""How many runs a bound needs, from stored scores: any number of runs is a random part of all of them."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from audit.conclusions import concluded
from audit.evidence.canaries import Design, make_sets
from audit.methods import lifted
from audit.storage.store import Scores
from audit.written import Level
from experiments.sweeps.records import Record

# Methods by the names that records have for their bounds. An order, 1, 2 or 4, is the highest moment of a
# run's detected canaries that Wilson's intervals use.
METHODS = {
    "wilson_1": "lidp_wilson_1",
    "wilson_2": "lidp_wilson_2",
    "wilson_4": "lidp_wilson_4",
    "lifted": "lifted",
}
MIN_RUNS = 40  # on a curve, if twice as many are stored
_CURVE_POINTS = 7  # the numbers of runs at which a curve is computed, at most
_PARTS = 8  # random parts of the runs over which a bound is averaged


def compare_with_single(by_canaries: Mapping[int, Scores], levels: Level) -> Record:
    """Returns an entry of Table 1: the bounds with one canary and with several, and the ratios of runs.

    Args:
      by_canaries: Scores of as many runs with a single canary, bounded by order 1, and with several, bounded
        by orders 2 and 4.
      levels: Delta and confidence of the bounds.

    Returns:
      The record's `epsilon_1`, `epsilon_2` and `epsilon_4` are the largest mean epsilons over numbers of
        runs, by order. `gain_2` and `gain_4` are what `compute_gain` returns. Order 4 needs 4 canaries.
    """
    runs = choose_numbers_of_runs(len(by_canaries[1].scores))
    single_curve = compute_curve("wilson_1", by_canaries[1], runs, levels)
    record: Record = {"epsilon_1": max(single_curve)}
    canaries = max(by_canaries)
    for order in (2, 4):
        if canaries >= order:
            curve = compute_curve(f"wilson_{order}", by_canaries[canaries], runs, levels)
            record[f"epsilon_{order}"] = max(curve)
            record[f"gain_{order}"] = compute_gain(runs, single_curve, curve)
    return record


def compare_canaries(by_canaries: Mapping[int, Scores], levels: Level) -> list[Record]:
    """Returns an attack's lower bounds on epsilon, in the two panels of Figure 5.

    The panel "over K" has bounds from all runs. The panel "over n" has bounds from parts of the runs: with a
    single canary, and with the number of canaries K above 1 that is nearest to the root of the number of all
    runs, as Figure 3 has it.

    Args:
      by_canaries: Scores by the number of canaries in each run, of the same number of runs.
      levels: Delta and confidence of the bounds.
    """
    all_runs = len(next(iter(by_canaries.values())).scores)

    def compute_curves(canaries: int, numbers: Sequence[int]) -> dict[str, list[float]]:
        """Returns the curves of the methods that can be used with this number of canaries in each run."""
        usable = [key for key, name in METHODS.items() if canaries >= lifted.METHODS[name].canaries]
        scores = by_canaries[canaries]
        return {method: compute_curve(method, scores, numbers, levels) for method in usable}

    records = []
    for canaries in sorted(by_canaries):
        bounds = {
            method: curve[0] for method, curve in compute_curves(canaries, [all_runs]).items()
        }
        records.append({"panel": "over K", "x": canaries, "canaries": canaries, **bounds})

    numbers = choose_numbers_of_runs(all_runs)
    curves = {}
    if 1 in by_canaries:
        curves["single"] = compute_curve("wilson_1", by_canaries[1], numbers, levels)
    several = [canaries for canaries in by_canaries if canaries > 1]
    nearest = min(several, key=lambda canaries: abs(canaries - all_runs**0.5), default=1)
    if several:
        curves |= compute_curves(nearest, numbers)
    for place, runs in enumerate(numbers):
        bounds = {name: curve[place] for name, curve in curves.items()}
        records.append({"panel": "over n", "x": runs, "canaries": nearest, **bounds})
    return records


def choose_numbers_of_runs(runs: int) -> list[int]:
    """Returns the even numbers of runs at which a curve is computed, from MIN_RUNS to half of all runs.

    A curve's epsilon is the mean over random parts of all runs. The larger the parts, the more runs they
    share, and the less their mean evens out chance. So the curve ends at half.
    """
    most = max(runs // 2, 2)
    halves = np.geomspace(min(MIN_RUNS, most), most, _CURVE_POINTS) / 2
    return sorted({2 * round(half) for half in halves})


def compute_curve(method: str, scores: Scores, runs: Sequence[int], levels: Level) -> list[float]:
    """Returns a method's epsilon at each number of runs: its mean over random parts of all runs.

    `method` is a key of METHODS. At the number of all runs there is a single part.
    """
    rng = np.random.default_rng(0)  # a fixed seed: a figure always shows the same numbers
    bound = lifted.METHODS[METHODS[method]].bound
    curve = []
    for count in runs:
        parts = 1 if count == len(scores.scores) else _PARTS
        epsilons = [bound(_draw_part(scores, count, rng), *levels).epsilon for _ in range(parts)]
        curve.append(float(np.mean(epsilons)))
    return curve


def compute_gain(
    runs: Sequence[int], single: Sequence[float], several: Sequence[float]
) -> float | None:
    """Returns how many times fewer runs several canaries need than one, for the largest epsilon of both.

    Args:
      runs: The numbers of runs at which both curves are computed.
      single: Epsilon with a single canary, at each number of runs.
      several: Epsilon with several canaries, at each number of runs.

    Returns:
      The ratio of runs, above 1 if several canaries need fewer; None if a curve is 0 throughout.
    """
    level = min(max(single), max(several))
    if level <= 0:
        return None
    return _interpolate_runs(runs, single, level) / _interpolate_runs(runs, several, level)


def compute_mean(records: Sequence[Record], field: str) -> float | None:
    """Returns the harmonic mean of the gains in a field, as the paper averages them; None without any."""
    gains = [record[field] for record in records if record.get(field) is not None]
    return statistics.harmonic_mean(gains) if gains else None


def _draw_part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """Draws an even number of the runs without replacement; single canaries are in in half of them."""
    if scores.scores.shape[1] > 1:
        # In order, which makes the part of all runs the runs in their own order.
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        part = scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn])
        return concluded.read_coins(part)
    worlds = concluded.split_worlds(scores)
    return make_sets(*(rng.choice(world, count // 2, replace=False)[:, None] for world in worlds))


def _interpolate_runs(runs: Sequence[int], epsilons: Sequence[float], level: float) -> float:
    """Returns the fewest runs at which a curve of epsilons reaches a level.

    Chance may lower a point of the curve below an earlier point. So each epsilon is replaced by the largest
    up to it. Between points, epsilon is linear in the logarithm of the number of runs.
    """
    highest = np.maximum.accumulate(epsilons)
    reached = int(np.argmax(highest >= level))
    around = slice(max(reached - 1, 0), reached + 1)
    return math.exp(np.interp(level, highest[around], np.log(runs[around])))
