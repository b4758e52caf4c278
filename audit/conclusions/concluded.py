"""Conclusions from an audit's scores, wherever they are shown.

`conclude_evidence` takes a caller's evidence and what is claimed of the mechanism. `conclude_setting` takes
the scores of a setting, of which it knows the mechanism and whether that is a reason for a Gaussian trade-off
curve. A conclusion tests the curve when the test is first used, which takes about 0.2 s, and remembers it.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from audit.adversaries.fresh import SphereFields
from audit.claims.accounting import Composition
from audit.claims.claim import Claim, DpSgd
from audit.claims.hidden_state import HiddenState
from audit.claims.linear_losses import expected_epsilon
from audit.conclusions import conclusion, lipschitz
from audit.conclusions.conclusion import Conclusion, Look, Looks, Worlds
from audit.conclusions.lipschitz import Steps
from audit.conclusions.one_run_conclusion import OneRunConclusion, conclude_coins, conclude_cosines
from audit.errors import require
from audit.evidence.canaries import Coins, Design, Fresh, Sets
from audit.evidence.given_directions import describe_dimension
from audit.evidence.one_run import OneRun, check_own_cosines
from audit.evidence.repeats import describe_repeats, require_no_copies
from audit.methods import estimate, exact_null, gaussian_curve, lifted
from audit.methods.estimate import Bound, Finding
from audit.settings.adversaries import adversary_row
from audit.settings.setting import Setting
from audit.storage.store import Scores
from audit.tasks import zoo


def conclude_evidence(
    evidence: Sets | Coins | Fresh,
    claim: Claim | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    looks: Sequence[int] | None = None,
) -> Conclusion:
    """Returns the conclusion from a caller's evidence of several runs, by the methods that its shape allows.

    Args:
      evidence: of `audit.evidence.given`.
      claim: what is claimed of the mechanism, where it is known.
      delta: of the bounds.
      confidence: of the bounds.
      looks: the declared numbers of scores, where these are the scores of one of them.

    Raises:
      InputError: for scores or values that nothing can be concluded from.
    """
    if not isinstance(evidence, Fresh):
        require_no_copies(evidence)
        return conclude(evidence, claim, delta, confidence, looks=looks)
    require(looks is None, "`looks` goes with one canary a run: drop it")
    return conclude_fresh(evidence, claim, delta, confidence)


def conclude_one_run(
    evidence: OneRun, delta: float = 1e-5, confidence: float = 0.95
) -> OneRunConclusion:
    """Returns the conclusion from a caller's evidence of a single run.

    Raises:
      InputError: for scores or values that nothing can be concluded from.
    """
    if evidence.coins:
        require_no_copies(evidence.coins)
        return conclude_coins(evidence.coins, evidence.cosines, delta, confidence)
    assert evidence.cosines is not None
    return conclude_cosines(evidence.cosines, delta, confidence)


def conclude(
    design: Design,
    claim: Claim | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    looks: Sequence[int] | None = None,
    reason: str = "",
) -> Conclusion:
    """Returns the conclusion from scores of one canary a run, or of several.

    Args:
      design: the scores.
      claim: what is claimed of the mechanism, where it is known.
      delta: of the bounds.
      confidence: of the bounds.
      looks: the declared numbers of scores, where these are the scores of one of them; of one canary a run.
      reason: why the trade-off curve should be Gaussian, if the mechanism is a reason.

    Raises:
      InputError: for scores or values that nothing can be concluded from.
    """
    worlds = design.pooled()
    notes = (*_describe_failed(design), *describe_repeats(design))
    require(
        looks is None or design.canaries == (1, 1), "`looks` goes with one canary a run: drop it"
    )
    claimed = _make_claimed_fields(claim, delta)
    if design.canaries != (1, 1):
        bounds = tuple(lifted.bounds(design, delta, confidence))
        return Conclusion(*worlds, (), bounds, **claimed, reason=reason, design=design, notes=notes)

    findings = estimate.findings(*worlds, delta, confidence)
    estimates = tuple(finding for finding in findings if not isinstance(finding, Bound))
    concluded = Conclusion(
        *worlds,
        estimates,
        _select_bounds(findings),
        **claimed,
        test=functools.cache(functools.partial(gaussian_curve.examine_with_power, *worlds)),
        deciding=functools.cache(functools.partial(gaussian_curve.deciding_runs, *worlds)),
        reason=reason,
        notes=notes,
    )
    if looks is None:
        return concluded
    runs = sum(len(world) for world in worlds)
    return _combine_looks(concluded, {runs: worlds}, looks)


def _make_claimed_fields(claim: Claim | None, delta: float) -> dict[str, Any]:
    """Returns the fields of a conclusion that follow from what is claimed of the mechanism."""
    if claim is None:
        return {}
    last_model = claim.last_model(delta)
    k = 1 if last_model is None else last_model.periods.k
    return {
        "upper_bound": claim.epsilon(delta),
        "mu_upper_bound": claim.gaussian_mu,
        "composition": claim.composition,
        "hidden_state": last_model,
        "expected": _find_expected_epsilon(claim.composition, k, delta),
    }


def _find_expected_epsilon(composition: Composition | None, k: int, delta: float) -> float | None:
    """Returns what canaries that are sampled leak under linear losses, or None of others."""
    if composition is None or composition.sampling_rate == 1:
        return None
    return expected_epsilon(composition, k, delta)


def conclude_fresh(
    design: Fresh,
    claim: Claim | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Conclusion:
    """Returns the conclusion from cosines of fresh directions; raises InputError as `conclude` does."""
    notes: list[str] = []
    if design.given:
        require_no_copies(design)
        notes += _describe_failed(design)
        notes += describe_repeats(design)
        notes += [describe_dimension(design), _describe_order(design)]
    bounds = tuple(
        method.compute(design, delta, confidence) for method in exact_null.METHODS.values()
    )
    return Conclusion(
        *design.pooled(),
        (),
        bounds,
        **_make_claimed_fields(claim, delta),
        design=design,
        notes=tuple(note for note in notes if note),
    )


def _describe_failed(design: Design | Fresh) -> list[str]:
    """Returns a line on a caller's runs that failed, if there are any."""
    if not design.failed:
        return []
    share = f"{design.failed:,} of {design.count_scores()}"
    return [f"{share} are NaN, of runs that failed: each counts, below all others"]


def _describe_order(design: Fresh) -> str:
    """Returns the line on the order of a caller's runs, empty of a single run."""
    if len(design.cosines) == 1:
        return ""
    if design.in_order:
        return "rows are in the order in which runs were begun: the bound is the largest after any of them"
    return "the order of rows changes nothing; `in_order` says that it is that in which runs were begun"


def conclude_setting(
    scores: Scores,
    setting: Setting,
    delta: float,
    confidence: float,
    looks: Sequence[int] = (),
    own_model: bool = False,
    steps: Steps | None = None,
) -> Conclusion:
    """Returns the conclusion from the scores of a setting's first runs.

    Args:
      scores: of the runs.
      setting: of the runs.
      delta: of the bounds.
      confidence: of the bounds.
      looks: the declared numbers of runs; the conclusion is then from those that the scores reach.
      own_model: whether the model is a caller's, of which nothing but its name is known.
      steps: how Lipschitz steps are, where the data show it or a caller vouches for it.

    Raises:
      InputError: as `conclude` does, and for stored scores that are not finite.
    """
    bad = int(np.count_nonzero(~np.isfinite(scores.scores)))
    damaged = f"{bad} of {scores.scores.size} stored scores are not finite: move them away, and train again"
    require(not bad, damaged)
    claim = DpSgd(*setting.composition)
    last_model = lipschitz.hidden_state(setting, delta, steps, own_model)
    fields: dict[str, Any] = {"uncovered": last_model}
    if isinstance(last_model, HiddenState):
        fields = {"hidden_state": last_model}
    if isinstance(setting.adversary, SphereFields):
        require(
            not looks,
            "`looks` are for other adversaries: fresh directions may be looked at at any time",
        )
        concluded = conclude_fresh(scores.directions(), claim, delta, confidence)
        return concluded._replace(**fields, expected=None)

    reason = "" if own_model else gaussian_reason(setting)
    concluded = conclude(scores.design(), claim, delta, confidence, reason=reason)
    if looks:
        worlds = {}
        for runs in looks:
            if runs <= len(scores.scores):
                worlds[runs] = scores.of_first(runs).worlds()
        concluded = _combine_looks(concluded, worlds, looks)
    mechanism = setting.mechanism
    expected = None
    if mechanism.optimizer == "sgd" and mechanism.weight_decay == 0:
        expected = _find_expected_epsilon(claim.composition, setting.schedule.periodicity, delta)
    return concluded._replace(**fields, expected=expected)


def conclude_each_run(
    scores: Scores, dimension: int, law_holds: bool, delta: float, confidence: float
) -> list[OneRunConclusion]:
    """Returns each run's conclusion from cosines.

    Args:
      scores: cosines (runs, canaries).
      dimension: d, of the directions.
      law_holds: whether a cosine of a canary that is out has its exact law, as in final models; else the null
        is fitted to the canaries that are out.
      delta: of the bounds.
      confidence: of the bounds.
    """
    conclusions = []
    for values, presence in zip(scores.scores, scores.presence, strict=True):
        unobserved = None if law_holds else values[~presence]
        cosines = check_own_cosines(values[presence], unobserved, dimension)
        design = Coins(values[None], presence[None])
        concluded = conclude_coins(design, cosines, delta, confidence)
        if law_holds:
            by_law = conclude_cosines(cosines, delta, confidence)
            concluded = concluded._replace(bounds=[*concluded.bounds, *by_law.bounds])
        conclusions.append(concluded)
    return conclusions


def bound_runs_together(scores: Scores, delta: float, confidence: float) -> Bound | None:
    """Returns the bound that several runs of fresh directions prove together.

    No score uses anything of the other canaries. The bound is None of a single run, and of other canaries.
    """
    if not scores.dimension or len(scores.scores) == 1:
        return None
    design = scores.directions()._replace(plain=True)
    return exact_null.bound_directions(design, delta, confidence)


def predicted_mu(setting: Setting) -> float | None:
    """Returns mu of the biased dimension's score where genuine gradients do not interfere.

    Insertions add up and all steps' noise does, each shrunk by weight decay in the steps after it,
    w_t = (1 - eta lambda)^(T - t), so that mu = sum of w_t over insertions / (sigma |w|), without decay
    sqrt(insertions / k) / sigma (derived in experiments/hidden_state/README.md).

    It is None where that is not known: of small models, other adversaries or optimizers, sampled insertions,
    and an unknown initialisation (Errata H14).
    """
    mechanism = setting.mechanism
    if mechanism.optimizer != "sgd" or mechanism.noise_multiplier <= 0:
        return None
    if setting.unknown_initialisation or setting.sampling_rate != 1:
        return None
    if not adversary_row(setting.adversary.name).biased:
        return None
    task = zoo.tasks().get(setting.model)
    if task is None or not task.over_parameterised:
        return None
    return lipschitz.constant_direction(setting)


def gaussian_reason(setting: Setting) -> str:
    """Returns why the setting's trade-off curve should be Gaussian, in 68 columns, or an empty string."""
    if predicted_mu(setting) is None:
        return ""
    return "it has a reason: Gaussian noise on one crafted coordinate"


def _combine_looks(
    last: Conclusion, worlds: Mapping[int, Worlds], schedule: Sequence[int]
) -> Conclusion:
    """Returns the conclusion from the looks that were taken of a declared schedule.

    The best bound of all looks, whenever one stops, holds at the confidence.

    Args:
      last: the conclusion from the last look's scores, with its estimates and its test of the curve.
      worlds: (scores in, scores out) of each look by its number of runs.
      schedule: the declared numbers of runs.
    """
    conclusion.require_schedule(schedule)
    for runs in worlds:
        message = f"`looks={','.join(str(look) for look in schedule)}`: none is at {runs} runs"
        require(runs in schedule, f"{message}, as these scores are: give those of a look")
    confidence_of_each = conclusion.confidence_of_each(last.confidence, len(schedule))
    taken = []
    for runs in sorted(worlds):
        findings = estimate.findings(*worlds[runs], last.delta, confidence_of_each)
        taken.append(Look(runs, _select_bounds(findings)))
    best = conclusion.best_of_looks(tuple(taken), last.confidence)
    return last._replace(
        bounds=best, looks=Looks(tuple(schedule), confidence_of_each, tuple(taken))
    )


def _select_bounds(findings: Iterable[Finding]) -> tuple[Bound, ...]:
    """Returns those of the findings that are bounds."""
    return tuple(finding for finding in findings if isinstance(finding, Bound))
