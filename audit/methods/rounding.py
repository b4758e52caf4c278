"""Rounding that lets no number claim more than is proven: lower bounds down, upper bounds up."""

import math


def at_least(value: float, decimals: int = 3) -> str:
    """Returns a lower bound as text, rounded down to some decimals, with zeros at its end, or "inf"."""
    if math.isinf(value):
        return "inf"
    rounded = math.floor(value * 10**decimals) / 10**decimals
    return f"{rounded:.{decimals}f}"


def at_most(value: float, decimals: int = 3) -> str:
    """Returns an upper bound as text, rounded up to some decimals, or "inf"."""
    if math.isinf(value):
        return "inf"
    rounded = math.ceil(value * 10**decimals) / 10**decimals
    return f"{rounded:.{decimals}f}"
