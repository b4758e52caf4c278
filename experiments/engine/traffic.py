"""The bytes that a compiled program moves between a device's memory and its arithmetic, read in its text.

A fused kernel reads its operands and writes its results; nothing in between reaches the memory. Shapes count
as they lie, with the tiles that a TPU fills up; what lies in a TPU's scratch memory is free.
"""

import functools
import math
import re
from collections import Counter
from typing import NamedTuple

_BYTES = {"pred": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}
_BYTES |= {"s8": 1, "u8": 1, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)")
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota")
_SLICES = ("dynamic-slice", "gather", "slice")
_CALLED = re.compile(r"(?:calls|to_apply|body|branch_computations)=\{?([^\s,}]*(?:, %[^\s,}]*)*)")


class Instruction(NamedTuple):
    """A line of a program: its name, the type of its result, its operation, its operands' names, what follows
    them, and whether it is the result."""

    name: str
    type: str
    operation: str
    operands: list[str]
    rest: str
    is_root: bool


class HloProgram(NamedTuple):
    """A compiled program: its computations by name, and the name of the one that is called."""

    computations: dict[str, list[Instruction]]
    entry: str


def parsed(text: str) -> HloProgram:
    """The program of XLA's text."""
    computations: dict[str, list[Instruction]] = {}
    entry, own = "", computations.setdefault("", [])
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            entry = name if line.startswith("ENTRY ") else entry
            own = computations.setdefault(name, [])
        elif found := _INSTRUCTION.match(line):
            name, kind, operation, rest = found.groups()
            inside, outside = _closed(rest)
            names = re.findall(r"%([\w.\-]+)", inside)
            own.append(Instruction(name, kind, operation, names, inside + outside, " ROOT " in line[:9]))
    return HloProgram(computations, entry)


def _closed(rest: str) -> tuple[str, str]:
    """What is inside an operation's parentheses, and what follows them."""
    depth = 1
    for i, letter in enumerate(rest):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return rest[:i], rest[i:]
    return rest, ""


def size(kind: str) -> int:
    """The bytes of a result in a device's memory."""
    return sum(_laid_out(*found) for found in _SHAPE.findall(kind))


def _laid_out(dtype: str, dims: str, layout: str) -> int:
    """The bytes of an array, filled up to whole tiles."""
    space = re.search(r"S\((\d+)\)", layout)
    if dtype not in _BYTES or (space and space[1] != "0"):
        return 0
    shape = [int(n) for n in dims.split(",") if n]
    tile = re.search(r"T\(([\d,]+)\)", layout)
    if tile and shape:
        order = [int(axis) for axis in layout.split(":")[0].split(",") if axis]
        for axis, length in zip(order, reversed([int(n) for n in tile[1].split(",")]), strict=False):
            shape[axis] = -(-shape[axis] // length) * length
    return _BYTES[dtype] * math.prod(shape)


def moved(program: HloProgram, loops: int) -> float:
    """The bytes that a program moves; a loop whose repetitions the data decide is repeated `loops` times."""
    return _moved(program, program.entry, loops)


def _moved(program: HloProgram, name: str, loops: int) -> float:
    """Of a computation."""
    own = program.computations[name]
    types = {one.name: one.type for one in own}
    return sum(_bytes(program, one, types, loops) for one in own)


def _bytes(program: HloProgram, one: Instruction, types: dict[str, str], loops: int) -> float:
    """Of an instruction."""
    kind = one.operation
    if kind in _FREE or kind.endswith("-done"):
        return 0
    if kind in ("while", "call", "conditional"):
        inner = [_moved(program, called, loops) for called in _called(one)]
        return repetitions(program, one, loops) * max(inner) if inner else 0
    if kind in _SLICES:
        return 2 * size(one.type)
    if kind == "dynamic-update-slice":
        return 2 * size(types[one.operands[1]])
    if kind == "fusion":
        return _fusion(program, one, types)
    if kind == "slice-start":
        return _laid_out(*_SHAPE.findall(re.sub(r"S\(\d+\)", "", one.type))[-2])
    result = _first(one.type) if kind.endswith("-start") or "__cu" in one.rest else size(one.type)
    return result + sum(size(types[name]) for name in set(one.operands))


def _first(kind: str) -> int:
    """Of a tuple's first array: the rest is a kernel's workspace, or what it reads."""
    found = _SHAPE.search(kind)
    return _laid_out(*found.groups("")) if found else 0


def repetitions(program: HloProgram, one: Instruction, loops: int) -> int:
    """How often a loop is repeated: as the compiler says, or as its condition limits a counter; else
    `loops`."""
    if one.operation != "while":
        return 1
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', one.rest):
        return int(known[1])
    condition = re.search(r"condition=%?([\w.\-]+)", one.rest)
    lines = program.computations[condition[1]] if condition else []
    ends = [int(end[1]) for line in lines if (end := re.match(r"(\d+)\)", line.rest)) and line.type[0] == "s"]
    counted = any("direction=LT" in line.rest for line in lines)
    return ends[0] if counted and len(ends) == 1 else loops


def _called(one: Instruction) -> list[str]:
    """The computations that an instruction calls, but for a loop's condition."""
    return [name.strip(" %") for found in _CALLED.findall(one.rest) for name in found.split(",")]


def _fusion(program: HloProgram, one: Instruction, types: dict[str, str]) -> float:
    """Of a fused kernel: what it cuts out of an operand is read, and what it writes into one is written."""
    inside = program.computations[_called(one)[0]]
    users: dict[str, list[Instruction]] = {}
    for inner in inside:
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    kinds = {inner.name: inner.type for inner in inside}
    arguments = [inner for inner in inside if inner.operation == "parameter"]
    arguments.sort(key=lambda inner: int(inner.rest.split(")")[0]))
    pairs = zip(arguments, one.operands, strict=False)
    reads = sum(_read(inner.name, users, kinds, size(types[name])) for inner, name in pairs)
    updates = [inner for inner in inside if inner.operation == "dynamic-update-slice"]
    replaced = sum(size(inner.type) - size(kinds[inner.operands[1]]) for inner in updates)
    return reads + max(size(one.type) - replaced, 0)


def _read(name: str, users: dict[str, list[Instruction]], kinds: dict[str, str], whole: int) -> int:
    """The bytes that a kernel reads of an operand."""
    own = users.get(name, [])
    if own and all(user.operation == "dynamic-update-slice" and user.operands[0] == name for user in own):
        return 0
    if own and all(user.operation in _SLICES and user.operands[0] == name for user in own):
        return min(whole, sum(size(kinds[user.name]) for user in own))
    return whole


def operations(program: HloProgram, loops: int) -> Counter[str]:
    """How often each operation, or library call, is done, fused or not."""

    @functools.cache
    def count(name: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in program.computations[name]:
            target = re.search(r'custom_call_target="([^"]*)"', one.rest)
            found[target[1] if target else one.operation] += 1
            for called in _called(one):
                for operation, times in count(called).items():
                    found[operation] += repetitions(program, one, loops) * times
        return found

    return count(program.entry)
