"""Audits of the Gaussian mechanism: as data, in the store, and as cells of a sweep, which do all seeds of one
over the machine's cores."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.machine import cores
from audit.processes import in_order
from audit.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.cell import Cell, DataSets, Levels, read_answer, write_answer

if TYPE_CHECKING:
    from experiments.lidp.gaussian_mechanism import Found, GaussianMechanism

SIGMA_SQUARED = {  # of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4)
    0.5: 58.8, 1.0: 16.36, 1.5: 7.788, 2.0: 4.62, 3.0: 2.23, 4.0: 1.34, 8.0: 0.4066, 16.0: 0.13135,
}  # fmt: skip
LIFTED = "lifted"  # the only method with a threshold from a pilot of the runs that it counts
TUNING_SEED = 1000  # of the runs on which the paper's thresholds are chosen
_ENTRY_SECONDS, _SEED_SECONDS, _RUN_SECONDS = 2e-8, 0.15, 3e-5  # the first: of K x K matrices
_WORTH_PROCESSES = 8.0  # seconds


class MechanismAudit(NamedTuple):
    """n runs a world with K canaries in R^d at one of the paper's epsilons, audited with so many seeds."""

    runs: int
    canaries: int
    dimension: int
    epsilon: float
    seeds: int
    delta: float
    confidence: float

    def setting(self) -> dict[str, Any]:
        """The store's name for it."""
        return {"kind": "lidp_gaussian_mechanism", **self._asdict()}

    def mechanism(self) -> "GaussianMechanism":
        """What is simulated."""
        from experiments.lidp.gaussian_mechanism import GaussianMechanism  # SciPy, which data do without

        return GaussianMechanism(*self[:3], float(np.sqrt(SIGMA_SQUARED[self.epsilon])))


class MechanismFindings(NamedTuple):
    """epsilons by method, one a seed: wilson_1, wilson_2, wilson_4, `lifted`; second, fourth: mean |mu_2 -
    mu_1^2| and |mu_4 - mu_2^2| at order 2's threshold, None for too few canaries."""

    epsilons: dict[str, list[float]]
    second: float | None
    fourth: float | None


class PlacedAudit(NamedTuple):
    """A point of a figure: its panel ("over n", "over K" or "over d") and its audit."""

    panel: str
    audit: MechanismAudit


def mechanism_cell(place: PlacedAudit) -> Cell:
    """The cell of an audit."""
    audit = place.audit

    def is_done(held: Holdings, data: DataSets) -> bool:
        return read(held, audit) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        return Store(out, audit.setting())

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        processes = cores() if seconds > _WORTH_PROCESSES else 1
        write_answer(store, findings(audit, processes, progress)._asdict())

    one = _ENTRY_SECONDS * audit.runs * audit.canaries**2 + _SEED_SECONDS + _RUN_SECONDS * audit.runs
    seconds = one * (audit.seeds + 2) / 2
    name, key = f"Gaussian mechanism, n = {audit.runs}, K = {audit.canaries}", json.dumps(audit.setting())
    return Cell(name, key, audit.runs * audit.seeds, seconds, is_done, open_store, do, request=place)


def read(held: Holdings, audit: MechanismAudit) -> MechanismFindings | None:
    """The stored findings; None where there are none that are whole."""
    store = held.open(audit.setting())
    values = None if store is None else read_answer(store)
    return None if values is None else MechanismFindings(**values)


def findings(audit: MechanismAudit, processes: int, progress: Progress) -> MechanismFindings:
    """Audits all seeds, over processes; raises InputError for settings out of range."""
    from experiments.lidp import gaussian_mechanism

    tuning = gaussian_mechanism.simulate(audit.mechanism(), TUNING_SEED)
    thresholds = gaussian_mechanism.choose(tuning, audit.delta, audit.confidence)
    found = []
    for one in in_order(_audit, [(audit, thresholds, i) for i in range(audit.seeds)], processes):
        found.append(one)
        progress(audit.runs)
    middle = [by_order.get(2, by_order[1]) for by_order, _ in found]
    epsilons = {f"wilson_{order}": [one[order].epsilon for one, _ in found] for order in thresholds}
    epsilons[LIFTED] = [epsilon for _, epsilon in found]
    moments = [one.second for one in middle], [one.fourth for one in middle]
    return MechanismFindings(epsilons, *map(_mean, moments))


def _audit(task: tuple[MechanismAudit, dict[int, float], int]) -> "tuple[dict[int, Found], float]":
    """(what each order finds, epsilon of `lifted`) of an audit at thresholds by order, for one seed."""
    from audit.statistics import lifted
    from experiments.lidp.gaussian_mechanism import examine, simulate

    audit, thresholds, seed = task
    design, levels = simulate(audit.mechanism(), seed), Levels(audit.delta, audit.confidence)
    found = {order: examine(design, one, order, *levels) for order, one in thresholds.items()}
    return found, lifted.METHODS[lifted.LIFTED].bound(design, *levels).epsilon


def _mean(values: list[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return float(np.mean(there)) if there else None
