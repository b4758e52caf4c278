"""Fields of settings, each declared once by `described`: default, help, limits or choices, and group.

Flags and `--help`, validation, keywords, identities in the store and the tests of bad inputs follow from it.
"""

import dataclasses
import math
import re
from typing import Any, NamedTuple

from audit.errors import require
from audit.values import require_type, shown

AUDITED, ADVERSARY, DP_SGD = "what is audited", "adversary", "DP-SGD"  # groups in --help
AUTO = "auto"  # as many as the model takes
MOST_SEED = 2**32 - 1


class FieldLimits(NamedTuple):
    """A field's values: one of the choices, or a number in [least, most], (above, below); or 0. numbers_too:
    beside choices, whole numbers from 1, as text."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    zero_too: bool = False
    numbers_too: bool = False

    def hold(self, value: Any) -> bool:
        """Whether the value is one of them; a text without choices always is."""
        if self.choices or isinstance(value, str):
            return not self.choices or value in self.choices or (self.numbers_too and _is_whole(value))
        within = self.least <= value <= self.most and self.above < value < self.below
        return within or (self.zero_too and value == 0)

    def __str__(self) -> str:
        if self.choices:
            return f"choose one of {', '.join(self.choices)}{', or a whole number from 1' * self.numbers_too}"
        least, most, above, below = map(_shown, (self.least, self.most, self.above, self.below))
        if self.above > -math.inf:
            end = f", at most {most}" * (self.most < math.inf) + f", below {below}" * (self.below < math.inf)
            said = f"a {'' if end else 'finite '}number above {above}{end}"
        elif self.most < math.inf:
            said = f"{least} to {most}"
        else:
            said = f"{least} to below {below}" if self.below < math.inf else f"at least {least}"
        return f"give {'0, or ' * self.zero_too}{said}"


class Field(NamedTuple):
    """A field as people meet it: its name as a keyword and as a flag; a default of None is the model's own.

    always: it is part of every identity, even at its default. auto: its flag also takes `auto`.
    """

    name: str
    flag: str
    kind: type
    default: Any
    help: str
    group: str = ""
    limits: FieldLimits = FieldLimits()
    always: bool = False
    auto: bool = False

    def require(self, value: Any) -> None:
        """Raises InputError, naming the field, the value and its limits, for a value beyond these."""
        unknown = " is unknown" if self.limits.choices else ""
        require(self.limits.hold(value), f"`{self.name}={shown(value)}`{unknown}: {self.limits}")


def described(
    help_text: str,
    *,
    default: Any = dataclasses.MISSING,
    usual: Any = None,
    flag: str = "",
    group: str = "",
    always: bool = False,
    auto: bool = False,
    **limits: Any,
) -> Any:
    """A dataclass's field with its help, its flag's name where that is another, and its limits, the
    fields of `FieldLimits`.

    A `default` is left out of identities, so that it can never change; a `usual` value, that of a flag or a
    keyword which is not given, is always a part of them. The group in --help is by default the class's;
    always and auto are as in `Field`.
    """
    field = Field("", flag, object, usual, help_text, group, FieldLimits(**limits), always, auto)
    return dataclasses.field(default=default, metadata={"field": field})


def declared(kind: type) -> dict[str, Field]:
    """The described fields of a dataclass, by name in the order of their declaration."""
    found = {}
    for one in dataclasses.fields(kind):
        if "field" in one.metadata:
            field: Field = one.metadata["field"]
            assert isinstance(one.type, type)
            found[one.name] = field._replace(
                name=one.name,
                flag=field.flag or one.name,
                kind=one.type,
                default=field.default if one.default is dataclasses.MISSING else one.default,
                group=field.group or getattr(kind, "group", ""),
            )
    return found


def deciding(part: Any) -> dict[str, Any]:
    """A setting's fields that are not at their default: its identity."""
    always = {name for name, field in declared(type(part)).items() if field.always}
    values = {field.name: (getattr(part, field.name), field.default) for field in dataclasses.fields(part)}
    return {name: value for name, (value, default) in values.items() if name in always or value != default}


def require_fields(part: Any) -> None:
    """Raises InputError for the first field of a setting, or of its parts, that is beyond its limits."""
    for name, field in declared(type(part)).items():
        field.require(getattr(part, name))
    for whole in dataclasses.fields(part):
        if dataclasses.is_dataclass(getattr(part, whole.name)):
            require_fields(getattr(part, whole.name))


def require_types(part: Any) -> None:
    """Raises InputError for a field whose value is of another type, as a foreign file can have it."""
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        assert isinstance(field.type, type)
        require_type(field.name, value, field.type)
        if dataclasses.is_dataclass(value):
            require_types(value)


def _is_whole(text: Any) -> bool:
    """Whether it is a whole number from 1 as text, without leading zeros."""
    return isinstance(text, str) and re.fullmatch("[1-9][0-9]{0,8}", text) is not None


def _shown(number: float) -> str:
    """A limit as people write it: 10,000, 1e-6, 2^32 - 1."""
    if number == MOST_SEED:
        return "2^32 - 1"
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
