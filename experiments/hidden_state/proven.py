"""What each method proves of the paper's models after so many trainings: fresh directions beside GC-R."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from audit.concluded import of_setting
from audit.errors import InputError
from audit.report.style import BLUE, FADED, FREE, GREEN, PREDICTED, STYLE, UPPER, VERMILION
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.setting import identity
from audit.statistics.conclusion import Conclusion, method_of
from audit.statistics.estimate import ASSUMPTION_FREE, IF_GAUSSIAN
from audit.statistics.exact_null import EXACT_NULL
from audit.statistics.lifted import CLUSTERED, LIFTED, LIFTED_GAUSSIAN
from audit.statistics.method import Method
from experiments.cells.cell import Levels
from experiments.sweeps import points
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Drawn, OwnTable, Sweep

_TRAININGS = (8, 10, 20, 30, 60, 100, 200, 400, 1000, 2000, 5000)  # at which bounds are shown
_LOOKS = {  # of methods: colour, marker, line
    EXACT_NULL: (FREE, "o", "-"),
    ASSUMPTION_FREE: (BLUE, "s", "--"),
    LIFTED: (BLUE, "s", "--"),
    IF_GAUSSIAN: (VERMILION, "^", "-."),
    LIFTED_GAUSSIAN: (VERMILION, "^", "-."),
    CLUSTERED: (GREEN, "v", (0, (5, 1))),
}


class Proven(NamedTuple):
    """What a method proves in a panel: epsilon after each of some numbers of trainings; holds: unless the
    scores refute what it assumes."""

    panel: str
    method: Method
    canaries: int
    runs: tuple[int, ...]
    epsilons: tuple[float, ...]
    holds: bool

    @property
    def assumes(self) -> str:
        """What it assumes, in a word or two."""
        return self.method.assumes.word if self.holds else "REFUTED"


def draw(sweep: Sweep, evidence: Evidence) -> Drawn:
    """The figure and the table of the cells that are there."""
    every = points.points(sweep.audits(), evidence.audits)
    there = [point for point in every if point.found]
    missing = len(every) - len(there)
    if not there:
        return Drawn([], missing, [])
    lines = [line for point in there for line in _proven(point, evidence)]
    figure = proven_figure(sweep.title, there, lines, evidence.levels.delta)
    return Drawn([(sweep.name, figure)], missing, [], _proven_table(sweep, there, lines, evidence.levels))


def _proven(point: Point, evidence: Evidence) -> Iterator[Proven]:
    """The bounds of a point's only cell after each number of trainings that is shown."""
    (cell,), (last,) = point.cells, point.found
    canaries = cell.setting.canaries
    if last.fresh is not None:
        (bound,) = last.bounds
        path, method = last.path, method_of(bound)
        yield Proven(point.panel, method, canaries, tuple(range(1, len(path) + 1)), path, bound.holds)
        return
    found: dict[int, Conclusion] = {cell.runs: last}
    for runs in (runs for runs in _TRAININGS if runs < cell.runs):
        scores = evidence.held.scores(identity(cell.setting), runs)
        if scores is not None:
            with contextlib.suppress(InputError):  # too few runs for its methods
                found[runs] = of_setting(scores, cell.setting, *evidence.levels)
    shown = sorted(found)
    for bound in (bound for bound in last.bounds if bound.method in _LOOKS):
        holds = last.bound(bound.method).holds
        epsilons = tuple(found[runs].bound(bound.method).epsilon for runs in shown)
        yield Proven(point.panel, method_of(bound), canaries, tuple(shown), epsilons, holds)


def proven_figure(title: str, every: Sequence[Point], lines: Sequence[Proven], delta: float) -> Figure:
    """A panel a model and k: what each method proves over the number of trainings."""
    panels = list(dict.fromkeys(point.panel for point in every))
    columns = min(len(panels), 3)
    shape = (-(-len(panels) // columns), columns)
    with plt.rc_context(STYLE):
        size = (max(3.1 * columns, 5.8), 2.7 * shape[0] + 1.3)
        figure, axes = plt.subplots(*shape, figsize=size, squeeze=False)
        for axis, panel in zip(axes.flat, panels, strict=False):
            own = [point for point in every if point.panel == panel]
            predicted = [value for point in own if (value := point.predicted(delta)) is not None]
            for value in predicted[:1]:
                words = "predicted where gradients do not interfere"
                axis.axhline(value, color=PREDICTED, lw=6, alpha=0.55, label=words)
            axis.axhline(own[0].upper_bound(), color=UPPER, ls=":", label="upper bound (accounting)")
            for line in (line for line in lines if line.panel == panel):
                color, marker, dash = _LOOKS[line.method.name]
                marked = marker if line.method.name != EXACT_NULL or len(line.runs) < 20 else ""
                look: dict[str, Any] = {"color": color if line.holds else FADED, "ls": dash, "marker": marked}
                axis.plot(line.runs, line.epsilons, ms=3.5, label=line.method.legend, **look)
            axis.set(xscale="log", title=panel, xlabel="trainings", ylim=(0, None))
        for axis in axes.flat[len(panels) :]:
            axis.axis("off")
        for axis in axes[:, 0]:
            axis.set_ylabel(f"epsilon at delta {delta:g}")
        key = {
            label: handle
            for axis in axes.flat
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.suptitle(title, fontsize=11)
        figure.legend(key.values(), key.keys(), loc="outside lower center", ncols=2, fontsize=8)
        return figure


def _proven_table(sweep: Sweep, every: Sequence[Point], lines: Sequence[Proven], levels: Levels) -> OwnTable:
    """A row a method and number of trainings."""
    uppers = {point.panel: point.upper_bound() for point in every}
    rows = [
        (line, runs, epsilon)
        for line in lines
        for runs, epsilon in zip(line.runs, line.epsilons, strict=True)
        if runs in (1, 3, *_TRAININGS, line.runs[-1])
    ]
    shown = (
        Column(None, lambda row: row[0].method.name, "method", width=18, left=True),
        Column(None, lambda row: row[0].canaries, "canaries", number(","), 8),
        Column(None, lambda row: row[1], "trainings", number(","), 9),
        Column(None, lambda row: at_least(row[2]), "epsilon", width=8),
        Column(None, lambda row: at_most(uppers[row[0].panel]), "upper bound", width=11),
        Column(
            None, lambda row: row[0].method.assumes.word if row[0].holds else "REFUTED", "assumes", left=True
        ),
        Column("panel", lambda row: row[0].panel),
        Column("method", lambda row: row[0].method.name),
        Column("canaries", lambda row: row[0].canaries),
        Column("trainings", lambda row: row[1]),
        Column("epsilon", lambda row: row[2]),
        Column("upper_bound", lambda row: uppers[row[0].panel]),
    )
    title = f"{sweep.title}: epsilon at delta {levels.delta:g}, confidence {levels.confidence:g}"
    made = Table(shown, rows, section=lambda row: row[0].panel, before=(title,), rule=80)
    return OwnTable(made.text(), made.csv())
