"""Records of the benchmark's estimators and mechanisms."""

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
MAX_EPSILON = 100.0  # larger values are clipped

# The designs differ in the number of runs and canaries per audit.
ONE_CANARY = "one canary per run"
SEVERAL = "several canaries per run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

NUM_CANARIES = 16  # per run, in design SEVERAL
_DIMENSION = 100_000

# The kinds of estimators: from this project, from a package, or from a paper.
OURS = "ours"
PEER = "package"
PAPER = "paper"


class Estimator(NamedTuple):
    """An estimator of epsilon, called as its documentation describes.

    Attributes:
      name: Its name in tables.
      kind: OURS, PEER or PAPER.
      design: One of DESIGNS.
      assumption: Its assumptions, in the words of its documentation.
      epsilon: (evidence, delta, confidence) -> a lower bound on epsilon. For directions, the evidence
        consists of cosines (`Fresh`); for other designs, of scores and presence bits (`Coins`). The function
        may raise any exception to reject its evidence.
      assumes: Its assumptions, as constants from `audit.calibration`. Mechanisms that violate any of them do
        not count against it.
      claims_level: True if it claims that epsilon is a bound with the given confidence.
      package: The name of its package on PyPI, or "" if it needs no package.
      cost: The factor by which it is slower than a fast estimator. Its number of audits is divided by `cost`.
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

    def find_version(self) -> str:
        """Returns the version of its package, or of this project; "" if its package is not installed."""
        if not self.package:
            return __version__
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    def audit(self, evidence: Any, setting: KnownMechanism) -> list[Value]:
        """Returns the estimator's epsilon for an audit's evidence, clipped to [0, MAX_EPSILON].

        `Law.audit` requires a list, here with a single value. If the estimator raises an exception or returns
        NaN, `refusal` gives the reason.
        """
        begin = time.process_time()
        epsilon = 0.0
        refusal = ""
        try:
            epsilon = float(self.epsilon(evidence, setting.delta, setting.confidence))
        except Exception as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            refusal = first_line[:200]  # fits in a table
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
      name: Its name in tables, also used to seed the evidence.
      law: Draws the evidence for an audit. Its `truth` is the smallest epsilon for which the mechanism is
        (epsilon, delta)-DP when one canary is added or removed.
      mu: The law's parameter, such as mu for a mu-GDP mechanism.
      sizes: The audit sizes at the `full` scale; see `make_known`.
      delta: The delta of the bounds.
    """

    design: str
    name: str
    law: Law
    mu: float
    sizes: tuple[int, ...] = (1000,)
    delta: float = DELTA

    def make_known(self, seed: int, n: int, audits: int = 1) -> KnownMechanism:
        """Returns the mechanism for `audits` audits of size n.

        `n` counts runs per world (with and without the canary) for ONE_CANARY, runs for SEVERAL, and canaries
        for designs with a single run. All estimators get the same evidence, which depends only on the seed,
        the mechanism's name and n.
        """
        runs = 1
        canaries = n
        if self.design == ONE_CANARY:
            runs = 2 * n  # n in each world
            canaries = 1
        elif self.design == SEVERAL:
            runs = n
            canaries = NUM_CANARIES
        return KnownMechanism(
            self.law,
            self.mu,
            runs,
            audits,
            self.delta,
            CONFIDENCE,
            seed,
            canaries,
            dimension=_DIMENSION,
            # Python's hash differs between processes.
            stream=(zlib.crc32(self.name.encode()), n),
        )
