"""The upper limit that an accelerator's published numbers set to a compiled program, as a table or JSON.

A device does at most `peak` operations and moves at most `bandwidth` bytes a second; a unit of work that
takes f operations and moves b bytes is done at most min(peak / f, bandwidth / b) times a second on each
(Williams, Waterman and Patterson, 2009, "Roofline: An Insightful Visual Performance Model"). Starting kernels
is free.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from experiments.engine.accelerators import Described
from experiments.engine.ahead import DP_SGD, CompiledTraining
from experiments.engine.forecast import NotTimed, Probe

ASSUMED = 0.4  # of the limit, as a share that well-fed programs reach
_UNITS = {True: "model-steps", False: "client-updates"}


class Limit(NamedTuple):
    """Units a second at most, of all devices together, and what sets the limit: arithmetic or memory."""

    rate: float
    by: str


def limit(compiled: CompiledTraining, devices: Described) -> Limit:
    """The lower of a compiled program's two limits."""
    peak = devices.chip.peaks[compiled.program.precision]
    by_arithmetic = peak / max(compiled.flops, 1.0)
    by_memory = devices.chip.bandwidth / max(compiled.moved, 1.0)
    name = "FLOPs" if by_arithmetic <= by_memory else "bytes"
    return Limit(devices.number * min(by_arithmetic, by_memory), name)


def seconds(compiled: CompiledTraining, devices: Described, share: float = 1.0) -> float:
    """What an audit takes at a share of the limit."""
    return compiled.units / (share * limit(compiled, devices).rate)


def probe(compiled: CompiledTraining, devices: Described) -> Probe:
    """What a measurement would be, at the assumed share of the limit."""
    step = 1 / (ASSUMED * limit(compiled, devices).rate)
    return Probe(step, compiled.models, compiled.seconds)


def not_timed(compiled: CompiledTraining, devices: Described) -> NotTimed:
    """What to say beside such a probe."""
    found = limit(compiled, devices)
    return NotTimed(devices.name, 1 / found.rate, found.by, ASSUMED)


def as_json(found: Sequence[tuple[Described, Sequence[CompiledTraining]]]) -> str:
    """One object: `programs`, an object a program and device."""
    rows = [_fields(compiled, devices) for devices, trainings in found for compiled in trainings]
    return json.dumps({"programs": rows})


def _fields(compiled: CompiledTraining, devices: Described) -> dict[str, Any]:
    """A program's fields; where it does not compile, why."""
    program = compiled.program
    named = {"device": devices.name, **program._asdict(), "compiles": not compiled.failure}
    if compiled.failure:
        return {**named, "failure": compiled.failure}
    bound = limit(compiled, devices)
    return {
        **named,
        "seconds_to_compile": compiled.seconds,
        "models_at_once": compiled.models,
        "bytes_a_device": compiled.memory,
        "bytes_a_model": compiled.own,
        "unit": _UNITS[program.mechanism == DP_SGD],
        "flops_a_unit": compiled.flops,
        "bytes_moved_a_unit": compiled.moved,
        "units_per_second_at_most": bound.rate,
        "limited_by": bound.by,
        "seconds_at_best": seconds(compiled, devices),
        "seconds_at_40_percent": seconds(compiled, devices, ASSUMED),
    }


def as_text(found: Sequence[tuple[Described, Sequence[CompiledTraining]]]) -> str:
    """A table a device and mechanism, in 80 columns."""
    return "\n\n".join("\n".join(_tables(devices, trainings)) for devices, trainings in found)


def _tables(devices: Described, trainings: Sequence[CompiledTraining]) -> Iterator[str]:
    """A device's lines."""
    chip = devices.chip
    count = f"{devices.number} chips, each " if devices.number > 1 else ""
    peaks = ", ".join(f"{name} {_short(peak)}FLOP/s" for name, peak in chip.peaks.items())
    yield f"{devices.name}: {chip.label}, {count}{chip.memory / 1e9:g} GB, {_short(chip.bandwidth)}B/s,"
    yield f"  {peaks}"
    for of_steps, unit in _UNITS.items():
        rows = [one for one in trainings if (one.program.mechanism == DP_SGD) == of_steps]
        if rows:
            yield from ("", *_table(devices, unit, rows))


def _table(devices: Described, unit: str, rows: Sequence[CompiledTraining]) -> Iterator[str]:
    """A mechanism's lines."""
    head = (
        f"{unit:<15}{'compile':>8}{'at once':>8}{'B/model':>8}{'FLOP':>7}{'bytes':>7}{'/s <=':>8}"
        f"{'by':>6}{'best':>7}{'40%':>6}"
    )
    yield from (head, "-" * len(head))
    for one in rows:
        yield _row(one, devices)


def _row(one: CompiledTraining, devices: Described) -> str:
    """A program's line."""
    name = one.program.model
    if one.failure:
        return f"{name:<15} {one.failure}"[:80]
    bound = limit(one, devices)
    return (
        f"{name:<15}{one.seconds:>6.0f} s{one.models:>8,}{_short(one.own):>8}{_short(one.flops):>7}"
        f"{_short(one.moved):>7}{_short(bound.rate):>8}{bound.by:>6}{_clock(seconds(one, devices)):>7}"
        f"{_clock(seconds(one, devices, ASSUMED)):>6}"
    )


def _short(number: float) -> str:
    """Three digits and a prefix, as 1.23M."""
    prefixes = iter(("", "k", "M", "G", "T", "P"))
    prefix = next(prefixes)
    while number >= 999.5 and prefix != "P":
        number, prefix = number / 1000, next(prefixes)
    return f"{number:.3g}{prefix}"


def _clock(time: float) -> str:
    """A time in at most five letters."""
    for unit, length in (("s", 1), ("m", 60), ("h", 3600)):
        if time / length < 99.5 or unit == "h":
            break
    number = time / length
    return f"{number:.1f}{unit}" if number < 9.95 else f"{number:,.0f}{unit}"
