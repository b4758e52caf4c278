"""Measures the cells of the benchmark in processes of their own, and keeps each when it is done."""

import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from audit.calibration.calibration import KnownMechanism, calibrate
from audit.laws import intervals
from experiments.benchmark.false_claims import ClaimCell, MeasuredClaim, exceeds_level
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS


class Scale(NamedTuple):
    """How much the benchmark measures.

    Attributes:
      audits: the number of audits in a cell, for an estimator of cost 1.
      n: the size of these audits; None for a cell at each of the mechanism's sizes.
      claim_audits: the number of audits, at each number of runs, that try to refute a claim.
      max_runs: the most training runs with which an audit tries to refute it.
    """

    audits: int
    n: int | None
    claim_audits: int = 4
    max_runs: int = 2000


SCALES = {"smoke": Scale(10, 100), "full": Scale(1000, None, 40, 20_000)}


class MeasuredCell(NamedTuple):
    """The summary of a cell's audits.

    Attributes:
      estimator, mechanism, n, audits, seed: as in `AuditedCell`.
      version: the version of the estimator's package.
      delta, confidence: the delta and the confidence of the lower bounds on epsilon.
      truth: the mechanism's true epsilon at that delta.
      exceeding: the number of audits whose epsilon is above the truth.
      low, high: the exact 95% limits (Clopper-Pearson) of the probability that an audit is above the truth.
      beyond: the mean excess over the truth, of the audits above it; 0 if there are none.
      mean: the mean epsilon over all audits; a refusal counts as 0.
      seconds: the processor time of the median audit.
      refused: the number of audits for which the estimator gave no value.
      why: the first refusal's message; empty if there is none.
      broken: the estimator's assumptions that the mechanism breaks, as text; empty if they hold.
    """

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int
    version: str
    delta: float
    confidence: float
    truth: float
    exceeding: int
    low: float
    high: float
    beyond: float
    mean: float
    seconds: float
    refused: int
    why: str
    broken: str

    @property
    def exceeding_share(self) -> float:
        """Returns the share of audits whose epsilon is above the truth."""
        return self.exceeding / self.audits

    @property
    def is_held_to_level(self) -> bool:
        """Returns whether the estimator claims a level, and the mechanism breaks none of its assumptions."""
        return ESTIMATORS[self.estimator].claims_level and not self.broken

    def exceeds_level(self, tests: int) -> bool:
        """Returns whether more audits are above the truth than the confidence allows; see `exceeds_level`."""
        return exceeds_level(self.exceeding, self.audits, self.confidence, tests)


class AuditedCell(NamedTuple):
    """A cell: an estimator's audits of a mechanism.

    Attributes:
      estimator, mechanism: the names of both.
      n: the size of each audit, as in `contract.shape`.
      audits: the number of audits.
      seed: the seed of all scores.
    """

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int

    def measure(self) -> MeasuredCell:
        """Runs the cell's audits of a mechanism of known epsilon, and returns their summary."""
        estimator = ESTIMATORS[self.estimator]
        setting = self.make_setting()
        [row] = calibrate(setting)  # the estimator is the only method that audits
        exceeding = round(row.exceeding * self.audits)
        limits = intervals.clopper_pearson(exceeding, self.audits, 0.95)
        return MeasuredCell(
            *self,
            version=estimator.find_version(),
            delta=setting.delta,
            confidence=setting.confidence,
            truth=row.true_epsilon,
            exceeding=exceeding,
            low=float(limits.lower),
            high=float(limits.upper),
            beyond=row.beyond,
            mean=row.mean_epsilon,
            seconds=row.seconds,
            refused=len(row.refusals),
            why="; ".join(row.refusals[:1]),
            broken=", ".join(sorted(setting.find_broken(estimator.assumes))),
        )

    def make_setting(self) -> KnownMechanism:
        """Returns the cell's mechanism, to be audited by the cell's estimator only."""
        setting = MECHANISMS[self.mechanism].make_known(self.seed, self.n, self.audits)
        audit = ESTIMATORS[self.estimator].audit
        return setting._replace(law=setting.law._replace(audit=audit))


Cell = AuditedCell | ClaimCell
Measured = MeasuredCell | MeasuredClaim
_MEASURED: dict[type, type] = {AuditedCell: MeasuredCell, ClaimCell: MeasuredClaim}


def list_cells(
    estimators: Iterable[str], mechanisms: Iterable[str], scale: Scale, seed: int
) -> list[AuditedCell]:
    """Returns a cell for each mechanism, each size, and each installed estimator of the mechanism's design.

    A slow estimator has fewer audits, by a factor of its cost.
    """
    installed = [ESTIMATORS[name] for name in estimators if ESTIMATORS[name].is_installed()]
    cells = []
    for name in mechanisms:
        mechanism = MECHANISMS[name]
        for n in (scale.n,) if scale.n else mechanism.sizes:
            for estimator in installed:
                if estimator.design == mechanism.design:
                    audits = max(scale.audits // estimator.cost, 1)
                    cells.append(AuditedCell(estimator.name, name, n, audits, seed))
    return cells


def list_claims(estimators: Iterable[str], scale: Scale, seed: int) -> list[ClaimCell]:
    """Returns a cell for each of these installed estimators, in which it is to refute a false claim.

    A slow estimator has fewer audits, but at least 10 if the scale has as many: fewer do not show whether
    half of the audits refute a claim.
    """
    cells = []
    for name in estimators:
        audits = max(scale.claim_audits // ESTIMATORS[name].cost, min(scale.claim_audits, 10))
        cells.append(ClaimCell(name, scale.max_runs, audits, seed))
    return cells


class Journal(NamedTuple):
    """The file in which measured cells are kept, a line of JSON each."""

    path: Path

    def load(self) -> dict[str, Any]:
        """Returns the values of the measured cells by their keys; a line that was cut short is left out."""
        found = {}
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                found[record["key"]] = record["values"]
        return found

    def add(self, cell: Cell, measured: Measured) -> None:
        """Appends a measured cell."""
        record = {"key": _name_cell(cell), "values": measured._asdict()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write("\n" + json.dumps(record))  # after a line that was cut short, too


def _name_cell(cell: Cell) -> str:
    """Returns what decides a cell's result, as text, with the version of the estimator's package."""
    return json.dumps([*cell, ESTIMATORS[cell.estimator].find_version()])


def load_measured(cells: Sequence[Cell], journal: Journal) -> dict[Cell, Any]:
    """Returns the measurements of those of the cells that are in the journal."""
    found = journal.load()
    measured = {}
    for cell in cells:
        values = found.get(_name_cell(cell))
        if values is not None:
            measured[cell] = _MEASURED[type(cell)](**values)
    return measured


def measure_missing(cells: Sequence[Cell], journal: Journal, processes: int) -> Iterator[Cell]:
    """Measures the cells that are not in the journal; yields each once it is there.

    Cells of the most expensive estimators come first, so that no process is left with these at the end.
    """
    done = load_measured(cells, journal)
    missing = [cell for cell in cells if cell not in done]
    missing.sort(key=lambda cell: -ESTIMATORS[cell.estimator].cost)
    if processes == 1:
        for cell in missing:
            journal.add(cell, cell.measure())
            yield cell
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends this process, and so the others
    with ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, ignore) as pool:
        futures = {pool.submit(_measure, cell): cell for cell in missing}
        try:
            for future in as_completed(futures):
                journal.add(futures[future], future.result())
                yield futures[future]
        finally:
            pool.shutdown(cancel_futures=True)


def _measure(cell: Cell) -> Measured:
    """Returns a cell's measurement; a function with a name, as other processes need it."""
    return cell.measure()
