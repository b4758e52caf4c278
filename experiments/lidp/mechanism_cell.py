"""An audit of the Gaussian mechanism as a cell of a sweep: all its seeds, over the machine's cores."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.machine import cores
from audit.progress import Progress
from audit.statistics import calibration, lifted
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells import answers
from experiments.cells.cell import Cell
from experiments.cells.data import DataSets
from experiments.lidp import audits, protocol
from experiments.lidp.audits import MechanismAudit, MechanismFindings
from experiments.lidp.gaussian_mechanism import simulate

_ENTRY_SECONDS, _SEED_SECONDS, _RUN_SECONDS = (
    2e-8,
    0.15,
    3e-5,
)  # an entry of K x K matrices, a seed, a run
_WORTH_PROCESSES = 8.0  # seconds


class _Seed(NamedTuple):
    """One seed of an audit, at thresholds by order."""

    asked: MechanismAudit
    thresholds: dict[int, float]
    seed: int


def mechanism_cell(asked: MechanismAudit) -> Cell:
    """The cell of an audit."""

    def is_done(held: Holdings, data: DataSets) -> bool:
        return audits.read(held, asked) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        return Store(out, asked.setting())

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        answers.write(store, findings(asked, progress)._asdict())

    name = f"Gaussian mechanism, n = {asked.runs}, K = {asked.canaries}"
    key, runs = json.dumps(asked.setting()), asked.runs * asked.seeds
    return Cell(name, key, runs, _seconds(asked), is_done, open_store, do)


def findings(asked: MechanismAudit, progress: Progress) -> MechanismFindings:
    """Audits all seeds; raises InputError for settings out of range."""
    thresholds = protocol.choose(asked.mechanism(), asked.delta, asked.confidence)
    tasks = [_Seed(asked, thresholds, seed) for seed in range(asked.seeds)]
    found = []
    for one in calibration.in_order(_audit, tasks, cores() if _seconds(asked) > _WORTH_PROCESSES else 1):
        found.append(one)
        progress(asked.runs)
    middle = [one.get(2, one[1]) for one, _ in found]
    return MechanismFindings(
        {
            **{f"wilson_{order}": [one[order].epsilon for one, _ in found] for order in thresholds},
            audits.LIFTED: [epsilon for _, epsilon in found],
        },
        _mean([one.second for one in middle]),
        _mean([one.fourth for one in middle]),
    )


def _audit(task: _Seed) -> tuple[dict[int, protocol.Found], float]:
    """(what each order finds, epsilon of `lifted`) of one seed."""
    asked, levels = task.asked, (task.asked.delta, task.asked.confidence)
    design = simulate(asked.mechanism(), task.seed)
    found = {
        order: protocol.examine(design, threshold, order, *levels)
        for order, threshold in task.thresholds.items()
    }
    return found, lifted.lifted(design, *levels).epsilon


def _mean(values: list[float | None]) -> float | None:
    """The mean over seeds; None for values that are not there."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None


def _seconds(asked: MechanismAudit) -> float:
    """On two cores, about."""
    one = _ENTRY_SECONDS * asked.runs * asked.canaries**2 + _SEED_SECONDS + _RUN_SECONDS * asked.runs
    return one * (asked.seeds + 2) / 2
