"""Fields of settings. `described` declares a field with its default, help and limits.

This declaration determines flags, `--help`, validation, keywords and identities in the store.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple, get_type_hints

from audit.errors import InputError, require_type, shown

AUTO = "auto"  # the value that selects the model's default number
MAX_SEED = 2**32 - 1


class FieldLimits(NamedTuple):
    """The allowed values of a field: a set of strings, or numbers within bounds.

    Attributes:
      least, most: inclusive bounds on numbers.
      above, below: exclusive bounds on numbers.
      choices: the allowed strings; if empty, every string is allowed.
      zero_too: True to allow 0 even if it lies outside the bounds.
    """

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: tuple[str, ...] = ()
    zero_too: bool = False

    def allow(self, value: Any) -> bool:
        """Returns True if a string or number is allowed."""
        if self.choices:
            return value in self.choices
        if isinstance(value, str):  # a field without choices allows any string
            return True
        if self.zero_too and value == 0:
            return True
        return bool(self.least <= value <= self.most and self.above < value < self.below)

    def __str__(self) -> str:
        """Returns the advice for an error message, such as "give 1 to 10".

        Fields that set `above` set neither `least` nor `most`.
        """
        if self.choices:
            return f"choose one of {', '.join(self.choices)}"
        if self.above > -math.inf:
            bounds = f"a number above {_format_bound(self.above)}"
        elif self.most < math.inf:
            bounds = f"{_format_bound(self.least)} to {_format_bound(self.most)}"
        else:
            bounds = f"at least {_format_bound(self.least)}"
        if self.below < math.inf:
            bounds += f", below {_format_bound(self.below)}"
        zero = "0, or " if self.zero_too else ""
        return f"give {zero}{bounds}"


class Field(NamedTuple):
    """A field of a setting.

    Attributes:
      name: the keyword.
      flag: the flag, without dashes.
      default: the default; None if it depends on the model, or if the field is unset by default.
      help: the text in --help.
      always, auto, has_flag: see `described`.
    """

    name: str
    flag: str
    kind: type
    default: Any
    help: str
    limits: FieldLimits
    always: bool = False
    auto: bool = False
    has_flag: bool = True

    def require(self, value: Any) -> None:
        """Raises InputError if a value is not allowed."""
        if not self.limits.allow(value):
            unknown = " is unknown" if self.limits.choices else ""
            raise InputError(f"`{self.name}={shown(value)}`{unknown}: {self.limits}")


def described(
    help_text: str,
    *,
    default: Any = dataclasses.MISSING,
    usual: Any = None,
    flag: str = "",
    always: bool = False,
    auto: bool = False,
    has_flag: bool = True,
    **limits: Any,
) -> Any:
    """Returns a `dataclasses.field` with a help text, a flag and limits.

    Args:
      default: the default in the dataclass. It must never change, because stored settings omit fields with
        this value.
      usual: for a field without `default`, its value if no flag or keyword sets it. It may change, because
        stored settings include it.
      flag: the name of the flag; if empty, the field name.
      always: True if identities in the store include the field even when it has its default value.
      auto: True if the flag also accepts the value `auto`.
      has_flag: False if the field is only a Python keyword argument.
      **limits: the fields of `FieldLimits`.
    """
    field = Field(
        name="",  # `declared` fills in the name and type, and replaces `usual` by any `default`
        flag=flag,
        kind=object,
        default=usual,
        help=help_text,
        limits=FieldLimits(**limits),
        always=always,
        auto=auto,
        has_flag=has_flag,
    )
    return dataclasses.field(default=default, metadata={"field": field})


@functools.cache  # because sweeps make thousands of settings
def declared(kind: type) -> dict[str, Field]:
    """Returns the fields that a dataclass declares with `described`, keyed by name, in order.

    A field without a default in the dataclass takes it from `usual` (see `described`).
    """
    fields = {}
    kinds = get_type_hints(kind)  # resolves string annotations
    for attribute in dataclasses.fields(kind):
        if "field" not in attribute.metadata:
            continue
        field: Field = attribute.metadata["field"]
        default = attribute.default
        if default is dataclasses.MISSING:
            default = field.default
        fields[attribute.name] = field._replace(
            name=attribute.name,
            flag=field.flag or attribute.name,
            kind=kinds[attribute.name],
            default=default,
        )
    return fields


def deciding(part: Any) -> dict[str, Any]:
    """Returns the values that identify a setting or one of its parts (a dataclass), keyed by field name.

    Fields with default values are omitted unless declared with `always`.
    """
    known = declared(part.__class__)
    identity = {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        is_always_in = field.name in known and known[field.name].always
        # Without a default, `field.default` is MISSING, which differs from any value.
        if is_always_in or value != field.default:
            identity[field.name] = value
    return identity


def require_fields(part: Any) -> None:
    """Raises InputError if a field of a setting or its parts has a wrong type or value."""
    known = declared(part.__class__)
    kinds = get_type_hints(type(part))
    for field in dataclasses.fields(part):
        name = field.name
        value = getattr(part, name)
        require_type(name, value, kinds[name])
        if name in known:
            known[name].require(value)
        if dataclasses.is_dataclass(value):
            require_fields(value)


def _format_bound(number: float) -> str:
    """Formats a bound, as in "10,000" and "1e-6" (Python writes "1e-06")."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
