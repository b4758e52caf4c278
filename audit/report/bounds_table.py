"""The rows of an audit's bounds, their table for a terminal of 80 columns, and remarks."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from audit import written
from audit.claims.linear_losses import EXPECTED
from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, UpperBound, method_of
from audit.methods import lifted
from audit.methods.estimate import Bound, Finding
from audit.methods.method import Assumption, NoiseFloor
from audit.methods.one_run_bounds import LEAST_COINS
from audit.report.table import Column, Table, at_least, at_most, number
from audit.written import Level, at_least_digits, finite

_WIDTH = 80  # columns of a terminal
_INDENT = 12  # columns of a note's first word
_UNTESTED = "(not tested: scores from one run may depend on each other)"
_FEW = 100  # fewer scores in a world get a remark on the largest provable epsilon
_SHOWN = 0.0005  # a smaller epsilon shows as 0 with three decimals
_NOTES_ON_ESTIMATES = """\
estimates are not bounds; error: standard error for independent canaries;
floor: mean (95% quantile) without a leak"""


class BoundRow(NamedTuple):
    """A row of a table of bounds.

    Attributes:
      name, label: its name in text, and on a page.
      epsilon, mu: its epsilon, and its mu or None.
      assumes: the assumption of a bound, or why another value is not a bound.
      sign: "≥" for a lower bound, "≤" for an upper bound, empty for other values.
      show: function from epsilon or mu to its text: rounded down if it comes from scores, else up.
      counts: the threshold and both errors as texts, or a text for a single run.
      finding: the lower bound or the estimate; None for other rows.
      upper: the upper bound; None for other rows.
    """

    name: str
    label: str
    epsilon: float
    mu: float | None
    assumes: Assumption
    sign: str = ""
    show: Callable[[float], str] = at_most
    counts: tuple[str, ...] = ("", "", "")
    finding: Finding | None = None
    upper: UpperBound | None = None

    def show_signed(self, value: float | None) -> str:
        """Returns epsilon or mu with the row's inequality sign; empty for None."""
        if value is None:
            return ""
        text = written.short(self.show(value)).replace("inf", "∞")
        if self.sign:
            return f"{self.sign}\N{NO-BREAK SPACE}{text}"
        return text


def list_rows(conclusion: Conclusion) -> list[BoundRow]:
    """Returns the lower bounds, the upper bounds, and then other values, in the order of tables."""
    rows = []
    for bound in conclusion.ranked():
        label = bound.method
        if not conclusion.is_one_run:
            label = method_of(bound).label
        row = BoundRow(bound.method, label, bound.epsilon, bound.mu, bound.assumes, "≥", at_least)
        rows.append(row._replace(counts=_count(bound, conclusion), finding=bound))
    for upper in conclusion.upper_bounds:
        row = BoundRow(
            upper.label, upper.label, upper.epsilon, finite(upper.mu), upper.assumes, "≤"
        )
        rows.append(row._replace(upper=upper))
    if conclusion.is_one_run:
        return rows
    for estimate in conclusion.estimates:
        method = method_of(estimate)
        row = BoundRow(method.name, method.label, estimate.epsilon, estimate.mu, method.assumes)
        counts = _count(estimate, conclusion)
        rows.append(row._replace(show=at_least, counts=counts, finding=estimate))
    if conclusion.expected is not None:
        rows.append(BoundRow("linear_losses", "linear losses", conclusion.expected, None, EXPECTED))
    return rows


def show_floor(floor: NoiseFloor) -> str:
    """Returns the mean and the 95% quantile of an estimate without a leak: "0.100 (0.250)"."""
    if not floor.audits:
        return "-"
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def bounds_table(conclusion: Conclusion) -> str:
    """Returns the text table of a conclusion's bounds, with notes and the verdict below it.

    Lower bounds are rounded down, upper bounds up. For a single run estimates come first.
    """
    level = Level(conclusion.delta, conclusion.confidence)
    before = [f"lower bounds on epsilon at {level}"]
    if conclusion.is_one_run:
        before = [*_list_estimates(conclusion, level), ""]
    elif not conclusion.has_one_canary:
        before.append(str(conclusion.evidence))
    heads = ["threshold", "FPR", "FNR"]
    if conclusion.has_one_canary:
        heads = ["threshold", "FP/out", "FN/in"]
    if conclusion.is_one_run:
        heads = ["counts"]

    def make_column(head: str, place: int) -> Column:
        """Returns the column of one of a row's counts."""
        return Column(head=head, value=lambda row: row.counts[place], left=True)

    columns = [
        Column(head="method", value=attrgetter("name"), left=True),
        Column(head="epsilon", value=lambda row: row.show(row.epsilon), left=True),
        Column(head="mu", value=_show_mu, left=True),
        *map(make_column, heads, range(len(heads))),
        Column(head="assumes", value=_show_assumption, left=True),
    ]
    notes = [
        *describe_claim(conclusion),
        *_explain_words(conclusion),
        *_describe_attack(conclusion),
        *textwrap.wrap(explain_too_few_runs(conclusion), _WIDTH),
    ]
    if conclusion.verdict.word == verdicts.VIOLATED_IF_GAUSSIAN:
        notes.append(f"to decide: use {verdicts.describe_what_decides(conclusion)}")
    for remark in remarks(conclusion):
        notes.append(textwrap.fill(remark, _WIDTH))
    notes.append(make_note("verdict:", conclusion.verdict.headline))
    table = Table(columns, list_rows(conclusion), before=before, after=notes)
    # A table that is too wide for a terminal gets narrower gaps between its columns.
    text = table.text()
    if max(map(len, text.splitlines())) > _WIDTH:
        text = dataclasses.replace(table, gap=" ").text()
    return text


def _count(finding: Finding, conclusion: Conclusion) -> tuple[str, ...]:
    """Returns the threshold and both errors as texts; for a single run a text."""
    if conclusion.is_one_run:
        return (getattr(finding, "counted", ""),)

    def show_share(count: int, scores: int) -> str:
        """Returns errors over scores; in percent if scores may depend on each other."""
        if conclusion.has_one_canary:
            return f"{count}/{scores}"
        # Errors can exceed the half of all coins that counts as scores.
        return f"{min(count / scores, 1):.2%}"

    if finding.false_positive_rate is None:
        positives = show_share(finding.false_positives, finding.n_out)
    else:  # that of a known law
        positives = f"{finding.false_positive_rate:.1e}"
    negatives = show_share(finding.false_negatives, finding.n_in)
    return (f"{finding.threshold:z.4g}", positives, negatives)  # z: without the minus sign of -0


def _show_assumption(row: BoundRow) -> str:
    """Returns the last cell of a row."""
    if isinstance(row.finding, Bound) and not row.finding.holds:
        return "REJECTED"
    return row.assumes.word


def _show_mu(row: BoundRow) -> str:
    """Returns mu with three decimals; empty for upper bounds on all models."""
    if row.mu is None or (row.upper is not None and not row.upper.hidden):
        return ""
    return row.show(row.mu)


def _list_estimates(conclusion: Conclusion, level: Level) -> list[str]:
    """Returns the lines above the bounds of a single run: its canaries, and a table of its estimates."""
    title = f"one run: epsilon at {level}"
    cosines = conclusion.one_run.cosines
    if cosines is None:  # without estimates
        count = sum(conclusion.evidence.canaries)
        return [title, f"{count:,} canaries, each inserted by its own coin"]
    observed, unobserved, dimension = cosines
    canaries = f"{len(observed):,} observed canaries"
    null = f"; null: the cosine's exact law in R^{dimension:,}"
    if len(unobserved):
        null = f", {len(unobserved):,} unobserved; null: fitted to the unobserved"
    columns = (
        Column(head="estimate", value=attrgetter("method"), left=True),
        Column(head="epsilon", value=attrgetter("epsilon"), show=number(".3f")),
        Column(
            head="error", value=lambda row: finite(row.standard_error), show=number(".3f"), none="-"
        ),
        Column(head="floor", value=attrgetter("noise_floor"), show=show_floor, left=True),
    )
    before = (title, canaries + null)
    return [Table(columns, conclusion.estimates, before=before, after=[_NOTES_ON_ESTIMATES]).text()]


def make_note(word: str, text: str) -> str:
    """Returns a note below a table: a word, then its explanation, indented and wrapped."""
    return textwrap.fill(f"{word + ' ':<{_INDENT}}{text}", _WIDTH, subsequent_indent=_INDENT * " ")


def describe_claim(conclusion: Conclusion) -> Iterator[str]:
    """Returns lines on the test of the claim and its sharpness, for below a table."""
    return _make_notes("claim:", make_statements_on_claim(conclusion))


def _make_notes(word: str, statements: Iterable[str]) -> Iterator[str]:
    """Yields a note for each statement, only the first with the word."""
    for statement in statements:
        yield make_note(word, statement)
        word = ""


def make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns clauses on the test of the claim: its result or why it was not tested, and its sharpness.

    The sharpness, for a claim that is not refuted, is the probability of refuting the claim for less noise.
    """
    test = conclusion.claim_test
    upper = conclusion.tightest
    if test is None:
        if upper is None or math.isinf(upper.epsilon):
            return []
        if conclusion.is_reversed:
            return ["not tested: scores are reversed"]
        # The test needs the exact law of cosines without a leak, or enough coins.
        why = f"not tested: the null is fitted, and there are fewer than {LEAST_COINS} coins"
        return [why] * conclusion.is_one_run
    result = "not rejected by "
    if test.refuted:
        result = "rejected by "
    result += written.counted(test.runs, "training run")
    if conclusion.bets_on_curve:  # else the e-value has only two values
        result += f" (e-value {at_least_digits(test.e_value, digits=2)})"
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100  # rounded down
    sharpness = (
        f"with {100 * (1 - test.seen.noise):.3g}% less noise than claimed, this audit would have "
        f"rejected the claim with probability {probability:g}"
    )
    return [result, sharpness]


def _describe_attack(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines on the attack's accuracy and true-positive rates, except rates with too few scores out."""
    if conclusion.attack is None or conclusion.is_one_run:
        return
    words = (
        "accuracy {}",
        "true-positive rate {} at 1% false positives",
        "true-positive rate {} at 0.1% false positives",
    )
    statements = []
    for rate, text in zip(conclusion.attack, words, strict=True):
        if rate is not None:
            shown = f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"
            statements.append(text.format(shown))
    yield from _make_notes("attack:", statements)


def _explain_words(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines that explain the table's last column, with the Gaussian curve last."""
    if conclusion.uncovered:
        yield make_note("last model:", f"bounded only by composition: {conclusion.uncovered}")
    assumptions = map(attrgetter("assumes"), list_rows(conclusion))
    # The Gaussian curve comes last: the lines on its test follow.
    for assumption in sorted(dict.fromkeys(assumptions), key=attrgetter("gaussian")):
        if assumption.note:
            yield make_note(f"{assumption.word}:", assumption.note)
    if conclusion.has_tied_scores:
        yield make_note("", _UNTESTED)
    if conclusion.curve is None:
        return
    yield f"{'':<{_INDENT}}{conclusion.curve.show()}: {explain_curve_test(conclusion)}"
    if conclusion.reason:
        yield make_note("", conclusion.reason)


def explain_curve_test(conclusion: Conclusion) -> str:
    """Returns the consequence of the test of the Gaussian curve; "" without a test."""
    curve = conclusion.curve
    if curve is None:
        return ""
    if curve.is_refuted:
        return f"ignore these rows, only {conclusion.assumption_free.method} is valid"
    if not curve.is_doubted:
        return "no evidence against it"
    return "too few runs to tell"


def explain_too_few_runs(conclusion: Conclusion) -> str:
    """Returns advice if the runs are too few to refute the smallest upper bound with any scores, else "".

    It is also empty if a guarantee is violated, or if the scores are reversed or in doubt.
    """
    is_said_otherwise = conclusion.doubt or conclusion.is_reversed
    is_violated = conclusion.verdict.kind == verdicts.VIOLATED
    if is_said_otherwise or not conclusion.is_beyond_reach or is_violated:
        return ""
    upper = conclusion.tightest
    most = conclusion.most_provable  # the proven epsilon if all guesses were right
    assert upper is not None and most is not None
    advice = "use fewer insertions or a larger sigma to look for bugs"
    if conclusion.is_claimed:  # the reader may not train
        advice = f"use {verdicts.BETTER_SCORES}"
    elif most <= 0:  # too few runs for any proof
        advice = "train more runs"
    return (
        f"{conclusion.runs:,} runs can prove at most {at_most(most)} for any curve, so they "
        f"cannot reject the {upper.name} {at_most(upper.epsilon)}: {advice}"
    )


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns sentences that a reader needs next to the table."""
    if conclusion.is_one_run:
        return [*conclusion.notes, *_remark_on_one_run(conclusion)]
    equal = []
    for name, scores in zip(("in", "out"), conclusion.worlds, strict=True):
        if np.ptp(scores) == 0:
            equal.append(name)
    found = []
    if conclusion.doubt:
        found.append(f"these scores do not come from independent runs: {conclusion.doubt}")
    elif equal:
        found.append(
            f"all scores {' and '.join(equal)} are equal: does each run draw its own noise?"
        )
    return [*found, *conclusion.notes, *_explain_zeros(conclusion)]


def _explain_zeros(conclusion: Conclusion) -> Iterator[str]:
    """Yields a reason other than privacy for bounds of 0, if any."""
    if conclusion.is_reversed and conclusion.auc is not None:
        auc = f"{conclusion.auc.value:.2f}"
        yield f"scores are lower with the canary (AUC {auc}): did you mean minus the score?"
    elif conclusion.law_is_known:
        if not conclusion.assumption_free.holds:
            fresh = "directions"
            if conclusion.fresh.draws:
                fresh = "fresh draws"
            yield f"invalid: held-out canaries do not follow the law of {fresh} (p < 1e-06)"
    elif not conclusion.has_one_canary:
        # A method of order L needs L canaries per run.
        fewest = min(conclusion.evidence.canaries)
        orders = {method.canaries for method in lifted.METHODS.values()}
        needed = " and ".join(str(order) for order in sorted(orders) if order > fewest)
        if needed:
            yield f"methods of order {needed} need at least that many canaries per run, got {fewest}"
    elif conclusion.tightest is None:
        n_in, n_out = map(len, conclusion.worlds)
        is_leak_shown = max(bound.epsilon for bound in conclusion.bounds) >= _SHOWN
        if min(n_in, n_out) < _FEW and not is_leak_shown:
            most = at_most(conclusion.most_provable or 0.0)
            provable = f"can prove at most epsilon = {most} for any curve"
            yield f"{n_in} and {n_out} runs {provable}: use more runs"


def _remark_on_one_run(conclusion: Conclusion) -> Iterator[str]:
    """Yields remarks on reversed scores, on missing bounds, and on the test of normality."""
    cosines = conclusion.one_run.cosines
    if conclusion.is_reversed and cosines is None:
        yield "scores are lower with the canary: did you mean minus the score?"
    elif conclusion.is_reversed:
        yield "cosines are lower than the null's: did you mean minus the displacement?"
    if cosines is not None and not conclusion.bounds:
        yield "no bound: save which canaries were inserted (scores with presence)"
    test = conclusion.normality
    if test is not None:
        level = "not rejected"
        if test.rejected_at is not None:
            level = f"rejected at {test.rejected_at:.3g}"
        critical_at_5_percent = test.critical[2]  # at 15%, 10%, 5%, 2.5% and 1%
        values = f"Anderson-Darling {test.statistic:.3f}, 5%: {critical_at_5_percent:.3f}"
        yield f"normal cosines: {level} ({values})"
