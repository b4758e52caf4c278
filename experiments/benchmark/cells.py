"""Measures the benchmark's cells in parallel processes, and stores each result in a file."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

from audit.calibration.calibration import calibrate
from audit.laws import intervals
from audit.runtime.processes import as_completed
from audit.storage import files
from experiments.benchmark.false_claims import ClaimCell
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record


class Scale(NamedTuple):
    """The size of the benchmark.

    Attributes:
      audits: The number of audits per cell, for a fast estimator.
      sizes: The numbers of runs or canaries in an audit, or () for each mechanism's default.
      claim_audits: The number of audits per claim at each number of runs.
      max_runs: The largest number of training runs in an audit of a claim.
    """

    audits: int
    sizes: tuple[int, ...]
    claim_audits: int = 4
    max_runs: int = 2000


SCALES = {"smoke": Scale(10, (100,)), "full": Scale(1000, (), 40, 20_000)}


class AuditedCell(NamedTuple):
    """An estimator's audits of a mechanism, each with n runs, or with n canaries in one run."""

    estimator: str
    mechanism: str
    n: int
    audits: int
    seed: int

    def measure(self) -> Record:
        """Runs the cell's audits and returns their summary.

        The record has the cell's fields, the estimator's version, delta and confidence, and

            truth        the mechanism's true epsilon at delta
            exceeding    the number of audits with an epsilon above the truth
            low, high    an exact 95% interval for the probability of an epsilon above the truth
            beyond       the mean of (epsilon - truth) over these audits, or 0 without such audits
            mean         the mean epsilon over all audits; a refusal counts as 0
            seconds      the median processor time of an audit
            refused      the number of audits without a value
            why          the message of the first refusal, or ""
            broken       the estimator's assumptions that the mechanism violates
        """
        estimator = ESTIMATORS[self.estimator]
        mechanism = MECHANISMS[self.mechanism].make_known(self.seed, self.n, self.audits)
        # A law draws and audits scores; here, the estimator audits them.
        law = mechanism.law._replace(audit=estimator.audit)
        [row] = calibrate(mechanism._replace(law=law))  # runs the audits; one row per method
        exceeding = round(row.exceeding * self.audits)
        limits = intervals.clopper_pearson(exceeding, self.audits, 0.95)
        return {
            **self._asdict(),
            "version": estimator.find_version(),
            "delta": mechanism.delta,
            "confidence": mechanism.confidence,
            "truth": row.true_epsilon,
            "exceeding": exceeding,
            "low": float(limits.lower),
            "high": float(limits.upper),
            "beyond": row.beyond,
            "mean": row.mean_epsilon,
            "seconds": row.seconds,
            "refused": len(row.refusals),
            "why": next(iter(row.refusals), ""),
            "broken": ", ".join(sorted(mechanism.find_broken(estimator.assumes))),
        }


Cell = AuditedCell | ClaimCell


def list_cells(
    estimators: Sequence[str], mechanisms: Iterable[str], scale: Scale, seed: int
) -> list[AuditedCell]:
    """Returns a cell for each mechanism, size and installed estimator of the mechanism's design."""
    cells = []
    for name in mechanisms:
        mechanism = MECHANISMS[name]
        for size in scale.sizes or mechanism.sizes:
            for estimator_name in estimators:
                estimator = ESTIMATORS[estimator_name]
                fits = estimator.design == mechanism.design
                if fits and estimator.find_version():  # "" if not installed
                    audits = max(scale.audits // estimator.cost, 1)
                    cells.append(AuditedCell(estimator.name, name, size, audits, seed))
    return cells


def list_claims(estimators: Iterable[str], scale: Scale, seed: int) -> list[ClaimCell]:
    """Returns cells that measure how many runs each estimator needs to refute a false claim.

    We reduce the scale's `claim_audits` for slow estimators, but not below 10.
    """
    cells = []
    fewest = min(scale.claim_audits, 10)
    for name in estimators:
        audits = max(scale.claim_audits // ESTIMATORS[name].cost, fewest)
        cells.append(ClaimCell(name, scale.max_runs, audits, seed))
    return cells


def _find_file(cell: Cell, folder: Path) -> Path:
    """Returns the file for a cell's record, named after a hash of the cell and the estimator's version."""
    identity = json.dumps([*cell, ESTIMATORS[cell.estimator].find_version()])
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"


def load_measured(cells: Sequence[Cell], folder: Path) -> dict[Cell, Record]:
    """Returns the records of the cells that have a file in the folder."""
    found = {}
    for cell in cells:
        content = files.read(_find_file(cell, folder))
        if content is not None:
            found[cell] = json.loads(content)
    return found


def measure_missing(cells: Sequence[Cell], folder: Path, processes: int) -> Iterator[Cell]:
    """Measures the cells that have no file in the folder, and yields each after writing its record.

    Slow cells come first, to keep all processes busy until the end.
    """
    done = load_measured(cells, folder)
    missing = [cell for cell in cells if cell not in done]
    missing.sort(key=lambda cell: -ESTIMATORS[cell.estimator].cost)
    for cell, record in as_completed(methodcaller("measure"), missing, processes):
        files.write_whole(_find_file(cell, folder), json.dumps(record).encode())
        yield cell
