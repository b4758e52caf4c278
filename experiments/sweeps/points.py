"""The points of a figure, and their table."""

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
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN, IN_SAMPLE, Finding
from audit.methods.method import Method
from audit.report.table import Column, Table, at_least, at_most
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.written import Level, shortened
from experiments.cells.cell import Audited
from experiments.sweeps import normal_scores
from experiments.sweeps.records import Record, Records, field
from experiments.sweeps.sweep import Sweep

Audits = dict[tuple[Setting, int], Conclusion]  # keyed by setting and number of runs
_NOTES = """\
bound:  lower bound if the curve is Gaussian, mean over seeds (if_gaussian, or
        lifted_gaussian for K canaries in a run); least, most: over seeds. Rows
        with the same seed share noise, so wrong bounds are not independent
from:   two-sided interval from one seed; assumes normal scores, equal standard
        deviations, and many runs if a run has K canaries
pred.:  mu = sqrt(insertions / k) / sigma, if gradients do not interfere"""


class Evidence(NamedTuple):
    """The stored results for figures.

    Attributes:
      held: The contents of the store.
      audits: The conclusions from the stored audits.
      levels: The delta and the confidence of these conclusions.
    """

    held: Holdings
    audits: Audits
    levels: Level


class Point(NamedTuple):
    """A position in a figure.

    Attributes:
      panel: The title of its panel.
      series: The label of its series.
      x: Its value on the horizontal axis.
      cells: The audits at this position, one for each seed.
      conclusions: The conclusions from the stored audits, ordered by seed.
    """

    panel: str
    series: str
    x: float
    cells: tuple[Audited, ...]
    conclusions: tuple[Conclusion, ...]

    @property
    def delta(self) -> float:
        """The delta for all epsilons."""
        return self.conclusions[0].delta

    def find_method(self, name: str) -> Method | None:
        """Returns the counterpart of a method for this point's kind of audit; None if there is none.

        `name` is a method for runs with one canary. In audits with one canary, the method is its own
        counterpart.
        """
        conclusion = self.conclusions[0]  # all seeds have the same kind of audit
        if conclusion.has_one_canary:
            return estimate.METHODS[name]
        if conclusion.law_is_known:  # fresh directions, whose scores have a known distribution
            counterparts: dict[str, Method] = {
                ASSUMPTION_FREE: exact_null.METHODS[exact_null.EXACT_NULL]
            }
        else:  # several canaries in a run
            counterparts = {
                IF_GAUSSIAN: lifted.METHODS[lifted.LIFTED_GAUSSIAN],
                ASSUMPTION_FREE: lifted.METHODS[lifted.LIFTED],
            }
        return counterparts.get(name)

    def findings(self, name: str) -> list[Finding]:
        """Returns the bound or estimate of `find_method(name)` for each stored seed; [] if it is None."""
        method = self.find_method(name)
        if method is None:
            return []
        return [conclusion.finding(method.name) for conclusion in self.conclusions]

    def spread(self, name: str) -> tuple[float, float, float]:
        """Returns the mean, smallest and largest epsilon of `findings(name)`; NaN if this list is empty."""
        epsilons = [finding.epsilon for finding in self.findings(name)] or [math.nan]
        return float(np.mean(epsilons)), min(epsilons), max(epsilons)

    def interval(self) -> tuple[float, float]:
        """Returns the two-sided interval (low, high) for epsilon from the first seed.

        The interval assumes that scores are normal, with equal standard deviations with and without the
        canary (`normal_scores`). If each run has new random canaries, both ends are NaN, because only the
        distribution of scores without the canary is known.
        """
        conclusion = self.conclusions[0]
        if conclusion.law_is_known:  # for new random canaries
            return math.nan, math.nan
        if conclusion.has_one_canary:
            ends = normal_scores.mu_interval(*conclusion.worlds, conclusion.confidence)
        else:  # the canaries of a run may depend on each other
            design = cast(Design, conclusion.evidence)
            ends = normal_scores.mu_interval_of_runs(design, conclusion.confidence)
        low = conversions.epsilon_from_mu(float(ends.lower), conclusion.delta)
        high = conversions.epsilon_from_mu(float(ends.upper), conclusion.delta)
        return low, high

    def upper_bound(self) -> float:
        """Returns the accountant's epsilon (the same for all seeds), or NaN if it is unknown."""
        upper_bound = self.conclusions[0].upper_bound
        return math.nan if upper_bound is None else upper_bound

    def predicted_mu(self) -> float | None:
        """Returns the predicted mu, or None if there is no formula for the setting.

        The prediction assumes that genuine gradients do not interfere with the canary
        (`audit.conclusions.concluded.predicted_mu`).
        """
        return predicted_mu(self.cells[0].setting)  # the others differ only in the seed

    def predicted(self) -> float | None:
        """Returns the epsilon of the predicted mu, or None if there is no formula."""
        mu = self.predicted_mu()
        if mu is None:
            return None
        return conversions.epsilon_from_mu(mu, self.delta)


def evidence(held: Holdings, cells: Iterable[Audited], levels: Level) -> Evidence:
    """Computes the conclusions from all stored scores of these audits.

    If an audit's scores cause an InputError, skips the audit and prints the error to stderr.
    """
    conclusions = {}
    # Figures may share an audit.
    for setting, runs in dict.fromkeys((cell.setting, cell.runs) for cell in cells):
        try:
            scores = held.scores(identity(setting), runs)
            if scores is not None:  # all runs are stored
                conclusions[setting, runs] = conclude_setting(scores, setting, levels)
        except InputError as error:
            print(f"left out, {setting.model} {setting.adversary.name}: {error}", file=sys.stderr)
    return Evidence(held, conclusions, levels)


def points(cells: Iterable[Audited], by_setting: Audits) -> list[Point]:
    """Groups audits into points by panel, series and x, in order of first occurrence.

    `by_setting` holds the conclusions, keyed by setting and number of runs. Some may be missing.
    """
    places: dict[tuple[str, str, float], list[Audited]] = {}
    for cell in cells:
        places.setdefault((cell.panel, cell.series, cell.x), []).append(cell)
    all_points = []
    for place, group in places.items():
        conclusions = [by_setting.get((cell.setting, cell.runs)) for cell in group]
        all_points.append(Point(*place, tuple(group), tuple(filter(None, conclusions))))
    return all_points


def make_rows(sweep: Sweep, points: Sequence[Point]) -> Iterator[Record]:
    """Yields a record for each point, with the fields for `make_table`. Each point must have a conclusion.

    Each method for runs with one canary has a column of mean epsilons. In other audits, the column shows the
    method's counterpart (`Point.find_method`), or NaN if there is none. Counterparts with different
    assumptions, such as `exact_null`, have their own columns.
    """
    for point in points:
        cells = point.cells
        _, low, high = point.spread(IF_GAUSSIAN)  # assumes a Gaussian curve
        upper_bound = point.upper_bound()
        label = point.series
        if sweep.axis:
            # Shorten "GC-S, noisy per step" to "GC-S, k = 1", which fits on a line.
            name_without_variant = label.split(",")[0]
            label = f"{name_without_variant}, {sweep.axis.symbol} = {point.x:g}"
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
            f"{IF_GAUSSIAN}_min": low,
            f"{IF_GAUSSIAN}_max": high,
            "predicted": point.predicted(),
            "upper_bound": upper_bound,
        }
        if len(cells) == 1:
            row["epsilon_low"], row["epsilon_high"] = point.interval()
        for name, method in estimate.METHODS.items():
            counterpart = point.find_method(name)
            column = name
            if counterpart is not None and counterpart.assumes != method.assumes:
                column = counterpart.name
            mean, _, _ = point.spread(name)
            row[column] = mean
        yield row


def make_table(rows: Records, level: Level) -> Table[Record]:
    """Returns a table with a row for each point.

    `rows` are one or more records from `make_rows`. Columns without `head`, as in field("series"), are only
    in the CSV. `level` holds the delta and confidence of all bounds.
    """
    rounded_down = partial(at_least, decimals=1)
    csv_names = ("figure", "panel", "series", "x", "runs", "canaries", "seeds")
    columns = [
        Column(value=itemgetter("label"), head="", width=27, left=True),
        *map(field, csv_names),
        # The mean and the range over seeds of the bound that assumes a Gaussian trade-off curve.
        field(IF_GAUSSIAN, "bound", partial(at_least, decimals=2), width=5),
        field(f"{IF_GAUSSIAN}_min", "least", rounded_down, width=5),
        field(f"{IF_GAUSSIAN}_max", "most", rounded_down, width=5),
        # The two-sided interval from one seed.
        field("epsilon_low", "from", rounded_down, width=5),
        field("epsilon_high", "to", partial(at_most, decimals=1), width=5),
    ]
    last = [
        field(IN_SAMPLE),  # an estimate, after the bounds
        field("predicted", "pred.", ".2f", width=6),
        field("upper_bound"),
    ]
    # The remaining fields are other bounds, which vary with the kind of audit.
    shown = {"heading", "label", *map(attrgetter("key"), columns + last)}
    all_names = dict.fromkeys(itertools.chain(*rows))
    others = [name for name in all_names if name not in shown]
    return Table(
        [*columns, *map(field, others), *last],
        rows,
        section=itemgetter("heading"),
        before=[f"lower bounds on epsilon at {level}"],
        after=["-" * 80, _NOTES],
        gap=" ",
        rule=80,
    )
