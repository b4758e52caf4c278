"""The crafted landscape's study as cells: an audit of each landscape, and searches of thresholds."""

import itertools
import json
from pathlib import Path

from audit.runtime.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.cell import Cell, DataSets, write_answer
from experiments.hidden_state.landscape import (
    Grid,
    Landscape,
    LandscapeAudit,
    Simulation,
    ThresholdSearch,
    read,
)

_STEP_SECONDS = 0.04  # for each step of a landscape, on a core


def list_cells(
    grid: Grid, simulation: Simulation, delta: float, threshold: float = 0.5
) -> list[Cell]:
    """Returns the cells of a study: an audit of each landscape, then Algorithm 6 on two more (Errata H13).

    Args:
      grid: The landscapes.
      simulation: How all are simulated.
      delta: The delta of every epsilon.
      threshold: The threshold of the simulated audits, in units of C; the paper's is 1/2.
    """
    cells = []
    for sigma, size in itertools.product(grid.noise_multipliers, grid.batch_sizes):
        landscape = Landscape(sigma, size, grid.steps, delta)
        cells.append(_make_cell(LandscapeAudit(landscape, threshold, simulation)))
    for sigma, size in ((4.0, 4), (1.0, 1)):
        cells.append(_make_cell(ThresholdSearch(Landscape(sigma, size, 2, delta), simulation)))
    return cells


def _make_cell(request: LandscapeAudit | ThresholdSearch) -> Cell:
    """Returns the cell of work that computes and stores a request's result."""
    setting = request.setting()
    landscape = request.landscape

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether the result is stored; no data are needed."""
        return read(held, request) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        """Returns the result's store."""
        return Store(out, setting)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Computes the result and stores it."""
        from experiments.hidden_state import landscape_solve

        if isinstance(request, ThresholdSearch):
            write_answer(store, landscape_solve.search(request))
        else:
            write_answer(store, landscape_solve.audit(request))
        progress(request.simulation.runs)

    return Cell(
        name=f"crafted landscape, sigma {landscape.noise_multiplier:g}, B {landscape.batch_size}",
        identity=json.dumps(setting),
        runs=request.simulation.runs,
        seconds=_STEP_SECONDS * landscape.steps,
        is_done=is_done,
        open=open_store,
        do=do,
        request=request,
    )
