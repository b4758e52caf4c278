"""A cell of the benchmark: an estimator's audits of one mechanism, measured once and stored.

Cells are measured in processes of their own and written as soon as they are done: whatever ends the command,
the next command goes on with the cells that are missing.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from audit.calibration.calibration import KnownMechanism, calibrate, draw
from audit.laws import intervals
from audit.runtime.processes import as_completed
from audit.storage import files
from experiments.benchmark import registry
from experiments.benchmark.contract import Estimator, shuffle
from experiments.benchmark.false_claims import ClaimCell, MeasuredClaim
from experiments.benchmark.mechanisms import MECHANISMS

LEAST_AUDITS = 1
_ORDERS = 5  # of one audit's rows, by which the spread is measured
_SLOW_ORDERS = 2  # of an estimator whose cost is above 1


class Scale(NamedTuple):
    """How much is measured.

    Attributes:
      audits: Of a cell.
      n: Of its audits; None means all sizes of the mechanism.
      claim_audits: Of a claim that is to be refuted, at each number of runs.
      most_runs: The most training runs that are tried to refute it.
    """

    audits: int
    n: int | None
    claim_audits: int = 4
    most_runs: int = 2000


SCALES = {"smoke": Scale(10, 100), "full": Scale(1000, None, 40, 20_000)}


class AuditedCell(NamedTuple):
    """What is measured, by names: all that decides the result but the estimator's version."""

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int

    def measure(self) -> "MeasuredCell":
        """Makes the cell's audits, and sums them up."""
        return measure_cell(self)

    def identify(self) -> list[Any]:
        """Returns what names the cell's file.

        The first audit's scores are part of it, so that no cell is read that was measured before its
        mechanism changed.
        """
        return [
            *self,
            registry.find_version(registry.ESTIMATORS[self.estimator]),
            _hash_first_audit(self.mechanism, self.seed, self.n),
        ]

    def restore(self, values: dict[str, Any]) -> "MeasuredCell":
        """Returns the cell as it was measured, by the records as they are now."""
        estimator = registry.ESTIMATORS[self.estimator]
        broken = make_setting(self).find_broken(estimator.assumes)
        measured = MeasuredCell(**values)
        return measured._replace(level=estimator.claims_level, broken=tuple(sorted(broken)))


class MeasuredCell(NamedTuple):
    """What the audits of a cell give.

    Attributes:
      estimator, mechanism, n, audits, seed: As in `AuditedCell`.
      version: Of the estimator's package.
      design: One of `contract.DESIGNS`.
      delta, confidence: At which the audits ask for epsilon.
      truth: The mechanism's true epsilon.
      exceeding: How many audits claim more than the truth.
      low, high: Exact 95% limits of the probability of that.
      beyond: By how much those audits exceed the truth, on average; 0 where none does.
      mean: Of epsilon over all audits; a refusal counts as 0.
      spread: The standard deviation of one audit's epsilon over orders of its runs and canaries.
      seconds: Of a processor, the median audit.
      refused: How many audits gave no value.
      why: The first refusal's message; empty where there is none.
      level: Whether the estimator claims that its bound holds at the confidence.
      broken: The estimator's assumptions that the mechanism breaks.
    """

    estimator: str
    version: str
    mechanism: str
    design: str
    n: int
    audits: int
    seed: int
    delta: float
    confidence: float
    truth: float
    exceeding: int
    low: float
    high: float
    beyond: float
    mean: float
    spread: float
    seconds: float
    refused: int
    why: str
    level: bool
    broken: tuple[str, ...]

    @property
    def exceeding_share(self) -> float:
        """Returns the share of audits that claim more than the truth."""
        return self.exceeding / self.audits

    @property
    def proven_share(self) -> float | None:
        """Returns the mean's share of the truth; None where nothing leaks."""
        if self.truth <= 0:
            return None
        return self.mean / self.truth

    @property
    def is_held_to_level(self) -> bool:
        """Returns whether the estimator has to keep its level in this cell."""
        return self.level and not self.broken

    @property
    def exceeds_level(self) -> bool:
        """Returns whether the exact test at 1% finds more audits above the truth than the level allows."""
        limits = intervals.clopper_pearson(self.exceeding, self.audits, 0.98)  # 1% at either end
        allowed = 1 - self.confidence + 1e-12
        return bool(limits.lower > allowed)


Cell = AuditedCell | ClaimCell


def list_claims(estimators: Iterable[str], scale: Scale, seed: int) -> list[ClaimCell]:
    """Returns the claims that estimators are to refute; those whose package is missing are left out."""
    cells = []
    for name in estimators:
        estimator = registry.ESTIMATORS[name]
        if registry.is_installed(estimator):
            # At least 10 whatever they cost, or as many as the scale has: half of them decide.
            audits = max(scale.claim_audits // estimator.cost, min(scale.claim_audits, 10))
            cells.append(ClaimCell(name, scale.most_runs, audits, seed))
    return cells


def list_cells(
    estimators: Iterable[str], mechanisms: Iterable[str], scale: Scale, seed: int
) -> list[AuditedCell]:
    """Returns the cells of all estimators on all mechanisms of their design.

    Estimators whose package is missing are left out.
    """
    candidates = []
    for name in estimators:
        estimator = registry.ESTIMATORS[name]
        if registry.is_installed(estimator):
            candidates.append(estimator)

    cells = []
    for name in mechanisms:
        mechanism = MECHANISMS[name]
        sizes = mechanism.sizes if scale.n is None else (scale.n,)
        for n in sizes:
            for estimator in candidates:
                if estimator.design == mechanism.design:
                    audits = max(scale.audits // estimator.cost, LEAST_AUDITS)
                    cells.append(AuditedCell(estimator.name, name, n, audits, seed))
    return cells


def measure_cell(cell: AuditedCell) -> MeasuredCell:
    """Makes a cell's audits, and sums them up."""
    estimator = registry.ESTIMATORS[cell.estimator]
    setting = make_setting(cell)
    [row] = calibrate(setting)
    exceeding = round(row.exceeding * cell.audits)
    limits = intervals.clopper_pearson(exceeding, cell.audits, 0.95)
    return MeasuredCell(
        estimator=cell.estimator,
        version=registry.find_version(estimator),
        mechanism=cell.mechanism,
        design=estimator.design,
        n=cell.n,
        audits=cell.audits,
        seed=cell.seed,
        delta=setting.delta,
        confidence=setting.confidence,
        truth=row.true_epsilon,
        exceeding=exceeding,
        low=float(limits.lower),
        high=float(limits.upper),
        beyond=row.beyond,
        mean=row.mean_epsilon,
        spread=_measure_spread(cell, estimator, setting),
        seconds=row.seconds,
        refused=len(row.refusals),
        why=row.refusals[0] if row.refusals else "",
        level=estimator.claims_level,
        broken=tuple(sorted(setting.find_broken(estimator.assumes))),
    )


def make_setting(cell: AuditedCell) -> KnownMechanism:
    """Returns a cell's mechanism and its audits, by the cell's estimator alone."""
    setting = MECHANISMS[cell.mechanism].setting(cell.seed, cell.n, cell.audits)
    estimator = registry.ESTIMATORS[cell.estimator]
    return setting._replace(law=setting.law._replace(audit=estimator.audit))


def _measure_spread(cell: AuditedCell, estimator: Estimator, setting: KnownMechanism) -> float:
    """Returns the standard deviation of the first audit's epsilon over orders of its runs and canaries."""
    evidence = draw(setting, 0)
    rng = np.random.default_rng(cell.seed)
    orders = _SLOW_ORDERS if estimator.cost > 1 else _ORDERS
    epsilons = []
    for _ in range(orders):
        [value] = estimator.audit(shuffle(evidence, rng), setting)
        epsilons.append(value.epsilon)
    return float(np.std(epsilons))


@functools.cache
def _hash_first_audit(mechanism: str, seed: int, n: int) -> str:
    """Returns a hash of the scores of a mechanism's first audit."""
    evidence = draw(MECHANISMS[mechanism].setting(seed, n), 0)
    scores = np.round(evidence[0], 6)
    return hashlib.sha256(scores.tobytes()).hexdigest()


class CellStore(NamedTuple):
    """The folder in which measured cells are stored, a file each."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        """Returns a cell's file, whose name is a hash of what identifies the cell."""
        digest = hashlib.sha256(json.dumps(cell.identify()).encode()).hexdigest()
        return self.folder / f"{digest[:16]}.json"

    def load(self, cell: Cell) -> Any:
        """Returns a cell as it was measured, or None; a damaged file counts as missing."""
        content = files.read(self.path(cell))
        if content is None:
            return None
        try:
            return cell.restore(json.loads(content))
        except (ValueError, TypeError):
            return None

    def save(self, cell: Cell, measured: MeasuredCell | MeasuredClaim) -> None:
        """Writes a cell whole; raises InputError where that can't be done."""
        content = json.dumps(measured._asdict(), indent=1) + "\n"
        files.write_whole(self.path(cell), content.encode())


def load_all(cells: Iterable[Cell], store: CellStore) -> list[Any]:
    """Returns the cells that are stored, as they were measured."""
    stored = [store.load(cell) for cell in cells]
    return [measured for measured in stored if measured is not None]


def find_missing(cells: Iterable[Cell], store: CellStore) -> list[Cell]:
    """Returns the cells that are not stored."""
    return [cell for cell in cells if store.load(cell) is None]


def measure_missing(cells: list[Cell], store: CellStore, processes: int) -> Iterator[Cell]:
    """Measures and stores the missing cells, those that take longest first; yields each when it is stored."""
    missing = find_missing(cells, store)
    slowest_first = sorted(missing, key=lambda cell: -registry.ESTIMATORS[cell.estimator].cost)
    for cell, measured in _measure_all(slowest_first, processes):
        store.save(cell, measured)
        yield cell


def _measure(cell: Cell) -> MeasuredCell | MeasuredClaim:
    return cell.measure()


def _measure_all(
    cells: list[Cell], processes: int
) -> Iterator[tuple[Cell, MeasuredCell | MeasuredClaim]]:
    """Yields each cell with its measurement, as soon as it is done."""
    if processes > 1:
        yield from as_completed(_measure, cells, processes)
        return
    for cell in cells:
        yield cell, cell.measure()
