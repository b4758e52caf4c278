"""Audits by the exact null of mechanisms whose truth is known: does the bound hold at all numbers of runs?

Every law gives the cosines of R runs with K canaries in, in R^d. In the world without, each is the exact law:

    gaussian     a Gaussian mechanism of mu, leave-one-out scores
    equal        the same, but the canaries of a run all have one cosine
    failing      the same, but in half of the runs nothing is inserted
    laplace      mu is epsilon: what is seen along the direction has Laplace noise
    bound        mu is epsilon: at every t, P_in(cosine > t) = min(e^epsilon a(t) + delta, 1), all that
                 (epsilon, delta)-DP allows; at mu = 0 that reveals everything with probability delta
    bound equal  the same, all canaries of a run equal
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.calibration import calibration
from audit.errors import require
from audit.evidence.canaries import Fresh
from audit.laws import conversions, cosine_law
from audit.methods import exact_null

Array = NDArray[np.float64]
MOST_COSINES = 10**7  # of an audit
_SLACK = 1e-9


class DirectionSetting(NamedTuple):
    """Runs with K uniform directions in R^d each, audited many times.

    Attributes:
      law: of the cosines.
      mu: of the mechanism; epsilon where the law says so.
      runs: the numbers of runs after which the bound is read.
      canaries: K, of a run.
      dimension: d.
      audits: how often the mechanism is audited.
      delta, confidence: of the bound.
      seed: of the cosines.
    """

    law: "DirectionLaw"
    mu: float
    runs: tuple[int, ...]
    canaries: int
    dimension: int
    audits: int
    delta: float
    confidence: float
    seed: int

    @property
    def shape(self) -> tuple[int, int]:
        """Returns (R, K), the shape of an audit's cosines."""
        return max(self.runs), self.canaries


class DirectionLaw(NamedTuple):
    """A law of cosines.

    Attributes:
      name: its name.
      draw: (generator, setting) -> an audit's cosines (R, K).
      truth: setting -> the true epsilon.
    """

    name: str
    draw: Callable[[np.random.Generator, DirectionSetting], Array]
    truth: Callable[[DirectionSetting], float]


class DirectionCalibration(NamedTuple):
    """All audits of a setting after a number of runs.

    Attributes:
      setting: what was audited.
      runs: the number of runs.
      exceeding: the share of audits in which the bound exceeded the truth until then.
      mean_epsilon: over the audits.
      low_epsilon, high_epsilon: its 5% and 95% quantiles.
      true_epsilon: the truth.
    """

    setting: DirectionSetting
    runs: int
    exceeding: float
    mean_epsilon: float
    low_epsilon: float
    high_epsilon: float
    true_epsilon: float


def require_possible(setting: DirectionSetting) -> None:
    """Raises InputError for values out of range."""
    require(setting.mu >= 0, f"mu is {setting.mu}: it must be at least 0")
    require(min(setting.runs) >= 1, f"`runs={min(setting.runs)}`: give at least 1")
    size = int(np.prod(setting.shape, dtype=float))
    most = f"at most {MOST_COSINES:,} together"
    require(setting.canaries >= 1, f"`canaries={setting.canaries}`: give at least 1")
    require(
        size <= MOST_COSINES,
        f"{setting.shape[0]:,} runs of {setting.canaries:,} canaries: give {most}",
    )
    cosine_law.require_dimension(setting.dimension)
    fits = setting.canaries < setting.dimension
    require(
        fits,
        f"`dimension={setting.dimension}`: give more than there are canaries, {setting.canaries}",
    )
    require(setting.audits >= 1, f"audits is {setting.audits}: give at least 1")
    conversions.require_levels(setting.delta, setting.confidence)


def calibrate(
    setting: DirectionSetting,
    processes: int = 1,
    done: Callable[[int], object] = lambda audits: None,
) -> list[DirectionCalibration]:
    """Returns a row for each number of runs.

    An audit depends on the seed and its index alone. `done` is called with 1 after each.

    Raises:
      InputError: for values out of range.
    """
    require_possible(setting)
    results = calibration.every_audit(epsilons, setting, setting.audits, processes, done)
    table = np.array(results)  # (audits, numbers of runs)
    truth = setting.law.truth(setting)
    return [_summarise(setting, runs, table[:, i], truth) for i, runs in enumerate(setting.runs)]


def epsilons(task: tuple[DirectionSetting, int]) -> Array:
    """Returns what an audit, (setting, index), proves after each number of runs."""
    setting, index = task
    cosines = setting.law.draw(np.random.default_rng([setting.seed, index]), setting)
    design = Fresh(cosines, np.ones(cosines.shape, bool), setting.dimension)
    proof = exact_null.prove(design, setting.delta, setting.confidence)
    return np.asarray(proof.path[np.array(setting.runs) - 1])


def _summarise(
    setting: DirectionSetting, runs: int, epsilon: Array, truth: float
) -> DirectionCalibration:
    """Returns the row of a number of runs from epsilon after it in all audits, (audits,)."""
    return DirectionCalibration(
        setting,
        runs,
        exceeding=float((epsilon > truth + _SLACK).mean()),
        mean_epsilon=float(epsilon.mean()),
        low_epsilon=float(np.quantile(epsilon, 0.05)),
        high_epsilon=float(np.quantile(epsilon, 0.95)),
        true_epsilon=truth,
    )


def _gaussian_truth(setting: DirectionSetting) -> float:
    return conversions.epsilon_from_mu(setting.mu, setting.delta)


def _mu(setting: DirectionSetting) -> float:
    return setting.mu


def _shifted(
    rng: np.random.Generator, mu: Array, shape: tuple[int, int], setting: DirectionSetting
) -> Array:
    """Draws leave-one-out cosines.

    Of v_j, a share that is Beta lies outside of the others' span; there u_j is mu times that part and
    standard normal noise.
    """
    free = setting.dimension - setting.canaries  # dimensions left, less the one along v_j's part
    if setting.canaries > 1:
        outside = rng.beta((free + 1) / 2, (setting.canaries - 1) / 2, shape)
    else:
        outside = np.ones(shape)
    along = mu * np.sqrt(outside) + rng.standard_normal(shape)
    length = np.sqrt(along**2 + rng.chisquare(free, shape))
    return np.asarray(np.sqrt(outside) * along / length)


def _gaussian(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    return _shifted(rng, np.array(setting.mu), setting.shape, setting)


def _equal(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    runs, canaries = setting.shape
    return np.repeat(_shifted(rng, np.array(setting.mu), (runs, 1), setting), canaries, 1)


def _failing(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    works = (rng.random((setting.shape[0], 1)) < 0.5).astype(np.float64)
    return _shifted(rng, setting.mu * works, setting.shape, setting)


def _laplace(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    along = setting.mu + rng.laplace(size=setting.shape)
    return -cosine_law.quantile(stats.laplace.sf(along), setting.dimension)


def _on_bound(rng: np.random.Generator, setting: DirectionSetting, shape: tuple[int, int]) -> Array:
    """Draws cosines whose P_in is all that (epsilon, delta)-DP allows."""
    tail = np.maximum(rng.random(shape) - setting.delta, 0) * np.exp(-setting.mu)  # a(cosine)
    return -cosine_law.quantile(tail, setting.dimension)


def _bound(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    return _on_bound(rng, setting, setting.shape)


def _bound_equal(rng: np.random.Generator, setting: DirectionSetting) -> Array:
    runs, canaries = setting.shape
    return np.repeat(_on_bound(rng, setting, (runs, 1)), canaries, 1)


LAWS = {
    law.name: law
    for law in (
        DirectionLaw("gaussian", _gaussian, _gaussian_truth),
        DirectionLaw("equal", _equal, _gaussian_truth),
        DirectionLaw("failing", _failing, _gaussian_truth),
        DirectionLaw("laplace", _laplace, _mu),
        DirectionLaw("bound", _bound, _mu),
        DirectionLaw("bound equal", _bound_equal, _mu),
    )
}
