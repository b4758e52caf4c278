"""Audits of the Gaussian mechanism as data and as cells of a sweep."""

import json
import math
from typing import Any, NamedTuple

from audit.runtime.machine import Progress, cores
from audit.storage.store import Store
from experiments.cells.cell import Cell, DataSets, find_answer, write_answer

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

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return math.sqrt(SIGMA_SQUARED[self.epsilon])


def mechanism_cell(panel: str, audit: MechanismAudit) -> Cell:
    """Returns the cell that audits the Gaussian mechanism with each seed, for a panel of a figure."""
    # Measured: choosing thresholds takes as long as one seed on one core, and two cores share the seeds.
    seed_seconds = 2e-8 * audit.runs * audit.canaries**2 + 0.15 + 3e-5 * audit.runs
    seconds = seed_seconds * (1 + audit.seeds / 2)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Audits the mechanism, on all cores if it takes long, and stores the answer."""
        from experiments.lidp import gaussian_mechanism  # loads SciPy

        processes = cores() if seconds > _WORTH_PROCESSES else 1
        write_answer(store, gaussian_mechanism.find_epsilons(audit, processes, progress))

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
