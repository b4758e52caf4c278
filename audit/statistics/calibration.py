"""Audits of mechanisms whose truth is known: does a method cover, and how tight is it?

The mechanism is Gaussian with a known mu: scores are N(mu, 1) in and N(0, 1) out. Its trade-off curve
is Gaussian, so every estimator's assumption holds and epsilon(mu, delta) is the truth for all.
"""

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.errors import require
from audit.statistics import conversions
from audit.statistics.estimate import ESTIMATORS

Array = NDArray[np.float64]
_SLACK = 1e-9  # epsilon above the truth by rounding alone is no excess


class KnownMechanism(NamedTuple):
    """A known mechanism and how it is audited: n_scores / 2 scores a world, `audits` times."""

    mu: float
    n_scores: int
    audits: int
    delta: float
    confidence: float
    seed: int


class Calibration(NamedTuple):
    """One method over all audits of a known mechanism; low and high are the 5% and 95% quantiles."""

    method: str
    setting: KnownMechanism
    exceeding: float  # share of audits with epsilon above the truth
    mean_mu: float | None
    mean_epsilon: float
    std_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float


def calibrate(
    setting: KnownMechanism, processes: int = 1, done: Callable[[int], object] = lambda audits: None
) -> list[Calibration]:
    """Audits a known Gaussian mechanism with every estimator; `done` hears of each audit that ends.

    An audit's scores depend on the seed and its index alone, not on `processes`. Raises InputError
    for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(setting.n_scores >= 2, f"n_scores is {setting.n_scores}: give at least 2")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_delta(setting.delta)
    conversions.require_confidence(setting.confidence)
    rows = []
    for row in _audits(setting, processes):
        rows.append(row)
        done(1)
    truth = conversions.epsilon_from_mu(setting.mu, setting.delta)
    values = np.array(rows)  # (audits, methods, 2)
    return [_summary(method, setting, values[:, i], truth) for i, method in enumerate(ESTIMATORS)]


def allowed_share(claimed: float, audits: int, error: float = 1e-3) -> float:
    """The largest share of excesses that a method at level `claimed` shows but with probability at most
    `error`: what "beyond sampling error" means."""
    return float(np.ceil(special.bdtrik(1 - error, audits, claimed))) / audits


def _audits(setting: KnownMechanism, processes: int) -> Iterator[list[tuple[float, float]]]:
    """Every audit's (epsilon, mu) by method, in order."""
    tasks = [(setting, index) for index in range(setting.audits)]
    if processes == 1:
        yield from map(_audit, tasks)
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, spawn) as pool:
        yield from pool.map(_audit, tasks, chunksize=max(1, min(50, len(tasks) // processes)))


def _audit(task: tuple[KnownMechanism, int]) -> list[tuple[float, float]]:
    """One audit's (epsilon, mu) by method; mu is NaN where there is none."""
    setting, index = task
    rng = np.random.default_rng([setting.seed, index])
    half = setting.n_scores // 2
    scores_in, scores_out = rng.normal(setting.mu, 1, half), rng.normal(0, 1, half)
    bounds = [
        method(scores_in, scores_out, setting.delta, setting.confidence) for method in ESTIMATORS.values()
    ]
    return [(b.epsilon, np.nan if b.mu is None else b.mu) for b in bounds]


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
