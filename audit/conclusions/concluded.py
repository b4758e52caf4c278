"""Draws conclusions from an audit's scores."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from audit.adversaries.sphere import SphereFields
from audit.claims.accounting import Composition, mu_upper_bound
from audit.claims.claim import Claim, DpSgd, RandomAllocation
from audit.claims.hidden_state import HiddenState
from audit.claims.linear_losses import expected_epsilon
from audit.claims.matrix import MatrixMechanism
from audit.claims.strategies import INDEPENDENT
from audit.conclusions import lipschitz
from audit.conclusions.conclusion import Conclusion, Curve
from audit.conclusions.finish import finish, take_smaller
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.evidence.canaries import Coins, Fresh, Sets, make_coins
from audit.evidence.given import Evidence
from audit.evidence.given_directions import describe_dimension
from audit.evidence.one_run import OneRun, make_cosines
from audit.evidence.ranks import describe_draws, make_from_counts
from audit.evidence.repeats import count_once
from audit.laws import conversions
from audit.methods import estimate, exact_null, gaussian_curve, lifted, one_run_bounds, one_shot
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY, VerdictMethods
from audit.settings.setting import BALLS_IN_BINS, EVERY, RANDOM_ALLOCATION, Setting
from audit.storage.store import Scores
from audit.tasks.task import find_task
from audit.written import USUAL_LEVEL, Level


def conclude(
    evidence: Evidence, claim: Claim | None = None, level: Level = USUAL_LEVEL
) -> Conclusion:
    """Draws a conclusion from evidence, using all methods for its kind.

    If some rows look like pasted copies, we draw a second conclusion that counts each repeated row once. We
    keep only the leakage that both conclusions prove. If too few rows remain, bounds are 0.

    Raises InputError for unusable scores.
    """
    all_rows = _begin_conclusion(evidence, claim, level)
    once = count_once(evidence)
    if once is None:
        return finish(all_rows)
    try:
        counted_once = _begin_conclusion(once.evidence, claim, level)
    except InputError:  # too few distinct rows for the methods
        counted_once = None
    return take_smaller(all_rows, counted_once, once.remark)


def _analyze_one_run(evidence: OneRun, level: Level) -> list[Finding]:
    """Returns the estimates and bounds from the canaries of a single run."""
    findings: list[Finding] = []
    coins, cosines = evidence  # either may be None
    if cosines is not None:
        findings += one_shot.estimates(cosines, *level)
    if coins is not None:
        findings += one_run_bounds.bound_by_guesses(coins, *level)
    # The null distribution is exact if no left-out canaries were used to fit it.
    if cosines is not None and evidence.is_null_known:
        findings.append(one_run_bounds.bound_uniform_canaries(cosines, *level))
    return findings


def _analyze(evidence: Evidence, level: Level) -> tuple[Sequence[Finding], VerdictMethods | None]:
    """Returns the estimates and bounds for this kind of evidence, and the methods that decide the verdict.

    The methods are None for a single run, because its verdict uses all bounds. `level` is (delta,
    confidence).
    """
    if isinstance(evidence, OneRun):
        return _analyze_one_run(evidence, level), None
    if isinstance(evidence, Fresh):  # left-out scores have a known distribution
        methods = exact_null.METHODS.values()
        return [method.compute(evidence, *level) for method in methods], FRESH_DIRECTIONS
    if evidence.canaries == (1, 1):  # one canary per run, so scores are independent
        return estimate.findings(*evidence.pooled(), *level), ONE_CANARY
    # Scores of several canaries in a run may be dependent.
    return lifted.bounds(evidence, *level), MANY_CANARIES


def _begin_conclusion(evidence: Evidence, claim: Claim | None, level: Level) -> Conclusion:
    """Returns a conclusion with lower bounds, the test for a Gaussian curve, notes and upper bounds.

    `finish` adds the other fields, such as the verdict.
    """
    delta, confidence = level
    conversions.require_levels(delta, confidence)
    findings, verdict_methods = _analyze(evidence, level)
    worlds = evidence.pooled()  # the scores of inserted canaries, and of left-out canaries
    curve = None
    has_one_canary = verdict_methods == ONE_CANARY  # per run
    if has_one_canary:  # the test needs independent scores
        curve = Curve(p_value=gaussian_curve.examine(*worlds), power=gaussian_curve.power(*worlds))
    concluded = Conclusion(
        evidence=evidence,
        worlds=worlds,
        delta=delta,
        confidence=confidence,
        verdict_methods=verdict_methods,
        estimates=tuple(found for found in findings if isinstance(found, Estimate)),
        bounds=tuple(found for found in findings if isinstance(found, Bound)),
        curve=curve,
        notes=tuple(_make_notes(evidence)),
    )
    if claim is None:
        return concluded
    return _add_claim(concluded, claim)


def _add_claim(conclusion: Conclusion, claim: Claim) -> Conclusion:
    """Adds a claim's upper bounds, including the last model's (`hidden_state`), to a conclusion."""
    delta = conclusion.delta
    composition = claim.composition
    hidden_state = claim.last_model(delta)
    return conclusion._replace(
        claim=claim,
        upper_bound=claim.epsilon(delta),
        mu_upper_bound=claim.gaussian_mu,
        composition=composition,
        hidden_state=hidden_state,
        epsilon_if_linear=_expect_sampled_linear_losses(composition, hidden_state, delta),
    )


def _expect_sampled_linear_losses(
    composition: Composition | None, hidden_state: HiddenState | None, delta: float
) -> float | None:
    """Returns the epsilon that the last model would have with linear losses, or None without sampling.

    The hidden-state bound ignores sampling, so we add this epsilon for comparison. All steps add noise, but
    only one of every k (`periodicity`) may insert the canary. Without a hidden-state bound, we assume k = 1.
    """
    if composition is None or composition.sampling_rate == 1:
        return None
    periodicity = 1
    if hidden_state is not None:
        periodicity = hidden_state.periods.k
    return expected_epsilon(composition, composition.insertions * periodicity, delta)


def _make_notes(evidence: Evidence) -> Iterator[str]:
    """Yields notes on failed runs, ambiguous score shapes, and a user's fresh canaries."""
    if isinstance(evidence, OneRun):  # these notes do not apply to a single run
        return
    if evidence.failed:
        number = sum(map(len, evidence.pooled()))
        if isinstance(evidence, Fresh):  # its `pooled` adds quantiles of the known distribution
            number = evidence.cosines.size
        yield (
            f"{evidence.failed:,} of {number:,} scores are NaN (failed runs): each counts as the lowest score"
        )
    if isinstance(evidence, Sets) and evidence.labelled:  # a single list of scores with 0/1 labels
        runs = evidence.inserted.size + evidence.fresh.size  # with and without the canary
        yield (
            f"read as {runs:,} independent training runs; if all canaries are from one run, use shape "
            f"(1, {runs}) or --one_run"
        )
    if isinstance(evidence, Fresh) and evidence.from_user:
        yield from _make_notes_on_fresh(evidence)


def _make_notes_on_fresh(evidence: Fresh) -> Iterator[str]:
    """Yields notes on a user's scores of canaries drawn afresh in every run: their kind, shape and order."""
    if evidence.draws:  # scores are ranks among this number of fresh draws
        yield describe_draws(evidence)
    else:  # cosines
        yield describe_dimension(evidence)
    runs, canaries = evidence.cosines.shape
    if runs == 1:
        return
    if canaries == 1:
        yield (
            f"read as {runs:,} training runs with one direction each; if all are from one run, use shape "
            f"(1, {runs})"
        )
    if evidence.in_order:
        yield "rows are sorted by start time: the bound is the largest one reached after any run"
    else:
        yield "the order of rows does not matter; set `in_order` if they are sorted by start time"


def conclude_setting(
    scores: Scores,
    setting: Setting,
    level: Level = USUAL_LEVEL,
    own_model: bool = False,
    steps: Steps | None = None,
) -> Conclusion:
    """Returns the conclusion from a setting's stored scores.

    Args:
      own_model: True if the model is custom.
      steps: the steps' Lipschitz constants; None if unknown.

    Raises:
      InputError: scores are not finite, or `conclude` cannot use them.
    """
    bad = np.count_nonzero(~np.isfinite(scores.scores))
    require(
        not bad,
        f"{bad} of {scores.scores.size} stored scores are not finite: move them away and train again",
    )
    claim = make_claim(setting)
    has_fresh_canaries = setting.adversary.has_fresh_canaries  # drawn anew in each run
    evidence = read_directions(scores) if has_fresh_canaries else read_evidence(scores)
    # The epsilon with linear losses depends on the optimizer, which claims do not include.
    if_linear = _expect_linear_losses(setting, claim, level.delta)
    concluded = _begin_conclusion(evidence, claim, level)._replace(epsilon_if_linear=if_linear)
    if not has_fresh_canaries and not own_model and predicted_mu(setting) is not None:
        concluded = concluded._replace(
            why_gaussian="expected here: Gaussian noise on one crafted coordinate"
        )
    bound_or_reason = lipschitz.hidden_state(setting, level.delta, steps, own_model)
    if isinstance(bound_or_reason, str):  # why the last model has no upper bound
        concluded = concluded._replace(uncovered=bound_or_reason)
    else:
        concluded = concluded._replace(hidden_state=bound_or_reason)
    # With random directions, a single run's cosines depend on a reference model, perhaps from a noiseless
    # rehearsal.
    if len(scores.scores) == 1 and isinstance(setting.adversary, SphereFields):
        note = _describe_reference_model(setting.is_rehearsed(scores.dimension))
        concluded = concluded._replace(notes=(*concluded.notes, note))
    return finish(concluded)


def _describe_reference_model(is_rehearsed: bool) -> str:
    """Returns a note on the reference model, which we subtract from the final model to compute scores."""
    if is_rehearsed:
        return (
            "scores use the difference between the final model and that of a rehearsal, an extra "
            "training run without noise or canaries"
        )
    return (
        "scores use the difference between the final model and the initial model: a rehearsal, an extra "
        "training run without noise or canaries, would hardly raise them"
    )


def make_claim(setting: Setting) -> Claim:
    """Returns the claim about a setting's mechanism, for an adversary who sees all models."""
    sampling = setting.sampling
    mechanism = setting.mechanism
    sigma = mechanism.noise_multiplier
    # Both samplers put an example into one random step of each epoch. Without noise, `DpSgd` has an infinite
    # epsilon.
    if sampling.name in (BALLS_IN_BINS, RANDOM_ALLOCATION) and sigma:
        return RandomAllocation(sigma, batches=sampling.batches, epochs=setting.insertions)
    if mechanism.noise != INDEPENDENT:
        schedule = setting.schedule
        return MatrixMechanism(
            mechanism.noise,
            sigma,
            schedule.steps,
            k=schedule.periodicity,
            insert=schedule.place,
        )
    return DpSgd(*setting.composition)  # noise multiplier, insertions, sampling rate


def _expect_linear_losses(setting: Setting, claim: Claim, delta: float) -> float | None:
    """Returns the epsilon that the last model would have with linear losses, or None.

    With linear losses, the last model reveals only the sum of all steps (Steinke et al., 2024). We compute
    this epsilon for correlated noise, which hidden-state bounds do not cover. These bounds may ignore
    sampling, so we also compute this epsilon for random insertion steps, unless canaries are fresh.
    """
    mechanism = setting.mechanism
    if mechanism.optimizer != "sgd" or mechanism.weight_decay:  # the last model is not the sum
        return None
    if isinstance(claim, MatrixMechanism):
        return claim.last_model_if_linear(delta)
    if setting.adversary.has_fresh_canaries:  # drawn anew in each run
        return None
    sampling = setting.sampling
    if sampling.batches:
        # The sampler draws one step in each of E epochs of b steps. The sum contains E insertions and the
        # noise of E b steps, so mu = E / (sigma sqrt(E b)) = sqrt(E / b) / sigma.
        mu_of_epochs = mu_upper_bound(mechanism.noise_multiplier, setting.insertions)
        return conversions.epsilon_from_mu(mu_of_epochs / math.sqrt(sampling.batches), delta)
    if sampling.rate == 1:  # insertion steps are not random
        return None
    return expected_epsilon(Composition(*setting.composition), setting.schedule.steps, delta)


def conclude_each_run(
    scores: Scores,
    dimension: int,
    law_holds: bool,
    level: Level = USUAL_LEVEL,
    claim: Claim | None = None,
) -> list[Conclusion]:
    """Returns one conclusion per run, from its cosines.

    Args:
      scores: the cosines of each run, and which canaries it inserted.
      dimension: d, the dimension of the canaries.
      law_holds: True if the cosines of left-out canaries have exactly the distribution in `laws.cosine_law`,
        as with final models. Otherwise, we fit the null distribution to these cosines.
    """
    conclusions = []
    for values, presence in zip(scores.scores, scores.presence, strict=True):
        run = Coins(values[None], presence[None])  # a single row, (1, canaries)
        observed, left_out = run.pooled()
        unobserved = None if law_holds else left_out
        cosines = make_cosines(observed, unobserved, dimension)
        conclusions.append(conclude(OneRun(run, cosines), claim, level))
    return conclusions


def conclude_together(
    scores: Scores, level: Level = USUAL_LEVEL, claim: Claim | None = None
) -> Conclusion | None:
    """Returns one conclusion from several runs, if each draws random directions as canaries; else None.

    Unlike leave-one-out cosines, these scores do not depend on a run's other directions (`separate`), so we
    choose thresholds for some directions using the others.
    """
    if not scores.dimension or len(scores.scores) == 1:  # the dimension is 0 for other canaries
        return None
    return conclude(read_directions(scores)._replace(separate=True), claim, level)


def predicted_mu(setting: Setting) -> float | None:
    """Returns the mu that theory predicts for an adversary who uses only a single coordinate, or None.

    In an over-parameterised model, the gradients of the data do not change the coordinate. The coordinate
    thus reveals only a weighted sum of insertions and noise (`compute_mu_along_one_direction` and
    experiments/hidden_state/README.md).

    The adversary must know the initial model, which would otherwise increase the variance of the scores
    (Errata H14 in the README).
    """
    mechanism = setting.mechanism
    task = find_task(setting.model)  # None for a custom model
    is_over_parameterised = task is not None and task.over_parameterised
    if (
        is_over_parameterised
        and mechanism.optimizer == "sgd"
        and mechanism.noise == INDEPENDENT
        and mechanism.noise_multiplier > 0
        and setting.sampling.name == EVERY  # insertions are not sampled
        and setting.adversary.biased  # inserts along a single coordinate
        and not setting.unknown_initialisation
    ):
        return lipschitz.compute_mu_along_one_direction(setting)
    return None


def read_coins(stored: Scores) -> Coins:
    """Returns evidence from stored scores of canaries inserted or left out by fair coin flips."""
    return make_coins(stored.scores, stored.presence)


def read_directions(stored: Scores) -> Fresh:
    """Returns evidence from the stored ranks or cosines of canaries drawn afresh in every run."""
    if stored.draws:  # ranks among this number of fresh draws
        return make_from_counts(stored.scores, stored.presence, stored.draws)
    return Fresh(stored.scores, stored.presence, stored.dimension)


def read_evidence(stored: Scores) -> Coins | OneRun:
    """Returns evidence from stored scores of canaries shared by all runs.

    A single run with several canaries becomes a `OneRun`. It contains coins unless all canaries were
    inserted, and cosines if `stored.dimension` is not 0.

    Raises InputError (`make_cosines`) if a single run inserts all canaries and its scores are not cosines.
    """
    runs, canaries = stored.scores.shape
    if runs > 1 or canaries == 1:
        return read_coins(stored)
    # A run with coins needs 40 canaries (`one_run_bounds.LEAST_COINS`), and coins almost never insert all.
    if stored.presence.all():
        cosines = make_cosines(stored.scores[0], unobserved=None, dimension=stored.dimension)
        return OneRun(coins=None, cosines=cosines)
    coins = read_coins(stored)
    if not stored.dimension:
        return OneRun(coins, cosines=None)
    inserted, left_out = coins.pooled()
    return OneRun(coins, make_cosines(inserted, left_out, stored.dimension))
