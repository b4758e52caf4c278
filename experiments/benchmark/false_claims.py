"""How many training runs an estimator takes to refute a claim whose noise is smaller than stated.

The mechanism is Gaussian, its noise 0.9 of what is stated, so that the claimed mu is 0.9 of the real mu. An
estimator refutes the claim where its epsilon exceeds the claimed epsilon; where it has a test of the claimed
curve, that decides. Sought is the number of runs at which half of the audits refute the claim. Beside it is
shown how often as many runs refute a claim that holds: to refute every claim finds no bug.
"""

import math
from functools import partial
from typing import Any, NamedTuple

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, Truth, Value, calibrate
from audit.laws import conversions, intervals
from experiments.benchmark import registry
from experiments.benchmark.contract import (
    CANARIES,
    CONFIDENCE,
    DELTA,
    DIRECTIONS,
    MOST,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    Estimator,
    shape,
)
from experiments.benchmark.mechanisms import MECHANISMS

CLAIMED_MU = math.sqrt(250) / 4  # 250 steps of noise multiplier 4
NOISE = 0.9  # of what is stated
_LARGE = 1000  # canaries of a run, where there is a single one, and directions
_LEAST_RUNS = 10  # five in each world: fewer refute nothing
_MOST_RUNS_OF_DIRECTIONS = 100
_SEARCHED_TO = 1.1  # too few runs and enough runs differ by at most this factor


class RunLimits(NamedTuple):
    """The fewest and the most training runs that are tried."""

    least: int
    most: int


class ClaimCell(NamedTuple):
    """What is measured, by names: all that decides the result but the estimator's version.

    Attributes:
      estimator: Its name.
      most_runs: The most training runs that are tried, of estimators that take several; at most 100 of
        directions.
      audits: At each number of runs.
      seed: Of the scores.
    """

    estimator: str
    most_runs: int
    audits: int
    seed: int

    def identify(self) -> list[Any]:
        """Returns what names the cell's file."""
        version = registry.find_version(registry.ESTIMATORS[self.estimator])
        return [*self, version, CLAIMED_MU, NOISE]

    def restore(self, values: dict[str, Any]) -> "MeasuredClaim":
        """Returns the cell as it was measured."""
        return MeasuredClaim(**values)

    def find_limits(self) -> RunLimits:
        """Returns the fewest and the most runs that are tried; both are 1 where estimators take one run.

        Estimators with an `examine` are those of fresh directions. They decide after a few runs, each of
        which takes as long to draw as a thousand runs of a single canary.
        """
        estimator = registry.ESTIMATORS[self.estimator]
        if estimator.design in (ONE_CANARY, SEVERAL):
            return RunLimits(_LEAST_RUNS, self.most_runs)
        if estimator.examine is not None:
            return RunLimits(1, min(self.most_runs, _MOST_RUNS_OF_DIRECTIONS))
        return RunLimits(1, 1)

    def measure(self) -> "MeasuredClaim":
        """Returns after how many runs the estimator refutes the claim."""
        estimator = registry.ESTIMATORS[self.estimator]
        limits = self.find_limits()
        runs = self._find_least_runs(limits)
        false_share = 0.0 if runs is None else self.find_share(runs, 1.0)
        return MeasuredClaim(
            estimator=self.estimator,
            version=registry.find_version(estimator),
            mu=CLAIMED_MU,
            noise=NOISE,
            canaries=_count_canaries(estimator.design),
            delta=DELTA,
            confidence=CONFIDENCE,
            runs=runs,
            most_runs=limits.most,
            audits=self.audits,
            false_refutations=round(false_share * self.audits),
            seed=self.seed,
        )

    def find_share(self, runs: int, noise: float) -> float:
        """Returns the share of audits of so many runs that refute the claim.

        Args:
          runs: Of an audit.
          noise: The real noise as a multiple of the stated noise.
        """
        setting = self.make_setting(runs, noise)
        [row] = calibrate(setting)
        return row.exceeding

    def make_setting(self, runs: int, noise: float) -> KnownMechanism:
        """Returns the audits of so many runs, whose truth is what is claimed."""
        estimator = registry.ESTIMATORS[self.estimator]
        design = estimator.design
        audit = estimator.audit if estimator.examine is None else partial(_examine, estimator)
        law = _LAWS[design]._replace(truth=_get_claim, audit=audit)
        usual = shape(law, design, _count_canaries(design), CLAIMED_MU / noise)
        return usual._replace(runs=runs, audits=self.audits, seed=self.seed, stream=(runs,))

    def _find_least_runs(self, limits: RunLimits) -> int | None:
        """Returns the least runs, to 10%, that refute it in half of the audits; None beyond the most."""

        def are_enough(runs: int) -> bool:
            return self.find_share(runs, NOISE) >= 0.5

        too_few, enough = limits
        if not are_enough(enough):
            return None
        if are_enough(too_few):
            return too_few
        while enough > max(_SEARCHED_TO * too_few, too_few + 1):
            middle = round(math.sqrt(too_few * enough))
            if are_enough(middle):
                enough = middle
            else:
                too_few = middle
        return enough


class MeasuredClaim(NamedTuple):
    """After how many training runs an estimator refutes a claim.

    Attributes:
      estimator, audits, seed: As in `ClaimCell`.
      version: Of the estimator's package.
      mu: Of the claim.
      noise: The real noise as a multiple of the stated noise.
      canaries: Of a run.
      delta, confidence: At which epsilon is compared with the claimed epsilon.
      runs: After so many training runs half of the audits refute it; None beyond the most.
      most_runs: The most that were tried.
      false_refutations: How many audits of `runs` runs refute a claim that holds.
    """

    estimator: str
    version: str
    mu: float
    noise: float
    canaries: int
    delta: float
    confidence: float
    runs: int | None
    most_runs: int
    audits: int
    false_refutations: int
    seed: int

    @property
    def accuses_falsely(self) -> bool:
        """Returns whether the exact test at 1% finds more refutations of a claim that holds than allowed."""
        # 1% at either end.
        limits = intervals.clopper_pearson(self.false_refutations, self.audits, 0.98)
        return bool(limits.lower > 1 - self.confidence)

    def __str__(self) -> str:
        """Returns the number of runs, marked where a claim that holds is refuted too."""
        if self.runs is None:
            return f">{self.most_runs:,}"
        return f"{self.runs:,}{'*' if self.accuses_falsely else ' '}"


def _get_claim(setting: KnownMechanism) -> Truth:
    """Returns what is claimed, in the place of the truth."""
    return Truth(conversions.epsilon_from_mu(CLAIMED_MU, setting.delta))


def _examine(estimator: Estimator, evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Returns the largest epsilon where the test of the claimed curve refutes it, and else 0."""
    assert estimator.examine is not None
    is_refuted = estimator.examine(evidence, CLAIMED_MU, setting.confidence)
    return [Value(estimator.name, MOST if is_refuted else 0.0)]


def _count_canaries(design: str) -> int:
    """Returns how many canaries a run has."""
    return {ONE_CANARY: 1, SEVERAL: CANARIES}.get(design, _LARGE)


_LAWS = {  # which draw at any mu, not at 1 alone
    ONE_CANARY: MECHANISMS["Gaussian 1"].law,
    SEVERAL: MECHANISMS["runs of 16: Gaussian 1"].law,
    ONE_RUN: MECHANISMS["coins: Gaussian 1"].law,
    DIRECTIONS: laws.DIRECTIONS["gaussian"],
}
