"""Settings from flat names and values, as flags and callers give them, and from identities."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from audit.adversaries.base import AdversaryFields
from audit.adversaries.sphere import SphereFields
from audit.errors import OutdatedError, require
from audit.settings.adversaries import ADVERSARIES, OwnAdversary, adversary_row
from audit.settings.fields import AUTO, Field, FieldLimits, declared, require_fields
from audit.settings.sampler import KNOWN, POISSON, read_sampler
from audit.settings.setting import (
    FIRST,
    LAST,
    MOST_STEPS,
    DpSgdFields,
    ScheduleFields,
    Setting,
    flat,
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
    `insertions` stands in for the steps.

    Args:
      kind: the dataclass of the setting; any other than that of an audit declares all its fields itself.
    """
    if kind is not Setting:
        return declared(kind)

    fields_of_setting = _undeclared_fields()  # model, adversary and insertions
    adversaries = [row.fields for row in ADVERSARIES.values()]
    for part in (DpSgdFields, ScheduleFields, *adversaries, Setting):
        fields_of_setting |= declared(part)
    return fields_of_setting


def _undeclared_fields() -> dict[str, Field]:
    """Returns the fields of an audit's setting that no class declares by `described`, by name.

    Help and choices of `model` and `adversary` come from the catalogues of models and adversaries.
    """
    models_by_data: dict[str, list[str]] = {}
    for task_row in tasks().values():
        models_by_data.setdefault(task_row.data.label, []).append(task_row.name)
    models = "; ".join(f"{_join_by_or(names)} ({data})" for data, names in models_by_data.items())
    canaries = "; ".join(f"{name}: {row.canary}" for name, row in ADVERSARIES.items())

    model = Field(
        name="model",
        flag="model",
        kind=str,
        default="fcnn",
        help=f"{models}.",
        group=ScheduleFields.group,
        limits=FieldLimits(choices=tuple(tasks())),
    )
    adversary = Field(
        name="adversary",
        flag="adversary",
        kind=str,
        default="gc_s",
        help=f"{canaries}.",
        group=AdversaryFields.group,
        limits=FieldLimits(choices=tuple(ADVERSARIES)),
    )
    insertions = Field(
        name="insertions",
        flag="insertions",
        kind=int,
        default=250,
        help="Insertions; training takes insertions * k steps.",
        group=ScheduleFields.group,
        limits=FieldLimits(least=1, most=MOST_STEPS),
    )
    return {field.name: field for field in (model, adversary, insertions)}


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
        periodicity. Of the fields of adversaries only those of the chosen adversary are used; values for
        others need the right type and must be within their limits, too. NumPy's scalars become Python's.
      examples: the number of examples in the data; 0 where it is unknown. It decides the length of an epoch
        for a sampler that is given without a number.

    Raises:
      InputError: a name is no field's and no flag's, or a value has a wrong type or is beyond its limits.
    """
    require_type("model", model, str)
    given_values = _by_field(given)
    if type(given_values.get("insert")) is int:  # the field holds text: "first", "last" or a number
        given_values["insert"] = str(given_values["insert"])
    # Checked as they were given, so that an error's message shows the caller's own value.
    _require_given(given_values)

    values = _fill_in(given_values, usual, examples)
    values["insert"] = _canonical_insert(values["insert"], values["periodicity"])

    adversary = values["adversary"]
    if not isinstance(adversary, AdversaryFields):
        adversary = _make_part(ADVERSARIES[adversary].fields, values)
    setting = Setting(
        model=model,
        adversary=adversary,
        mechanism=_make_part(DpSgdFields, values),
        schedule=_make_part(ScheduleFields, values),
        **_select_declared(Setting, values),
    )
    require_fields(setting)
    return setting


def _require_given(values: Mapping[str, Any]) -> None:
    """Raises InputError for a value of another type than its field's, or beyond the field's limits."""
    for name, value in values.items():
        if name == "adversary" and isinstance(value, AdversaryFields):
            continue  # an adversary may be given as its fields, in place of its name
        require_type(name, value, fields()[name].kind)
        fields()[name].require(value)


def _fill_in(given: Mapping[str, Any], usual: Usual, examples: int) -> dict[str, Any]:
    """Returns the values of a setting's fields by name: given ones, else the model's or the fields' defaults.

    `steps` and `sampler` are always among them. Where `steps` is not given, it follows from `insertions` and
    `periodicity` if `insertions` is given. Otherwise there are as many steps as the default of `insertions`
    says, whatever the period, in whole epochs if the sampler has epochs. Where only `steps` is given,
    `insertions` keeps its default, which nobody reads: a setting does not hold it.

    Args:
      given: the caller's values by field.
      usual: the model's own defaults.
      examples: the number of examples in the data; 0 where it is unknown.

    Raises:
      InputError: both steps and insertions are given, or values that decide them are beyond their limits.
    """
    conflict = f"`steps={given.get('steps')}` and `insertions={given.get('insertions')}`"
    is_given_twice = "steps" in given and "insertions" in given
    require(not is_given_twice, f"{conflict} say the same: drop one")

    values = {}
    for name, field in fields().items():
        if field.default is not None:
            values[name] = field.default
    values |= usual._asdict()
    values |= given

    # The batch size has not been checked yet: it may be 0.
    batches_of_epoch = examples // max(values["batch_size"], 1)
    sampler = read_sampler(values["sampler"], batches_of_epoch)
    values["sampler"] = str(sampler)
    if "insertions" in given:
        values["steps"] = _count_steps(values["insertions"], values["periodicity"])
    elif "steps" not in given:
        values["steps"] = _count_usual_steps(values["insertions"], sampler.batches)
    return values


def _count_usual_steps(usual: int, batches: int) -> int:
    """Returns the default number of steps: `usual`, rounded down to whole epochs, but at least an epoch.

    Args:
      usual: the number of steps without epochs.
      batches: the steps of an epoch; 0 for a sampler without epochs.
    """
    if not batches:
        return usual
    return max(usual // batches, 1) * batches


def _select_declared(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of those fields that a class declares by `described`."""
    return {name: values[name] for name in declared(kind)}


def _make_part(kind: type[P], values: Mapping[str, Any]) -> P:
    """Returns a part of a setting, an object of class `kind`, from the values of all fields by name."""
    return kind(**_select_declared(kind, values))


def _by_field(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a caller's values by the names of their fields, without those that are None.

    The caller may use a flag's name instead, such as k for periodicity. Scalars of NumPy or JAX become
    Python's.

    Raises:
      InputError: a name is neither a field's nor a flag's.
    """
    field_by_flag = {field.flag: name for name, field in fields().items()}
    unknown = sorted(set(given) - set(field_by_flag) - set(fields()))
    choices = f"choose of {', '.join(sorted(field_by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {choices}")

    # Of two names of the same field, as k and periodicity, the later one counts, even if its value is None.
    values = {field_by_flag.get(name, name): plain(value) for name, value in given.items()}
    return {name: value for name, value in values.items() if value is not None}


def _count_steps(insertions: int, periodicity: int) -> int:
    """Returns the number of steps that have this many insertions, one in every `periodicity` steps.

    Raises InputError for more than MOST_STEPS.
    """
    steps = insertions * periodicity
    product = f"`insertions={insertions}` times `periodicity={periodicity}`"
    require(steps <= MOST_STEPS, f"{product}: give at most {MOST_STEPS:,} steps")
    return steps


def _canonical_insert(insert: str, periodicity: int) -> str:
    """Returns the canonical name of the step that inserts in each period of `periodicity` steps.

    It is "last" for the last step of a period, "first" for the first unless that is also the last, and else
    the step's number. So settings that mean the same have the same identity in the store.
    """
    number = "1" if insert == FIRST else insert
    if number == str(periodicity):
        return LAST
    if number == "1":
        return FIRST
    return number


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

    values = flat(setting)
    del values["model"]  # which `make_setting` takes apart from the fields
    if "insertions" in given:
        del values["steps"]
    if isinstance(setting.adversary, OwnAdversary):
        # The fields of a caller's own adversary are no keywords: it is passed on as one object.
        values = {name: value for name, value in values.items() if name in fields()}
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
    mechanism_fields = dict(config["mechanism"])
    del mechanism_fields["name"]  # which is no field: DP-SGD is the only mechanism
    adversary_fields = dict(config["adversary"])
    adversary_kind = adversary_row(adversary_fields.pop("name")).fields
    version = adversary_fields.pop("version", 1)
    if version != adversary_kind.version:
        raise OutdatedError(
            f"scores of version {version} of `adversary={adversary_kind.name}`, where this program makes "
            f"version {adversary_kind.version}: train them again"
        )
    fields_of_setting = {name: config[name] for name in declared(Setting) if name in config}
    # Of the samplers `poisson` and `known` an identity holds only the number; !r writes all its digits.
    if "sampling_rate" in config:
        fields_of_setting["sampler"] = f"{POISSON}:{config['sampling_rate']!r}"
    if "repetitions" in config:
        fields_of_setting["sampler"] = f"{KNOWN}:{config['repetitions']!r}"
    return Setting(
        model=config["model"],
        adversary=adversary_kind(**adversary_fields),
        mechanism=DpSgdFields(**mechanism_fields),
        schedule=ScheduleFields(**config["schedule"]),
        **fields_of_setting,
    )


def _join_by_or(names: Sequence[str]) -> str:
    """Returns names joined by commas and a last "or": "a, b or c"."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} or {names[-1]}"
