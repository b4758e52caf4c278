"""Bounds for people (a table of 80 columns) and for programs (one JSON object)."""

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any

from audit.statistics.estimate import GAUSSIAN_CURVE, IN_SAMPLE, NOTHING, Bound

_ASSUMES = {IN_SAMPLE: "(no bound)", GAUSSIAN_CURVE: "Gaussian", NOTHING: "nothing"}
_NOTES = """\
(no bound): in-sample, the best of all thresholds; not a confidence bound
Gaussian:   epsilon follows from mu if the trade-off curve is Gaussian"""


def bounds_table(bounds: Iterable[Bound], upper_bound: float | None) -> str:
    """A row a bound, the upper bound last."""
    bounds = list(bounds)
    rows: list[tuple[str, ...]] = [("method", "epsilon", "mu", "threshold", "FP/out", "FN/in", "assumes")]
    rows += [_row(bound) for bound in bounds]
    if upper_bound is not None:
        rows.append(("upper bound", f"{upper_bound:.3f}", "", "", "", "", "accounting"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    first = bounds[0]
    title = f"lower bounds on epsilon at delta {first.delta:g}, confidence {first.confidence:g}"
    return "\n".join([title, lines[0], "-" * max(map(len, lines)), *lines[1:], _NOTES])


def _row(bound: Bound) -> tuple[str, ...]:
    """A bound's cells."""
    return (
        bound.method,
        f"{bound.epsilon:.3f}",
        "" if bound.mu is None else f"{bound.mu:.3f}",
        f"{bound.threshold:.4g}",
        f"{bound.false_positives}/{bound.n_out}",
        f"{bound.false_negatives}/{bound.n_in}",
        _ASSUMES[bound.assumes],
    )


def bounds_json(bounds: Iterable[Bound], upper_bound: float | None, **more: Any) -> str:
    """One JSON object on one line; an upper bound that is infinite or unknown is null."""
    known = upper_bound is not None and math.isfinite(upper_bound)
    content = {"bounds": [dataclasses.asdict(bound) for bound in bounds]}
    return json.dumps({**content, "upper_bound": upper_bound if known else None, **more})
