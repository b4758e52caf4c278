"""An audit of the Gaussian mechanism as a cell of a sweep: all its seeds, over the machine's cores."""

import json
from pathlib import Path

from audit.machine import cores
from audit.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells import answers
from experiments.cells.cell import Cell
from experiments.cells.data import DataSets
from experiments.lidp import audits
from experiments.lidp.audits import MechanismAudit

_ENTRY_SECONDS, _SEED_SECONDS, _RUN_SECONDS = 2e-8, 0.15, 3e-5  # the first: of K x K matrices
_WORTH_PROCESSES = 8.0  # seconds


def mechanism_cell(asked: MechanismAudit) -> Cell:
    """The cell of an audit."""

    def is_done(held: Holdings, data: DataSets) -> bool:
        return audits.read(held, asked) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        return Store(out, asked.setting())

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from experiments.lidp import mechanism_work  # SciPy, which a finished sweep does not need

        processes = cores() if _seconds(asked) > _WORTH_PROCESSES else 1
        answers.write(store, mechanism_work.findings(asked, processes, progress)._asdict())

    name = f"Gaussian mechanism, n = {asked.runs}, K = {asked.canaries}"
    key, runs = json.dumps(asked.setting()), asked.runs * asked.seeds
    return Cell(name, key, runs, _seconds(asked), is_done, open_store, do)


def _seconds(asked: MechanismAudit) -> float:
    """On two cores, about."""
    one = _ENTRY_SECONDS * asked.runs * asked.canaries**2 + _SEED_SECONDS + _RUN_SECONDS * asked.runs
    return one * (asked.seeds + 2) / 2
