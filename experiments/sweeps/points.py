"""The points of a figure: the audits of all seeds at one place, their conclusions, and a prediction."""

import math
import sys
from collections.abc import Iterable
from typing import NamedTuple, cast

import numpy as np

from audit.conclusions.concluded import conclude_setting, predicted_mu
from audit.conclusions.conclusion import Conclusion
from audit.errors import InputError
from audit.evidence.canaries import Design
from audit.laws import conversions
from audit.methods import lifted
from audit.methods.estimate import ASSUMPTION_FREE, Bound
from audit.methods.level import Level
from audit.methods.method import FRESH_DIRECTIONS
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from experiments.cells.cell import Audited
from experiments.sweeps import normal_scores

Audits = dict[tuple[Setting, int], Conclusion]  # by setting and number of runs


class Evidence(NamedTuple):
    """What figures are drawn from.

    Attributes:
      held: What the store holds.
      audits: The conclusions from the stored audits, by setting and number of runs.
      levels: The delta and the confidence of these conclusions.
    """

    held: Holdings
    audits: Audits
    levels: Level


class Spread(NamedTuple):
    """The mean, the smallest and the largest of a method's epsilons over the seeds."""

    mean: float
    low: float
    high: float


class Point(NamedTuple):
    """One place of a figure.

    Attributes:
      panel: The panel that it is in.
      series: The series that it belongs to.
      x: Its value on the x axis.
      cells: The audits at this place, one for each seed.
      conclusions: The conclusions from those of the audits that are in the store.
    """

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    conclusions: tuple[Conclusion, ...]

    def bounds(self, method: str) -> list[Bound]:
        """Returns a method's bound for each stored seed that has such a bound.

        Args:
          method: The name of a method for one canary a run. Where runs have many canaries, its counterpart
            for many is used.
        """
        bounds = []
        for conclusion in self.conclusions:
            name = _method_for(conclusion, method)
            if name:
                bounds.append(conclusion.bound(name))
        return bounds

    def epsilons(self, method: str) -> list[float]:
        """Returns a method's epsilon for each stored seed.

        Args:
          method: The name of a method for one canary a run. Where runs have many canaries, its counterpart
            for many is used; epsilon is NaN if it has none.
        """
        epsilons = []
        for conclusion in self.conclusions:
            name = _method_for(conclusion, method)
            if name:
                epsilons.append(conclusion.finding(name).epsilon)
            else:
                epsilons.append(math.nan)
        return epsilons

    def spread(self, method: str) -> Spread:
        """Returns the spread of a method's epsilons over the stored seeds, at least one."""
        values = self.epsilons(method)
        return Spread(float(np.mean(values)), min(values), max(values))

    def interval(self) -> tuple[float, float]:
        """Returns a two-sided interval (low, high) for epsilon, valid where scores are normal.

        It assumes the same standard deviation in both worlds (`normal_scores`), and has the bounds' delta and
        confidence. Each of its ends is the mean over the stored seeds.
        """
        intervals = [_normal_interval(conclusion) for conclusion in self.conclusions]
        low, high = np.mean(intervals, axis=0)
        return float(low), float(high)

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon, which all seeds share; NaN where it is unknown."""
        upper_bound = self.conclusions[0].upper_bound  # any seed's: the accountant knows no seed
        if upper_bound is None:
            return math.nan
        return upper_bound

    def predicted_mu(self) -> float | None:
        """Returns the predicted mu of the audit's score; None where there is no prediction.

        mu is the distance of the score's means in both worlds, in standard deviations. The prediction holds
        where genuine gradients do not interfere (see `audit.conclusions.concluded.predicted_mu`).
        """
        # The audits of a point differ by seed alone, on which the prediction does not depend.
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """Returns the epsilon, at delta, of the predicted mu; None where there is no prediction."""
        mu = self.predicted_mu()
        if mu is None:
            return None
        return conversions.epsilon_from_mu(mu, delta)


def _method_for(conclusion: Conclusion, method: str) -> str:
    """Returns the name of the method to show for an audit in place of a method for a single canary a run.

    - An audit with a single canary a run: the method itself.
    - With fresh directions, drawn by each run, so that the law of scores without the canary is known:
      "exact_null" for "assumption_free", and nothing for other methods.
    - With several canaries a run: the counterpart, such as "lifted" for "assumption_free", if there is any.

    Args:
      conclusion: The audit's conclusion.
      method: The name of a method for a single canary a run.

    Returns:
      The counterpart's name; "" where there is none.
    """
    if conclusion.has_one_canary:
        return method
    if conclusion.law_is_known:
        if method == ASSUMPTION_FREE:
            return FRESH_DIRECTIONS.free
        return ""
    counterpart = lifted.counterpart(method)
    if counterpart is None:
        return ""
    return counterpart.name


def evidence(held: Holdings, cells: Iterable[Audited], levels: Level) -> Evidence:
    """Draws the conclusions from the stored scores of cells, once for all their figures.

    Scores that can't be read, or from which nothing can be concluded, are reported on stderr and left out.

    Args:
      held: What the store holds.
      cells: The audits; those without stored scores are left out.
      levels: The delta and the confidence of the bounds.
    """
    conclusions: Audits = {}
    # Cells of several figures may share an audit, which is concluded once.
    distinct = dict.fromkeys((cell.setting, cell.runs) for cell in cells)
    for setting, runs in distinct:
        try:
            store = held.open(identity(setting))
            if store is None or store.missing(runs):
                continue
            conclusions[setting, runs] = conclude_setting(store.load(runs), setting, levels)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return Evidence(held, conclusions, levels)


def points(cells: Iterable[Audited], by_setting: Audits) -> list[Point]:
    """Groups audits into points by panel, series and x, in the order of first occurrence.

    Args:
      cells: The audits.
      by_setting: The conclusions, by setting and number of runs. Audits without a conclusion count as
        missing; a point of such audits alone is returned too.
    """
    places: dict[tuple[str, str, float], list[Audited]] = {}
    for cell in cells:
        place = (cell.panel, cell.series, cell.x)
        places.setdefault(place, []).append(cell)

    all_points = []
    for place, group in places.items():
        conclusions = []
        for cell in group:
            key = (cell.setting, cell.runs)
            if key in by_setting:
                conclusions.append(by_setting[key])
        all_points.append(Point(*place, tuple(group), tuple(conclusions)))
    return all_points


def _normal_interval(conclusion: Conclusion) -> tuple[float, float]:
    """Returns an audit's two-sided interval (low, high) for epsilon, valid where scores are normal.

    It is the interval for mu, converted to epsilon: that of `normal_scores.mu_interval` with a single canary
    a run, of `mu_interval_of_runs` with several. Fresh directions get no such interval, and NaN for its ends:
    the law of their scores without the canary is known exactly, and not taken to be normal.
    """
    delta = conclusion.delta
    confidence = conclusion.confidence
    if conclusion.law_is_known:
        return math.nan, math.nan
    if conclusion.has_one_canary:
        low, high = normal_scores.mu_interval(
            conclusion.scores_in, conclusion.scores_out, confidence
        )
    else:
        # For the type checker: a sweep's audits have several runs, whose evidence is a `Design`.
        design = cast(Design, conclusion.evidence)
        low, high = normal_scores.mu_interval_of_runs(design, confidence)
    epsilon_low = conversions.epsilon_from_mu(float(low), delta)
    epsilon_high = conversions.epsilon_from_mu(float(high), delta)
    return epsilon_low, epsilon_high
