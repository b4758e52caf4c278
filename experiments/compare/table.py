"""The comparison for people (80 columns) and for programs."""

import csv
import io
from collections.abc import Sequence

from audit.report import rounding
from experiments.compare.compared import Compared
from experiments.compare.methods import ComparedRow

_NOTES = """\
value: the estimator; bounds hold at confidence {confidence:g} for what they assume.
(no bound): an estimate or a measurement. s: seconds spent now; kept: none.
One mechanism, neighbours (a canary is added) and delta for all: {steps:,} steps of
DP-SGD, each of which takes the canary, sigma = {sigma:g}."""


def as_text(compared: Compared, rows: Sequence[ComparedRow], upper: float) -> str:
    """A row a value, the accountant's last."""
    line = f"{'method':<20} {'value':<23} {'runs':>5} {'s':>4} {'epsilon':>7} assumes"
    lines = [f"epsilon at delta {compared.delta:g}: {compared.model} on Fashion-MNIST", line]
    last = ""
    for row in rows:
        if row.sees != last:
            lines += [
                "-" * 80,
                f"sees the {row.sees}" if row.sees.startswith("final") else f"sees {row.sees}",
            ]
            last = row.sees
        spent = "kept" if row.seconds is None else f"{row.seconds:.0f}"
        shown = rounding.at_least(row.epsilon) if row.is_bound else f"{row.epsilon:.3f}"
        numbers = f"{row.runs:>5,} {spent:>4} {shown:>7}"
        lines.append(f"{row.method:<20} {row.value:<23} {numbers} {row.assumes}")
    lines += ["-" * 80, f"{'upper bound':<20} {'accounting':<23} {'':>10} {rounding.at_most(upper):>7}"]
    notes = _NOTES.format(
        confidence=compared.confidence, steps=compared.steps, sigma=compared.noise_multiplier
    )
    return "\n".join([*lines, notes])


def as_csv(rows: Sequence[ComparedRow], upper: float) -> bytes:
    """The rows and the upper bound, six digits a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*ComparedRow._fields, "upper_bound"])
    for row in rows:
        values = [f"{v:.6g}" if isinstance(v, float) else v for v in (*row, upper)]
        writer.writerow(values)
    return text.getvalue().encode()
