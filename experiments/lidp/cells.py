"""Audits of the Gaussian mechanism: as data, in the store, and as cells of a sweep."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.runtime.machine import Progress, cores
from audit.runtime.processes import in_order
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.written import Level
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from experiments.lidp.gaussian_mechanism import GaussianMechanism

# sigma^2 for each of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4).
SIGMA_SQUARED = {1.0: 16.36, 4.0: 1.34}
LIFTED = (
    "lifted"  # the only method here that chooses its threshold on some of the runs that it gets
)
TUNING_SEED = 1000  # of the runs on which the paper's thresholds are chosen
# Seconds on one core, as measured: for each entry of a run's K x K matrix, for each seed, and for each run.
_ENTRY_SECONDS = 2e-8
_SEED_SECONDS = 0.15
_RUN_SECONDS = 3e-5
_WORTH_PROCESSES = 8.0  # seconds from which on it pays to start several processes


class MechanismAudit(NamedTuple):
    """An audit of the Gaussian mechanism, repeated with several seeds.

    Attributes:
      runs: The number n of runs in each world.
      canaries: The number K of canaries in each run.
      dimension: The dimension d.
      epsilon: One of the paper's epsilons, which decides the noise: a key of SIGMA_SQUARED.
      seeds: The number of seeds.
      delta: The delta of the bounds.
      confidence: The confidence of the bounds.
    """

    runs: int
    canaries: int
    dimension: int
    epsilon: float
    seeds: int
    delta: float
    confidence: float

    def setting(self) -> dict[str, Any]:
        """Returns the setting that names the findings in the store."""
        return {"kind": "lidp_gaussian_mechanism", **self._asdict()}

    def mechanism(self) -> "GaussianMechanism":
        """Returns the Gaussian mechanism to simulate."""
        # Imported only here, since it needs SciPy, which listing a sweep's cells does not.
        from experiments.lidp.gaussian_mechanism import GaussianMechanism

        sigma = float(np.sqrt(SIGMA_SQUARED[self.epsilon]))
        return GaussianMechanism(self.runs, self.canaries, self.dimension, sigma)


class MechanismFindings(NamedTuple):
    """The results of an audit of the Gaussian mechanism.

    Attributes:
      epsilons: Lower bounds by method, with an entry for each seed. Methods are `lifted` and, by the order of
        Wilson's intervals, wilson_1, wilson_2 and wilson_4.
      second: The mean of |mu_2 - mu_1^2| over seeds, at order 2's threshold; None for a single canary.
      fourth: The mean of |mu_4 - mu_2^2| over seeds, at order 2's threshold; None for fewer than 4 canaries.
    """

    epsilons: dict[str, list[float]]
    second: float | None
    fourth: float | None


class PlacedAudit(NamedTuple):
    """A point of a figure: its panel ("over n", "over K" or "over d") and its audit."""

    panel: str
    audit: MechanismAudit


def mechanism_cell(place: PlacedAudit) -> Cell:
    """Returns the cell of work that audits the Gaussian mechanism with each seed, and stores the findings."""
    audit = place.audit
    # On two cores. Choosing the thresholds takes as long as a seed, on one core; seeds share both cores.
    matrix_seconds = _ENTRY_SECONDS * audit.runs * audit.canaries**2
    seed_seconds = matrix_seconds + _SEED_SECONDS + _RUN_SECONDS * audit.runs
    seconds = seed_seconds * (1 + audit.seeds / 2)

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether the store holds the audit's findings."""
        return read(held, audit) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        """Opens the audit's store below the folder `out`."""
        return Store(out, audit.setting())

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Audits the mechanism, on all cores if that pays, and stores the findings."""
        processes = cores() if seconds > _WORTH_PROCESSES else 1
        write_answer(store, findings(audit, processes, progress)._asdict())

    return Cell(
        name=f"Gaussian mechanism, n = {audit.runs}, K = {audit.canaries}",
        identity=json.dumps(audit.setting()),
        runs=audit.runs * audit.seeds,
        seconds=seconds,
        is_done=is_done,
        open=open_store,
        do=do,
        request=place,
    )


def read(held: Holdings, audit: MechanismAudit) -> MechanismFindings | None:
    """Returns the stored findings of an audit; None if there are none, or they are damaged."""
    store = held.open(audit.setting())
    values = None if store is None else read_answer(store)
    return None if values is None else MechanismFindings(**values)


def findings(audit: MechanismAudit, processes: int, progress: Progress) -> MechanismFindings:
    """Audits the mechanism with each seed: lower bounds on epsilon by Wilson's intervals and by `lifted`.

    The thresholds of Wilson's intervals, one for each order, are chosen on separate runs. The method `lifted`
    chooses its threshold on a part of its own runs.

    Args:
      audit: The audit.
      processes: The number of processes to use.
      progress: A function that is called with the number of runs when a seed is done.
    """
    from experiments.lidp import gaussian_mechanism

    levels = Level(audit.delta, audit.confidence)
    tuning = gaussian_mechanism.simulate(audit.mechanism(), TUNING_SEED)
    thresholds = gaussian_mechanism.choose_thresholds(tuning, levels)
    epsilons: dict[str, list[float]] = {}
    gaps = []
    audit_seed = partial(_audit_seed, audit, thresholds)
    for epsilon_by_method, seed_gaps in in_order(audit_seed, range(audit.seeds), processes):
        for method, epsilon in epsilon_by_method.items():
            epsilons.setdefault(method, []).append(epsilon)
        gaps.append(seed_gaps)
        progress(audit.runs)
    second, fourth = (
        None if values[0] is None else float(np.mean(values)) for values in zip(*gaps, strict=True)
    )
    return MechanismFindings(epsilons, second, fourth)


def _audit_seed(
    audit: MechanismAudit, thresholds: dict[int, float], seed: int
) -> tuple[dict[str, float], tuple[float | None, float | None]]:
    """Returns epsilon by method from the runs of a seed, and the gaps of moments at order 2's threshold."""
    from audit.methods import lifted
    from experiments.lidp.gaussian_mechanism import moment_gaps, simulate, wilson_epsilon

    levels = Level(audit.delta, audit.confidence)
    design = simulate(audit.mechanism(), seed)
    epsilons = {}
    for order, threshold in thresholds.items():
        epsilons[f"wilson_{order}"] = wilson_epsilon(design, threshold, order, levels)
    epsilons[LIFTED] = lifted.METHODS[LIFTED].bound(design, *levels).epsilon
    # A single canary has no order 2. Its gaps are None at any threshold.
    return epsilons, moment_gaps(design.inserted, thresholds.get(2, thresholds[1]))
