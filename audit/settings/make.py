"""Settings from flat names and values, as flags and callers give them, and from identities."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

from audit.adversaries.fresh import SphereFields
from audit.adversaries.row import AdversaryFields
from audit.errors import require
from audit.settings.adversaries import ADVERSARIES, OwnAdversary, adversary_row
from audit.settings.fields import AUTO, Field, FieldLimits, declared, require_fields
from audit.settings.sampler import EVERY, KNOWN, POISSON, Sampling, make_known, read_sampler
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
    """A model's own defaults."""

    learning_rate: float
    batch_size: int
    clipping: str


@cache
def fields(kind: type = Setting) -> dict[str, Field]:
    """Returns every field that decides a setting of that kind, by name.

    The fields of an audit's setting are those of its parts and of all adversaries, and ways to give two of
    them: `insertions` for its steps, `sampling_rate` and `repetitions` for its sampler.
    """
    if kind is not Setting:
        return declared(kind)

    fields_of_setting = _undeclared_fields()
    adversaries = [row.fields for row in ADVERSARIES.values()]
    for part in (DpSgdFields, ScheduleFields, *adversaries, Setting):
        fields_of_setting |= declared(part)
    return fields_of_setting


def _undeclared_fields() -> dict[str, Field]:
    """Returns the fields model, adversary and insertions, by name, which no class declares.

    Their help and choices come from the catalogues of models and adversaries.
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
    sampling_rate = Field(
        name="sampling_rate",
        flag="sampling_rate",
        kind=float,
        default=None,
        help="The same as --sampler=poisson:RATE.",
        group=AdversaryFields.group,
        limits=FieldLimits(above=0, most=1),
    )
    repetitions = Field(
        name="repetitions",
        flag="repetitions",
        kind=int,
        default=None,
        help="The same as --sampler=known:N, steps that the adversary knows.",
        group=AdversaryFields.group,
        limits=FieldLimits(least=0, most=MOST_STEPS),
    )
    undeclared = (model, adversary, insertions, sampling_rate, repetitions)
    return {field.name: field for field in undeclared}


def setting_of(model: str, **given: Any) -> Setting:
    """Returns a setting of one of the repository's models.

    Where nothing else is given, it has the model's learning rate, batch size and fastest clipping, GC-S, and
    250 steps.

    Args:
      model: the model's name.
      **given: values as in `make_setting`; `canaries="auto"` means the model's number.

    Raises:
      InputError: as `make_setting`, and for an unknown model.
    """
    require_type("model", model, str)
    row = task(model)
    canaries = given.get("canaries")
    if isinstance(canaries, str) and canaries == AUTO:
        draws_directions = given.get("adversary") == SphereFields.name
        given["canaries"] = row.directions if draws_directions else row.canaries
    usual = Usual(row.learning_rate, row.batch_size, row.clipping[0])
    return make_setting(model, usual, given, row.data.examples.number)


def make_setting(model: str, usual: Usual, given: Mapping[str, Any], examples: int = 0) -> Setting:
    """Returns the setting of any model, from values by the names of fields or of their flags.

    Args:
      model: the model's name.
      usual: the model's own defaults.
      given: values by name. None means: as usual. `adversary` is a name, or fields of an adversary.
        `insertions` is an alternative to `steps`: there are insertions * periodicity of these. Of
        adversaries' fields only the chosen adversary's are used; the others are held to their types.
        NumPy's numbers become Python's.
      examples: how many the data have, if that is known: it gives the epoch of a sampler without a number.

    Raises:
      InputError: a name is of no field, or a value is beyond the field's limits.
    """
    require_type("model", model, str)
    given_values = _by_field(given)
    if type(given_values.get("insert")) is int:
        given_values["insert"] = str(given_values["insert"])
    _require_field_types(given_values)

    values = _fill_in(given_values, usual, examples)
    fields()["insert"].require(values["insert"])
    values["insert"] = _canonical_insert(values["insert"], values["periodicity"])

    adversary = values["adversary"]
    if not isinstance(adversary, AdversaryFields):
        fields()["adversary"].require(adversary)
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


def _require_field_types(values: Mapping[str, Any]) -> None:
    """Raises InputError for a value of another type than its field's."""
    for name, value in values.items():
        if name == "adversary" and isinstance(value, AdversaryFields):
            continue  # instead of its name
        require_type(name, value, fields()[name].kind)


def _fill_in(given: Mapping[str, Any], usual: Usual, examples: int) -> dict[str, Any]:
    """Returns the values of all fields by name: what is given, else the model's defaults, else the fields'.

    Steps follow from insertions where these are given. Raises InputError where both are.
    """
    both = f"`steps={given.get('steps')}` and `insertions={given.get('insertions')}`"
    is_given_twice = "steps" in given and "insertions" in given
    require(not is_given_twice, f"{both} say the same: drop one")

    values = {}
    for name, field in fields().items():
        if field.default is not None:
            values[name] = field.default
    values |= usual._asdict()
    values |= given

    # The batch size is not held to its limits yet: it may be 0.
    sampler = _choose_sampler(given, examples // max(values["batch_size"], 1))
    values["sampler"] = str(sampler)
    if "insertions" in given:
        values["steps"] = _count_steps(values["insertions"], values["periodicity"])
    elif "steps" not in given:
        values["steps"] = _count_usual_steps(values["insertions"], sampler.batches)
    return values


def _choose_sampler(given: Mapping[str, Any], batches: int) -> Sampling:
    """Returns the sampler; a rate, or a number of steps drawn beforehand, may be given in its place.

    Args:
      given: values by name.
      batches: of an epoch of the data; 0 where that is unknown.
    """
    rate = given.get("sampling_rate", 1.0)
    times = given.get("repetitions", 0)
    fields()["sampling_rate"].require(rate)
    fields()["repetitions"].require(times)
    sampler = read_sampler(given.get("sampler", EVERY), batches)
    choices = (sampler, read_sampler(f"{POISSON}:{rate}"), make_known(times))
    # A rate of 1, and 0 times, stand for every step too.
    chosen = [choice for choice in choices if choice.name != EVERY]
    fix = "`sampler`, `sampling_rate` and `repetitions` say how canaries come: give one of them"
    require(len(chosen) <= 1, fix)
    return chosen[0] if chosen else sampler


def _count_usual_steps(usual: int, batches: int) -> int:
    """Returns the steps where none are given: the usual number, in whole epochs of so many batches."""
    if not batches:
        return usual
    return max(usual // batches, 1) * batches


def _select_declared(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those values that are of fields that a class declares."""
    return {name: values[name] for name in declared(kind)}


def _make_part(kind: type[P], values: Mapping[str, Any]) -> P:
    """Returns a part of a setting from the values of all fields."""
    return kind(**_select_declared(kind, values))


def _by_field(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a caller's values that are not None by the names of their fields, as plain numbers of Python.

    A name may also be a field's flag, as k for periodicity.

    Raises:
      InputError: a name is neither a field's nor a flag's.
    """
    field_by_flag = {field.flag: name for name, field in fields().items()}
    unknown = sorted(set(given) - set(field_by_flag) - set(fields()))
    choices = f"choose of {', '.join(sorted(field_by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is no field of a setting: {choices}")

    # A later name replaces an earlier one of the same field, also where it takes the value back
    # with None.
    values = {field_by_flag.get(name, name): plain(value) for name, value in given.items()}
    return {name: value for name, value in values.items() if value is not None}


def _count_steps(insertions: int, periodicity: int) -> int:
    """Returns the number of steps with this many insertions, if every `periodicity`-th step inserts.

    Raises InputError for numbers out of range.
    """
    fields()["insertions"].require(insertions)
    fields()["periodicity"].require(periodicity)
    steps = insertions * periodicity
    product = f"`insertions={insertions}` times `periodicity={periodicity}`"
    require(steps <= MOST_STEPS, f"{product}: give at most {MOST_STEPS:,} steps")
    return steps


def _canonical_insert(insert: str, periodicity: int) -> str:
    """Returns the canonical name of the step that inserts in each period of `periodicity` steps.

    It is last for the last step, first for step 1 unless that is the last, and else the step's number.
    Settings that are the same have the same name in the store so.
    """
    number = "1" if insert == FIRST else insert
    if number == str(periodicity):
        return LAST
    if number == "1":
        return FIRST
    return number


def changed(setting: Setting, **given: Any) -> Setting:
    """Returns a setting with some fields changed; `given` has their values as `make_setting` takes them.

    A caller's own adversary stays, whose fields are no keywords.
    """
    mechanism = setting.mechanism
    usual = Usual(mechanism.learning_rate, mechanism.batch_size, mechanism.clipping)

    values = flat(setting)
    del values["model"]
    if "insertions" in given:
        del values["steps"]
    if "sampling_rate" in given or "repetitions" in given:
        del values["sampler"]
    if isinstance(setting.adversary, OwnAdversary):
        values = {name: value for name, value in values.items() if name in fields()}
        values["adversary"] = setting.adversary
    return make_setting(setting.model, usual, {**values, **given})


def from_identity(config: Mapping[str, Any]) -> Setting:
    """Returns the setting that `identity` describes; what it leaves out is at its default.

    A config that is no audit's raises KeyError, TypeError, AttributeError or ValueError.
    """
    mechanism_fields = dict(config["mechanism"])
    del mechanism_fields["name"]
    adversary_fields = dict(config["adversary"])
    adversary_kind = adversary_row(adversary_fields.pop("name")).fields
    fields_of_setting = {name: config[name] for name in declared(Setting) if name in config}
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
    """Returns names as an alternative in words: a, b or c."""
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} or {names[-1]}"
