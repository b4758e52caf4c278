"""Audits of the Gaussian mechanism, seed by seed."""

from typing import NamedTuple

import numpy as np

from audit.progress import Progress
from audit.statistics import calibration, lifted
from audit.statistics.names import LIFTED
from experiments.lidp import audits, protocol
from experiments.lidp.audits import MechanismAudit, MechanismFindings
from experiments.lidp.gaussian_mechanism import simulate


class _Seed(NamedTuple):
    """One seed of an audit, at thresholds by order."""

    asked: MechanismAudit
    thresholds: dict[int, float]
    seed: int


def findings(asked: MechanismAudit, processes: int, progress: Progress) -> MechanismFindings:
    """Audits all seeds, over processes; raises InputError for settings out of range."""
    thresholds = protocol.choose(asked.mechanism(), asked.delta, asked.confidence)
    tasks = [_Seed(asked, thresholds, seed) for seed in range(asked.seeds)]
    found = []
    for one in calibration.in_order(_audit, tasks, processes):
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
    return found, lifted.METHODS[LIFTED].bound(design, *levels).epsilon


def _mean(values: list[float | None]) -> float | None:
    """The mean over seeds; None for values that are not there."""
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None
