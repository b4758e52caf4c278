"""The level of a bound."""

from typing import NamedTuple


class Level(NamedTuple):
    """The level of an audit's bounds.

    Attributes:
      delta: The delta at which epsilon is bounded.
      confidence: The confidence of each lower bound.
    """

    delta: float = 1e-5
    confidence: float = 0.95


USUAL_LEVEL = Level()
