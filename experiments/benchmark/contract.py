"""What an estimator and a mechanism of the benchmark are: a record each, and a record more adds another."""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.evidence.canaries import Coins

Array = NDArray[np.float64]

DELTA = 1e-5
CONFIDENCE = 0.95

# Designs: how many runs and canaries an audit has.
ONE_CANARY = "one canary a run"
SEVERAL = "several canaries a run"
ONE_RUN = "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)

# Assumptions: what an estimator may need, and a mechanism may break.
GAUSSIAN = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"
LEAST_RUNS = 100  # with fewer, a method for many runs is not held to its level

# Kinds of estimators.
OURS = "ours"
PEER = "package"
PAPER = "paper"


class AuditScores(NamedTuple):
    """What an audit hands to an estimator.

    Attributes:
      scores: (R, K) float64, a row for each run and a column for each canary; higher means in.
      presence: (R, K) bool, whether the canary was inserted.
      dimension: of the space, where the canaries are directions; the scores are cosines then, and all
        canaries are in. 0 for all other designs.
    """

    scores: Array
    presence: NDArray[np.bool_]
    dimension: int = 0

    def worlds(self) -> tuple[Array, Array]:
        """Returns the scores of all canaries that were in, and of all that were out; both flat."""
        return Coins(self.scores, self.presence).pooled()

    def shuffled(self, rng: np.random.Generator) -> "AuditScores":
        """Returns the same audit with its runs, and the canaries of all runs, in another order."""
        runs, canaries = self.scores.shape
        run_order = rng.permutation(runs)
        canary_order = rng.permutation(canaries)
        places = np.ix_(run_order, canary_order)
        return self._replace(scores=self.scores[places], presence=self.presence[places])


EpsilonFunction = Callable[[AuditScores, float, float], float]


class Estimator(NamedTuple):
    """An estimator, called as its documentation says.

    Attributes:
      name: Unique.
      kind: OURS, PEER or PAPER.
      source: The package and its function, or the paper.
      design: Which scores it takes, one of DESIGNS.
      assumption: What it assumes, in the words of its documentation.
      epsilon: (scores, delta, confidence) -> its lower bound on epsilon. Whatever it raises counts as a
        refusal.
      assumes: The same as some of GAUSSIAN, INDEPENDENT, FAIR and ENOUGH_RUNS. Where a mechanism breaks one
        of these, the cell is marked, and the estimator is not held to its level there.
      level: Whether it claims that the bound holds at the confidence.
      package: What pip installs it by; empty for ours and for papers' formulas.
      module: What Python imports it by; empty likewise.
      cost: A cell has the scale's number of audits divided by this.
    """

    name: str
    kind: str
    source: str
    design: str
    assumption: str
    epsilon: EpsilonFunction
    assumes: frozenset[str] = frozenset()
    level: bool = True
    package: str = ""
    module: str = ""
    cost: int = 1


class KnownTruth(NamedTuple):
    """A mechanism whose true epsilon is known exactly.

    Attributes:
      name: Unique.
      design: One of DESIGNS.
      draw: (generator, n) -> the scores of an audit; n is the number of scores a world, of runs, or of
        canaries of the one run.
      truth: delta -> the least epsilon at which the mechanism is (epsilon, delta)-DP for adding or removing
        one canary.
      description: What it is, in words.
      sizes: The n of a full run of the benchmark.
      breaks: Which assumptions it breaks.
      delta: The delta at which its audits ask for epsilon.
    """

    name: str
    design: str
    draw: Callable[[np.random.Generator, int], AuditScores]
    truth: Callable[[float], float]
    description: str
    sizes: tuple[int, ...] = (1000,)
    breaks: frozenset[str] = frozenset()
    delta: float = DELTA

    def audit(self, seed: int, n: int, index: int) -> AuditScores:
        """Draws an audit's scores.

        They depend on the arguments alone, so that every estimator gets the same.
        """
        entropy = [seed, zlib.crc32(self.name.encode()), n, index]
        return self.draw(np.random.default_rng(entropy), n)


def find_broken_assumptions(estimator: Estimator, mechanism: KnownTruth, n: int) -> frozenset[str]:
    """Returns the estimator's assumptions that do not hold in a cell; if none, it is held to its level."""
    broken = mechanism.breaks
    if mechanism.design == SEVERAL and n < LEAST_RUNS:
        broken = broken | {ENOUGH_RUNS}
    return estimator.assumes & broken
