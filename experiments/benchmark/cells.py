"""A cell of the benchmark: an estimator's audits of one mechanism, measured once and stored.

Cells are measured in processes of their own and written as soon as they are done: whatever ends the command,
the next one goes on with the cells that are missing.
"""

import functools
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.laws import intervals
from audit.runtime.processes import as_completed
from audit.storage import files
from experiments.benchmark import contract, registry
from experiments.benchmark.contract import CONFIDENCE, AuditScores, Estimator, KnownTruth
from experiments.benchmark.mechanisms import MECHANISMS

MOST = 100.0  # larger values of epsilon, infinite ones too, count as this
LEAST_AUDITS = 1
_SLACK = 1e-6  # epsilon above the truth by rounding alone is no excess
_ORDERS = 5  # of one audit's rows, by which the spread is measured
_SLOW_ORDERS = 2  # of an estimator whose cost is above 1


class Scale(NamedTuple):
    """Audits of a cell, and their n; None stands for all sizes of the mechanism."""

    audits: int
    n: int | None


SCALES = {"smoke": Scale(10, 100), "full": Scale(1000, None)}


class AuditedCell(NamedTuple):
    """What is measured, by names: all that decides the result but the estimator's version."""

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int


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
        limits = intervals.clopper_pearson(self.exceeding, self.audits, 0.98)
        allowed = 1 - self.confidence + 1e-12
        return bool(limits.lower > allowed)


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
    mechanism = MECHANISMS[cell.mechanism]

    epsilons = []
    seconds = []
    refusals = []
    for index in range(cell.audits):
        audit = mechanism.audit(cell.seed, cell.n, index)
        begin = time.process_time()
        epsilon, refusal = _estimate_epsilon(estimator, mechanism, audit)
        seconds.append(time.process_time() - begin)
        epsilons.append(epsilon)
        if refusal:
            refusals.append(refusal)

    spread = _measure_spread(cell, estimator, mechanism)
    return _summarise(cell, np.array(epsilons), spread, float(np.median(seconds)), refusals)


def _measure_spread(cell: AuditedCell, estimator: Estimator, mechanism: KnownTruth) -> float:
    """Returns the standard deviation of the first audit's epsilon over orders of its runs and canaries."""
    audit = mechanism.audit(cell.seed, cell.n, 0)
    rng = np.random.default_rng(cell.seed)
    orders = _SLOW_ORDERS if estimator.cost > 1 else _ORDERS
    epsilons = []
    for _ in range(orders):
        epsilon, _ = _estimate_epsilon(estimator, mechanism, audit.shuffled(rng))
        epsilons.append(epsilon)
    return float(np.std(epsilons))


def _estimate_epsilon(
    estimator: Estimator, mechanism: KnownTruth, audit: AuditScores
) -> tuple[float, str]:
    """Returns an audit's epsilon, from 0 to `MOST`, and why it was refused; empty where it was not.

    A package's code may raise anything, which must not end the benchmark.
    """
    try:
        epsilon = float(estimator.epsilon(audit, mechanism.delta, CONFIDENCE))
    except Exception as error:
        first_line = f"{type(error).__name__}: {error}".splitlines()[0]
        return 0.0, first_line[:200]
    if np.isnan(epsilon):
        return 0.0, "not a number"
    return min(max(epsilon, 0.0), MOST), ""


def _summarise(
    cell: AuditedCell, epsilons: contract.Array, spread: float, seconds: float, refusals: list[str]
) -> MeasuredCell:
    """Returns what a cell's epsilons come to, beside the truth."""
    estimator = registry.ESTIMATORS[cell.estimator]
    mechanism = MECHANISMS[cell.mechanism]
    truth = mechanism.truth(mechanism.delta)
    excesses = epsilons[epsilons > truth + _SLACK] - truth
    beyond = 0.0
    if len(excesses):
        beyond = float(excesses.mean())
    limits = intervals.clopper_pearson(len(excesses), len(epsilons), 0.95)
    broken = contract.find_broken_assumptions(estimator, mechanism, cell.n)

    return MeasuredCell(
        estimator=cell.estimator,
        version=registry.find_version(estimator),
        mechanism=cell.mechanism,
        design=estimator.design,
        n=cell.n,
        audits=cell.audits,
        seed=cell.seed,
        delta=mechanism.delta,
        confidence=CONFIDENCE,
        truth=truth,
        exceeding=len(excesses),
        low=float(limits.lower),
        high=float(limits.upper),
        beyond=beyond,
        mean=float(epsilons.mean()),
        spread=spread,
        seconds=seconds,
        refused=len(refusals),
        why=refusals[0] if refusals else "",
        level=estimator.level,
        broken=tuple(sorted(broken)),
    )


@functools.cache
def _hash_first_audit(mechanism: str, seed: int, n: int) -> str:
    """Returns a hash of the scores of a mechanism's first audit.

    It is part of a file's name, so that no cell is read that was measured before its mechanism changed.
    """
    audit = MECHANISMS[mechanism].audit(seed, n, 0)
    scores = np.round(audit.scores, 6)
    return hashlib.sha256(scores.tobytes()).hexdigest()


class CellStore(NamedTuple):
    """The folder in which measured cells are stored, a file each."""

    folder: Path

    def path(self, cell: AuditedCell) -> Path:
        """Returns a cell's file.

        Its name is a hash of the cell, the estimator's version and the first audit's scores.
        """
        version = registry.find_version(registry.ESTIMATORS[cell.estimator])
        first_audit = _hash_first_audit(cell.mechanism, cell.seed, cell.n)
        identity = json.dumps([*cell, version, first_audit])
        digest = hashlib.sha256(identity.encode()).hexdigest()
        return self.folder / f"{digest[:16]}.json"

    def load(self, cell: AuditedCell) -> MeasuredCell | None:
        """Returns a cell as it was measured, or None; a damaged file counts as missing."""
        content = files.read(self.path(cell))
        if content is None:
            return None
        try:
            measured = MeasuredCell(**json.loads(content))
        except (ValueError, TypeError):
            return None
        # The records may have changed since.
        estimator = registry.ESTIMATORS[cell.estimator]
        mechanism = MECHANISMS[cell.mechanism]
        broken = contract.find_broken_assumptions(estimator, mechanism, cell.n)
        return measured._replace(level=estimator.level, broken=tuple(sorted(broken)))

    def save(self, cell: AuditedCell, measured: MeasuredCell) -> None:
        """Writes a cell whole; raises InputError where that can't be done."""
        content = json.dumps(measured._asdict(), indent=1) + "\n"
        files.write_whole(self.path(cell), content.encode())


def find_missing(cells: Iterable[AuditedCell], store: CellStore) -> list[AuditedCell]:
    """Returns the cells that are not stored."""
    return [cell for cell in cells if store.load(cell) is None]


def measure_missing(
    cells: list[AuditedCell], store: CellStore, processes: int
) -> Iterator[AuditedCell]:
    """Measures and stores the missing cells, those that take longest first; yields each when it is stored."""
    missing = find_missing(cells, store)
    slowest_first = sorted(missing, key=lambda cell: -registry.ESTIMATORS[cell.estimator].cost)
    for cell, measured in _measure_all(slowest_first, processes):
        store.save(cell, measured)
        yield cell


def _measure_all(
    cells: list[AuditedCell], processes: int
) -> Iterator[tuple[AuditedCell, MeasuredCell]]:
    """Yields each cell with its measurement, as soon as it is done."""
    if processes > 1:
        yield from as_completed(measure_cell, cells, processes)
        return
    for cell in cells:
        yield cell, measure_cell(cell)
