"""How many runs a bound needs, from stored scores: any number of runs is a random part of all of them.

An order, 1, 2 or 4, says up to which moments of a run's detected canaries Wilson's intervals use; order 4
needs four canaries a run.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from audit.evidence import of_store
from audit.evidence.canaries import Design, make_sets
from audit.methods import lifted
from audit.methods.level import Level
from audit.storage.store import Scores

SINGLE = "lidp_wilson_1"
ORDER_2 = "lidp_wilson_2"
ORDER_4 = "lidp_wilson_4"
LIFTED = "lifted"
METHODS = {SINGLE: "order 1", ORDER_2: "order 2", ORDER_4: "order 4", LIFTED: "lifted"}
LEAST_RUNS = 40  # the least number of runs on a curve, where twice as many are stored
_CURVE_POINTS = 7  # the numbers of runs at which a curve is computed, at most
_PARTS = 8  # random parts of the runs over which a bound is averaged
_LEAST_CANARIES = {ORDER_2: 2, ORDER_4: 4}  # in each run; other methods need one


class Gain(NamedTuple):
    """An entry of Table 1: how many times fewer runs several canaries need than one.

    Attributes:
      label: The entry's name.
      single: The largest mean epsilon with a single canary and order 1, over the numbers of runs.
      several: The largest mean epsilon with several canaries, by method: ORDER_2, ORDER_4.
      by_order: The gain by method (see `compute_gain`); None where one of the two curves proves nothing.
    """

    label: str
    single: float
    several: Mapping[str, float]
    by_order: Mapping[str, float | None]


class Lifted(NamedTuple):
    """An attack's bounds, over the number of canaries and over the number of runs.

    Attributes:
      attack: The attack.
      over_canaries: Epsilon from all runs, by the number of canaries and then by method.
      runs: The numbers of runs at which `single` and `several` are computed.
      single: Epsilon at each number of runs with one canary and order 1; None where no such audit is stored.
      canaries: The number of canaries of `several`; None where audits with a single canary alone are stored.
      several: Epsilon at each number of runs with `canaries` canaries, by method.
    """

    attack: str
    over_canaries: Mapping[int, Mapping[str, float]]
    runs: Sequence[int]
    single: Sequence[float] | None
    canaries: int | None
    several: Mapping[str, Sequence[float]]


def compare_with_single(label: str, single: Scores, several: Scores, levels: Level) -> Gain:
    """Computes how many times fewer runs several canaries need than one, for an entry of Table 1.

    Lower bounds on epsilon come from Wilson's intervals of an order: the highest moment of detections that
    they use. Runs with a single canary have order 1. Runs with several have orders 2 and 4; order 4 needs
    four canaries.

    Args:
      label: The entry's name.
      single: Scores of runs with a single canary.
      several: Scores of runs with several canaries.
      levels: Delta and confidence of the bounds.

    Returns:
      The entry: the largest epsilon over numbers of runs, with a single canary and with several by order,
        and each order's ratio of runs.
    """
    # Both curves have the same numbers of runs, since the sweep audits both with equally many.
    runs = choose_numbers_of_runs(len(single.scores))
    single_curve = compute_curve(SINGLE, single, runs, levels)
    highest = {}
    gains = {}
    canaries = several.scores.shape[1]
    for method in _list_usable_methods(canaries):
        if method in (ORDER_2, ORDER_4):  # the table shows no other methods with several canaries
            epsilons = compute_curve(method, several, runs, levels)
            highest[method] = max(epsilons)
            gains[method] = compute_gain(runs, single_curve, epsilons)
    return Gain(label, max(single_curve), highest, gains)


def compare_canaries(attack: str, by_canaries: Mapping[int, Scores], levels: Level) -> Lifted:
    """Computes an attack's lower bounds on epsilon, for both panels of Figure 5.

    The panel over the number of canaries K has bounds from all runs. The panel over the number of runs n has
    bounds with a single canary, and with several: of the audited K above 1, that nearest to the square root
    of the number of all runs. (Figure 3, of the Gaussian mechanism, has K = sqrt(n).)

    Args:
      attack: The attack's name.
      by_canaries: Scores by the number of canaries in each run, for at least one number.
      levels: Delta and confidence of the bounds.
    """
    # All audits of an attack have the same number of runs.
    all_runs = len(next(iter(by_canaries.values())).scores)
    runs = choose_numbers_of_runs(all_runs)

    # The panel over K.
    over_canaries: dict[int, dict[str, float]] = {}
    for canaries, scores in sorted(by_canaries.items()):
        over_canaries[canaries] = {}
        for method in _list_usable_methods(canaries):
            (epsilon,) = compute_curve(method, scores, [all_runs], levels)
            over_canaries[canaries][method] = epsilon

    # The panel over n. Some audits may not be stored yet: their curves are then left out.
    single = None
    if 1 in by_canaries:
        single = compute_curve(SINGLE, by_canaries[1], runs, levels)

    more_than_one = [canaries for canaries in by_canaries if canaries > 1]
    if not more_than_one:
        return Lifted(attack, over_canaries, runs, single, canaries=None, several={})
    nearest = min(more_than_one, key=lambda canaries: abs(canaries - all_runs**0.5))
    several = {}
    for method in _list_usable_methods(nearest):
        several[method] = compute_curve(method, by_canaries[nearest], runs, levels)
    return Lifted(attack, over_canaries, runs, single, nearest, several)


def choose_numbers_of_runs(runs: int) -> list[int]:
    """Returns the even numbers of runs at which a curve is computed, at most about half of all runs.

    The numbers go up from LEAST_RUNS, with logarithms about evenly spaced. Where half of all runs is less
    than LEAST_RUNS, about half is the only number, or 2 if that is more.

    A curve's epsilon is the mean over several random parts of all runs. The larger the parts, the more runs
    they share, and the less their mean evens out chance. So the curve ends at half.

    Args:
      runs: The number of all runs.
    """
    most = max(runs // 2, 2)  # of very few runs, still a single run in each world
    least = min(LEAST_RUNS, most)
    # The numbers are even, since half of the runs with a single canary insert it: half of each number is
    # rounded, then doubled. That may make an odd `most` larger by 1. The set drops numbers that come twice.
    halves = np.geomspace(least, most, _CURVE_POINTS) / 2
    return sorted({2 * round(half) for half in halves})


def compute_curve(method: str, scores: Scores, runs: Sequence[int], levels: Level) -> list[float]:
    """Returns a method's epsilon at each number of runs: its mean over _PARTS random parts of all runs.

    At the number of all runs there is a single part.

    Args:
      method: A key of METHODS.
      scores: The scores of all runs.
      runs: The numbers of runs.
      levels: Delta and confidence of the bounds.
    """
    rng = np.random.default_rng(0)  # a fixed seed, so that a figure always shows the same numbers
    bound = lifted.METHODS[method].bound
    curve = []
    for count in runs:
        number_of_parts = 1 if count == len(scores.scores) else _PARTS
        epsilons = []
        for _ in range(number_of_parts):
            part = _draw_part(scores, count, rng)
            epsilons.append(bound(part, *levels).epsilon)
        curve.append(float(np.mean(epsilons)))
    return curve


def compute_gain(
    runs: Sequence[int], single: Sequence[float], several: Sequence[float]
) -> float | None:
    """Returns how many times fewer runs several canaries need than a single canary, for the same epsilon.

    That epsilon is the largest that both curves reach.

    Args:
      runs: The numbers of runs at which both curves are computed.
      single: Epsilon with a single canary, at each number of runs.
      several: Epsilon with several canaries, at each number of runs.

    Returns:
      The ratio of runs, above 1 where several canaries need fewer; None where a curve is 0 throughout.
    """
    level = min(max(single), max(several))
    if level <= 0:
        return None
    return _interpolate_runs(runs, single, level) / _interpolate_runs(runs, several, level)


def compute_mean(entries: Sequence[Gain], order: str) -> float | None:
    """Returns the harmonic mean of a method's gains, as the paper averages them.

    Entries without a gain are left out. The result is None where no entry has a gain.

    Args:
      entries: The entries of Table 1.
      order: The method, ORDER_2 or ORDER_4.
    """
    gains = [entry.by_order.get(order) for entry in entries]
    present = [gain for gain in gains if gain is not None]
    if not present:
        return None
    return statistics.harmonic_mean(present)


def _list_usable_methods(canaries: int) -> list[str]:
    """Returns the methods that can be used with this number of canaries in each run."""
    return [method for method in METHODS if canaries >= _LEAST_CANARIES.get(method, 1)]


def _draw_part(scores: Scores, count: int, rng: np.random.Generator) -> Design:
    """Draws a random part of the runs, without replacement, from which bounds can be computed.

    Where each run has a single canary, half of the part's runs insert it and half do not, as in all runs.

    Args:
      scores: The scores of all runs.
      count: The number of runs in the part; even where each run has a single canary.
      rng: The generator of the draw.
    """
    has_several_canaries = scores.scores.shape[1] > 1
    if has_several_canaries:
        # Sorted, so that the part of all runs is the runs in their own order.
        drawn = np.sort(rng.choice(len(scores.scores), count, replace=False))
        part = scores._replace(scores=scores.scores[drawn], presence=scores.presence[drawn])
        return of_store.design(part)

    scores_in, scores_out = of_store.worlds(scores)
    inserted = rng.choice(scores_in, count // 2, replace=False)
    left_out = rng.choice(scores_out, count // 2, replace=False)
    return make_sets(inserted[:, None], left_out[:, None])  # (runs, 1 canary) each


def _interpolate_runs(runs: Sequence[int], epsilons: Sequence[float], level: float) -> float:
    """Returns the fewest runs at which a curve of epsilons reaches a level.

    More runs should prove no less, but chance may lower a point of the curve below an earlier point. So each
    epsilon is replaced by the largest epsilon up to it. Between points, epsilon is taken to be linear in the
    logarithm of the number of runs. The result may be a fraction.

    Args:
      runs: The numbers of runs, rising.
      epsilons: Epsilon at each number of runs.
      level: The level, at most the largest epsilon.
    """
    highest = np.maximum.accumulate(epsilons)
    reached = int(np.argmax(highest >= level))  # the first point at which the level is reached
    if reached == 0:  # no point before it to interpolate from
        return runs[0]
    before = reached - 1
    # The share of the way from one point to the next at which the level is reached.
    share = (level - highest[before]) / (highest[reached] - highest[before])
    return math.exp((1 - share) * math.log(runs[before]) + share * math.log(runs[reached]))
