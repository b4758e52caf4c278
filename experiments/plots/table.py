"""Our bounds beside what the hidden-state paper says, for people (80 columns) and for programs (CSV)."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from experiments.hidden_state.sweep import Sweep
from experiments.plots.points import Point


class Claim(NamedTuple):
    """What the paper's text says of a series, and where. Its figures' heights are not printed as numbers,
    so none is given: "tight" is its word for a lower bound that matches the accountant's."""

    says: str
    section: str


# (figure, series, x), the last None where it holds for all
CLAIMS: dict[tuple[str, str, float | None], Claim] = {
    ("figure_1a", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1a", "L", None): Claim("not tight", "5.2"),
    ("figure_1b", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1b", "L", None): Claim("not tight", "5.2"),
    ("figure_1c", "L", None): Claim("below GC-R", "5.2"),
    ("figure_1c", "GC-R", None): Claim("not tight", "5.2"),
    ("figure_1c", "GC-S, noiseless per step", None): Claim("nearly tight", "5.2"),
    ("figure_2a", "GC-R", None): Claim("not tight", "5.3"),
    ("figure_2a", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_2b", "GC-R", None): Claim("below k = 5", "5.3"),
    ("figure_2b", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_4", "GC-S, noiseless per step", None): Claim("best of the 4", "Appendix C"),
    ("figure_5", "GC-R", 1): Claim("tight", "5.2"),
    ("figure_5", "GC-R", 5): Claim("not tight", "5.3"),
    ("figure_5", "GC-S, noiseless per step", None): Claim("as GC-R", "Appendix C"),
    ("figure_6a", "GC-R", None): Claim("Gaussian curve", "Appendix E"),
    ("figure_7", "GC-R", None): Claim("above CotS", "Appendix G"),
    ("figure_7", "CotS", None): Claim("above L", "Appendix G"),
    ("figure_11", "k = 1", None): Claim("tight", "Appendix G"),
    ("figure_11", "k = 5", None): Claim("not tight", "Appendix G"),
    ("figure_11", "k = 25", None): Claim("not tight", "Appendix G"),
    ("figure_12", "unknown", None): Claim("as known", "Appendix G"),
    ("figure_13", "MobileNetV2's head", None): Claim("tight (AlexNet)", "Appendix G"),
    ("landscape", "B = 16", None): Claim("tight", "Appendix G"),
}
_WIDTHS = (27, 5, 9, 9, 5, 15)
_HEADER = ("", "bound", "range", "interval", "pred.", "the paper says")
_NOTES = """\
bound:    certified lower bound, mean over seeds; assumes a Gaussian curve
range:    of that bound over the seeds
interval: two-sided; assumes normal scores of one spread in both worlds
pred.:    mu = sqrt(insertions / k) / sigma, where gradients do not interfere;
          landscape: the exact epsilon; its curve is not Gaussian: no bound
tight:    as high as the upper bound; the paper's text prints no epsilons"""


class Row(NamedTuple):
    """One point, as the CSV has it; epsilons at one delta, None where there is nothing to say."""

    figure: str
    panel: str
    series: str
    x: float
    runs: int
    seeds: int
    seeds_missing: int
    certified: float
    certified_min: float
    certified_max: float
    epsilon_low: float | None
    epsilon_high: float | None
    held_out: float
    assumption_free: float
    in_sample: float
    predicted: float | None
    upper_bound: float
    paper_says: str | None
    paper_section: str | None


def rows(figure: str, points: Iterable[Point], delta: float) -> Iterator[Row]:
    """A row a point that has conclusions."""
    for point in points:
        says, section = claim(figure, point.series, point.x)
        certified = point.epsilons("certified")
        yield Row(
            figure,
            point.panel,
            point.series,
            point.x,
            point.cells[0].runs,
            len(point.found),
            len(point.cells) - len(point.found),
            float(np.mean(certified)),
            min(certified),
            max(certified),
            *point.interval(),
            float(np.mean(point.epsilons("held_out"))),
            float(np.mean(point.epsilons("assumption_free"))),
            float(np.mean(point.epsilons("in_sample"))),
            point.predicted(delta),
            point.upper_bound(),
            says,
            section,
        )


def claim(figure: str, series: str, x: float) -> tuple[str | None, str | None]:
    """(what the paper says, its section) of a series at x; Nones where it says nothing."""
    found = CLAIMS.get((figure, series, x)) or CLAIMS.get((figure, series, None))
    return found or (None, None)


def as_csv(found: Sequence[Row]) -> bytes:
    """The rows, six digits a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in found:
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    return text.getvalue().encode()


def as_text(sweeps: Iterable[Sweep], found: Sequence[Row], delta: float, confidence: float) -> str:
    """The rows by figure and panel, 80 columns wide."""
    lines = [f"lower bounds on epsilon at delta {delta:g}, confidence {confidence:g}", _line(_HEADER)]
    for sweep in sweeps:
        own = [row for row in found if row.figure == sweep.name]
        if own:
            lines += ["-" * 80, f"{sweep.name}: {sweep.title}"[:80]]
        for panel in dict.fromkeys(row.panel for row in own):
            lines += _panel([row for row in own if row.panel == panel], sweep.xlabel)
    return "\n".join([*lines, "-" * 80, _NOTES])


def _panel(own: list[Row], xlabel: str) -> list[str]:
    """A panel's heading and its rows; where x has a name, it ends in x's symbol."""
    uppers = sorted({f"{row.upper_bound:.2f}" for row in own})
    lines = [f"  {own[0].panel}; upper bound {' and '.join(uppers)}"]
    for row in own:
        label = f"{row.series.split(',')[0]}, {xlabel.split()[-1]} = {row.x:g}" if xlabel else row.series
        lines.append(_line((label, *_numbers(row), row.paper_says or "")))
    return lines


def _numbers(row: Row) -> tuple[str, ...]:
    """A row's numbers in short."""
    spread = _range(row.certified_min, row.certified_max) if row.seeds > 1 else "one seed"
    predicted = "" if row.predicted is None else f"{row.predicted:.2f}"
    return f"{row.certified:.2f}", spread, _range(row.epsilon_low, row.epsilon_high), predicted


def _range(low: float | None, high: float | None) -> str:
    """Two ends, of four characters or less but for epsilons of ten thousand; empty where unknown."""
    if low is None or high is None:
        return ""
    return "-".join(f"{value:.1f}" if value < 99.95 else f"{value:.0f}" for value in (low, high))


def _line(cells: Sequence[str]) -> str:
    """Cells at their columns: words to the left, numbers to the right."""
    aligned = [
        cell.ljust(width) if i in (0, len(_WIDTHS) - 1) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return "  ".join(aligned).rstrip()
