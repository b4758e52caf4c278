"""The conclusion from an audit's scores: one function draws it, wherever it is shown.

`conclude_evidence` takes a caller's evidence and what is claimed of the mechanism, `of_setting` the scores of
a setting, of which it knows the mechanism and whether that is a reason for a Gaussian trade-off curve. The
curve is tested when a conclusion first needs the test, which takes about 0.2 s; the result is then reused.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from audit.claims.accounting import Composition
from audit.claims.claim import Claim, DpSgd
from audit.claims.hidden_state import HiddenState
from audit.claims.linear_losses import expected_epsilon
from audit.conclusions import conclusion, lipschitz
from audit.conclusions.conclusion import Conclusion, Look, Looks, Worlds
from audit.conclusions.lipschitz import Steps
from audit.conclusions.one_run_conclusion import OneRunConclusion, conclude_coins, conclude_cosines
from audit.errors import require
from audit.evidence.canaries import Coins, Design, Fresh
from audit.evidence.given import Evidence
from audit.evidence.given_directions import describe_dimension
from audit.evidence.one_run import OneRun, of_own_game
from audit.evidence.repeats import describe_repeats, require_no_copies
from audit.methods import estimate, exact_null, gaussian_curve, lifted
from audit.methods.estimate import Bound, Estimate
from audit.settings.adversaries import SphereFields, adversary_row
from audit.settings.setting import Setting
from audit.storage.store import Scores
from audit.tasks import zoo


def conclude_evidence(
    evidence: Evidence,
    claim: Claim | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    looks: Sequence[int] | None = None,
) -> Conclusion | OneRunConclusion:
    """Returns the conclusion from a caller's evidence, by the methods that its shape allows.

    Args:
      evidence: of `audit.evidence.given`.
      claim: what is claimed of the mechanism, where it is known.
      delta, confidence: of the bounds.
      looks: the declared numbers of scores, where these are the scores of one of them.

    Raises:
      InputError: for scores or values that nothing can be concluded from.
    """
    if not isinstance(evidence, OneRun | Fresh):
        return conclude(evidence, claim, delta, confidence, looks=looks)
    require(looks is None, "`looks` goes with one canary a run: drop it")
    if isinstance(evidence, Fresh):
        return conclude_fresh(evidence, claim, delta, confidence)
    if evidence.coins is not None:
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
      delta, confidence: of the bounds.
      looks: the declared numbers of scores, where these are the scores of one of them; of one canary a run.
      reason: why the trade-off curve should be Gaussian, if the mechanism is a reason.

    Raises:
      InputError: for scores or values that nothing can be concluded from.
    """
    require_no_copies(design)
    worlds = design.pooled()
    runs = sum(len(world) for world in worlds)
    notes = (*_describe_failed(design), *describe_repeats(design))
    has_one_canary = design.canaries == (1, 1)
    require(looks is None or has_one_canary, "`looks` goes with one canary a run: drop it")
    claimed = _claimed(claim, delta)
    if not has_one_canary:
        bounds = tuple(lifted.bounds(design, delta, confidence))
        return Conclusion(*worlds, (), bounds, **claimed, reason=reason, design=design, notes=notes)
    rows = estimate.findings(*worlds, delta, confidence)
    estimates = tuple(row for row in rows if isinstance(row, Estimate))
    bounds = tuple(row for row in rows if isinstance(row, Bound))
    conclusion = Conclusion(
        *worlds,
        estimates,
        bounds,
        **claimed,
        test=functools.cache(functools.partial(gaussian_curve.examine_with_power, *worlds)),
        deciding=functools.cache(functools.partial(gaussian_curve.deciding_runs, *worlds)),
        reason=reason,
        notes=notes,
    )
    if looks is None:
        return conclusion
    return _add_looks(conclusion, {runs: worlds}, looks)


def _claimed(claim: Claim | None, delta: float) -> dict[str, Any]:
    """Returns the fields of a conclusion that follow from what is claimed of the mechanism."""
    if claim is None:
        return {}
    last = claim.last_model(delta)
    k = 1 if last is None else last.periods.k
    return {
        "upper_bound": claim.epsilon(delta),
        "mu_upper_bound": claim.gaussian_mu,
        "composition": claim.composition,
        "hidden_state": last,
        "expected": _expected(claim.composition, k, delta),
    }


def _expected(composition: Composition | None, k: int, delta: float) -> float | None:
    """Returns what sampled canaries leak under linear losses; None of others."""
    if composition is None or composition.sampling_rate == 1:
        return None
    return expected_epsilon(composition, k, delta)


def conclude_fresh(
    design: Fresh,
    claim: Claim | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Conclusion:
    """Returns the conclusion from cosines of fresh directions; raises InputError as `conclude`."""
    notes: tuple[str, ...] = ()
    if design.given:
        require_no_copies(design)
        described = describe_dimension(design)
        notes = (*_describe_failed(design), *describe_repeats(design), described, _describe_order(design))
    bounds = tuple(method.compute(design, delta, confidence) for method in exact_null.METHODS.values())
    return Conclusion(
        *design.pooled(),
        (),
        bounds,
        **_claimed(claim, delta),
        design=design,
        notes=tuple(note for note in notes if note),
    )


def _describe_failed(design: Design | Fresh) -> list[str]:
    """Returns a line on a caller's runs that failed, if there are any."""
    if not design.failed:
        return []
    if isinstance(design, Fresh):
        total = design.cosines.size
        scores = "cosines"
    else:
        total = sum(len(world) for world in design.pooled())
        scores = "scores"
    share = f"{design.failed:,} of {total:,} {scores}"
    return [f"{share} are NaN, of runs that failed: each counts, below all others"]


def _describe_order(design: Fresh) -> str:
    """Returns the line on the order of a caller's runs, empty of a single run."""
    if len(design.cosines) == 1:
        return ""
    if design.in_order:
        return "rows are in the order in which runs were begun: the bound is the largest after any of them"
    return "the order of rows changes nothing; `in_order` says that it is that in which runs were begun"


def of_setting(
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
      setting: what they are runs of.
      delta, confidence: of the bounds.
      looks: the declared looks, if any; the bounds are then from those that the runs reach.
      own_model: whether the model is a caller's own, of which only the name is given.
      steps: how Lipschitz the steps are, where that follows from the data or is vouched for.

    Raises:
      InputError: as `conclude`, and for stored scores that are not finite.
    """
    bad = int(np.count_nonzero(~np.isfinite(scores.scores)))
    damaged = f"{bad} of {scores.scores.size} stored scores are not finite: move them away, and train again"
    require(not bad, damaged)

    claim = DpSgd(*setting.composition)
    last = lipschitz.hidden_state(setting, delta, steps, own_model)
    field = "hidden_state" if isinstance(last, HiddenState) else "uncovered"
    last_model: dict[str, Any] = {field: last}

    if isinstance(setting.adversary, SphereFields):
        require(not looks, "`looks` are for other adversaries: fresh directions may be looked at at any time")
        of_directions = conclude_fresh(scores.directions(), claim, delta, confidence)
        return of_directions._replace(**last_model, expected=None)

    reason = "" if own_model else gaussian_reason(setting)
    result = conclude(scores.design(), claim, delta, confidence, reason=reason)._replace(**last_model)
    if looks:
        reached = [runs for runs in looks if runs <= len(scores.scores)]
        worlds_at = {runs: scores.of_first(runs).worlds() for runs in reached}
        result = _add_looks(result, worlds_at, looks)

    mechanism = setting.mechanism
    is_plain_sgd = mechanism.optimizer == "sgd" and mechanism.weight_decay == 0
    if not is_plain_sgd:
        return result._replace(expected=None)
    expected = _expected(claim.composition, setting.schedule.periodicity, delta)
    return result._replace(expected=expected)


def of_each_run(
    scores: Scores, dimension: int, law_holds: bool, delta: float, confidence: float
) -> list[OneRunConclusion]:
    """Returns each run's conclusion from cosines in R^dimension.

    law_holds: whether a cosine of a canary that is out has its exact law, as in final models; else the null
    is fitted to the canaries that are out.
    """
    conclusions = []
    for values, bits in zip(scores.scores, scores.presence, strict=True):
        design = Coins(values[None], bits[None])
        cosines = of_own_game(values[bits], None if law_holds else values[~bits], dimension)
        by_coins = conclude_coins(design, cosines, delta, confidence)
        if law_holds:
            by_law = conclude_cosines(cosines, delta, confidence)
            by_coins = by_coins._replace(bounds=[*by_coins.bounds, *by_law.bounds])
        conclusions.append(by_coins)
    return conclusions


def of_runs_together(scores: Scores, delta: float, confidence: float) -> Bound | None:
    """Returns the bound that several runs of fresh directions prove together.

    No score may use anything of the other canaries. None of a single run, and of other canaries.
    """
    if not scores.dimension or len(scores.scores) == 1:
        return None
    return exact_null.of_fresh(scores.directions()._replace(plain=True), delta, confidence)


def predicted_mu(setting: Setting) -> float | None:
    """Returns mu of the biased dimension's score where genuine gradients do not interfere.

    Insertions add up and all steps' noise does, each shrunk by weight decay in the steps after it,
    w_t = (1 - eta lambda)^(T - t), so mu = sum of w_t over insertions / (sigma |w|), without decay
    sqrt(insertions / k) / sigma (derived in experiments/hidden_state/README.md).

    Returns:
      mu; None where it is not that: small models, other adversaries or optimizers, sampled insertions, an
      unknown initialisation (Errata H14).
    """
    mechanism = setting.mechanism
    if mechanism.optimizer != "sgd" or mechanism.noise_multiplier <= 0:
        return None
    if setting.unknown_initialisation or setting.sampling_rate != 1:
        return None
    task = zoo.tasks().get(setting.model)
    if task is None or not task.over_parameterised:
        return None
    if not adversary_row(setting.adversary.name).biased:
        return None
    return lipschitz.constant_direction(setting)


def gaussian_reason(setting: Setting) -> str:
    """Returns why the setting's trade-off curve should be Gaussian, in 68 columns; empty without a reason."""
    if predicted_mu(setting) is None:
        return ""
    return "it has a reason: Gaussian noise on one crafted coordinate"


def _add_looks(last: Conclusion, worlds_at: Mapping[int, Worlds], schedule: Sequence[int]) -> Conclusion:
    """Returns a conclusion with the looks that were taken, and the best of their bounds.

    The best bound of all looks, whenever one stops, holds at the conclusion's confidence.

    Args:
      last: from the scores of the last look, which estimates and the curve's test use.
      worlds_at: (scores in, scores out) by the number of runs.
      schedule: the declared numbers of runs.
    """
    conclusion.require_schedule(schedule)
    for runs in worlds_at:
        undeclared = f"`looks={','.join(map(str, schedule))}`: none is at {runs} runs"
        require(runs in schedule, f"{undeclared}, as these scores are: give those of a look")

    confidence = conclusion.confidence_of_each(last.confidence, len(schedule))
    taken = []
    for runs, worlds in sorted(worlds_at.items()):
        taken.append(Look(runs, _bounds(worlds, last.delta, confidence)))
    bounds = conclusion.best_of_looks(taken, last.confidence)
    return last._replace(bounds=bounds, looks=Looks(tuple(schedule), confidence, tuple(taken)))


def _bounds(worlds: Worlds, delta: float, confidence: float) -> tuple[Bound, ...]:
    """Returns the bounds from scores of one canary a run, without the estimates."""
    findings = estimate.findings(*worlds, delta, confidence)
    return tuple(finding for finding in findings if isinstance(finding, Bound))
