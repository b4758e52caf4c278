"""The points of a figure: the audits of all seeds at one place, and what is predicted for them."""

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

Audits = dict[tuple[Setting, int], Conclusion]  # by setting and runs


class Evidence(NamedTuple):
    """A store's holdings, and the conclusions from its audits, by setting and runs, at some levels."""

    held: Holdings
    audits: Audits
    levels: Level


class Spread(NamedTuple):
    """The mean and the ends of a method's epsilons over the seeds."""

    mean: float
    low: float
    high: float


class Point(NamedTuple):
    """One place of a figure.

    Attributes:
      panel: The panel that it is in.
      series: The series that it belongs to.
      x: Its value on the x axis.
      cells: The audits there, one a seed.
      conclusions: The conclusions of those audits that are in the store.
    """

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    conclusions: tuple[Conclusion, ...]

    def bounds(self, method: str) -> list[Bound]:
        """Returns the bounds by a method for a single canary, for each stored seed that has such a bound.

        Where runs have many canaries, the bound is that of the method's counterpart for many.
        """
        bounds = []
        for conclusion in self.conclusions:
            name = _method_for(conclusion, method)
            if name:
                bounds.append(conclusion.bound(name))
        return bounds

    def epsilons(self, method: str) -> list[float]:
        """Returns the epsilons by a method for a single canary, for each stored seed.

        Where runs have many canaries, it is that of the method's counterpart for many, NaN if it has none.
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
        """Returns the spread of a method's epsilons over the seeds, of which at least one is stored."""
        values = self.epsilons(method)
        return Spread(float(np.mean(values)), min(values), max(values))

    def interval(self) -> tuple[float, float]:
        """Returns a two-sided interval for epsilon where scores are normal with the same spread.

        It is at the bounds' delta and confidence, its limits averaged over the seeds.
        """
        intervals = [_normal_interval(conclusion) for conclusion in self.conclusions]
        low, high = np.mean(intervals, axis=0)
        return float(low), float(high)

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon, which all seeds share; NaN where it is unknown."""
        upper_bound = self.conclusions[0].upper_bound
        if upper_bound is None:
            return math.nan
        return upper_bound

    def predicted_mu(self) -> float | None:
        """Returns `audit.conclusions.concluded.predicted_mu` of the point's setting."""
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """Returns epsilon at delta of the predicted mu; None where there is no prediction."""
        mu = self.predicted_mu()
        if mu is None:
            return None
        return conversions.epsilon_from_mu(mu, delta)


def _method_for(conclusion: Conclusion, method: str) -> str:
    """Returns the name of a method's counterpart for as many canaries a run as an audit has.

    With a single canary a run, that is the method itself. With several, the counterpart of "assumption_free"
    is "lifted", and that of "if_gaussian" is "lifted_gaussian". Where the law of the scores is known, since
    directions are fresh in each run, the counterpart of "assumption_free" is "exact_null".

    Args:
      conclusion: of the audit.
      method: the name of a method for a single canary a run.

    Returns:
      The counterpart's name, "" where there is none.
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
    """Returns the conclusions from the stored scores of the cells, for their figures.

    Each is computed once however many figures show it. Scores that can't be read, or that nothing can be
    concluded from, are reported on stderr and left out.
    """
    conclusions: Audits = {}
    distinct = dict.fromkeys((cell.setting, cell.runs) for cell in cells)
    for setting, runs in distinct:
        try:
            scores = held.scores(identity(setting), runs)
            if scores is not None:
                conclusions[setting, runs] = conclude_setting(scores, setting, levels)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return Evidence(held, conclusions, levels)


def points(cells: Iterable[Audited], by_setting: Audits) -> list[Point]:
    """Returns the cells by place, in the order in which they come; a point may have no conclusions."""
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
    """Returns `normal_scores.mu_interval` of one audit as epsilon; NaN for fresh directions.

    For several canaries a run it is the counterpart, `normal_scores.mu_interval_of_runs`.
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
        design = cast(Design, conclusion.evidence)
        low, high = normal_scores.mu_interval_of_runs(design, confidence)
    epsilon_low = conversions.epsilon_from_mu(float(low), delta)
    epsilon_high = conversions.epsilon_from_mu(float(high), delta)
    return epsilon_low, epsilon_high
