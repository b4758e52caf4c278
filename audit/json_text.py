"""JSON text of results, with null for what JSON cannot hold: infinity and NaN."""

import json
import math
import numbers
from collections.abc import Mapping
from typing import Any


def finite(value: float | None) -> float | None:
    """Returns a number, or None where it is infinite, NaN or None: JSON has no other numbers."""
    if value is None or not math.isfinite(value):
        return None
    return value


def write_json(content: Any, indent: int | None = None) -> str:
    """Returns nested dicts and lists as JSON text, in which null stands for infinity and NaN.

    Args:
      content: dicts, lists and tuples of texts, booleans, None and numbers, NumPy's among them.
      indent: the number of spaces by which each level is indented; None for a single line.

    >>> from audit.json_text import write_json
    >>> write_json({"upper": float("inf"), "runs": [1, 2.5]})
    '{"upper": null, "runs": [1, 2.5]}'
    """
    return json.dumps(_replace_infinities(content), indent=indent, default=float, allow_nan=False)


def _replace_infinities(value: Any) -> Any:
    """Returns nested dicts and lists with None in the place of every number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _replace_infinities(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_infinities(item) for item in value]
    # Whole numbers are finite, and may be too large for a float.
    is_fraction = isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral)
    return finite(value) if is_fraction else value
