"""Audits of the Gaussian mechanism: as data, in the store, and as cells of a sweep.

A cell audits all seeds of an audit, spread over the machine's cores.
"""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.methods.level import Level
from audit.runtime.machine import cores
from audit.runtime.processes import in_order
from audit.runtime.progress import Progress
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.cells.cell import Cell, DataSets, read_answer, write_answer

if TYPE_CHECKING:
    from experiments.lidp.gaussian_mechanism import GaussianMechanism, OrderFindings

# sigma^2 for each of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4).
SIGMA_SQUARED = {
    0.5: 58.8, 1.0: 16.36, 1.5: 7.788, 2.0: 4.62, 3.0: 2.23, 4.0: 1.34, 8.0: 0.4066, 16.0: 0.13135,
}  # fmt: skip
# The only method here that chooses its threshold on some of the runs that it is given.
LIFTED = "lifted"
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
        """Returns the Gaussian mechanism to simulate.

        Its noise has the variance that gives the audit's epsilon by RDP in the paper (SIGMA_SQUARED).
        """
        # Imported only here, since it needs SciPy, which listing a sweep's cells does not.
        from experiments.lidp.gaussian_mechanism import GaussianMechanism

        sigma = float(np.sqrt(SIGMA_SQUARED[self.epsilon]))
        return GaussianMechanism(self.runs, self.canaries, self.dimension, sigma)


class MechanismFindings(NamedTuple):
    """What an audit of the Gaussian mechanism finds.

    The order of Wilson's intervals, 1, 2 or 4, is the highest moment mu_j that they use. mu_j is the
    probability that j canaries of a run are all detected.

    Attributes:
      epsilons: Lower bounds by method, with an entry for each seed. Methods are `lifted`, and wilson_1,
        wilson_2 and wilson_4, named by order.
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


class _SeedFindings(NamedTuple):
    """What an audit with a single seed finds.

    Attributes:
      by_order: What each order of Wilson's intervals finds, at its threshold.
      lifted: The lower bound of the method `lifted`.
    """

    by_order: dict[int, "OrderFindings"]
    lifted: float


def mechanism_cell(place: PlacedAudit) -> Cell:
    """Returns the cell of work that audits the Gaussian mechanism with each seed, and stores the findings."""
    audit = place.audit
    # An estimate of the seconds on two cores. A run draws a matrix with a row and a column for each canary.
    # Choosing the thresholds takes as long as a seed, on a single core; the seeds then share both cores.
    matrix_seconds = _ENTRY_SECONDS * audit.runs * audit.canaries**2
    seed_seconds = matrix_seconds + _SEED_SECONDS + _RUN_SECONDS * audit.runs
    seconds = seed_seconds * (1 + audit.seeds / 2)

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether the store holds the audit's findings. The mechanism has no data set."""
        return read(held, audit) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        """Opens the audit's store below the folder `out`."""
        return Store(out, audit.setting())

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Audits the mechanism, on all cores where that pays, and stores the findings."""
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
    """Returns the stored findings of an audit; None where there are none, or they are damaged."""
    store = held.open(audit.setting())
    if store is None:
        return None
    values = read_answer(store)
    if values is None:
        return None
    return MechanismFindings(**values)


def findings(audit: MechanismAudit, processes: int, progress: Progress) -> MechanismFindings:
    """Audits the mechanism with each seed: lower bounds on epsilon by Wilson's intervals and by `lifted`.

    The order of Wilson's intervals, 1, 2 or 4, is the highest moment mu_j that they use: the probability that
    j canaries of a run are all detected. Their thresholds, one for each order, are chosen on runs that serve
    for nothing else. The method `lifted` chooses its threshold on a part of its own runs.

    Args:
      audit: The audit.
      processes: The number of processes to use.
      progress: A function that is called with the number of runs when a seed is done.

    Returns:
      The epsilons of all seeds by method, and how far the detections of a run's canaries are from
        independent, as a mean over seeds.

    Raises:
      InputError: The audit's values are out of range.
    """
    from experiments.lidp import gaussian_mechanism

    # Thresholds by order. The seed of their runs is none of the audit's.
    tuning = gaussian_mechanism.simulate(audit.mechanism(), TUNING_SEED)
    thresholds = gaussian_mechanism.choose_thresholds(tuning, audit.delta, audit.confidence)

    audit_seed = partial(_audit_seed, audit, thresholds)
    results = []
    for result in in_order(audit_seed, range(audit.seeds), processes):
        results.append(result)
        progress(audit.runs)

    epsilons = {}
    for order in thresholds:
        epsilons[f"wilson_{order}"] = [result.by_order[order].epsilon for result in results]
    epsilons[LIFTED] = [result.lifted for result in results]

    # Differences of moments that are 0 if detections are independent, at order 2's threshold. A single canary
    # has order 1 alone, where both are None.
    moments_order = 2 if 2 in thresholds else 1
    at_order = [result.by_order[moments_order] for result in results]
    second = _mean_of_present([seed_findings.second for seed_findings in at_order])
    fourth = _mean_of_present([seed_findings.fourth for seed_findings in at_order])
    return MechanismFindings(epsilons, second, fourth)


def _audit_seed(audit: MechanismAudit, thresholds: dict[int, float], seed: int) -> _SeedFindings:
    """Audits the mechanism with a single seed, by each order of Wilson's intervals and by `lifted`.

    An order, 1, 2 or 4, is the highest moment of detections that Wilson's intervals use (see `findings`).

    Args:
      audit: The audit.
      thresholds: The threshold of each order; `lifted` chooses its own.
      seed: The seed of the simulated runs.

    Returns:
      What each order finds, and the epsilon of `lifted`.
    """
    from audit.methods import lifted
    from experiments.lidp.gaussian_mechanism import examine_order, simulate

    levels = Level(audit.delta, audit.confidence)
    design = simulate(audit.mechanism(), seed)
    by_order = {}
    for order, threshold in thresholds.items():
        by_order[order] = examine_order(design, threshold, order, *levels)
    bound = lifted.METHODS[lifted.LIFTED].bound(design, *levels)
    return _SeedFindings(by_order, bound.epsilon)


def _mean_of_present(values: list[float | None]) -> float | None:
    """Returns the mean of the values that are not None, or None if all are."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None
