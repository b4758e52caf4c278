"""What each method proves of the paper's models after so many training runs: fresh directions next to GC-R.

GC-R is the paper's adversary whose canary is a gradient along a random coordinate.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL
from audit.methods.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN
from audit.methods.method import Method
from audit.report.style import BLUE, FADED, FREE, GREEN, PREDICTED, UPPER, VERMILION
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import identity
from experiments.sweeps.panels import epsilon_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import OwnTable, Sweep

# Numbers of training runs at which bounds are shown.
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)
_MAX_MARKERS = 20  # on a line of fresh directions, which have a bound after every run
_LOOKS = {  # of methods: color, marker, line
    EXACT_NULL: (FREE, "o", "-"),
    ASSUMPTION_FREE: (BLUE, "s", "--"),
    LIFTED: (BLUE, "s", "--"),
    IF_GAUSSIAN: (VERMILION, "^", "-."),
    LIFTED_GAUSSIAN: (VERMILION, "^", "-."),
    CLUSTERED: (GREEN, "v", (0, (5, 1))),
}


class ProvenLine(NamedTuple):
    """What a method proves in a panel, after each of some numbers of training runs.

    Attributes:
      point: The audit.
      method: The method.
      epsilons: The lower bound on epsilon by the number of training runs.
      holds: False where the scores refute what the method assumes.
    """

    point: Point
    method: Method
    epsilons: dict[int, float]
    holds: bool


def draw(sweep: Sweep, every: Sequence[Point], evidence: Evidence) -> tuple[Figure, OwnTable]:
    """Draws what each method proves over the number of training runs, and makes a table of it.

    Args:
      sweep: The sweep, whose title is above figure and table.
      every: A point for each model, k and adversary, with the conclusion of its audit.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    lines = [line for point in every for line in compute_lines(point, evidence)]
    delta = evidence.levels.delta

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws the limits and the lines of a panel."""
        panel_points = [point for point in every if point.panel == panel]
        predictions = [point.predicted(delta) for point in panel_points]
        for predicted in [epsilon for epsilon in predictions if epsilon is not None][:1]:
            label = "predicted where gradients do not interfere"
            axis.axhline(predicted, color=PREDICTED, lw=6, alpha=0.55, label=label)
        upper = panel_points[0].upper_bound()
        axis.axhline(upper, color=UPPER, ls=":", label="upper bound (accounting)")
        for line in lines:
            if line.point.panel == panel:
                _draw_line(axis, line)
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = list(dict.fromkeys(point.panel for point in every))
    figure = epsilon_panels(sweep.title, panels, draw_panel, delta, height=2.7)
    title = f"{sweep.title}: epsilon at {evidence.levels}"
    return figure, _make_table(title, lines)


def compute_lines(point: Point, evidence: Evidence) -> Iterator[ProvenLine]:
    """Yields a line for each method: the lower bound on epsilon over an audit's number of training runs.

    An audit with fresh directions has a single line, with a bound after every run. Any other audit has a
    line for each method in _LOOKS, with bounds from its first runs, at the numbers in _SHOWN_RUNS.

    Args:
      point: One audit of a panel, and the conclusion from all its runs.
      evidence: The stored scores, and the delta and confidence of bounds.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    if conclusion.law_is_known:  # of fresh directions
        bound = conclusion.assumption_free
        yield ProvenLine(point, method_of(bound), dict(enumerate(bound.path, 1)), bound.holds)
        return

    by_runs = {}
    for runs in _SHOWN_RUNS:
        if runs < cell.runs:
            scores = evidence.held.scores(identity(cell.setting), runs)
            with contextlib.suppress(InputError):  # too few runs for its methods
                if scores is not None:
                    by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
    by_runs[cell.runs] = conclusion
    for name in [bound.method for bound in conclusion.bounds if bound.method in _LOOKS]:
        epsilons = {runs: part.bound(name).epsilon for runs, part in by_runs.items()}
        bound = conclusion.bound(name)
        yield ProvenLine(point, method_of(bound), epsilons, bound.holds)


def _draw_line(axis: Axes, line: ProvenLine) -> None:
    """Draws what a method proves, faded if the scores refute what it assumes; many markers are left out."""
    color, marker, dash = _LOOKS[line.method.name]
    if line.method.name == EXACT_NULL and len(line.epsilons) >= _MAX_MARKERS:
        marker = ""
    if not line.holds:
        color = FADED
    look: dict[str, Any] = {"color": color, "ls": dash, "marker": marker}
    axis.plot(*zip(*line.epsilons.items(), strict=True), ms=3.5, label=line.method.legend, **look)


def _make_table(title: str, lines: Sequence[ProvenLine]) -> OwnTable:
    """Makes a table with a row (line, runs) for each method and number of training runs, by panel."""
    rows = []
    for line in lines:
        shown = (
            1,
            3,
            *_SHOWN_RUNS,
            max(line.epsilons),
        )  # only fresh directions have bounds after 1 and 3
        rows += [(line, runs) for runs in line.epsilons if runs in shown]

    def describe_assumption(row: tuple[ProvenLine, int]) -> str:
        """Returns what the row's method assumes, in a word or two; "REFUTED" if the scores refute it."""
        return row[0].method.assumes.word if row[0].holds else "REFUTED"

    def count_canaries(row: tuple[ProvenLine, int]) -> int:
        """Returns the number of canaries in each run."""
        return row[0].point.cells[0].setting.canaries

    # A column with a key is in the CSV, a column with a heading is in the text.
    columns = (
        Column("panel", lambda row: row[0].point.panel),
        Column("method", lambda row: row[0].method.name, "method", width=18, left=True),
        Column("canaries", count_canaries, "canaries", number(","), 8),
        Column("trainings", lambda row: row[1], "trainings", number(","), 9),
        Column("epsilon", lambda row: row[0].epsilons[row[1]], "epsilon", at_least, 8),
        Column("upper_bound", lambda row: row[0].point.upper_bound(), "upper bound", at_most, 11),
        Column(None, describe_assumption, "assumes", left=True),
    )
    table = Table(columns, rows, section=columns[0].value, before=(title,), rule=80)
    return OwnTable(table.text(), table.csv())
