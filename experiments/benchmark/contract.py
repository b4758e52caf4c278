"""The records of the benchmark's estimators and mechanisms; to add one, add a record."""

import importlib.metadata
import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.calibration.calibration import KnownMechanism, Law, Value
from audit.version import __version__

DELTA = 1e-5
CONFIDENCE = 0.95
MAX_EPSILON = 100.0  # larger epsilons, infinite ones too, are counted as this

# Designs: how many runs and canaries an audit has.
ONE_CANARY = "one canary a run"
SEVERAL = "several canaries a run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

NUM_CANARIES = 16  # of each run, in the design of several canaries a run
_DIMENSION = 100_000  # of the space of directions

# Kinds of estimators: this project's, an installable package's, and a paper's.
OURS = "ours"
PEER = "package"
PAPER = "paper"


class Estimator(NamedTuple):
    """An estimator of epsilon, called as its documentation says.

    Attributes:
      name: the name, which no other estimator has.
      kind: OURS, PEER or PAPER.
      design: the design of the audits that it takes, one of DESIGNS.
      assumption: what it assumes, in the words of its documentation.
      epsilon: (evidence, delta, confidence) -> its lower bound on epsilon. Evidence is `Coins`, or `Fresh` of
        directions. Any exception counts as a refusal.
      assumes: what it assumes, as constants of `audit.calibration`. It is not held to its level on mechanisms
        that break one of these.
      claims_level: whether it claims that the bound holds at the confidence.
      package: the name by which pip installs its package; empty for ours and for papers' formulas.
      cost: the number by which the number of audits is divided; above 1 for slow estimators.
      examine: (evidence, claimed mu, confidence) -> whether its test refutes the claimed trade-off curve;
        None if a claim is refuted by comparing its epsilon with the claimed epsilon.
    """

    name: str
    kind: str
    design: str
    assumption: str
    epsilon: Callable[[Any, float, float], float]
    assumes: frozenset[str] = frozenset()
    claims_level: bool = True
    package: str = ""
    cost: int = 1
    examine: Callable[[Any, float, float], bool] | None = None

    def is_installed(self) -> bool:
        """Returns whether the estimator needs no package, or has it."""
        return bool(self.find_version())

    def find_version(self) -> str:
        """Returns the version of the estimator's package, or of this project if it needs none; else ""."""
        if not self.package:
            return __version__
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def audit(self, evidence: Any, setting: KnownMechanism) -> list[Value]:
        """Returns the estimator's value in one audit, in the form of `Law.audit`: a list of values.

        Epsilon is clipped to between 0 and `MAX_EPSILON`. No exception of an estimator ends the benchmark: it
        counts as a refusal, with epsilon 0.
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
    """A mechanism whose exact epsilon is known.

    Attributes:
      design: the design of its audits, one of DESIGNS.
      name: the name, which no other mechanism has.
      law: the law that draws an audit's evidence. Its truth is the least epsilon at which the mechanism is
        (epsilon, delta)-DP for adding or removing a single canary.
      mu: the law's parameter.
      sizes: the sizes n of the audits in a full run of the benchmark (see `shape`).
      delta: the delta at which the audits bound epsilon.
    """

    design: str
    name: str
    law: Law
    mu: float
    sizes: tuple[int, ...] = (1000,)
    delta: float = DELTA

    def make_known(self, seed: int, n: int, audits: int = 1) -> KnownMechanism:
        """Returns the mechanism with the size, the number and the seed of its audits.

        The evidence depends on the seed, the mechanism's name and n only, so every estimator gets the same.
        """
        # A checksum of the name: unlike Python's hash of a text, it is the same in every process.
        stream = (zlib.crc32(self.name.encode()), n)
        return shape(self.law, self.design, n, self.mu)._replace(
            audits=audits, delta=self.delta, seed=seed, stream=stream
        )


def shape(law: Law, design: str, n: int, mu: float) -> KnownMechanism:
    """Returns a mechanism to audit once with seed 0, with the runs and canaries of a design at size n.

    Args:
      law: the law of the evidence.
      design: one of DESIGNS.
      n: the runs in each world for a single canary a run; the runs for several canaries a run; the canaries
        of the single run for the other designs.
      mu: the law's parameter.
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
