"""What each method proves of the paper's models after so many training runs: fresh directions beside GC-R.

GC-R is the paper's adversary whose canary is a gradient along a random coordinate.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import Conclusion, method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL
from audit.methods.level import Level
from audit.methods.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN
from audit.methods.method import Method
from audit.report.style import (
    BLUE,
    FADED,
    FREE,
    GREEN,
    PREDICTED,
    UPPER,
    VERMILION,
)
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import identity
from experiments.sweeps.panels import epsilon_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import OwnTable, Sweep

# Numbers of training runs at which bounds are shown.
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)
_MOST_MARKERS = 20  # on a line of fresh directions, which have a bound after every run
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
      panel: The panel.
      method: The method.
      canaries: Canaries in each run.
      runs: Numbers of training runs.
      epsilons: The lower bound on epsilon after each number of runs.
      holds: False where the scores refute what the method assumes.
    """

    panel: str
    method: Method
    canaries: int
    runs: tuple[int, ...]
    epsilons: tuple[float, ...]
    holds: bool


class _Row(NamedTuple):
    """A row of the table: a method's line, and its lower bound after a number of training runs."""

    line: ProvenLine
    runs: int
    epsilon: float


def draw(sweep: Sweep, every: Sequence[Point], evidence: Evidence) -> tuple[Figure, OwnTable]:
    """Draws what each method proves over the number of training runs, and makes a table of it.

    Args:
      sweep: The sweep, whose title is above figure and table.
      every: A point for each model, k and adversary, with the conclusion of its audit.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    lines: list[ProvenLine] = []
    for point in every:
        lines += _compute_lines(point, evidence)
    figure = proven_figure(sweep.title, every, lines, evidence.levels.delta)
    return figure, _make_table(sweep, every, lines, evidence.levels)


def _compute_lines(point: Point, evidence: Evidence) -> Iterator[ProvenLine]:
    """Yields a line for each method: the lower bound on epsilon over an audit's number of training runs.

    An audit with fresh directions has a single line, with a bound after every run. Any other audit has a
    line for each method in _LOOKS, with bounds from its first runs alone, at the numbers in _SHOWN_RUNS, and
    from all of its runs.

    Args:
      point: One audit of a panel, and the conclusion from all its runs.
      evidence: The stored scores, and the delta and confidence of bounds.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    canaries = cell.setting.canaries
    if conclusion.law_is_known:  # of fresh directions
        bound = conclusion.assumption_free
        path = bound.path  # the bound after each run
        runs = tuple(range(1, len(path) + 1))
        yield ProvenLine(point.panel, method_of(bound), canaries, runs, path, bound.holds)
        return

    # The conclusions from the audit's first runs, by the number of these runs.
    conclusions: dict[int, Conclusion] = {cell.runs: conclusion}
    for number_of_runs in _SHOWN_RUNS:
        if number_of_runs >= cell.runs:  # all runs are concluded from already
            continue
        scores = evidence.held.scores(identity(cell.setting), number_of_runs)
        if scores is not None:
            with contextlib.suppress(InputError):  # too few runs for its methods
                conclusions[number_of_runs] = conclude_setting(
                    scores, cell.setting, evidence.levels
                )

    runs = tuple(sorted(conclusions))
    for bound in conclusion.bounds:
        if bound.method in _LOOKS:  # the methods that are drawn
            epsilons = tuple(conclusions[count].bound(bound.method).epsilon for count in runs)
            # Whether the scores of all runs leave the method's assumption standing: `conclusion.bound` knows,
            # while `conclusion.bounds` are as computed, before their assumptions were tested.
            holds = conclusion.bound(bound.method).holds
            yield ProvenLine(point.panel, method_of(bound), canaries, runs, epsilons, holds)


def proven_figure(
    title: str, every: Sequence[Point], lines: Sequence[ProvenLine], delta: float
) -> Figure:
    """Draws a panel for each model and k: what each method proves over the number of training runs.

    Args:
      title: The figure's title.
      every: The points of all panels; each has a conclusion.
      lines: The lines of all panels.
      delta: The delta at which epsilon is drawn.
    """

    def draw_panel(axis: Axes, panel: str) -> None:
        """Draws the limits and the lines of a panel."""
        _draw_limits(axis, [point for point in every if point.panel == panel], delta)
        for line in lines:
            if line.panel == panel:
                _draw_line(axis, line)
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = list(dict.fromkeys(point.panel for point in every))
    return epsilon_panels(title, panels, draw_panel, delta, height=2.7)


def _draw_limits(axis: Axes, panel_points: Sequence[Point], delta: float) -> None:
    """Draws a panel's limits: the accountant's epsilon, and the predicted epsilon if any point has it.

    Any point gives the accountant's epsilon: those of a panel differ in adversary and number of canaries, on
    which it does not depend.
    """
    for point in panel_points:
        predicted = point.predicted(delta)
        if predicted is not None:
            label = "predicted where gradients do not interfere"
            axis.axhline(predicted, color=PREDICTED, lw=6, alpha=0.55, label=label)
            break
    upper = panel_points[0].upper_bound()
    axis.axhline(upper, color=UPPER, ls=":", label="upper bound (accounting)")


def _draw_line(axis: Axes, line: ProvenLine) -> None:
    """Draws what a method proves over the number of training runs.

    The line is faded if the scores refute what the method assumes. The line of fresh directions has a bound
    after every run. With _MOST_MARKERS runs or more it has no markers, which would run together.
    """
    color, marker, dash = _LOOKS[line.method.name]
    if line.method.name == EXACT_NULL and len(line.runs) >= _MOST_MARKERS:
        marker = ""
    if not line.holds:
        color = FADED
    look: dict[str, Any] = {"color": color, "ls": dash, "marker": marker}
    axis.plot(line.runs, line.epsilons, ms=3.5, label=line.method.legend, **look)


def _make_table(
    sweep: Sweep, every: Sequence[Point], lines: Sequence[ProvenLine], levels: Level
) -> OwnTable:
    """Makes a table with a row for each method and number of training runs, in a section for each panel.

    Args:
      sweep: The sweep, whose title is above the table.
      every: The points of all panels, which have the accountant's epsilon.
      lines: The lines of all panels.
      levels: The delta of epsilon, and the confidence.
    """
    upper_bounds = {point.panel: point.upper_bound() for point in every}
    rows = []
    for line in lines:
        # Only fresh directions have bounds after 1 and 3 runs. The last number is that of all runs.
        shown_runs = (1, 3, *_SHOWN_RUNS, line.runs[-1])
        for runs, epsilon in zip(line.runs, line.epsilons, strict=True):
            if runs in shown_runs:
                rows.append(_Row(line, runs, epsilon))

    # A column with a key is in the CSV, a column with a heading is in the text.
    columns = (
        Column("panel", lambda row: row.line.panel),
        Column("method", lambda row: row.line.method.name, "method", width=18, left=True),
        Column("canaries", lambda row: row.line.canaries, "canaries", number(","), 8),
        Column("trainings", lambda row: row.runs, "trainings", number(","), 9),
        Column("epsilon", lambda row: row.epsilon, "epsilon", at_least, 8),
        Column("upper_bound", lambda row: upper_bounds[row.line.panel], "upper bound", at_most, 11),
        Column(None, _format_assumption, "assumes", left=True),
    )
    title = f"{sweep.title}: epsilon at {levels}"
    table = Table(columns, rows, section=lambda row: row.line.panel, before=(title,), rule=80)
    return OwnTable(table.text(), table.csv())


def _format_assumption(row: _Row) -> str:
    """Returns in a word or two what the row's method assumes; "REFUTED" where the scores refute it."""
    if row.line.holds:
        return row.line.method.assumes.word
    return "REFUTED"
