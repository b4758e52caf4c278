"""The settings of an audit of the Gaussian mechanism. Importing this module does not load SciPy."""

import math
from typing import Any, NamedTuple

# sigma^2 for each of the paper's epsilons, by RDP accounting at delta = 1e-5 (Errata L4).
SIGMA_SQUARED = {1.0: 16.36, 4.0: 1.34}


class MechanismAudit(NamedTuple):
    """An audit of the Gaussian mechanism, repeated with several seeds.

    Attributes:
      runs: The number of runs that insert all canaries. The same number of other runs score fresh canaries.
      canaries: The number of canaries K in a run.
      dimension: The dimension d of the release.
      epsilon: The claimed epsilon, a key of SIGMA_SQUARED.
      seeds: The number of seeds. Seeds start at 0.
    """

    runs: int
    canaries: int
    dimension: int
    epsilon: float
    seeds: int
    delta: float
    confidence: float

    def setting(self) -> dict[str, Any]:
        """Returns the values that identify the audit's result in the store."""
        return {"kind": "lidp_gaussian_mechanism", **self._asdict()}

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise for the claimed epsilon."""
        return math.sqrt(SIGMA_SQUARED[self.epsilon])
