"""The exception for user errors, and checks of numbers, paths and steps."""

import os
from pathlib import Path
from typing import Any, TypeVar


class InputError(ValueError):
    """A user error, with a one-line message that states the wrong value and the fix."""


def require(condition: object, message: str) -> None:
    """Raises InputError(message) unless the condition is true."""
    if not condition:
        raise InputError(message)


# Float32 and the conversions to epsilon support noise multipliers of 0, or from MIN_NOISE to MAX_NOISE.
MIN_NOISE = 1e-6
MAX_NOISE = 1e9
FIRST = "first"  # names for steps of a period
LAST = "last"
N = TypeVar("N", int, float)
_MAX_SHOWN = 200  # characters


def shown(value: object) -> str:
    """Formats a value as one line of text for an error message, truncated to 200 characters."""
    text = value if isinstance(value, str) else repr(value)
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}..."


def describe_error(error: BaseException) -> str:
    """Returns the type and the message of an error on one line; only the type if there is no message."""
    return f"{type(error).__name__}: {shown(str(error))}".removesuffix(": ")


def require_type(name: str, value: object, kind: type) -> None:
    """Raises an InputError about `name` unless the value has the required type.

    An int is a valid float. A bool is not a valid int or float.
    """
    fits = isinstance(value, kind)
    if type(value) is bool:  # a subclass of int
        fits = kind is bool
    elif type(value) is int and kind is float:
        fits = True
    require(fits, f"`{name}` must be of type {kind.__name__}, got {shown(repr(value))}")


def plain(value: Any) -> Any:
    """Returns a NumPy or JAX scalar as a Python bool, int or float, and anything else unchanged."""
    is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_scalar else value


def number(name: str, value: Any, kind: type[N]) -> N:
    """Converts a Python, NumPy or JAX scalar to a Python number of type `kind` (int or float).

    An int may become a float. Raises an InputError about `name` for other types.
    """
    python_value = plain(value)
    require_type(name, python_value, kind)
    return kind(python_value)


def whole_number(name: str, value: Any, least: int, most: int) -> int:
    """Returns `value`, a whole number from `least` to `most`, as an int.

    Raises an InputError about `name` for other values.
    """
    checked = number(name, value, int)
    require(least <= checked <= most, f"`{name}={checked}`: give {least} to {most:,}")
    return checked


def path(name: str, value: Any) -> Path:
    """Returns a string or path as a Path.

    Raises an InputError about `name` for other types, empty paths and paths with null characters.
    """
    is_path = isinstance(value, str | os.PathLike) and str(value) and "\0" not in str(value)
    require(is_path, f"`{name}` must be a path, got {shown(value)}")
    return Path(value)


def insert_step(insert: str | int, k: int) -> int:
    """Converts "first", "last" or a number to the number of a step in a period of k steps, from 1 to k.

    Raises:
      InputError: k is below 1, or `insert` is not a step of the period.
    """
    require(k >= 1, f"`k={k}`: give at least 1")
    step = insert
    if isinstance(insert, str):
        if insert == FIRST:
            step = 1
        elif insert == LAST:
            step = k
        # Flags pass digits as text. 20-digit numbers exceed any period, and `int` may reject longer ones.
        elif insert.isdecimal() and len(insert) < 20:
            step = int(insert)
    require(
        type(step) is int and 1 <= step <= k,
        f"`insert={shown(insert)}`: give {LAST}, {FIRST} or a number from 1 to {k}, the steps of a "
        "period",
    )
    return int(step)
