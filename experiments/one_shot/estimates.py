"""What tables and figures show: Table 1's Gaussian mechanism simulated, with floors where nothing leaks, and
what kept federated trainings say: one run's cosines as estimates, and its accuracy.

From all iterates the estimate fits normal laws to maxima over rounds, which they are not (Errata O13).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.statistics import conversions, cosine_law, one_shot
from audit.statistics.accounting import epsilon_upper_bound
from audit.statistics.cosine_law import AndersonDarling
from audit.statistics.estimate import Estimate
from audit.statistics.gaussians import Gaussian
from audit.statistics.method import NoiseFloor
from audit.statistics.one_shot import FITTED, Cosines
from audit.storage.index import Holdings
from audit.storage.store import Scores
from experiments.cells import federated
from experiments.cells.cell import Levels
from experiments.one_shot.sweep import Splits, Trainings

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
Array = NDArray[np.float64]
_JEFFREYS = 0.5
_KNOWN = Gaussian(0.0, 1.0)  # the null of the final model, in units of 1/sqrt(d)


class TableCell(NamedTuple):
    """sqrt(d) canaries in R^d, noise sigma: by estimate epsilon (simulations,), and the exact epsilon."""

    sigma: float
    dimension: int
    canaries: int
    epsilons: dict[str, Array]
    exact: float


class Floors(NamedTuple):
    """Every estimate's values without any leak, for so many canaries."""

    canaries: int
    by_method: dict[str, NoiseFloor]


def cells(
    sigmas: Sequence[float],
    dimension: int,
    simulations: int,
    delta: float,
    seed: int,
    done: Callable[[int], object] = lambda simulations: None,
) -> list[TableCell]:
    """A cell a sigma at one dimension; `done` hears of each simulation. Simulations of the same number share
    their canaries between sigmas, and depend on seed, dimension and number alone."""
    require(simulations >= 2, f"`simulations={simulations}`: give at least 2")
    canaries = int(np.sqrt(dimension))
    drawn = []
    for index in range(simulations):
        rng = np.random.default_rng([seed, dimension, index])
        rows = cosine_law.rotated(rng, canaries, dimension)
        drawn.append([cosine_law.released(rng, rows, dimension, sigma) for sigma in sigmas])
        done(1)
    cosines, found = np.array(drawn), []  # (simulations, sigmas, canaries)
    for i, sigma in enumerate(sigmas):
        seen = one_shot.fit(cosines[:, i], dimension)
        values = {name: estimate(_KNOWN, seen, delta) for name, estimate in FITTED.items()}
        exact = conversions.epsilon_from_mu(1 / sigma, delta)
        found.append(TableCell(sigma, dimension, canaries, values, exact))
    return found


def floors(numbers: Sequence[int], delta: float) -> list[Floors]:
    """Floors for each number of canaries, the null known."""
    return [Floors(k, {name: one_shot.noise_floor(name, k, 0, delta) for name in FITTED}) for k in numbers]


class Observation(NamedTuple):
    """One run's canaries as they are observed: the estimate as printed, with one deviation for both worlds,
    and the paper's lower value, which is in-sample and no bound."""

    cosines: Cosines
    fitted: Estimate
    equal_variance: Estimate
    in_sample: float
    normality: AndersonDarling


class FederatedRun(NamedTuple):
    """Noise multiplier, repetitions, the paper's epsilon of one repetition, the accounted one of all, what is
    observed, and accuracies with canaries and without, if measured."""

    noise: float
    repetitions: int
    analytical: float
    accounted: float
    every: Observation
    final: Observation
    accuracy: float | None
    plain_accuracy: float | None = None

    @property
    def exceeds(self) -> bool:
        """Whether the estimate from all iterates is above the accounted epsilon by more than its error."""
        return self.every.fitted.epsilon - self.every.fitted.standard_error > self.accounted


class SplitQuantiles(NamedTuple):
    """Estimates of experiments: quantiles with all canaries in one run, and over several runs."""

    noise: float
    observe: str
    one: Array
    several: Array


def audits(
    held: Holdings, asked: Trainings, levels: Levels, with_plain: bool = False
) -> Iterator[FederatedRun]:
    """The audits that are stored; with_plain: with the accuracies without canaries."""
    for setting in asked.audited():
        noise, times = setting.noise_multiplier, setting.repetitions
        every, final = (federated.read(held, one, 1) for one in (setting, federated.final(setting)))
        bare = federated.read(held, asked.plain(noise), 1) if with_plain else None
        if every is not None and final is not None:
            yield FederatedRun(
                noise,
                times,
                epsilon_upper_bound(noise, 1, levels.delta),
                epsilon_upper_bound(noise, times, levels.delta),
                _observation(every.scores, asked.dimension, False, levels),
                _observation(final.scores, asked.dimension, True, levels),
                next(iter(every.accuracies), None),
                None if bare is None else next(iter(bare.accuracies), None),
            )


def splits(held: Holdings, asked: Splits, delta: float) -> Iterator[SplitQuantiles]:
    """Figure 4's quantiles, of noise multipliers both of whose settings are stored."""
    for noise in asked.trainings.noises:
        for final in (False, True):
            one, several = asked.one(noise), asked.several(noise)
            if final:
                one, several = federated.final(one), federated.final(several)
            alone = federated.read(held, one, asked.experiments)
            shared = federated.read(held, several, asked.experiments * asked.runs)
            if alone is not None and shared is not None:
                levels = asked.trainings.dimension, final, delta
                in_one = _quantiles(alone.scores, 1, *levels)
                in_several = _quantiles(shared.scores, asked.runs, *levels)
                yield SplitQuantiles(noise, one.observe, in_one, in_several)


def _observation(scores: Scores, dimension: int, known: bool, levels: Levels) -> Observation:
    values, bits = scores.scores[0], scores.presence[0]
    found = one_shot.of_own_game(values[bits], None if known else values[~bits], dimension)
    methods = one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE
    fitted, equal_variance = one_shot.fits(found, levels.delta, methods)
    in_sample = one_shot.in_sample(found, levels.delta, 1 - levels.confidence, _JEFFREYS)
    tested = cosine_law.anderson_darling(found.observed)
    return Observation(found, fitted, equal_variance, in_sample, tested)


def _quantiles(scores: Scores, runs: int, dimension: int, known: bool, delta: float) -> Array:
    found = []
    for first in range(0, len(scores.scores), runs):
        rows = slice(first, first + runs)
        values, bits = scores.scores[rows], scores.presence[rows]
        null = _KNOWN if known else one_shot.fit(values[~bits], dimension)
        found.append(float(one_shot.fitted(null, one_shot.fit(values[bits], dimension), delta)))
    return np.quantile(found, QUANTILES)
