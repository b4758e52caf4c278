"""A caller's numbers and paths: of the type that is asked for, or one line that names the value."""

import os
from pathlib import Path
from typing import Any, TypeVar

from audit.errors import require

N = TypeVar("N", int, float)
_SHOWN = 200  # characters
_MOST_WHOLE = 2**1000  # that floats hold


def shown(value: object) -> str:
    """A value as an error's line repeats it: on one line, cut where it is long."""
    try:
        text = " ".join(str(value).split()) if isinstance(value, str) else " ".join(repr(value).split())
    except ValueError:  # of whole numbers with thousands of digits
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def require_type(name: str, value: object, kind: type) -> None:
    """Raises InputError for a value of another type; a float may be an int, an int is no bool."""
    whole = kind is float and type(value) is int
    fits = isinstance(value, kind) and (kind is bool or type(value) is not bool)
    quoted = repr(value) if isinstance(value, str) and len(value) < 100 else shown(value)
    require(whole or fits, f"`{name}={quoted}` is no {kind.__name__}: give one")


def plain(value: Any) -> Any:
    """NumPy's, and JAX's, numbers as Python's; anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def number(name: str, value: Any, kind: type[N]) -> N:
    """A caller's number as Python's; raises InputError for a value of another type, or too large a one."""
    found = plain(value)
    require_type(name, found, kind)
    fits = not isinstance(found, int) or abs(found) <= _MOST_WHOLE
    require(fits, f"`{name}={shown(found)}` is too large: give a smaller one")
    return kind(found)


def path(name: str, value: Any) -> Path:
    """A caller's path; raises InputError for what names none."""
    fits = isinstance(value, str | os.PathLike) and str(value) and "\0" not in str(value)
    require(fits, f"`{name}={shown(value)}` is no path: name one")
    return Path(value)
