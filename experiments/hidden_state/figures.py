"""The kinds of sweeps and how each is drawn from what the store holds."""

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from audit.storage.index import Holdings
from experiments.hidden_state import landscape_cells, landscape_figures, landscape_stored
from experiments.hidden_state import norms as norm_cells
from experiments.hidden_state.sweep import Cell, Landscape, Norms, Sweep
from experiments.plots import audit_panels, estimates, points, table
from experiments.plots.points import Audits, Point
from experiments.plots.table import Row

_MODELS = {"fcnn": "FCNN", "convnet": "ConvNet", "resnet18": "ResNet18"}


class Levels(NamedTuple):
    """At which delta and confidence bounds are drawn."""

    delta: float
    confidence: float


class Drawn(NamedTuple):
    """A sweep's figures by name, how many of its cells are missing, and the table's rows."""

    figures: list[tuple[str, Figure]]
    missing: int
    rows: list[Row]


def draw(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """A sweep's figures of the cells that are there: none where none is."""
    return DRAWERS[sweep.kind](sweep, held, audits, levels)


def _draw_epsilon(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """Lower bounds beside the upper bound and the prediction."""

    def figure(every: list[Point]) -> Figure:
        return estimates.epsilon_figure(sweep.title, sweep.xlabel, every, levels.delta)

    return _draw_points(sweep, audits, levels, figure)


def _draw_trade_off(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """Figure 6a."""

    def figure(every: list[Point]) -> Figure:
        return estimates.trade_off_figure(sweep.title, every)

    return _draw_points(sweep, audits, levels, figure)


def _draw_profile(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """Figure 11."""

    def figure(every: list[Point]) -> Figure:
        return estimates.profile_figure(sweep.title, every, levels.delta)

    return _draw_points(sweep, audits, levels, figure)


def _draw_points(
    sweep: Sweep, audits: Audits, levels: Levels, figure: Callable[[list[Point]], Figure]
) -> Drawn:
    """One figure, if any point has conclusions."""
    every = points.points((cell for cell in sweep.cells if isinstance(cell, Cell)), audits)
    found = [point for point in every if point.found]
    missing = sum(len(point.cells) - len(point.found) for point in every)
    rows = list(table.rows(sweep.name, found, levels.delta))
    return Drawn([(sweep.name, figure(every))] if found else [], missing, rows)


def _draw_norms(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """Figure 8, of the models that are there."""
    cells = [cell for cell in sweep.cells if isinstance(cell, Norms)]
    read = {_MODELS[c.setting.model]: norm_cells.read(held, c.setting, c.runs) for c in cells}
    norms = {model: values for model, values in read.items() if values is not None}
    figures = [(sweep.name, audit_panels.draw_norms(norms, cells[0].setting.clipping_norm))] if norms else []
    return Drawn(figures, len(cells) - len(norms), [])


def _draw_landscape(sweep: Sweep, held: Holdings, audits: Audits, levels: Levels) -> Drawn:
    """Figures 3a, 3b, 6b, 10 and 14 of the cells that are there, and Algorithm 6's."""
    (grid,) = (cell for cell in sweep.cells if isinstance(cell, Landscape))
    study = landscape_cells.study(grid, *levels)
    cells, searches = landscape_stored.cells(held, study), landscape_stored.searches(held, study)
    drawn = landscape_figures.figures(cells, searches, grid.runs, landscape_cells.CLIPPING_NORM)
    rows = landscape_figures.rows(sweep.name, cells, grid.runs)
    return Drawn(list(drawn), landscape_stored.missing(held, study), rows)


DRAWERS: dict[str, Callable[[Sweep, Holdings, Audits, Levels], Drawn]] = {
    "epsilon": _draw_epsilon,
    "trade_off": _draw_trade_off,
    "profile": _draw_profile,
    "norms": _draw_norms,
    "landscape": _draw_landscape,
}
