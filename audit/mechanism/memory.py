"""The memory that devices have, and that a program takes, estimated from its trace."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import Jaxpr, jaxpr_as_fun


class Hardware(NamedTuple):
    """The devices, all of one kind, that programs run on.

    Attributes:
      is_cpu: whether they are CPU cores, whose caches decide what is fast.
      number: the number of devices.
      memory: the bytes of memory of each.
    """

    is_cpu: bool
    number: int
    memory: int


def local_hardware() -> Hardware:
    """Returns what kind of devices this process has, how many, and how much memory each has."""
    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        # The machine's memory, of which each device gets an equal share.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Hardware(is_cpu=True, number=len(devices), memory=memory // len(devices))
    stats = devices[0].memory_stats() or {}  # None for devices that count nothing
    # Where a device does not say, a low guess, 4 GiB: too low a value only makes fewer runs train at once.
    return Hardware(is_cpu=False, number=len(devices), memory=stats.get("bytes_limit", 4 << 30))


class StepMemory(NamedTuple):
    """Bytes of a single run's step, counted before anything is fused: a compiled program takes less.

    Attributes:
      written: the bytes of all results that depend on the run's parameters; runs that are trained at once
        share the others. This decides what stays in a cache.
      held: the most bytes that are in use at once, by a single run.
    """

    written: int
    held: int

    def times(self, count: int, beside: int = 0) -> "StepMemory":
        """Returns the memory of `count` such steps at once, plus `beside` bytes whatever their number."""
        return StepMemory(count * self.written + beside, count * self.held + beside)


def step_memory(
    function: Callable[..., object], theta: jax.ShapeDtypeStruct, *shared: Any
) -> StepMemory:
    """Returns the memory that the results of a step of a training run take, intermediate results too.

    The step is traced, not run. Its arguments are not counted.

    Args:
      function: the step, a function of theta (p,) and of `shared`.
      theta: the shape and dtype of the run's parameters (p,).
      *shared: the further arguments, which runs share: arrays or pytrees, or their shapes and dtypes.

    Returns:
      The bytes of all results that each run has for itself, beyond what runs that are trained at once share;
      and the most bytes that a single run holds at a time.
    """
    program = jax.make_jaxpr(function)(theta, *shared)
    _, *others = program.in_avals  # the types of the flattened arguments; theta is the first
    # The step of several runs at once, which differ in theta only.
    mapped = jax.vmap(jaxpr_as_fun(program), (0, *(None for _ in others)))

    def written_by(runs: int) -> int:
        """Counts the bytes that a step of this number of runs at once writes."""
        thetas = jax.ShapeDtypeStruct((runs, *theta.shape), theta.dtype)
        return _count_written(jax.make_jaxpr(mapped)(thetas, *others).jaxpr)

    # What a second run adds leaves out the results that both runs share.
    return StepMemory(written_by(2) - written_by(1), held=_count_held(program.jaxpr))


def _count_written(jaxpr: Jaxpr) -> int:
    """Counts the bytes that a program writes: those of the results of all its equations.

    The body of a `lax.scan` counts as often as it is repeated. The body of a `lax.while_loop`, whose number
    of rounds is unknown, counts once. Of a `lax.cond` only the results count, not its branches.
    """
    total = 0
    for equation in jaxpr.eqns:
        inner = _inner_programs(equation)
        if inner:
            total += equation.params.get("length", 1) * sum(map(_count_written, inner))
        else:
            total += sum(map(_count_bytes, equation.outvars))
    return total


def _count_held(jaxpr: Jaxpr) -> int:
    """Returns the most bytes that a program's live results take while any of its equations runs.

    A result is live until its last use. The program's arguments do not count. An equation with programs of
    its own (a loop, a call, branches) adds the most that any of these holds.
    """
    # Variables go by their ids, since some of an equation's inputs (literals) cannot be keys of a dictionary.
    last_use: dict[int, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        last_use |= {id(variable): i for variable in equation.invars}
    last_use |= {id(variable): len(jaxpr.eqns) for variable in jaxpr.outvars}

    live: dict[int, int] = {}
    most = 0
    for i, equation in enumerate(jaxpr.eqns):
        programs = _inner_programs(equation)
        programs += [branch.jaxpr for branch in equation.params.get("branches", ())]
        # Not the sum: programs run one after the other, and of branches only one runs.
        held_inside = max(map(_count_held, programs), default=0)
        live |= {id(result): _count_bytes(result) for result in equation.outvars}
        most = max(most, sum(live.values()) + held_inside)
        # A result that is never used is dropped at once.
        live = {variable: size for variable, size in live.items() if last_use.get(variable, -1) > i}
    return most


def _inner_programs(equation: Any) -> list[Jaxpr]:
    """Returns the programs among an equation's parameters, such as the body of a `lax.scan`.

    The branches of a `lax.cond` are not among them: that parameter is a tuple, which is passed over.
    """
    programs = []
    for value in equation.params.values():
        if hasattr(value, "jaxpr"):  # a ClosedJaxpr
            programs.append(value.jaxpr)
        elif hasattr(value, "eqns"):  # a Jaxpr
            programs.append(value)
    return programs


def _count_bytes(variable: Any) -> int:
    """Returns the bytes of the array that a program's variable stands for."""
    return int(variable.aval.size * variable.aval.dtype.itemsize)
