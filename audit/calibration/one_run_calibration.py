"""One-run audits of mechanisms whose truth is known: do the bounds cover, however canaries hang together?

Every law audits one run of K canaries. All but `leaking` are Gaussian mechanisms of the same mu, so that
their truth is mu whatever ties the canaries together:

    independent    orthogonal canaries with coins
    overlapping    canaries with coins and inner products of 1/2: scores share noise and signals
    failing        in half of the runs nothing is inserted
    leaking        each coin's truth is told with the odds e^mu, and with probability delta it is laid open,
                   many at once: (mu, delta)-DP and no better
    pairs          of two orthogonal canaries each, one is inserted
    cosines        uniform canaries that are all inserted (`cosine_law.simulate`)
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.calibration import calibration
from audit.errors import require
from audit.evidence.canaries import Coins
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law
from audit.methods import one_run_bounds, one_shot
from audit.methods.one_run_bounds import CoinEvidence
from audit.methods.one_shot import (
    ONE_SHOT_JEFFREYS,
)

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
_SLACK = 1e-9
_DIMENSIONS = 100  # of `cosines`, a canary
_OPEN = 3.0  # root canaries that `leaking` lays open at once


class OneRunSetting(NamedTuple):
    """K canaries in one run of a mechanism of one mu, audited many times; `calibrate` checks them."""

    law: "OneRunLaw"
    mu: float
    canaries: int
    audits: int
    delta: float
    confidence: float
    seed: int


Values = list[tuple[str, float]]


class OneRunLaw(NamedTuple):
    """A law's name, one audit's (method, epsilon) by a generator, and the true epsilon."""

    name: str
    audit: Callable[[np.random.Generator, OneRunSetting], Values]
    truth: Callable[[OneRunSetting], float]


class OneRunCalibration(NamedTuple):
    """One method over all audits of a setting: the share above the truth; epsilon's mean, 5%, 95%."""

    method: str
    setting: OneRunSetting
    exceeding: float
    mean_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float


def calibrate(
    setting: OneRunSetting, processes: int = 1, done: Callable[[int], object] = lambda audits: None
) -> list[OneRunCalibration]:
    """Audits a known mechanism with every method that its law allows; `done` hears of each audit that ends.

    An audit depends on the seed and its index alone. Raises InputError for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    least, most = one_run_bounds.LEAST_COINS, one_run_bounds.MOST_COINS
    require(least <= setting.canaries <= most, f"`canaries={setting.canaries}`: give {least} to {most:,}")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    found = calibration.every_audit(_audit, setting, setting.audits, processes, done)
    table = np.array([[epsilon for _, epsilon in values] for values in found])  # (audits, methods)
    truth = setting.law.truth(setting)
    return [_summary(name, setting, table[:, i], truth) for i, (name, _) in enumerate(found[-1])]


def _audit(task: tuple[OneRunSetting, int]) -> Values:
    setting, index = task
    return setting.law.audit(np.random.default_rng([setting.seed, index]), setting)


def _summary(method: str, setting: OneRunSetting, epsilon: Array, truth: float) -> OneRunCalibration:
    exceeding, mean = float((epsilon > truth + _SLACK).mean()), float(epsilon.mean())
    low, high = float(np.quantile(epsilon, 0.05)), float(np.quantile(epsilon, 0.95))
    return OneRunCalibration(method, setting, exceeding, mean, low, high, truth)


def _gaussian_truth(setting: OneRunSetting) -> float:
    return conversions.epsilon_from_mu(setting.mu, setting.delta)


def _leaking_truth(setting: OneRunSetting) -> float:
    return setting.mu


def _of_coins(scores: Array, presence: Bits, setting: OneRunSetting, gaussian: bool = True) -> Values:
    return _guessed(one_run_bounds.of_coins(Coins(scores[None], presence[None])), setting, gaussian)


def _guessed(evidence: CoinEvidence, setting: OneRunSetting, gaussian: bool = True) -> Values:
    found = one_run_bounds.guessed(evidence, setting.delta, setting.confidence)
    return [(bound.method, bound.epsilon) for bound in found if gaussian or not bound.assumes.gaussian]


def _independent(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits = rng.random(setting.canaries) < 0.5
    return _of_coins(setting.mu * bits + rng.standard_normal(setting.canaries), bits, setting)


def _overlapping(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits = rng.random(setting.canaries) < 0.5
    common = np.sqrt(0.5) * setting.mu * bits.sum() + rng.standard_normal()
    own = np.sqrt(0.5) * setting.mu * bits + rng.standard_normal(setting.canaries)
    return _of_coins(np.sqrt(0.5) * (common + own), bits, setting)


def _failing(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits, works = rng.random(setting.canaries) < 0.5, rng.random() < 0.5
    return _of_coins(setting.mu * bits * works + rng.standard_normal(setting.canaries), bits, setting)


def _leaking(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    canaries = setting.canaries
    bits, honest = rng.random(canaries) < 0.5, rng.random(canaries) < special.expit(setting.mu)
    scores = np.where(bits == honest, 1.0, -1.0) + 0.1 * rng.random(canaries)
    opened = min(round(_OPEN * np.sqrt(canaries)), canaries)
    if rng.random() < setting.delta * canaries / opened:
        places = rng.permutation(canaries)[:opened]
        scores[places] = np.where(bits[places], 2.0, -2.0)
    return _of_coins(scores, bits, setting, gaussian=False)


def _pairs(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    observed = setting.mu + rng.standard_normal(setting.canaries)
    evidence = one_run_bounds.of_pairs(Cosines(observed, rng.standard_normal(setting.canaries), 2))
    return _guessed(evidence, setting)


def _cosines(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    dimension = _DIMENSIONS * setting.canaries
    drawn = cosine_law.simulate(rng, setting.canaries, dimension, 1 / max(setting.mu, 1e-6))
    found = Cosines(drawn, np.empty(0), dimension)
    bounds = one_run_bounds.bounds(found, setting.delta, setting.confidence)
    jeffreys = one_shot.in_sample(found, setting.delta, 1 - setting.confidence, 0.5)
    return [*((bound.method, bound.epsilon) for bound in bounds), (ONE_SHOT_JEFFREYS, jeffreys)]


LAWS = {
    law.name: law
    for law in (
        OneRunLaw("independent", _independent, _gaussian_truth),
        OneRunLaw("overlapping", _overlapping, _gaussian_truth),
        OneRunLaw("failing", _failing, _gaussian_truth),
        OneRunLaw("leaking", _leaking, _leaking_truth),
        OneRunLaw("pairs", _pairs, _gaussian_truth),
        OneRunLaw("cosines", _cosines, _gaussian_truth),
    )
}
