"""The landscape's sweep as the store holds it: nothing here solves or simulates."""

from typing import Any, NamedTuple

from matplotlib.figure import Figure

from audit.storage.index import Holdings
from experiments.hidden_state import landscape_cells, landscape_figures
from experiments.hidden_state.claims import CLAIMS
from experiments.hidden_state.landscape_cells import Cell, Exact, Simulated
from experiments.hidden_state.landscape_figures import Claims, Exacts
from experiments.hidden_state.sweep import Landscape
from experiments.plots.points import Spread
from experiments.plots.table import Row, Seeds, claim

SEED, CLIPPING_NORM, THRESHOLD = 0, 1.0, 0.5  # of the sweep; the threshold is C / 2 in units of C


class Kept(NamedTuple):
    """What is there: the cells with exact laws and simulation, whether Algorithm 6 is, and how many of
    the grid's and of Algorithm 6's cells are not."""

    held: Holdings
    cells: list[Cell]
    searched: bool
    missing: int


def kept(held: Holdings, grid: Landscape, delta: float, confidence: float) -> Kept:
    """What the store holds of a grid."""
    every = [
        Cell(sigma, size, grid.steps, delta) for sigma in grid.noise_multipliers for size in grid.batch_sizes
    ]
    cells = [cell for cell in every if _holds(held, grid_settings(cell, grid.runs, confidence))]
    search = landscape_cells.search_cells(delta)
    searched = all(_holds(held, search_settings(cell, grid.runs, confidence)) for cell in search)
    return Kept(held, cells, searched, len(every) - len(cells) + (0 if searched else len(search)))


def grid_settings(cell: Cell, runs: int, confidence: float) -> list[dict[str, Any]]:
    """What the store must hold for a cell of the grid."""
    exact = [landscape_cells.exact_setting(cell, name) for name in landscape_cells.ADVERSARIES]
    return [landscape_cells.simulated_setting(cell, THRESHOLD, runs, SEED, confidence), *exact]


def search_settings(cell: Cell, runs: int, confidence: float) -> list[dict[str, Any]]:
    """What the store must hold for a cell of Algorithm 6."""
    exact = [landscape_cells.exact_at_setting(cell, h) for h in landscape_cells.thresholds(cell)]
    return [landscape_cells.search_setting(cell, runs, SEED, confidence), *exact]


def figures(there: Kept, grid: Landscape, delta: float, confidence: float) -> list[tuple[str, Figure]]:
    """(name, figure) of what is there."""
    drawn: list[tuple[str, Figure]] = []
    if there.cells:
        drawn += landscape_figures.all_figures(
            there.cells, *_results(there, grid.runs, confidence), grid.runs, CLIPPING_NORM
        )
    if there.searched:
        search = (delta, grid.runs, SEED, confidence, CLIPPING_NORM)
        drawn.append(landscape_figures.search_figure(there.held.root, *search))
    return drawn


def rows(there: Kept, name: str, runs: int, confidence: float) -> list[Row]:
    """The table's rows: what the simulated audit bounds at the last step, beside the exact epsilon."""
    if not there.cells:
        return []
    _, claims = _results(there, runs, confidence)
    return [_row(name, cell, runs, *claims[cell]) for cell in there.cells]


def _row(name: str, cell: Cell, runs: int, exact: Exact, simulated: Simulated) -> Row:
    """One cell's row."""
    series, x = f"B = {cell.batch_size}", cell.batch_size
    epsilons = {bound["method"]: bound["epsilon"] for bound in simulated.last}
    return Row(
        figure=name,
        panel=f"sigma = {cell.noise_multiplier:g}",
        series=series,
        x=x,
        seeds=Seeds(runs, found=1, missing=0),
        epsilons={method: Spread(value, value, value) for method, value in epsilons.items()},
        interval=None,
        predicted=exact.epsilon_exact[-1],
        upper_bound=exact.epsilon_upper,
        claim=claim(CLAIMS, name, series, x),
    )


def _results(there: Kept, runs: int, confidence: float) -> tuple[Exacts, Claims]:
    """The cells' results, all of them stored."""
    root = there.held.root
    names = landscape_cells.ADVERSARIES
    exact = {(cell, name): landscape_cells.exact(root, cell, name) for cell in there.cells for name in names}
    simulated = landscape_cells.simulated(root, there.cells, THRESHOLD, runs, SEED, confidence)
    pairs = zip(there.cells, simulated, strict=True)
    return exact, {cell: (exact[cell, "half"], one) for cell, one in pairs}


def _holds(held: Holdings, settings: list[dict[str, Any]]) -> bool:
    """Whether the results of all settings are there."""
    return all(held.holds(setting, landscape_cells.RESULT) for setting in settings)
