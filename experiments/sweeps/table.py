"""The table of our bounds beside a paper's words, for people (80 columns wide) and for programs (CSV)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from audit.methods import estimate, lifted
from audit.methods.estimate import IF_GAUSSIAN
from audit.methods.level import Level
from audit.methods.method import NO_BOUND, Method
from audit.report.table import Column, Table, at_least, at_most
from audit.runtime.progress import shortened
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis, PaperClaims, Row, Seeds, Statement, Sweep

_LINE = "{:<27}  {:>5}  {:>9}  {:>9}  {:>5}  {:<15}"
_HEADER = ("", "bound", "range", "interval", "pred.", "the paper says")
PROVES_NOTHING = "smoke: a few runs of a few steps show that all works; they prove nothing"
_NOTES = """\
bound:    lower bound if the curve is Gaussian, mean over seeds (if_gaussian; of
          K canaries a run lifted_gaussian)
range:    of that bound over the seeds; rows of one seed share their noise, so
          the number of bounds above the upper one is not binomial
interval: of one seed, two-sided; assumes normal scores of one spread, of K
          canaries a run many runs too; of several, how many are there so far
pred.:    mu = sqrt(insertions / k) / sigma, where gradients do not interfere;
          landscape: the exact epsilon; its curve is not Gaussian: no bound
tight:    as high as the upper bound; the paper's text prints no epsilons"""


def make_rows(
    figure: str, points: Iterable[Point], claims: PaperClaims, delta: float
) -> Iterator[Row]:
    """Yields a row for each point; each point must have a conclusion.

    Args:
      figure: The sweep's name.
      points: The figure's points.
      claims: What the paper says.
      delta: The delta of all epsilons.
    """
    for point in points:
        cells = point.cells
        stored = len(point.conclusions)
        seeds = Seeds(
            runs=cells[0].runs,
            stored=stored,
            missing=len(cells) - stored,
            canaries=cells[0].setting.canaries,
        )
        # An interval belongs to a single audit; with several seeds the row shows their range instead.
        interval = None
        if len(cells) == 1:
            interval = point.interval()
        yield Row(
            figure=figure,
            panel=point.panel,
            series=point.series,
            x=point.x,
            seeds=seeds,
            epsilons={method: point.spread(method) for method in estimate.METHODS},
            interval=interval,
            predicted=point.predicted(delta),
            upper_bound=point.upper_bound(),
            claim=claim(claims, figure, point.series, point.x),
        )


def claim(claims: PaperClaims, figure: str, series: str, x: float) -> Statement | None:
    """Returns what the paper says about a series at x, or else at every x; None where it says neither."""
    return claims.get((figure, series, x)) or claims.get((figure, series, None))


def as_csv(all_rows: Sequence[Row]) -> bytes:
    """Returns the rows, at least one, as CSV; numbers have six digits."""
    columns = [
        Column("figure", attrgetter("figure")),
        Column("panel", attrgetter("panel")),
        Column("series", attrgetter("series")),
        Column("x", attrgetter("x")),
        Column("runs", attrgetter("seeds.runs")),
        Column("canaries", attrgetter("seeds.canaries")),
        Column("seeds", attrgetter("seeds.stored")),
        Column("seeds_missing", attrgetter("seeds.missing")),
        Column(IF_GAUSSIAN, lambda row: row.epsilons[IF_GAUSSIAN].mean, show=at_least),
        Column(f"{IF_GAUSSIAN}_min", lambda row: row.epsilons[IF_GAUSSIAN].low, show=at_least),
        Column(f"{IF_GAUSSIAN}_max", lambda row: row.epsilons[IF_GAUSSIAN].high, show=at_least),
        Column("epsilon_low", _interval_low, show=at_least),
        Column("epsilon_high", _interval_high, show=at_most),
    ]
    other_methods = [method for name, method in estimate.METHODS.items() if name != IF_GAUSSIAN]
    # Estimates, which are no bounds, come last.
    for method in sorted(other_methods, key=lambda method: method.assumes.word == NO_BOUND):
        columns += _method_columns(method)
    columns += [
        Column("predicted", attrgetter("predicted")),
        Column("upper_bound", attrgetter("upper_bound")),
        Column("paper_says", lambda row: getattr(row.claim, "says", None)),
        Column("paper_section", lambda row: getattr(row.claim, "section", None)),
    ]
    return Table(columns, all_rows).csv()


def _interval_low(row: Row) -> float | None:
    """Returns the lower end of a row's interval; None where it has none."""
    if row.interval is None:
        return None
    return row.interval[0]


def _interval_high(row: Row) -> float | None:
    """Returns the upper end of a row's interval; None where it has none."""
    if row.interval is None:
        return None
    return row.interval[1]


def _method_columns(method: Method) -> list[Column]:
    """Returns the columns of a method's mean epsilon.

    There is one column for all rows. Where the method's counterpart for many canaries assumes something else,
    there are two: the method's, for rows with one canary a run, and the counterpart's, for rows with many.
    """
    name = method.name
    counterpart = lifted.counterpart(name)

    def mean(row: Row) -> float:
        """Returns the mean epsilon over the row's seeds."""
        return row.epsilons[name].mean

    def mean_of_one_canary(row: Row) -> float | None:
        """Returns the mean epsilon where the row's runs have a single canary, else None."""
        if row.seeds.canaries > 1:
            return None
        return mean(row)

    def mean_of_many_canaries(row: Row) -> float | None:
        """Returns the mean epsilon where the row's runs have many canaries, else None."""
        if row.seeds.canaries > 1:
            return mean(row)
        return None

    if counterpart is None or counterpart.assumes == method.assumes:
        return [Column(name, mean)]
    return [Column(name, mean_of_one_canary), Column(counterpart.name, mean_of_many_canaries)]


def as_text(
    sweeps: Iterable[Sweep],
    all_rows: Sequence[Row],
    delta: float,
    confidence: float,
    proves: bool = True,
) -> str:
    """Returns the table for people, 80 columns wide: the rows by figure and panel, and notes on the columns.

    Args:
      sweeps: The sweeps, in the order of the table.
      all_rows: The rows of all sweeps.
      delta: The delta of all epsilons.
      confidence: The confidence of the lower bounds.
      proves: Whether the scale has enough runs to prove anything; if not, a warning comes first.
    """
    lines = []
    if not proves:
        lines.append(PROVES_NOTHING)
    lines.append(f"lower bounds on epsilon at {Level(delta, confidence)}")
    lines.append(_format_line(_HEADER))
    for sweep in sweeps:
        by_panel: dict[str, list[Row]] = {}
        for row in all_rows:
            if row.figure == sweep.name:
                by_panel.setdefault(row.panel, []).append(row)
        if by_panel:
            lines.append("-" * 80)
            lines.append(shortened(f"{sweep.name}: {sweep.title}", 80))
        for panel_rows in by_panel.values():
            lines += _panel_lines(panel_rows, sweep.axis)
    lines.append("-" * 80)
    lines.append(_NOTES)
    return "\n".join(lines)


def _panel_lines(panel_rows: list[Row], axis: Axis | None) -> list[str]:
    """Returns a panel's lines: a heading with its upper bounds, and a line for each of its rows.

    Args:
      panel_rows: The panel's rows, at least one.
      axis: The figure's horizontal axis; None where x means nothing and rows are labelled by series alone.
    """
    upper_bounds = sorted({at_most(row.upper_bound, 2) for row in panel_rows})
    lines = [f"  {panel_rows[0].panel}; upper bound {' and '.join(upper_bounds)}"]
    for row in panel_rows:
        label = row.series
        if axis:
            # "GC-S, noisy per step" becomes "GC-S": the line has no room for the variant.
            series = row.series.split(",")[0]
            label = f"{series}, {axis.symbol} = {row.x:g}"
        paper_says = ""
        if row.claim:
            paper_says = row.claim.says
        lines.append(_format_line((label, *_numbers(row), paper_says)))
    return lines


def _numbers(row: Row) -> tuple[str, str, str, str]:
    """Returns a row's numbers of epsilon, as texts for the table's columns (bound, range, interval, pred.).

    Returns:
      bound: The mean over seeds of the lower bound by the method `if_gaussian`.
      range: The smallest and the largest of these bounds. For a single stored seed, "K = ..." if its runs
        have several canaries, else "one seed".
      interval: The two-sided confidence interval, if the row has only a single seed. Otherwise how many of
        its seeds are stored, if some are missing, else "".
      prediction: The predicted epsilon; "" where there is none.
    """
    mean, low, high = row.epsilons[IF_GAUSSIAN]
    _, seeds, missing, canaries = row.seeds
    if seeds > 1:
        spread = f"{_shorten(low, at_least)}-{_shorten(high, at_least)}"  # both are lower bounds
    elif canaries > 1:
        spread = f"K = {canaries}"
    else:
        spread = "one seed"

    if row.interval is not None:
        interval_low, interval_high = row.interval
        interval = f"{_shorten(interval_low, at_least)}-{_shorten(interval_high, at_most)}"
    elif missing:
        interval = f"{seeds}/{seeds + missing} seeds"
    else:
        interval = ""
    predicted = ""
    if row.predicted is not None:
        predicted = f"{row.predicted:.2f}"
    return at_least(mean, 2), spread, interval, predicted


def _shorten(value: float, round_bound: Callable[[float, int], str]) -> str:
    """Returns a bound with one decimal if that takes at most four characters, else without decimals.

    It then has at most four characters, unless it is ten thousand or more.

    Args:
      value: The bound.
      round_bound: Maps a bound and a number of decimals to a text, rounded up or down: `at_least` for a lower
        bound, `at_most` for an upper one.
    """
    most_characters = 4
    with_decimal = round_bound(value, 1)
    if len(with_decimal) <= most_characters:
        return with_decimal
    return round_bound(value, 0)


def _format_line(cells: Sequence[str]) -> str:
    """Lays out the texts of a line's six columns."""
    return _LINE.format(*cells).rstrip()
