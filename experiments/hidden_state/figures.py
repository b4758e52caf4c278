"""The hidden-state paper's sweeps, drawn from what the store holds; nothing here trains or solves."""

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from audit import concluded
from audit.settings.setting import Setting
from experiments.hidden_state import landscape_cells, landscape_figures, landscape_stored, norms_figure
from experiments.hidden_state import norms as norm_cells
from experiments.hidden_state.claims import CLAIMS
from experiments.hidden_state.landscape_cells import Grid
from experiments.sweeps import estimates, points, table
from experiments.sweeps.points import Evidence, Point
from experiments.sweeps.sweep import Drawn, Sweep
from models.catalogue import task


def draw_epsilon(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Lower bounds beside the upper bound and the prediction."""

    def figure(every: list[Point]) -> Figure:
        return estimates.epsilon_figure(sweep.title, sweep.axis, every, evidence.levels.delta)

    return _draw_points(sweep, evidence, figure)


def draw_trade_off(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 6a."""

    def figure(every: list[Point]) -> Figure:
        tested = [_tested(point) for point in every]
        return estimates.trade_off_figure(sweep.title, tested)

    return _draw_points(sweep, evidence, figure)


def _tested(point: Point) -> Point:
    """The point with the test of the Gaussian curve in each conclusion, and what speaks for one."""
    reason = concluded.gaussian_reason(point.cells[0].setting)
    return point._replace(found=tuple(one.with_curve_test()._replace(reason=reason) for one in point.found))


def draw_profile(sweep: Sweep, evidence: Evidence) -> Drawn:
    """Figure 11."""

    def figure(every: list[Point]) -> Figure:
        return estimates.profile_figure(sweep.title, every, evidence.levels.delta)

    return _draw_points(sweep, evidence, figure)


def draw_norms(sweep: Sweep, evidence: Evidence, asked: Sequence[tuple[Setting, int]]) -> Drawn:
    """Figure 8, of the models that are there of those that are asked for by setting and runs."""
    read = {task(one.model).label: norm_cells.read(evidence.held, one, runs) for one, runs in asked}
    norms = {model: values for model, values in read.items() if values is not None}
    norm = asked[0][0].mechanism.clipping_norm
    figures = [(sweep.name, norms_figure.draw_norms(norms, norm))] if norms else []
    return Drawn(figures, len(asked) - len(norms), [])


def draw_landscape(sweep: Sweep, evidence: Evidence, grid: Grid) -> Drawn:
    """Figures 3a, 3b, 6b, 10 and 14 of the cells that are there, and Algorithm 6's."""
    study, held = landscape_cells.study(grid, *evidence.levels), landscape_stored.with_cells(evidence.held)
    cells, searches = landscape_stored.cells(held, study), landscape_stored.searches(held, study)
    drawn = landscape_figures.figures(cells, searches, grid.runs, landscape_cells.CLIPPING_NORM)
    rows = landscape_figures.rows(sweep.name, cells, grid.runs)
    return Drawn(list(drawn), landscape_stored.missing(held, study), rows)


def _draw_points(sweep: Sweep, evidence: Evidence, figure: Callable[[list[Point]], Figure]) -> Drawn:
    """One figure, if any point has conclusions."""
    every = points.points(sweep.audits(), evidence.audits)
    found = [point for point in every if point.found]
    missing = sum(len(point.cells) - len(point.found) for point in every)
    rows = list(table.rows(sweep.name, found, CLAIMS, evidence.levels.delta))
    return Drawn([(sweep.name, figure(every))] if found else [], missing, rows)
