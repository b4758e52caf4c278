"""A setting's fields as flags: name, type, default and help of each, from where the field is defined."""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from audit import zoo
from audit.errors import require
from audit.settings.adversaries import ADVERSARIES
from audit.settings.make import parts
from audit.settings.setting import DEFAULTS, Setting, require_type


class Field(NamedTuple):
    """A field of a setting, by its name there and by its flag's; a default of None is the model's own."""

    name: str
    flag: str
    kind: type
    default: Any
    help: str


@cache
def fields() -> dict[str, Field]:
    """Every field, by name."""
    return {field.name: field for field in _fields()}


def by_field(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values by a setting's fields from values by flags or fields; insertions become steps. Raises InputError
    for a name that is neither."""
    by_flag = {field.flag: field.name for field in fields().values()}
    unknown = sorted(set(settings) - set(by_flag) - set(fields()))
    known = f"choose of {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {known}")
    values = {by_flag.get(name, name): value for name, value in settings.items()}
    if values.get("insertions") is not None and values.get("steps") is None:
        insertions = values.pop("insertions")
        require_type("insertions", insertions, int)
        values["steps"] = insertions * max(values.get("periodicity") or 1, 1)
    return values


def _fields() -> Iterator[Field]:
    yield Field("model", "model", str, "fcnn", f"{_models()}.")
    yield Field("adversary", "adversary", str, "gc_s", f"{_choice(list(ADVERSARIES))}.")
    yield Field("insertions", "insertions", int, 250, "Insertions; training takes insertions * k steps.")
    for part in [*parts(), Setting]:
        yield from map(_field, (f for f in dataclasses.fields(part) if "help" in f.metadata))


def _field(field: "dataclasses.Field[Any]") -> Field:
    """A dataclass's field as a flag; steps follow from the insertions where they are not given."""
    default = DEFAULTS.get(field.name) if field.default is dataclasses.MISSING else field.default
    flag, kind = field.metadata["flag"] or field.name, field.type
    assert isinstance(kind, type)
    return Field(field.name, flag, kind, None if field.name == "steps" else default, field.metadata["help"])


def _models() -> str:
    """The models by data set."""
    by_data: dict[str, list[str]] = {}
    for task in zoo.tasks().values():
        by_data.setdefault(task.data.label, []).append(task.name)
    return "; ".join(f"{_choice(names)} ({data})" for data, names in by_data.items())


def _choice(names: list[str]) -> str:
    """a, b or c."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
