"""Settings from flat names and values, as flags and callers give them, and from identities."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from audit.errors import require
from audit.settings.adversaries import ADVERSARIES, OwnAdversary, SphereFields, adversary_row
from audit.settings.fields import AUTO, Field, FieldLimits, declared, require_fields
from audit.settings.setting import (
    FIRST,
    LAST,
    MOST_STEPS,
    AdversaryFields,
    DpSgdFields,
    ScheduleFields,
    Setting,
    flat,
)
from audit.values import plain, require_type
from audit.zoo import task, tasks

P = TypeVar("P", AdversaryFields, DpSgdFields, ScheduleFields)


class Usual(NamedTuple):
    """A model's own defaults."""

    learning_rate: float
    batch_size: int
    clipping: str


@cache
def fields(kind: type = Setting) -> dict[str, Field]:
    """Every field that decides a setting of that kind, by name: an audit's are its parts' and all
    adversaries', `insertions` a way to give its steps."""
    if kind is not Setting:
        return declared(kind)
    by_data: dict[str, list[str]] = {}
    for row in tasks().values():
        by_data.setdefault(row.data.label, []).append(row.name)
    models = "; ".join(f"{_choice(names)} ({data})" for data, names in by_data.items())
    audited, attack, names = ScheduleFields.group, AdversaryFields.group, tuple(ADVERSARIES)
    adversaries = "; ".join(f"{name}: {row.canary}" for name, row in ADVERSARIES.items()) + "."
    length = "Insertions; training takes insertions * k steps."
    ways = (
        Field("model", "model", str, "fcnn", f"{models}.", audited, FieldLimits(choices=tuple(tasks()))),
        Field("adversary", "adversary", str, "gc_s", adversaries, attack, FieldLimits(choices=names)),
        Field("insertions", "insertions", int, 250, length, audited, FieldLimits(least=1, most=MOST_STEPS)),
    )
    found = {field.name: field for field in ways}
    for part in (DpSgdFields, ScheduleFields, *(row.fields for row in ADVERSARIES.values()), Setting):
        found |= declared(part)
    return found


def setting_of(model: str, **given: Any) -> Setting:
    """A task's setting: its learning rate, batch size and fastest clipping, GC-S, 250 steps, where nothing
    else is given; `canaries="auto"` are the model's.

    Raises InputError as `make_setting`, and for an unknown model.
    """
    require_type("model", model, str)
    row = task(model)
    if isinstance(given.get("canaries"), str) and given["canaries"] == AUTO:
        fresh = given.get("adversary") == SphereFields.name
        given["canaries"] = row.directions if fresh else row.canaries
    return make_setting(model, Usual(row.learning_rate, row.batch_size, row.clipping[0]), given)


def make_setting(model: str, usual: Usual, given: Mapping[str, Any]) -> Setting:
    """The setting of any model, from values by the names of fields or of their flags.

    None means: as usual. `adversary` is a name, or fields of one. `insertions` * periodicity steps are an
    alternative to `steps`. Of adversaries' fields only the chosen one's are looked at, but for their types;
    NumPy's numbers are plain ones. Raises InputError for what is no field or beyond its limits.
    """
    require_type("model", model, str)
    said = _by_field(given)
    if type(said.get("insert")) is int:
        said["insert"] = str(said["insert"])
    own = isinstance(said.get("adversary"), AdversaryFields)
    for name, value in said.items():
        if name != "adversary" or not own:
            require_type(name, value, fields()[name].kind)
    both = f"`steps={said.get('steps')}` and `insertions={said.get('insertions')}`"
    require(not {"steps", "insertions"} <= set(said), f"{both} say the same: drop one")
    defaults = {name: field.default for name, field in fields().items() if field.default is not None}
    values = {**defaults, **usual._asdict(), **said}
    if "steps" not in said:
        default = values["insertions"]
        values["steps"] = _steps(default, values["periodicity"]) if "insertions" in said else default
    fields()["insert"].require(values["insert"])
    values["insert"] = _spelt(values["insert"], values["periodicity"])
    adversary = values["adversary"]
    if not own:
        fields()["adversary"].require(adversary)
        adversary = _part(ADVERSARIES[adversary].fields, values)
    parts = _part(DpSgdFields, values), _part(ScheduleFields, values)
    setting = Setting(model, adversary, *parts, **{name: values[name] for name in declared(Setting)})
    require_fields(setting)
    return setting


def _part(kind: type[P], values: Mapping[str, Any]) -> P:
    return kind(**{name: values[name] for name in declared(kind)})


def _by_field(given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of fields, of all that is not None."""
    by_flag = {field.flag: name for name, field in fields().items()}
    unknown = sorted(set(given) - set(by_flag) - set(fields()))
    known = f"choose of {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {known}")
    found = {by_flag.get(name, name): plain(value) for name, value in given.items()}
    return {name: value for name, value in found.items() if value is not None}


def _steps(insertions: int, periodicity: int) -> int:
    """The steps that hold so many insertions."""
    fields()["insertions"].require(insertions)
    fields()["periodicity"].require(periodicity)
    message = f"`insertions={insertions}` times `periodicity={periodicity}`"
    require(insertions * periodicity <= MOST_STEPS, f"{message}: give at most {MOST_STEPS:,} steps")
    return insertions * periodicity


def _spelt(insert: str, periodicity: int) -> str:
    """The one spelling of a step of a period."""
    number = "1" if insert == FIRST else insert
    return {"1": FIRST, str(periodicity): LAST}.get(number, number)


def changed(setting: Setting, **given: Any) -> Setting:
    """The setting with other values of some fields."""
    usual = Usual(*(getattr(setting.mechanism, name) for name in Usual._fields))
    replaced = {"model", *(["steps"] if "insertions" in given else [])}
    values = {name: value for name, value in flat(setting).items() if name not in replaced}
    if isinstance(setting.adversary, OwnAdversary):
        values = {name: value for name, value in values.items() if name in fields()}
        values["adversary"] = setting.adversary
    return make_setting(setting.model, usual, {**values, **given})


def from_identity(config: Mapping[str, Any]) -> Setting:
    """The setting that `identity` describes; what it leaves out is at its default."""
    mechanism, adversary = dict(config["mechanism"]), dict(config["adversary"])
    mechanism.pop("name")
    part = adversary_row(adversary.pop("name")).fields
    own = {name: config[name] for name in declared(Setting) if name in config}
    schedule = ScheduleFields(**config["schedule"])
    return Setting(config["model"], part(**adversary), DpSgdFields(**mechanism), schedule, **own)


def _choice(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
