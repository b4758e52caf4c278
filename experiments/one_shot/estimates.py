"""The numbers that tables and figures show.

Simulated: Table 1's Gaussian mechanism, with floors where nothing leaks. From stored federated training runs:
one run's cosines as estimates, and its accuracy.

With all iterates the estimate fits normal laws to maxima over rounds, which are not normal (Errata O13).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.errors import require
from audit.evidence import one_run as one_run_evidence
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law
from audit.laws.cosine_law import AndersonDarling
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.estimate import Estimate
from audit.methods.level import Level
from audit.methods.method import NoiseFloor
from audit.methods.one_shot import (
    FITTED,
)
from audit.storage.index import Holdings
from audit.storage.store import Scores
from experiments.cells import federated
from experiments.one_shot.sweep import SplitPlan, TrainingPlan

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
Array = NDArray[np.float64]
_JEFFREYS_PRIOR = 0.5
_FINAL_MODEL_NULL = Gaussian(0.0, 1.0)  # in units of 1/sqrt(d)


class TableCell(NamedTuple):
    """A cell of Table 1.

    Attributes:
      sigma: The standard deviation of the noise; the sensitivity is 1.
      dimension: The dimension d.
      canaries: The number of canaries, sqrt(d) rounded down.
      epsilons: The estimates of epsilon (simulations,), by method.
      exact: The mechanism's exact epsilon.
    """

    sigma: float
    dimension: int
    canaries: int
    epsilons: dict[str, Array]
    exact: float


class Floors(NamedTuple):
    """What every estimate shows where nothing leaks.

    Attributes:
      canaries: The number of canaries.
      by_method: Each estimate's noise floor, by method.
    """

    canaries: int
    by_method: dict[str, NoiseFloor]


def simulate_cells(
    sigmas: Sequence[float],
    dimension: int,
    simulations: int,
    delta: float,
    seed: int,
) -> list[TableCell]:
    """Simulates the cells of the paper's Table 1 at a single dimension, a cell for each sigma.

    A simulation draws canaries (unit vectors), their sum plus noise, which is released, and each canary's
    cosine with the release. Estimates of epsilon follow from the mean and deviation of the cosines.

    The i-th simulation draws its canaries once for all sigmas, from the seed, the dimension and i alone.

    Args:
      sigmas: The standard deviations of the noise.
      dimension: The dimension d; there are sqrt(d) canaries, rounded down.
      simulations: The number of simulations of each cell, at least 2, since tables show their deviation.
      delta: The delta of every epsilon.
      seed: The seed of all draws.

    Returns:
      The cells, each with its exact epsilon and, by estimate, the epsilons (simulations,).
    """
    require(simulations >= 2, f"`simulations={simulations}`: give at least 2")
    canaries = int(np.sqrt(dimension))
    drawn = []
    for number in range(simulations):
        rng = np.random.default_rng([seed, dimension, number])
        # The canaries are uniform directions, in coordinates of their own span to need little memory. Then
        # come their cosines with a noisy release for each sigma.
        rows = cosine_law.draw_canaries(rng, canaries, dimension)
        drawn.append([cosine_law.draw_cosines(rng, rows, dimension, sigma) for sigma in sigmas])
    cosines = np.array(drawn)  # (simulations, sigmas, canaries)

    cells = []
    for place, sigma in enumerate(sigmas):
        # Each simulation's normal law of the cosines. It is compared to their law where nothing leaks, which
        # is about N(0, 1) in the same units, 1/sqrt(d).
        observed = one_shot.fit(cosines[:, place], dimension)
        epsilons = {}
        for name, estimate in FITTED.items():
            epsilons[name] = estimate(_FINAL_MODEL_NULL, observed, delta)
        # A canary has length 1: the mechanism is Gaussian-DP with mu = 1 / sigma.
        exact = conversions.epsilon_from_mu(1 / sigma, delta)
        cells.append(TableCell(sigma, dimension, canaries, epsilons, exact))
    return cells


def floors(numbers: Sequence[int], delta: float) -> list[Floors]:
    """Computes what every estimate shows where nothing leaks, for each number of canaries.

    The null law of the cosines is taken as known, as it is for the final model: no canaries are held out to
    fit it.

    Args:
      numbers: The numbers of canaries.
      delta: The delta of every epsilon.
    """
    rows = []
    for canaries in numbers:
        by_method = {
            name: one_shot.noise_floor(name, canaries, unobserved=0, delta=delta) for name in FITTED
        }
        rows.append(Floors(canaries, by_method))
    return rows


class Observation(NamedTuple):
    """The cosines of a single run's canaries, under one kind of observation, and what they show.

    Attributes:
      cosines: The canaries' cosines.
      fitted: The estimate as printed in the paper.
      equal_variance: The estimate with the same deviation for both worlds.
      in_sample: The paper's lower value, which takes the best of all thresholds and is no bound.
      normality: The test of normality of the cosines that are in.
    """

    cosines: Cosines
    fitted: Estimate
    equal_variance: Estimate
    in_sample: float
    normality: AndersonDarling


class FederatedRun(NamedTuple):
    """A federated training run with canaries.

    Attributes:
      noise: The noise multiplier.
      repetitions: The number of rounds in which each canary takes part.
      analytical: The accounted epsilon of one repetition, as the paper has it.
      accounted: The accounted epsilon of all repetitions.
      all_iterates: The canaries as observed with all iterates.
      final_model: The canaries as observed with the final model.
      accuracy: The accuracy with canaries; None where it was not measured.
      plain_accuracy: The accuracy without canaries; None where it was not measured.
    """

    noise: float
    repetitions: int
    analytical: float
    accounted: float
    all_iterates: Observation
    final_model: Observation
    accuracy: float | None
    plain_accuracy: float | None = None

    @property
    def exceeds(self) -> bool:
        """Whether the estimate from all iterates exceeds the accounted epsilon by more than its error."""
        estimate = self.all_iterates.fitted
        return estimate.epsilon - estimate.standard_error > self.accounted


class SplitQuantiles(NamedTuple):
    """Quantiles of the estimates of many experiments.

    Attributes:
      noise: The noise multiplier.
      observe: The setting's word for what the observer sees: "all" iterates or the "final" model.
      one_run: The quantiles (len(QUANTILES),) with all canaries in a single run.
      several_runs: The quantiles (len(QUANTILES),) with the canaries spread over several runs.
    """

    noise: float
    observe: str
    one_run: Array
    several_runs: Array


def read_runs(
    held: Holdings, plan: TrainingPlan, levels: Level, with_plain: bool = False
) -> Iterator[FederatedRun]:
    """Yields a plan's training runs, for those of its settings whose scores are stored.

    A run's scores have to be stored both with all iterates and with the final model.

    Args:
      held: The store's holdings.
      plan: The clients, and how they are trained.
      levels: The delta of the estimates, and the confidence of the paper's lower value (`in_sample`).
      with_plain: Whether to read the accuracies of training without canaries too.
    """
    observe = partial(_observe, dimension=plan.dimension, levels=levels)
    for setting in plan.audit_settings():
        noise = setting.noise_multiplier
        all_iterates = federated.read(held, setting, runs=1)
        final_model = federated.read(held, federated.final(setting), runs=1)
        # Each setting has a single run: the first accuracy is its accuracy, if there is one.
        plain_accuracy = None
        if with_plain:
            plain = federated.read(held, plan.without_canaries(noise), runs=1)
            if plain is not None:
                plain_accuracy = next(iter(plain.accuracies), None)
        if all_iterates is not None and final_model is not None:
            yield FederatedRun(
                noise,
                setting.repetitions,
                # The paper accounts for a canary that takes part once, however often it does.
                analytical=epsilon_upper_bound(noise, 1, levels.delta),
                accounted=epsilon_upper_bound(noise, setting.repetitions, levels.delta),
                all_iterates=observe(all_iterates.scores, null_is_known=False),
                final_model=observe(final_model.scores, null_is_known=True),
                accuracy=next(iter(all_iterates.accuracies), None),
                plain_accuracy=plain_accuracy,
            )


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[SplitQuantiles]:
    """Yields the quantiles over experiments of estimates of epsilon, for each panel of Figure 4.

    A panel has a noise multiplier and what the observer sees: all iterates, or the final model alone. It is
    left out if the store lacks scores, either of the experiments with all canaries in a single run or of
    those with the canaries spread over several runs.

    Args:
      held: The store's holdings.
      plan: The experiments: all canaries in a single run, against as many canaries over several runs.
      delta: The delta of every epsilon.
    """
    for noise in plan.training.noises:
        for is_final in (False, True):
            one_run = plan.one_run(noise)
            several_runs = plan.several_runs(noise)
            if is_final:  # the same training runs, observed by their final models
                one_run = federated.final(one_run)
                several_runs = federated.final(several_runs)
            in_one = federated.read(held, one_run, plan.experiments)
            in_several = federated.read(held, several_runs, plan.experiments * plan.runs)
            if in_one is not None and in_several is not None:
                dimension = plan.training.dimension
                yield SplitQuantiles(
                    noise,
                    one_run.observe,
                    _compute_quantiles(in_one.scores, 1, dimension, is_final, delta),
                    _compute_quantiles(in_several.scores, plan.runs, dimension, is_final, delta),
                )


def _observe(scores: Scores, dimension: int, null_is_known: bool, levels: Level) -> Observation:
    """Computes the estimates, the paper's lower value and the test of normality from a setting's first run.

    The test, Anderson and Darling's, is of the cosines of canaries that are in: the estimates take them to be
    normal.

    Args:
      scores: The cosines, and which canaries were in.
      dimension: d, the number of trainable parameters.
      null_is_known: Whether the cosines of canaries that are out have the law of uniform directions, as with
        the final model. If not, a normal law is fitted to them.
      levels: The delta of the estimates, and the confidence of the paper's lower value (`in_sample`).
    """
    values = scores.scores[0]  # (canaries,), of the first run
    presence = scores.presence[0]  # (canaries,), whether each is in
    unobserved = None if null_is_known else values[~presence]
    cosines = one_run_evidence.check_own_cosines(values[presence], unobserved, dimension)
    methods = (one_shot.ONE_SHOT_FITTED, one_shot.ONE_SHOT_EQUAL_VARIANCE)
    fitted, equal_variance = one_shot.estimate_from_fits(cosines, levels.delta, methods)
    # Each error rate has a limit on a single side, which holds with the given confidence.
    error = 1 - levels.confidence
    in_sample = one_shot.in_sample(cosines, levels.delta, error, _JEFFREYS_PRIOR)
    normality = cosine_law.anderson_darling(cosines.observed)
    return Observation(cosines, fitted, equal_variance, in_sample, normality)


def _compute_quantiles(
    scores: Scores, runs: int, dimension: int, null_is_known: bool, delta: float
) -> Array:
    """Returns the quantiles (len(QUANTILES),) of the fitted estimate over experiments.

    An experiment pools the cosines of `runs` consecutive runs.

    Args:
      scores: The cosines of all runs, one experiment after the other.
      runs: The number of runs of an experiment.
      dimension: d, the number of trainable parameters.
      null_is_known: Whether the cosines of canaries that are out have the law of uniform directions. If not,
        a normal law is fitted to them.
      delta: The delta of every epsilon.
    """
    epsilons = []
    for first in range(0, len(scores.scores), runs):
        values = scores.scores[first : first + runs]
        presence = scores.presence[first : first + runs]
        null = _FINAL_MODEL_NULL
        if not null_is_known:
            null = one_shot.fit(values[~presence], dimension)
        observed = one_shot.fit(values[presence], dimension)
        epsilons.append(float(one_shot.fitted(null, observed, delta)))
    return np.quantile(epsilons, QUANTILES)
