"""audit.json as it is read again: checked field by field, since the file may be anyone's."""

import json
import math
from typing import Any, NamedTuple

from audit.errors import require
from audit.statistics.method import MANY_CANARIES, ONE_CANARY


class Kept(NamedTuple):
    """The conclusion of an audit; None for what the file does not say.

    runs: those that it concludes from. delta, confidence: of its bounds. if_gaussian: epsilon of the bound
    that assumes a Gaussian curve, `lifted_gaussian` of many canaries a run. upper_bound: the accountant's
    epsilon, infinite where the file has null.
    """

    runs: int | None = None
    delta: float | None = None
    confidence: float | None = None
    if_gaussian: float | None = None
    upper_bound: float | None = None
    provenance: dict[str, str] = {}  # noqa: RUF012, never written to


def parse(content: bytes) -> Kept:
    """The conclusion in the content of an audit.json; raises ValueError, OverflowError or RecursionError for
    what no audit wrote."""
    result = json.loads(content)
    require(isinstance(result, dict), "an object")
    bounds, provenance, runs = result.get("bounds", []), result.get("provenance", {}), result.get("runs")
    require(isinstance(bounds, list) and all(isinstance(row, dict) for row in bounds), "rows")
    texts = isinstance(provenance, dict) and all(isinstance(value, str) for value in provenance.values())
    require(texts, "texts")
    require(runs is None or (type(runs) is int and runs >= 2), "a number of runs")
    delta, confidence = _levels(bounds[0]) if bounds else (None, None)
    return Kept(runs, delta, confidence, _if_gaussian(bounds), _upper_bound(result), provenance)


def _levels(row: dict[str, Any]) -> tuple[float, float]:
    """delta and confidence of a row of bounds."""
    levels = _number(row.get("delta")), _number(row.get("confidence"))
    require(all(0 < level < 1 for level in levels), "levels")
    return levels


def _if_gaussian(bounds: list[dict[str, Any]]) -> float | None:
    """epsilon of the bound that stands for those that assume a Gaussian curve."""
    names = (ONE_CANARY.gaussian, MANY_CANARIES.gaussian)
    found = [row for row in bounds if row.get("method") in names]
    return _number(found[0].get("epsilon")) if found else None


def _upper_bound(result: dict[str, Any]) -> float | None:
    """epsilon of the accountant, which is null where it is infinite."""
    if "upper_bound" not in result:
        return None
    return math.inf if result["upper_bound"] is None else _number(result["upper_bound"])


def _number(value: object) -> float:
    """A JSON number."""
    require(type(value) in (int, float) and value == value, "a number")
    assert isinstance(value, int | float)
    return float(value)
