"""Bounds for people: a table of 80 columns."""

from collections.abc import Callable

from audit.report import methods, rounding
from audit.report.remarks import remarks
from audit.statistics.conclusion import Conclusion
from audit.statistics.estimate import Finding

_COUNTS, _RATES = ("FP/out", "FN/in"), ("FPR", "FNR")
_NO_BOUND = f"{methods.NO_BOUND}: in-sample, the best of all thresholds; not a confidence bound"
_GAUSSIAN = "Gaussian:   epsilon follows from mu if the trade-off curve is Gaussian"
_RUNS = "many runs:  asymptotic, exceeds its level with few runs"
_UNTESTED = "            (not tested here: scores of one run may depend on each other)"


def bounds_table(conclusion: Conclusion) -> str:
    """A row a bound: first the one that a verdict rests on, then the others, the upper bound, and what is no
    bound; remarks below, where there are any. Lower bounds are rounded down, the upper bound up."""
    many = conclusion.design is not None
    share = _rate if many else "{}/{}".format
    header = ("method", "epsilon", "mu", "threshold", *(_RATES if many else _COUNTS), "assumes")
    rows = [header, *(_row(row, share) for row in conclusion.ranked())]
    if conclusion.upper_bound is not None:
        source = "given" if conclusion.composition is None else "accounting"
        rows.append(("upper bound", rounding.at_most(conclusion.upper_bound), "", "", "", "", source))
    rows += [_row(row, share) for row in conclusion.estimates]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = f"lower bounds on epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    design = [str(conclusion.design)] if many else []
    notes = [*_notes(conclusion), *_curve(conclusion), *_exceeding(conclusion), *remarks(conclusion)]
    return "\n".join([title, *design, lines[0], "-" * max(map(len, lines)), *lines[1:], *notes])


def _notes(conclusion: Conclusion) -> list[str]:
    """What the words of the last column mean."""
    if conclusion.design is None:
        return [_NO_BOUND, _GAUSSIAN]
    return [_RUNS, _GAUSSIAN, _UNTESTED]


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
        methods.assumes(finding),
    )


def _rate(count: int, guesses: int) -> str:
    """A share in percent, at most 100: an average over coins can lie above."""
    return f"{min(count / guesses, 1):.2%}"
