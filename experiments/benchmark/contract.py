"""The records of the benchmark's estimators and mechanisms; to add one, add a record.

Both build on `audit.calibration`: a mechanism has a `Law` that draws evidence, and an estimator audits
evidence as a law's methods do.
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
TEST_LEVEL = 0.01  # of all tests of a table together: the probability that any star is wrong
MOST = 100.0  # larger epsilons, infinite ones too, are counted as this

# Designs: how many runs and canaries an audit has.
ONE_CANARY = "one canary a run"
SEVERAL = "several canaries a run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

CANARIES = 16  # of each run, in the design of several canaries a run
_DIMENSION = 100_000  # of the space of directions

# Kinds of estimators: this project's, an installable package's, and a paper's.
OURS = "ours"
PEER = "package"
PAPER = "paper"

# (evidence, delta, confidence) -> epsilon. Evidence is `Coins`, or `Fresh` of directions.
EpsilonFunction = Callable[[Any, float, float], float]
# (evidence, claimed mu, confidence) -> whether the evidence refutes the claim.
ExamineClaim = Callable[[Any, float, float], bool]


class Estimator(NamedTuple):
    """An estimator of epsilon, called as its documentation says.

    Attributes:
      name: The name, which no other estimator has.
      kind: OURS, PEER or PAPER.
      source: The package and its function, or the paper.
      design: The design of the audits that it takes, one of DESIGNS.
      assumption: What it assumes, in the words of its documentation.
      epsilon: (evidence, delta, confidence) -> its lower bound on epsilon. Any exception counts as a refusal.
      assumes: What it assumes, as constants of `audit.calibration`. Where a mechanism breaks one of these,
        the cell is marked, and the estimator is not held to its level there.
      claims_level: Whether it claims that the bound holds at the confidence.
      package: The name by which pip installs its package; empty for ours and for papers' formulas.
      module: The name by which Python imports that package; empty likewise.
      cost: The number by which the scale's number of audits is divided; above 1 for slow estimators.
      remark: A note on the package for readers of its numbers; mostly empty.
      examine: (evidence, claimed mu, confidence) -> whether its test refutes the claimed trade-off curve;
        None where a claim is refuted by comparing its epsilon with the claimed epsilon.
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
        """Returns the estimator's value in one audit, in the form of `Law.audit`: a list of values.

        Epsilon is clipped to between 0 and `MOST`.
        """
        begin = time.process_time()
        epsilon, refusal = self.estimate(evidence, setting.delta, setting.confidence)
        seconds = time.process_time() - begin
        return [Value(self.name, min(max(epsilon, 0.0), MOST), seconds=seconds, refusal=refusal)]

    def estimate(self, evidence: Any, delta: float, confidence: float) -> tuple[float, str]:
        """Estimates epsilon; an exception in the estimator's code counts as a refusal.

        No estimator's exception, whatever it is, may end the benchmark.

        Returns:
          (epsilon, ""), or (0, the reason) where the estimator raises an exception or returns NaN.
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
    """A mechanism whose exact epsilon is known.

    Attributes:
      design: The design of its audits, one of DESIGNS.
      name: The name, which no other mechanism has.
      law: The law that draws an audit's evidence. Its truth is the least epsilon at which the mechanism is
        (epsilon, delta)-DP for adding or removing a single canary.
      mu: The law's parameter.
      description: A description for readers.
      sizes: The sizes n of the audits in a full run of the benchmark: numbers of runs, or of the canaries of
        a single run (see `shape`).
      delta: The delta at which the audits bound epsilon.
    """

    design: str
    name: str
    law: Law
    mu: float
    description: str
    sizes: tuple[int, ...] = (1000,)
    delta: float = DELTA

    def make_known(self, seed: int, n: int, audits: int = 1) -> KnownMechanism:
        """Returns the mechanism with all that its audits need: their size, their number and their evidence.

        The evidence depends on the seed, the mechanism's name and n alone, so that every estimator gets the
        same.

        Args:
          seed: The seed of the evidence.
          n: The size of an audit: the number of its runs, or of the canaries of a single run (see `shape`).
          audits: The number of audits.
        """
        # A checksum of the name: unlike Python's hash of a text, it is the same in every process.
        stream = (zlib.crc32(self.name.encode()), n)
        return shape(self.law, self.design, n, self.mu)._replace(
            audits=audits, delta=self.delta, seed=seed, stream=stream
        )


def shape(law: Law, design: str, n: int, mu: float) -> KnownMechanism:
    """Returns a mechanism to audit, with the runs and canaries that a design has at size n.

    It stands for a single audit with seed 0; callers replace the number of audits and the seed.

    Args:
      law: The law of the evidence.
      design: One of DESIGNS.
      n: The size: the runs in each world for a single canary a run; the runs for several canaries a run; the
        canaries of the single run for the other designs.
      mu: The law's parameter.
    """
    if design == ONE_CANARY:
        runs, canaries = 2 * n, 1  # n runs with the canary, n without it
    elif design == SEVERAL:
        runs, canaries = n, CANARIES
    else:
        runs, canaries = 1, n
    # Only canaries that are directions have a dimension.
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


def shuffle(evidence: Any, rng: np.random.Generator) -> Any:
    """Returns the same evidence in a random order: of its runs, and of the canaries, the same in every run.

    Args:
      evidence: `Coins` or `Fresh`, whose first two fields are scores (R, K) and presence (R, K).
      rng: The randomness of the order.
    """
    scores, presence, *facts = evidence  # the other fields depend on no order
    runs, canaries = scores.shape
    run_order = rng.permutation(runs)
    canary_order = rng.permutation(canaries)
    places = np.ix_(run_order, canary_order)  # rows and columns in these orders
    return type(evidence)(scores[places], presence[places], *facts)
