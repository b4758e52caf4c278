"""Formats bounds and levels as text, and results as JSON."""

import json
import math
import textwrap
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, NamedTuple


def at_least(value: float, decimals: int = 3) -> str:
    """Returns a lower bound as text, rounded down to `decimals` decimal places, or "inf"."""
    return _round_decimals(value, decimals, math.floor)


def at_most(value: float, decimals: int = 3) -> str:
    """Returns an upper bound as text, rounded up to `decimals` decimal places, or "inf"."""
    return _round_decimals(value, decimals, math.ceil)


def _round_decimals(value: float, decimals: int, rounding: Callable[[float], int]) -> str:
    """Returns a number as text with `decimals` decimal places; `rounding` is math.floor or math.ceil."""
    if math.isinf(value):
        return "inf"
    rounded = rounding(value * 10**decimals) / 10**decimals
    return f"{rounded:.{decimals}f}"


def short(number: str) -> str:
    """Removes trailing zeros from a decimal string; returns ∞ for "inf"."""
    return number.rstrip("0").rstrip(".").replace("inf", "∞")


def at_least_digits(value: float, digits: int) -> str:
    """Returns a lower bound in "g" format, rounded down to `digits` significant digits."""
    return _round_digits(value, digits, ROUND_FLOOR)


def at_most_digits(value: float, digits: int = 4) -> str:
    """Returns an upper bound in "g" format, rounded up to `digits` significant digits."""
    return _round_digits(value, digits, ROUND_CEILING)


def _round_digits(value: float, digits: int, rounding: str) -> str:
    """Returns a number in "g" format with `digits` significant digits.

    `rounding` is a rounding mode from the `decimal` module.
    """
    context = Context(prec=digits, rounding=rounding)
    rounded = context.create_decimal_from_float(value)
    return f"{float(rounded):.{digits}g}"


def write_json(content: Any, indent: int | None = None) -> str:
    """Returns nested dicts and lists as JSON text, with null for infinity and NaN.

    The numbers may be NumPy scalars. `indent` is the number of spaces per level, or None for a single line.

    >>> from audit.written import write_json
    >>> write_json({"upper": float("inf"), "runs": [1, 2.5]})
    '{"upper": null, "runs": [1, 2.5]}'
    """
    text = json.dumps(content, default=float)  # a NumPy scalar becomes a float
    # Python writes NaN and Infinity, which are not JSON.
    finite_content = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(finite_content, indent=indent)


class Level(NamedTuple):
    """The level of an audit's bounds: their delta, and the confidence of each lower bound."""

    delta: float = 1e-5
    confidence: float = 0.95

    def __str__(self) -> str:
        """Returns the level as text, with all digits: "delta 1e-05, confidence 0.95"."""
        return f"delta {show_level(self.delta)}, confidence {show_level(self.confidence)}"


USUAL_LEVEL = Level()


def show_level(value: float) -> str:
    """Returns the shortest string that represents a delta or a confidence exactly, such as "1e-05"."""
    return repr(float(value))


def show_percent(confidence: float) -> str:
    """Returns a confidence as a percentage, with all its digits: "95%" for 0.95."""
    return _format_percent(Decimal(show_level(confidence)))


def show_risk(confidence: float) -> str:
    """Returns the error probability of a bound as a percentage: "5%" for confidence 0.95."""
    return _format_percent(1 - Decimal(show_level(confidence)))


def _format_percent(fraction: Decimal) -> str:
    """Returns a fraction as a percentage, without trailing zeros."""
    return f"{(100 * fraction).normalize():f}%"


def shortened(text: str, width: int) -> str:
    """Returns the text, shortened with an ellipsis if it is longer than `width` characters."""
    words = textwrap.shorten(text, width, placeholder=" ...")
    if words == "...":  # the first word is longer than the width, so `shorten` dropped it
        return f"{text[: width - 3]}..."
    return words


def printable(text: str) -> str:
    r"""Returns text with control characters, except line breaks, escaped as in \x1b."""
    characters = []
    for character in text:
        if not character.isprintable() and character != "\n":
            character = repr(character)[1:-1]  # without the quotes
        characters.append(character)
    return "".join(characters)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun, in the plural unless the number is 1: "1 cell", "2 cells".

    The noun may include a verb, as in "batch has". `plural` defaults to the noun plus "s".
    """
    if number == 1:
        return f"{number} {noun}"
    return f"{number:,} {plural or f'{noun}s'}"
