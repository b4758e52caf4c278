"""What each method proves of the paper's models after so many training runs: fresh directions next to GC-R.

GC-R is the paper's adversary whose canary is a gradient along a random coordinate.
"""

import contextlib
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from audit.conclusions.concluded import conclude_setting
from audit.conclusions.conclusion import method_of
from audit.errors import InputError
from audit.methods.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.methods.exact_null import EXACT_NULL
from audit.methods.level import show_level
from audit.methods.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN
from audit.report.style import BLUE, FADED, FREE, GREEN, PREDICTED, UPPER, VERMILION
from audit.report.table import Table, at_least, at_most, number
from audit.settings.setting import identity
from experiments.sweeps.panels import draw_panels
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.records import Record, field
from experiments.sweeps.sweep import OwnTable, Sweep

# Numbers of training runs at which bounds are shown.
_SHOWN_RUNS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)
_LOOKS = {  # of methods: color, marker, line
    EXACT_NULL: (FREE, "", "-"),
    ASSUMPTION_FREE: (BLUE, "s", "--"),
    LIFTED: (BLUE, "s", "--"),
    IF_GAUSSIAN: (VERMILION, "^", "-."),
    LIFTED_GAUSSIAN: (VERMILION, "^", "-."),
    CLUSTERED: (GREEN, "v", (0, (5, 1))),
}


def draw(sweep: Sweep, every: Sequence[Point], evidence: Evidence) -> tuple[Figure, OwnTable]:
    """Draws what each method proves over the number of training runs, and makes a table of it.

    Args:
      sweep: The sweep, whose title is above figure and table.
      every: A point for each model, k and adversary, with the conclusion of its audit.
      evidence: What the store holds, and the delta and confidence of bounds.
    """
    rows = [row for point in every for row in make_rows(point, evidence)]
    delta = evidence.levels.delta

    def draw_panel(panel: str, axis: Axes) -> None:
        """Draws the limits and the lines of a panel."""
        points = [point for point in every if point.panel == panel]
        predicted = points[-1].predicted(delta)  # of GC-R, which comes last
        if predicted is not None:
            label = "predicted where gradients do not interfere"
            axis.axhline(predicted, color=PREDICTED, lw=6, alpha=0.55, label=label)
        upper_bound = points[0].upper_bound()
        axis.axhline(upper_bound, color=UPPER, ls=":", label="upper bound (accounting)")
        for name, (color, marker, dash) in _LOOKS.items():
            line = [row for row in rows if (row["panel"], row["method"]) == (panel, name)]
            if line:
                trainings = [row["trainings"] for row in line]
                epsilons = [row["epsilon"] for row in line]
                shown = color if line[0]["holds"] else FADED
                look = {"color": shown, "marker": marker, "ls": dash, "label": line[0]["legend"]}
                axis.plot(trainings, epsilons, ms=3.5, **look)
        axis.set(xscale="log", xlabel="training runs", ylim=(0, None))

    panels = {point.panel: partial(draw_panel, point.panel) for point in every}
    label = f"epsilon at delta {show_level(delta)}"
    figure = draw_panels(sweep.title, panels, (3.1, 2.7), ylabel=label)
    return figure, _make_table(f"{sweep.title}: epsilon at {evidence.levels}", rows)


def make_rows(point: Point, evidence: Evidence) -> list[Record]:
    """Returns a row for each method and number of training runs: the lower bound on epsilon after these runs.

    An audit with fresh directions has a bound after every run. Any other audit has those of each method in
    _LOOKS, from its first runs, at the numbers in _SHOWN_RUNS.

    Args:
      point: One audit of a panel, and the conclusion from all its runs.
      evidence: The stored scores, and the delta and confidence of bounds.
    """
    (cell,) = point.cells
    (conclusion,) = point.conclusions
    rows = []
    if conclusion.law_is_known:  # of fresh directions
        bound = conclusion.assumption_free
        lines = [(bound, dict(enumerate(bound.path, 1)))]
    else:
        by_runs = {}
        for runs in _SHOWN_RUNS:
            scores = None
            if runs < cell.runs:
                scores = evidence.held.scores(identity(cell.setting), runs)
            with contextlib.suppress(InputError):  # too few runs for its methods
                if scores is not None:
                    by_runs[runs] = conclude_setting(scores, cell.setting, evidence.levels)
        by_runs[cell.runs] = conclusion
        lines = []
        for bound in conclusion.bounds:
            if bound.method in _LOOKS:
                epsilons = {
                    runs: part.bound(bound.method).epsilon for runs, part in by_runs.items()
                }
                lines.append((bound, epsilons))
    for bound, epsilons in lines:
        method = method_of(bound)
        for runs, epsilon in epsilons.items():
            row = {
                "panel": point.panel,
                "method": method.name,
                "legend": method.legend,
                "canaries": cell.setting.canaries,
                "trainings": runs,
                "epsilon": epsilon,
                "upper_bound": point.upper_bound(),
                "assumes": method.assumes.word if bound.holds else "REFUTED",
                "holds": bound.holds,
            }
            rows.append(row)
    return rows


def _make_table(title: str, rows: Sequence[Record]) -> OwnTable:
    """Makes a table with a row for each method and number of training runs that is shown, by panel."""
    last = {(row["panel"], row["method"]): row["trainings"] for row in rows}
    shown = []
    for row in rows:
        # Only fresh directions have bounds after 1 and 3 runs.
        if row["trainings"] in (1, 3, *_SHOWN_RUNS, last[row["panel"], row["method"]]):
            shown.append(row)
    columns = (
        field("panel"),
        field("method", "method", width=18, left=True),
        field("canaries", "canaries", number(","), width=8),
        field("trainings", "trainings", number(","), width=9),
        field("epsilon", "epsilon", at_least, width=8),
        field("upper_bound", "upper bound", at_most, width=11),
        field("assumes", "assumes", left=True),
    )
    table = Table(columns, shown, section=itemgetter("panel"), before=(title,), rule=80)
    return OwnTable(table.text(), table.csv())
