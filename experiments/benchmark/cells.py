"""Measures the cells of the benchmark in processes of their own, and keeps each when it is done."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from audit.calibration.calibration import calibrate
from audit.laws import intervals
from audit.runtime.processes import as_completed
from experiments.benchmark.false_claims import ClaimCell
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record


class Scale(NamedTuple):
    """How much the benchmark measures.

    Attributes:
      audits: the number of audits in a cell, for an estimator of cost 1.
      sizes: the sizes of these audits; empty for each of the mechanism's sizes.
      claim_audits: the number of audits, at each number of runs, that try to refute a claim.
      max_runs: the most training runs with which an audit tries to refute it.
    """

    audits: int
    sizes: tuple[int, ...]
    claim_audits: int = 4
    max_runs: int = 2000


SCALES = {"smoke": Scale(10, (100,)), "full": Scale(1000, (), 40, 20_000)}


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

    def measure(self) -> Record:
        """Runs the cell's audits of a mechanism of known epsilon, and returns their summary.

        The record has the cell's fields, the estimator's version, delta and confidence, and

            truth        the mechanism's true epsilon at delta
            exceeding    the number of audits whose epsilon is above the truth
            low, high    exact 95% limits of the probability that an audit is above the truth
            beyond       the mean excess over the truth, of the audits above it; 0 if there are none
            mean         the mean epsilon over all audits; a refusal counts as 0
            seconds      the processor time of the median audit
            refused      the number of audits for which the estimator gave no value
            why          the first refusal's message; empty if there is none
            broken       the estimator's assumptions that the mechanism breaks; empty if they hold
        """
        estimator = ESTIMATORS[self.estimator]
        setting = MECHANISMS[self.mechanism].make_known(self.seed, self.n, self.audits)
        law = setting.law._replace(audit=estimator.audit)  # the only method that audits
        [row] = calibrate(setting._replace(law=law))
        exceeding = round(row.exceeding * self.audits)
        limits = intervals.clopper_pearson(exceeding, self.audits, 0.95)
        return {
            **self._asdict(),
            "version": estimator.find_version(),
            "delta": setting.delta,
            "confidence": setting.confidence,
            "truth": row.true_epsilon,
            "exceeding": exceeding,
            "low": float(limits.lower),
            "high": float(limits.upper),
            "beyond": row.beyond,
            "mean": row.mean_epsilon,
            "seconds": row.seconds,
            "refused": len(row.refusals),
            "why": "; ".join(row.refusals[:1]),
            "broken": ", ".join(sorted(setting.find_broken(estimator.assumes))),
        }


Cell = AuditedCell | ClaimCell


def list_cells(
    estimators: Sequence[str], mechanisms: Iterable[str], scale: Scale, seed: int
) -> list[AuditedCell]:
    """Returns a cell for each mechanism, each size, and each installed estimator of the mechanism's design.

    A slow estimator has fewer audits, by a factor of its cost.
    """
    cells = []
    for name in mechanisms:
        mechanism = MECHANISMS[name]
        for n in scale.sizes or mechanism.sizes:
            for estimator in map(ESTIMATORS.__getitem__, estimators):
                if estimator.design == mechanism.design and estimator.is_installed():
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


def _name_cell(cell: Cell) -> str:
    """Returns what decides a cell's result, as text, with the version of the estimator's package."""
    return json.dumps([*cell, ESTIMATORS[cell.estimator].find_version()])


def load_measured(cells: Sequence[Cell], journal: Path) -> dict[Cell, Record]:
    """Returns the records of those of the cells that are in the journal, a file with a line of JSON each."""
    found = {}
    lines = journal.read_text().splitlines() if journal.exists() else []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that was cut short
            entry = json.loads(line)
            found[entry["key"]] = entry["values"]
    return {cell: found[_name_cell(cell)] for cell in cells if _name_cell(cell) in found}


def measure_missing(cells: Sequence[Cell], journal: Path, processes: int) -> Iterator[Cell]:
    """Measures the cells that are not in the journal; yields each once it is there.

    Cells of the most expensive estimators come first, so that no process is left with these at the end.
    """
    done = load_measured(cells, journal)
    missing = [cell for cell in cells if cell not in done]
    missing.sort(key=lambda cell: -ESTIMATORS[cell.estimator].cost)
    journal.parent.mkdir(parents=True, exist_ok=True)
    results: Iterable[tuple[Cell, Record]] = ((cell, cell.measure()) for cell in missing)
    if processes > 1:
        results = as_completed(_measure, missing, processes)
    for cell, values in results:
        with journal.open("a") as file:
            # After a line that was cut short, too.
            file.write("\n" + json.dumps({"key": _name_cell(cell), "values": values}))
        yield cell


def _measure(cell: Cell) -> Record:
    """Returns a cell's record; a function with a name, as other processes need it."""
    return cell.measure()
