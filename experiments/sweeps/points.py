"""The points of a figure, and the table that compares them with a paper's claims.

A point is one place in a figure, with the audits of all seeds, their conclusions, and a prediction.
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
    """What figures are drawn from.

    Attributes:
      held: The contents of the store.
      audits: The conclusions from its stored audits.
      levels: The delta and confidence of these conclusions.
    """

    held: Holdings
    audits: Audits
    levels: Level


class Point(NamedTuple):
    """One place of a figure.

    Attributes:
      panel: The title of its panel.
      series: The label of its series.
      x: Its value on the horizontal axis.
      cells: The audits at this place, one for each seed.
      conclusions: The conclusions from the stored audits, in the order of their seeds.
    """

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    conclusions: tuple[Conclusion, ...]

    def find_method(self, name: str) -> Method | None:
        """Returns the method to show in the place of `name`, a method for one canary in each run.

        With one canary it is this method, with several canaries its counterpart for them. Fresh directions
        have a known distribution; with them only `assumption_free` has a counterpart. Returns None if there
        is no counterpart.
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
        """Returns the bound or estimate by `find_method(name)` for each stored seed; [] without a method."""
        method = self.find_method(name)
        if method is None:
            return []
        return [conclusion.finding(method.name) for conclusion in self.conclusions]

    def spread(self, name: str) -> tuple[float, float, float]:
        """Returns the mean, smallest and largest epsilon of `findings(name)`; NaN without a method."""
        epsilons = [finding.epsilon for finding in self.findings(name)] or [math.nan]
        return float(np.mean(epsilons)), min(epsilons), max(epsilons)

    def interval(self) -> tuple[float, float]:
        """Returns the two-sided interval (low, high) for epsilon from the first seed.

        It assumes that scores are normal with the same standard deviation with and without the canary
        (`normal_scores`). The interval is NaN for fresh directions, whose scores are not normal.
        """
        conclusion = self.conclusions[0]
        if conclusion.law_is_known:
            return math.nan, math.nan
        confidence = conclusion.confidence
        if conclusion.has_one_canary:
            ends = normal_scores.mu_interval(*conclusion.worlds, confidence)
        else:
            # Evidence of several runs is a `Design`, which the type checker does not know.
            design = cast(Design, conclusion.evidence)
            ends = normal_scores.mu_interval_of_runs(design, confidence)
        low = conversions.epsilon_from_mu(float(ends.lower), conclusion.delta)
        high = conversions.epsilon_from_mu(float(ends.upper), conclusion.delta)
        return low, high

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon, which is the same for all seeds, or NaN if it is unknown."""
        upper_bound = self.conclusions[0].upper_bound
        return math.nan if upper_bound is None else upper_bound

    def predicted_mu(self) -> float | None:
        """Returns the predicted mu, or None if there is no formula for the setting.

        The prediction is correct if genuine gradients do not interfere with the canary
        (`audit.conclusions.concluded.predicted_mu`).
        """
        return predicted_mu(self.cells[0].setting)

    def predicted(self, delta: float) -> float | None:
        """Returns the epsilon of the predicted mu at delta, or None without a prediction."""
        mu = self.predicted_mu()
        return None if mu is None else conversions.epsilon_from_mu(mu, delta)


def evidence(held: Holdings, cells: Iterable[Audited], levels: Level) -> Evidence:
    """Computes the conclusions from all stored scores of these audits.

    Scores that cannot be read or do not allow a conclusion are left out and reported on stderr.
    """
    conclusions: Audits = {}
    # Cells of several figures may share an audit, so each audit is concluded once.
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

    Audits without a conclusion in `by_setting` are missing. A point may have no conclusion at all.
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
    """Yields the record of each point, with the fields of `make_table`.

    Every point has a conclusion. `claims` are the paper's claims, and `delta` is that of the predictions.
    """
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
            # A counterpart with other assumptions gets a column of its own.
            if shown is not None and shown.assumes != method.assumes:
                name = shown.name
            row.setdefault(name, point.spread(name)[0])
        claim_for_all_x = claims.get((sweep.name, point.series, None), ())
        claim = claims.get((sweep.name, point.series, point.x), claim_for_all_x)
        yield row | dict(zip(("paper_says", "paper_section"), claim, strict=False))


def make_table(rows: Records, level: Level) -> Table[Record]:
    """Returns the table of at least one row of `make_rows`. Its CSV has more columns than its text."""
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
    # The remaining fields are bounds and estimates by other methods, which depend on the audits.
    known = {"heading", "label", *map(attrgetter("key"), columns + last)}
    others = [name for name in dict.fromkeys(itertools.chain(*rows)) if name not in known]
    # Bounds come before estimates.
    no_bounds = {
        name for name, method in estimate.METHODS.items() if method.assumes.word == NO_BOUND
    }
    others.sort(key=no_bounds.__contains__)
    return Table(
        [*columns, *map(field, others), *last],
        rows,
        section=itemgetter("heading"),
        before=[f"lower bounds on epsilon at {level}"],
        after=["-" * 80, _NOTES],
        gap=" ",
        rule=80,
    )
