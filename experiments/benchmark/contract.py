"""What an estimator and a mechanism of the benchmark are: a record each, and a record more adds another.

Both are those of `audit.calibration`: a mechanism has a law that draws evidence, an estimator audits evidence
as a law's methods do.
"""

import time
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.calibration.calibration import KnownMechanism, Law, Value

Array = NDArray[np.float64]

DELTA = 1e-5
CONFIDENCE = 0.95
MOST = 100.0  # larger values of epsilon, infinite ones too, count as this

# Designs: how many runs and canaries an audit has.
ONE_CANARY = "one canary a run"
SEVERAL = "several canaries a run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

CANARIES = 16  # of one of several runs
_DIMENSION = 100_000  # of directions

# Kinds of estimators.
OURS = "ours"
PEER = "package"
PAPER = "paper"

# (evidence, delta, confidence) -> epsilon. Evidence is `Coins`, or `Fresh` of directions.
EpsilonFunction = Callable[[Any, float, float], float]
# (evidence, claimed mu, confidence) -> whether the evidence refutes the claim.
ExamineClaim = Callable[[Any, float, float], bool]


class Estimator(NamedTuple):
    """An estimator, called as its documentation says.

    Attributes:
      name: Unique.
      kind: OURS, PEER or PAPER.
      source: The package and its function, or the paper.
      design: Which scores it takes, one of DESIGNS.
      assumption: What it assumes, in the words of its documentation.
      epsilon: (evidence, delta, confidence) -> its lower bound on epsilon. Whatever it raises counts as a
        refusal.
      assumes: The same as some of the assumptions of `audit.calibration`. Where a mechanism breaks one of
        these, the cell is marked, and the estimator is not held to its level there.
      claims_level: Whether it claims that the bound holds at the confidence.
      package: What pip installs it by; empty for ours and for papers' formulas.
      module: What Python imports it by; empty likewise.
      cost: A cell has the scale's number of audits divided by this.
      remark: What a reader of its numbers has to know of the package; mostly nothing.
      examine: Its test of a claimed curve; None where its epsilon is compared with the claimed epsilon.
    """

    name: str
    kind: str
    source: str
    design: str
    assumption: str
    epsilon: EpsilonFunction
    assumes: frozenset[str] = frozenset()
    claims_level: bool = True
    package: str = ""
    module: str = ""
    cost: int = 1
    remark: str = ""
    examine: ExamineClaim | None = None

    def audit(self, evidence: Any, setting: KnownMechanism) -> list[Value]:
        """Returns what the estimator gives in an audit, epsilon from 0 to `MOST`; see `Law.audit`."""
        begin = time.process_time()
        epsilon, refusal = self.estimate(evidence, setting.delta, setting.confidence)
        seconds = time.process_time() - begin
        return [Value(self.name, min(max(epsilon, 0.0), MOST), seconds=seconds, refusal=refusal)]

    def estimate(self, evidence: Any, delta: float, confidence: float) -> tuple[float, str]:
        """Returns epsilon, and why it was refused, with epsilon = 0; empty where it was not.

        A package's code may raise anything, which must not end the benchmark.
        """
        try:
            epsilon = float(self.epsilon(evidence, delta, confidence))
        except Exception as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            return 0.0, first_line[:200]
        if np.isnan(epsilon):
            return 0.0, "not a number"
        return epsilon, ""


class BenchmarkedMechanism(NamedTuple):
    """A mechanism with its exact epsilon.

    Attributes:
      design: One of DESIGNS.
      name: Unique.
      law: Of an audit's evidence. Its truth is the least epsilon at which the mechanism is
        (epsilon, delta)-DP for adding or removing one canary.
      mu: The law's parameter.
      description: What it is, in words.
      sizes: The n of a full run of the benchmark.
      delta: The delta at which its audits ask for epsilon.
    """

    design: str
    name: str
    law: Law
    mu: float
    description: str
    sizes: tuple[int, ...] = (1000,)
    delta: float = DELTA

    def setting(self, seed: int, n: int, audits: int = 1) -> KnownMechanism:
        """Returns the mechanism and its audits; these depend on seed, name and n, so that every estimator
        gets the same.

        Args:
          seed: Of the scores.
          n: The number of scores a world, of runs, or of canaries of the one run.
          audits: How many audits there are.
        """
        stream = (zlib.crc32(self.name.encode()), n)
        return shape(self.law, self.design, n, self.mu)._replace(
            audits=audits, delta=self.delta, seed=seed, stream=stream
        )


def shape(law: Law, design: str, n: int, mu: float) -> KnownMechanism:
    """Returns a mechanism with so many runs and canaries as a design has at n."""
    runs, canaries = {ONE_CANARY: (2 * n, 1), SEVERAL: (n, CANARIES)}.get(design, (1, n))
    dimension = _DIMENSION if design == DIRECTIONS else 0
    # One audit at seed 0: who calls this replaces both.
    return KnownMechanism(law, mu, runs, 1, DELTA, CONFIDENCE, 0, canaries, dimension)


def shuffle(evidence: Any, rng: np.random.Generator) -> Any:
    """Returns the same audit with its runs, and the canaries of all runs, in another order."""
    scores, presence, *facts = evidence
    runs, canaries = scores.shape
    run_order = rng.permutation(runs)
    canary_order = rng.permutation(canaries)
    places = np.ix_(run_order, canary_order)
    return type(evidence)(scores[places], presence[places], *facts)
