"""The points of a figure: the audits of all seeds at one place, and what is known of them beforehand."""

import math
import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from audit.concluded import of_setting, predicted_mu
from audit.errors import InputError
from audit.settings.setting import Setting, identity
from audit.statistics import conversions, lifted, normal_scores
from audit.statistics.canaries import Fresh
from audit.statistics.conclusion import Conclusion
from audit.statistics.estimate import ASSUMPTION_FREE, Bound
from audit.statistics.method import FRESH_DIRECTIONS
from audit.storage.index import Holdings
from experiments.cells.cell import Audited, Levels

Audits = dict[tuple[Setting, int], Conclusion]


class Evidence(NamedTuple):
    """A store's holdings, and the conclusions from its audits at some levels."""

    held: Holdings
    audits: Audits
    levels: Levels


class Spread(NamedTuple):
    """The mean and the ends of a method's epsilons over the seeds."""

    mean: float
    low: float
    high: float


class Point(NamedTuple):
    """One place of a figure: its cells, one a seed, and the conclusions of those that are in the store."""

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    found: tuple[Conclusion, ...]

    def bounds(self, method: str) -> list[Bound]:
        """A method's bound of every seed that is there, of many canaries that of its counterpart."""
        return [conclusion.bound(_of_design(conclusion, method)) for conclusion in self.found]

    def epsilons(self, method: str) -> list[float]:
        """A method's epsilons over the seeds; of many canaries its counterpart's, NaN where none is."""
        known = [(conclusion, _of_design(conclusion, method)) for conclusion in self.found]
        return [found.finding(name).epsilon if name else math.nan for found, name in known]

    def spread(self, method: str) -> Spread:
        """A method's epsilons over the seeds; at least one must be there."""
        values = self.epsilons(method)
        return Spread(float(np.mean(values)), min(values), max(values))

    def interval(self) -> tuple[float, float]:
        """A two-sided interval for epsilon where scores are normal with one spread, at the bounds' delta
        and confidence; its limits averaged over the seeds."""
        low, high = np.mean([_interval(conclusion) for conclusion in self.found], axis=0)
        return float(low), float(high)

    def upper_bound(self) -> float:
        """The accountant's epsilon; all seeds share it."""
        upper = self.found[0].upper_bound
        return math.nan if upper is None else upper

    def predicted_mu(self) -> float | None:
        """`audit.concluded.predicted_mu` of the point's setting."""
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """epsilon at delta of the predicted mu; None where there is no prediction."""
        mu = self.predicted_mu()
        return None if mu is None else conversions.epsilon_from_mu(mu, delta)


def _of_design(conclusion: Conclusion, method: str) -> str:
    if conclusion.design is None:
        return method
    if conclusion.fresh is not None:
        return FRESH_DIRECTIONS.free if method == ASSUMPTION_FREE else ""
    found = lifted.counterpart(method)
    return "" if found is None else found.name


def evidence(held: Holdings, cells: Iterable[Audited], levels: Levels) -> Evidence:
    """The evidence for figures of these cells; see `audits`."""
    return Evidence(held, audits(held, cells, *levels), levels)


def audits(held: Holdings, cells: Iterable[Audited], delta: float, confidence: float) -> Audits:
    """The conclusions from the stored scores of the cells, by (setting, runs).

    Each is computed once however many figures show it. Scores that can't be read, or that nothing can be
    concluded from, are said on stderr and left out.
    """
    found: Audits = {}
    for setting, runs in dict.fromkeys((cell.setting, cell.runs) for cell in cells):
        try:
            scores = held.scores(identity(setting), runs)
            if scores is not None:
                found[setting, runs] = of_setting(scores, setting, delta, confidence)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return found


def points(cells: Iterable[Audited], found: Audits) -> list[Point]:
    """The cells by place, in the order in which they come; a point may have no conclusions."""
    places: dict[tuple[str, str, float], list[Audited]] = {}
    for cell in cells:
        places.setdefault((cell.panel, cell.series, cell.x), []).append(cell)
    there = {
        place: tuple(found[one.setting, one.runs] for one in group if (one.setting, one.runs) in found)
        for place, group in places.items()
    }
    return [Point(*place, tuple(group), there[place]) for place, group in places.items()]


def _interval(conclusion: Conclusion) -> tuple[float, float]:
    """`normal_scores.mu_interval` of one audit, or its counterpart for several canaries a run, as epsilon;
    NaN for fresh directions."""
    delta, confidence = conclusion.delta, conclusion.confidence
    design = conclusion.design
    if isinstance(design, Fresh):
        return math.nan, math.nan
    if design is None:
        low, high = normal_scores.mu_interval(conclusion.scores_in, conclusion.scores_out, confidence)
    else:
        low, high = normal_scores.mu_interval_of_runs(design, confidence)
    return conversions.epsilon_from_mu(float(low), delta), conversions.epsilon_from_mu(float(high), delta)
