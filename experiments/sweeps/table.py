"""Our bounds beside a paper's words, for people (80 columns) and for programs (CSV)."""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from audit.progress import shortened
from audit.report.table import Column, Table, at_least, at_most
from audit.statistics import estimate, lifted
from audit.statistics.estimate import IF_GAUSSIAN
from audit.statistics.method import NO_BOUND, Method
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis, Claim, PaperClaims, Row, Seeds, Sweep

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


def rows(figure: str, points: Iterable[Point], claims: PaperClaims, delta: float) -> Iterator[Row]:
    """A row a point that has conclusions."""
    for point in points:
        cells, there = point.cells, len(point.found)
        yield Row(
            figure,
            *point[:3],
            seeds=Seeds(cells[0].runs, there, len(cells) - there, cells[0].setting.canaries),
            epsilons={method: point.spread(method) for method in estimate.METHODS},
            interval=point.interval() if len(cells) == 1 else None,
            predicted=point.predicted(delta),
            upper_bound=point.upper_bound(),
            claim=claim(claims, figure, point.series, point.x),
        )


def claim(claims: PaperClaims, figure: str, series: str, x: float) -> Claim | None:
    """The claim on a series at x; None where there is none."""
    return claims.get((figure, series, x)) or claims.get((figure, series, None))


def as_csv(found: Sequence[Row]) -> bytes:
    """The rows, at least one, six digits a number."""
    about = [
        *(Column(key, attrgetter(key)) for key in ("figure", "panel", "series", "x")),
        *(Column(key, attrgetter(f"seeds.{key}")) for key in ("runs", "canaries")),
        Column("seeds", lambda row: row.seeds.found),
        Column("seeds_missing", lambda row: row.seeds.missing),
        Column(IF_GAUSSIAN, lambda row: row.epsilons[IF_GAUSSIAN].mean),
        Column(f"{IF_GAUSSIAN}_min", lambda row: row.epsilons[IF_GAUSSIAN].low),
        Column(f"{IF_GAUSSIAN}_max", lambda row: row.epsilons[IF_GAUSSIAN].high),
        Column("epsilon_low", lambda row: row.interval and row.interval[0]),
        Column("epsilon_high", lambda row: row.interval and row.interval[1]),
    ]
    rest = [
        *(Column(key, attrgetter(key)) for key in ("predicted", "upper_bound")),
        Column("paper_says", lambda row: row.claim and row.claim.says),
        Column("paper_section", lambda row: row.claim and row.claim.section),
    ]
    records = [record for name, record in estimate.METHODS.items() if name != IF_GAUSSIAN]
    bounds_first = sorted(records, key=lambda record: record.assumes.word == NO_BOUND)
    methods = [column for record in bounds_first for column in _columns(record)]
    return Table([*about, *methods, *rest], found).csv()


def _columns(record: Method) -> Iterator[Column]:
    name, many = record.name, lifted.counterpart(record.name)
    if many is None or many.assumes == record.assumes:
        yield Column(name, lambda row: row.epsilons[name].mean)
        return
    yield Column(name, lambda row: None if row.seeds.canaries > 1 else row.epsilons[name].mean)
    yield Column(many.name, lambda row: row.epsilons[name].mean if row.seeds.canaries > 1 else None)


def as_text(
    sweeps: Iterable[Sweep], found: Sequence[Row], delta: float, confidence: float, proves: bool = True
) -> str:
    """The rows by figure and panel, 80 columns wide; not `proves`: a line that says so stands above them."""
    title = f"lower bounds on epsilon at delta {delta:g}, confidence {confidence:g}"
    lines = [*([] if proves else [PROVES_NOTHING]), title, _line(_HEADER)]
    for sweep in sweeps:
        own = [row for row in found if row.figure == sweep.name]
        if own:
            lines += ["-" * 80, shortened(f"{sweep.name}: {sweep.title}", 80)]
        for panel in dict.fromkeys(row.panel for row in own):
            lines += _panel([row for row in own if row.panel == panel], sweep.axis)
    return "\n".join([*lines, "-" * 80, _NOTES])


def _panel(own: list[Row], axis: Axis | None) -> list[str]:
    uppers = sorted({at_most(row.upper_bound, 2) for row in own})
    lines = [f"  {own[0].panel}; upper bound {' and '.join(uppers)}"]
    for row in own:
        label = f"{row.series.split(',')[0]}, {axis.symbol} = {row.x:g}" if axis else row.series
        lines.append(_line((label, *_numbers(row), row.claim.says if row.claim else "")))
    return lines


def _numbers(row: Row) -> tuple[str, ...]:
    mean, low, high = row.epsilons[IF_GAUSSIAN]
    _, seeds, missing, canaries = row.seeds
    alone = "one seed" if canaries == 1 else f"K = {canaries}"
    spread = _range(low, high) if seeds > 1 else alone
    found = f"{seeds}/{seeds + missing} seeds" if missing else ""
    interval = found if row.interval is None else _range(*row.interval)
    predicted = "" if row.predicted is None else f"{row.predicted:.2f}"
    return at_least(mean, 2), spread, interval, predicted


def _range(low: float, high: float) -> str:
    """Two ends, of four characters or less but for epsilons of ten thousand."""
    return "-".join(f"{value:.1f}" if value < 99.95 else f"{value:.0f}" for value in (low, high))


def _line(cells: Sequence[str]) -> str:
    return _LINE.format(*cells).rstrip()
