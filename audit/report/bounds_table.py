"""The rows of an audit's bounds, their table for a terminal of 80 columns, and remarks on them."""

import dataclasses
import math
import textwrap
from collections.abc import Callable, Iterator
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
from audit.report.table import Column, Table, at_least, at_most
from audit.written import Level, at_least_digits, finite

_WIDTH = 80  # columns of a terminal
_INDENT = 12  # columns before the text of a note, for its first word
_UNTESTED = "(not tested here: scores of one run may depend on each other)"
_FEW = 100  # with fewer scores in a world, a remark says what they can prove at most
_SHOWN = 0.0005  # smaller values of epsilon show as 0 with three decimals
_NOTES_ON_ESTIMATES = """\
estimates are no bounds; error: standard error if canaries are independent;
floor: mean (95% quantile) where nothing leaks"""


class BoundRow(NamedTuple):
    """A row of a table of bounds.

    Attributes:
      name: its name in text.
      label: its name on a page.
      epsilon: its epsilon.
      mu: its mu; None if it has none.
      assumes: what a bound assumes, or why another value is no bound.
      sign: "≥" for a lower bound and "≤" for an upper bound; empty for what is no bound.
      show: function from epsilon or mu to its text: rounded down if it comes from scores, else up.
      counts: what was counted, as texts: the threshold and both errors, or words for a single run.
      finding: the lower bound or the estimate; None for other rows.
      upper: the upper bound on what all models, or only the last, leak; None for other rows.
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
        """Returns epsilon or mu with the row's inequality sign, without zeros at its end; empty for None."""
        if value is None:
            return ""
        text = written.short(self.show(value)).replace("inf", "∞")
        if self.sign:
            return f"{self.sign}\N{NO-BREAK SPACE}{text}"
        return text


def list_rows(conclusion: Conclusion) -> list[BoundRow]:
    """Returns the lower bounds, the upper bounds, and then what is no bound, in the order of tables.

    Estimates of a single run are not among them: they have a table of their own.
    """
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

    def show_assumption(row: BoundRow) -> str:
        """Returns the last cell of a row."""
        if isinstance(row.finding, Bound) and not row.finding.holds:
            return "REFUTED"
        return row.assumes.word

    columns = [
        Column(head="method", value=attrgetter("name"), left=True),
        Column(head="epsilon", value=lambda row: row.show(row.epsilon), left=True),
        Column(head="mu", value=_show_mu, left=True),
        *map(make_column, heads, range(len(heads))),
        Column(head="assumes", value=show_assumption, left=True),
    ]
    notes = [
        *describe_claim(conclusion),
        *_explain_words(conclusion),
        *_describe_curve(conclusion),
        *_describe_attack(conclusion),
        *textwrap.wrap(explain_too_few_runs(conclusion), _WIDTH),
    ]
    if conclusion.verdict.word == verdicts.VIOLATED_IF_GAUSSIAN:
        notes.append(f"to decide: {verdicts.describe_what_decides(conclusion)}")
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
    """Returns what was counted, as texts: the threshold and both errors; for a single run in words."""
    if conclusion.is_one_run:
        return (getattr(finding, "counted", ""),)

    def show_share(count: int, scores: int) -> str:
        """Returns errors over scores; if these may depend on each other, in percent."""
        if conclusion.has_one_canary:
            return f"{count}/{scores}"
        # Errors can exceed the half of all coins that counts as scores.
        return f"{min(count / scores, 1):.2%}"

    if finding.false_positive_rate is None:
        positives = show_share(finding.false_positives, finding.n_out)
    else:  # that of a known law, by which no score is out
        positives = f"{finding.false_positive_rate:.1e}"
    negatives = show_share(finding.false_negatives, finding.n_in)
    return (f"{finding.threshold:z.4g}", positives, negatives)  # z: without the minus sign of -0


def _show_mu(row: BoundRow) -> str:
    """Returns mu with three decimals; empty for upper bounds on what all models leak."""
    if row.mu is None or (row.upper is not None and not row.upper.hidden):
        return ""
    return row.show(row.mu)


def _list_estimates(conclusion: Conclusion, level: Level) -> list[str]:
    """Returns the lines above the bounds of a single run: its canaries, and a table of its estimates."""
    title = f"one run: epsilon at {level}"
    cosines = conclusion.one_run.cosines
    if cosines is None:  # and no estimates
        count = sum(conclusion.evidence.canaries)
        return [title, f"{count:,} canaries, each in or out by a coin of its own"]
    observed, unobserved, dimension = cosines
    canaries = f"{len(observed):,} observed canaries"
    null = f"; null: the cosine's exact law in R^{dimension:,}"
    if len(unobserved):
        null = f", {len(unobserved):,} unobserved; null: fitted to the unobserved"
    columns = (
        Column(head="estimate", value=attrgetter("method"), left=True),
        Column(head="epsilon", value=lambda row: f"{row.epsilon:.3f}"),
        Column(head="error", value=lambda row: _show_error(row.standard_error)),
        Column(head="floor", value=lambda row: show_floor(row.noise_floor), left=True),
    )
    after = [_NOTES_ON_ESTIMATES]
    return [
        Table(columns, conclusion.estimates, before=(title, canaries + null), after=after).text()
    ]


def make_note(word: str, text: str) -> str:
    """Returns a note below a table: a word, then its explanation, indented and wrapped."""
    return textwrap.fill(f"{word + ' ':<{_INDENT}}{text}", _WIDTH, subsequent_indent=_INDENT * " ")


def describe_claim(conclusion: Conclusion) -> list[str]:
    """Returns lines for below a table: whether the claim is refuted, and how sharp its test is.

    The list is empty if nothing is claimed. If a claim is not tested, it is empty for several runs; for a
    single run a line says why.
    """
    lines = []
    word = "claim:"
    for statement in make_statements_on_claim(conclusion):
        lines.append(make_note(word, statement))
        word = ""
    return lines


def make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns clauses on the test of the claim: its result, or why there is none, and how sharp the test is.

    The second clause says which noise, weaker than stated, such runs would have refuted, and with which
    probability. It is left out if that is unknown and if the claim is refuted.
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
    result = "not refuted by "
    if test.refuted:
        result = "refuted by "
    result += written.counted(test.runs, "training run")
    if conclusion.bets_on_curve:  # else the e-value says no more than whether the claim is refuted
        result += f" (e-value {at_least_digits(test.e_value, digits=2)})"
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100  # rounded down
    sharpness = (
        f"noise of {test.seen.noise:g} of what is stated would have been refuted "
        f"with probability {probability:g}"
    )
    return [result, sharpness]


def _describe_attack(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines on the accuracy of guesses by the scores of several runs, and on true-positive rates.

    A rate is left out if there are too few scores out for a false positive.
    """
    if conclusion.attack is None or conclusion.is_one_run:
        return
    words = (
        "guesses right in {}",
        "finds {} of those in at 1% false positives",
        "finds {} of those in at 0.1% false positives",
    )
    word = "attack:"
    for rate, text in zip(conclusion.attack, words, strict=True):
        if rate is not None:
            shown = f"{rate.value:.1%} ({rate.lower:.1%} to {rate.upper:.1%})"
            yield make_note(word, text.format(shown))
        word = ""


def _explain_words(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines that explain the table's last column, the Gaussian curve at last."""
    if conclusion.uncovered:
        yield make_note("last model:", f"no bound but composition: {conclusion.uncovered}")
    assumptions = map(attrgetter("assumes"), list_rows(conclusion))
    # False sorts before True, so that the Gaussian curve comes last: the lines on its test follow.
    for assumption in sorted(dict.fromkeys(assumptions), key=attrgetter("gaussian")):
        if assumption.note:
            yield make_note(f"{assumption.word}:", assumption.note)
    if conclusion.has_tied_scores:
        yield make_note("", _UNTESTED)


def _describe_curve(conclusion: Conclusion) -> Iterator[str]:
    """Yields lines on the Gaussian curve's test, and on why the curve should be Gaussian."""
    if conclusion.curve is None:
        return
    yield f"{'':<{_INDENT}}{conclusion.curve.show()}: {explain_curve_test(conclusion)}"
    if conclusion.reason:
        yield make_note("", conclusion.reason)


def explain_curve_test(conclusion: Conclusion) -> str:
    """Returns what follows from the test of whether the trade-off curve is Gaussian; "" without a test."""
    curve = conclusion.curve
    if curve is None:
        return ""
    if curve.is_refuted:
        return f"ignore these rows, only {conclusion.assumption_free.method} holds"
    if not curve.is_doubted:
        return "no evidence against it"
    return "too few runs to tell"


def explain_too_few_runs(conclusion: Conclusion) -> str:
    """Returns a sentence on runs that are too few to refute the smallest upper bound, whatever they show.

    It says what they can prove at most, and what to do. It is empty if they are enough, if there is no finite
    upper bound, and if a guarantee is violated or the scores can prove nothing at all.
    """
    is_said_otherwise = conclusion.doubt or conclusion.is_reversed
    is_violated = conclusion.verdict.kind == verdicts.VIOLATED
    if is_said_otherwise or not conclusion.is_beyond_reach or is_violated:
        return ""
    upper = conclusion.tightest
    most = conclusion.most_provable  # the epsilon that would be proven if no guess were wrong
    assert upper is not None and most is not None  # else it would not be beyond reach
    # Fewer insertions and a larger sigma make the upper bound smaller.
    advice = "take fewer insertions or a larger sigma to look for bugs"
    if conclusion.is_claimed:  # the reader may train nothing, but can ask for other scores
        advice = f"ask for {verdicts.BETTER_SCORES}"
    elif most <= 0:  # so few runs prove nothing, however small the upper bound
        advice = "train more runs"
    return (
        f"{conclusion.runs:,} runs prove at most {at_most(most)} whatever the curve, so "
        f"that none could contradict the {upper.name} {at_most(upper.epsilon)}: {advice}"
    )


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns sentences on what a reader has to know next to the table; often there are none."""
    if conclusion.is_one_run:
        return [*conclusion.notes, *_remark_on_one_run(conclusion)]
    equal = []
    for name, scores in zip(("in", "out"), conclusion.worlds, strict=True):
        if np.ptp(scores) == 0:
            equal.append(name)
    found = []
    if conclusion.doubt:
        found.append(f"these scores are not those of independent runs: {conclusion.doubt}")
    elif equal:
        words = " and ".join(equal)
        found.append(f"all scores {words} are equal: does each run have noise of its own?")
    return [*found, *conclusion.notes, *_explain_zeros(conclusion)]


def _explain_zeros(conclusion: Conclusion) -> Iterator[str]:
    """Yields a reason other than privacy for bounds of 0, if there is one."""
    if conclusion.is_reversed and conclusion.auc is not None:
        auc = f"{conclusion.auc.value:.2f}"
        yield f"scores are lower with the canary (AUC {auc}): did you mean minus the score?"
    elif conclusion.law_is_known:
        if not conclusion.assumption_free.holds:
            fresh = "fresh draws" if conclusion.fresh.draws else "directions"
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
