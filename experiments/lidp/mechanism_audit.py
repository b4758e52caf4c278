"""An audit of the Gaussian mechanism as data."""

import math
from typing import Any, NamedTuple

# sigma^2 for each of the paper's epsilons, which are upper bounds by RDP at delta = 1e-5 (Errata L4).
SIGMA_SQUARED = {1.0: 16.36, 4.0: 1.34}
LIFTED = "lifted"  # chooses its threshold on a part of its runs
TUNING_SEED = 1000  # the runs of this seed choose the thresholds of Wilson's intervals


class MechanismAudit(NamedTuple):
    """An audit of the Gaussian mechanism with n runs in each world and K canaries each, with several seeds.

    `epsilon` is a key of SIGMA_SQUARED, which has the noise.
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
