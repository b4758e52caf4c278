"""A caller's numbers and paths: of the requested type, or an error that names the value in a line."""

import os
from pathlib import Path
from typing import Any, TypeVar

from audit.errors import require

N = TypeVar("N", int, float)
_SHOWN = 200  # characters
_LARGEST_INTEGER = 2**1000  # a float holds numbers up to about 2^1024


def shown(value: object) -> str:
    """Returns a value as text for an error message: on a single line, cut after 200 characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except ValueError:  # Python's limit on the digits of a whole number in text
        text = f"a {type(value).__name__} too long to show"
    text = " ".join(text.split())
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}..."


def require_type(name: str, value: object, kind: type) -> None:
    """Raises InputError unless a value has the required type.

    An int counts as a float. A bool counts neither as an int nor as a float.

    Args:
      name: the name of the field or parameter, which the message repeats.
      value: the caller's value.
      kind: the required type.
    """
    is_whole_float = kind is float and type(value) is int
    # Python's bool is a subclass of int, so that `isinstance` alone would take True for an int.
    is_allowed_bool = kind is bool or type(value) is not bool
    fits = is_whole_float or (isinstance(value, kind) and is_allowed_bool)
    # Quotes tell a short text from a number, as in `k='5'`.
    is_short_text = isinstance(value, str) and len(value) < 100
    quoted = repr(value) if is_short_text else shown(value)
    require(fits, f"`{name}={quoted}` is no {kind.__name__}: give one")


def plain(value: Any) -> Any:
    """Returns a scalar of NumPy or JAX as Python's bool, int or float, and anything else unchanged."""
    is_scalar = getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_scalar else value


def number(name: str, value: Any, kind: type[N]) -> N:
    """Returns a caller's number as Python's int or float.

    Args:
      name: the parameter's name, which messages repeat.
      value: a number of Python, NumPy or JAX.
      kind: int or float.

    Raises:
      InputError: the value has another type, or is a whole number beyond 2^1000, which might not fit a float.
    """
    python_value = plain(value)
    require_type(name, python_value, kind)
    fits = not isinstance(python_value, int) or abs(python_value) <= _LARGEST_INTEGER
    require(fits, f"`{name}={shown(python_value)}` is too large: give a smaller one")
    return kind(python_value)


def path(name: str, value: Any) -> Path:
    """Returns a caller's path as a Path.

    Raises InputError unless it is a string or path that is neither empty nor holds a null character.
    """
    is_path = isinstance(value, str | os.PathLike)
    fits = is_path and str(value) and "\0" not in str(value)
    require(fits, f"`{name}={shown(value)}` is no path: name one")
    return Path(value)
