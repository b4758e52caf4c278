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
    """A tie's part in scores.

    Attributes:
      signal: (n, 1), 0 where a run fails, else 1.
      noise: (n, K), of deviation 1.
    """

    signal: Array
    noise: Array


def _never(runs: int) -> float:
    return 0.0


class Tie(NamedTuple):
    """A way in which the canaries of a run depend on each other.

    Attributes:
      name: its name.
      sample: (generator, runs, canaries) -> its part in the scores.
      failing: runs -> the share of them that fails.
    """

    name: str
    sample: Callable[[np.random.Generator, int, int], Noise]
    failing: Callable[[int], float] = _never


class ManyCanaries(NamedTuple):
    """Runs with K canaries of the same mu each, audited many times; `calibrate` checks the values.

    Attributes:
      mu: of every canary.
      runs: n, of coins, or of each of two sets.
      canaries: K, of a run.
      tie: how they depend on each other.
      coins: whether the design is that of coins; else it is that of two sets.
      audits: how often the mechanism is audited.
      delta, confidence: of the bounds.
      seed: of the scores.
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
    """A method over all audits of a setting.

    Attributes:
      method: its name.
      setting: what was audited.
      exceeding: the share of audits with the method's parameter, mu or epsilon, above the truth.
      mean_epsilon: over the audits.
      low_epsilon, high_epsilon: its 5% and 95% quantiles.
      true_epsilon: the truth; where the method gives mu, the epsilon of the true mu.
      mean_mu: None where the method gives no mu.
      true_mu: the truth.
    """

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
    own = rng.standard_normal((runs, canaries))
    common = rng.standard_normal((runs, 1))
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
    """Audits a known mechanism with every usable method of `lifted`.

    An audit's scores depend on the seed and its index alone. `done` is called with 1 after each.

    Raises:
      InputError: for values out of range.
    """
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(setting.canaries >= 1, f"`canaries={setting.canaries}`: give at least 1")
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)
    values = calibration.every_audit(_audit, setting, setting.audits, processes, done)
    table = np.array(values)  # (audits, methods, 2)
    truths = _truths(setting)
    methods = lifted.usable(setting.canaries)
    return [_summarise(method, setting, table[:, i], truths) for i, method in enumerate(methods)]


def draw(setting: ManyCanaries, index: int) -> Design:
    """Draws the scores of an audit, by its index."""
    rng = np.random.default_rng([setting.seed, index])
    if setting.coins:
        present = rng.random((setting.runs, setting.canaries)) < 0.5
        drawn = setting.tie.sample(rng, setting.runs, setting.canaries)
        return Coins(drawn.signal * setting.mu * present + drawn.noise, present)
    drawn_in = setting.tie.sample(rng, setting.runs, setting.canaries)
    drawn_out = setting.tie.sample(rng, setting.runs, setting.canaries)
    return Sets(drawn_in.signal * setting.mu + drawn_in.noise, drawn_out.noise)


def _audit(task: tuple[ManyCanaries, int]) -> list[tuple[float, float]]:
    """Returns each method's (epsilon, mu or NaN) in an audit, (setting, index)."""
    setting, index = task
    values = []
    for bound in lifted.bounds(draw(setting, index), setting.delta, setting.confidence):
        mu = np.nan if bound.mu is None else bound.mu
        values.append((bound.epsilon, mu))
    return values


def _truths(setting: ManyCanaries) -> tuple[float, float]:
    """Returns (epsilon at delta, mu): suprema over thresholds of what the average error rates need."""
    failing = setting.tie.failing(setting.runs)
    thresholds = np.linspace(-_REACH, setting.mu + _REACH, 20_001)
    false_positive_rates = special.ndtr(-thresholds)
    misses_of_working = special.ndtr(thresholds - setting.mu)
    misses_of_failing = special.ndtr(thresholds)
    false_negative_rates = (1 - failing) * misses_of_working + failing * misses_of_failing
    epsilons = conversions.epsilon_from_rates(
        false_positive_rates, false_negative_rates, setting.delta
    )
    mus = conversions.mu_from_rates(false_positive_rates, false_negative_rates)
    return max(float(epsilons.max()), 0.0), max(float(mus.max()), 0.0)


def _summarise(
    method: str, setting: ManyCanaries, values: Array, truths: tuple[float, float]
) -> ManyCalibration:
    """Returns a method's row from its (epsilon, mu or NaN) in all audits, (audits, 2).

    Compares mu with the true mu where the method gives one, else epsilon with the true epsilon.
    """
    epsilon = values[:, 0]
    mu = values[:, 1]
    true_epsilon, true_mu = truths
    if np.isnan(mu[0]):
        mean_mu = None
        exceeds = epsilon > true_epsilon + _SLACK
    else:
        mean_mu = float(mu.mean())
        exceeds = mu > true_mu + _SLACK
        true_epsilon = conversions.epsilon_from_mu(true_mu, setting.delta)
    return ManyCalibration(
        method,
        setting,
        exceeding=float(exceeds.mean()),
        mean_epsilon=float(epsilon.mean()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=true_epsilon,
        mean_mu=mean_mu,
        true_mu=true_mu,
    )
