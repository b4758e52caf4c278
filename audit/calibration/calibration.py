"""Audits of mechanisms with an exactly known leak: does a method cover, and how tight is it?

A `Law` draws the evidence of an audit; `laws` has all laws. `calibrate` is the loop over audits.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from audit.laws import conversions
from audit.runtime.processes import in_order

_SLACK = 1e-6  # a smaller excess over the truth is rounding

# Assumptions that methods need and laws may break.
GAUSSIAN_CURVE = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"
LEAST_RUNS = (
    100  # of several canaries; with fewer, a method for many runs may exceed its error level
)


class KnownMechanism(NamedTuple):
    """A mechanism with an exactly known leak, and its audits.

    Attributes:
      law: the law of the evidence.
      mu: the mechanism's mu, or the parameter of its law.
      runs: the number of runs of an audit: per world for a set of runs for each world, otherwise of both
        worlds.
      audits: the number of audits of the mechanism.
      delta, confidence: the delta and the confidence of the bounds.
      seed: the seed of the evidence.
      canaries: K, the number of canaries of a run.
      dimension: d, the dimension of canaries that are directions.
      stops: the numbers of runs to read anytime-valid bounds after; empty: at the end.
      stream: further numbers of the seed, for different evidence in different settings.
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

    def find_broken(self, assumes: Iterable[str]) -> frozenset[str]:
        """Returns the assumptions of a method that this mechanism and its audits break.

        Without one, the method must not exceed the truth more often than its level allows.
        """
        broken = self.law.breaks
        # Only methods for several runs with several canaries assume many runs.
        if self.canaries > 1 and 1 < self.runs < LEAST_RUNS:
            broken = broken | {ENOUGH_RUNS}
        return broken.intersection(assumes)


class Truth(NamedTuple):
    """The true epsilon at delta, and the true mu to compare with methods that bound mu; None without one."""

    epsilon: float
    mu: float | None = None


class Value(NamedTuple):
    """The bound or estimate of a method in a single audit.

    Attributes:
      method: the method's name.
      epsilon: the epsilon at the setting's delta.
      mu: the mu; NaN without one.
      runs: the number of runs before it was read; 0 for the end.
      seconds: the processor's seconds; 0 if not measured.
      refusal: why the method did not give a value, which counts as epsilon = 0; or empty.
    """

    method: str
    epsilon: float
    mu: float = math.nan
    runs: int = 0
    seconds: float = 0.0
    refusal: str = ""


def _give_nothing(evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Returns an empty list; unlike a lambda it can be pickled."""
    return []


class Law(NamedTuple):
    """A law that draws evidence, with the leak of its mechanism.

    Attributes:
      name: the law's name.
      draw: (generator, setting) -> the evidence of an audit.
      truth: setting -> the truth.
      audit: (evidence, setting) -> the values of all methods for such evidence.
      breaks: the assumptions of methods that the law breaks.
    """

    name: str
    draw: Callable[[np.random.Generator, KnownMechanism], Any]
    truth: Callable[[KnownMechanism], Truth]
    audit: Callable[[Any, KnownMechanism], list[Value]] = _give_nothing
    breaks: frozenset[str] = frozenset()


class Calibration(NamedTuple):
    """The results of one method over all audits of a setting.

    Attributes:
      method: the method's name.
      setting: the mechanism and its audits.
      exceeding: the share of audits above the truth, in mu if both the truth and the method have it,
        otherwise in epsilon.
      mean_mu: the mean mu over the audits, or None.
      mean_epsilon: the mean of epsilon over the audits.
      low_epsilon, high_epsilon: the 5% and 95% quantiles of epsilon.
      true_epsilon: the true epsilon; if mu is compared, the epsilon of the true mu.
      runs: the number of runs before the bound was read; 0 for the end.
      beyond: the mean excess of epsilon in audits above the truth; 0 without such audits.
      seconds: the processor's seconds of the median audit; 0 if not measured.
      refusals: the reasons of all audits without a value.
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
    """Audits a known mechanism many times, by every method for its evidence.

    An audit depends only on the seed and its index. `on_audit_done` is called with 1 after each audit.

    Returns:
      A row for each method and number of runs.
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
    """Returns the values of all methods in an audit; `task` is (mechanism, the audit's index)."""
    setting, index = task
    return setting.law.audit(draw(setting, index), setting)


def draw(setting: KnownMechanism, index: int) -> Any:
    """Draws the evidence of an audit, from the setting's seed, its stream and the audit's index."""
    entropy = [setting.seed, *setting.stream, index]
    return setting.law.draw(np.random.default_rng(entropy), setting)


def _summarise(setting: KnownMechanism, values: tuple[Value, ...], truth: Truth) -> Calibration:
    """Returns a method's row."""
    first = values[0]  # gives mu if all values do
    epsilon = np.array([value.epsilon for value in values])
    mu = np.array([value.mu for value in values])
    gives_mu = not math.isnan(first.mu)
    true_epsilon = truth.epsilon
    exceeds = epsilon > true_epsilon + _SLACK
    if gives_mu and truth.mu is not None:
        exceeds = mu > truth.mu + _SLACK
        true_epsilon = conversions.epsilon_from_mu(truth.mu, setting.delta)
    beyond = 0.0
    if exceeds.any():
        beyond = float((epsilon[exceeds] - true_epsilon).mean())
    mean_mu = None
    if gives_mu:
        mean_mu = float(mu.mean())
    return Calibration(
        first.method,
        setting,
        exceeding=float(exceeds.mean()),
        mean_mu=mean_mu,
        mean_epsilon=float(epsilon.mean()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=true_epsilon,
        runs=first.runs,
        beyond=beyond,
        seconds=float(np.median([value.seconds for value in values])),
        refusals=tuple(value.refusal for value in values if value.refusal),
    )
