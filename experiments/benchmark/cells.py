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
from experiments.benchmark.false_claims import ClaimCell, MeasuredClaim, exceeds_level
from experiments.benchmark.mechanisms import MECHANISMS

LEAST_AUDITS = 1
_ORDERS = 5  # random orders of one audit's runs and canaries, over which the spread is measured
_SLOW_ORDERS = 2  # the same for an estimator whose cost is above 1


class Scale(NamedTuple):
    """How much the benchmark measures.

    Attributes:
      audits: The number of audits in a cell, for an estimator of cost 1.
      n: The size of these audits; None for a cell at each of the mechanism's sizes.
      claim_audits: The number of audits, at each number of runs, that try to refute a claim.
      most_runs: The most training runs with which an audit tries to refute it.
    """

    audits: int
    n: int | None
    claim_audits: int = 4
    most_runs: int = 2000


SCALES = {"smoke": Scale(10, 100), "full": Scale(1000, None, 40, 20_000)}


class AuditedCell(NamedTuple):
    """A cell: an estimator's audits of a mechanism.

    Attributes:
      estimator: The estimator's name.
      mechanism: The mechanism's name.
      n: The size of each audit, as in `contract.shape`.
      audits: The number of audits.
      seed: The seed of all scores.
    """

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int

    def measure(self) -> "MeasuredCell":
        """Runs the cell's audits, and returns their summary."""
        return measure_cell(self)

    def identify(self) -> list[Any]:
        """Returns the values that decide the cell's result, from which the name of its file is computed.

        They include the version of the estimator's package and a hash of the first audit's scores. So when
        the package or the mechanism's code changes, the cell gets another file, and no outdated result is
        read.
        """
        return [
            *self,
            registry.find_version(registry.ESTIMATORS[self.estimator]),
            _hash_first_audit(self.mechanism, self.seed, self.n),
        ]

    def restore(self, values: dict[str, Any]) -> "MeasuredCell":
        """Returns the measured cell from the values of its file.

        Whether the estimator claims a level, and which of its assumptions are broken, is taken from the
        present records, not from the file. So a corrected record needs no audit to be run again.
        """
        estimator = registry.ESTIMATORS[self.estimator]
        broken = make_setting(self).find_broken(estimator.assumes)
        measured = MeasuredCell(**values)
        return measured._replace(level=estimator.claims_level, broken=tuple(sorted(broken)))


class MeasuredCell(NamedTuple):
    """The summary of a cell's audits.

    Attributes:
      estimator, mechanism, n, audits, seed: As in `AuditedCell`.
      version: The version of the estimator's package.
      design: The audits' design, one of `contract.DESIGNS`.
      delta, confidence: The delta and the confidence of the lower bounds on epsilon.
      truth: The mechanism's true epsilon at that delta.
      exceeding: The number of audits whose epsilon is above the truth.
      low, high: The exact 95% limits (Clopper-Pearson) of the probability that an audit is above the truth.
      beyond: The mean excess over the truth, of the audits above it; 0 where there are none.
      mean: The mean epsilon over all audits; a refusal counts as 0.
      spread: The standard deviation of the first audit's epsilon over random orders of its runs and canaries.
      seconds: The processor time of the median audit.
      refused: The number of audits for which the estimator gave no value.
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
        """Returns the share of audits whose epsilon is above the truth."""
        return self.exceeding / self.audits

    @property
    def proven_share(self) -> float | None:
        """Returns the mean epsilon as a share of the true epsilon; None where the truth is 0."""
        if self.truth <= 0:
            return None
        return self.mean / self.truth

    @property
    def is_held_to_level(self) -> bool:
        """Returns whether the estimator claims a level, and the mechanism breaks none of its assumptions."""
        return self.level and not self.broken

    def exceeds_level(self, tests: int) -> bool:
        """Returns whether more audits are above the truth than the confidence allows; see `exceeds_level`.

        Args:
          tests: The number of cells that are tested together.
        """
        return exceeds_level(self.exceeding, self.audits, self.confidence, tests)


Cell = AuditedCell | ClaimCell


def list_claims(estimators: Iterable[str], scale: Scale, seed: int) -> list[ClaimCell]:
    """Returns a cell for each installed estimator, in which it is to refute a false claim.

    Args:
      estimators: The estimators' names.
      scale: How much is measured.
      seed: The seed of all scores.
    """
    cells = []
    for name in estimators:
        estimator = registry.ESTIMATORS[name]
        if registry.is_installed(estimator):
            # An expensive estimator has fewer audits, but at least 10 if the scale allows them: fewer do not
            # show whether half of the audits refute a claim.
            audits = max(scale.claim_audits // estimator.cost, min(scale.claim_audits, 10))
            cells.append(ClaimCell(name, scale.most_runs, audits, seed))
    return cells


def list_cells(
    estimators: Iterable[str], mechanisms: Iterable[str], scale: Scale, seed: int
) -> list[AuditedCell]:
    """Returns a cell for each estimator, each mechanism of the estimator's design, and each size.

    The sizes are `scale.n` alone, or the mechanism's own where that is None. Estimators that are not
    installed are left out.

    Args:
      estimators: The estimators' names.
      mechanisms: The mechanisms' names.
      scale: How much is measured.
      seed: The seed of all scores.
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
                    # A slow estimator has fewer audits, by a factor of its cost.
                    audits = max(scale.audits // estimator.cost, LEAST_AUDITS)
                    cells.append(AuditedCell(estimator.name, name, n, audits, seed))
    return cells


def measure_cell(cell: AuditedCell) -> MeasuredCell:
    """Runs a cell's audits of a mechanism of known epsilon, and returns their summary."""
    estimator = registry.ESTIMATORS[cell.estimator]
    setting = make_setting(cell)
    [row] = calibrate(setting)  # a row for each method that audits: the estimator alone
    exceeding = round(row.exceeding * cell.audits)  # a number, where the row has a share
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
    """Returns a cell's mechanism, to be audited as often as the cell says, by the cell's estimator alone."""
    setting = MECHANISMS[cell.mechanism].make_known(cell.seed, cell.n, cell.audits)
    estimator = registry.ESTIMATORS[cell.estimator]
    return setting._replace(law=setting.law._replace(audit=estimator.audit))


def _measure_spread(cell: AuditedCell, estimator: Estimator, setting: KnownMechanism) -> float:
    """Returns how much the first audit's epsilon depends on the order of its runs and canaries.

    It is the standard deviation of epsilon over several random orders, and 0 for an estimator that does not
    depend on the order. Some estimators do: they split the scores, or break ties, by position.

    Args:
      cell: The cell, whose seed decides the random orders.
      estimator: The cell's estimator.
      setting: The cell's mechanism, as it is audited.
    """
    evidence = draw(setting, 0)  # of the first audit
    rng = np.random.default_rng(cell.seed)
    orders = _SLOW_ORDERS if estimator.cost > 1 else _ORDERS
    epsilons = []
    for _ in range(orders):
        [value] = estimator.audit(shuffle(evidence, rng), setting)  # a list of this single value
        epsilons.append(value.epsilon)
    return float(np.std(epsilons))


@functools.cache
def _hash_first_audit(mechanism: str, seed: int, n: int) -> str:
    """Returns a hash of the scores of a mechanism's first audit, rounded to six decimals."""
    evidence = draw(MECHANISMS[mechanism].make_known(seed, n), 0)
    scores = np.round(evidence[0], 6)
    return hashlib.sha256(scores.tobytes()).hexdigest()


class CellStore(NamedTuple):
    """The folder in which measured cells are stored, a file each."""

    folder: Path

    def path(self, cell: Cell) -> Path:
        """Returns the path of a cell's file; its name is a hash of `identify()`."""
        digest = hashlib.sha256(json.dumps(cell.identify()).encode()).hexdigest()
        return self.folder / f"{digest[:16]}.json"

    def load(self, cell: Cell) -> Any:
        """Returns a cell's measurement; None where its file is missing or damaged."""
        content = files.read(self.path(cell))
        if content is None:
            return None
        try:
            return cell.restore(json.loads(content))
        except (ValueError, TypeError):
            return None

    def save(self, cell: Cell, measured: MeasuredCell | MeasuredClaim) -> None:
        """Writes a cell's file at once, whole or not at all; raises InputError where it can't be written."""
        content = json.dumps(measured._asdict(), indent=1) + "\n"
        files.write_whole(self.path(cell), content.encode())


def load_all(cells: Iterable[Cell], store: CellStore) -> list[Any]:
    """Returns the measurements of those of the cells that are stored."""
    stored = [store.load(cell) for cell in cells]
    return [measured for measured in stored if measured is not None]


def find_missing(cells: Iterable[Cell], store: CellStore) -> list[Cell]:
    """Returns those of the cells that are not stored."""
    return [cell for cell in cells if store.load(cell) is None]


def measure_missing(cells: list[Cell], store: CellStore, processes: int) -> Iterator[Cell]:
    """Measures the cells that are not stored yet, and stores them.

    Cells of the most expensive estimators come first, so that no process is left alone with these at the end.

    Args:
      cells: The cells.
      store: Where measured cells are stored.
      processes: The number of processes that measure.

    Yields:
      Each cell once it is stored.
    """
    missing = find_missing(cells, store)
    slowest_first = sorted(missing, key=lambda cell: -registry.ESTIMATORS[cell.estimator].cost)
    for cell, measured in _measure_all(slowest_first, processes):
        store.save(cell, measured)
        yield cell


def _measure(cell: Cell) -> MeasuredCell | MeasuredClaim:
    """Returns a cell's measurement; a function with a name, as other processes need it."""
    return cell.measure()


def _measure_all(
    cells: list[Cell], processes: int
) -> Iterator[tuple[Cell, MeasuredCell | MeasuredClaim]]:
    """Yields each cell with its measurement, as soon as it is measured, in any order."""
    if processes > 1:
        yield from as_completed(_measure, cells, processes)
        return
    for cell in cells:
        yield cell, cell.measure()
