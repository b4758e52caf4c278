"""Settings from flat names and values, as flags and callers give them, and from identities."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from audit.adversaries.base import AdversaryFields
from audit.adversaries.sphere import SphereFields
from audit.errors import OutdatedError, require
from audit.settings.adversaries import ADVERSARIES, OwnAdversary
from audit.settings.fields import (
    ADVERSARY,
    AUDITED,
    AUTO,
    Field,
    FieldLimits,
    declared,
    require_fields,
)
from audit.settings.setting import (
    FIRST,
    KNOWN,
    LAST,
    MOST_STEPS,
    POISSON,
    DpSgdFields,
    ScheduleFields,
    Setting,
    flat,
    read_sampler,
)
from audit.tasks.zoo import task, tasks
from audit.values import plain, require_type

P = TypeVar("P", AdversaryFields, DpSgdFields, ScheduleFields)


class Usual(NamedTuple):
    """A model's own defaults of the fields learning_rate and batch_size."""

    learning_rate: float
    batch_size: int


@cache
def fields(kind: type = Setting) -> dict[str, Field]:
    """Returns every field by which a setting of a kind can be described, by name.

    For an audit's setting these are its own fields, those of its parts and those of all adversaries.
    `insertions` stands in for the steps. Help and choices of `model` and `adversary` come from the catalogues
    of models and adversaries.

    Args:
      kind: the dataclass of the setting; any other than that of an audit declares all its fields itself.
    """
    if kind is not Setting:
        return declared(kind)
    models: dict[str, list[str]] = {}
    for name, row in tasks().items():
        models.setdefault(row.data.label, []).append(name)
    by_data = [f"{', '.join(names)} ({data})" for data, names in models.items()]
    canaries = [f"{name}: {row.canary}" for name, row in ADVERSARIES.items()]
    found = {
        "model": Field(
            "model",
            "model",
            str,
            default="fcnn",
            help=f"{'; '.join(by_data)}.",
            group=AUDITED,
            limits=FieldLimits(choices=tuple(tasks())),
        ),
        "adversary": Field(
            "adversary",
            "adversary",
            str,
            default="gc_s",
            help=f"{'; '.join(canaries)}.",
            group=ADVERSARY,
            limits=FieldLimits(choices=tuple(ADVERSARIES)),
        ),
        "insertions": Field(
            "insertions",
            "insertions",
            int,
            default=250,
            help="Insertions; training takes insertions * k steps.",
            group=AUDITED,
            limits=FieldLimits(least=1, most=MOST_STEPS),
        ),
    }
    for part in (DpSgdFields, ScheduleFields, *ADVERSARIES.values(), Setting):
        found |= declared(part)
    return found


def setting_of(model: str, **given: Any) -> Setting:
    """Returns a setting of one of the repository's models.

    Where nothing else is given, it has the model's learning rate and batch size, the adversary GC-S, and 250
    steps.

    Args:
      model: the model's name.
      **given: values as in `make_setting`. `canaries="auto"` means the number that the catalogue has for the
        model: its number of fresh directions if the adversary draws directions, else its number of canaries.

    Raises:
      InputError: as `make_setting`, and for an unknown model.
    """
    require_type("model", model, str)
    row = task(model)
    canaries = given.get("canaries")
    if isinstance(canaries, str) and canaries == AUTO:
        draws_directions = given.get("adversary") == SphereFields.name
        given["canaries"] = row.directions if draws_directions else row.canaries
    usual = Usual(row.learning_rate, row.batch_size)
    return make_setting(model, usual, given, row.data.examples.number)


def make_setting(model: str, usual: Usual, given: Mapping[str, Any], examples: int = 0) -> Setting:
    """Returns the setting of any model from values by the names of fields, or of their flags.

    Args:
      model: the model's name.
      usual: the model's own defaults.
      given: values by name; None means the default. `adversary` is a name, or an adversary's fields as one
        object. `insertions` may be given in place of `steps`, of which there are then insertions *
        periodicity. Without either there are as many steps as the default of `insertions` says, whatever the
        period, in whole epochs if the sampler has epochs. Of the fields of adversaries only those of the
        chosen adversary are used; values for others need the right type and must be within their limits, too.
        NumPy's scalars become Python's.
      examples: the number of examples in the data; 0 where it is unknown. It decides the length of an epoch
        for a sampler that is given without a number.

    Raises:
      InputError: a name is no field's and no flag's, or a value has a wrong type or is beyond its limits.
    """
    require_type("model", model, str)
    changes = _read(given)
    steps, insertions = changes.get("steps"), changes.get("insertions")
    conflict = f"`steps={steps}` and `insertions={insertions}` say the same: drop one"
    require(steps is None or insertions is None, conflict)

    values = {name: field.default for name, field in fields().items() if field.default is not None}
    values |= usual._asdict() | changes
    # The batch size has not been checked yet: it may be 0.
    sampler = read_sampler(values["sampler"], examples // max(values["batch_size"], 1))
    values["sampler"] = str(sampler)
    periodicity = values["periodicity"]
    values["insert"] = _canonical_insert(values["insert"], periodicity)
    if insertions is not None:
        values["steps"] = insertions * periodicity
        product = f"`insertions={insertions}` times `periodicity={periodicity}`"
        require(values["steps"] <= MOST_STEPS, f"{product}: give at most {MOST_STEPS:,} steps")
    elif steps is None:
        epoch = sampler.batches or 1
        values["steps"] = max(values["insertions"] // epoch, 1) * epoch

    adversary = values["adversary"]
    if not isinstance(adversary, AdversaryFields):
        adversary = _make_part(ADVERSARIES[adversary], values)
    setting = Setting(
        model,
        adversary,
        _make_part(DpSgdFields, values),
        _make_part(ScheduleFields, values),
        **{name: values[name] for name in declared(Setting)},
    )
    require_fields(setting)
    return setting


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a caller's values by the names of their fields, checked, without those that are None.

    The caller may use a flag's name instead, such as k for periodicity. Scalars of NumPy or JAX become
    Python's.
    """
    by_flag = {field.flag: name for name, field in fields().items()}
    unknown = sorted(set(given) - set(by_flag) - set(fields()))
    choices = f"choose of {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {choices}")

    values = {}
    for name, value in given.items():
        field = fields()[by_flag.get(name, name)]
        value = plain(value)
        if field.name == "insert" and type(value) is int:  # the field holds text
            value = str(value)
        if value is None:
            continue
        values[field.name] = value
        if field.name == "adversary" and isinstance(value, AdversaryFields):
            continue
        require_type(field.name, value, field.kind)
        field.require(value)
    return values


def _make_part(kind: type[P], values: Mapping[str, Any]) -> P:
    """Returns a part of a setting, an object of class `kind`, from the values of all fields by name."""
    return kind(**{name: values[name] for name in declared(kind)})


def _canonical_insert(insert: str, periodicity: int) -> str:
    """Returns the canonical name of the step that inserts in each period of `periodicity` steps.

    It is "last" for the last step of a period, "first" for the first unless that is also the last, and else
    the step's number. So settings that mean the same have the same identity in the store.
    """
    number = "1" if insert == FIRST else insert
    if number == str(periodicity):
        return LAST
    return FIRST if number == "1" else number


def changed(setting: Setting, **given: Any) -> Setting:
    """Returns a setting with some fields changed.

    Args:
      setting: the setting to start from, which stays as it is.
      **given: the new values by field or flag, as `make_setting` takes them, but None changes nothing.
        `insertions` replaces the steps.
    """
    given = {name: value for name, value in given.items() if value is not None}
    mechanism = setting.mechanism
    usual = Usual(mechanism.learning_rate, mechanism.batch_size)
    # `make_setting` takes the model apart from the fields. Those of a caller's own adversary are no keywords:
    # it is passed on as one object.
    values = {name: value for name, value in flat(setting).items() if name in fields()}
    del values["model"]
    if "insertions" in given:
        del values["steps"]
    if isinstance(setting.adversary, OwnAdversary):
        values["adversary"] = setting.adversary
    return make_setting(setting.model, usual, {**values, **given})


def from_identity(config: Mapping[str, Any]) -> Setting:
    """Returns the setting that a config describes; fields that the config leaves out have their defaults.

    Args:
      config: a dict as `setting.identity` returns it; further keys are ignored.

    Raises:
      OutdatedError: the scores are of another version of the adversary than this program's.
      KeyError, TypeError, AttributeError or ValueError: the config is not that of an audit.
    """
    mechanism = dict(config["mechanism"])
    del mechanism["name"]  # which is no field: DP-SGD is the only mechanism
    adversary = dict(config["adversary"])
    kinds: dict[str, type[AdversaryFields]] = {**ADVERSARIES, OwnAdversary.name: OwnAdversary}
    kind = kinds[adversary.pop("name")]
    version = adversary.pop("version", 1)
    if version != kind.version:
        raise OutdatedError(
            f"scores of version {version} of `adversary={kind.name}`, where this program makes version "
            f"{kind.version}: train them again"
        )
    own = {name: config[name] for name in declared(Setting) if name in config}
    # Of the samplers `poisson` and `known` an identity holds only the number; !r writes all its digits.
    for name, sampler in (("sampling_rate", POISSON), ("repetitions", KNOWN)):
        if name in config:
            own["sampler"] = f"{sampler}:{config[name]!r}"
    return Setting(
        config["model"],
        kind(**adversary),
        DpSgdFields(**mechanism),
        ScheduleFields(**config["schedule"]),
        **own,
    )
