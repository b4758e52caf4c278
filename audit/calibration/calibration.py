"""Audits of mechanisms whose leak is known exactly: does a method cover, and how tight is it?

A `Law` draws the evidence of an audit, knows its truth, and says which methods take such evidence and which
of their assumptions it breaks; `laws` has them all. `calibrate` is the only loop over audits, whatever the
evidence and the methods are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.laws import conversions
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.runtime.processes import in_order

Array = NDArray[np.float64]
_SLACK = 1e-6  # above the truth by rounding alone is no excess

# Assumptions: what a method may need, and a law may break.
GAUSSIAN_CURVE = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"
LEAST_RUNS = 100  # of several canaries; with fewer, a method for many runs is not held to its level


class KnownMechanism(NamedTuple):
    """A mechanism whose leak is known exactly, and how it is audited.

    Attributes:
      law: of the evidence.
      mu: of the mechanism; the law's parameter, where that is another.
      runs: of an audit, or of each set of runs; of a single canary a run, the scores of both worlds together.
      audits: how often the mechanism is audited.
      delta, confidence: of the bounds.
      seed: of the evidence.
      canaries: K, of a run.
      dimension: d, of canaries that are directions.
      stops: numbers of runs after which bounds that hold at any number of runs are read; empty for the end.
      stream: further words of the seed, for evidence of its own.
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
        """Returns which of a method's assumptions do not hold; if none, it is held to its level."""
        broken = self.law.breaks
        if self.canaries > 1 and 1 < self.runs < LEAST_RUNS:
            broken = broken | {ENOUGH_RUNS}
        return assumes & broken


class Truth(NamedTuple):
    """The truth about a mechanism.

    Attributes:
      epsilon: at the setting's delta.
      mu: what the mu of methods that bound it is compared with; None where epsilon is compared for all.
    """

    epsilon: float
    mu: float | None = None


class Value(NamedTuple):
    """What a method gives in one audit.

    Attributes:
      method: its name.
      epsilon: at the setting's delta.
      mu: NaN where the method gives none.
      runs: the number of runs after which it was read; 0 for the end.
      p_value, power: of the test of a Gaussian curve on the audit's scores; NaN where it is not tested.
      seconds: of a processor, where they are measured.
      refusal: why the method gave no value, which counts as epsilon = 0; empty if it gave a value.
    """

    method: str
    epsilon: float
    mu: float = math.nan
    runs: int = 0
    p_value: float = math.nan
    power: float = math.nan
    seconds: float = 0.0
    refusal: str = ""


# Functions with names, since processes are sent laws by pickle, which cannot send a lambda.


def _give_nothing(evidence: Any, setting: KnownMechanism) -> list[Value]:
    """Returns the values of no method."""
    return []


def _take_any(setting: KnownMechanism) -> None:
    """Takes every setting."""


class Law(NamedTuple):
    """A law that draws evidence and knows how much its mechanism leaks.

    Attributes:
      name: its name.
      draw: (generator, setting) -> the evidence of an audit.
      truth: setting -> the truth.
      audit: (evidence, setting) -> what every method that takes such evidence gives; by default nothing.
      require: raises InputError for a setting that the law can't draw from; by default for none.
      breaks: the assumptions of methods that do not hold of it.
    """

    name: str
    draw: Callable[[np.random.Generator, KnownMechanism], Any]
    truth: Callable[[KnownMechanism], Truth]
    audit: Callable[[Any, KnownMechanism], list[Value]] = _give_nothing
    require: Callable[[KnownMechanism], None] = _take_any
    breaks: frozenset[str] = frozenset()


class Calibration(NamedTuple):
    """A method over all audits of a setting.

    Attributes:
      method: its name.
      setting: the mechanism and its audits.
      exceeding: the share of audits above the truth: of mu where the truth and the method give it, else of
        epsilon.
      mean_mu: None where the method gives no mu.
      mean_epsilon, std_epsilon: over the audits.
      low_epsilon, high_epsilon: its 5% and 95% quantiles.
      true_epsilon: the truth; where mu is compared, the epsilon of the true mu.
      true_mu: the truth, where mu is compared.
      runs: the number of runs after which the bound was read, if not at the end.
      fired: where the curve is tested, the share of audits in which its test fired.
      unsure: the share in which it did not fire, but had too little power (CURVE_POWER).
      missed: the share in which neither was so and epsilon exceeded the truth.
      beyond: by how much the audits above the truth exceed its epsilon, on average; 0 where none is.
      seconds: of a processor, the median audit, where they are measured.
      refusals: why audits gave no value, of each that gave none.
    """

    method: str
    setting: KnownMechanism
    exceeding: float
    mean_mu: float | None
    mean_epsilon: float
    std_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float
    true_mu: float | None = None
    runs: int = 0
    fired: float | None = None
    unsure: float | None = None
    missed: float | None = None
    beyond: float = 0.0
    seconds: float = 0.0
    refusals: tuple[str, ...] = ()


def require_possible(setting: KnownMechanism) -> None:
    """Raises InputError for values out of range."""
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    require(setting.canaries >= 1, f"`canaries={setting.canaries}`: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    setting.law.require(setting)


def calibrate(
    setting: KnownMechanism,
    processes: int = 1,
    on_audit_done: Callable[[int], object] = lambda audits: None,
) -> list[Calibration]:
    """Audits a known mechanism by every method that takes its evidence.

    An audit depends on the seed and its index alone, not on `processes`.

    Args:
      setting: the mechanism and its audits.
      processes: how many work on the audits.
      on_audit_done: is called with 1 after each audit.

    Returns:
      A row for each method, and for each number of runs after which it is read.

    Raises:
      InputError: for values out of range.
    """
    require_possible(setting)
    tasks = [(setting, index) for index in range(setting.audits)]
    audits = []
    for values in in_order(audit_once, tasks, processes):
        audits.append(values)
        on_audit_done(1)
    truth = setting.law.truth(setting)
    return [_summarise(setting, values, truth) for values in zip(*audits, strict=True)]


def audit_once(task: tuple[KnownMechanism, int]) -> list[Value]:
    """Returns what every method gives in an audit; `task` is (the known mechanism, the audit's index)."""
    setting, index = task
    return setting.law.audit(draw(setting, index), setting)


def draw(setting: KnownMechanism, index: int) -> Any:
    """Draws the evidence of an audit, from the setting's seed, its stream and the audit's index alone."""
    entropy = [setting.seed, *setting.stream, index]
    return setting.law.draw(np.random.default_rng(entropy), setting)


def allowed_share(claimed: float, audits: int, error: float = 1e-3) -> float:
    """Returns the largest share of audits above the truth that a method with a claimed level may show.

    It is a quantile of the binomial law: a method at that level shows more with probability at most `error`.

    Args:
      claimed: the level, 1 - confidence.
      audits: the number of audits.
      error: of the quantile.
    """
    most_excesses = float(np.ceil(special.bdtrik(1 - error, audits, claimed)))
    return most_excesses / audits


def _summarise(setting: KnownMechanism, values: tuple[Value, ...], truth: Truth) -> Calibration:
    """Returns a method's row: how often its value was above the truth, and how near it came.

    Args:
      setting: the mechanism and its audits.
      values: (audits,) what the method gave in each.
      truth: about the mechanism; mu is compared where truth and method give it, else epsilon.
    """
    first = values[0]
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

    row = Calibration(
        first.method,
        setting,
        exceeding=float(exceeds.mean()),
        mean_mu=float(mu.mean()) if gives_mu else None,
        mean_epsilon=float(epsilon.mean()),
        std_epsilon=float(epsilon.std()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=true_epsilon,
        true_mu=truth.mu,
        runs=first.runs,
        beyond=beyond,
        seconds=float(np.median([value.seconds for value in values])),
        refusals=tuple(value.refusal for value in values if value.refusal),
    )
    if math.isnan(first.p_value):
        return row
    fired = np.array([value.p_value for value in values]) < CURVE_LEVEL
    powerful = np.array([value.power for value in values]) >= CURVE_POWER
    return row._replace(
        fired=float(fired.mean()),
        unsure=float((~fired & ~powerful).mean()),
        missed=float((exceeds & ~fired & powerful).mean()),
    )
