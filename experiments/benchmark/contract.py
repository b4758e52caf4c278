"""The records that describe the benchmark's estimators and mechanisms."""

import importlib.metadata
import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from audit.calibration.calibration import KnownMechanism, Law, Value
from audit.version import __version__

DELTA = 1e-5
CONFIDENCE = 0.95
MAX_EPSILON = 100.0  # larger values, including infinity, count as this

# Designs: the runs and canaries of an audit.
ONE_CANARY = "one canary a run"
SEVERAL = "several canaries a run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

NUM_CANARIES = 16  # per run, in the design SEVERAL
_DIMENSION = 100_000  # of the space of directions

# Kinds of estimators: from this project, from a package, or from a paper.
OURS = "ours"
PEER = "package"
PAPER = "paper"

# (evidence, claimed mu, confidence) -> whether a test refutes the claimed trade-off curve
Examine = Callable[[Any, float, float], bool]


class Estimator(NamedTuple):
    """An estimator of epsilon, called as in its documentation.

    Attributes:
      kind: OURS, PEER or PAPER.
      design: One of DESIGNS.
      assumption: Its assumptions, in the words of its documentation.
      epsilon: (evidence, delta, confidence) -> a lower bound on epsilon. Evidence is `Coins`, or `Fresh` for
        directions. Any exception counts as a refusal.
      assumes: Its assumptions, as constants of `audit.calibration`. Mechanisms that violate them do not count
        against the estimator.
      claims_level: Whether it claims the confidence level.
      package: The name of its package on PyPI, or empty.
      cost: The divisor of the number of audits; above 1 for slow estimators.
      examine: Its test of the claimed trade-off curve. If None, a claim is refuted by a larger epsilon.
    """

    name: str
    kind: str
    design: str
    assumption: str
    epsilon: Callable[[Any, float, float], float]
    assumes: Iterable[str] = ()
    claims_level: bool = True
    package: str = ""
    cost: int = 1
    examine: Examine | None = None

    def is_installed(self) -> bool:
        """Returns whether the estimator's package, if any, is installed."""
        return bool(self.find_version())

    def find_version(self) -> str:
        """Returns the version of the estimator's package or of this project; "" if not installed."""
        if not self.package:
            return __version__
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def audit(self, evidence: Any, setting: KnownMechanism) -> list[Value]:
        """Returns the estimator's value in one audit, as a list for `Law.audit`.

        Epsilon is clipped to [0, MAX_EPSILON]. An exception counts as a refusal with epsilon 0.
        """
        begin = time.process_time()
        epsilon = 0.0
        refusal = ""
        try:
            epsilon = float(self.epsilon(evidence, setting.delta, setting.confidence))
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if np.isnan(epsilon):
            epsilon = 0.0
            refusal = "not a number"
        seconds = time.process_time() - begin
        epsilon = min(max(epsilon, 0.0), MAX_EPSILON)
        return [Value(self.name, epsilon, seconds=seconds, refusal=refusal)]


class BenchmarkedMechanism(NamedTuple):
    """A mechanism with a known exact epsilon.

    Attributes:
      design: One of DESIGNS.
      law: The law of an audit's evidence. Its truth is the smallest epsilon such that the mechanism is
        (epsilon, delta)-DP for adding or removing one canary.
      mu: The law's parameter.
      sizes: The sizes n of the audits at scale full; see `shape`.
    """

    design: str
    name: str
    law: Law
    mu: float
    sizes: tuple[int, ...] = (1000,)
    delta: float = DELTA

    def make_known(self, seed: int, n: int, audits: int = 1) -> KnownMechanism:
        """Returns the mechanism with the seed, size and number of its audits.

        Evidence depends only on the seed, the mechanism's name and n, so all estimators get the same.
        """
        # Unlike Python's hash, a checksum is the same in all processes.
        stream = (zlib.crc32(self.name.encode()), n)
        return shape(self.law, self.design, n, self.mu)._replace(
            audits=audits, delta=self.delta, seed=seed, stream=stream
        )


def shape(law: Law, design: str, n: int, mu: float) -> KnownMechanism:
    """Returns a mechanism with the runs and canaries of one of DESIGNS at size n, for one audit with seed 0.

    n counts runs per world for ONE_CANARY, runs for SEVERAL, and canaries for designs with a single run. `mu`
    is the law's parameter.
    """
    runs = {ONE_CANARY: 2 * n, SEVERAL: n}.get(design, 1)
    canaries = {ONE_CANARY: 1, SEVERAL: NUM_CANARIES}.get(design, n)
    dimension = _DIMENSION if design == DIRECTIONS else 0
    return KnownMechanism(
        law,
        mu,
        runs,
        audits=1,
        delta=DELTA,
        confidence=CONFIDENCE,
        seed=0,
        canaries=canaries,
        dimension=dimension,
    )
