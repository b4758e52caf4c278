"""The crafted landscape's study as cells: an audit of each landscape, and searches of thresholds."""

import itertools
import json

from audit.runtime.machine import Progress
from audit.storage.store import Store
from experiments.cells.cell import Cell, DataSets, write_answer
from experiments.hidden_state.landscape import (
    AUDIT,
    SEARCH,
    Grid,
    Process,
    Simulation,
    Study,
    read_answer_of,
)

_STEP_SECONDS = 0.04  # for each step of a landscape, on a core


def list_cells(grid: Grid, simulation: Simulation, delta: float) -> list[Cell]:
    """Returns the cells of a study: an audit of each landscape, then Algorithm 6 on two more (Errata H13).

    Args:
      grid: The landscapes.
      simulation: How all are simulated.
      delta: The delta of every epsilon.
    """
    studies = []
    for sigma, size in itertools.product(grid.noise_multipliers, grid.batch_sizes):
        process = Process(sigma, size, grid.steps)
        studies.append(Study(AUDIT, process, delta, simulation))
    for process in (Process(4.0, 4, 2), Process(1.0, 1, 2)):
        studies.append(Study(SEARCH, process, delta, simulation))
    return [_make_cell(study) for study in studies]


def _make_cell(study: Study) -> Cell:
    """Returns the cell of work that computes and stores a study's result; it needs no data."""
    setting = study.setting()
    process = study.process

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Computes the result and stores it."""
        from experiments.hidden_state import landscape_solve

        write_answer(store, landscape_solve.SOLVERS[study.kind](study))
        progress(study.simulation.runs)

    return Cell(
        name=f"crafted landscape, sigma {process.noise_multiplier:g}, B {process.batch_size}",
        identity=json.dumps(setting),
        runs=study.simulation.runs,
        seconds=_STEP_SECONDS * process.steps,
        is_done=lambda held, data: read_answer_of(held, study) is not None,
        open=lambda out, data: Store(out, setting),
        do=do,
        request=study,
    )
