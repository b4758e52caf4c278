"""Where a report comes from: when it was made, of what code, with which versions and stated numbers."""

import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np

from audit.version import __version__

_LIBRARIES = ("jax", "jax_privacy", "torch", "opacus", "tensorflow", "dp_accounting")


def collect(code: Any, stated: Mapping[str, Any]) -> dict[str, str]:
    """Returns the facts that identify a check, in words, by name: date, code, stated numbers and versions.

    Args:
      code: the caller's step, or what draws the batches; None for a check of numbers alone.
      stated: the numbers that the caller states, by name.
    """
    facts = {"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}
    if code is not None:
        facts["code"] = _describe_code(code)
    for name, value in stated.items():
        facts[name] = str(value)
    facts["audit"] = __version__
    facts["python"] = platform.python_version()
    facts["numpy"] = np.__version__
    for library in _LIBRARIES:  # only those that are loaded have a version
        version = getattr(sys.modules.get(library), "__version__", None)
        if version is not None:
            facts[library] = str(version)
    return facts


def _describe_code(code: Any) -> str:
    """Returns a function's name and the line of its definition, or the type of anything else."""
    source = getattr(code, "__code__", None)
    if source is None:
        return f"{type(code).__module__}.{type(code).__qualname__}"
    return f"{code.__qualname__} in {source.co_filename}, line {source.co_firstlineno}"
