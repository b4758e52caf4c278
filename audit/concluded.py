"""The conclusion from an audit's scores: one function draws it, wherever it is shown.

`conclude` takes a caller's scores, `of_setting` those of a setting, of which it knows the mechanism and
whether that is a reason for a Gaussian trade-off curve. The curve is tested when a conclusion is first asked
for it, which takes about 0.2 s, and the test is then kept.
"""

import functools
from collections.abc import Mapping, Sequence

from numpy.typing import ArrayLike

from audit import lipschitz, zoo
from audit.errors import InputError, require
from audit.lipschitz import Steps
from audit.settings.adversaries import SphereFields, adversary_row
from audit.settings.setting import Setting, require_noise
from audit.statistics import (
    accounting,
    conclusion,
    estimate,
    exact_null,
    gaussian_curve,
    lifted,
    one_run_conclusion,
)
from audit.statistics.accounting import Composition
from audit.statistics.canaries import Coins, Design, Fresh
from audit.statistics.conclusion import Conclusion, Look, Looks, Worlds
from audit.statistics.estimate import Bound, Estimate
from audit.statistics.given_directions import describe_dimension
from audit.statistics.hidden_state import LAST, HiddenState, Periods, insert_step, of_periods
from audit.statistics.linear_losses import expected_epsilon
from audit.statistics.one_run_conclusion import OneRunConclusion
from audit.statistics.one_shot import of_own_game
from audit.statistics.repeats import describe_repeats, require_no_copies
from audit.storage.store import Scores
from audit.values import number, plain


def conclude(
    design: Design,
    composition: Composition | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    looks: Sequence[int] | None = None,
    upper_bound: float | None = None,
    reason: str = "",
) -> Conclusion:
    """The conclusion from a caller's scores and the mechanism's composition or, of another accountant, the
    upper bound on epsilon, where one of them is known.

    looks: the declared numbers of scores, where these are the scores of one of them. reason: why the
    trade-off curve should be Gaussian, if the mechanism is a reason. Raises InputError for scores or values
    that nothing can be concluded from, and for looks with several canaries a run.
    """
    require_no_copies(design)
    worlds = design.pooled()
    runs = sum(map(len, worlds))
    notes = (*_describe_failed(design), *describe_repeats(design))
    require(looks is None or design.canaries == (1, 1), "`looks` goes with one canary a run: drop it")
    upper = _upper_bounds(composition, delta, upper_bound)
    if design.canaries != (1, 1):
        bounds = tuple(lifted.bounds(design, delta, confidence))
        return Conclusion(
            *worlds,
            (),
            bounds,
            *upper,
            composition=composition,
            reason=reason,
            design=design,
            notes=notes,
        )
    found = estimate.findings(*worlds, delta, confidence)
    estimates = tuple(one for one in found if isinstance(one, Estimate))
    bounds = tuple(one for one in found if isinstance(one, Bound))
    test = functools.cache(functools.partial(gaussian_curve.examine_with_power, *worlds))
    deciding = functools.cache(functools.partial(gaussian_curve.deciding_runs, *worlds))
    one = Conclusion(*worlds, estimates, bounds, *upper, test, deciding, composition, reason, notes=notes)
    return one if looks is None else _of_looks(one, {runs: worlds}, looks)


def composition_of(
    noise_multiplier: float | None, insertions: int | None, sampling_rate: float | None
) -> Composition | None:
    """The mechanism's steps, if a caller gives them; raises InputError for a part of them alone."""
    if noise_multiplier is None or insertions is None:
        known = [noise_multiplier, insertions, sampling_rate] != [None] * 3
        message = "`noise_multiplier` and `insertions` go together, and `sampling_rate` goes with both"
        require(not known, f"{message}: give both or none")
        return None
    sigma, rate = number("noise_multiplier", noise_multiplier, float), 1.0
    require_noise(sigma)
    if sampling_rate is not None:
        rate = number("sampling_rate", sampling_rate, float)
    return Composition(sigma, number("insertions", insertions, int), rate)


def hidden_state_of(
    composition: Composition | None,
    lipschitz: ArrayLike | None,
    k: int | None,
    insert: str | int | None,
    delta: float,
    step_sizes: ArrayLike = 1.0,
) -> HiddenState | None:
    """The bound on a caller's last model, if the Lipschitz constants of its steps are given: k is 1, and the
    canary comes last in each period, unless they say otherwise. Raises InputError for a part alone."""
    if lipschitz is None:
        require(k is None and insert is None, "`k` and `insert` go with `lipschitz`: give it, or drop them")
        return None
    missing = "`lipschitz` goes with `noise_multiplier` and `insertions`: give all three"
    if composition is None:
        raise InputError(missing)
    every = 1 if k is None else number("k", k, int)
    place = insert_step(LAST if insert is None else plain(insert), every)
    periods = Periods(lipschitz, every, place)
    return HiddenState(of_periods(composition, periods, delta, step_sizes), periods)


def of_last_model(conclusion: Conclusion, last: HiddenState | None) -> Conclusion:
    """A caller's conclusion with the bound on the last model, and what is expected of sampled canaries, in
    every step unless the bound's periods say otherwise."""
    k = 1 if last is None else last.periods.k
    expected = _expected(conclusion.composition, k, conclusion.delta)
    return conclusion._replace(hidden_state=last, expected=expected)


def _expected(composition: Composition | None, k: int, delta: float) -> float | None:
    """What sampled canaries leak under linear losses; None of others."""
    if composition is None or composition.sampling_rate == 1:
        return None
    return expected_epsilon(composition, k, delta)


def _upper_bounds(
    composition: Composition | None, delta: float, given: float | None
) -> tuple[float | None, float | None]:
    """The upper bounds on epsilon and mu, where they are known; raises InputError for two at once."""
    alone = given is None or (given >= 0 and composition is None)
    require(alone, f"`upper_bound={given}`: give epsilon, at least 0, and no mechanism beside it")
    if composition is None:
        return given, None
    sigma, insertions, rate = composition
    upper_epsilon = accounting.sampled_upper_bound(sigma, insertions, delta, rate)
    # no mu where steps are sampled: the curve is not Gaussian then
    return upper_epsilon, accounting.mu_upper_bound(sigma, insertions) if rate == 1 else None


def conclude_fresh(
    design: Fresh,
    composition: Composition | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    *,
    upper_bound: float | None = None,
) -> Conclusion:
    """Returns the conclusion from cosines of fresh directions; raises InputError as `conclude`."""
    notes: tuple[str, ...] = ()
    if design.given:
        require_no_copies(design)
        described = describe_dimension(design)
        notes = (*_describe_failed(design), *describe_repeats(design), described, _describe_order(design))
    upper = _upper_bounds(composition, delta, upper_bound)
    bounds = tuple(method.compute(design, delta, confidence) for method in exact_null.METHODS.values())
    return Conclusion(
        *design.pooled(),
        (),
        bounds,
        *upper,
        composition=composition,
        design=design,
        notes=tuple(note for note in notes if note),
    )


def _describe_failed(design: Design | Fresh) -> list[str]:
    """Returns a line on a caller's runs that failed, if there are any."""
    if not design.failed:
        return []
    total = design.cosines.size if isinstance(design, Fresh) else sum(map(len, design.pooled()))
    scores = "cosines" if isinstance(design, Fresh) else "scores"
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
    """The conclusion from the scores of a setting's first runs, or from those of the declared looks that they
    reach; of a caller's own model nothing but its name is known. steps: how Lipschitz they are, where that is
    known of the data or vouched for. Raises InputError as `conclude`."""
    composition = Composition(*setting.composition)
    last = lipschitz.hidden_state(setting, delta, steps, own_model)
    known = {"hidden_state": last} if isinstance(last, HiddenState) else {"uncovered": last}
    if isinstance(setting.adversary, SphereFields):
        require(not looks, "`looks` are for other adversaries: fresh directions may be looked at at any time")
        return conclude_fresh(scores.directions(), composition, delta, confidence)._replace(**known)
    reason = "" if own_model else gaussian_reason(setting)
    one = conclude(scores.design(), composition, delta, confidence, reason=reason)._replace(**known)
    taken = [runs for runs in looks if runs <= len(scores.scores)]
    seen = {runs: scores.of_first(runs).worlds() for runs in taken}
    found = _of_looks(one, seen, looks) if looks else one
    k, mechanism = setting.schedule.periodicity, setting.mechanism
    plain = mechanism.optimizer == "sgd" and mechanism.weight_decay == 0
    return found._replace(expected=_expected(composition, k, delta) if plain else None)


def of_each_run(
    scores: Scores, dimension: int, known_null: bool, delta: float, confidence: float
) -> list[OneRunConclusion]:
    """Each run's conclusion from cosines in R^dimension. known_null: whether a cosine's law is known where
    the canary is out, as it is of final models; else it is fitted to the canaries that are out."""
    found = []
    for values, bits in zip(scores.scores, scores.presence, strict=True):
        design = Coins(values[None], bits[None])
        by_coins = one_run_conclusion.of_coins(design, dimension, delta, confidence)
        if known_null:
            observed = of_own_game(values[bits], None, dimension)
            alone = one_run_conclusion.of_cosines(observed, delta, confidence)
            by_coins = alone._replace(coins=True, bounds=[*by_coins.bounds, *alone.bounds])
        found.append(by_coins)
    return found


def of_runs_together(scores: Scores, delta: float, confidence: float) -> Bound | None:
    """The bound that several runs of fresh directions prove together, of which no score uses anything of the
    other canaries; None of one run, and of other canaries."""
    if not scores.dimension or len(scores.scores) == 1:
        return None
    return exact_null.of_fresh(scores.directions()._replace(plain=True), delta, confidence)


def predicted_mu(setting: Setting) -> float | None:
    """mu of the biased dimension's score where genuine gradients do not interfere: insertions add up and
    all steps' noise does, each shrunk by weight decay in the steps after it, w_t = (1 - eta lambda)^(T - t),
    so mu = sum of w_t over insertions / (sigma |w|), without decay sqrt(insertions / k) / sigma (derived in
    experiments/hidden_state/README.md). None where that is not known: small models, other adversaries or
    optimizers, sampled insertions, an unknown initialisation (Errata H14)."""
    mechanism, known = setting.mechanism, zoo.tasks().get(setting.model)
    plain = mechanism.optimizer == "sgd" and not setting.unknown_initialisation and setting.sampling_rate == 1
    crafted = adversary_row(setting.adversary.name).biased and known is not None and known.over_parameterised
    if not (plain and crafted and mechanism.noise_multiplier > 0):
        return None
    return lipschitz.constant_direction(setting)


def gaussian_reason(setting: Setting) -> str:
    """Why the setting's trade-off curve should be Gaussian, in 68 columns; empty if nothing says so."""
    known = predicted_mu(setting) is not None
    return "it has a reason: Gaussian noise on one crafted coordinate" if known else ""


def _of_looks(last: Conclusion, seen: Mapping[int, Worlds], schedule: Sequence[int]) -> Conclusion:
    """The conclusion from the looks that were taken of a declared schedule: (scores in, scores out) by the
    number of runs, of which the last are those that estimates and the curve's test stand on. The best bound
    of all looks, whenever one stops, holds at the confidence."""
    conclusion.require_schedule(schedule)
    for runs in seen:
        said = f"`looks={','.join(map(str, schedule))}`: none is at {runs} runs"
        require(runs in schedule, f"{said}, as these scores are: give those of a look")
    each = conclusion.confidence_of_each(last.confidence, len(schedule))
    taken = tuple(Look(runs, _bounds(worlds, last.delta, each)) for runs, worlds in sorted(seen.items()))
    bounds = conclusion.best_of_looks(taken, last.confidence)
    return last._replace(bounds=bounds, looks=Looks(tuple(schedule), each, taken))


def _bounds(worlds: Worlds, delta: float, confidence: float) -> tuple[Bound, ...]:
    found = estimate.findings(*worlds, delta, confidence)
    return tuple(one for one in found if isinstance(one, Bound))
