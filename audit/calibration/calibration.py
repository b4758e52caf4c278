"""Audits of mechanisms whose truth is known: does a method cover, and how tight is it?

By default the mechanism is Gaussian with a known mu: scores are N(mu, 1) in and N(0, 1) out. Its trade-off
curve is Gaussian, so every estimator's assumption holds and epsilon(mu, delta) is the truth for all. With
another law of the scores (`known_laws`) the assumption fails, and the curve test is to say so.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.laws import conversions
from audit.laws.known_laws import KnownLaw
from audit.methods import estimate, gaussian_curve
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.runtime.processes import in_order

Array = NDArray[np.float64]
Setting = TypeVar("Setting")
Result = TypeVar("Result")
_SLACK = 1e-9  # epsilon above the truth by rounding alone is no excess


class KnownMechanism(NamedTuple):
    """A mechanism whose truth is known, and how it is audited.

    Attributes:
      mu: of the Gaussian mechanism; it does not matter where there is a law.
      n_scores: of an audit, one half from each world.
      audits: how often it is audited.
      delta, confidence: of the bounds.
      seed: of the scores.
      law: the law of the scores, if they are not Gaussian; the curve is then tested in every audit.
    """

    mu: float
    n_scores: int
    audits: int
    delta: float
    confidence: float
    seed: int
    law: KnownLaw | None = None


class Calibration(NamedTuple):
    """A method over all audits of a known mechanism.

    Attributes:
      method: its name.
      setting: the mechanism and its audits.
      exceeding: the share of audits with epsilon above the truth.
      mean_mu: None where the method gives no mu.
      mean_epsilon, std_epsilon: over the audits.
      low_epsilon, high_epsilon: its 5% and 95% quantiles.
      true_epsilon: the truth.
      fired: with a law, the share of audits in which the curve test fired.
      unsure: with a law, the share in which it did not fire, but had too little power (CURVE_POWER).
      missed: with a law, the share in which neither was so and epsilon exceeded the truth.
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
    fired: float | None = None
    unsure: float | None = None
    missed: float | None = None


def calibrate(
    setting: KnownMechanism, processes: int = 1, done: Callable[[int], object] = lambda audits: None
) -> list[Calibration]:
    """Audits a known mechanism with every estimator.

    An audit's scores depend on the seed and its index alone, not on `processes`.

    Args:
      setting: the mechanism and its audits.
      processes: how many work on the audits.
      done: is called with 1 after each audit.

    Returns:
      A row for each estimator.

    Raises:
      InputError: for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(setting.n_scores >= 2, f"n_scores is {setting.n_scores}: give at least 2")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    audits = every_audit(_audit, setting, setting.audits, processes, done)
    values = np.array([audit.values for audit in audits])  # (audits, methods, 2)
    if setting.law is None:
        truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    else:
        truth = setting.law.epsilon(setting.delta)

    rows = []
    for i, method in enumerate(estimate.METHODS):
        rows.append(_summarise(method, setting, values[:, i], truth))
    if setting.law is None:
        return rows
    curves = np.array([audit.curve for audit in audits], np.float64)  # (audits, 2)
    return [_add_curve_test(row, values[:, i, 0], curves) for i, row in enumerate(rows)]


def allowed_share(claimed: float, audits: int, error: float = 1e-3) -> float:
    """Returns the largest share of excesses that is within sampling error of a claimed level.

    A method at that level shows more with probability at most `error`.
    """
    most_excesses = float(np.ceil(special.bdtrik(1 - error, audits, claimed)))
    return most_excesses / audits


class _Audit(NamedTuple):
    """The results of an audit.

    Attributes:
      values: (epsilon, mu or NaN) of each method.
      curve: the curve test's (p-value, power); None without a law.
    """

    values: list[tuple[float, float]]
    curve: tuple[float, float] | None


def every_audit(
    audit: Callable[[tuple[Setting, int]], Result],
    setting: Setting,
    audits: int,
    processes: int,
    done: Callable[[int], object],
) -> list[Result]:
    """Returns the results of a setting's audits, in order.

    Args:
      audit: (setting, index) -> the result of an audit.
      setting: what is audited.
      audits: how often.
      processes: how many work on the audits.
      done: is called with 1 after each audit.
    """
    tasks = [(setting, index) for index in range(audits)]
    results = []
    for result in in_order(audit, tasks, processes):
        results.append(result)
        done(1)
    return results


def _audit(task: tuple[KnownMechanism, int]) -> _Audit:
    """Audits a setting once: (setting, index of the audit)."""
    setting, index = task
    rng = np.random.default_rng([setting.seed, index])
    half = setting.n_scores // 2
    if setting.law is not None:
        scores_in, scores_out = setting.law.scores(rng, half)
    else:
        scores_in = rng.normal(setting.mu, 1, half)
        scores_out = rng.normal(0, 1, half)

    values = []
    for finding in estimate.findings(scores_in, scores_out, setting.delta, setting.confidence):
        mu = np.nan if finding.mu is None else finding.mu
        values.append((finding.epsilon, mu))
    if setting.law is None:
        return _Audit(values, None)

    p_value = gaussian_curve.examine(scores_in, scores_out).p_value
    fires = p_value < CURVE_LEVEL
    power = 0.0 if fires else gaussian_curve.power(scores_in, scores_out)
    return _Audit(values, (p_value, power))


def _summarise(method: str, setting: KnownMechanism, values: Array, truth: float) -> Calibration:
    """Returns a method's row from its (epsilon, mu or NaN) in all audits, (audits, 2)."""
    epsilon = values[:, 0]
    mu = values[:, 1]
    return Calibration(
        method,
        setting,
        exceeding=float(np.mean(epsilon > truth + _SLACK)),
        mean_mu=None if np.isnan(mu[0]) else float(mu.mean()),
        mean_epsilon=float(epsilon.mean()),
        std_epsilon=float(epsilon.std()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=truth,
    )


def _add_curve_test(row: Calibration, epsilon: Array, curves: Array) -> Calibration:
    """Returns a row with the curve test's shares, from epsilon (audits,) and (p-value, power) (audits, 2)."""
    fired = curves[:, 0] < CURVE_LEVEL
    powerful = curves[:, 1] >= CURVE_POWER
    exceeds = epsilon > row.true_epsilon + _SLACK
    missed = exceeds & ~fired & powerful
    unsure = ~fired & ~powerful
    return row._replace(
        fired=float(fired.mean()), unsure=float(unsure.mean()), missed=float(missed.mean())
    )
