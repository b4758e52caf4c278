"""What a setting says of its conclusion beforehand: the mu that insertions alone make, and why a curve is
Gaussian."""

import math

from audit import zoo
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting


def predicted_mu(setting: Setting) -> float | None:
    """mu of the biased dimension's score where genuine gradients do not interfere: insertions add up and
    all steps' noise does, so mu = sqrt(insertions / k) / sigma (derived in
    experiments/hidden_state/README.md). None where that is not known: small models, other adversaries or
    optimizers, sampled insertions, an unknown initialisation (Errata H14)."""
    mechanism, task = setting.mechanism, zoo.tasks().get(setting.model)
    plain = mechanism.optimizer == "sgd" and not setting.unknown_initialisation and setting.sampling_rate == 1
    crafted = adversary_row(setting.adversary.name).biased and task is not None and task.over_parameterised
    if not (plain and crafted and mechanism.noise_multiplier > 0):
        return None
    return math.sqrt(setting.insertions / setting.schedule.periodicity) / mechanism.noise_multiplier


def gaussian_reason(setting: Setting) -> str:
    """Why the setting's trade-off curve should be Gaussian, in a line of 68 columns; empty where nothing says
    so."""
    return (
        "" if predicted_mu(setting) is None else "it has a reason: Gaussian noise on one crafted coordinate"
    )
