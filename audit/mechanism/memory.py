"""The memory that a program writes, estimated from its trace."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Jaxpr


def bytes_written(function: Callable[..., object], *arguments: Any) -> int:
    """The bytes of every intermediate result of a function of arrays, or pytrees, of these shapes."""
    return _bytes(jax.make_jaxpr(function)(*arguments).jaxpr)


def _bytes(jaxpr: Jaxpr) -> int:
    """The bytes of every result in a program, those of its inner programs instead of their calls'."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "eqns") or hasattr(p, "jaxpr")]
        if inner:
            total += sum(_bytes(getattr(p, "jaxpr", p)) for p in inner)
        else:
            avals: list[Any] = [variable.aval for variable in equation.outvars]
            total += sum(aval.size * aval.dtype.itemsize for aval in avals)
    return total
