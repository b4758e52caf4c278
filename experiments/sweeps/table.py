"""Our bounds beside a paper's words, for people (80 columns) and for programs (CSV)."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from audit.report import rounding
from audit.statistics.estimate import ASSUMPTION_FREE, ESTIMATORS, HELD_OUT, IF_GAUSSIAN, IN_SAMPLE
from audit.words import shortened
from experiments.sweeps.points import Point
from experiments.sweeps.sweep import Axis, Claim, PaperClaims, Row, Seeds, Sweep

_WIDTHS = (27, 5, 9, 9, 5, 15)
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
        yield Row(
            figure=figure,
            panel=point.panel,
            series=point.series,
            x=point.x,
            seeds=_seeds(point),
            epsilons={method: point.spread(method) for method in ESTIMATORS},
            interval=point.interval() if len(point.cells) == 1 else None,
            predicted=point.predicted(delta),
            upper_bound=point.upper_bound(),
            claim=claim(claims, figure, point.series, point.x),
        )


def _seeds(point: Point) -> Seeds:
    """What the point stands on."""
    cells, found = point.cells, len(point.found)
    return Seeds(cells[0].runs, found, len(cells) - found, cells[0].setting.canaries)


def claim(claims: PaperClaims, figure: str, series: str, x: float) -> Claim | None:
    """The claim on a series at x; None where there is none."""
    return claims.get((figure, series, x)) or claims.get((figure, series, None))


def as_csv(found: Sequence[Row]) -> bytes:
    """The rows, at least one, six digits a number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(_entry(found[0])), lineterminator="\n")
    writer.writeheader()
    for row in found:
        entry = _entry(row)
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in entry.items()})
    return text.getvalue().encode()


def _entry(row: Row) -> dict[str, str | float | None]:
    """A row's columns in the CSV."""
    low, high = row.interval or (None, None)
    says, section = row.claim or (None, None)
    return {
        "figure": row.figure,
        "panel": row.panel,
        "series": row.series,
        "x": row.x,
        "runs": row.seeds.runs,
        "canaries": row.seeds.canaries,
        "seeds": row.seeds.found,
        "seeds_missing": row.seeds.missing,
        "if_gaussian": row.epsilons[IF_GAUSSIAN].mean,
        "if_gaussian_min": row.epsilons[IF_GAUSSIAN].low,
        "if_gaussian_max": row.epsilons[IF_GAUSSIAN].high,
        "epsilon_low": low,
        "epsilon_high": high,
        "held_out": None if row.seeds.canaries > 1 else row.epsilons[HELD_OUT].mean,
        "clustered": row.epsilons[HELD_OUT].mean if row.seeds.canaries > 1 else None,
        "assumption_free": row.epsilons[ASSUMPTION_FREE].mean,
        "in_sample": row.epsilons[IN_SAMPLE].mean,
        "predicted": row.predicted,
        "upper_bound": row.upper_bound,
        "paper_says": says,
        "paper_section": section,
    }


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
    """A panel's heading and its rows, which name x where it has a name."""
    uppers = sorted({rounding.at_most(row.upper_bound, 2) for row in own})
    lines = [f"  {own[0].panel}; upper bound {' and '.join(uppers)}"]
    for row in own:
        label = f"{row.series.split(',')[0]}, {axis.symbol} = {row.x:g}" if axis else row.series
        lines.append(_line((label, *_numbers(row), row.claim.says if row.claim else "")))
    return lines


def _numbers(row: Row) -> tuple[str, ...]:
    """A row's numbers in short."""
    mean, low, high = row.epsilons[IF_GAUSSIAN]
    _, seeds, missing, canaries = row.seeds
    alone = "one seed" if canaries == 1 else f"K = {canaries}"
    spread = _range(low, high) if seeds > 1 else alone
    found = f"{seeds}/{seeds + missing} seeds" if missing else ""
    interval = found if row.interval is None else _range(*row.interval)
    predicted = "" if row.predicted is None else f"{row.predicted:.2f}"
    return rounding.at_least(mean, 2), spread, interval, predicted


def _range(low: float, high: float) -> str:
    """Two ends, of four characters or less but for epsilons of ten thousand."""
    return "-".join(f"{value:.1f}" if value < 99.95 else f"{value:.0f}" for value in (low, high))


def _line(cells: Sequence[str]) -> str:
    """Cells at their columns: words to the left, numbers to the right."""
    aligned = [
        cell.ljust(width) if i in (0, len(_WIDTHS) - 1) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(aligned).rstrip()
