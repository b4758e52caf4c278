"""The conclusion from an audit's scores: every lower bound beside the accountant's upper bound.

Runs may be added and looked at several times, at numbers of runs that were declared beforehand. The best
bound of five looks has five chances to exceed the truth. Here each of L looks gets an equal
share of the error, (1 - confidence) / L, so that by the union bound all of a method's looks hold at once at
the confidence, and so does the best of them, whenever the audit stops. It holds for numbers of runs that no
score has decided. Shares by the number of runs, or half of the error for the last look, raise the mean of
the best of five bounds on mu by less than 1%, and equal shares are the same at every look.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from audit import errors
from audit.claims.accounting import Composition
from audit.claims.brackets import EveryModel
from audit.claims.claim import Claim
from audit.claims.hidden_state import HiddenState
from audit.claims.measured import MEASURED
from audit.errors import require
from audit.evidence.canaries import Coins, Fresh, Sets
from audit.evidence.given import Evidence
from audit.evidence.one_run import OneRun
from audit.laws.cosine_law import AndersonDarling
from audit.methods import estimate, exact_null, lifted
from audit.methods.claimed_curve import ClaimTest
from audit.methods.curves import Attack, Auc
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.methods.method import GIVEN, Assumption, Method, Pair
from audit.written import Level

Worlds = tuple[NDArray[np.float64], NDArray[np.float64]]
MEASURED_LABEL = f"hidden state, {MEASURED}"  # a bound's name in tables
_LEAST_P_VALUE = 1e-6  # smaller ones rest on the tail of an approximation
# Scores this many standard errors below those without canary are reversed: three audits in 100,000 where
# nothing leaks.
_CLEARLY = 4
_FEWEST_EQUAL = 5  # so many scores are not all equal, or all shifted by the same, by chance


def method_of(finding: Finding) -> Method:
    """Returns the record of the method that computed a bound or an estimate."""
    methods: dict[str, Method] = {**estimate.METHODS, **lifted.METHODS, **exact_null.METHODS}
    return methods[finding.method]


def assumption_of(finding: Finding) -> Assumption:
    """Returns what a bound assumes, as it states itself, or why an estimate is no bound."""
    if isinstance(finding, Bound):
        return finding.assumes
    return method_of(finding).assumes


class Look(NamedTuple):
    """A look at the scores, at a number of runs that was declared beforehand.

    Attributes:
      runs: the number of runs.
      bounds: the bounds from these runs, at the look's own confidence.
    """

    runs: int
    bounds: tuple[Bound, ...]


class Looks(NamedTuple):
    """The declared looks of an audit.

    Attributes:
      schedule: the declared numbers of runs, ascending.
      confidence: the confidence of each look's bounds.
      taken: the looks that were taken, in order.
    """

    schedule: tuple[int, ...]
    confidence: float
    taken: tuple[Look, ...]


class UpperBound(NamedTuple):
    """An upper bound on what a mechanism leaks.

    Attributes:
      epsilon: at the conclusion's delta.
      mu: None where the curve is not Gaussian or is unknown.
      assumes: what the bound assumes.
      hidden: whether it is the hidden-state bound, for an adversary who sees only the last model, and not a
        bound on all models.
    """

    epsilon: float
    mu: float | None
    assumes: Assumption
    hidden: bool = False

    @property
    def is_measured(self) -> bool:
        """Returns whether it is a hidden-state bound that rests on measured Lipschitz constants."""
        return self.hidden and self.assumes.word == MEASURED

    @property
    def name(self) -> str:
        """Returns the bound's name in sentences and figures.

        It depends on what the bound assumes: "claim" for a number that is taken as given.
        """
        if self.assumes == GIVEN:  # from a caller or another accountant
            return "claim"
        if not self.hidden:
            return "upper bound"
        if self.is_measured:
            return "measured hidden-state bound"
        return "hidden-state bound"

    @property
    def label(self) -> str:
        """Returns the bound's name in tables."""
        if self.is_measured:
            return MEASURED_LABEL
        return self.name


class SampledBracket(NamedTuple):
    """Bounds on what all models leak where a sampler draws a single step of each epoch for a canary.

    Attributes:
      sampler: the sampler's name.
      batches: the number of steps of an epoch.
      epochs: the number of epochs of training.
      every_model: the lower and the upper bound on epsilon, and the accountant that computed them.
    """

    sampler: str
    batches: int
    epochs: int
    every_model: EveryModel


class Curve(NamedTuple):
    """The test of whether the trade-off curve is Gaussian.

    Attributes:
      p_value: the p-value of a Gaussian curve.
      power: the least probability with which the test refutes the curves of a few other mechanisms.
    """

    p_value: float
    power: float

    @property
    def is_refuted(self) -> bool:
        """Returns whether the scores refute a Gaussian curve, at the test's level."""
        return self.p_value < CURVE_LEVEL

    @property
    def is_doubted(self) -> bool:
        """Returns whether the test refutes no Gaussian curve but has too little power to confirm it."""
        return not self.is_refuted and self.power < CURVE_POWER

    @property
    def status(self) -> str:
        """Returns the result in one or two words."""
        if self.is_refuted:
            return "refuted"
        if self.is_doubted:
            return "not confirmed"
        return "confirmed"

    def show_p_value(self) -> str:
        """Returns the p-value in words: "p = 0.41" or "p < 1e-06"."""
        if self.p_value < _LEAST_P_VALUE:
            return f"p < {_LEAST_P_VALUE:g}"
        return f"p = {self.p_value:.2g}"


class AttackRates(NamedTuple):
    """How well guesses by the scores distinguish both worlds; none of these numbers is a bound.

    Attributes:
      auc: the area under the ROC curve.
      true_positive_rates: the true-positive rates, by the false-positive rate as text.
      attack: the accuracy, and true-positive rates with their limits.
    """

    auc: Auc
    true_positive_rates: dict[str, float]
    attack: Attack


class Kind(NamedTuple):
    """What differs between the kinds of evidence.

    Attributes:
      find: returns bounds, and estimates that are no bounds.
      describe: returns lines for below a table on the scores themselves.
      pair: the methods of the two bounds on which verdicts rest; None for a single run, for which all bounds
        count.
      is_one_run: whether all scores are of the canaries of a single run.
      has_one_canary: whether each run has a single canary: then scores are independent.
      law_is_known: whether scores of canaries that are out have a known law (fresh directions, or ranks).
    """

    find: Callable[[Any, Level], Sequence[Finding]]
    describe: Callable[[Any], Sequence[str]]
    pair: Pair | None
    is_one_run: bool = False
    has_one_canary: bool = False
    law_is_known: bool = False


class Verdict(NamedTuple):
    """A verdict on an audit, in texts of four lengths.

    Attributes:
      kind: "leaks", "nothing" or "violated".
      word: the verdict in one to four words, for tables.
      headline: the verdict in a short sentence.
      sentence: the explanation that follows the headline, in full sentences.
    """

    kind: str
    word: str
    headline: str
    sentence: str


_NOT_JUDGED = Verdict("", "", "", "")


class Conclusion(NamedTuple):
    """What an audit's scores show, at a given level.

    `conclude` and `conclude_setting` compute all fields at once.

    Attributes:
      evidence: the scores by run and canary.
      kind: what differs between kinds of evidence.
      level: delta and confidence of the bounds, which the formulas of estimates use too.
      worlds: (scores in (n_in,), scores out (n_out,)) of all canaries.
      estimates: values of epsilon that are no bounds.
      bounds: the lower bounds as they were computed. `holds` is false in those whose assumption the scores
        refute.
      claim: the claim on the mechanism; None if nothing is claimed.
      upper_bound: the claimed upper bound on epsilon for all models; infinite without noise, None if nothing
        is claimed.
      mu_upper_bound: the claimed upper bound on mu; None if nothing is claimed, if steps are sampled, or if
        the claim gives only epsilon.
      composition: the composition of the mechanism's steps with a canary; None if it is unknown.
      hidden_state: the upper bound on only the last model; None if steps are not known to be Lipschitz.
      uncovered: why there is no `hidden_state`, if the setting of the training runs is known; else empty.
      expected: the epsilon of the last model if losses were linear, for sampled canaries; no bound.
      sampled: bounds on what all models leak if a sampler draws the canaries' steps; None without.
      upper_bounds: the upper bounds, the smallest epsilon first; there are two at most.
      curve: the test of the Gaussian curve; None if runs have several canaries, since it needs independent
        scores.
      reason: why the curve should be Gaussian; empty if the mechanism gives no reason.
      looks: the declared looks; None without. The bounds are then the best of the looks taken, and all looks
        together hold at the confidence.
      notes: lines below the table about the scores themselves.
      guesses: how well guesses distinguish both worlds; None for a single run without scores out.
      normality: the test of whether the cosines of a single run are normal; None without cosines.
      is_reversed: whether scores are clearly lower with the canary than without, as with the wrong sign.
      doubt: why the scores cannot be those of independent runs; empty if they can.
      claim_test: the test of the tightest claim; None if nothing is claimed, or nothing can be tested.
      most_provable: the largest epsilon that as many runs can prove whatever the curve, at the confidence of
        a single look; None if runs have several canaries.
      is_beyond_reach: whether no scores of so many runs could refute the tightest claim.
      verdict: the verdict, in texts of four lengths.
    """

    evidence: Evidence
    kind: Kind
    level: Level
    worlds: Worlds
    estimates: tuple[Estimate, ...]
    bounds: tuple[Bound, ...]
    claim: Claim | None = None
    upper_bound: float | None = None
    mu_upper_bound: float | None = None
    composition: Composition | None = None
    hidden_state: HiddenState | None = None
    uncovered: str = ""
    expected: float | None = None
    sampled: SampledBracket | None = None
    upper_bounds: tuple[UpperBound, ...] = ()
    curve: Curve | None = None
    reason: str = ""
    looks: Looks | None = None
    notes: tuple[str, ...] = ()
    guesses: AttackRates | None = None
    normality: AndersonDarling | None = None
    is_reversed: bool = False
    doubt: str = ""
    claim_test: ClaimTest | None = None
    most_provable: float | None = None
    is_beyond_reach: bool = False
    verdict: Verdict = _NOT_JUDGED

    @property
    def scores_in(self) -> NDArray[np.float64]:
        """Returns the scores (n_in,) of canaries that were in."""
        return self.worlds[0]

    @property
    def scores_out(self) -> NDArray[np.float64]:
        """Returns the scores (n_out,) of canaries that were out."""
        return self.worlds[1]

    @property
    def delta(self) -> float:
        """Returns the delta of every epsilon."""
        return self.level.delta

    @property
    def confidence(self) -> float:
        """Returns the confidence of every bound."""
        return self.level.confidence

    @property
    def is_one_run(self) -> bool:
        """Returns whether all scores are of the canaries of a single run."""
        return self.kind.is_one_run

    @property
    def has_one_canary(self) -> bool:
        """Returns whether each run has a single canary: then scores are independent."""
        return self.kind.has_one_canary

    @property
    def law_is_known(self) -> bool:
        """Returns whether scores of canaries that are out have a known law (fresh directions, or ranks)."""
        return self.kind.law_is_known

    @property
    def has_tied_scores(self) -> bool:
        """Returns whether scores of one of several runs may depend on each other and have no known law."""
        return not (self.is_one_run or self.has_one_canary or self.law_is_known)

    @property
    def bets_on_curve(self) -> bool:
        """Returns whether the test of the claim bets against its whole trade-off curve.

        It does if the exact law of scores without the canary is known. The e-value is then what the bets have
        won. Otherwise the test compares a lower bound with the claim, and the e-value has only two values.
        """
        if self.is_one_run:
            return self.one_run.is_null_known
        return self.law_is_known

    @property
    def fresh(self) -> Fresh:
        """Returns the evidence of a conclusion from fresh directions."""
        return cast(Fresh, self.evidence)

    @property
    def one_run(self) -> OneRun:
        """Returns the evidence of a conclusion from a single run."""
        return cast(OneRun, self.evidence)

    @property
    def is_claimed(self) -> bool:
        """Returns whether the bound on all models is a claim, rather than computed from the steps."""
        if self.upper_bound is None:
            return False
        return self.claim is None or self.claim.assumes == GIVEN

    @property
    def tightest(self) -> UpperBound | None:
        """Returns the upper bound with the smallest epsilon; None if there is none."""
        return next(iter(self.upper_bounds), None)

    @property
    def tightest_mu(self) -> float | None:
        """Returns the smallest upper bound on mu; None if there is none."""
        mus = [bound.mu for bound in self.upper_bounds if bound.mu is not None]
        return min(mus, default=None)

    def exceeded(self, epsilon: float) -> UpperBound | None:
        """Returns the largest upper bound that an epsilon exceeds; None if it exceeds none."""
        for bound in reversed(self.upper_bounds):  # the largest first
            if epsilon > bound.epsilon:
                return bound
        return None

    @property
    def gaussian(self) -> Bound:
        """Returns the bound on which the verdict rests if the curve is Gaussian."""
        assert self.kind.pair is not None
        return self.bound(self.kind.pair.gaussian)

    @property
    def assumption_free(self) -> Bound:
        """Returns the bound on which the verdict rests whatever the curve."""
        assert self.kind.pair is not None
        return self.bound(self.kind.pair.free)

    @property
    def path(self) -> tuple[float, ...]:
        """Returns the epsilon proven after each run, for fresh directions in order; else an empty tuple."""
        return self.assumption_free.path

    @property
    def epsilon(self) -> float:
        """Returns the epsilon that is proven whatever the curve, on which the verdict relies.

        For a single run it is the largest of all bounds that assume no Gaussian curve, or 0 without one.
        """
        if not self.is_one_run:
            return self.assumption_free.epsilon
        epsilons = [bound.epsilon for bound in self.bounds if not bound.assumes.gaussian]
        return max(epsilons, default=0.0)

    @property
    def refutes_gaussian(self) -> bool:
        """Returns whether the scores refute a Gaussian trade-off curve."""
        return self.curve is not None and self.curve.is_refuted

    def count_runs(self) -> int:
        """Returns how many training runs the scores come from."""
        if self.is_one_run:
            return 1
        several_runs = cast("Sets | Coins | Fresh", self.evidence)
        # Each of these tables of scores has a row for each of its runs.
        return sum(len(rows.scores) for rows in several_runs.rows())

    def ranked(self) -> tuple[Bound, ...]:
        """Returns the bounds in the order in which tables show them, whatever their values.

        The bounds of a single run stay as computed. Otherwise the assumption-free bound comes first, then the
        bound that assumes a Gaussian curve. For fresh directions with an upper bound on mu, the limit on mu
        comes before both.
        """
        pair = self.kind.pair
        if pair is None:
            return self.bounds
        methods = [pair.free, pair.gaussian]
        if self.law_is_known and self.tightest_mu is not None:
            methods.insert(0, EXACT_NULL_GDP)  # the number to compare with the upper bound on mu
        for bound in self.bounds:
            methods.append(bound.method)
        without_repeats = dict.fromkeys(methods)  # keeps the order
        return tuple(map(self.bound, without_repeats))

    def rows(self) -> tuple[Finding, ...]:
        """Returns the estimates, then the bounds as computed."""
        return (*self.estimates, *self.bounds)

    def bound(self, method: str) -> Bound:
        """Returns a method's bound; raises KeyError for an estimate or an unknown name."""
        for bound in self.bounds:
            if bound.method == method:
                return bound
        raise KeyError(method)

    def finding(self, method: str) -> Finding:
        """Returns a method's bound or estimate; raises KeyError for an unknown name."""
        return {row.method: row for row in self.rows()}[method]


def list_upper_bounds(conclusion: Conclusion) -> tuple[UpperBound, ...]:
    """Returns the upper bounds, the smallest epsilon first: on only the last model, and on all models."""
    upper_bounds = []
    hidden_state = conclusion.hidden_state
    if hidden_state is not None:
        bound = hidden_state.bound
        upper_bounds.append(UpperBound(bound.epsilon, bound.mu, hidden_state.assumes, hidden=True))
    claim = conclusion.claim
    if conclusion.upper_bound is not None:
        # Without a claim, nothing tells where the number comes from: it is taken as given.
        assumed = GIVEN
        if claim is not None:
            assumed = claim.assumes
        mu = conclusion.mu_upper_bound
        upper_bounds.append(UpperBound(conclusion.upper_bound, mu, assumed))
    return tuple(sorted(upper_bounds, key=attrgetter("epsilon")))


def find_doubt(conclusion: Conclusion) -> str:
    """Returns why scores cannot be those of independent training runs with noise, or an empty string.

    There are two reasons, for each of which a world needs at least 5 scores: fewer may be so by chance.

    The first: all scores of a world are equal while those of the other vary. Then all runs of a world shared
    a seed, or scores were never filled in. It does not count where the other world reaches that score as its
    own extreme, as a saturated score does, nor where half of the other world's scores repeat others, as
    guesses do, and the scores of many failed runs.

    The second: every score in is the score out of its row plus the same constant. Then the two runs of each
    row shared a seed.

    Evidence with a known law, or of a single run, is never in doubt here.
    """
    if conclusion.law_is_known or conclusion.is_one_run:
        return ""
    # First: all scores of a world are equal.
    scores_in, scores_out = conclusion.worlds
    for name, scores, others in (("in", scores_in, scores_out), ("out", scores_out, scores_in)):
        is_constant = len(scores) >= _FEWEST_EQUAL and np.ptp(scores) == 0
        is_saturated = scores[0] in (others.min(), others.max())
        if not is_constant or is_saturated:
            continue
        # If half of the others have the same value, they have at most 1 + half as many different values.
        if len(np.unique(others)) > 1 + len(others) / 2:
            return f"all {len(scores):,} scores {name} equal {scores[0]:.6g} while the others vary"

    # Second: all scores in are shifted by the same constant, up to rounding, here a billionth of the largest
    # score. Scores of few different values, such as guesses, may have equal shifts by chance: they do not
    # count.
    if len(scores_in) == len(scores_out) >= _FEWEST_EQUAL:
        shifts = scores_in - scores_out
        rounding = 1e-9 * max(np.abs(scores_in).max(), np.abs(scores_out).max())
        is_shifted = np.ptp(shifts) <= rounding
        if is_shifted and len(np.unique(scores_in)) > len(scores_in) / 2:
            return f"every score in is the score out of its row plus {shifts.mean():.6g}"
    return ""


def are_reversed(evidence: Evidence, bounds: Iterable[Bound], auc: Auc | None) -> bool:
    """Returns whether scores are clearly lower with the canary than without, as with the wrong sign.

    They are if the AUC is more than 4 standard errors below 1/2. The scores of a run's K canaries may all be
    equal, so the standard error for independent scores is multiplied by sqrt(K). For a single run, whose
    canaries have coins or directions of their own, means are compared, unless a bound is above 0.
    """
    if isinstance(evidence, OneRun):
        has_proof = any(bound.epsilon > 0 for bound in bounds)
        return evidence.deviations < -_CLEARLY and not has_proof
    assert auc is not None  # there are scores out
    return auc.deviations < -_CLEARLY * math.sqrt(max(evidence.canaries))


def read_schedule(looks: object) -> tuple[int, ...]:
    """Returns a caller's numbers of scores at which to look.

    Raises InputError unless they are a list, a tuple or an array of whole numbers.
    """
    is_list = isinstance(looks, Sequence) and not isinstance(looks, str | bytes)
    is_array = isinstance(looks, np.ndarray) and looks.ndim == 1
    schedule: list[Any] = []
    if is_list or is_array:
        schedule = [errors.plain(runs) for runs in cast(Sequence[object], looks)]
    # By the exact type, since `isinstance` would take True for a whole number.
    are_whole = all(type(runs) is int for runs in schedule)
    require(
        (is_list or is_array) and are_whole,
        f"`looks={errors.shown(looks)}`: give whole numbers in a list, as in [100, 200]",
    )
    return tuple(schedule)


def require_schedule(schedule: Sequence[int]) -> None:
    """Raises InputError unless numbers of runs ascend, from at least 2: a run for each world."""
    given = f"`looks={','.join(map(str, schedule))}`"
    require(schedule, f"{given}: give the numbers of runs at which to look, comma-separated")
    require(schedule[0] >= 2, f"{given}: give at least 2 runs, half of them in each world")
    ascending = all(earlier < later for earlier, later in itertools.pairwise(schedule))
    require(ascending, f"{given}: give numbers of runs that ascend")


def confidence_of_each(confidence: float, looks: int) -> float:
    """Returns the confidence of each look such that all looks hold at once at `confidence` (union bound)."""
    return 1 - (1 - confidence) / looks


def best_of_looks(taken: Sequence[Look], confidence: float) -> tuple[Bound, ...]:
    """Returns each method's largest bound over the looks.

    Args:
      taken: the looks, with the bounds of the same methods in the same order.
      confidence: the confidence at which all looks hold at once, which these bounds get.
    """
    best = []
    for bounds_of_method in zip(*(look.bounds for look in taken), strict=True):
        highest = max(bounds_of_method, key=lambda bound: bound.epsilon)
        best.append(dataclasses.replace(highest, confidence=confidence))
    return tuple(best)
