"""Simulates audits of mechanisms with known leakage, to measure the coverage and tightness of methods."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from audit.runtime.processes import as_completed

# Methods' assumptions, which a distribution of scores may violate.
GAUSSIAN_CURVE = "a Gaussian trade-off curve"
INDEPENDENT = "independent canaries of a run"
FAIR = "fair coins"
ENOUGH_RUNS = "many runs"


class KnownMechanism(NamedTuple):
    """A mechanism with known leakage, and the size and number of its audits.

    Attributes:
      law: The distribution of an audit's evidence.
      mu: The mechanism's mu, or another parameter of its law, such as epsilon.
      runs: The number of runs in an audit: per world if each world has its own runs, otherwise in total.
      canaries: K, the number of canaries per run.
      dimension: d, the dimension of canaries that are directions.
      stream: Additional numbers for the seed, so that different settings draw different evidence.
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
    stream: tuple[int, ...] = ()

    def find_broken(self, assumes: Iterable[str]) -> frozenset[str]:
        """Returns the assumptions in `assumes` that this mechanism or its audits violate."""
        broken = self.law.breaks
        # Only methods for several runs with several canaries each may need many runs (at least 100).
        if self.canaries > 1 and 1 < self.runs < 100:
            broken |= {ENOUGH_RUNS}
        return broken.intersection(assumes)


class Value(NamedTuple):
    """A method's bound or estimate in a single audit.

    Attributes:
      epsilon: The epsilon at the setting's delta.
      seconds: The processor time in seconds; 0 if not measured.
      refusal: Why the method returned no value (epsilon is then 0); otherwise "".
    """

    method: str
    epsilon: float
    seconds: float = 0.0
    refusal: str = ""


class Law(NamedTuple):
    """A distribution of evidence with a known epsilon.

    Attributes:
      draw: Maps (generator, setting) to the evidence of an audit.
      truth: Maps a setting to the true epsilon at its delta.
      audit: Maps (evidence, setting) to the values of all applicable methods; the default returns [].
      breaks: The methods' assumptions that the law violates.
    """

    draw: Callable[[np.random.Generator, KnownMechanism], Any]
    truth: Callable[[KnownMechanism], float]
    audit: Callable[[Any, KnownMechanism], list[Value]] = lambda evidence, setting: []
    breaks: frozenset[str] = frozenset()


class Calibration(NamedTuple):
    """The results of one method over all audits of a setting.

    Attributes:
      exceeding: The fraction of audits whose epsilon exceeds the true epsilon.
      low_epsilon, high_epsilon: The 5% and 95% quantiles of epsilon.
      beyond: The mean excess over the true epsilon in audits that exceed it; 0 if there are none.
      seconds: The median processor time of an audit in seconds; 0 if not measured.
      refusals: Why the method returned no value, for each such audit.
    """

    method: str
    setting: KnownMechanism
    exceeding: float
    mean_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float
    beyond: float = 0.0
    seconds: float = 0.0
    refusals: tuple[str, ...] = ()


def calibrate(
    setting: KnownMechanism,
    processes: int = 1,
    on_audit_done: Callable[[int], object] = lambda audits: None,
) -> list[Calibration]:
    """Audits a known mechanism many times, and returns the results of each applicable method.

    Each audit draws from its own seed, so the results do not depend on `processes`. `on_audit_done` is called
    with 1 after each audit.
    """
    values_by_audit: list[list[Value]] = [[]] * setting.audits
    audit = partial(audit_once, setting)
    for index, values in as_completed(audit, range(setting.audits), processes):
        values_by_audit[index] = values
        on_audit_done(1)
    # All audits list the methods in the same order.
    values_by_method = zip(*values_by_audit, strict=True)
    return [_summarise(setting, values) for values in values_by_method]


def audit_once(setting: KnownMechanism, index: int) -> list[Value]:
    """Returns the values of all methods in the audit with this index."""
    return setting.law.audit(draw(setting, index), setting)


def draw(setting: KnownMechanism, index: int) -> Any:
    """Draws an audit's evidence, seeded by the setting (its seed and stream) and the audit's index."""
    entropy = [setting.seed, *setting.stream, index]
    return setting.law.draw(np.random.default_rng(entropy), setting)


def _summarise(setting: KnownMechanism, values: tuple[Value, ...]) -> Calibration:
    """Summarises the values of one method over all audits of a setting."""
    true_epsilon = setting.law.truth(setting)
    epsilons = np.array([value.epsilon for value in values])
    rounding = 1e-6  # a smaller excess may be a rounding error
    exceeds = epsilons > true_epsilon + rounding
    beyond = 0.0
    if exceeds.any():
        beyond = float((epsilons[exceeds] - true_epsilon).mean())
    low_epsilon, high_epsilon = np.quantile(epsilons, [0.05, 0.95]).tolist()
    return Calibration(
        method=values[0].method,
        setting=setting,
        exceeding=float(exceeds.mean()),
        mean_epsilon=float(epsilons.mean()),
        low_epsilon=low_epsilon,
        high_epsilon=high_epsilon,
        true_epsilon=true_epsilon,
        beyond=beyond,
        seconds=float(np.median([value.seconds for value in values])),
        refusals=tuple(value.refusal for value in values if value.refusal),
    )
