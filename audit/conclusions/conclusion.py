"""The conclusion from an audit's scores: lower bounds and the accountant's upper bound."""

from collections import ChainMap
from typing import Any, NamedTuple, cast

from audit.claims.accounting import Composition
from audit.claims.claim import Claim
from audit.claims.hidden_state import HiddenState
from audit.evidence.arrays import Array
from audit.evidence.canaries import Fresh
from audit.evidence.given import Evidence
from audit.evidence.one_run import OneRun
from audit.methods import estimate, exact_null, lifted
from audit.methods.claimed_curve import ClaimTest
from audit.methods.curves import Attack, Auc
from audit.methods.estimate import Bound, Estimate, Finding
from audit.methods.exact_null import EXACT_NULL_GDP
from audit.methods.gaussian_curve import CURVE_LEVEL, CURVE_POWER
from audit.methods.method import Assumption, Method, VerdictMethods

Worlds = tuple[Array, Array]
_LEAST_P_VALUE = 1e-6  # smaller p-values are inaccurate
# A ChainMap also includes methods that are added later.
_METHODS = ChainMap[str, Any](estimate.METHODS, lifted.METHODS, exact_null.METHODS)


def method_of(finding: Finding) -> Method:
    """Returns the record of the method that computed a bound or an estimate."""
    return cast(Method, _METHODS[finding.method])


class UpperBound(NamedTuple):
    """An upper bound on how much a mechanism leaks.

    Attributes:
      epsilon: the bound on epsilon at the conclusion's delta.
      mu: the bound on mu; None if the trade-off curve is not Gaussian or is unknown.
      assumes: the assumption.
      name: the name in reports; "claim" if the user stated the bound.
      last_model_only: True for the hidden-state bound: the adversary sees only the last model.
      is_measured: True if the bound comes from measured Lipschitz constants.
    """

    epsilon: float
    mu: float | None
    assumes: Assumption
    name: str
    last_model_only: bool = False
    is_measured: bool = False


class Curve(NamedTuple):
    """The test for a Gaussian trade-off curve: its p-value, and its smallest power against other curves."""

    p_value: float
    power: float

    @property
    def is_refuted(self) -> bool:
        """Returns True if the scores refute a Gaussian curve (p < 0.05)."""
        return self.p_value < CURVE_LEVEL

    @property
    def is_underpowered(self) -> bool:
        """Returns True if the test passes even though its power is below 95%."""
        return not self.is_refuted and self.power < CURVE_POWER

    @property
    def status(self) -> str:
        """Returns the result in words."""
        if self.is_refuted:
            return "rejected"
        if self.is_underpowered:
            return "not confirmed"
        return "confirmed"

    def show(self) -> str:
        """Returns the result with its p-value: "rejected (p < 1e-06)"."""
        return f"{self.status} ({self.show_test()})"

    def show_test(self) -> str:
        """Returns the p-value, and the power unless the curve is refuted: "p = 0.41, power 95%"."""
        if self.p_value < _LEAST_P_VALUE:
            return f"p < {_LEAST_P_VALUE:g}"  # also refuted
        if self.is_refuted:
            return f"p = {self.p_value:.2g}"
        return f"p = {self.p_value:.2g}, power {self.power:.0%}"


class Verdict(NamedTuple):
    """The verdict on an audit, in three lengths.

    Attributes:
      kind: "leaks", "nothing" or "violated".
      word: one to four words, for tables.
      headline: a short sentence.
      sentence: the explanation that follows the headline.
    """

    kind: str
    word: str
    headline: str
    sentence: str


class Conclusion(NamedTuple):
    """The conclusion from an audit's scores, at a given delta and confidence.

    Attributes:
      evidence: the scores by run and canary.
      worlds: the scores of inserted canaries, (n_in,), and of left-out canaries, (n_out,).
      delta: the delta of every epsilon.
      confidence: the confidence of every bound.
      verdict_methods: the methods of the verdict's two bounds; None for a single run, since all bounds count.
      estimates: estimates of epsilon that are not bounds.
      bounds: the lower bounds. A bound's `holds` is False if the scores refute its assumption.
      curve: the test for a Gaussian curve; None unless each run has one canary.
      notes: notes on the scores, shown below the table.
      claim: the claim about the mechanism, or None.
      upper_bound: the claimed upper bound on epsilon if the adversary sees all models; infinite if
        noise is 0, None if `claim` is None.
      mu_upper_bound: the claimed upper bound on mu, or None.
      composition: the steps that may insert the canary; None if unknown.
      hidden_state: the upper bound if the adversary sees only the last model; None if Lipschitz constants are
        unknown.
      uncovered: why a known setting has no `hidden_state`; else empty.
      epsilon_if_linear: the epsilon that the last model would have with linear losses, or None; not a bound.
      why_gaussian: why we expect a Gaussian curve from this mechanism; empty if we do not.

    `finish` computes the following fields.

    Attributes:
      is_one_run: True for a single run.
      has_one_canary: True for several runs with one canary each. Their scores are independent.
      law_is_known: True for `Fresh` evidence (directions or ranks): left-out canaries' scores have a known
        distribution.
      scores_may_depend: True for several runs if scores in the same run may depend on each other.
      bets_on_curve: True if the test of the claim bets against the whole claimed trade-off curve.
      runs: the number of training runs.
      epsilon: the lower bound for any curve; for a single run, the largest such bound, or 0.
      upper_bounds: at most two upper bounds, in order of increasing epsilon.
      tightest: the upper bound with the smallest epsilon, or None.
      tightest_mu: the smallest upper bound on mu, or None.
      is_claimed: True if the user stated the bound for all models.
      refutes_gaussian: True if the scores refute a Gaussian trade-off curve.
      auc: the area under the ROC curve; None if no canary was left out.
      attack: the in-sample accuracy and true-positive rates of guesses; None if no canary was left out.
      is_reversed: True if scores are clearly lower with the canary than without it.
      doubt: why the scores cannot come from independent runs; empty if they can.
      most_provable: the largest epsilon that this number of runs, with one canary each, can prove for any
        curve; None for other designs.
      is_beyond_reach: True if no set of scores from this number of runs could refute the tightest claim.
      claim_test: the test of the tightest claim; None if there is no claim or no test.
    """

    evidence: Evidence
    worlds: Worlds
    delta: float
    confidence: float
    verdict_methods: VerdictMethods | None
    estimates: tuple[Estimate, ...]
    bounds: tuple[Bound, ...]
    curve: Curve | None = None
    notes: tuple[str, ...] = ()
    claim: Claim | None = None
    upper_bound: float | None = None
    mu_upper_bound: float | None = None
    composition: Composition | None = None
    hidden_state: HiddenState | None = None
    uncovered: str = ""
    epsilon_if_linear: float | None = None
    why_gaussian: str = ""

    is_one_run: bool = False
    has_one_canary: bool = False
    law_is_known: bool = False
    scores_may_depend: bool = False
    bets_on_curve: bool = False
    runs: int = 1
    epsilon: float = 0.0
    upper_bounds: tuple[UpperBound, ...] = ()
    tightest: UpperBound | None = None
    tightest_mu: float | None = None
    is_claimed: bool = False
    refutes_gaussian: bool = False
    auc: Auc | None = None
    attack: Attack | None = None
    is_reversed: bool = False
    doubt: str = ""
    most_provable: float | None = None
    is_beyond_reach: bool = False
    claim_test: ClaimTest | None = None
    verdict: Verdict = Verdict("", "", "", "")

    @property
    def fresh(self) -> Fresh:
        """Returns the evidence, which is a `Fresh` if `law_is_known`."""
        return cast(Fresh, self.evidence)

    @property
    def one_run(self) -> OneRun:
        """Returns the evidence, which is a `OneRun` if `is_one_run`."""
        return cast(OneRun, self.evidence)

    @property
    def gaussian(self) -> Bound:
        """Returns the verdict's bound for a Gaussian curve; only for several runs."""
        return self.finding(cast(VerdictMethods, self.verdict_methods).gaussian)

    @property
    def assumption_free(self) -> Bound:
        """Returns the verdict's bound for any curve; only for several runs."""
        return self.finding(cast(VerdictMethods, self.verdict_methods).any_curve)

    @property
    def path(self) -> tuple[float, ...]:
        """Returns the epsilon proven after each run if the order of runs is known; else empty."""
        return self.assumption_free.path

    def exceeded(self, epsilon: float) -> UpperBound | None:
        """Returns the largest upper bound below an epsilon, or None."""
        for bound in reversed(self.upper_bounds):
            if epsilon > bound.epsilon:
                return bound
        return None

    def ranked(self) -> tuple[Bound, ...]:
        """Returns the bounds in table order, the most important first.

        The verdict's bounds, for any trade-off curve and for a Gaussian curve, precede all others. If scores
        have a known distribution and there is an upper bound on mu to compare with, the bound on mu
        (EXACT_NULL_GDP) comes first.
        """
        if self.verdict_methods is None:  # a single run
            return self.bounds
        methods = [self.verdict_methods.any_curve, self.verdict_methods.gaussian]
        if self.law_is_known and self.tightest_mu is not None:
            methods.insert(0, EXACT_NULL_GDP)
        # A dict drops repeated bounds.
        return tuple(dict.fromkeys((*map(self.finding, methods), *self.bounds)))

    def rows(self) -> tuple[Finding, ...]:
        """Returns the estimates, followed by the bounds in their original order."""
        return (*self.estimates, *self.bounds)

    def finding(self, method: str) -> Any:
        """Returns the bound or estimate of a method; raises KeyError for an unknown name."""
        return {row.method: row for row in self.rows()}[method]
