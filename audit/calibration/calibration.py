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
Known = TypeVar("Known")
Found = TypeVar("Found")
_SLACK = 1e-9  # epsilon above the truth by rounding alone is no excess


class KnownMechanism(NamedTuple):
    """A known mechanism and how it is audited: n_scores / 2 scores a world, `audits` times.

    With a `law`, scores are drawn from it, `mu` is not looked at, and the curve is tested in every audit.
    """

    mu: float
    n_scores: int
    audits: int
    delta: float
    confidence: float
    seed: int
    law: KnownLaw | None = None


class Calibration(NamedTuple):
    """One method over all audits of a known mechanism; low and high are the 5% and 95% quantiles.

    With a law also the shares of audits in which the curve test fired, in which it did not but lacked power
    (CURVE_POWER), and in which neither was so and epsilon exceeded the truth: `missed`.
    """

    method: str
    setting: KnownMechanism
    exceeding: float  # share of audits with epsilon above the truth
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
    """Audits a known mechanism with every estimator; `done` hears of each audit that ends.

    An audit's scores depend on the seed and its index alone, not on `processes`. Raises InputError
    for values out of range.
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
    rows = [_summary(method, setting, values[:, i], truth) for i, method in enumerate(estimate.METHODS)]
    if setting.law is None:
        return rows
    curves = np.array([audit.curve for audit in audits], np.float64)
    return [_with_curve(row, values[:, i, 0], curves) for i, row in enumerate(rows)]


def allowed_share(claimed: float, audits: int, error: float = 1e-3) -> float:
    """The largest share of excesses that a method at level `claimed` shows but with probability at most
    `error`: what "beyond sampling error" means."""
    return float(np.ceil(special.bdtrik(1 - error, audits, claimed))) / audits


class _Audit(NamedTuple):
    """One audit's (epsilon, mu or NaN) by method, and the curve test's (p-value, power)."""

    values: list[tuple[float, float]]
    curve: tuple[float, float] | None


def every_audit(
    audit: Callable[[tuple[Known, int]], Found],
    setting: Known,
    audits: int,
    processes: int,
    done: Callable[[int], object],
) -> list[Found]:
    """The results of a setting's audits, in order; `done` hears of each that ends."""
    found = []
    for one in in_order(audit, [(setting, index) for index in range(audits)], processes):
        found.append(one)
        done(1)
    return found


def _audit(task: tuple[KnownMechanism, int]) -> _Audit:
    setting, index = task
    rng, half = np.random.default_rng([setting.seed, index]), setting.n_scores // 2
    if setting.law is not None:
        scores_in, scores_out = setting.law.scores(rng, half)
    else:
        scores_in, scores_out = rng.normal(setting.mu, 1, half), rng.normal(0, 1, half)
    found = estimate.findings(scores_in, scores_out, setting.delta, setting.confidence)
    values = [(one.epsilon, np.nan if one.mu is None else one.mu) for one in found]
    if setting.law is None:
        return _Audit(values, None)
    p_value = gaussian_curve.examine(scores_in, scores_out).p_value
    fires = p_value < CURVE_LEVEL
    return _Audit(values, (p_value, 0.0 if fires else gaussian_curve.power(scores_in, scores_out)))


def _summary(method: str, setting: KnownMechanism, values: Array, truth: float) -> Calibration:
    epsilon, mu = values[:, 0], values[:, 1]
    exceeding = float(np.mean(epsilon > truth + _SLACK))
    spread = float(epsilon.std()), float(np.quantile(epsilon, 0.05)), float(np.quantile(epsilon, 0.95))
    mean_mu = None if np.isnan(mu[0]) else float(mu.mean())
    return Calibration(method, setting, exceeding, mean_mu, float(epsilon.mean()), *spread, truth)


def _with_curve(row: Calibration, epsilon: Array, curves: Array) -> Calibration:
    fired, strong = curves[:, 0] < CURVE_LEVEL, curves[:, 1] >= CURVE_POWER
    missed = (epsilon > row.true_epsilon + _SLACK) & ~fired & strong
    unsure = float((~fired & ~strong).mean())
    return row._replace(fired=float(fired.mean()), unsure=unsure, missed=float(missed.mean()))
