"""Searches for where a condition on a parameter stops to hold."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


class Bracket(NamedTuple):
    """Ends between which a condition stops to hold: it holds at `low` and not at `high`."""

    low: float
    high: float


def find_bracket(holds: Callable[[float], bool], low: float, first: float) -> Bracket:
    """Returns ends between which a condition, which holds at `low`, stops to hold.

    Args:
      holds: whether the condition holds at a parameter.
      low: a parameter at which it holds.
      first: the parameter from which the search doubles until it does not; above 0.
    """
    high = first
    while holds(high):
        low = high
        high = 2 * high
    return Bracket(low, high)


def find_largest_refuted(
    is_refuted: Callable[[float], bool], low: float, first: float, halvings: int
) -> float:
    """Returns the largest parameter from `low` on that is refuted; `low` where that is not.

    Args:
      is_refuted: whether a parameter is; of larger ones fewer are.
      low: the least parameter.
      first: the parameter from which the search doubles until one is not refuted; above 0.
      halvings: how often the last interval is halved; its lower end, which is refuted, is returned.
    """
    if not is_refuted(low):
        return low
    bracket = find_bracket(is_refuted, low, first)
    return bisect(is_refuted, bracket.low, bracket.high, halvings)


def bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Returns the lower end of the interval in which a condition stops to hold, after so many halvings."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def bisect_all(
    hold: Callable[[Array], NDArray[np.bool_]], low: ArrayLike, high: ArrayLike, halvings: int
) -> tuple[Array, Array]:
    """Returns both ends of the intervals in which a condition on each entry stops to hold.

    Args:
      hold: maps parameters of the shape of low and high to whether the condition holds at each.
      low: parameters at which it holds.
      high: parameters at which it does not.
      halvings: how often the intervals are halved.
    """
    low = np.asarray(low, np.float64)
    high = np.asarray(high, np.float64)
    for _ in range(halvings):
        middle = (low + high) / 2
        holds_there = hold(middle)
        low = np.where(holds_there, middle, low)
        high = np.where(holds_there, high, middle)
    return low, high
