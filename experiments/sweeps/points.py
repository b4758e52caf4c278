"""The points of a figure: the audits of all seeds at one place, their conclusions, and a prediction.

The table of points compares bounds with a paper's claims.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, itemgetter
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
from audit.report.table import Column, Table, at_least, at_most
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.written import Level, shortened
from experiments.cells.cell import Audited
from experiments.sweeps import normal_scores
from experiments.sweeps.records import Record, Records, field
from experiments.sweeps.sweep import PaperClaims, Sweep

Audits = dict[tuple[Setting, int], Conclusion]  # by setting and number of runs
_NOTES = """\
bound:  lower bound if the curve is Gaussian, mean over seeds (if_gaussian, or
        lifted_gaussian for K canaries in a run); least, most: over seeds. Rows
        of a seed share noise, so the number of bounds above is not binomial
from:   two-sided interval of one seed; assumes normal scores, equal standard
        deviations, and many runs if a run has K canaries
pred.:  mu = sqrt(insertions / k) / sigma, if gradients do not interfere
tight:  equal to the upper bound; the paper's text does not print epsilons"""


class Evidence(NamedTuple):
    """The store behind figures, the conclusions from its audits, and their delta and confidence."""

    held: Holdings
    audits: Audits
    levels: Level


class Point(NamedTuple):
    """One place of a figure.

    Attributes:
      cells: The audits at this place, one for each seed.
      conclusions: The conclusions from the stored audits.
    """

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    conclusions: tuple[Conclusion, ...]

    def find_method(self, name: str) -> Method | None:
        """Returns the method to show for a method of one canary in each run, or None.

        It is this method or its counterpart for several canaries. For fresh directions, which have a known
        law, only `assumption_free` has a counterpart.
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
        """Returns each stored seed's bound or estimate by `find_method(name)`, if any."""
        method = self.find_method(name)
        if method is None:
            return []
        return [conclusion.finding(method.name) for conclusion in self.conclusions]

    def spread(self, name: str) -> tuple[float, float, float]:
        """Returns the mean, smallest and largest epsilon over the stored seeds; NaN without a method."""
        epsilons = [finding.epsilon for finding in self.findings(name)] or [math.nan]
        return float(np.mean(epsilons)), min(epsilons), max(epsilons)

    def interval(self) -> tuple[float, float]:
        """Returns the first seed's two-sided interval (low, high) for epsilon (`normal_scores`).

        It assumes normal scores with the same standard deviation in both worlds. It is NaN for fresh
        directions, since their law is not normal.
        """
        conclusion = self.conclusions[0]
        if conclusion.law_is_known:
            return math.nan, math.nan
        confidence = conclusion.confidence
        if conclusion.has_one_canary:
            ends = normal_scores.mu_interval(*conclusion.worlds, confidence)
        else:
            # For the type checker: the evidence of several runs is a `Design`.
            design = cast(Design, conclusion.evidence)
            ends = normal_scores.mu_interval_of_runs(design, confidence)
        low = conversions.epsilon_from_mu(float(ends.lower), conclusion.delta)
        high = conversions.epsilon_from_mu(float(ends.upper), conclusion.delta)
        return low, high

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon, the same for all seeds; NaN if it is unknown."""
        upper_bound = self.conclusions[0].upper_bound
        return math.nan if upper_bound is None else upper_bound

    def predicted_mu(self) -> float | None:
        """Returns the predicted distance of the score's means in standard deviations, if any.

        The prediction is correct if genuine gradients do not interfere
        (`audit.conclusions.concluded.predicted_mu`).
        """
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """Returns the epsilon of the predicted mu at delta; None without a prediction."""
        mu = self.predicted_mu()
        return None if mu is None else conversions.epsilon_from_mu(mu, delta)


def evidence(held: Holdings, cells: Iterable[Audited], levels: Level) -> Evidence:
    """Draws the conclusions from the stored scores of cells, once for all figures.

    Scores that cannot be read or do not allow a conclusion are reported on stderr and left out.
    """
    conclusions: Audits = {}
    # Cells of several figures may share an audit.
    for setting, runs in dict.fromkeys((cell.setting, cell.runs) for cell in cells):
        try:
            scores = held.scores(identity(setting), runs)
            if scores is not None:
                conclusions[setting, runs] = conclude_setting(scores, setting, levels)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return Evidence(held, conclusions, levels)


def points(cells: Iterable[Audited], by_setting: Audits) -> list[Point]:
    """Groups audits into points by panel, series and x, in order of first occurrence.

    Audits without a conclusion in `by_setting` count as missing. A point may have only such audits.
    """
    places: dict[tuple[str, str, float], list[Audited]] = {}
    for cell in cells:
        places.setdefault((cell.panel, cell.series, cell.x), []).append(cell)
    all_points = []
    for place, group in places.items():
        found = [by_setting.get((cell.setting, cell.runs)) for cell in group]
        all_points.append(Point(*place, tuple(group), tuple(filter(None, found))))
    return all_points


def make_rows(
    sweep: Sweep, points: Sequence[Point], claims: PaperClaims, delta: float
) -> Iterator[Record]:
    """Yields a record for each point; each point must have a conclusion."""
    for point in points:
        cells = point.cells
        mean, low, high = point.spread(IF_GAUSSIAN)
        upper_bound = point.upper_bound()
        label = point.series
        if sweep.axis:
            # "GC-S, noisy per step" becomes "GC-S", since the variant does not fit in the line.
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
        if len(cells) == 1:  # an interval is from a single audit
            interval_low, interval_high = point.interval()
            row |= {"epsilon_low": interval_low, "epsilon_high": interval_high}
        for name, method in estimate.METHODS.items():
            shown = point.find_method(name)
            if shown is not None and shown.assumes != method.assumes:
                name = shown.name
            row.setdefault(name, point.spread(name)[0])
        anywhere = claims.get((sweep.name, point.series, None), ())
        claim = claims.get((sweep.name, point.series, point.x), anywhere)
        yield row | dict(zip(("paper_says", "paper_section"), claim, strict=False))


def make_table(rows: Records, level: Level) -> Table[Record]:
    """Returns the table of rows (at least one) of all sweeps, with more columns in CSV than in text."""
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
    last = [
        field("predicted", "pred.", ".2f", 6),
        field("upper_bound"),
        field("paper_says", "the paper", left=True),
        field("paper_section"),
    ]
    known = {"heading", "label", *map(attrgetter("key"), columns + last)}
    others = [name for name in dict.fromkeys(itertools.chain(*rows)) if name not in known]
    # Bounds come first.
    no_bounds = {
        name for name, method in estimate.METHODS.items() if method.assumes.word == NO_BOUND
    }
    columns += map(field, sorted(others, key=no_bounds.__contains__))
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
