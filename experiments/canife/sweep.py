"""A grid of settings: fields with several values each, every combination a setting of its own. Importing it
starts no JAX."""

import dataclasses
import itertools
import math
from collections.abc import Collection
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


class Combination(NamedTuple):
    """A setting of a grid, and the values of the grid's fields there, in the grid's order."""

    values: tuple[Value, ...]
    attacked: Attacked


class VariedGrid(NamedTuple):
    """Settings and how they are drawn.

    fields: those that are varied, up to two, beside the seeds that are averaged. curve: the field that tells
    curves apart, or empty. x: the field on the x axis, or `round`. combinations: the seeds of one follow each
    other.
    """

    fields: tuple[str, ...]
    curve: str
    x: str
    combinations: list[Combination]

    @property
    def over_rounds(self) -> bool:
        """Whether a training's measured rounds are the x axis."""
        return self.x == ROUND


def grid(text: str, given: dict[str, Any], said: Collection[str]) -> VariedGrid:
    """The grid of "field=value,value;field=value", beside all fields as given, of which somebody said some.

    Of two fields the first tells curves apart and the second is the x axis. Otherwise the measured rounds
    are, or the one field where a training has one measured round. Raises InputError for the first thing that
    is wrong.
    """
    varied = _varied(text)
    for name in varied:
        require(name not in said, f"`{name}={given[name]}` is also in `vary`: drop one of the two")
    seeds = varied.pop(SEED, (given[SEED],))
    combinations = []
    for values, seed in itertools.product(itertools.product(*varied.values()), seeds):
        own = {**dict(zip(varied, values, strict=True)), SEED: seed}
        combinations.append(Combination(values, settings.asked({**given, **own}, [*said, *own])))
    axes = list(varied)
    several = any(len(one.attacked.measured()) > 1 for one in combinations)
    if not axes or len(axes) == 1 and several:
        axes.append(ROUND)
    *curve, x = axes
    return VariedGrid(tuple(varied), "".join(curve), x, combinations)


def _varied(text: str) -> dict[str, tuple[Value, ...]]:
    """Each field's values, the seeds among them."""
    require(text.strip(), f"`vary=`: name fields and values, as in {_EXAMPLE}")
    parts = [_field_values(part) for part in text.split(";")]
    names = [name for name, _ in parts]
    for name in names:
        require(names.count(name) == 1, f"`vary`: {name} is there twice: list its values together")
    fields = [name for name in names if name != SEED]
    require(
        len(fields) <= MOST_FIELDS,
        f"`vary`: {', '.join(fields)}: vary one or two fields beside {SEED}, curves and x axis; "
        "set the others by flags",
    )
    count = math.prod(len(values) for _, values in parts)
    require(count <= MOST_SETTINGS, f"`vary`: {count:,} settings: give fewer values, {MOST_SETTINGS} at most")
    return {name: values for name, values in sorted(parts, key=lambda part: part[0] == SEED)}


def _field_values(part: str) -> tuple[str, tuple[Value, ...]]:
    """One "field=value,value"."""
    name, _, listed = (piece.strip() for piece in part.partition("="))
    kinds = {field.name: field.type for field in dataclasses.fields(Attacked)}
    require(name in kinds, f"`vary`: {name!r} is no field: choose among {', '.join(kinds)}")
    require(listed, f"`vary`: {name} has no values: write them as in {_EXAMPLE}")
    values = tuple(_value(name, kinds[name], text.strip()) for text in listed.split(","))
    for value in values:
        require(values.count(value) == 1, f"`vary`: {name}={value} is there twice: drop one")
    return name, values


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
