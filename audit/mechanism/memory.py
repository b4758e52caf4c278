"""The memory that devices have, and that a program takes, estimated from its trace."""

import contextlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, jaxpr_as_fun


class Hardware(NamedTuple):
    """Devices of a kind that programs are made for.

    Attributes:
      is_cpu: whether they are cores, whose caches decide what is fast.
      number: how many there are.
      memory: bytes of each.
      scratch: bytes beside the arithmetic of each in which a compiler keeps what fits (a TPU's VMEM), or 0.
    """

    is_cpu: bool
    number: int
    memory: int
    scratch: int = 0


def local_hardware() -> Hardware:
    """Returns the devices of this process."""
    devices = jax.local_devices()
    platform = devices[0].platform
    if platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(True, len(devices), memory // len(devices))

    stats = devices[0].memory_stats() or {}
    memory = stats.get("bytes_limit", 4 << 30)  # 4 GiB, where a device does not say
    scratch = 0
    if platform == "tpu":
        from jax.experimental.pallas import tpu  # slow to import

        with contextlib.suppress(ValueError):  # raised for a kind that JAX does not know
            scratch = int(tpu.get_tpu_info().vmem_capacity_bytes)
    return Hardware(False, len(devices), memory, scratch)


class StepMemory(NamedTuple):
    """Bytes of one run's step, before anything is fused, so that a compiled program takes less.

    Attributes:
      written: all that it writes, but for what depends on no parameter, which runs at once share; this
        decides what stays in a cache.
      held: the most at once, of a run alone.
    """

    written: int
    held: int

    def times(self, count: int, beside: int = 0) -> "StepMemory":
        """Returns the memory of `count` steps at once, and of `beside` bytes that stay the same."""
        return StepMemory(count * self.written + beside, count * self.held + beside)


def step_memory(
    function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any
) -> StepMemory:
    """Returns the memory of a function's intermediate results, its arguments left out.

    Args:
      function: of theta (p,) and of `shared`.
      theta: its type.
      *shared: the types of the further arguments, arrays or pytrees.
    """
    program = jax.make_jaxpr(function)(theta, *shared)
    _, *others = program.in_avals
    mapped = jax.vmap(jaxpr_as_fun(program), (0, *(None for _ in others)))

    def written_by(runs: int) -> int:
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        return _count_written(jax.make_jaxpr(mapped)(thetas, *others).jaxpr)

    # What a second run adds leaves out what runs share.
    return StepMemory(written_by(2) - written_by(1), _count_held(program.jaxpr))


def _count_written(jaxpr: Jaxpr) -> int:
    """Counts the bytes of every result in a program; those of a loop's body as often as it is repeated."""
    total = 0
    for equation in jaxpr.eqns:
        inner_programs = _inner_programs(equation)
        if inner_programs:
            repetitions = equation.params.get("length", 1)
            total += repetitions * sum(_count_written(inner) for inner in inner_programs)
        else:
            total += sum(_count_bytes(result) for result in equation.outvars)
    return total


def _count_held(jaxpr: Jaxpr) -> int:
    """Returns the most bytes, at any equation of a program, of all results that are still needed."""
    last_use: dict[int, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        for variable in equation.invars:
            last_use[id(variable)] = i
    for variable in jaxpr.outvars:
        last_use[id(variable)] = len(jaxpr.eqns)

    live: dict[int, int] = {}
    most = 0
    for i, equation in enumerate(jaxpr.eqns):
        programs = _inner_programs(equation)
        # Branches, only one of which runs.
        programs += [branch.jaxpr for branch in equation.params.get("branches", ())]
        within = max((_count_held(program) for program in programs), default=0)
        for result in equation.outvars:
            live[id(result)] = _count_bytes(result)
        most = max(most, sum(live.values()) + within)
        live = {variable: size for variable, size in live.items() if last_use.get(variable, -1) > i}
    return most


def _inner_programs(equation: Any) -> list[Jaxpr]:
    """Returns the programs among an equation's parameters, such as the body of a `lax.scan`."""
    programs = []
    for value in equation.params.values():
        if hasattr(value, "jaxpr"):
            programs.append(value.jaxpr)
        elif hasattr(value, "eqns"):
            programs.append(value)
    return programs


def _count_bytes(variable: Any) -> int:
    return int(variable.aval.size * variable.aval.dtype.itemsize)
