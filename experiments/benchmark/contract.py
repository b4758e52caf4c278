"""An estimator and a mechanism of the benchmark as records: a new one is one record more."""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.statistics.canaries import Coins

Array = NDArray[np.float64]

DELTA, CONFIDENCE = 1e-5, 0.95
ONE_CANARY, SEVERAL, ONE_RUN = "one canary a run", "several canaries a run", "one run"
DIRECTIONS = "one run, directions"
DESIGNS = (ONE_CANARY, SEVERAL, ONE_RUN, DIRECTIONS)
GAUSSIAN = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"
LEAST_RUNS = 100  # of what a method for many runs may be blamed for
OURS, PEER, PAPER = "ours", "package", "paper"


class AuditScores(NamedTuple):
    """What one audit hands to an estimator: scores (R, K) float64, a row a run, higher meaning in; presence
    (R, K) bool; and of directions the dimension, else 0, where the scores are cosines and all are in."""

    scores: Array
    presence: NDArray[np.bool_]
    dimension: int = 0

    def worlds(self) -> tuple[Array, Array]:
        """(scores in, scores out), flat."""
        return Coins(self.scores, self.presence).pooled()

    def shuffled(self, rng: np.random.Generator) -> "AuditScores":
        """The same audit in another order of its runs, and of the canaries of all runs."""
        runs, canaries = (rng.permutation(size) for size in self.scores.shape)
        places = np.ix_(runs, canaries)
        return self._replace(scores=self.scores[places], presence=self.presence[places])


class Estimator(NamedTuple):
    """An estimator as one calls it by its documentation.

    name: unique. kind: OURS, PEER or PAPER. source: the package and function, or the paper.
    design: which scores it takes, one of DESIGNS.
    says: what it assumes, from its documentation. assumes: the same as some of GAUSSIAN, INDEPENDENT, FAIR
        and ENOUGH_RUNS: where a mechanism breaks one of these, the cell is marked and nobody is blamed.
    epsilon: (evidence, delta, confidence) -> its lower bound; whatever it raises counts as a refusal.
    level: whether it says that the bound holds at the confidence.
    package: what pip installs it by, and module: what Python imports it by; empty for ours and papers'.
    cost: audits of a cell are divided by it.
    """

    name: str
    kind: str
    source: str
    design: str
    says: str
    assumes: frozenset[str]
    epsilon: Callable[[AuditScores, float, float], float]
    level: bool = True
    package: str = ""
    module: str = ""
    cost: int = 1


class KnownTruth(NamedTuple):
    """A mechanism with an exactly known truth.

    name: unique. design: one of DESIGNS. draw: (generator, n) -> one audit's evidence, n being the scores of
    a world, the runs, or the canaries of the one run. truth: delta -> the least epsilon at which it is
    (epsilon, delta)-DP for adding or removing one canary. sizes: the n of a full run.
    breaks: which assumptions it breaks. delta: where its audits ask. says: what it is, in words.
    """

    name: str
    design: str
    draw: Callable[[np.random.Generator, int], AuditScores]
    truth: Callable[[float], float]
    says: str
    sizes: tuple[int, ...] = (1000,)
    breaks: frozenset[str] = frozenset()
    delta: float = DELTA

    def audit(self, seed: int, n: int, index: int) -> AuditScores:
        """An audit's scores, the same for every estimator: they depend on the arguments alone."""
        root = [seed, zlib.crc32(self.name.encode()), n, index]
        return self.draw(np.random.default_rng(root), n)


def broken(estimator: Estimator, mechanism: KnownTruth, n: int) -> frozenset[str]:
    """The estimator's assumptions that do not hold in a cell; empty where it has to keep its level."""
    few = mechanism.design == SEVERAL and n < LEAST_RUNS
    return estimator.assumes & (mechanism.breaks | ({ENOUGH_RUNS} if few else frozenset()))
