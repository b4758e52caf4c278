"""The numbers that tables and figures show.

Simulated: Table 1's Gaussian mechanism. From stored federated training runs: one run's cosines as estimates,
and its accuracy. With all iterates the estimate fits normal laws to maxima over rounds, which are not normal
(Errata O13).
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import epsilon_upper_bound
from audit.errors import require
from audit.evidence import one_run as one_run_evidence
from audit.laws import conversions, cosine_law
from audit.laws.gaussians import Gaussian
from audit.methods import one_shot
from audit.methods.one_shot import FITTED
from audit.storage.index import Holdings
from audit.storage.store import Scores
from audit.written import Level
from experiments.cells import federated
from experiments.one_shot.sweep import DELTA, Simulations, SplitPlan, TrainingPlan
from experiments.sweeps.records import Record

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
Array = NDArray[np.float64]
_JEFFREYS_PRIOR = 0.5
_FINAL_MODEL_NULL = Gaussian(0.0, 1.0)  # in units of 1/sqrt(d)


def simulate(plan: Simulations, seed: int = 0) -> list[Record]:
    """Simulates the paper's Table 1 and returns a record for each sigma and dimension.

    A simulation draws sqrt(d) canaries (unit vectors), their sum plus noise, which is released, and each
    canary's cosine with the release. Estimates of epsilon follow from the mean and deviation of the cosines.
    The i-th simulation's canaries depend on the seed, the dimension and i only.

    Returns:
      Records of sigma, the dimension, the number of `canaries`, the `exact` epsilon, and the mean of the
        estimates by each method's name, with their deviation (`_deviation`). Simulations are at least 2,
        since tables show their deviation.
    """
    require(plan.simulations >= 2, f"`simulations={plan.simulations}`: give at least 2")
    records = []
    for dimension in plan.dimensions:
        canaries = int(np.sqrt(dimension))
        drawn = []
        for number in range(plan.simulations):
            rng = np.random.default_rng([seed, dimension, number])
            # The canaries are uniform directions, in coordinates of their own span to need little memory.
            rows = cosine_law.draw_canaries(rng, canaries, dimension)
            noises = plan.sigmas
            drawn.append([cosine_law.draw_cosines(rng, rows, dimension, each) for each in noises])
        cosines = np.array(drawn)  # (simulations, sigmas, canaries)
        for place, sigma in enumerate(plan.sigmas):
            # A canary has length 1: the mechanism is Gaussian-DP with mu = 1 / sigma.
            exact = conversions.epsilon_from_mu(1 / sigma, DELTA)
            record: Record = {"sigma": sigma, "dimension": dimension, "canaries": canaries}
            record["exact"] = exact
            observed = one_shot.fit(cosines[:, place], dimension)
            for name, estimate in FITTED.items():
                epsilons = estimate(_FINAL_MODEL_NULL, observed, DELTA)
                record[name] = epsilons.mean()
                record[f"{name}_deviation"] = epsilons.std()
            records.append(record)
    return sorted(records, key=lambda record: record["sigma"])


def read_runs(held: Holdings, plan: TrainingPlan, levels: Level) -> Iterator[Record]:
    """Yields a plan's training runs whose scores are stored, both with all iterates and the final model.

    A record has the `plan`, the `noise` multiplier, the `repetitions` of each canary, the `analytical`
    epsilon of one repetition, as the paper has it, the `accounted` one of all repetitions, the `accuracy`
    with canaries and the `plain_accuracy` without, None if not measured, and what `_observe` finds.
    """
    for setting in plan.audit_settings():
        noise = setting.noise_multiplier
        seen = {
            "all": federated.read(held, setting, runs=1),
            "final": federated.read(held, federated.final(setting), runs=1),
        }
        if None in seen.values():
            continue
        plain = federated.read(held, plan.without_canaries(noise), runs=1)
        record: Record = {
            "plan": plan,
            "noise": noise,
            "repetitions": setting.repetitions,
            "analytical": epsilon_upper_bound(noise, 1, levels.delta),
            "accounted": epsilon_upper_bound(noise, setting.repetitions, levels.delta),
        }
        for name, run in {"accuracy": seen["all"], "plain_accuracy": plain}.items():
            record[name] = next(iter(run.accuracies), None) if run else None
        for name, run in seen.items():
            record |= _observe(name, run.scores, plan, levels)
        yield record


def _observe(name: str, scores: Scores, plan: TrainingPlan, levels: Level) -> Record:
    """Returns the numbers of a setting's first run, seen with "all" iterates or the "final" model.

    With the final model the null is known: the law of uniform directions. If not, a normal law is fitted to
    the cosines of canaries that are out.

    Returns:
      The paper's estimate by `name` and with its error and noise floor (`_error`, `_floor`), its lower value,
        which takes the best of all thresholds and is no bound (`_in_sample`), and the `_cosines`.
    """
    values = scores.scores[0]  # (canaries,)
    presence = scores.presence[0]
    unobserved = None if name == "final" else values[~presence]
    cosines = one_run_evidence.check_own_cosines(values[presence], unobserved, plan.dimension)
    methods = [one_shot.ONE_SHOT_FITTED]
    (fitted,) = one_shot.estimate_from_fits(cosines, levels.delta, methods)
    error = 1 - levels.confidence  # of each error rate's limit
    return {
        name: fitted.epsilon,
        f"{name}_error": fitted.standard_error,
        f"{name}_floor": fitted.noise_floor,
        f"{name}_in_sample": one_shot.in_sample(cosines, levels.delta, error, _JEFFREYS_PRIOR),
        f"{name}_cosines": cosines,
    }


def read_splits(held: Holdings, plan: SplitPlan, delta: float) -> Iterator[Record]:
    """Yields the quantiles of estimates over experiments, for each panel of Figure 4 that is stored.

    A record has the `noise` multiplier, whether "all" iterates or the "final" model are `observed`, the
    `analytical` epsilon of a canary that takes part once, and the QUANTILES of estimates with all canaries in
    `one run` and with the canaries spread over `several runs`.
    """
    for noise in plan.training.noises:
        for observed in ("all", "final"):
            settings = [plan.one_run(noise), plan.several_runs(noise)]
            if observed == "final":  # the same training runs, observed by their final models
                settings = [federated.final(setting) for setting in settings]
            record: Record = {"noise": noise, "observe": observed}
            record["analytical"] = epsilon_upper_bound(noise, 1, delta)
            places = (("one run", 1), ("several runs", plan.runs))
            for setting, (name, runs) in zip(settings, places, strict=True):
                stored = federated.read(held, setting, plan.experiments * runs)
                if stored is not None:
                    dimension = plan.training.dimension
                    record[name] = _compute_quantiles(stored.scores, runs, dimension, record, delta)
            if "one run" in record and "several runs" in record:
                yield record


def _compute_quantiles(
    scores: Scores, runs: int, dimension: int, record: Record, delta: float
) -> Array:
    """Returns the quantiles of the fitted estimate over experiments of `runs` consecutive runs each."""
    epsilons = []
    for first in range(0, len(scores.scores), runs):
        values = scores.scores[first : first + runs]
        presence = scores.presence[first : first + runs]
        null = _FINAL_MODEL_NULL
        if record["observe"] == "all":
            null = one_shot.fit(values[~presence], dimension)
        observed = one_shot.fit(values[presence], dimension)
        epsilons.append(float(one_shot.fitted(null, observed, delta)))
    return np.quantile(epsilons, QUANTILES)
