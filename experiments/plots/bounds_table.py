"""Bounds for people: a table of 80 columns."""

from audit.statistics.conclusion import Conclusion
from audit.statistics.estimate import Finding
from experiments.plots import methods
from experiments.plots.remarks import remarks

_HEADER = ("method", "epsilon", "mu", "threshold", "FP/out", "FN/in", "assumes")
_NOTES = f"""\
{methods.NO_BOUND}: in-sample, the best of all thresholds; not a confidence bound
Gaussian:   epsilon follows from mu if the trade-off curve is Gaussian"""


def bounds_table(conclusion: Conclusion) -> str:
    """A row a bound, estimates first and the upper bound last; remarks below, where there are any."""
    rows: list[tuple[str, ...]] = [_HEADER, *map(_row, conclusion.rows())]
    if conclusion.upper_bound is not None:
        source = "given" if conclusion.composition is None else "accounting"
        rows.append(("upper bound", f"{conclusion.upper_bound:.3f}", "", "", "", "", source))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = f"lower bounds on epsilon at delta {conclusion.delta:g}, confidence {conclusion.confidence:g}"
    notes = [_NOTES, *_curve(conclusion), *remarks(conclusion)]
    return "\n".join([title, lines[0], "-" * max(map(len, lines)), *lines[1:], *notes])


def _curve(conclusion: Conclusion) -> list[str]:
    """The test of the Gaussian curve in lines of 80 columns; none where it was not made."""
    if conclusion.curve is None:
        return []
    if conclusion.refutes_gaussian:
        return [f"            REFUTED by these scores ({conclusion.p_value()}): such rows do not hold"]
    return [f"            no evidence against a Gaussian curve ({conclusion.p_value()})"]


def _row(finding: Finding) -> tuple[str, ...]:
    """A finding's cells."""
    return (
        finding.method,
        f"{finding.epsilon:.3f}",
        "" if finding.mu is None else f"{finding.mu:.3f}",
        f"{finding.threshold:.4g}",
        f"{finding.false_positives}/{finding.n_out}",
        f"{finding.false_negatives}/{finding.n_in}",
        methods.assumes(finding),
    )
