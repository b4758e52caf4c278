"""Measures how many training runs an estimator needs to refute a false privacy claim.

The mechanism is Gaussian with 0.9 times the claimed noise. An estimator refutes the claim if its epsilon
exceeds the claimed epsilon, or if its test rejects the claimed curve. We also count the audits that refute a
true claim with the same number of runs: an estimator that refutes every claim does not detect bugs.
"""

import math
from functools import partial
from typing import Any, NamedTuple

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, Truth, Value, calibrate
from audit.laws import conversions
from experiments.benchmark.contract import (
    DELTA,
    DIRECTIONS,
    MAX_EPSILON,
    NUM_CANARIES,
    ONE_CANARY,
    ONE_RUN,
    SEVERAL,
    Examine,
    shape,
)
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record

CLAIMED_MU = math.sqrt(250) / 4  # 250 steps of noise multiplier 4
NOISE = 0.9  # the real noise over the claimed noise
_MIN_RUNS = 10  # fewer than five per world cannot refute a claim
# A run with a thousand directions is as slow as a thousand runs with one canary.
_MAX_RUNS_OF_DIRECTIONS = 100
_SEARCHED_TO = 1.1  # the search ends at this ratio of enough runs to too few runs
# The law and the number of canaries per run, by design. The laws work for any mu.
_LAWS = {
    ONE_CANARY: (MECHANISMS["Gaussian 1"].law, 1),
    SEVERAL: (MECHANISMS["runs of 16: Gaussian 1"].law, NUM_CANARIES),
    ONE_RUN: (MECHANISMS["coins: Gaussian 1"].law, 1000),
    DIRECTIONS: (laws.DIRECTIONS["gaussian"], 1000),
}


class ClaimCell(NamedTuple):
    """An estimator's audits of a mechanism with a false claim.

    Attributes:
      max_runs: For designs with several runs.
      audits: The number of audits at each number of runs.
    """

    estimator: str
    max_runs: int
    audits: int
    seed: int

    def measure(self) -> Record:
        """Finds the smallest number of runs such that half of the audits refute the claim.

        The record has the cell's fields; `runs`, or None if `max_runs` are too few; and `false_refutations`,
        the number of audits with `runs` runs that refute a true claim.
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
        return {
            **self._asdict(),
            "runs": runs,
            "max_runs": max_runs,
            "false_refutations": round(false_share * self.audits),
        }

    def _find_fewest_runs(self, too_few: int, enough: int) -> int | None:
        """Finds the smallest sufficient number of runs to 10%, by bisection on a logarithmic scale."""
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
        """Returns the share of audits with `runs` runs that refute the claim.

        `noise` is the real noise over the claimed noise; 1 if the claim is true.
        """
        estimator = ESTIMATORS[self.estimator]
        examine = estimator.examine
        audit = partial(_examine, examine) if examine else estimator.audit
        law, canaries = _LAWS[estimator.design]
        # An audit refutes the claim if it exceeds the claimed epsilon, which is set as the truth here.
        claim = Truth(conversions.epsilon_from_mu(CLAIMED_MU, DELTA))
        claimed = law._replace(truth=lambda setting: claim, audit=audit)
        shaped = shape(claimed, estimator.design, canaries, CLAIMED_MU / noise)
        # `stream` gives each number of runs different evidence.
        setting = shaped._replace(runs=runs, audits=self.audits, seed=self.seed, stream=(runs,))
        [row] = calibrate(setting)
        return row.exceeding


def _examine(examine: Examine, evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Tests the claimed curve; returns an epsilon above any claim if the test rejects it."""
    is_refuted = examine(evidence, CLAIMED_MU, setting.confidence)
    return [Value("", MAX_EPSILON * is_refuted)]
