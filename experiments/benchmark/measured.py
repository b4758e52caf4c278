"""A cell of the benchmark: an estimator's audits of one mechanism, made once and kept.

Cells are made in processes of their own and written as soon as they are done, so that whatever ends the
command, the next one goes on with the cells that are missing.
"""

import functools
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.processes import as_completed
from audit.statistics import intervals
from audit.storage import files
from experiments.benchmark import contract, registry
from experiments.benchmark.contract import CONFIDENCE, AuditScores, Estimator, KnownTruth
from experiments.benchmark.mechanisms import MECHANISMS

MOST = 100.0  # larger values, infinite ones too, count as this
LEAST_AUDITS = 1
_SLACK = 1e-6  # epsilon above the truth by rounding alone is no excess
_ORDERS = 5, 2  # of one audit's rows; of a slow one's


class Scale(NamedTuple):
    """Audits a cell, and its n; None: all of the mechanism's."""

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
    """What audits of a cell say.

    exceeding: how many claim more than the truth; low, high: exact 95% limits of their probability.
    beyond: by how much those do, on average; 0 where none does. refused: audits in which it gave no value,
    which count as 0; why: what it said first. spread: the standard deviation of one audit's value over
    orders of its rows. seconds: of a processor, an audit. broken: assumptions of its that do not hold here.
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
    def share(self) -> float:
        return self.exceeding / self.audits

    @property
    def proven(self) -> float | None:
        """The mean's share of the truth; None where nothing leaks."""
        return self.mean / self.truth if self.truth > 0 else None

    @property
    def blamed(self) -> bool:
        """Whether it has to keep its level here."""
        return self.level and not self.broken

    @property
    def over(self) -> bool:
        """Whether the exact test at 1% says that it exceeds the truth more often than its level allows."""
        limit = intervals.clopper_pearson(self.exceeding, self.audits, 0.98).lower
        return bool(limit > 1 - self.confidence + 1e-12)


def cells(estimators: Iterable[str], mechanisms: Iterable[str], scale: Scale, seed: int) -> list[AuditedCell]:
    """Every estimator on every mechanism of its design, those left out whose package is missing."""
    there = [name for name in estimators if registry.installed(registry.ESTIMATORS[name])]
    found = []
    for name in mechanisms:
        mechanism = MECHANISMS[name]
        for n in mechanism.sizes if scale.n is None else (scale.n,):
            fitting = (one for one in there if registry.ESTIMATORS[one].design == mechanism.design)
            for one in fitting:
                audits = max(scale.audits // registry.ESTIMATORS[one].cost, LEAST_AUDITS)
                found.append(AuditedCell(one, name, n, audits, seed))
    return found


def measure(cell: AuditedCell) -> MeasuredCell:
    """Makes a cell's audits."""
    estimator, mechanism = registry.ESTIMATORS[cell.estimator], MECHANISMS[cell.mechanism]
    values, seconds, refusals = [], [], []
    for index in range(cell.audits):
        evidence = mechanism.audit(cell.seed, cell.n, index)
        begin = time.process_time()
        value, why = _value(estimator, mechanism, evidence)
        seconds.append(time.process_time() - begin)
        values.append(value)
        refusals += [why] if why else []
    first, rng = mechanism.audit(cell.seed, cell.n, 0), np.random.default_rng(cell.seed)
    number = _ORDERS[estimator.cost > 1]
    orders = [_value(estimator, mechanism, first.shuffled(rng))[0] for _ in range(number)]
    return _summary(cell, np.array(values), float(np.std(orders)), float(np.median(seconds)), refusals)


def _value(estimator: Estimator, mechanism: KnownTruth, evidence: AuditScores) -> tuple[float, str]:
    """(epsilon, why there is none): another's code may raise anything, which ends no benchmark."""
    try:
        value = float(estimator.epsilon(evidence, mechanism.delta, CONFIDENCE))
    except Exception as error:
        return 0.0, f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return (0.0, "not a number") if np.isnan(value) else (min(max(value, 0.0), MOST), "")


def _summary(
    cell: AuditedCell, values: contract.Array, spread: float, seconds: float, refusals: list[str]
) -> MeasuredCell:
    estimator, mechanism = registry.ESTIMATORS[cell.estimator], MECHANISMS[cell.mechanism]
    truth = mechanism.truth(mechanism.delta)
    excess = values[values > truth + _SLACK] - truth
    limits = intervals.clopper_pearson(len(excess), len(values), 0.95)
    return MeasuredCell(
        cell.estimator,
        registry.version(estimator),
        cell.mechanism,
        estimator.design,
        cell.n,
        cell.audits,
        cell.seed,
        mechanism.delta,
        CONFIDENCE,
        truth,
        exceeding=len(excess),
        low=float(limits.lower),
        high=float(limits.upper),
        beyond=float(excess.mean()) if len(excess) else 0.0,
        mean=float(values.mean()),
        spread=spread,
        seconds=seconds,
        refused=len(refusals),
        why=refusals[0] if refusals else "",
        level=estimator.level,
        broken=tuple(sorted(contract.broken(estimator, mechanism, cell.n))),
    )


@functools.cache
def _drawn(mechanism: str, seed: int, n: int) -> str:
    """A hash of the scores of a mechanism's first audit: of a mechanism that is changed nothing is kept."""
    scores = np.round(MECHANISMS[mechanism].audit(seed, n, 0).scores, 6)
    return hashlib.sha256(scores.tobytes()).hexdigest()


class KeptCells(NamedTuple):
    """The folder in which cells are kept, a file each."""

    folder: Path

    def path(self, cell: AuditedCell) -> Path:
        """The file's name is a hash of the cell, the estimator's version and the first audit's scores."""
        version = registry.version(registry.ESTIMATORS[cell.estimator])
        said = json.dumps([*cell, version, _drawn(cell.mechanism, cell.seed, cell.n)])
        return self.folder / f"{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"

    def load(self, cell: AuditedCell) -> MeasuredCell | None:
        """What is kept of a cell; a damaged file counts as missing."""
        content = files.read(self.path(cell))
        try:
            found = None if content is None else MeasuredCell(**json.loads(content))
        except (ValueError, TypeError):
            return None
        if found is None:
            return None
        estimator, mechanism = registry.ESTIMATORS[cell.estimator], MECHANISMS[cell.mechanism]
        broken = contract.broken(estimator, mechanism, cell.n)  # a record's words may have changed since
        return found._replace(level=estimator.level, broken=tuple(sorted(broken)))

    def save(self, cell: AuditedCell, measured: MeasuredCell) -> None:
        """Writes a cell whole; raises InputError where that can't be done."""
        files.write_whole(self.path(cell), (json.dumps(measured._asdict(), indent=1) + "\n").encode())


def missing(wanted: list[AuditedCell], kept: KeptCells, processes: int) -> Iterator[AuditedCell]:
    """Measures and keeps the cells that are not kept yet, those that take longest first."""
    lacking = [cell for cell in wanted if kept.load(cell) is None]
    slowest = sorted(lacking, key=lambda cell: -registry.ESTIMATORS[cell.estimator].cost)
    alone = ((cell, measure(cell)) for cell in slowest)
    for cell, found in alone if processes == 1 else as_completed(measure, slowest, processes):
        kept.save(cell, found)
        yield cell
