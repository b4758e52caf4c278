"""Measures how many training runs an estimator needs to refute a false claim of privacy.

The mechanism is Gaussian, and its noise is 0.9 of what is stated, so the claimed mu is 0.9 of the real mu.
An estimator refutes the claim if its epsilon exceeds the claimed epsilon. An estimator with a test of the
claimed curve refutes it by that test. The result is the number of runs at which half of the audits refute
the claim. It comes with the number of audits that refute a true claim after as many runs, since an estimator
that refutes every claim finds no bug.
"""

import math
from functools import partial
from typing import Any, NamedTuple

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, Truth, Value, calibrate
from audit.laws import conversions
from experiments.benchmark.contract import (
    DIRECTIONS,
    MAX_EPSILON,
    NUM_CANARIES,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    Estimator,
    shape,
)
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record

CLAIMED_MU = math.sqrt(250) / 4  # 250 steps of noise multiplier 4
NOISE = 0.9  # the real noise over the stated noise
_LARGE = 1000  # canaries of a run in designs with a single run, and directions of a run
_MIN_RUNS = 10  # five in each world: fewer refute nothing
_MAX_RUNS_OF_DIRECTIONS = 100
_SEARCHED_TO = 1.1  # the search ends when enough runs are at most so many times too few runs
# By design. Their names say mu = 1, but they draw at any mu.
_LAWS = {
    ONE_CANARY: MECHANISMS["Gaussian 1"].law,
    SEVERAL: MECHANISMS["runs of 16: Gaussian 1"].law,
    ONE_RUN: MECHANISMS["coins: Gaussian 1"].law,
    DIRECTIONS: laws.DIRECTIONS["gaussian"],
}


class ClaimCell(NamedTuple):
    """A cell: an estimator's audits of a mechanism about which a false claim is made.

    Attributes:
      estimator: the estimator's name.
      max_runs: the most training runs that are tried, for an estimator that takes several; an estimator of
        directions has at most 100.
      audits: the number of audits at each number of runs.
      seed: the seed of all scores.
    """

    estimator: str
    max_runs: int
    audits: int
    seed: int

    def measure(self) -> Record:
        """Finds how many runs the estimator needs to refute the false claim, and counts its false alarms.

        The record has

            runs                 the number of runs at which half of the audits refute the claim; None if
                                 `max_runs` are too few
            max_runs             the most runs that were tried
            false_refutations    the number of audits, of `runs` runs each, that refute a true claim
        """
        min_runs, max_runs = self._find_limits()
        runs = self._find_fewest_runs(min_runs, max_runs)
        false_share = 0.0
        if runs is not None:
            false_share = self.find_refuted_share(runs, 1.0)
        return {
            **self._asdict(),
            "runs": runs,
            "max_runs": max_runs,
            "false_refutations": round(false_share * self.audits),
        }

    def _find_limits(self) -> tuple[int, int]:
        """Returns the fewest and the most runs to try; both are 1 for estimators that take no more."""
        estimator = ESTIMATORS[self.estimator]
        if estimator.design in (ONE_CANARY, SEVERAL):
            return _MIN_RUNS, self.max_runs
        # Our estimators of directions take any number of runs, and their test decides after a few. A run of a
        # thousand directions takes as long to draw as a thousand runs with a single canary each.
        if estimator.examine is not None:
            return 1, min(self.max_runs, _MAX_RUNS_OF_DIRECTIONS)
        return 1, 1

    def _find_fewest_runs(self, too_few: int, enough: int) -> int | None:
        """Finds, to 10%, the least number of runs at which half of the audits refute the false claim.

        The search is by bisection on a logarithmic scale. It is None if `enough` runs are too few.
        """

        def are_enough(runs: int) -> bool:
            return self.find_refuted_share(runs, NOISE) >= 0.5

        if not are_enough(enough):
            return None
        if are_enough(too_few):
            return too_few
        # Until both are within 10% of each other, or are consecutive numbers.
        while enough > max(_SEARCHED_TO * too_few, too_few + 1):
            middle = round(math.sqrt(too_few * enough))
            if are_enough(middle):
                enough = middle
            else:
                too_few = middle
        return enough

    def find_refuted_share(self, runs: int, noise: float) -> float:
        """Returns the share of audits that refute the claim.

        Args:
          runs: the number of runs of an audit.
          noise: the real noise as a multiple of the stated noise; 1 if the claim is true.
        """
        estimator = ESTIMATORS[self.estimator]
        design = estimator.design
        audit = estimator.audit
        if estimator.examine is not None:
            audit = partial(_examine, estimator)
        # With the claimed epsilon as "the truth", an audit above the truth is one that refutes the claim.
        law = _LAWS[design]._replace(truth=_get_claim, audit=audit)
        canaries = {ONE_CANARY: 1, SEVERAL: NUM_CANARIES}.get(design, _LARGE)
        shaped = shape(law, design, canaries, CLAIMED_MU / noise)
        # `stream`: audits of different numbers of runs draw different evidence.
        setting = shaped._replace(runs=runs, audits=self.audits, seed=self.seed, stream=(runs,))
        [row] = calibrate(setting)
        return row.exceeding


def _get_claim(setting: KnownMechanism) -> Truth:
    """Returns the claimed epsilon, in place of the truth about a mechanism."""
    return Truth(conversions.epsilon_from_mu(CLAIMED_MU, setting.delta))


def _examine(estimator: Estimator, evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Audits by an estimator's test of the claimed curve; epsilon is above any claim if it refutes it."""
    assert estimator.examine is not None
    is_refuted = estimator.examine(evidence, CLAIMED_MU, setting.confidence)
    return [Value(estimator.name, MAX_EPSILON if is_refuted else 0.0)]
