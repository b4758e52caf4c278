"""Measures how many training runs an estimator needs to refute a false privacy claim.

The Gaussian mechanism adds only 0.9 times the claimed noise. An estimator refutes the claim if its epsilon
exceeds the claimed epsilon. Our estimators for directions test the claimed trade-off curve instead. The
benchmark also counts the audits that refute a true claim.
"""

import math
from typing import NamedTuple

from audit.calibration import laws
from audit.calibration.calibration import KnownMechanism, Value, calibrate
from audit.calibration.planning import find_fewest_runs
from audit.evidence.canaries import Fresh
from audit.laws import conversions
from audit.methods import claimed_curve, exact_null
from experiments.benchmark.contract import (
    DELTA,
    DIRECTIONS,
    MAX_EPSILON,
    ONE_CANARY,
    ONE_RUN,
    OURS,
    SEVERAL,
    BenchmarkedMechanism,
    Estimator,
)
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import Record

CLAIMED_MU = math.sqrt(250) / 4  # 250 steps with noise multiplier 4
NOISE = 0.9  # the ratio of the actual noise to the claimed noise
_MIN_RUNS = 10  # no estimator refutes a claim with fewer than five runs per world
_MAX_RUNS_OF_DIRECTIONS = 100
_SEARCH_PRECISION = 1.1  # the largest ratio of the result to a number of runs found to be too small
# For each design, the law of Gaussian scores for any mu, and the audit size (see `make_known`).
_AUDITS = {
    ONE_CANARY: (MECHANISMS["Gaussian 1"].law, 1),
    SEVERAL: (MECHANISMS["runs of 16: Gaussian 1"].law, 1),
    ONE_RUN: (MECHANISMS["coins: Gaussian 1"].law, 1000),
    DIRECTIONS: (laws.DIRECTIONS["gaussian"], 1000),
}


class ClaimCell(NamedTuple):
    """An estimator's audits of a false claim.

    Attributes:
      max_runs: The largest number of runs in an audit, for designs with several runs.
      audits: The number of audits for each number of runs.
      seed: The seed of the evidence.
    """

    estimator: str
    max_runs: int
    audits: int
    seed: int

    def measure(self) -> Record:
        """Finds the smallest number of runs at which half of the audits refute the claim.

        The record has this tuple's fields, with the actual `max_runs`, and

            runs                 the smallest number of runs, or None if `max_runs` is not enough
            false_refutations    the number of audits with `runs` runs that refute a true claim
        """
        estimator = ESTIMATORS[self.estimator]
        min_runs = 1  # for evidence from a single run
        max_runs = 1
        if estimator.design in (ONE_CANARY, SEVERAL):  # evidence from several runs
            min_runs = _MIN_RUNS
            max_runs = self.max_runs
        elif _is_ours_for_directions(estimator):
            # This project's estimators accept one run or several. A run with a thousand directions takes as
            # long as a thousand runs with one canary.
            max_runs = min(self.max_runs, _MAX_RUNS_OF_DIRECTIONS)
        runs = self._find_fewest_runs(min_runs, max_runs)
        false_fraction = 0.0
        if runs is not None:
            # With the claimed noise, the claim is true.
            false_fraction = self.find_refuted_fraction(runs, noise=1.0)
        return {
            **self._asdict(),
            "runs": runs,
            "max_runs": max_runs,
            "false_refutations": round(false_fraction * self.audits),
        }

    def _find_fewest_runs(self, least: int, most: int) -> int | None:
        """Returns the smallest number of runs at which half of the audits refute the claim, to within 10%.

        The search covers `least` to `most`, and returns None if `most` is not enough.
        """

        def refutes(runs: int) -> bool:
            return self.find_refuted_fraction(runs, NOISE) >= 0.5

        if not refutes(most):
            return None
        if refutes(least):
            return least
        return find_fewest_runs(refutes, too_few=least, enough=most, precision=_SEARCH_PRECISION)

    def find_refuted_fraction(self, runs: int, noise: float) -> float:
        """Returns the fraction of audits that refute the claim, with `runs` runs each.

        `noise` is the ratio of the actual noise to the claimed noise. At 1, the claim is true.
        """
        estimator = ESTIMATORS[self.estimator]
        audit = _audit_curve if _is_ours_for_directions(estimator) else estimator.audit
        gaussian_law, audit_size = _AUDITS[estimator.design]
        claimed_epsilon = conversions.epsilon_from_mu(CLAIMED_MU, DELTA)
        # Larger epsilons refute the claim. `calibrate` computes the fraction of audits whose epsilon exceeds
        # `truth`, here the claimed epsilon.
        law = gaussian_law._replace(truth=lambda setting: claimed_epsilon, audit=audit)
        mu = CLAIMED_MU / noise  # less noise leaks more
        mechanism = BenchmarkedMechanism(estimator.design, name="false claim", law=law, mu=mu)
        # The size determines the number of canaries; `runs` is replaced below.
        setting = mechanism.make_known(self.seed, audit_size, self.audits)
        # `stream` is part of the seed, so each number of runs gets different evidence.
        [result] = calibrate(setting._replace(runs=runs, stream=(runs,)))  # one method
        return result.exceeding


def _is_ours_for_directions(estimator: Estimator) -> bool:
    """Returns True for this project's estimators that use cosines with random directions."""
    return estimator.kind == OURS and estimator.design == DIRECTIONS


def _audit_curve(directions: Fresh, setting: KnownMechanism) -> list[Value]:
    """Tests the CLAIMED_MU-GDP claim using cosines with random directions.

    The returned epsilon is MAX_EPSILON if the test rejects the claim, and 0 otherwise.

    In each run, the test bets that more inserted canaries exceed each threshold than mu-GDP allows. It
    rejects the claim if its winnings are large enough.
    """
    counted = exact_null.compute_exceedances(directions)
    # (false-positive rate) -> the largest true-positive rate that the claim allows
    claimed_power = claimed_curve.gaussian_power(CLAIMED_MU)
    test = claimed_curve.examine_claim(counted, claimed_power, setting.confidence)
    epsilon = MAX_EPSILON if test.refuted else 0.0
    return [Value(method="", epsilon=epsilon)]
