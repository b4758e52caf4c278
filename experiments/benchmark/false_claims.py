"""Measures how many training runs an estimator needs to refute a false claim of privacy.

The mechanism is Gaussian, and its noise is 0.9 of what is stated, so that the claimed mu is 0.9 of the real
mu. An estimator refutes the claim if its epsilon exceeds the claimed epsilon; an estimator with a test of the
claimed curve refutes it by that test. The result is the number of runs at which half of the audits refute the
claim. It is shown beside the number of audits that refute a true claim after as many runs, since an estimator
that refutes every claim finds no bug.
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
    TEST_LEVEL,
    Estimator,
    shape,
)
from experiments.benchmark.mechanisms import MECHANISMS

CLAIMED_MU = math.sqrt(250) / 4  # 250 steps of noise multiplier 4
NOISE = 0.9  # the real noise over the stated noise
_LARGE = 1000  # canaries of a run in designs with a single run, and directions of a run
_LEAST_RUNS = 10  # five in each world: fewer refute nothing
_MOST_RUNS_OF_DIRECTIONS = 100
_SEARCHED_TO = 1.1  # the search ends where enough runs are at most so many times too few runs


class RunLimits(NamedTuple):
    """The fewest and the most training runs with which a claim is tried."""

    least: int
    most: int


def exceeds_level(wrong: int, audits: int, confidence: float, tests: int) -> bool:
    """Returns whether more audits are wrong than a level allows, by an exact binomial test.

    Args:
      wrong: The number of audits that are wrong.
      audits: The number of all audits.
      confidence: The confidence of each; the allowed share of wrong ones is the level, 1 - confidence.
      tests: The number of such tests, which are at 1% together (Bonferroni).
    """
    error = TEST_LEVEL / tests  # at either end of the interval
    limits = intervals.clopper_pearson(wrong, audits, 1 - 2 * error)
    allowed = 1 - confidence + 1e-12  # rounding must not decide where both are equal
    return bool(limits.lower > allowed)


class ClaimCell(NamedTuple):
    """A cell: an estimator's audits of a mechanism about which a false claim is made.

    Attributes:
      estimator: The estimator's name.
      most_runs: The most training runs that are tried, for an estimator that takes several; an estimator of
        directions has at most 100.
      audits: The number of audits at each number of runs.
      seed: The seed of all scores.
    """

    estimator: str
    most_runs: int
    audits: int
    seed: int

    def identify(self) -> list[Any]:
        """Returns the values that decide the cell's result, from which the name of its file is computed."""
        version = registry.find_version(registry.ESTIMATORS[self.estimator])
        return [*self, version, CLAIMED_MU, NOISE]

    def restore(self, values: dict[str, Any]) -> "MeasuredClaim":
        """Returns the measured cell from the values of its file."""
        return MeasuredClaim(**values)

    def find_limits(self) -> RunLimits:
        """Returns the fewest and the most runs to try; both are 1 for estimators that take no more."""
        estimator = registry.ESTIMATORS[self.estimator]
        # Estimators of these designs take any number of runs; fewer than _LEAST_RUNS refute nothing.
        if estimator.design in (ONE_CANARY, SEVERAL):
            return RunLimits(_LEAST_RUNS, self.most_runs)
        # Our own estimators of directions have a test of the claimed curve, `examine`, which takes any number
        # of runs. It decides after a few of them. More would be slow: a run of a thousand directions takes as
        # long to draw as a thousand runs with a single canary each.
        if estimator.examine is not None:
            return RunLimits(1, min(self.most_runs, _MOST_RUNS_OF_DIRECTIONS))
        # All other estimators of a single run's coins or directions take that run alone.
        return RunLimits(1, 1)

    def measure(self) -> "MeasuredClaim":
        """Finds how many runs the estimator needs to refute the false claim, and counts its false alarms.

        A false alarm is an audit that refutes a true claim; these audits have the number of runs that the
        false claim needed. Where no number of runs was enough, none is audited, and no alarm is counted.
        """
        estimator = registry.ESTIMATORS[self.estimator]
        limits = self.find_limits()
        runs = self._find_least_runs(limits)
        # With a noise of 1 the stated noise is the real noise, and the claim is true.
        false_share = 0.0 if runs is None else self.find_refuted_share(runs, 1.0)
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

    def find_refuted_share(self, runs: int, noise: float) -> float:
        """Returns the share of audits that refute the claim.

        Args:
          runs: The number of runs of an audit.
          noise: The real noise as a multiple of the stated noise; 1 where the claim is true.
        """
        setting = self.make_setting(runs, noise)
        # The setting's truth is the claimed epsilon (`make_setting`), so that the audits that exceed the
        # truth are those that refute the claim. A setting with an audit of its own has a single row.
        [row] = calibrate(setting)
        return row.exceeding

    def make_setting(self, runs: int, noise: float) -> KnownMechanism:
        """Returns the Gaussian mechanism to audit, with the claimed epsilon in place of its true epsilon.

        An audit above "the truth", which `calibrate` counts, is then an audit that refutes the claim.

        Args:
          runs: The number of runs of an audit.
          noise: The real noise as a multiple of the stated noise.
        """
        estimator = registry.ESTIMATORS[self.estimator]
        design = estimator.design
        # An estimator refutes by a test of the claimed curve if it has such a test, else by its epsilon.
        audit = estimator.audit if estimator.examine is None else partial(_examine, estimator)
        law = _LAWS[design]._replace(truth=_get_claim, audit=audit)
        # With less noise than stated, the real mu is larger than the claimed mu in proportion.
        real_mu = CLAIMED_MU / noise
        # The size sets the canaries of the single run in ONE_RUN and DIRECTIONS. In other designs it sets
        # only the number of runs. That number is replaced below, in all designs.
        shaped = shape(law, design, _count_canaries(design), real_mu)
        # `stream`: audits of different numbers of runs draw different evidence.
        return shaped._replace(runs=runs, audits=self.audits, seed=self.seed, stream=(runs,))

    def _find_least_runs(self, limits: RunLimits) -> int | None:
        """Finds, to 10%, the least number of runs at which half of the audits refute the false claim.

        It is None where even the largest number of runs is too few. The search is by bisection on a
        logarithmic scale.
        """

        def are_enough(runs: int) -> bool:
            """Returns whether at least half of the audits with so many runs refute the claim."""
            return self.find_refuted_share(runs, NOISE) >= 0.5

        too_few, enough = limits
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


class MeasuredClaim(NamedTuple):
    """How many training runs an estimator needs to refute a false claim.

    Attributes:
      estimator, audits, seed: As in `ClaimCell`.
      version: The version of the estimator's package.
      mu: The claimed mu.
      noise: The real noise as a multiple of the stated noise.
      canaries: The number of canaries in a run.
      delta, confidence: The delta and the confidence of the epsilon that is compared with the claimed
        epsilon.
      runs: The number of runs at which half of the audits refute the claim; None where `most_runs` are too
        few.
      most_runs: The most runs that were tried.
      false_refutations: The number of audits, of `runs` runs each, that refute a true claim.
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

    def exceeds_level(self, tests: int) -> bool:
        """Returns whether more audits refute a true claim than the confidence allows; see `exceeds_level`.

        Args:
          tests: The number of claims that are tested together.
        """
        return exceeds_level(self.false_refutations, self.audits, self.confidence, tests)

    def show(self, tests: int) -> str:
        """Returns the number of runs as text, with * where true claims are refuted too often.

        Args:
          tests: The number of claims that are shown together.
        """
        if self.runs is None:
            return f">{self.most_runs:,}"
        return f"{self.runs:,}{'*' if self.exceeds_level(tests) else ' '}"


def _get_claim(setting: KnownMechanism) -> Truth:
    """Returns the claimed epsilon, in place of the truth about a mechanism."""
    return Truth(conversions.epsilon_from_mu(CLAIMED_MU, setting.delta))


def _examine(estimator: Estimator, evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Audits by an estimator's test of the claimed curve, in the form of `Law.audit`.

    Epsilon is MOST, above any claim, where the test refutes the curve, and else 0.
    """
    assert estimator.examine is not None  # callers pass only estimators with a test
    is_refuted = estimator.examine(evidence, CLAIMED_MU, setting.confidence)
    return [Value(estimator.name, MOST if is_refuted else 0.0)]


def _count_canaries(design: str) -> int:
    """Returns the number of canaries of a run in a design."""
    return {ONE_CANARY: 1, SEVERAL: CANARIES}.get(design, _LARGE)


# By design. Their names say mu = 1, but they draw at any mu.
_LAWS = {
    ONE_CANARY: MECHANISMS["Gaussian 1"].law,
    SEVERAL: MECHANISMS["runs of 16: Gaussian 1"].law,
    ONE_RUN: MECHANISMS["coins: Gaussian 1"].law,
    DIRECTIONS: laws.DIRECTIONS["gaussian"],
}
