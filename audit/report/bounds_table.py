"""The rows of an audit's bounds, their table for a terminal of 80 columns, and remarks on them."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from audit.claims.linear_losses import EXPECTED
from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, Curve, UpperBound, assumption_of, method_of
from audit.conclusions.verdicts import (
    VIOLATED,
    describe_sampled,
    describe_what_decides,
    name_better_scores,
)
from audit.methods import curves, lifted
from audit.methods.estimate import Bound, Finding
from audit.methods.method import Assumption, NoiseFloor
from audit.methods.one_run_bounds import LEAST_COINS, OF_COINS
from audit.report.table import Column, Table, at_least, at_most
from audit.written import Level, at_least_digits, finite, round_confidence, show_level

_WIDTH = 80  # columns of a terminal
_INDENT = 12  # columns before the text of a note, for its first word
_UNTESTED = "(not tested here: scores of one run may depend on each other)"
_FEW = 100  # with fewer scores in a world, a remark says what they can prove at most
_SHOWN = 0.0005  # smaller values of epsilon show as 0 with three decimals
_NOTES_ON_ESTIMATES = """\
estimates are no bounds; error: standard error if canaries are independent;
floor: mean (95% quantile) where nothing leaks"""
_MARGIN = 10  # factor on measured constants' excess over 1, to show what the bound would then be
_MAX_E_VALUE = 1e6  # larger e-values are shown as "above" it
_MIN_E_VALUE = 0.01  # smaller e-values are shown as "below" it


class BoundRow(NamedTuple):
    """A row of a table of bounds.

    Attributes:
      name: its name in text.
      label: its name on a page.
      epsilon: its epsilon.
      mu: its mu; None if it has none.
      assumes: what a bound assumes, or why another value is no bound.
      sign: "≥" for a lower bound and "≤" for an upper bound; empty for what is no bound.
      finding: the lower bound or the estimate; None for other rows.
      upper: the upper bound on what all models, or only the last, leak; None for other rows.
    """

    name: str
    label: str
    epsilon: float
    mu: float | None
    assumes: Assumption
    sign: str = ""
    finding: Finding | None = None
    upper: UpperBound | None = None

    def show_epsilon(self) -> str:
        """Returns epsilon with three decimals, rounded down if it comes from scores, else up."""
        if self.finding is None:
            return at_most(self.epsilon)
        return at_least(self.epsilon)

    def show_mu(self) -> str:
        """Returns mu with three decimals; empty for upper bounds on what all models leak."""
        if self.mu is None or (self.upper is not None and not self.upper.hidden):
            return ""
        if self.finding is None:
            return at_most(self.mu)
        return at_least(self.mu)

    def show_signed(self, value: float | None) -> str:
        """Returns epsilon or mu with the row's inequality sign, without zeros at its end; empty for None."""
        if value is None:
            return ""
        text = verdicts.at_most(value) if self.finding is None else verdicts.at_least(value)
        if self.sign:
            return f"{self.sign}\N{NO-BREAK SPACE}{text}"
        return text

    def show_threshold(self) -> str:
        """Returns the threshold of a bound or an estimate; else an empty text."""
        # z: without the minus sign of -0
        if self.finding is None:
            return ""
        return f"{self.finding.threshold:z.4g}"


def list_rows(conclusion: Conclusion) -> list[BoundRow]:
    """Returns the lower bounds, the upper bounds, and then what is no bound, in the order of tables.

    Estimates of a single run are not among them: they have a table of their own.
    """
    rows = []
    for bound in conclusion.ranked():
        rows.append(_make_row(bound, conclusion))
    for upper in conclusion.upper_bounds:
        row = BoundRow(upper.label, upper.label, upper.epsilon, finite(upper.mu), upper.assumes)
        rows.append(row._replace(sign="≤", upper=upper))
    if conclusion.is_one_run:
        return rows
    for estimate in conclusion.estimates:
        rows.append(_make_row(estimate, conclusion))
    if conclusion.expected is not None:
        rows.append(BoundRow("linear_losses", "linear losses", conclusion.expected, None, EXPECTED))
    return rows


def _make_row(finding: Finding, conclusion: Conclusion) -> BoundRow:
    """Returns the row of a lower bound or an estimate."""
    label = finding.method
    if not conclusion.is_one_run:
        label = method_of(finding).label
    row = BoundRow(finding.method, label, finding.epsilon, finding.mu, assumption_of(finding))
    return row._replace(sign="≥" * isinstance(finding, Bound), finding=finding)


def _show_error(error: float) -> str:
    """Returns the standard error of an estimate as text; "-" if it is unknown."""
    return "-" if math.isnan(error) else f"{error:.3f}"


def show_floor(floor: NoiseFloor) -> str:
    """Returns the mean and the 95% quantile of an estimate where nothing leaks: "0.100 (0.250)"."""
    if not floor.audits:
        return "-"
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def bounds_table(conclusion: Conclusion) -> str:
    """Returns the text table of a conclusion's bounds, with notes and the verdict below it.

    The rows are lower bounds, beginning with those on which the verdict rests; upper bounds; and values that
    are no bounds. Lower bounds are rounded down, upper bounds up. For a single run estimates come first.
    """
    if conclusion.is_one_run:
        return _make_one_run_table(conclusion)
    before = [f"lower bounds on epsilon at {Level(conclusion.delta, conclusion.confidence)}"]
    # With a single canary a run, errors are shown as counts over scores; else as rates.
    errors = ("FP/out", "FN/in")
    show_share: Callable[[int, int], str] = "{}/{}".format
    if not conclusion.has_one_canary:
        before.append(str(conclusion.evidence))
        errors = ("FPR", "FNR")
        show_share = _show_rate

    def show_false_positives(row: BoundRow) -> str:
        """Returns the rate of a known law, or how many scores out exceed the threshold."""
        if row.finding is None:
            return ""
        if row.finding.false_positive_rate is not None:
            return f"{row.finding.false_positive_rate:.1e}"
        return show_share(row.finding.false_positives, row.finding.n_out)

    def show_false_negatives(row: BoundRow) -> str:
        """Returns how many scores in do not exceed the threshold."""
        if row.finding is None:
            return ""
        return show_share(row.finding.false_negatives, row.finding.n_in)

    columns = (
        Column(head="method", value=attrgetter("name"), left=True),
        Column(head="epsilon", value=BoundRow.show_epsilon, left=True),
        Column(head="mu", value=BoundRow.show_mu, left=True),
        Column(head="threshold", value=BoundRow.show_threshold, left=True),
        Column(head=errors[0], value=show_false_positives, left=True),
        Column(head=errors[1], value=show_false_negatives, left=True),
        Column(head="assumes", value=_show_assumption, left=True),
    )
    notes = [
        *describe_claim(conclusion),
        *_explain_words(conclusion),
        *_describe_curve(conclusion),
        *_describe_attack(conclusion),
        *_compare_with_upper_bounds(conclusion),
        *map(partial(textwrap.fill, width=_WIDTH), remarks(conclusion)),
        show_verdict(conclusion),
    ]
    state = conclusion.hidden_state

    def add_margin(row: BoundRow) -> str:
        """Returns what a measured bound would be if steps expanded 10 times as much; else ""."""
        if state is None or row.upper is None or not row.upper.is_measured:
            return ""
        return f"({state.describe_margin(_MARGIN)})"

    table = Table(columns, list_rows(conclusion), before=before, after=notes, aside=add_margin)
    # A table that is too wide for a terminal gets narrower gaps between its columns.
    text = table.text()
    if max(map(len, text.splitlines())) > _WIDTH:
        text = dataclasses.replace(table, gap=" ").text()
    return text


def _show_assumption(row: BoundRow) -> str:
    """Returns the last cell of a row; a measured bound's name and margin say it already."""
    if row.upper is not None and row.upper.is_measured:
        return ""
    if isinstance(row.finding, Bound) and not row.finding.holds:
        return "REFUTED"
    return row.assumes.word


def _show_rate(count: int, scores: int) -> str:
    """Returns errors over scores in percent; they can exceed the half of all coins that counts as scores."""
    return f"{min(count / scores, 1):.2%}"


def _make_note(word: str, text: str) -> str:
    """Returns a note below a table: a word, then its explanation, indented and wrapped."""
    return textwrap.fill(f"{word:<{_INDENT}}{text}", _WIDTH, subsequent_indent=_INDENT * " ")


def show_verdict(conclusion: Conclusion) -> str:
    """Returns the last line below a table: the verdict's headline."""
    return _make_note("verdict:", conclusion.verdict.headline)


def describe_claim(conclusion: Conclusion) -> list[str]:
    """Returns lines for below a table: whether the claim is refuted, and how sharp its test is.

    The list is empty where nothing is claimed. Where a claim is not tested, it is empty for several runs; for
    a single run a line says why.
    """
    lines = []
    word = "claim:"
    for statement in make_statements_on_claim(conclusion):
        lines.append(_make_note(word, statement))
        word = ""
    return lines


def make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns clauses on the test of the claim: its result, or why there is none, and how sharp the test is.

    The second clause says which noise, weaker than stated, such runs would have refuted, and with which
    probability. It is left out where that is unknown and where the claim is refuted.
    """
    test = conclusion.claim_test
    upper = conclusion.tightest
    if test is None:
        if upper is None or math.isinf(upper.epsilon):
            return []
        if conclusion.is_reversed:
            return ["not tested: scores are reversed"]
        # A single run's test needs the exact law of cosines where nothing leaks, or enough coins to guess.
        why = f"not tested: the null is fitted, and there are no {LEAST_COINS} coins"
        return [why] * conclusion.is_one_run
    runs = f"{test.runs:,} training run{'s' if test.runs > 1 else ''}"
    result = f"not refuted by {runs}"
    if test.refuted:
        result = f"refuted by {runs}"
    if conclusion.bets_on_curve:  # else the e-value says no more than whether the claim is refuted
        result += f" (e-value {show_e_value(test.e_value)})"
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100  # rounded down
    sharpness = (
        f"noise of {test.seen.noise:g} of what is stated would have been refuted "
        f"with probability {probability:g}"
    )
    return [result, sharpness]


def show_e_value(e_value: float) -> str:
    """Returns an e-value rounded down to two significant digits, or "above 1e+06", or "below 0.01"."""
    if e_value > _MAX_E_VALUE:
        return f"above {_MAX_E_VALUE:g}"
    if e_value < _MIN_E_VALUE:
        return f"below {_MIN_E_VALUE:g}"
    return f"{float(at_least_digits(e_value, digits=2)):g}"


def _describe_attack(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines on the accuracy of guesses by the scores, and on their true-positive rates.

    A rate is left out where there are too few scores out for a false positive.
    """
    if conclusion.guesses is None:
        return
    accuracy, *true_positive_rates = conclusion.guesses.attack
    yield f"{'attack:':<{_INDENT}}guesses right in {_show_interval(accuracy)}"
    for rate, allowed in zip(true_positive_rates, ("1%", "0.1%"), strict=True):
        if rate is not None:
            yield f"{'':<{_INDENT}}finds {_show_interval(rate)} of those in at {allowed} false positives"


def _show_interval(rate: curves.Rate) -> str:
    """Returns a rate with its confidence limits: "61.0% (55.0% to 67.0%)"."""
    return f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"


def _explain_words(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines that explain the table's last column, the Gaussian curve at last."""
    if conclusion.sampled is not None:
        yield _make_note("sampler:", describe_sampled(conclusion.sampled))
    if conclusion.uncovered:
        yield _make_note("last model:", f"no bound but composition: {conclusion.uncovered}")
    assumptions = [*map(assumption_of, conclusion.rows())]
    for upper in conclusion.upper_bounds:
        assumptions.append(upper.assumes)
    if conclusion.expected is not None:
        assumptions.append(EXPECTED)
    # False sorts before True, so that the Gaussian curve comes last: the lines on its test follow.
    for assumption in sorted(dict.fromkeys(assumptions), key=attrgetter("gaussian")):
        if assumption.note:
            yield _make_note(f"{assumption.word}:", assumption.note)
    if conclusion.has_tied_scores:
        yield f"{'':<{_INDENT}}{_UNTESTED}"


def _describe_curve(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines on the Gaussian curve's test, and on why the curve should be Gaussian."""
    curve = conclusion.curve
    if curve is None:
        return
    yield f"{'':<{_INDENT}}{describe_curve_test(curve)}: {explain_curve_test(curve, conclusion)}"
    if conclusion.reason:
        yield f"{'':<{_INDENT}}{conclusion.reason}"


def describe_curve_test(curve: Curve) -> str:
    """Returns the result of the Gaussian curve's test in words: "refuted (p < 1e-06)"."""
    if curve.is_refuted:
        return f"{curve.status} ({curve.show_p_value()})"
    return f"{curve.status} ({curve.show_p_value()}, power {curve.power:.0%})"


def explain_curve_test(curve: Curve, conclusion: Conclusion) -> str:
    """Returns what follows from the test of whether the trade-off curve is Gaussian."""
    if curve.is_refuted:
        return f"ignore these rows, only {conclusion.assumption_free.method} holds"
    if not curve.is_doubted:
        return "no evidence against it"
    return "too few runs to tell"


def _compare_with_upper_bounds(conclusion: Conclusion) -> list[str]:
    """Returns lines on a lower bound that exceeds an upper bound, or on runs too few for that."""
    if conclusion.doubt:  # bounds say nothing if the runs are not independent
        return []
    free = conclusion.assumption_free
    gaussian = conclusion.gaussian
    broken = conclusion.exceeded(free.epsilon)
    if broken is not None:
        return [f"{free.method} exceeds the {broken.name}: the guarantee is violated"]
    test = conclusion.claim_test
    if test is not None and test.refuted:
        return ["the claimed trade-off curve is refuted: the guarantee is violated"]
    broken = conclusion.exceeded(gaussian.epsilon)
    if broken is not None and gaussian.holds:
        message = (
            f"{gaussian.method} exceeds the {broken.name}: violated, or the curve is not Gaussian"
        )
        decision = f"to decide: {describe_what_decides(conclusion)}"
        return [*textwrap.wrap(message, _WIDTH), decision]
    return textwrap.wrap(explain_too_few_runs(conclusion), _WIDTH)


def explain_too_few_runs(conclusion: Conclusion) -> str:
    """Returns a sentence on runs that are too few to refute the smallest upper bound, whatever they show.

    It says what they can prove at most, and what to do. It is empty where they are enough, where there is no
    finite upper bound, and where a guarantee is violated or the scores can prove nothing at all.
    """
    is_said_otherwise = conclusion.doubt or conclusion.is_reversed
    if is_said_otherwise or not conclusion.is_beyond_reach or conclusion.verdict.kind == VIOLATED:
        return ""
    upper = conclusion.tightest
    most = conclusion.most_provable  # the epsilon that would be proven if no guess were wrong
    assert upper is not None and most is not None  # else it would not be beyond reach
    # Fewer insertions and a larger sigma make the upper bound smaller.
    advice = "take fewer insertions or a larger sigma to look for bugs"
    if conclusion.is_claimed:  # the reader may train nothing, but can ask for other scores
        advice = f"ask for {name_better_scores(conclusion)}"
    elif most <= 0:  # so few runs prove nothing, however small the upper bound
        advice = "train more runs"
    return (
        f"{sum(map(len, conclusion.worlds)):,} runs prove at most {at_most(most)} whatever the curve, so "
        f"that none could contradict the {upper.name} {at_most(upper.epsilon)}: {advice}"
    )


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns sentences on what a reader has to know beside the table; often there are none."""
    if conclusion.is_one_run:
        return [*conclusion.notes, *_remark_on_one_run(conclusion)]
    return [*_remark_on_runs(conclusion), *conclusion.notes, *_explain_zeros(conclusion)]


def _remark_on_runs(conclusion: Conclusion) -> Iterator[str]:
    """Yields remarks on declared looks, on scores that cannot be independent, and on equal scores."""
    looks = conclusion.looks
    if looks is not None:
        count = len(looks.schedule)
        words = f"the best of {len(looks.taken)} of {count} declared looks"
        if len(looks.taken) == 1:
            words = f"look {looks.schedule.index(looks.taken[0].runs) + 1} of {count} declared"
        each = show_level(round_confidence(looks.confidence))
        yield f"{words}; each holds at {each}, all at once at {show_level(conclusion.confidence)}"
    equal = []
    for name, scores in zip(("in", "out"), conclusion.worlds, strict=True):
        if np.ptp(scores) == 0:
            equal.append(name)
    if conclusion.doubt:
        yield f"these scores are not those of independent runs: {conclusion.doubt}"
    elif equal:
        yield f"all scores {' and '.join(equal)} are equal: does each run have noise of its own?"


def _explain_zeros(conclusion: Conclusion) -> Iterator[str]:
    """Yields a reason other than privacy for bounds of 0, if there is one."""
    if conclusion.is_reversed and conclusion.guesses is not None:
        auc = f"{conclusion.guesses.auc.value:.2f}"
        yield f"scores are lower with the canary (AUC {auc}): did you mean minus the score?"
    elif conclusion.law_is_known:
        if not conclusion.assumption_free.holds:
            fresh = "directions"
            if conclusion.fresh.draws:
                fresh = "fresh draws"
            yield f"withdrawn: canaries that were out have not the law of {fresh} (p < 1e-06)"
    elif not conclusion.has_one_canary:
        # A method of order L uses the L-th moment of a run's errors, which takes L canaries a run.
        fewest = min(conclusion.evidence.canaries)
        orders = {method.canaries for method in lifted.METHODS.values()}
        needed = " and ".join(str(order) for order in sorted(orders) if order > fewest)
        if needed:
            yield f"methods of order {needed} need so many canaries a run, here: {fewest}"
    elif conclusion.tightest is None:  # else the table says what these runs prove at most
        n_in, n_out = map(len, conclusion.worlds)
        is_leak_shown = max(bound.epsilon for bound in conclusion.bounds) >= _SHOWN
        if min(n_in, n_out) < _FEW and not is_leak_shown:
            most = at_most(conclusion.most_provable or 0.0)
            provable = f"prove at most epsilon = {most} whatever the curve"
            yield f"{n_in} and {n_out} runs {provable}: run more"


def _make_one_run_table(conclusion: Conclusion) -> str:
    """Returns the text tables of a single run: estimates, if it has cosines; bounds; and notes on both."""
    columns = (
        Column(head="bound", value=attrgetter("name"), width=16, left=True),
        Column(head="epsilon", value=BoundRow.show_epsilon, width=8),
        Column(head="mu", value=BoundRow.show_mu, width=6),
        Column(
            head=" counts",
            value=lambda row: f" {row.finding.counted}" if row.finding else "",
            width=30,
            left=True,
        ),
        Column(head="assumes", value=attrgetter("assumes.word"), left=True),
    )
    bounds = Table(columns, list_rows(conclusion), gap=" ", rule=_WIDTH).text()
    notes = [
        *describe_claim(conclusion),
        *_explain_words_of_one_run(conclusion),
        *remarks(conclusion),
        show_verdict(conclusion),
    ]
    title = f"one run: epsilon at {Level(conclusion.delta, conclusion.confidence)}"
    cosines = conclusion.one_run.cosines
    if cosines is None:  # and no estimates
        count = sum(conclusion.evidence.canaries)
        counts_line = f"{count:,} canaries, each in or out by a coin of its own"
        return "\n".join([title, counts_line, "", bounds, "", *notes])

    observed, unobserved, dimension = cosines
    counts_line = (
        f"{len(observed):,} observed canaries; null: the cosine's exact law in R^{dimension:,}"
    )
    if len(unobserved):
        counts = f"{len(observed):,} observed canaries, {len(unobserved):,} unobserved"
        counts_line = f"{counts}; null: fitted to the unobserved"
    estimate_columns = (
        Column(head="estimate", value=attrgetter("method"), width=24, left=True),
        Column(head="epsilon", value=lambda row: f"{row.epsilon:.3f}", width=9),
        Column(head="error", value=lambda row: _show_error(row.standard_error), width=9),
        Column(head="  floor", value=lambda row: f"  {show_floor(row.noise_floor)}", left=True),
    )
    before = (title, counts_line)
    estimates = Table(estimate_columns, conclusion.estimates, before=before, gap=" ", rule=_WIDTH)
    return "\n".join([estimates.text(), "", bounds, "", _NOTES_ON_ESTIMATES, *notes])


def _explain_words_of_one_run(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines that explain the last column: bounds from cosines, from coins, the Gaussian curve."""
    ranked = sorted(conclusion.bounds, key=lambda bound: bound.method in OF_COINS)
    for assumption in dict.fromkeys(bound.assumes for bound in ranked):
        if not assumption.gaussian:
            yield f"{assumption.word}: {assumption.note}"
    if any(bound.assumes.gaussian for bound in ranked):
        yield "Gaussian: and a Gaussian trade-off curve"


def _remark_on_one_run(conclusion: Conclusion) -> Iterator[str]:
    """Yields remarks on scores of the wrong sign, on why there is no bound, and on a test of normality."""
    cosines = conclusion.one_run.cosines
    if conclusion.is_reversed and cosines is None:
        yield "scores are lower with the canary: did you mean minus the score?"
    elif conclusion.is_reversed:
        yield "cosines are lower than the null's: did you mean minus the displacement?"
    if cosines is not None and not conclusion.bounds:
        yield "no bound: save coins (scores with presence)"
    test = conclusion.normality
    if test is not None:
        level = "not rejected"
        if test.rejected_at is not None:
            level = f"rejected at {test.rejected_at:.3g}"
        critical_at_5_percent = test.critical[2]  # of the levels 15%, 10%, 5%, 2.5% and 1%
        values = f"Anderson-Darling {test.statistic:.3f}, 5%: {critical_at_5_percent:.3f}"
        yield f"normal cosines: {level} ({values})"
