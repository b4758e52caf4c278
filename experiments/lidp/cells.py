"""Audits of the Gaussian mechanism as data and as cells of a sweep."""

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
LIFTED = "lifted"  # chooses its threshold on a part of its runs
TUNING_SEED = 1000  # the runs of this seed choose the thresholds of Wilson's intervals
_WORTH_PROCESSES = 8.0  # audits of more seconds use several processes


class MechanismAudit(NamedTuple):
    """An audit of the Gaussian mechanism, repeated with several seeds.

    Attributes:
      runs: The number n of runs in each world.
      canaries: The number K of canaries in each run.
      dimension: The dimension d.
      epsilon: A key of SIGMA_SQUARED, which has the noise.
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

        sigma = np.sqrt(SIGMA_SQUARED[self.epsilon])
        return GaussianMechanism(self.runs, self.canaries, self.dimension, sigma)


def mechanism_cell(panel: str, audit: MechanismAudit) -> Cell:
    """Returns the cell that audits the Gaussian mechanism with each seed, for a panel of a figure."""
    # Measured: choosing thresholds takes as long as one seed on one core, and two cores share the seeds.
    seed_seconds = 2e-8 * audit.runs * audit.canaries**2 + 0.15 + 3e-5 * audit.runs
    seconds = seed_seconds * (1 + audit.seeds / 2)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Audits the mechanism, on all cores if it takes long, and stores the answer."""
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
    """Audits the mechanism with each seed, by Wilson's intervals and by `lifted`.

    Separate runs choose a threshold for each order of Wilson's intervals.

    Args:
      audit: The audit.
      processes: The number of processes to use.
      progress: Called with the number of runs when a seed is done.

    Returns:
      epsilons: A lower bound on epsilon for each seed, by method: `lifted`, and wilson_1, wilson_2 and
        wilson_4 by the order of Wilson's intervals.
      second, fourth: The means over seeds of `moment_gaps` at order 2's threshold, if defined.
    """
    import pandas as pd  # a second to load

    from experiments.lidp import gaussian_mechanism

    tuning = gaussian_mechanism.simulate(audit.mechanism(), TUNING_SEED)
    levels = Level(audit.delta, audit.confidence)
    thresholds = gaussian_mechanism.choose_thresholds(tuning, levels)
    audit_seed = partial(_audit_seed, audit, thresholds)
    seeds = []
    for by_seed in in_order(audit_seed, range(audit.seeds), processes):
        seeds.append(by_seed)
        progress(audit.runs)
    epsilons, gaps = map(pd.DataFrame, zip(*seeds, strict=True))
    return {"epsilons": epsilons.to_dict("list"), **gaps.mean().to_dict()}


def _audit_seed(
    audit: MechanismAudit, thresholds: dict[int, float], seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns epsilon by method from the runs of a seed, and the gaps of moments at order 2's threshold."""
    from audit.methods import lifted
    from experiments.lidp.gaussian_mechanism import moment_gaps, simulate, wilson_epsilon

    levels = Level(audit.delta, audit.confidence)
    design = simulate(audit.mechanism(), seed)
    epsilons = {}
    for order, threshold in thresholds.items():
        epsilons[f"wilson_{order}"] = wilson_epsilon(design, threshold, order, levels)
    epsilons[LIFTED] = lifted.METHODS[LIFTED].bound(design, *levels).epsilon
    # A single canary has neither order 2 nor gaps.
    return epsilons, moment_gaps(design.inserted, thresholds.get(2, thresholds[1]))
