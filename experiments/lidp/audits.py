"""The Gaussian mechanism's audits as data: questions, their names in the store, and answers."""

from typing import Any, NamedTuple

import numpy as np

from audit.storage.index import Holdings
from experiments.cells import answers
from experiments.lidp.gaussian_mechanism import GaussianMechanism

SIGMA_SQUARED = {  # of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4)
    0.5: 58.8, 1.0: 16.36, 1.5: 7.788, 2.0: 4.62, 3.0: 2.23, 4.0: 1.34, 8.0: 0.4066, 16.0: 0.13135,
}  # fmt: skip
LIFTED = "lifted"  # the only method with a threshold from a pilot of the runs that it counts


class MechanismAudit(NamedTuple):
    """n runs a world with K canaries in R^d at one of the paper's epsilons, audited with so many seeds."""

    runs: int
    canaries: int
    dimension: int
    epsilon: float
    seeds: int
    delta: float
    confidence: float

    def setting(self) -> dict[str, Any]:
        """The store's name for it."""
        return {"kind": "lidp_gaussian_mechanism", **self._asdict()}

    def mechanism(self) -> GaussianMechanism:
        """What is simulated."""
        sigma = float(np.sqrt(SIGMA_SQUARED[self.epsilon]))
        return GaussianMechanism(self.runs, self.canaries, self.dimension, sigma)


class Panels(NamedTuple):
    """The audits of a figure's panels: over n with one canary and with sqrt(n), over K, over d."""

    over_n: list[MechanismAudit]
    over_k: list[MechanismAudit]
    over_d: list[MechanismAudit]


class MechanismFindings(NamedTuple):
    """epsilons by method, one a seed: wilson_1, wilson_2, wilson_4 as in the paper, and `lifted`; second and
    fourth: means over seeds of |mu_2 - mu_1^2| and |mu_4 - mu_2^2| at order 2's threshold, None for too few
    canaries."""

    epsilons: dict[str, list[float]]
    second: float | None
    fourth: float | None


def read(held: Holdings, asked: MechanismAudit) -> MechanismFindings | None:
    """The stored findings; None where there are none that are whole."""
    store = held.open(asked.setting())
    values = None if store is None else answers.read(store)
    return None if values is None else MechanismFindings(**values)
