"""Bounds for people: a table of 80 columns."""

from collections.abc import Callable
from operator import itemgetter

from audit.report import rounding
from audit.report.remarks import remarks
from audit.report.table import Column, Table
from audit.statistics.conclusion import Conclusion, method_of
from audit.statistics.estimate import Finding

_COUNTS, _RATES = ("FP/out", "FN/in"), ("FPR", "FNR")
_UNTESTED = "            (not tested here: scores of one run may depend on each other)"


def bounds_table(conclusion: Conclusion) -> str:
    """A row a bound: first the one that a verdict rests on, then the others, the upper bound, and what is no
    bound; remarks below, where there are any. Lower bounds are rounded down, the upper bound up."""
    many = conclusion.design is not None
    share = _rate if many else "{}/{}".format
    header = ("method", "epsilon", "mu", "threshold", *(_RATES if many else _COUNTS), "assumes")
    rows = [_row(row, share) for row in conclusion.ranked()]
    if conclusion.upper_bound is not None:
        source = "given" if conclusion.composition is None else "accounting"
        rows.append(("upper bound", rounding.at_most(conclusion.upper_bound), "", "", "", "", source))
    rows += [_row(row, share) for row in conclusion.estimates]
    title = f"lower bounds on epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    before = [title, str(conclusion.design)] if many else [title]
    notes = [*_notes(conclusion), *_curve(conclusion), *_exceeding(conclusion), *remarks(conclusion)]
    columns = [Column(None, itemgetter(place), head, left=True) for place, head in enumerate(header)]
    return Table(columns, rows, before=before, after=notes).text()


def _notes(conclusion: Conclusion) -> list[str]:
    """The meaning of the last column's words, that of a Gaussian curve last: its test stands below."""
    assumed = dict.fromkeys(method_of(row).assumes for row in conclusion.rows())
    notes = [
        f"{one.word + ':':<12}{one.note}" for one in sorted(assumed, key=lambda one: one.gaussian) if one.note
    ]
    return notes if conclusion.design is None else [*notes, _UNTESTED]


def look_rows(conclusion: Conclusion) -> str:
    """The last look's bounds in a row, below a header where it is the first; its looks must be known."""
    looks = conclusion.looks
    assert looks is not None
    look = looks.taken[-1]
    names = [bound.method for bound in look.bounds]
    header = f"{'look':<8}{'runs':>10}" + "".join(f"{name:>17}" for name in names)
    title = f"epsilon at delta {conclusion.delta:g}; each look's bounds hold at confidence "
    above = [f"{title}{looks.confidence:.6g}", header, "-" * len(header)] if len(looks.taken) == 1 else []
    values = "".join(f"{bound.epsilon:>17.3f}" for bound in look.bounds)
    row = f"{f'{looks.number(look)} of {len(looks.schedule)}':<8}{look.runs:>10}{values}"
    return "\n".join([*above, row])


def _curve(conclusion: Conclusion) -> list[str]:
    """The test of the Gaussian curve in lines of 80 columns; none where it was not made."""
    if conclusion.curve is None:
        return []
    if conclusion.refutes_gaussian:
        return [f"            REFUTED by these scores ({conclusion.p_value()}): such rows do not hold"]
    tested = f"({conclusion.p_value()}, power {conclusion.curve_power:.0%})"
    line = f"no evidence against a Gaussian curve {tested}"
    if conclusion.doubts_gaussian:
        line = f"too few runs to tell the curve's shape {tested}"
    return [f"            {text}" for text in (line, conclusion.reason) if text]


def _exceeding(conclusion: Conclusion) -> list[str]:
    """A line where a bound of a verdict lies above the upper one."""
    free, gaussian, upper = conclusion.assumption_free, conclusion.gaussian, conclusion.upper_bound
    if upper is not None and free.epsilon > upper:
        return [f"{free.method} exceeds the upper bound: the guarantee is violated"]
    if upper is not None and gaussian.epsilon > upper and not conclusion.refutes_gaussian:
        return [f"{gaussian.method} exceeds the upper bound: violated, or the curve is not Gaussian"]
    return []


def _row(finding: Finding, share: Callable[[int, int], str]) -> tuple[str, ...]:
    """A finding's cells, errors as shares."""
    return (
        finding.method,
        rounding.at_least(finding.epsilon),
        "" if finding.mu is None else rounding.at_least(finding.mu),
        f"{finding.threshold:.4g}",
        share(finding.false_positives, finding.n_out),
        share(finding.false_negatives, finding.n_in),
        method_of(finding).assumes.word,
    )


def _rate(count: int, guesses: int) -> str:
    """A share in percent, at most 100: an average over coins can lie above."""
    return f"{min(count / guesses, 1):.2%}"
