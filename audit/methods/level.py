"""The level of a bound, and how people read it."""

import math
from decimal import Decimal
from typing import NamedTuple

_DIGITS = 5  # of the distance from 1 of a confidence that is rounded


class Level(NamedTuple):
    """The level of an audit's bounds.

    Attributes:
      delta: The delta at which epsilon is bounded.
      confidence: The confidence of each lower bound.
    """

    delta: float = 1e-5
    confidence: float = 0.95

    def __str__(self) -> str:
        """Returns the level in words, with all digits: "delta 1e-05, confidence 0.95"."""
        return f"delta {show_level(self.delta)}, confidence {show_level(self.confidence)}"


USUAL_LEVEL = Level()


def show_level(value: float) -> str:
    """Returns a delta or a confidence as the shortest text that is read as the same number: "1e-05".

    Fewer digits could write a confidence as 1, which claims certainty, and which no flag takes.
    """
    return repr(float(value))


def show_percent(confidence: float) -> str:
    """Returns a confidence in percent, with all its digits: "95%" for 0.95."""
    return _format_percent(Decimal(show_level(confidence)))


def show_risk(confidence: float) -> str:
    """Returns in percent the probability with which a bound may fail: "5%" for the confidence 0.95."""
    return _format_percent(1 - Decimal(show_level(confidence)))


def round_confidence(confidence: float) -> float:
    """Returns a computed confidence with fewer digits, rounded down: 0.983333 for 1 - 0.05 / 3.

    Its distance from 1 has five digits, so that a confidence below 1 stays below 1.
    """
    risk = 1 - confidence
    decimals = _DIGITS - 1 - math.floor(math.log10(risk))
    # Whole units of the last decimal. Rounding first takes away what is only the rounding of floats.
    units = math.ceil(round(risk * 10.0**decimals, 6))
    return round(1 - units / 10.0**decimals, decimals)


def _format_percent(share: Decimal) -> str:
    """Returns a share in percent, without zeros at its end."""
    return f"{(100 * share).normalize():f}%"
