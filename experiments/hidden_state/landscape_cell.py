"""The crafted landscape as one cell of a sweep: all its laws are solved in one pool, under one claim."""

import dataclasses
import json
from pathlib import Path

from audit.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.cell import Cell, Levels
from experiments.cells.data import DataSets
from experiments.hidden_state import landscape_cells, landscape_stored
from experiments.hidden_state.landscape_cells import Grid

_LAW_SECONDS = 0.015  # of the landscape's cells, a step


def landscape_cell(grid: Grid) -> Cell:
    """A grid's exact and simulated cells, and Algorithm 6."""
    study = landscape_cells.study(grid, *Levels())
    marker = {"kind": "landscape_sweep", **dataclasses.asdict(grid)}

    def is_done(held: Holdings, data: DataSets) -> bool:
        return not landscape_stored.missing(landscape_stored.with_cells(held), study)

    def open_store(out: Path, data: DataSets) -> Store:
        return Store(out / landscape_stored.CELLS, marker)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from experiments.hidden_state import landscape_work

        laws = len(study.all_laws())
        out = store.path.parents[len(landscape_stored.CELLS.parts)]
        landscape_work.do(out, study, progress=lambda: progress(grid.runs / laws))

    seconds = _LAW_SECONDS * len(study.cells) * grid.steps
    return Cell("crafted landscape", json.dumps(marker), grid.runs, seconds, is_done, open_store, do)
