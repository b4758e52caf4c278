"""Settings from flat names and values, as flags, callers and old stores give them, and from identities."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from audit.errors import require
from audit.settings.adversaries import ADVERSARIES, GC_S_VARIANTS, OwnAdversary, adversary_row
from audit.settings.setting import DEFAULTS, WHOLE, DpSgdFields, ScheduleFields, Setting, flat
from audit.zoo import task

AUTO = "auto"  # as many canaries as the model takes
_LEGACY = ("gc_s_noisy", "gc_s_per_step", "gc_s_simulations")  # GC-S's fields, as they were once named


class Usual(NamedTuple):
    """A model's own defaults."""

    learning_rate: float
    batch_size: int
    clipping: str


def setting_of(model: str, *, insertions: int | None = None, **fields: Any) -> Setting:
    """A task's setting: its learning rate, batch size and fastest clipping, GC-S, 250 steps, where no field
    says otherwise. None means: as usual. `insertions` * periodicity steps are an alternative to `steps`.

    Raises InputError for an unknown model, field or adversary.
    """
    row = task(model)
    if insertions is not None and fields.get("steps") is None:
        require(insertions >= 1, f"`insertions={insertions}`: give at least 1")
        fields["steps"] = insertions * max(fields.get("periodicity") or 1, 1)
    return make_setting(model, Usual(row.learning_rate, row.batch_size, row.clipping[0]), fields)


def make_setting(model: str, usual: Usual, fields: Mapping[str, Any]) -> Setting:
    """The setting of any model; fields of adversaries other than the chosen one are not looked at."""
    said = {name: value for name, value in translated(fields).items() if value is not None}
    unknown = sorted(set(said) - set(field_names()))
    known = f"choose of {', '.join(sorted(set(field_names())))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {known}")
    values = {**usual._asdict(), **DEFAULTS, "adversary": "gc_s", **said}
    adversary = values["adversary"]
    if not isinstance(adversary, OwnAdversary):
        known = f"choose one of {', '.join(ADVERSARIES)}"
        require(adversary in ADVERSARIES, f"`adversary={adversary}` is unknown: {known}")
        adversary = _part(ADVERSARIES[adversary].fields, values)
    return Setting(
        model,
        adversary,
        _part(DpSgdFields, values),
        _part(ScheduleFields, values),
        **{name: values[name] for name in ("seed", *WHOLE) if name in values},
    )


def changed(setting: Setting, **fields: Any) -> Setting:
    """The setting with other values of some fields."""
    usual = Usual(*(getattr(setting.mechanism, name) for name in Usual._fields))
    kept = _without_model(flat(setting))
    if isinstance(setting.adversary, OwnAdversary):
        for field in dataclasses.fields(setting.adversary):
            del kept[field.name]
        kept["adversary"] = setting.adversary
    return make_setting(setting.model, usual, {**kept, **fields})


def from_identity(config: Mapping[str, Any]) -> Setting:
    """The setting that `identity` describes; what it leaves out is at its default."""
    mechanism, adversary = dict(config["mechanism"]), dict(config["adversary"])
    mechanism.pop("name")
    fields = adversary_row(adversary.pop("name")).fields
    whole = {name: config[name] for name in ("seed", *WHOLE) if name in config}
    schedule = ScheduleFields(**config["schedule"])
    return Setting(config["model"], fields(**adversary), DpSgdFields(**mechanism), schedule, **whole)


def field_names() -> Iterator[str]:
    """Every field that a flat description may name."""
    yield "adversary"
    for part in parts():
        yield from (field.name for field in dataclasses.fields(part))
    yield from ("seed", *WHOLE)


def parts() -> list[type]:
    """The parts that a setting can be made of, all adversaries' among them."""
    return [DpSgdFields, ScheduleFields, *(row.fields for row in ADVERSARIES.values())]


def translated(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with GC-S's variant in one name."""
    found = {name: value for name, value in fields.items() if name not in _LEGACY}
    if "gc_s_noisy" in fields or "gc_s_per_step" in fields:
        named = (bool(fields.get("gc_s_noisy", False)), bool(fields.get("gc_s_per_step", True)))
        found["gc_s"] = next(name for name, variant in GC_S_VARIANTS.items() if variant == named)
    if "gc_s_simulations" in fields:
        found["simulations"] = fields["gc_s_simulations"]
    return found


def _part(kind: type, values: Mapping[str, Any]) -> Any:
    """A part, of the values that are its fields."""
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def _without_model(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields but for the model's name."""
    return {name: value for name, value in fields.items() if name != "model"}
