"""The memory that devices have, and that a program writes, estimated from its trace."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr

_UNSAID = 4 << 30  # bytes of a device that does not say


class Hardware(NamedTuple):
    """Devices of one kind that programs are made for, `number` of them with `memory` bytes each. is_cpu: they
    are cores, whose caches decide what is fast."""

    is_cpu: bool
    number: int
    memory: int


def local_hardware() -> Hardware:
    """The devices of this process."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(True, len(devices), memory // len(devices))
    limit = (devices[0].memory_stats() or {}).get("bytes_limit", _UNSAID)
    return Hardware(False, len(devices), limit)


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
