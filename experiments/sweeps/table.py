"""The table of our bounds next to a paper's words, for people (80 columns wide) and for programs (CSV)."""

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter

from audit.methods import estimate
from audit.methods.estimate import IF_GAUSSIAN
from audit.methods.method import NO_BOUND
from audit.report.table import Column, Table, at_least, at_most, number
from audit.written import Level, shortened
from experiments.sweeps.points import Point
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import PaperClaims, Sweep

_NOTES = """\
bound:  lower bound if the curve is Gaussian, mean over seeds (if_gaussian; of K
        canaries a run lifted_gaussian); least, most: over the seeds; rows of
        one seed share their noise: the number of bounds above is not binomial
from:   of one seed, two-sided interval; assumes normal scores of one spread, of
        K canaries a run many runs too
pred.:  mu = sqrt(insertions / k) / sigma, where gradients do not interfere
tight:  as high as the upper bound; the paper's text prints no epsilons"""


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
