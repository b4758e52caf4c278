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
from audit.methods import estimate, exact_null, lifted
from audit.methods.estimate import ASSUMPTION_FREE, Finding
from audit.methods.method import Method
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.written import Level
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

    def find_method(self, name: str) -> Method | None:
        """Returns the method to show in place of a method for one canary a run; None if there is none.

        With one canary a run it is the method itself, with several its counterpart. The law of fresh
        directions is known, and `assumption_free` has the only counterpart.
        """
        conclusion = self.conclusions[0]
        if conclusion.has_one_canary:
            return estimate.METHODS[name]
        if not conclusion.law_is_known:
            return lifted.counterpart(name)
        if name == ASSUMPTION_FREE:
            return exact_null.METHODS[exact_null.EXACT_NULL]
        return None

    def findings(self, name: str) -> list[Finding]:
        """Returns each stored seed's bound or estimate by the method to show for `name`, if there is one."""
        method = self.find_method(name)
        if method is None:
            return []
        return [conclusion.finding(method.name) for conclusion in self.conclusions]

    def spread(self, name: str) -> tuple[float, float, float]:
        """Returns the mean, smallest and largest epsilon over the stored seeds; NaN if there is no method."""
        epsilons = [finding.epsilon for finding in self.findings(name)] or [math.nan]
        return float(np.mean(epsilons)), min(epsilons), max(epsilons)

    def interval(self) -> tuple[float, float]:
        """Returns the first seed's two-sided interval (low, high) for epsilon, valid where scores are normal.

        It assumes the same standard deviation in both worlds (`normal_scores`), and has the bounds' delta and
        confidence. Fresh directions have none: the law of their scores without the canary is known exactly,
        and not normal.
        """
        conclusion = self.conclusions[0]
        if conclusion.law_is_known:
            return math.nan, math.nan
        confidence = conclusion.confidence
        if conclusion.has_one_canary:
            scores = (conclusion.scores_in, conclusion.scores_out)
            ends = normal_scores.mu_interval(*scores, confidence)
        else:
            # For the type checker: a sweep's audits have several runs, whose evidence is a `Design`.
            design = cast(Design, conclusion.evidence)
            ends = normal_scores.mu_interval_of_runs(design, confidence)
        low, high = (conversions.epsilon_from_mu(float(mu), conclusion.delta) for mu in ends)
        return low, high

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon, which all seeds share; NaN where it is unknown."""
        upper_bound = self.conclusions[0].upper_bound
        return math.nan if upper_bound is None else upper_bound

    def predicted_mu(self) -> float | None:
        """Returns the predicted mu of the audit's score; None where there is no prediction.

        mu is the distance of the score's means in both worlds, in standard deviations. The prediction holds
        where genuine gradients do not interfere (see `audit.conclusions.concluded.predicted_mu`).
        """
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """Returns the epsilon, at delta, of the predicted mu; None where there is no prediction."""
        mu = self.predicted_mu()
        return None if mu is None else conversions.epsilon_from_mu(mu, delta)


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
    for setting, runs in dict.fromkeys((cell.setting, cell.runs) for cell in cells):
        try:
            scores = held.scores(identity(setting), runs)
            if scores is not None:
                conclusions[setting, runs] = conclude_setting(scores, setting, levels)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return Evidence(held, conclusions, levels)


def points(cells: Iterable[Audited], by_setting: Audits) -> list[Point]:
    """Groups audits into points by panel, series and x, in the order of first occurrence.

    Args:
      cells: The audits.
      by_setting: The conclusions, by setting and number of runs. Audits without a conclusion count as
        missing; a point of only such audits is returned too.
    """
    places: dict[tuple[str, str, float], list[Audited]] = {}
    for cell in cells:
        places.setdefault((cell.panel, cell.series, cell.x), []).append(cell)
    all_points = []
    for place, group in places.items():
        found = [by_setting.get((cell.setting, cell.runs)) for cell in group]
        conclusions = tuple(conclusion for conclusion in found if conclusion is not None)
        all_points.append(Point(*place, tuple(group), conclusions))
    return all_points
