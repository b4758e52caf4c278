"""Measures how many training runs an estimator needs to refute a false claim of privacy.

The mechanism is Gaussian, and its noise is 0.9 of what is stated, so the claimed mu is 0.9 of the real mu.
An estimator refutes the claim if its epsilon exceeds the claimed epsilon, or by its test of the claimed curve
if it has one. The result comes with the number of audits that refute a true claim after as many runs, since
an estimator that refutes every claim finds no bug.
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
_MIN_RUNS = 10  # five in each world: fewer refute nothing
# A run of a thousand directions takes as long to draw as a thousand runs with a single canary each.
_MAX_RUNS_OF_DIRECTIONS = 100
_SEARCHED_TO = 1.1  # the search ends when enough runs are at most so many times too few runs
# By design, the law and the canaries of a run. Their names say mu = 1, but they draw at any mu.
_LAWS = {
    ONE_CANARY: (MECHANISMS["Gaussian 1"].law, 1),
    SEVERAL: (MECHANISMS["runs of 16: Gaussian 1"].law, NUM_CANARIES),
    ONE_RUN: (MECHANISMS["coins: Gaussian 1"].law, 1000),
    DIRECTIONS: (laws.DIRECTIONS["gaussian"], 1000),
}


class ClaimCell(NamedTuple):
    """A cell: an estimator's audits of a mechanism about which a false claim is made.

    Attributes:
      estimator: the estimator's name.
      max_runs: the most training runs that are tried, for an estimator that takes several.
      audits: the number of audits at each number of runs.
      seed: the seed of all scores.
    """

    estimator: str
    max_runs: int
    audits: int
    seed: int

    def measure(self) -> Record:
        """Finds the number of runs at which half of the audits refute the claim; None if all are too few.

        The record has the cell's fields, `runs`, `max_runs` as tried, and `false_refutations`: the number of
        audits, of `runs` runs each, that refute a true claim.
        """
        estimator = ESTIMATORS[self.estimator]
        min_runs = 1
        max_runs = 1
        if estimator.design in (ONE_CANARY, SEVERAL):
            min_runs = _MIN_RUNS
            max_runs = self.max_runs
        elif estimator.examine is not None:
            max_runs = min(self.max_runs, _MAX_RUNS_OF_DIRECTIONS)
        runs = self._find_fewest_runs(min_runs, max_runs)
        false_share = 0.0 if runs is None else self.find_refuted_share(runs, 1.0)
        found = {"runs": runs, "max_runs": max_runs}
        return {**self._asdict(), **found, "false_refutations": round(false_share * self.audits)}

    def _find_fewest_runs(self, too_few: int, enough: int) -> int | None:
        """Finds the least number of runs to 10%, by bisection on a logarithmic scale."""
        if self.find_refuted_share(enough, NOISE) < 0.5:
            return None
        if self.find_refuted_share(too_few, NOISE) >= 0.5:
            return too_few
        while enough > max(_SEARCHED_TO * too_few, too_few + 1):
            middle = round(math.sqrt(too_few * enough))
            if self.find_refuted_share(middle, NOISE) >= 0.5:
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
        audit = partial(_examine, estimator) if estimator.examine else estimator.audit
        law, canaries = _LAWS[estimator.design]
        # With the claimed epsilon as "the truth", an audit above the truth is one that refutes the claim.
        claimed = law._replace(truth=_get_claim, audit=audit)
        shaped = shape(claimed, estimator.design, canaries, CLAIMED_MU / noise)
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
