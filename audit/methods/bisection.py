"""Searches for where a condition on a parameter stops to hold."""

from collections.abc import Callable


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

    high = first
    while is_refuted(high):
        low = high
        high = 2 * high
    return bisect(is_refuted, low, high, halvings)


def bisect(holds: Callable[[float], bool], low: float, high: float, halvings: int) -> float:
    """Returns the lower end of the interval in which a condition stops to hold, after so many halvings."""
    for _ in range(halvings):
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
