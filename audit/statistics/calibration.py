"""Audits of mechanisms whose truth is known: does a method cover, and how tight is it?

By default the mechanism is Gaussian with a known mu: scores are N(mu, 1) in and N(0, 1) out. Its trade-off
curve is Gaussian, so every estimator's assumption holds and epsilon(mu, delta) is the truth for all. With
another law of the scores (`known_laws`) the assumption fails, and the curve test is to say so.
"""

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions, gaussian_curve
from audit.statistics.estimate import ESTIMATORS
from audit.statistics.gaussian_curve import CURVE_LEVEL
from audit.statistics.known_laws import KnownLaw

Array = NDArray[np.float64]
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

    With a law also the share of audits in which the curve test fired, and among the others the share with
    epsilon above the truth, NaN where there are none.
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
    exceeding_where_passed: float | None = None


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
    conversions.require_delta(setting.delta)
    conversions.require_confidence(setting.confidence)
    audits = []
    for audit in _audits(setting, processes):
        audits.append(audit)
        done(1)
    values = np.array([audit.values for audit in audits])  # (audits, methods, 2)
    truth = _true_epsilon(setting)
    rows = [_summary(method, setting, values[:, i], truth) for i, method in enumerate(ESTIMATORS)]
    if setting.law is None:
        return rows
    passed = np.array([audit.curve_p_value for audit in audits]) >= CURVE_LEVEL
    return [_with_curve(row, values[:, i, 0], passed) for i, row in enumerate(rows)]


def allowed_share(claimed: float, audits: int, error: float = 1e-3) -> float:
    """The largest share of excesses that a method at level `claimed` shows but with probability at most
    `error`: what "beyond sampling error" means."""
    return float(np.ceil(special.bdtrik(1 - error, audits, claimed))) / audits


class _Audit(NamedTuple):
    """One audit's (epsilon, mu) by method, mu NaN where there is none, and the curve test's p-value."""

    values: list[tuple[float, float]]
    curve_p_value: float | None


def _true_epsilon(setting: KnownMechanism) -> float:
    """The truth at the setting's delta."""
    if setting.law is None:
        return conversions.epsilon_from_mu(setting.mu, setting.delta)
    return setting.law.epsilon(setting.delta)


def _audits(setting: KnownMechanism, processes: int) -> Iterator[_Audit]:
    """Every audit, in order."""
    tasks = [(setting, index) for index in range(setting.audits)]
    if processes == 1:
        yield from map(_audit, tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, spawn) as pool:
        yield from pool.map(_audit, tasks, chunksize=max(1, min(50, len(tasks) // processes)))


def _audit(task: tuple[KnownMechanism, int]) -> _Audit:
    """One audit."""
    setting, index = task
    scores_in, scores_out = _scores(setting, np.random.default_rng([setting.seed, index]))
    bounds = [
        method(scores_in, scores_out, setting.delta, setting.confidence) for method in ESTIMATORS.values()
    ]
    values = [(b.epsilon, np.nan if b.mu is None else b.mu) for b in bounds]
    tested = None if setting.law is None else gaussian_curve.examine(scores_in, scores_out).p_value
    return _Audit(values, tested)


def _scores(setting: KnownMechanism, rng: np.random.Generator) -> tuple[Array, Array]:
    """One audit's scores (in, out)."""
    half = setting.n_scores // 2
    if setting.law is not None:
        return setting.law.scores(rng, half)
    return rng.normal(setting.mu, 1, half), rng.normal(0, 1, half)


def _summary(method: str, setting: KnownMechanism, values: Array, truth: float) -> Calibration:
    """The summary of (audits, 2) values."""
    epsilon, mu = values[:, 0], values[:, 1]
    return Calibration(
        method,
        setting,
        float(np.mean(epsilon > truth + _SLACK)),
        None if np.isnan(mu[0]) else float(mu.mean()),
        float(epsilon.mean()),
        float(epsilon.std()),
        float(np.quantile(epsilon, 0.05)),
        float(np.quantile(epsilon, 0.95)),
        truth,
    )


def _with_curve(row: Calibration, epsilon: Array, passed: NDArray[np.bool_]) -> Calibration:
    """A row with the curve test's verdicts on its audits."""
    exceeding = epsilon > row.true_epsilon + _SLACK
    among = float(exceeding[passed].mean()) if passed.any() else np.nan
    return row._replace(fired=float(np.mean(~passed)), exceeding_where_passed=among)
