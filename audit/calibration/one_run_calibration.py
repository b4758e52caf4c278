"""One-run audits of mechanisms whose truth is known: do the bounds cover, however canaries are tied?

Every law audits one run of K canaries. All but `leaking` are Gaussian mechanisms of the same mu, so that
their truth is mu whatever ties the canaries together:

    independent    orthogonal canaries with coins
    overlapping    canaries with coins and inner products of 1/2: scores share noise and signals
    failing        in half of the runs nothing is inserted
    leaking        a score gives each coin right with the odds e^mu, and with probability delta it reveals
                   the coin, of many canaries at once: (mu, delta)-DP and no better
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
from audit.methods.one_shot import ONE_SHOT_JEFFREYS

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
_SLACK = 1e-9
_DIMENSIONS = 100  # of `cosines`, a canary
_REVEALED = 3.0  # times root K: the coins that `leaking` reveals at once


class OneRunSetting(NamedTuple):
    """K canaries in a single run of a mechanism, audited many times; `calibrate` checks the values.

    Attributes:
      law: of the run.
      mu: of the mechanism; epsilon of the law `leaking`.
      canaries: K; of the law `pairs`, how many pairs.
      audits: how often the mechanism is audited.
      delta, confidence: of the bounds.
      seed: of the scores.
    """

    law: "OneRunLaw"
    mu: float
    canaries: int
    audits: int
    delta: float
    confidence: float
    seed: int


Values = list[tuple[str, float]]  # (method, epsilon) of an audit


class OneRunLaw(NamedTuple):
    """A law of runs.

    Attributes:
      name: its name.
      audit: (generator, setting) -> the values of an audit.
      truth: setting -> the true epsilon.
    """

    name: str
    audit: Callable[[np.random.Generator, OneRunSetting], Values]
    truth: Callable[[OneRunSetting], float]


class OneRunCalibration(NamedTuple):
    """A method over all audits of a setting.

    Attributes:
      method: its name.
      setting: what was audited.
      exceeding: the share of audits with epsilon above the truth.
      mean_epsilon: over the audits.
      low_epsilon, high_epsilon: its 5% and 95% quantiles.
      true_epsilon: the truth.
    """

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
    """Audits a known mechanism with every method that its law allows.

    An audit depends on the seed and its index alone. `done` is called with 1 after each.

    Raises:
      InputError: for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    least = one_run_bounds.LEAST_COINS
    most = one_run_bounds.MOST_COINS
    require(
        least <= setting.canaries <= most,
        f"`canaries={setting.canaries}`: give {least} to {most:,}",
    )
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    audits = calibration.every_audit(_audit, setting, setting.audits, processes, done)
    table = np.array([[epsilon for _, epsilon in values] for values in audits])  # (audits, methods)
    methods = [method for method, _ in audits[-1]]
    truth = setting.law.truth(setting)
    return [_summarise(method, setting, table[:, i], truth) for i, method in enumerate(methods)]


def _audit(task: tuple[OneRunSetting, int]) -> Values:
    """Audits a setting once: (setting, index of the audit)."""
    setting, index = task
    return setting.law.audit(np.random.default_rng([setting.seed, index]), setting)


def _summarise(
    method: str, setting: OneRunSetting, epsilon: Array, truth: float
) -> OneRunCalibration:
    """Returns a method's row from its epsilon in all audits, (audits,)."""
    return OneRunCalibration(
        method,
        setting,
        exceeding=float((epsilon > truth + _SLACK).mean()),
        mean_epsilon=float(epsilon.mean()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=truth,
    )


def _gaussian_truth(setting: OneRunSetting) -> float:
    return conversions.epsilon_from_mu(setting.mu, setting.delta)


def _leaking_truth(setting: OneRunSetting) -> float:
    return setting.mu


def _audit_coins(
    scores: Array, presence: Bits, setting: OneRunSetting, gaussian: bool = True
) -> Values:
    """Audits a run by its scores (K,) and coins (K,); `gaussian` as of `_audit_evidence`."""
    design = Coins(scores[None], presence[None])
    return _audit_evidence(one_run_bounds.weigh_coins(design), setting, gaussian)


def _audit_evidence(
    evidence: CoinEvidence, setting: OneRunSetting, gaussian: bool = True
) -> Values:
    """Returns the bounds from guesses; if not `gaussian`, without those that assume a Gaussian curve."""
    values = []
    for bound in one_run_bounds.guessed(evidence, setting.delta, setting.confidence):
        if gaussian or not bound.assumes.gaussian:
            values.append((bound.method, bound.epsilon))
    return values


def _independent(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits = rng.random(setting.canaries) < 0.5
    scores = setting.mu * bits + rng.standard_normal(setting.canaries)
    return _audit_coins(scores, bits, setting)


def _overlapping(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits = rng.random(setting.canaries) < 0.5
    common = np.sqrt(0.5) * setting.mu * bits.sum() + rng.standard_normal()
    own = np.sqrt(0.5) * setting.mu * bits + rng.standard_normal(setting.canaries)
    return _audit_coins(np.sqrt(0.5) * (common + own), bits, setting)


def _failing(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    bits = rng.random(setting.canaries) < 0.5
    works = rng.random() < 0.5
    scores = setting.mu * bits * works + rng.standard_normal(setting.canaries)
    return _audit_coins(scores, bits, setting)


def _leaking(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    canaries = setting.canaries
    bits = rng.random(canaries) < 0.5
    is_right = rng.random(canaries) < special.expit(setting.mu)
    scores = np.where(bits == is_right, 1.0, -1.0) + 0.1 * rng.random(canaries)

    revealed = min(round(_REVEALED * np.sqrt(canaries)), canaries)
    if rng.random() < setting.delta * canaries / revealed:
        places = rng.permutation(canaries)[:revealed]
        scores[places] = np.where(bits[places], 2.0, -2.0)
    return _audit_coins(scores, bits, setting, gaussian=False)


def _pairs(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    observed = setting.mu + rng.standard_normal(setting.canaries)
    unobserved = rng.standard_normal(setting.canaries)
    evidence = one_run_bounds.weigh_pairs(Cosines(observed, unobserved, 2))
    return _audit_evidence(evidence, setting)


def _cosines(rng: np.random.Generator, setting: OneRunSetting) -> Values:
    dimension = _DIMENSIONS * setting.canaries
    observed = cosine_law.simulate(rng, setting.canaries, dimension, 1 / max(setting.mu, 1e-6))
    cosines = Cosines(observed, np.empty(0), dimension)
    bounds = one_run_bounds.bounds(cosines, setting.delta, setting.confidence)
    values = [(bound.method, bound.epsilon) for bound in bounds]
    jeffreys = one_shot.in_sample(cosines, setting.delta, 1 - setting.confidence, 0.5)
    return [*values, (ONE_SHOT_JEFFREYS, jeffreys)]


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
