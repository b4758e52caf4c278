"""The memory that devices have, and that a program takes, estimated from its trace."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, jaxpr_as_fun


class Hardware(NamedTuple):
    """Devices of one kind that programs are made for, `number` of them with `memory` bytes each. is_cpu: they
    are cores, whose caches decide what is fast. scratch: bytes beside the arithmetic of each in which a
    compiler keeps what fits (a TPU's VMEM), or 0."""

    is_cpu: bool
    number: int
    memory: int
    scratch: int = 0


def local_hardware() -> Hardware:
    """The devices of this process."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(True, len(devices), memory // len(devices))
    limit = (devices[0].memory_stats() or {}).get("bytes_limit", 4 << 30)
    scratch = 0
    if devices[0].platform == "tpu":
        from jax.experimental.pallas import tpu  # slow to import

        with contextlib.suppress(ValueError):  # of a kind that JAX does not know
            scratch = int(tpu.get_tpu_info().vmem_capacity_bytes)
    return Hardware(False, len(devices), limit, scratch)


class StepMemory(NamedTuple):
    """Bytes of one run's step, before anything is fused, so that a compiled program takes less. written: all
    that it writes, but for what depends on no parameter, which runs at once share; this decides what stays in
    a cache. held: the most at once, of a run alone."""

    written: int
    held: int

    def times(self, count: int, kept: int = 0) -> "StepMemory":
        """As many at once, and some bytes that are kept beside them."""
        return StepMemory(count * self.written + kept, count * self.held + kept)


def step_memory(function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any) -> StepMemory:
    """Of a function of theta (p,) and of shared arrays or pytrees of these shapes, arguments left out."""
    program = jax.make_jaxpr(function)(theta, *shared)
    _, *others = program.in_avals
    mapped = jax.vmap(jaxpr_as_fun(program), (0, *(None for _ in others)))

    def written(runs: int) -> int:
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        return _written(jax.make_jaxpr(mapped)(thetas, *others).jaxpr)

    return StepMemory(written(2) - written(1), _held(program.jaxpr))


def _written(jaxpr: Jaxpr) -> int:
    """Bytes of every result in a program; inner programs' as often as a scan repeats them."""
    total = 0
    for equation in jaxpr.eqns:
        inner, times = _inner(equation), equation.params.get("length", 1)
        total += times * sum(map(_written, inner)) if inner else sum(_size(one) for one in equation.outvars)
    return total


def _held(jaxpr: Jaxpr) -> int:
    """The most bytes of results that are still needed, at any of a program's equations."""
    last = {id(one): i for i, equation in enumerate(jaxpr.eqns) for one in equation.invars}
    last |= {id(one): len(jaxpr.eqns) for one in jaxpr.outvars}
    live: dict[int, int] = {}
    most = 0
    for i, equation in enumerate(jaxpr.eqns):
        branches = (branch.jaxpr for branch in equation.params.get("branches", ()))  # of which one is run
        within = max(map(_held, [*_inner(equation), *branches]), default=0)
        live |= {id(one): _size(one) for one in equation.outvars}
        most = max(most, sum(live.values()) + within)
        live = {one: size for one, size in live.items() if last.get(one, -1) > i}
    return most


def _inner(equation: Any) -> list[Jaxpr]:
    values = equation.params.values()
    return [getattr(v, "jaxpr", v) for v in values if hasattr(v, "eqns") or hasattr(v, "jaxpr")]


def _size(variable: Any) -> int:
    return int(variable.aval.size * variable.aval.dtype.itemsize)
