"""Conclusions from an audit's scores, wherever they are shown.

`conclude` takes evidence and what is claimed of the mechanism. `conclude_setting` takes the scores of a
setting, of which it knows the mechanism and whether that is a reason for a Gaussian trade-off
curve.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audit.claims.accounting import Composition, mu_upper_bound
from audit.claims.brackets import bracket_allocation, bracket_shuffled
from audit.claims.claim import Claim, DpSgd, RandomAllocation
from audit.claims.hidden_state import HiddenState
from audit.claims.linear_losses import expected_epsilon
from audit.conclusions import conclusion, lipschitz
from audit.conclusions.conclusion import Conclusion, Kind, Look, Looks, SampledBracket, Worlds
from audit.conclusions.finish import examine_curve, finish, take_smaller
from audit.conclusions.lipschitz import Steps
from audit.errors import InputError, require
from audit.evidence.canaries import Coins, Fresh, Sets, Shape, make_coins
from audit.evidence.given import Evidence
from audit.evidence.given_directions import describe_dimension
from audit.evidence.one_run import OneRun, check_own_cosines
from audit.evidence.ranks import describe_draws, make_from_counts
from audit.evidence.repeats import count_once
from audit.laws.conversions import epsilon_from_mu
from audit.methods import estimate, exact_null, lifted, one_run_bounds, one_shot
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.method import FRESH_DIRECTIONS, MANY_CANARIES, ONE_CANARY
from audit.settings.setting import BALLS_IN_BINS, EVERY, RANDOM_ALLOCATION, SHUFFLED, Setting
from audit.storage.store import Scores
from audit.tasks.task import tasks
from audit.written import USUAL_LEVEL, Level


def conclude(
    evidence: Evidence,
    claim: Claim | None = None,
    level: Level = USUAL_LEVEL,
    looks: Sequence[int] | None = None,
    reason: str = "",
) -> Conclusion:
    """Returns what scores prove and estimate of the privacy loss, by the methods that their shape allows.

    If rows look pasted (`count_once`), it is the smaller of what all rows prove and what they prove if each
    repeated row counts once.

    Args:
      evidence: the scores, of runs with and without canaries. Its shape says how many canaries a run has, and
        whether the law of scores without the canary is known.
      claim: the claim on the mechanism; None where nothing is claimed.
      level: delta and confidence of the bounds.
      looks: the declared numbers of runs at which scores are looked at; None without declared looks. The
        evidence has one of these numbers of runs, and a single canary a run.
      reason: why the trade-off curve should be Gaussian; empty where the mechanism gives no reason.

    Raises:
      InputError: for scores from which nothing can be concluded, and for looks that do not fit them.
    """
    has_one_canary = evidence.shape is Shape.ONE_CANARY
    require(looks is None or has_one_canary, "`looks` goes with one canary a run: drop it")
    schedule = None
    if looks is not None:
        schedule = conclusion.read_schedule(looks)
    runs = sum(map(len, evidence.pooled()))  # of a single canary each, if there are looks

    def conclude_reading(reading: Evidence) -> Conclusion:
        """Returns what the rows of one reading prove, at the look that all rows are."""
        concluded = _conclude_rows(reading, claim, level, reason)
        if schedule is None:
            return concluded
        return _combine_looks(concluded, {runs: concluded.worlds}, schedule)

    all_rows = conclude_reading(evidence)
    once = count_once(evidence)
    if once is None:
        return finish(all_rows)
    try:
        counted_once = conclude_reading(once.evidence)
    except InputError:  # of too few runs, since all rows together are right
        counted_once = None
    return take_smaller(all_rows, counted_once, once.remark)


def _conclude_rows(
    evidence: Evidence, claim: Claim | None, level: Level, reason: str
) -> Conclusion:
    """Returns what all rows prove if they are independent, as in `conclude`, before `finish`."""
    kind = _KINDS[evidence.shape]
    worlds = evidence.pooled()
    estimates, bounds = _sort_out(kind.find(evidence, level))
    concluded = Conclusion(
        evidence=evidence,
        kind=kind,
        level=level,
        worlds=worlds,
        estimates=estimates,
        bounds=bounds,
        # The test needs independent scores, of a single canary a run.
        curve=examine_curve(worlds) if kind.has_one_canary else None,
        reason=reason,
        notes=tuple(kind.describe(evidence)),
    )
    if claim is None:
        return concluded
    last_model = claim.last_model(level.delta)
    expected = None
    if claim.composition is not None:
        # The claim says how often the canary is inserted only together with the bound on the last model.
        # Without that bound every step is taken to insert it.
        k = 1
        if last_model is not None:
            k = last_model.periods.k
        steps = k * claim.composition.insertions
        expected = _find_expected_epsilon(claim.composition, steps, level.delta)
    return concluded._replace(
        claim=claim,
        upper_bound=claim.epsilon(level.delta),
        mu_upper_bound=claim.gaussian_mu,
        composition=claim.composition,
        hidden_state=last_model,
        expected=expected,
    )


def _find_from_scores(evidence: Sets | Coins, level: Level) -> Sequence[Finding]:
    """Returns the bounds and estimates from runs with a single canary each, whose scores are independent."""
    return estimate.findings(*evidence.pooled(), *level)


def _find_from_canaries(evidence: Sets | Coins, level: Level) -> Sequence[Finding]:
    """Returns the bounds from several runs with several canaries each, whose scores may be dependent."""
    return lifted.bounds(evidence, *level)


def _find_from_directions(evidence: Fresh, level: Level) -> Sequence[Finding]:
    """Returns the bounds from cosines with fresh directions, or from ranks among fresh draws."""
    return [method.compute(evidence, *level) for method in exact_null.METHODS.values()]


def _find_from_one_run(evidence: OneRun, level: Level) -> Sequence[Finding]:
    """Returns the findings from a single run: estimates from cosines, then bounds from coins and cosines.

    Cosines are scores of canaries along random directions. Coins are canaries of which each was in with
    probability 1/2. A run has coins, or cosines, or both.
    """
    findings: list[Finding] = []
    coins, cosines = evidence
    if cosines is not None:
        findings += one_shot.estimates(cosines, *level)
    if coins is not None:
        findings += one_run_bounds.bound_by_guesses(one_run_bounds.weigh_coins(coins), *level)
    # By an exact law of cosines without the canary, cosines give a bound of their own.
    if cosines is not None and evidence.is_null_known:
        findings.append(one_run_bounds.bound_uniform_canaries(cosines, *level))
    return findings


def _find_expected_epsilon(composition: Composition, steps: int, delta: float) -> float | None:
    """Returns the epsilon that sampled canaries would leak at `delta` if losses were linear.

    None where canaries are not sampled, but inserted with certainty.

    Args:
      composition: the composition of the steps with the canary.
      steps: the number of all steps.
      delta: the delta of epsilon.
    """
    if composition.sampling_rate == 1:
        return None
    return expected_epsilon(composition, steps, delta)


def _describe_scores(evidence: Sets | Coins) -> list[str]:
    """Returns lines, for below a table, on runs that failed and on scores read as runs."""
    lines = _describe_failed(evidence)
    if isinstance(evidence, Sets) and evidence.labelled:
        runs = evidence.inserted.size + evidence.fresh.size
        lines.append(
            f"read as {runs:,} independent training runs; for canaries of a single run give shape "
            f"(1, {runs}), or --one_run"
        )
    return lines


def _describe_directions(evidence: Fresh) -> list[str]:
    """Returns lines, for below a table, on a caller's cosines or ranks; empty for the library's own.

    They report runs that failed, how well the law was tested, and whether rows are in order.
    """
    if not evidence.given:
        return []
    notes = _describe_failed(evidence)
    # The law is that of ranks among fresh draws, or that of cosines (then `draws` is 0) in some dimension.
    if evidence.draws:
        notes.append(describe_draws(evidence))
    else:
        notes.append(describe_dimension(evidence))
    if len(evidence.cosines) == 1:  # a single row is in any order
        return notes
    if evidence.in_order:
        order = "rows are in the order in which runs were begun: the bound is the largest after any of them"
    else:
        order = "the order of rows changes nothing; `in_order` says that it is that in which runs were begun"
    return [*notes, order]


def _describe_failed(design: Sets | Coins | Fresh) -> list[str]:
    """Returns a line, in a list, on how many scores are of failed runs; empty where no run failed."""
    if not design.failed:
        return []
    share = f"{design.failed:,} of {design.count_scores()}"
    return [f"{share} are NaN, of runs that failed: each counts, below all others"]


_KINDS = {
    Shape.ONE_CANARY: Kind(
        find=_find_from_scores, describe=_describe_scores, pair=ONE_CANARY, has_one_canary=True
    ),
    Shape.MANY_CANARIES: Kind(
        find=_find_from_canaries, describe=_describe_scores, pair=MANY_CANARIES
    ),
    Shape.FRESH_DIRECTIONS: Kind(
        find=_find_from_directions,
        describe=_describe_directions,
        pair=FRESH_DIRECTIONS,
        law_is_known=True,
    ),
    # Remarks on a single run follow from its cosines and bounds.
    Shape.ONE_RUN: Kind(
        find=_find_from_one_run, describe=lambda evidence: [], pair=None, is_one_run=True
    ),
}


def conclude_setting(
    scores: Scores,
    setting: Setting,
    level: Level = USUAL_LEVEL,
    looks: Sequence[int] = (),
    own_model: bool = False,
    steps: Steps | None = None,
    is_interim: bool = False,
) -> Conclusion:
    """Returns the conclusion from the scores of a setting's first runs.

    Args:
      scores: the scores of the runs.
      setting: the setting of the training runs.
      level: delta and confidence of the bounds.
      looks: the declared numbers of runs at which scores are looked at. The conclusion combines the looks
        that these runs reach. Empty without declared looks.
      own_model: whether the model is a caller's, of which only the name is known.
      steps: the Lipschitz constants of the steps, where the data show them or a caller vouches for them.
      is_interim: whether training goes on: then no simulations, which take seconds, find which smaller noise
        the test of the claim would refute.

    Raises:
      InputError: as `conclude` does, and for stored scores that are not finite.
    """
    bad = int(np.count_nonzero(~np.isfinite(scores.scores)))
    damaged = f"{bad} of {scores.scores.size} stored scores are not finite: move them away, and train again"
    require(not bad, damaged)

    claim = make_claim(setting)
    mechanism = setting.mechanism
    expected = None  # epsilon under linear losses; None for canaries that every run draws afresh
    # Canaries that every run draws afresh have bounds that hold at any time, without declared looks.
    if setting.adversary.any_time:
        any_time = "`looks` are for other adversaries: these canaries may be looked at at any time"
        require(not looks, any_time)
        concluded = _conclude_rows(read_directions(scores), claim, level, reason="")
    else:
        reason = ""
        if not own_model:
            reason = gaussian_reason(setting)
        concluded = _conclude_rows(read_evidence(scores), claim, level, reason)
        # The formula needs a last model that is the plain sum of all steps, as by SGD without weight decay.
        if mechanism.optimizer == "sgd" and mechanism.weight_decay == 0:
            expected = _expect_linear_losses(setting, level.delta)
    if looks:
        reached = [runs for runs in looks if runs <= len(scores.scores)]
        worlds = {runs: split_worlds(scores.of_first(runs)) for runs in reached}
        concluded = _combine_looks(concluded, worlds, looks)

    # The setting knows the optimizer and the schedule, on which these fields depend; the claim does not.
    last_model = lipschitz.hidden_state(setting, level.delta, steps, own_model)
    if isinstance(last_model, HiddenState):
        concluded = concluded._replace(hidden_state=last_model)
    else:  # why there is no bound
        concluded = concluded._replace(uncovered=last_model)
    sampled = _bracket_sampler(setting, level.delta)
    return finish(concluded._replace(expected=expected, sampled=sampled), is_interim)


def make_claim(setting: Setting) -> Claim:
    """Returns the claim that follows from a setting's mechanism, for an adversary who sees all models.

    It is `RandomAllocation` where a sampler draws one step of each epoch for the canary, by balls in bins or
    random allocation, and there is noise. Otherwise it is `DpSgd`.
    """
    sampling = setting.sampling
    if sampling.name in (BALLS_IN_BINS, RANDOM_ALLOCATION) and setting.mechanism.noise_multiplier:
        sigma = setting.mechanism.noise_multiplier
        return RandomAllocation(sigma, sampling.batches, setting.insertions)
    return DpSgd(*setting.composition)


def _bracket_sampler(setting: Setting, delta: float) -> SampledBracket | None:
    """Returns the lower and the upper bound on epsilon for an adversary who sees the model after every step.

    None where there is no noise, and unless the setting's sampler draws one step of each epoch for a canary.
    """
    sampling = setting.sampling
    sigma = setting.mechanism.noise_multiplier
    if not sampling.batches or not sigma:
        return None
    # `bracket_allocation` is of balls in bins and random allocation.
    bracket = bracket_allocation
    if sampling.name == SHUFFLED:
        bracket = bracket_shuffled
    epochs = setting.insertions  # one in each epoch
    every_model = bracket(sigma, sampling.batches, epochs, delta)
    return SampledBracket(sampling.name, sampling.batches, epochs, every_model)


def _expect_linear_losses(setting: Setting, delta: float) -> float | None:
    """Returns the epsilon at `delta` that a setting's last model would leak if losses were linear.

    It is for canaries whose steps a sampler draws; None where canaries are inserted at fixed steps, with
    certainty. Under linear losses the last model shows only the sum of all steps.
    """
    sampling = setting.sampling
    if sampling.batches:
        # The sampler draws one step of each of E epochs of b steps. The sum has E insertions and the noise of
        # E b steps, and mu = E / (sigma sqrt(E b)) = sqrt(E / b) / sigma.
        mu_without_other_steps = mu_upper_bound(
            setting.mechanism.noise_multiplier, setting.insertions
        )
        return epsilon_from_mu(mu_without_other_steps / math.sqrt(sampling.batches), delta)
    # By Poisson sampling the number of insertions is random.
    composition = Composition(*setting.composition)
    return _find_expected_epsilon(composition, setting.schedule.steps, delta)


def conclude_each_run(
    scores: Scores,
    dimension: int,
    law_holds: bool,
    level: Level = USUAL_LEVEL,
    claim: Claim | None = None,
) -> list[Conclusion]:
    """Returns a conclusion for each run alone, from its canaries' cosines.

    Args:
      scores: the cosines (runs, canaries), and which canaries were in.
      dimension: d, the dimension of the directions.
      law_holds: whether cosines of canaries that are out have their exact law, as cosines with final models
        do; else the null is fitted to these cosines.
      level: delta and confidence of the bounds.
      claim: the claim on what a canary leaks; None where nothing is claimed.
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
    """Returns the conclusion from several runs with fresh directions, all of them together.

    Args:
      scores: the cosines (runs, canaries), and which canaries were in.
      level: delta and confidence of the bounds.
      claim: the claim on what a canary leaks; None where nothing is claimed.

    Returns:
      None for a single run, and where canaries are not directions (then `scores.dimension` is 0).
    """
    if not scores.dimension or len(scores.scores) == 1:
        return None
    # Scores here are plain cosines: none uses anything of the other canaries of its run.
    design = read_directions(scores)._replace(plain=True)
    return conclude(design, claim, level)


def predicted_mu(setting: Setting) -> float | None:
    """Returns the mu that theory predicts for an adversary who inserts along a single coordinate.

    mu is the distance of the scores' means with and without the canary, in standard deviations of a score.
    Genuine gradients are taken to leave the coordinate alone. So at this coordinate the last model shows the
    sum of all insertions and of all steps' noise. With learning rate eta and weight decay lambda, what step t
    of T adds shrinks by w_t = (1 - eta lambda)^(T - t) in the steps after it. Hence mu = (sum of w_t over
    steps with an insertion) / (sigma |w|), with the norm |w| over all steps. Without decay, with an insertion
    every k steps, it is sqrt(insertions / k) / sigma. Derived in experiments/hidden_state/README.md.

    It is None where there is no such prediction: for models that are not over-parameterised, other
    adversaries or optimizers, no noise, sampled insertions, and an initialisation that differs from run to
    run (Errata H14 of that README).
    """
    mechanism = setting.mechanism
    if mechanism.optimizer != "sgd" or mechanism.noise_multiplier <= 0:
        return None
    # An initial value that differs from run to run adds its own variance to scores.
    if setting.unknown_initialisation or setting.sampling.name != EVERY:
        return None
    if not setting.adversary.biased:
        return None
    task = tasks().get(setting.model)  # None for a caller's own model
    if task is None or not task.over_parameterised:
        return None
    return lipschitz.compute_mu_along_one_direction(setting)


def gaussian_reason(setting: Setting) -> str:
    """Returns why the setting's trade-off curve should be Gaussian, in a single line; "" without a reason."""
    if predicted_mu(setting) is None:
        return ""
    return "it has a reason: Gaussian noise on one crafted coordinate"


def _combine_looks(
    last: Conclusion, worlds: Mapping[int, Worlds], schedule: Sequence[int]
) -> Conclusion:
    """Returns the conclusion from the looks that were taken: each method's bound is the best of all looks.

    Each of L declared looks gets an L-th of the error, 1 - confidence. So the best bound of all looks holds
    at the confidence, whenever looking stops.

    Args:
      last: the conclusion from the last look's scores. Its estimates and its test of the curve stay.
      worlds: (scores in, scores out) of each look that was taken, by its number of runs.
      schedule: the declared numbers of runs.

    Raises:
      InputError: for a schedule that does not ascend, and for a look that it does not name.
    """
    conclusion.require_schedule(schedule)
    for runs in worlds:
        message = f"`looks={','.join(map(str, schedule))}`: none is at {runs} runs"
        require(runs in schedule, f"{message}, as these scores are: give those of a look")
    confidence_of_each = conclusion.confidence_of_each(last.confidence, len(schedule))
    taken = []
    for runs in sorted(worlds):
        findings = estimate.findings(*worlds[runs], last.delta, confidence_of_each)
        taken.append(Look(runs, _sort_out(findings)[1]))
    best = conclusion.best_of_looks(taken, last.confidence)
    looks = Looks(tuple(schedule), confidence_of_each, tuple(taken))
    return last._replace(bounds=best, looks=looks)


def _sort_out(findings: Iterable[Finding]) -> tuple[tuple[Estimate, ...], tuple[Bound, ...]]:
    """Returns those of the findings that are estimates, and those that are bounds."""
    estimates = []
    bounds = []
    for finding in findings:
        if isinstance(finding, Bound):
            bounds.append(finding)
        else:
            estimates.append(finding)
    return tuple(estimates), tuple(bounds)


Array = NDArray[np.float64]


class StoredScores(Protocol):
    """Scores and presence (runs, canaries), and the dimension or number of draws (`audit.storage.store`)."""

    @property
    def scores(self) -> Array: ...
    @property
    def presence(self) -> NDArray[np.bool_]: ...
    @property
    def dimension(self) -> int: ...
    @property
    def draws(self) -> int: ...


def split_worlds(stored: StoredScores) -> tuple[Array, Array]:
    """Returns (scores with the canary, scores without it), flat, of runs with a single canary each.

    Raises:
      InputError: a run has several canaries, whose scores share a model and are not independent.
    """
    dependent = "scores of several canaries a run are not independent"
    fix = "give one a run, or use a method for many canaries"
    require(stored.scores.size == len(stored.scores), f"{dependent}: {fix}")
    return stored.scores[stored.presence], stored.scores[~stored.presence]


def read_coins(stored: StoredScores) -> Coins:
    """Returns evidence of canaries that were each in or out by a fair coin."""
    return make_coins(stored.scores, stored.presence)


def read_directions(stored: StoredScores) -> Fresh:
    """Returns evidence of canaries that every run drew afresh: ranks, or cosines with uniform directions."""
    if stored.draws:
        return make_from_counts(stored.scores, stored.presence, stored.draws)
    return Fresh(stored.scores, stored.presence, stored.dimension)


def read_evidence(stored: StoredScores) -> Sets | Coins | Fresh | OneRun:
    """Returns evidence of canaries that all runs share.

    For a single run with several canaries it is a `OneRun`: with coins unless all canaries are in, and with
    cosines if the scores are cosines (whose dimension is not 0). For other runs it is their design.

    Raises InputError for a single run with all canaries in whose scores are no cosines: no law says what
    they would be without the canaries.
    """
    runs, canaries = stored.scores.shape
    if runs > 1 or canaries == 1:
        return read_coins(stored)
    # All canaries are in only if the setting asks for it (`all_in`): fair coins for the 40 canaries or more
    # that a single run must have practically never put all of them in.
    if stored.presence.all():
        return OneRun(None, check_own_cosines(stored.scores[0], None, stored.dimension))
    coins = read_coins(stored)
    if not stored.dimension:
        return OneRun(coins, None)
    return OneRun(coins, check_own_cosines(*coins.pooled(), stored.dimension))
