"""Conclusions from an audit's scores.

`conclude` takes evidence and a claim on the mechanism. `conclude_setting` takes the scores of a setting,
which determines the mechanism and whether a Gaussian trade-off curve is expected.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from audit.adversaries.sphere import SphereFields
from audit.claims.accounting import Composition, mu_upper_bound
from audit.claims.claim import Claim, DpSgd, RandomAllocation
from audit.claims.linear_losses import expected_epsilon
from audit.claims.matrix import MatrixMechanism
from audit.claims.strategies import INDEPENDENT
from audit.conclusions import lipschitz
from audit.conclusions.conclusion import Conclusion, Curve
from audit.conclusions.finish import finish, take_smaller
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.evidence.canaries import Coins, Fresh, Sets, Shape, make_coins
from audit.evidence.given import Evidence
from audit.evidence.given_directions import describe_dimension
from audit.evidence.one_run import OneRun, check_own_cosines
from audit.evidence.ranks import describe_draws, make_from_counts
from audit.evidence.repeats import count_once
from audit.laws import conversions
from audit.methods import estimate, exact_null, gaussian_curve, lifted, one_run_bounds, one_shot
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY, Pair
from audit.settings.setting import BALLS_IN_BINS, EVERY, RANDOM_ALLOCATION, Setting
from audit.storage.store import Scores
from audit.tasks.task import find_task
from audit.written import USUAL_LEVEL, Level

_GAUSSIAN_REASON = "expected here: Gaussian noise on one crafted coordinate"
_START = (
    "scores use the final model's distance from the initial model: a rehearsal, one more training run "
    "without noise and canaries, would hardly raise them"
)
_REHEARSAL = (
    "scores use the final model's distance from that of a rehearsal, one more training run without noise "
    "and canaries"
)


def conclude(
    evidence: Evidence, claim: Claim | None = None, level: Level = USUAL_LEVEL
) -> Conclusion:
    """Returns the bounds and estimates of the privacy loss by all methods for the shape of the evidence.

    If rows look pasted (`count_once`), it is the smaller conclusion of two: from all rows, and from each
    repeated row once. Raises InputError for unusable scores.
    """
    all_rows = _conclude_rows(evidence, claim, level)
    once = count_once(evidence)
    if once is None:
        return finish(all_rows)
    try:
        counted_once = _conclude_rows(once.evidence, claim, level)
    except InputError:  # too few runs: all rows together are valid
        counted_once = None
    return take_smaller(all_rows, counted_once, once.remark)


def _find_of_one_run(evidence: OneRun, level: Level) -> list[Finding]:
    """Returns the estimates and bounds of a single run."""
    findings: list[Finding] = []
    coins, cosines = evidence
    if cosines is not None:
        findings += one_shot.estimates(cosines, *level)
    if coins is not None:
        findings += one_run_bounds.bound_by_guesses(coins, *level)
    if cosines is not None and evidence.is_null_known:
        findings.append(one_run_bounds.bound_uniform_canaries(cosines, *level))
    return findings


def _find_of_scores(evidence: Sets | Coins, level: Level) -> list[Finding]:
    """Returns the findings from runs of a single canary each."""
    return estimate.findings(*evidence.pooled(), *level)


_METHODS: dict[Shape, tuple[Callable[[Any, Level], Sequence[Finding]], Pair | None]] = {
    Shape.ONE_CANARY: (_find_of_scores, ONE_CANARY),
    Shape.MANY_CANARIES: (lambda evidence, level: lifted.bounds(evidence, *level), MANY_CANARIES),
    Shape.FRESH_DIRECTIONS: (
        lambda evidence, level: [
            method.compute(evidence, *level) for method in exact_null.METHODS.values()
        ],
        FRESH_DIRECTIONS,
    ),
    Shape.ONE_RUN: (_find_of_one_run, None),
}


def _conclude_rows(evidence: Evidence, claim: Claim | None, level: Level) -> Conclusion:
    """Returns the conclusion from all rows, before `finish`."""
    conversions.require_levels(*level)
    find, pair = _METHODS[evidence.shape]
    findings = find(evidence, level)
    worlds = evidence.pooled()
    curve = None
    if pair is ONE_CANARY:  # the test needs independent scores
        curve = Curve(gaussian_curve.examine(*worlds), gaussian_curve.power(*worlds))
    concluded = Conclusion(
        evidence,
        worlds,
        level.delta,
        level.confidence,
        pair,
        estimates=tuple(found for found in findings if isinstance(found, Estimate)),
        bounds=tuple(found for found in findings if isinstance(found, Bound)),
        curve=curve,
        notes=tuple(_describe(evidence)),
    )
    if claim is None:
        return concluded
    last_model = claim.last_model(level.delta)
    expected = None
    if claim.composition is not None and claim.composition.sampling_rate < 1:
        # Only the bound on the last model has the period k of insertions.
        steps = claim.composition.insertions
        if last_model is not None:
            steps *= last_model.periods.k
        expected = expected_epsilon(claim.composition, steps, level.delta)
    return concluded._replace(
        claim=claim,
        upper_bound=claim.epsilon(level.delta),
        mu_upper_bound=claim.gaussian_mu,
        composition=claim.composition,
        hidden_state=last_model,
        expected=expected,
    )


def _describe(evidence: Evidence) -> Iterator[str]:
    """Yields notes on failed runs, on scores read as runs, and on the law of given evidence."""
    if isinstance(evidence, OneRun):
        return
    if evidence.failed:
        number = sum(map(len, evidence.pooled()))
        unit = "scores"
        if isinstance(evidence, Fresh):
            number = evidence.cosines.size
            unit = "ranks" if evidence.draws else "cosines"
        share = f"{evidence.failed:,} of {number:,} {unit}"
        yield f"{share} are NaN (failed runs): each counts as the lowest score"
    if isinstance(evidence, Sets) and evidence.labelled:
        runs = evidence.inserted.size + evidence.fresh.size
        yield (
            f"read as {runs:,} independent training runs; if all canaries are from one run, use shape "
            f"(1, {runs}) or --one_run"
        )
    if not isinstance(evidence, Fresh) or not evidence.given:
        return
    if evidence.draws:
        yield describe_draws(evidence)
    else:
        yield describe_dimension(evidence)
    if len(evidence.cosines) == 1:  # has no order
        return
    if evidence.in_order:
        yield "rows are in the order in which runs started: the bound is the largest after any run"
    else:
        yield "the order of rows does not matter; set `in_order` if it is that in which runs started"


def conclude_setting(
    scores: Scores,
    setting: Setting,
    level: Level = USUAL_LEVEL,
    own_model: bool = False,
    steps: Steps | None = None,
) -> Conclusion:
    """Returns the conclusion from the scores of a setting's first runs.

    Args:
      scores: the scores of the runs.
      setting: the setting of the training runs.
      level: delta and confidence of the bounds.
      own_model: whether the model is custom.
      steps: the Lipschitz constants of the steps, or None.

    Raises:
      InputError: as `conclude` does, and for stored scores that are not finite.
    """
    bad = int(np.count_nonzero(~np.isfinite(scores.scores)))
    damaged = f"{bad} of {scores.scores.size} stored scores are not finite: move them away and train again"
    require(not bad, damaged)

    mechanism = setting.mechanism
    reason = ""
    expected = None
    # The formulas need a last model that is the sum of all steps, as with SGD without weight decay.
    is_sum = mechanism.optimizer == "sgd" and mechanism.weight_decay == 0
    if setting.adversary.any_time:  # every run draws canaries afresh
        evidence: Evidence = read_directions(scores)
    else:
        evidence = read_evidence(scores)
        if not own_model and predicted_mu(setting) is not None:
            reason = _GAUSSIAN_REASON
        if is_sum:
            expected = _expect_linear_losses(setting, level.delta)
    # Only the setting has the optimizer and the schedule, which determine the last model.
    last_model = lipschitz.hidden_state(setting, level.delta, steps, own_model)
    claim = make_claim(setting)
    if isinstance(claim, MatrixMechanism) and is_sum:
        expected = claim.last_model_if_linear(level.delta)
    concluded = _conclude_rows(evidence, claim, level)._replace(reason=reason, expected=expected)
    if isinstance(last_model, str):  # why there is no bound
        concluded = concluded._replace(uncovered=last_model)
    else:
        concluded = concluded._replace(hidden_state=last_model)
    if len(scores.scores) == 1 and isinstance(setting.adversary, SphereFields):
        reference = _START
        if setting.is_rehearsed(scores.dimension):
            reference = _REHEARSAL
        concluded = concluded._replace(notes=(*concluded.notes, reference))
    return finish(concluded)


def make_claim(setting: Setting) -> Claim:
    """Returns the claim that follows from a setting's mechanism, for an adversary who sees all models."""
    sampling = setting.sampling
    mechanism = setting.mechanism
    sigma = mechanism.noise_multiplier
    if sampling.name in (BALLS_IN_BINS, RANDOM_ALLOCATION) and sigma:
        return RandomAllocation(sigma, sampling.batches, setting.insertions)
    if mechanism.noise != INDEPENDENT:
        schedule = setting.schedule
        return MatrixMechanism(
            mechanism.noise, sigma, schedule.steps, schedule.periodicity, schedule.place
        )
    return DpSgd(*setting.composition)


def _expect_linear_losses(setting: Setting, delta: float) -> float | None:
    """Returns the epsilon of a setting's last model under linear losses; None for fixed steps.

    Under linear losses the last model shows only the sum of all steps.
    """
    sampling = setting.sampling
    if sampling.batches:
        # The sampler draws one step of each of E epochs of b steps. The sum has E insertions and the noise of
        # E b steps, and mu = E / (sigma sqrt(E b)) = sqrt(E / b) / sigma.
        mu = mu_upper_bound(setting.mechanism.noise_multiplier, setting.insertions)
        return conversions.epsilon_from_mu(mu / math.sqrt(sampling.batches), delta)
    if sampling.rate == 1:
        return None
    return expected_epsilon(Composition(*setting.composition), setting.schedule.steps, delta)


def conclude_each_run(
    scores: Scores,
    dimension: int,
    law_holds: bool,
    level: Level = USUAL_LEVEL,
    claim: Claim | None = None,
) -> list[Conclusion]:
    """Returns a separate conclusion for each run, from its canaries' cosines in `dimension` dimensions.

    `law_holds` states whether cosines without insertion have their exact law, as with final models; otherwise
    the null is fitted to them.
    """
    conclusions = []
    for values, presence in zip(scores.scores, scores.presence, strict=True):
        run = Coins(values[None], presence[None])  # a single row, (1, canaries)
        observed, out = run.pooled()
        cosines = check_own_cosines(observed, None if law_holds else out, dimension)
        conclusions.append(conclude(OneRun(run, cosines), claim, level))
    return conclusions


def conclude_together(
    scores: Scores, level: Level = USUAL_LEVEL, claim: Claim | None = None
) -> Conclusion | None:
    """Returns one conclusion from several runs with fresh directions; None for one run or other canaries."""
    if not scores.dimension or len(scores.scores) == 1:  # dimension 0: canaries are not directions
        return None
    return conclude(read_directions(scores)._replace(plain=True), claim, level)


def predicted_mu(setting: Setting) -> float | None:
    """Returns the predicted mu of an adversary who inserts along a single coordinate, or None.

    If real gradients do not change the coordinate, the last model shows the sum of all insertions and noise
    there (`compute_mu_along_one_direction`). experiments/hidden_state/README.md derives it.

    It is None for models that are not over-parameterised, other adversaries or optimizers, no noise, sampled
    insertions, and an initialisation that differs between runs, which adds its own variance to scores (Errata
    H14 of that README).
    """
    mechanism = setting.mechanism
    task = find_task(setting.model)  # None for a custom model
    is_predicted = (
        mechanism.optimizer == "sgd"
        and mechanism.noise == INDEPENDENT
        and mechanism.noise_multiplier > 0
        and not setting.unknown_initialisation
        and setting.sampling.name == EVERY
        and setting.adversary.biased
        and task is not None
        and task.over_parameterised
    )
    if not is_predicted:
        return None
    return lipschitz.compute_mu_along_one_direction(setting)


def read_coins(stored: Scores) -> Coins:
    """Returns evidence of canaries that were inserted by fair coins."""
    return make_coins(stored.scores, stored.presence)


def read_directions(stored: Scores) -> Fresh:
    """Returns evidence of fresh canaries: ranks, or cosines with uniform directions."""
    if stored.draws:
        return make_from_counts(stored.scores, stored.presence, stored.draws)
    return Fresh(stored.scores, stored.presence, stored.dimension)


def read_evidence(stored: Scores) -> Coins | OneRun:
    """Returns evidence of canaries that all runs share.

    For a single run with several canaries it is a `OneRun`: with coins unless all canaries are inserted, and
    with cosines if the stored dimension is not 0.

    Raises InputError for a single run with all canaries inserted and scores of an unknown law.
    """
    runs, canaries = stored.scores.shape
    if runs > 1 or canaries == 1:
        return read_coins(stored)
    # The setting requested this: fair coins practically never insert all of 40 or more canaries.
    if stored.presence.all():
        return OneRun(None, check_own_cosines(stored.scores[0], None, stored.dimension))
    coins = read_coins(stored)
    if not stored.dimension:
        return OneRun(coins, None)
    return OneRun(coins, check_own_cosines(*coins.pooled(), stored.dimension))
