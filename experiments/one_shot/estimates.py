"""The numbers that tables and figures show.

Simulated: Table 1's Gaussian mechanism. From stored federated training runs: one run's cosines as estimates,
and its accuracy. With all iterates the estimate fits normal laws to maxima over rounds, which are not normal
(Errata O13).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.errors import require
from audit.evidence import one_run as one_run_evidence
from audit.evidence.one_run import Cosines
from audit.laws import conversions, cosine_law
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.estimate import Estimate
from audit.methods.one_shot import FITTED
from audit.storage.index import Holdings
from audit.storage.store import Scores
from audit.written import Level
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


def simulate_cells(
    sigmas: Sequence[float],
    dimension: int,
    simulations: int,
    delta: float,
    seed: int,
) -> list[TableCell]:
    """Simulates the cells of the paper's Table 1 at a single dimension, a cell for each sigma.

    A simulation draws sqrt(d) canaries (unit vectors), their sum plus noise, which is released, and each
    canary's cosine with the release. Estimates of epsilon follow from the mean and deviation of the cosines.
    The i-th simulation's canaries depend on the seed, the dimension and i only.

    Args:
      sigmas: The standard deviations of the noise.
      dimension: The dimension d.
      simulations: The number of simulations of each cell, at least 2, since tables show their deviation.
      delta: The delta of every epsilon.
      seed: The seed of all draws.
    """
    require(simulations >= 2, f"`simulations={simulations}`: give at least 2")
    canaries = int(np.sqrt(dimension))
    drawn = []
    for number in range(simulations):
        rng = np.random.default_rng([seed, dimension, number])
        # The canaries are uniform directions, in coordinates of their own span to need little memory.
        rows = cosine_law.draw_canaries(rng, canaries, dimension)
        drawn.append([cosine_law.draw_cosines(rng, rows, dimension, sigma) for sigma in sigmas])
    cosines = np.array(drawn)  # (simulations, sigmas, canaries)

    cells = []
    for place, sigma in enumerate(sigmas):
        observed = one_shot.fit(cosines[:, place], dimension)
        epsilons = {}
        for name, estimate in FITTED.items():
            epsilons[name] = estimate(_FINAL_MODEL_NULL, observed, delta)
        # A canary has length 1: the mechanism is Gaussian-DP with mu = 1 / sigma.
        exact = conversions.epsilon_from_mu(1 / sigma, delta)
        cells.append(TableCell(sigma, dimension, canaries, epsilons, exact))
    return cells


class Observation(NamedTuple):
    """The cosines of a single run's canaries, from all iterates or from the final model.

    Attributes:
      cosines: The canaries' cosines.
      fitted: The estimate as printed in the paper.
      in_sample: The paper's lower value, which takes the best of all thresholds and is no bound.
    """

    cosines: Cosines
    fitted: Estimate
    in_sample: float


class FederatedRun(NamedTuple):
    """A federated training run with canaries.

    Attributes:
      plan: The clients, and how they are trained.
      noise: The noise multiplier.
      repetitions: The number of rounds in which each canary takes part.
      analytical: The accounted epsilon of one repetition, as the paper has it.
      accounted: The accounted epsilon of all repetitions.
      all_iterates: The canaries as observed with all iterates.
      final_model: The canaries as observed with the final model.
      accuracy: The accuracy with canaries; None if it was not measured.
      plain_accuracy: The accuracy without canaries; None if it was not measured.
    """

    plan: TrainingPlan
    noise: float
    repetitions: int
    analytical: float
    accounted: float
    all_iterates: Observation
    final_model: Observation
    accuracy: float | None
    plain_accuracy: float | None

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
      analytical: The accounted epsilon of a canary that takes part once.
      one_run: The quantiles (len(QUANTILES),) with all canaries in a single run.
      several_runs: The quantiles (len(QUANTILES),) with the canaries spread over several runs.
    """

    noise: float
    observe: str
    analytical: float
    one_run: Array
    several_runs: Array


def read_runs(held: Holdings, plan: TrainingPlan, levels: Level) -> Iterator[FederatedRun]:
    """Yields a plan's training runs whose scores are stored, both with all iterates and the final model."""
    for setting in plan.audit_settings():
        noise = setting.noise_multiplier
        all_iterates = federated.read(held, setting, runs=1)
        final_model = federated.read(held, federated.final(setting), runs=1)
        if all_iterates is None or final_model is None:
            continue
        plain = federated.read(held, plan.without_canaries(noise), runs=1)
        plain_accuracies = plain.accuracies if plain else []
        yield FederatedRun(
            plan,
            noise,
            setting.repetitions,
            analytical=epsilon_upper_bound(noise, 1, levels.delta),
            accounted=epsilon_upper_bound(noise, setting.repetitions, levels.delta),
            all_iterates=_observe(all_iterates.scores, plan, False, levels),
            final_model=_observe(final_model.scores, plan, True, levels),
            accuracy=next(iter(all_iterates.accuracies), None),
            plain_accuracy=next(iter(plain_accuracies), None),
        )


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[SplitQuantiles]:
    """Yields the quantiles of estimates over experiments, for each panel of Figure 4 that is stored."""
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
                    epsilon_upper_bound(noise, 1, delta),
                    _compute_quantiles(in_one.scores, 1, dimension, is_final, delta),
                    _compute_quantiles(in_several.scores, plan.runs, dimension, is_final, delta),
                )


def _observe(scores: Scores, plan: TrainingPlan, null_is_known: bool, levels: Level) -> Observation:
    """Computes the estimate and the paper's lower value from a setting's first run.

    With the final model the null is known: the law of uniform directions. If not, a normal law is fitted to
    the cosines of canaries that are out.
    """
    values = scores.scores[0]  # (canaries,)
    presence = scores.presence[0]
    unobserved = None if null_is_known else values[~presence]
    cosines = one_run_evidence.check_own_cosines(values[presence], unobserved, plan.dimension)
    fitted = one_shot.estimate_from_fit(one_shot.ONE_SHOT_FITTED, cosines, levels.delta)
    error = 1 - levels.confidence  # of each error rate's limit
    in_sample = one_shot.in_sample(cosines, levels.delta, error, _JEFFREYS_PRIOR)
    return Observation(cosines, fitted, in_sample)


def _compute_quantiles(
    scores: Scores, runs: int, dimension: int, null_is_known: bool, delta: float
) -> Array:
    """Returns the quantiles of the fitted estimate over experiments of `runs` consecutive runs each."""
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
