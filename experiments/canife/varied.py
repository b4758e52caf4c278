"""Several settings at once: fields with several values each, every combination a setting of its own.
Importing it starts no JAX."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from audit.errors import InputError, require
from experiments.canife import attacked as settings
from experiments.canife.attacked import Attacked

Value = str | int | float | bool
MOST_FIELDS, MOST_SETTINGS = 2, 200
SEED, ROUND = "seed", "round"
_EXAMPLE = "start=random,sample;pool=64,128;seed=0,1"
_TRUTHS = {"true": True, "false": False}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


class Varied(NamedTuple):
    """A field and the values that it takes."""

    name: str
    values: tuple[Value, ...]


class VariedGrid(NamedTuple):
    """What is varied: up to two fields, and the seeds that are averaged (none: the setting's own alone)."""

    fields: tuple[Varied, ...]
    seeds: tuple[Value, ...]


class Combination(NamedTuple):
    """A setting of a grid, and the values of the grid's fields there, in the grid's order."""

    values: tuple[Value, ...]
    attacked: Attacked


class Layout(NamedTuple):
    """curve: the field that tells curves apart, or empty. x: the field on the x axis, or `round`."""

    curve: str
    x: str

    @property
    def over_rounds(self) -> bool:
        """Whether a training's measured rounds are the x axis."""
        return self.x == ROUND


def grid(text: str) -> VariedGrid:
    """The grid of "field=value,value;field=value"; raises InputError for the first thing that is wrong."""
    require(text.strip(), f"`vary=`: name fields and values, as in {_EXAMPLE}")
    found = [_varied(part) for part in text.split(";")]
    names = [one.name for one in found]
    for name in names:
        require(names.count(name) == 1, f"`vary`: {name} is there twice: list its values together")
    fields = tuple(one for one in found if one.name != SEED)
    given = ", ".join(one.name for one in fields)
    require(
        len(fields) <= MOST_FIELDS,
        f"`vary`: {given}: vary one or two fields beside {SEED}, curves and x axis; set the others by flags",
    )
    count = math.prod(len(one.values) for one in found)
    require(count <= MOST_SETTINGS, f"`vary`: {count:,} settings: give fewer values, {MOST_SETTINGS} at most")
    return VariedGrid(fields, tuple(value for one in found if one.name == SEED for value in one.values))


def points(varied: VariedGrid, given: dict[str, Any], said: Collection[str]) -> list[Combination]:
    """Every setting of a grid, beside all fields as given, of which somebody said some; the seeds of a
    combination follow each other. Raises InputError where a varied field is also said."""
    names = [one.name for one in varied.fields] + [SEED] * bool(varied.seeds)
    for name in names:
        require(name not in said, f"`{name}={given[name]}` is also in `vary`: drop one of the two")
    seeds = varied.seeds or (given[SEED],)
    combinations = itertools.product(*(one.values for one in varied.fields))
    found = []
    for values, seed in itertools.product(combinations, seeds):
        own = {**dict(zip(names, values, strict=False)), SEED: seed}
        found.append(Combination(values, settings.asked({**given, **own}, [*said, *own])))
    return found


def layout(varied: VariedGrid, found: Sequence[Combination]) -> Layout:
    """How a grid's settings are drawn: of two fields the first tells curves apart and the second is the x
    axis. Otherwise the measured rounds are, or the one field where a training has one measured round."""
    names = [field.name for field in varied.fields]
    several = any(len(point.attacked.measured()) > 1 for point in found)
    if not names or len(names) == 1 and several:
        names.append(ROUND)
    *curve, x = names
    return Layout("".join(curve), x)


def _varied(part: str) -> Varied:
    """One "field=value,value"."""
    name, _, listed = (piece.strip() for piece in part.partition("="))
    kinds = {field.name: field.type for field in dataclasses.fields(Attacked)}
    require(name in kinds, f"`vary`: {name!r} is no field: choose among {', '.join(kinds)}")
    require(listed, f"`vary`: {name} has no values: write them as in {_EXAMPLE}")
    values = tuple(_value(name, kinds[name], text.strip()) for text in listed.split(","))
    for value in values:
        require(values.count(value) == 1, f"`vary`: {name}={value} is there twice: drop one")
    return Varied(name, values)


def _value(name: str, kind: Any, text: str) -> Value:
    """A value of a field of that kind."""
    if kind is str:
        require(text, f"`vary`: {name} has an empty value: write values as in {_EXAMPLE}")
        return text
    try:
        value: Value = _TRUTHS[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise InputError(f"`vary`: {name}={text!r}: give {_KINDS[kind]}") from None
    return value
