"""The bounds of an audit as rows and as an 80-column text table, with remarks on the scores."""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from audit.claims.linear_losses import IF_LINEAR
from audit.conclusions import verdicts
from audit.conclusions.conclusion import Conclusion, UpperBound, method_of
from audit.methods.estimate import Bound, Finding
from audit.methods.exact_null import LAW_LEVEL
from audit.methods.method import Assumption, NoiseFloor
from audit.methods.one_run_bounds import LEAST_COINS
from audit.report.table import at_least, at_most, format_table
from audit.written import Level, at_least_digits, counted, short

_WIDTH = 80  # columns of a terminal
_INDENT = 12  # columns for a note's word
_FEW_SCORES = 100  # with fewer in or out scores, a remark states the largest provable epsilon
_MIN_SHOWN = 0.0005  # smaller epsilons round to 0.000
_NOTES_ON_ESTIMATES = """\
estimates are not bounds; error: standard error for independent canaries;
floor: mean (95% quantile) without a leak"""


class BoundRow(NamedTuple):
    """A row of a table of bounds.

    Attributes:
      name: The name of the method or of the upper bound.
      epsilon, mu: Epsilon, and mu or None.
      assumes: The assumption of a bound; for other values, why they are not bounds.
      sign: "≥" for a lower bound, "≤" for an upper bound, empty for other values.
      show: Formats epsilon or mu, rounding values computed from scores down and other values up.
      counts: The cells for the threshold and both errors (one cell for a single run); empty for upper bounds.
      finding: The lower bound or the estimate; None for other rows.
      upper: The upper bound; None for other rows.
    """

    name: str
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
        text = short(self.show(value))
        if self.sign:
            return f"{self.sign}\N{NO-BREAK SPACE}{text}"
        return text


def list_rows(conclusion: Conclusion) -> list[BoundRow]:
    """Returns a table's rows: lower and upper bounds, estimates, and the epsilon for linear losses.

    For a single run, only bounds are listed, because a separate table shows the estimates.
    """
    rows = [_make_row(bound, conclusion, bound.assumes) for bound in conclusion.ranked()]
    rows += [
        BoundRow(
            name=upper.name,
            epsilon=upper.epsilon,
            mu=upper.mu,
            assumes=upper.assumes,
            sign="≤",
            upper=upper,
        )
        for upper in conclusion.upper_bounds
    ]
    if conclusion.is_one_run:
        return rows
    rows += [
        _make_row(estimate, conclusion, method_of(estimate).assumes)
        for estimate in conclusion.estimates
    ]
    if conclusion.epsilon_if_linear is not None:
        rows.append(
            BoundRow(
                name="linear_losses",
                epsilon=conclusion.epsilon_if_linear,
                mu=None,
                assumes=IF_LINEAR,
            )
        )
    return rows


def _make_row(finding: Finding, conclusion: Conclusion, assumes: Assumption) -> BoundRow:
    """Returns the row for a lower bound or an estimate."""
    return BoundRow(
        name=finding.method,
        epsilon=finding.epsilon,
        mu=finding.mu,
        assumes=assumes,
        sign="≥" if isinstance(finding, Bound) else "",
        show=at_least,  # rounds down, to avoid overstating leakage
        counts=_show_threshold_and_errors(finding, conclusion),
        finding=finding,
    )


def show_floor(floor: NoiseFloor) -> str:
    """Returns an estimate's mean and 95% quantile without a leak, as "0.100 (0.250)", or "-" if unknown."""
    if not floor.audits:
        return "-"
    return f"{floor.mean:.3f} ({floor.quantile_95:.3f})"


def bounds_table(conclusion: Conclusion) -> str:
    """Returns a conclusion's bounds as a text table, followed by notes and the verdict.

    For a single run, a table of its estimates comes first.
    """
    level = Level(conclusion.delta, conclusion.confidence)
    before = [f"lower bounds on epsilon at {level}"]
    if conclusion.is_one_run:
        before = [*_list_estimates(conclusion, level), ""]
        heads = ["counts"]  # of the columns for `BoundRow.counts`
    elif conclusion.has_one_canary:
        heads = ["threshold", "FP/out", "FN/in"]
    else:
        before.append(str(conclusion.evidence))  # rates do not show the number of scores
        heads = ["threshold", "FPR", "FNR"]
    records = []
    for row in list_rows(conclusion):
        record = {"method": row.name, "epsilon": row.show(row.epsilon), "mu": _show_mu(row)}
        # Upper bounds have three empty counts, even if the table has only one column for counts.
        record.update(zip(heads, row.counts, strict=False))
        record["assumes"] = _show_assumption(row)
        records.append(record)
    notes = list(_make_notes_below_table(conclusion))
    if not records:  # a single run with a fitted null and no coins
        return "\n".join([*before, *notes])
    text = format_table(records, before=before, after=notes)
    if max(map(len, text.splitlines())) <= _WIDTH:
        return text
    # With narrower gaps, most wide tables fit a terminal.
    return format_table(records, before=before, after=notes, gap=" ")


def _make_notes_below_table(conclusion: Conclusion) -> Iterator[str]:
    """Yields the notes below a table of bounds."""
    yield from _make_notes("claim:", make_statements_on_claim(conclusion))
    yield from _explain_words(conclusion)
    yield from _describe_attack(conclusion)
    if conclusion.verdict.word == verdicts.VIOLATED_IF_GAUSSIAN:
        yield f"to decide: use {verdicts.describe_what_decides(conclusion)}"
    for remark in remarks(conclusion):
        yield textwrap.fill(remark, _WIDTH)
    yield make_note("verdict:", conclusion.verdict.headline)


def _show_threshold_and_errors(finding: Finding, conclusion: Conclusion) -> tuple[str, ...]:
    """Returns the cells for a bound or an estimate: its threshold, false positives and false negatives.

    If each run has one canary, errors are counts such as "3/100". Otherwise, they are percentages, because
    scores from one run may depend on each other. A single run has one cell, such as "154/160 right of 160".
    """
    if conclusion.is_one_run:  # estimates, unlike bounds, have no `counted`
        return (getattr(finding, "counted", ""),)
    as_counts = conclusion.has_one_canary
    if finding.false_positive_rate is None:
        positives = _show_errors(finding.false_positives, finding.n_out, as_counts)
    else:  # the exact rate, from a known distribution
        positives = f"{finding.false_positive_rate:.1e}"
    negatives = _show_errors(finding.false_negatives, finding.n_in, as_counts)
    return (f"{finding.threshold:z.4g}", positives, negatives)  # z: 0 instead of -0


def _show_errors(errors: int, scores: int, as_counts: bool) -> str:
    """Returns false positives or false negatives as "errors/scores", or as a percentage capped at 100%.

    For canaries inserted by fair coins, `scores` is the expected number of inserted canaries, so errors may
    exceed `scores`.
    """
    if as_counts:
        return f"{errors}/{scores}"
    return f"{min(errors / scores, 1):.2%}"


def _show_assumption(row: BoundRow) -> str:
    """Returns the word for a row's assumption, or "REJECTED" if the scores refute it."""
    if isinstance(row.finding, Bound) and not row.finding.holds:
        return "REJECTED"
    return row.assumes.word


def _show_mu(row: BoundRow) -> str:
    """Returns mu to three decimal places; empty if it is None, and for upper bounds that cover all models."""
    if row.mu is None or (row.upper is not None and not row.upper.last_model_only):
        return ""
    return row.show(row.mu)


def _list_estimates(conclusion: Conclusion, level: Level) -> list[str]:
    """Returns the lines above a single run's bounds: its canaries, and the table of its estimates."""
    canaries = textwrap.wrap(f"canaries: {conclusion.evidence}", _WIDTH)
    before = [f"one run: epsilon at {level}", *canaries]
    if not conclusion.estimates:  # estimates require cosines
        return before
    records = []
    for estimate in conclusion.estimates:
        error = "-"
        if math.isfinite(estimate.standard_error):
            error = f"{estimate.standard_error:.3f}"
        records.append(
            {
                "estimate": estimate.method,
                "epsilon": f"{estimate.epsilon:.3f}",
                "error": error,
                "floor": show_floor(estimate.noise_floor),
            }
        )
    right = ("epsilon", "error")
    return [format_table(records, right, before=before, after=[_NOTES_ON_ESTIMATES])]


def make_note(word: str, text: str) -> str:
    """Returns a note to print below a table: a word and its explanation, wrapped and indented."""
    return textwrap.fill(f"{word + ' ':<{_INDENT}}{text}", _WIDTH, subsequent_indent=_INDENT * " ")


def _make_notes(word: str, statements: Iterable[str]) -> Iterator[str]:
    """Yields a note for each statement; only the first note begins with `word`."""
    for statement in statements:
        yield make_note(word, statement)
        word = ""


def make_statements_on_claim(conclusion: Conclusion) -> list[str]:
    """Returns clauses about the test of the claim; an empty list if no claim is known or scores are invalid.

    The first clause states the test's result, or why it did not run. If the claim is not rejected, the second
    is the probability that the test would have rejected the claim at a lower noise level.
    """
    test = conclusion.claim_test
    if test is None:
        upper = conclusion.tightest  # the tested claim
        if upper is None or math.isinf(upper.epsilon):
            return []
        if conclusion.is_reversed:
            return ["not tested: scores are reversed"]
        # A single run's test needs a known null (the distribution of left-out cosines), or enough coin flips.
        if conclusion.is_one_run:
            return [f"not tested: the null is fitted, and there are fewer than {LEAST_COINS} coins"]
        # Runs are dependent, or left-out scores do not fit their known distribution (see `remarks`).
        return []
    result = "rejected by " if test.refuted else "not rejected by "
    result += counted(test.runs, "training run")
    # If the test compares lower bounds with the claim, the e-value only repeats the result.
    if conclusion.bets_on_curve:
        result += f" (e-value {at_least_digits(test.e_value, digits=2)})"
    # `seen` is the smallest noise reduction that the test would detect.
    if test.seen is None or test.refuted:
        return [result]
    probability = math.floor(100 * test.seen.probability) / 100  # rounded down
    reduction = 1 - test.seen.noise  # `noise` is the fraction that remains
    sensitivity = (
        f"with {100 * reduction:.3g}% less noise than claimed, this audit would have "
        f"rejected the claim with probability {probability:g}"
    )
    return [result, sensitivity]


def _describe_attack(conclusion: Conclusion) -> Iterator[str]:
    """Yields notes on the attack's accuracy and true-positive rates.

    A rate is omitted if there are too few scores without the canary.
    """
    if conclusion.attack is None or conclusion.is_one_run:
        return
    templates = (  # in the order of the rates in an `Attack`
        "accuracy {:.1%}",
        "true-positive rate {:.1%} at 1% false positives",
        "true-positive rate {:.1%} at 0.1% false positives",
    )
    statements = []
    for rate, template in zip(conclusion.attack, templates, strict=True):
        if rate is not None:
            statements.append(template.format(rate))
    statements.append("in sample, not bounds: these scores also chose the thresholds")
    yield from _make_notes("attack:", statements)


def _explain_words(conclusion: Conclusion) -> Iterator[str]:
    """Yields notes that explain the words in the table's last column."""
    if conclusion.uncovered:  # why there is no upper bound for the last model
        yield make_note("last model:", f"bounded only by composition: {conclusion.uncovered}")
    assumptions = dict.fromkeys(row.assumes for row in list_rows(conclusion))
    # The Gaussian curve comes last, because notes on its test follow.
    for assumption in sorted(assumptions, key=attrgetter("gaussian")):
        if assumption.note:
            yield make_note(f"{assumption.word}:", assumption.note)
    if conclusion.scores_may_depend:
        yield make_note("", "(not tested: scores from one run may depend on each other)")
    if conclusion.curve is not None:
        # Not wrapped, because the line is at most a few characters too long.
        yield f"{' ' * _INDENT}{conclusion.curve.show()}: {explain_curve_test(conclusion)}"
        if conclusion.why_gaussian:
            yield make_note("", conclusion.why_gaussian)


def explain_curve_test(conclusion: Conclusion) -> str:
    """Returns a phrase describing what the Gaussian-curve test implies; "" if untested."""
    curve = conclusion.curve
    if curve is None:
        return ""
    if curve.is_refuted:
        return f"ignore these rows; only {conclusion.assumption_free.method} is valid"
    if not curve.is_underpowered:
        return "no evidence against it"
    return "too few runs to tell"


def _explain_too_few_runs(conclusion: Conclusion) -> Iterator[str]:
    """Yields advice if no scores from this number of runs could reject the smallest upper bound."""
    # Other remarks cover dependent runs and reversed scores. A rejected claim needs no advice.
    are_dependent_or_reversed = conclusion.doubt or conclusion.is_reversed
    is_violated = conclusion.verdict.kind == verdicts.VIOLATED
    if are_dependent_or_reversed or not conclusion.is_beyond_reach or is_violated:
        return
    upper = conclusion.tightest
    largest = conclusion.most_provable  # the bound of an attack that makes no errors
    assert upper is not None and largest is not None
    # Both changes lower the upper bound, so these runs can reject it.
    advice = "use fewer insertions or a larger sigma to look for bugs"
    # A user who states epsilon may be unable to change sigma. More runs raise `largest`; fresh directions
    # have a different limit.
    if conclusion.is_claimed:
        advice = f"use {verdicts.BETTER_SCORES}"
    elif largest <= 0:  # these runs cannot reject any bound
        advice = "train more runs"
    yield (
        f"{conclusion.runs:,} runs can prove at most {at_most(largest)} for any curve, so they "
        f"cannot reject the {upper.name} {at_most(upper.epsilon)}: {advice}"
    )


def remarks(conclusion: Conclusion) -> list[str]:
    """Returns remarks on the scores, to print below the table."""
    if conclusion.is_one_run:
        return [*conclusion.notes, *_remark_on_one_run(conclusion)]
    found = [*_explain_too_few_runs(conclusion)]
    constant = []  # the names of the sets whose scores are all equal
    for name, scores in zip(("in", "out"), conclusion.worlds, strict=True):
        if np.ptp(scores) == 0:
            constant.append(name)
    if conclusion.doubt:
        found.append(f"these scores do not come from independent runs: {conclusion.doubt}")
    elif constant:
        names = " and ".join(constant)
        found.append(f"all scores {names} are equal: does each run draw its own noise?")
    return [*found, *conclusion.notes, *_explain_zeros(conclusion)]


def _explain_zeros(conclusion: Conclusion) -> Iterator[str]:
    """Yields a reason, other than privacy, for bounds of 0: wrong scores or too few runs."""
    if conclusion.is_reversed and conclusion.auc is not None:
        yield f"scores are lower with the canary (AUC {conclusion.auc.value:.2f}): should they be negated?"
    elif conclusion.law_is_known:
        # Bounds are 0 if left-out scores do not fit their known distribution.
        if not conclusion.assumption_free.holds:
            fresh = "fresh draws" if conclusion.fresh.draws else "random directions"
            yield f"invalid: held-out canaries are not distributed like {fresh} (p < {LAW_LEVEL:g})"
    # If there is an upper bound (`tightest`), `_explain_too_few_runs` gives similar advice.
    elif conclusion.has_one_canary and conclusion.tightest is None:
        n_in, n_out = map(len, conclusion.worlds)
        largest = max(bound.epsilon for bound in conclusion.bounds)
        if min(n_in, n_out) < _FEW_SCORES and largest < _MIN_SHOWN:
            yield (
                f"{n_in} and {n_out} runs can prove at most epsilon = "
                f"{at_most(conclusion.most_provable or 0.0)} for any curve: use more runs"
            )


def _remark_on_one_run(conclusion: Conclusion) -> Iterator[str]:
    """Yields remarks on reversed scores and missing bounds."""
    cosines = conclusion.one_run.cosines
    if conclusion.is_reversed and cosines is None:
        yield "scores are lower with the canary: should they be negated?"
    elif conclusion.is_reversed:
        yield "cosines are lower than under the null: should the displacement be negated?"
    if cosines is not None and not conclusion.bounds:
        yield "no bound: save which canaries were inserted (scores with presence)"
