"""The points of a figure: the audits of all seeds at one place, their conclusions, and a prediction.

Their table has our bounds next to a paper's words, for people (80 columns wide) and for programs (CSV).
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple, cast

import numpy as np

from audit.conclusions.concluded import conclude_setting, predicted_mu
from audit.conclusions.conclusion import Conclusion
from audit.errors import InputError
from audit.evidence.canaries import Design
from audit.laws import conversions
from audit.methods import estimate, exact_null, lifted
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, Finding
from audit.methods.method import NO_BOUND, Method
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.written import Level, shortened
from experiments.cells.cell import Audited
from experiments.sweeps import normal_scores
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import PaperClaims, Sweep

Audits = dict[tuple[Setting, int], Conclusion]  # by setting and number of runs
_NOTES = """\
bound:  lower bound if the curve is Gaussian, mean over seeds (if_gaussian; of K
        canaries a run lifted_gaussian); least, most: over the seeds; rows of
        one seed share their noise: the number of bounds above is not binomial
from:   of one seed, two-sided interval; assumes normal scores of one spread, of
        K canaries a run many runs too
pred.:  mu = sqrt(insertions / k) / sigma, where gradients do not interfere
tight:  as high as the upper bound; the paper's text prints no epsilons"""


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


def make_rows(
    sweep: Sweep, points: Sequence[Point], claims: PaperClaims, delta: float
) -> Iterator[Record]:
    """Yields a record for each point; each point must have a conclusion.

    Args:
      sweep: The figure.
      points: The figure's points.
      claims: What the paper says.
      delta: The delta of all epsilons.
    """
    for point in points:
        cells = point.cells
        mean, low, high = point.spread(IF_GAUSSIAN)
        upper_bound = point.upper_bound()
        label = point.series
        if sweep.axis:
            # "GC-S, noisy per step" becomes "GC-S": the line has no room for the variant.
            label = f"{label.split(',')[0]}, {sweep.axis.symbol} = {point.x:g}"
        heading = shortened(f"{sweep.name}: {sweep.title}", 80)
        row = {
            "heading": f"{heading}\n  {point.panel}; upper bound {at_most(upper_bound, 2)}",
            "label": label,
            "figure": sweep.name,
            "panel": point.panel,
            "series": point.series,
            "x": point.x,
            "runs": cells[0].runs,
            "canaries": cells[0].setting.canaries,
            "seeds": len(point.conclusions),
            "seeds_missing": len(cells) - len(point.conclusions),
            IF_GAUSSIAN: mean,
            f"{IF_GAUSSIAN}_min": low,
            f"{IF_GAUSSIAN}_max": high,
            "predicted": point.predicted(delta),
            "upper_bound": upper_bound,
        }
        if len(cells) == 1:  # an interval belongs to a single audit
            interval_low, interval_high = point.interval()
            row |= {"epsilon_low": interval_low, "epsilon_high": interval_high}
        for name, method in estimate.METHODS.items():
            shown = point.find_method(name)
            # A counterpart for many canaries has a column of its own if it assumes something else.
            if shown is not None and shown.assumes != method.assumes:
                name = shown.name
            row.setdefault(name, point.spread(name)[0])
        claim = claims.get((sweep.name, point.series, point.x))
        claim = claim or claims.get((sweep.name, point.series, None))
        if claim is not None:
            row |= zip(("paper_says", "paper_section"), claim, strict=True)
        yield row


def make_table(rows: Sequence[Record], level: Level) -> Table[Record]:
    """Returns the table of the rows of all sweeps, by figure and panel; CSV has more columns than the text.

    Args:
      rows: The rows, at least one.
      level: The delta of all epsilons, and the confidence of the lower bounds.
    """
    rounded_down = partial(at_least, decimals=1)
    names = ("figure", "panel", "series", "x", "runs", "canaries", "seeds", "seeds_missing")
    columns = [
        Column(None, itemgetter("label"), "", width=27, left=True),
        *map(field, names),
        field(IF_GAUSSIAN, "bound", partial(at_least, decimals=2), 5),
        field(f"{IF_GAUSSIAN}_min", "least", rounded_down, 5),
        field(f"{IF_GAUSSIAN}_max", "most", rounded_down, 5),
        field("epsilon_low", "from", rounded_down, 5),
        field("epsilon_high", "to", partial(at_most, decimals=1), 5),
    ]
    known = {"heading", "label", *(column.key for column in columns)}
    last = [
        field("predicted", "pred.", number(".2f"), 6),
        field("upper_bound"),
        field("paper_says", "the paper says", left=True),
        field("paper_section"),
    ]
    known.update(column.key for column in last)
    others = dict.fromkeys(name for row in rows for name in row if name not in known)
    # Estimates, which are no bounds, come last.
    estimates = [
        name for name, method in estimate.METHODS.items() if method.assumes.word == NO_BOUND
    ]
    columns += [field(name) for name in sorted(others, key=estimates.__contains__)]
    before = [f"lower bounds on epsilon at {level}"]
    return Table(
        [*columns, *last],
        rows,
        section=itemgetter("heading"),
        before=before,
        after=["-" * 80, _NOTES],
        gap=" ",
        rule=80,
    )
