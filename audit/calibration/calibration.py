"""Audits of mechanisms whose leak is known exactly: does a method cover, and how tight is it?

A `Law` draws the evidence of an audit, knows its truth, and says which methods take such evidence and which
of their assumptions it breaks; `laws` has them all. `calibrate` is the only loop over audits, whatever the
evidence and the methods are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from audit.laws import conversions
from audit.runtime.processes import in_order

_SLACK = 1e-6  # a bound that is above the truth by less than this is so by rounding

# Assumptions: what a method may need, and a law may break.
GAUSSIAN_CURVE = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"
LEAST_RUNS = 100  # of several canaries; with fewer, a method for many runs is not held to its level


class KnownMechanism(NamedTuple):
    """A mechanism whose leak is known exactly, and how it is audited.

    Attributes:
      law: the law of the evidence.
      mu: the mechanism's mu, or the parameter that its law has in place of mu.
      runs: the number of runs of an audit. With a set of runs for each world, of each set; with a single
        canary a run, of both worlds together.
      audits: the number of audits of the mechanism.
      delta, confidence: the delta and the confidence of the bounds.
      seed: the seed of the evidence.
      canaries: K, the number of canaries of a run.
      dimension: d, the dimension of canaries that are directions.
      stops: the numbers of runs at which bounds that hold at any number of runs are read; empty: at the end.
      stream: further numbers of the seed: settings of different streams draw different evidence.
    """

    law: "Law"
    mu: float
    runs: int
    audits: int
    delta: float
    confidence: float
    seed: int
    canaries: int = 1
    dimension: int = 0
    stops: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()

    def find_broken(self, assumes: frozenset[str]) -> frozenset[str]:
        """Returns which of a method's assumptions do not hold for this mechanism and its audits.

        If none is returned, the method must not exceed the truth more often than its level allows.

        Args:
          assumes: the method's assumptions.
        """
        broken = self.law.breaks
        # A method that assumes many runs need not hold for a few. Only methods for several canaries a run
        # assume this. A single run of several canaries has methods of its own, which need no further runs.
        if self.canaries > 1 and 1 < self.runs < LEAST_RUNS:
            broken = broken | {ENOUGH_RUNS}
        return assumes & broken


class Truth(NamedTuple):
    """The truth about a mechanism.

    Attributes:
      epsilon: the true epsilon at the setting's delta.
      mu: the true mu, with which that of methods that bound mu is compared; None if all are compared by
        epsilon.
    """

    epsilon: float
    mu: float | None = None


class Value(NamedTuple):
    """The bound or estimate that a method gives in a single audit.

    Attributes:
      method: the method's name.
      epsilon: the epsilon at the setting's delta.
      mu: the mu; NaN if the method gives none.
      runs: the number of runs after which it was read; 0 for the end.
      seconds: the processor's seconds; 0 if not measured.
      refusal: why the method gave no value, which counts as epsilon = 0; empty if it gave one.
    """

    method: str
    epsilon: float
    mu: float = math.nan
    runs: int = 0
    seconds: float = 0.0
    refusal: str = ""


def _give_nothing(evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Returns no values. Processes receive it by pickle, which refuses a lambda."""
    return []


class Law(NamedTuple):
    """A law that draws evidence and knows how much its mechanism leaks.

    Attributes:
      name: the law's name.
      draw: (generator, setting) -> the evidence of an audit.
      truth: setting -> the truth.
      audit: (evidence, setting) -> what every method that takes such evidence gives; by default nothing.
      breaks: the assumptions of methods that do not hold for the law.
    """

    name: str
    draw: Callable[[np.random.Generator, KnownMechanism], Any]
    truth: Callable[[KnownMechanism], Truth]
    audit: Callable[[Any, KnownMechanism], list[Value]] = _give_nothing
    breaks: frozenset[str] = frozenset()


class Calibration(NamedTuple):
    """How one method did over all audits of a setting.

    Attributes:
      method: the method's name.
      setting: the mechanism and its audits.
      exceeding: the share of audits above the truth; compared is mu if both the truth and the method give it,
        else epsilon.
      mean_mu: the mean mu over the audits; None if the method gives none.
      mean_epsilon: the mean of epsilon over the audits.
      low_epsilon, high_epsilon: the 5% and 95% quantiles of epsilon.
      true_epsilon: the true epsilon; where mu is compared, the epsilon of the true mu.
      runs: the number of runs after which the bound was read; 0 for the end.
      beyond: by how much, on average, the epsilon of audits above the truth exceeds it; 0 if there are none.
      seconds: the processor's seconds of the median audit; 0 if not measured.
      refusals: the reasons of all audits that gave no value.
    """

    method: str
    setting: KnownMechanism
    exceeding: float
    mean_mu: float | None
    mean_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float
    runs: int = 0
    beyond: float = 0.0
    seconds: float = 0.0
    refusals: tuple[str, ...] = ()


def calibrate(
    setting: KnownMechanism,
    processes: int = 1,
    on_audit_done: Callable[[int], object] = lambda audits: None,
) -> list[Calibration]:
    """Audits a known mechanism many times, by every method that takes its evidence.

    An audit depends only on the seed and its index, not on `processes`.

    Args:
      setting: the mechanism and its audits.
      processes: the number of processes that share the audits.
      on_audit_done: called with 1 after each audit.

    Returns:
      A row for each method; for a method that is read after several numbers of runs, a row for each number.
    """
    tasks = [(setting, index) for index in range(setting.audits)]
    values_by_audit = []
    for values_of_audit in in_order(audit_once, tasks, processes):
        values_by_audit.append(values_of_audit)
        on_audit_done(1)
    truth = setting.law.truth(setting)
    values_by_row = zip(*values_by_audit, strict=True)
    return [_summarise(setting, values, truth) for values in values_by_row]


def audit_once(task: tuple[KnownMechanism, int]) -> list[Value]:
    """Returns what every method gives in an audit; `task` is (the known mechanism, the audit's index)."""
    setting, index = task
    return setting.law.audit(draw(setting, index), setting)


def draw(setting: KnownMechanism, index: int) -> Any:
    """Draws the evidence of an audit, from the setting's seed, its stream and the audit's index only."""
    entropy = [setting.seed, *setting.stream, index]
    return setting.law.draw(np.random.default_rng(entropy), setting)


def _summarise(setting: KnownMechanism, values: tuple[Value, ...], truth: Truth) -> Calibration:
    """Returns a method's row: how often its value was above the truth, and how near it came.

    What is compared is mu if the truth and the method give it, else epsilon. A value counts as above the
    truth if it exceeds it by more than rounding does.
    """
    first = values[0]  # gives mu if all values do
    epsilon = np.array([value.epsilon for value in values])
    mu = np.array([value.mu for value in values])
    gives_mu = not math.isnan(first.mu)
    true_epsilon = truth.epsilon
    exceeds = epsilon > true_epsilon + _SLACK
    if gives_mu and truth.mu is not None:
        exceeds = mu > truth.mu + _SLACK
        true_epsilon = conversions.epsilon_from_mu(truth.mu, setting.delta)
    beyond = float((epsilon[exceeds] - true_epsilon).mean()) if exceeds.any() else 0.0
    return Calibration(
        first.method,
        setting,
        exceeding=float(exceeds.mean()),
        mean_mu=float(mu.mean()) if gives_mu else None,
        mean_epsilon=float(epsilon.mean()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=true_epsilon,
        runs=first.runs,
        beyond=beyond,
        seconds=float(np.median([value.seconds for value in values])),
        refusals=tuple(value.refusal for value in values if value.refusal),
    )
