"""Audits of the Gaussian mechanism: as data, in the store, and as cells of a sweep."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from audit.runtime.machine import Progress, cores
from audit.runtime.processes import in_order
from audit.storage.store import Store
from audit.written import Level
from experiments.cells.cell import Cell, DataSets, find_answer, write_answer

if TYPE_CHECKING:
    from experiments.lidp.gaussian_mechanism import GaussianMechanism

# sigma^2 for each of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4).
SIGMA_SQUARED = {1.0: 16.36, 4.0: 1.34}
LIFTED = "lifted"  # the only method here that chooses its threshold on some of its own runs
TUNING_SEED = 1000  # of the runs on which the paper's thresholds are chosen
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
        """Returns the setting that names the answer in the store."""
        return {"kind": "lidp_gaussian_mechanism", **self._asdict()}

    def mechanism(self) -> "GaussianMechanism":
        """Returns the Gaussian mechanism to simulate."""
        from experiments.lidp.gaussian_mechanism import GaussianMechanism  # loads SciPy

        sigma = float(np.sqrt(SIGMA_SQUARED[self.epsilon]))
        return GaussianMechanism(self.runs, self.canaries, self.dimension, sigma)


def mechanism_cell(panel: str, audit: MechanismAudit) -> Cell:
    """Returns the cell of work that audits the Gaussian mechanism with each seed, for a panel of a figure."""
    # As measured: choosing the thresholds takes as long as a seed, on one core; two cores share the seeds.
    seed_seconds = 2e-8 * audit.runs * audit.canaries**2 + 0.15 + 3e-5 * audit.runs
    seconds = seed_seconds * (1 + audit.seeds / 2)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Audits the mechanism, on all cores if that pays, and stores the answer."""
        processes = cores() if seconds > _WORTH_PROCESSES else 1
        write_answer(store, find_epsilons(audit, processes, progress))

    return Cell(
        name=f"Gaussian mechanism, n = {audit.runs}, K = {audit.canaries}",
        identity=json.dumps(audit.setting()),
        runs=audit.runs * audit.seeds,
        seconds=seconds,
        is_done=lambda held, data: find_answer(held, audit.setting()) is not None,
        open=lambda out, data: Store(out, audit.setting()),
        do=do,
        request=(panel, audit),
    )


def find_epsilons(audit: MechanismAudit, processes: int, progress: Progress) -> dict[str, Any]:
    """Audits the mechanism with each seed: lower bounds on epsilon by Wilson's intervals and by `lifted`.

    The thresholds of Wilson's intervals, one for each order, are chosen on separate runs.

    Args:
      audit: The audit.
      processes: The number of processes to use.
      progress: A function that is called with the number of runs when a seed is done.

    Returns:
      epsilons: By method, an epsilon for each seed. Methods are `lifted` and, by the order of Wilson's
        intervals, wilson_1, wilson_2 and wilson_4.
      second: The mean of |mu_2 - mu_1^2| over seeds, at order 2's threshold; None for a single canary.
      fourth: The mean of |mu_4 - mu_2^2| over seeds, at order 2's threshold; None for fewer than 4 canaries.
    """
    from experiments.lidp import gaussian_mechanism

    tuning = gaussian_mechanism.simulate(audit.mechanism(), TUNING_SEED)
    levels = Level(audit.delta, audit.confidence)
    thresholds = gaussian_mechanism.choose_thresholds(tuning, levels)
    epsilons: dict[str, list[float]] = {}
    gaps = []
    audit_seed = partial(_audit_seed, audit, thresholds)
    for by_method, seed_gaps in in_order(audit_seed, range(audit.seeds), processes):
        for method, epsilon in by_method.items():
            epsilons.setdefault(method, []).append(epsilon)
        gaps.append(seed_gaps)
        progress(audit.runs)
    answer: dict[str, Any] = {"epsilons": epsilons}
    for name, values in zip(("second", "fourth"), zip(*gaps, strict=True), strict=True):
        answer[name] = None if values[0] is None else float(np.mean(values))
    return answer


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
