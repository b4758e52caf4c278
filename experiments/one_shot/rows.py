"""What kept federated trainings say: one run's cosines as estimates, and its accuracy.

From all iterates the estimate fits normal laws to maxima over rounds, which they are not (Errata O13).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.statistics import cosine_law, one_shot
from audit.statistics.accounting import epsilon_upper_bound
from audit.statistics.cosine_law import AndersonDarling
from audit.statistics.gaussians import Gaussian
from audit.statistics.one_shot import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, Cosines, OneShotEstimate
from audit.storage.index import Holdings
from audit.storage.store import Scores
from experiments.cells import federated as cells
from experiments.cells.cell import Levels
from experiments.one_shot.sweep import Splits, Trainings

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
_JEFFREYS = 0.5
_KNOWN = Gaussian(0.0, 1.0)  # the null of the final model, in units of 1/sqrt(d)


class Observation(NamedTuple):
    """One run's canaries as they are observed: the estimate as printed, with one deviation for both worlds,
    and the paper's lower value, which is in-sample and no bound."""

    cosines: Cosines
    fitted: OneShotEstimate
    equal_variance: OneShotEstimate
    in_sample: float
    normality: AndersonDarling


class FederatedRun(NamedTuple):
    """A training: noise multiplier, repetitions, the paper's analytical epsilon, which is that of one
    repetition, the accounted one of all, what is observed, and the accuracies with canaries and without where
    they were measured."""

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
    one: NDArray[np.float64]
    several: NDArray[np.float64]


def audits(
    held: Holdings, asked: Trainings, levels: Levels, with_plain: bool = False
) -> Iterator[FederatedRun]:
    """The audits that are stored; with_plain: with the accuracies without canaries."""
    for setting in asked.audited():
        noise, times = setting.noise_multiplier, setting.repetitions
        every, final = (cells.read(held, one, 1) for one in (setting, cells.final(setting)))
        bare = cells.read(held, asked.plain(noise), 1) if with_plain else None
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
                one, several = cells.final(one), cells.final(several)
            alone = cells.read(held, one, asked.experiments)
            shared = cells.read(held, several, asked.experiments * asked.runs)
            if alone is not None and shared is not None:
                dimension = asked.trainings.dimension
                values = (
                    _quantiles(alone.scores, 1, dimension, final, delta),
                    _quantiles(shared.scores, asked.runs, dimension, final, delta),
                )
                yield SplitQuantiles(noise, one.observe, *values)


def _observation(scores: Scores, dimension: int, known: bool, levels: Levels) -> Observation:
    """Run 0's canaries; known: whether the law of a cosine without a leak is."""
    values, bits = scores.scores[0], scores.presence[0]
    found = one_shot.cosines(values[bits], None if known else values[~bits], dimension)
    fits = one_shot.fits(found, levels.delta, (ONE_SHOT_FITTED, ONE_SHOT_EQUAL_VARIANCE))
    rows = {row.method: row for row in fits}
    in_sample = one_shot.in_sample(found, levels.delta, 1 - levels.confidence, _JEFFREYS)
    tested = cosine_law.anderson_darling(found.observed)
    return Observation(found, rows[ONE_SHOT_FITTED], rows[ONE_SHOT_EQUAL_VARIANCE], in_sample, tested)


def _quantiles(scores: Scores, runs: int, dimension: int, known: bool, delta: float) -> NDArray[np.float64]:
    """Quantiles of the estimates from each `runs` runs' cosines together."""
    found = []
    for first in range(0, len(scores.scores), runs):
        rows = slice(first, first + runs)
        values, bits = scores.scores[rows], scores.presence[rows]
        null = _KNOWN if known else one_shot.fit(values[~bits], dimension)
        found.append(float(one_shot.fitted(null, one_shot.fit(values[bits], dimension), delta)))
    return np.quantile(found, QUANTILES)
