"""Numbers rounded so that none claims more than is proven: lower bounds down, upper bounds up."""

import math


def at_least(value: float, decimals: int = 3) -> str:
    """A lower bound, rounded down."""
    return f"{math.floor(value * 10**decimals) / 10**decimals:.{decimals}f}"


def at_most(value: float, decimals: int = 3) -> str:
    """An upper bound, rounded up; inf where it is infinite."""
    if math.isinf(value):
        return "inf"
    return f"{math.ceil(value * 10**decimals) / 10**decimals:.{decimals}f}"
