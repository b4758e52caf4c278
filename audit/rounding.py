"""Bounds as text, rounded so that none claims more than is proven: lower bounds down, upper bounds up."""

import decimal
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


def short(number: str) -> str:
    """Returns a number's text without the zeros at its end; the text must have a decimal point."""
    return number.rstrip("0").rstrip(".")


def at_least_digits(value: float, digits: int = 4) -> str:
    """Returns a lower bound as text, rounded down to some significant digits, as the format "g" shows it."""
    return _round_digits(value, digits, decimal.ROUND_FLOOR)


def at_most_digits(value: float, digits: int = 4) -> str:
    """Returns an upper bound as text, rounded up to some significant digits, as the format "g" shows it."""
    return _round_digits(value, digits, decimal.ROUND_CEILING)


def _round_digits(value: float, digits: int, rounding: str) -> str:
    """Returns a number as text, rounded to some significant digits in a direction of the module decimal."""
    if not math.isfinite(value):
        return f"{value:g}"
    context = decimal.Context(prec=digits, rounding=rounding)
    rounded = context.create_decimal(decimal.Decimal(value))
    return f"{float(rounded):.{digits}g}"
