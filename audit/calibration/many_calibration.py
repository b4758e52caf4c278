"""Audits with many canaries a run whose truth is known: do the methods cover, however canaries are tied?

Scores are signal * mu * presence + noise, of one law for every canary, in the design of coins or of sets. The
canaries of a run are tied by a `Tie`:

    independent    noise of its own for every canary
    shifted        half of the noise's variance is common to the canaries of a run
    equal          one noise for all canaries of a run
    failing        in 3 / n of n runs nothing is inserted: what a test of n runs sees least of

The truth is the supremum over thresholds of the parameter through the average error rates: no smaller one is
compatible with them, and a bound may reach it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from audit.calibration import calibration
from audit.errors import require
from audit.evidence.canaries import Coins, Design, Sets
from audit.laws import conversions
from audit.methods import lifted

Array = NDArray[np.float64]
_SLACK = 1e-9
_REACH = 5.0  # deviations beyond both worlds' centres, for the supremum over thresholds


class Noise(NamedTuple):
    """A tie's part in scores: signal (n, 1), 0 where a run fails, and noise (n, K) of deviation 1."""

    signal: Array
    noise: Array


def _never(runs: int) -> float:
    return 0.0


class Tie(NamedTuple):
    """How canaries of a run hang together: a sampler (rng, runs, canaries), and how many runs fail."""

    name: str
    sample: Callable[[np.random.Generator, int, int], Noise]
    failing: Callable[[int], float] = _never


class ManyCanaries(NamedTuple):
    """n runs with K canaries of one mu and tie, audited many times: n of coins, or n a set.

    Parameters are checked by `calibrate`.
    """

    mu: float
    runs: int
    canaries: int
    tie: Tie
    coins: bool
    audits: int
    delta: float
    confidence: float
    seed: int


class ManyCalibration(NamedTuple):
    """One method over all audits of a setting: the share of them with its parameter above the truth, and
    the mean epsilon; low and high are the 5% and 95% quantiles."""

    method: str
    setting: ManyCanaries
    exceeding: float
    mean_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float
    mean_mu: float | None
    true_mu: float


def _independent(rng: np.random.Generator, runs: int, canaries: int) -> Noise:
    return Noise(np.ones((runs, 1)), rng.standard_normal((runs, canaries)))


def _shifted(rng: np.random.Generator, runs: int, canaries: int) -> Noise:
    own, common = rng.standard_normal((runs, canaries)), rng.standard_normal((runs, 1))
    return Noise(np.ones((runs, 1)), (own + common) / np.sqrt(2))


def _equal(rng: np.random.Generator, runs: int, canaries: int) -> Noise:
    return Noise(np.ones((runs, 1)), np.repeat(rng.standard_normal((runs, 1)), canaries, 1))


def _share(runs: int) -> float:
    return min(3 / runs, 1.0)


def _failing(rng: np.random.Generator, runs: int, canaries: int) -> Noise:
    works = rng.random((runs, 1)) >= _share(runs)
    return Noise(works.astype(np.float64), rng.standard_normal((runs, canaries)))


TIES = {
    "independent": Tie("independent", _independent),
    "shifted": Tie("shifted", _shifted),
    "equal": Tie("equal", _equal),
    "failing": Tie("failing", _failing, _share),
}


def calibrate(
    setting: ManyCanaries, processes: int = 1, done: Callable[[int], object] = lambda audits: None
) -> list[ManyCalibration]:
    """Audits a known mechanism with every usable method of `lifted`; `done` hears of each audit that ends.

    An audit's scores depend on the seed and its index alone. Raises InputError for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(setting.canaries >= 1, f"`canaries={setting.canaries}`: give at least 1")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    values = calibration.every_audit(_audit, setting, setting.audits, processes, done)
    table, truths = np.array(values), _truths(setting)  # (audits, methods, 2)
    methods = lifted.usable(setting.canaries)
    return [_summary(method, setting, table[:, i], truths) for i, method in enumerate(methods)]


def draw(setting: ManyCanaries, index: int) -> Design:
    """The scores of one audit."""
    rng = np.random.default_rng([setting.seed, index])
    shape = setting.runs, setting.canaries
    if not setting.coins:
        (signal, noise), (_, fresh) = setting.tie.sample(rng, *shape), setting.tie.sample(rng, *shape)
        return Sets(signal * setting.mu + noise, fresh)
    present, (signal, noise) = rng.random(shape) < 0.5, setting.tie.sample(rng, *shape)
    return Coins(signal * setting.mu * present + noise, present)


def _audit(task: tuple[ManyCanaries, int]) -> list[tuple[float, float]]:
    setting, index = task
    found = lifted.bounds(draw(setting, index), setting.delta, setting.confidence)
    return [(bound.epsilon, np.nan if bound.mu is None else bound.mu) for bound in found]


def _truths(setting: ManyCanaries) -> tuple[float, float]:
    """(epsilon at delta, mu): suprema over thresholds of what the average error rates need."""
    fails = setting.tie.failing(setting.runs)
    thresholds = np.linspace(-_REACH, setting.mu + _REACH, 20_001)
    out = special.ndtr(-thresholds)
    into = (1 - fails) * special.ndtr(thresholds - setting.mu) + fails * special.ndtr(thresholds)
    epsilon = conversions.epsilon_from_rates(out, into, setting.delta)
    return max(float(epsilon.max()), 0.0), max(float(conversions.mu_from_rates(out, into).max()), 0.0)


def _summary(
    method: str, setting: ManyCanaries, values: Array, truths: tuple[float, float]
) -> ManyCalibration:
    """The summary of (audits, 2) values: mu is held against mu where the method gives one."""
    epsilon, mu = values[:, 0], values[:, 1]
    of_mu = not np.isnan(mu[0])
    exceeding = mu > truths[1] + _SLACK if of_mu else epsilon > truths[0] + _SLACK
    low, high = float(np.quantile(epsilon, 0.05)), float(np.quantile(epsilon, 0.95))
    found = float(exceeding.mean()), float(epsilon.mean()), low, high
    truth = conversions.epsilon_from_mu(truths[1], setting.delta) if of_mu else truths[0]
    return ManyCalibration(method, setting, *found, truth, float(mu.mean()) if of_mu else None, truths[1])
