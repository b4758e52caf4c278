"""Makes settings from flags, keywords and stored identities, and opens their stores."""

import contextlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.adversaries.sphere import SphereFields
from audit.claims.strategies import INDEPENDENT, pin_file
from audit.errors import FIRST, LAST, InputError, insert_step, plain, require, require_type
from audit.settings.adversaries import ADVERSARIES, OwnAdversary
from audit.settings.fields import AUTO, Field, FieldLimits, declared
from audit.settings.setting import (
    BY_EPOCHS,
    KNOWN,
    MAX_STEPS,
    POISSON,
    DpSgdFields,
    ScheduleFields,
    Setting,
    identity,
    read_sampler,
    validate,
)
from audit.storage import index
from audit.storage.store import Store
from audit.tasks.task import Dataset, task, tasks


@cache
def fields(kind: type = Setting) -> dict[str, Field]:
    """Returns all fields of a settings class, keyed by name.

    For `Setting`, these include the fields of its parts and of all adversaries.
    """
    if kind is not Setting:
        return declared(kind)
    models: dict[str, list[str]] = {}  # model names by data set
    for name, row in tasks().items():
        # `sizes` describes the names of a model with several sizes.
        models.setdefault(row.data.label, []).append(row.sizes or name)
    by_data = [f"{', '.join(names)} ({data})" for data, names in models.items()]
    canaries = [f"{name}: {adversary.canary}" for name, adversary in ADVERSARIES.items()]
    # Fields that no part declares: (name, flag, type, default, help, limits).
    choices = (
        Field(
            "model",
            "model",
            str,
            "fcnn",
            f"{'; '.join(by_data)}.",
            FieldLimits(choices=tuple(tasks())),
        ),
        Field(
            "adversary",
            "adversary",
            str,
            "gc_s",
            f"{'; '.join(canaries)}.",
            FieldLimits(choices=tuple(ADVERSARIES)),
        ),
        Field(
            "insertions",
            "insertions",
            int,
            250,
            "Number of insertions of the canary; training takes insertions * k steps.",
            FieldLimits(least=1, most=MAX_STEPS),
        ),
    )
    found = {field.name: field for field in choices}
    for part in (DpSgdFields, ScheduleFields, *ADVERSARIES.values(), Setting):
        found |= declared(part)
    return found


def setting_of(model: str, **given: Any) -> Setting:
    """Returns a setting for one of the repository's models; `given` is as in `make_setting`.

    The learning rate and the batch size default to the model's, the adversary to `GcS`, and the number of
    steps to 250. `canaries="auto"` selects the catalogue's number for the model and the adversary, which is
    larger for fresh directions.

    Raises:
      InputError: a value is invalid (see `make_setting`).
    """
    row = task(model)
    canaries = given.get("canaries")
    if isinstance(canaries, str) and canaries == AUTO:
        draws_directions = given.get("adversary") == SphereFields.name
        given["canaries"] = row.directions if draws_directions else row.canaries
    return make_setting(model, row.usual(), given, row.data.examples)


def add_default_insertions(model: str, given: dict[str, Any]) -> None:
    """Adds the model's default number of insertions to `given`, unless `given` specifies the steps.

    If the sampler draws once per epoch, `make_setting` uses a whole number of epochs instead.
    """
    sampler, _, _ = str(given.get("sampler")).partition(":")  # drops the number in shuffled:98
    if given.get("steps") is None and sampler not in BY_EPOCHS:
        given.setdefault("insertions", task(model).insertions or fields()["insertions"].default)


def make_setting(
    model: str, usual: Mapping[str, Any], given: Mapping[str, Any], examples: int = 0
) -> Setting:
    """Returns the setting of any model, from values keyed by field or flag name.

    Args:
      model: the name of the model.
      usual: the defaults of this model, keyed by field name.
      given: values keyed by name; None selects the default. `adversary` is a name or an `AdversaryFields`.
        `insertions` replaces `steps`: training then takes insertions * periodicity steps. Without either, it
        takes 250 steps or the model's default, whatever the periodicity. For samplers that draw once per
        epoch, this is rounded down to whole epochs. Fields of other adversaries are validated but ignored.
      examples: the number of examples in the data; 0 if unknown. It determines the epoch length if the
        sampler does not.

    Raises:
      InputError: a name is unknown, or a value has the wrong type or is out of range.
    """
    changes = _read(given)
    steps = changes.get("steps")
    insertions = changes.get("insertions")
    require(
        steps is None or insertions is None,
        f"`steps={steps}` and `insertions={insertions}` conflict: drop one",
    )

    values: dict[str, Any] = {}
    for name, field in fields().items():
        value = usual.get(name)
        values[name] = field.default if value is None else value
    values |= changes
    sampler = read_sampler(values["sampler"], batches=examples // values["batch_size"])
    values["sampler"] = str(sampler)
    if values["noise"] != INDEPENDENT:
        values["noise"] = pin_file(values["noise"])  # adds the file's checksum
    periodicity = values["periodicity"]
    values["insert"] = _name_step(values["insert"], periodicity)
    if insertions is not None:
        values["steps"] = insertions * periodicity
        require(
            values["steps"] <= MAX_STEPS,
            f"`insertions={insertions}` times `periodicity={periodicity}`: give at most {MAX_STEPS:,} steps",
        )
    elif steps is None:
        epoch = sampler.batches or 1
        default_steps = values["insertions"]  # not multiplied by periodicity
        values["steps"] = max(default_steps // epoch, 1) * epoch

    adversary = values["adversary"]
    if not isinstance(adversary, AdversaryFields):
        kind = ADVERSARIES[adversary]
        adversary = kind(**_select(kind, values))
    return Setting(
        model,
        adversary,
        DpSgdFields(**_select(DpSgdFields, values)),
        ScheduleFields(**_select(ScheduleFields, values)),
        **_select(Setting, values),
    )


def _select(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the fields that a dataclass declares, keyed by field name."""
    return {name: values[name] for name in declared(kind)}


def _name_step(insert: str, periodicity: int) -> str:
    """Returns the name of step `insert` in a period: "last" for step k, "first" for step 1, or its number.

    k is `periodicity`. If k is 1, the name is "last", because equivalent settings need the same identity.
    """
    step = insert_step(insert, periodicity)
    if step == periodicity:
        return LAST
    return FIRST if step == 1 else str(step)


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the given values, validated and keyed by field name, omitting those that are None.

    A key may be a field or a flag, such as k for periodicity. NumPy and JAX scalars become Python numbers.
    """
    by_flag = {field.flag: field for field in fields().values()}
    known = {**fields(), **by_flag}
    unknown = sorted(set(given) - set(known))
    advice = f"choose from {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is not a field of a setting: {advice}")

    values = {}
    for name, value in given.items():
        field = known[name]
        value = plain(value)
        if field.name == "insert" and type(value) is int:
            value = str(value)  # the field is text, such as "last"
        if value is None:
            continue
        values[field.name] = value
        if field.name == "adversary" and isinstance(value, AdversaryFields):
            continue  # `validate` checks its fields
        require_type(field.name, value, field.kind)
        field.require(value)
    return values


def from_identity(config: Mapping[str, Any]) -> Setting:
    """Returns the setting with this identity (`setting.identity`); missing fields get their defaults.

    Raises:
      KeyError, TypeError, AttributeError or ValueError: the config does not describe an audit, or its scores
      come from a different version of the adversary.
    """
    mechanism = dict(config["mechanism"])
    del mechanism["name"]
    adversary = dict(config["adversary"])
    kinds: dict[str, type[AdversaryFields]] = {**ADVERSARIES, OwnAdversary.name: OwnAdversary}
    kind = kinds[adversary.pop("name")]
    require(adversary.pop("version", 1) == kind.version, "the adversary has changed: train again")
    top_level_fields = {name: config[name] for name in declared(Setting) if name in config}
    # Identities store these samplers as numbers; !r writes all digits.
    for name, sampler in (("sampling_rate", POISSON), ("repetitions", KNOWN)):
        if name in config:
            top_level_fields["sampler"] = f"{sampler}:{config[name]!r}"
    return Setting(
        config["model"],
        kind(**adversary),
        DpSgdFields(**mechanism),
        ScheduleFields(**config["schedule"]),
        **top_level_fields,
    )


_DATA_CHECKSUM = "data_sha256"
_MODEL_CHECKSUM = "model_sha256"


class StoredConfig(NamedTuple):
    """The content of a stored audit's config.

    Attributes:
      data: the checksum of the training data; None if the config has no checksum.
      model: the checksum of a custom model; None for one of the repository's models.
    """

    setting: Setting
    data: str | None
    model: str | None


def parse_config(config: dict[str, Any]) -> StoredConfig | None:
    """Returns the parsed content of a config.json, or None if it does not describe a valid audit."""
    try:
        if config["experiment"] != "audit":
            return None
        setting = from_identity(config)
        validate(setting)
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return StoredConfig(setting, config.get(_DATA_CHECKSUM), config.get(_MODEL_CHECKSUM))


def open_audit(folder: Path) -> tuple[Store, StoredConfig]:
    """Returns the store and the config of the audit in a folder; raises InputError if it has no audit."""
    store = Store.at(folder)
    audited = parse_config(store.config())
    if audited is None:
        raise InputError(f"{folder} is not an audit of trained models: name another folder")
    return store, audited


def audits(root: Path) -> list[Path]:
    """Returns the folders under a root that contain audits with scores, newest first.

    Unreadable folders are included, because `open_audit` reports them. Raises InputError if the root is
    unreadable.
    """
    return [folder for folder in index.list_stores(root) if not _has_other_results(folder)]


def _has_other_results(folder: Path) -> bool:
    """Returns True if a folder's config is readable but does not describe an audit."""
    with contextlib.suppress(InputError):
        return parse_config(Store.at(folder).config()) is None
    return False


def open_store(
    out: Path,
    setting: Setting,
    dataset: Dataset,
    experiment: str = "audit",
    model: str | None = None,
) -> Store:
    """Opens or creates the store of a setting, in a folder such as fcnn-gc_r-k5-seed1-<hash>.

    `out` is the folder of all stores, `experiment` the kind of experiment, and `model` the checksum of a
    custom model.
    """
    config = {**identity(setting, experiment), _DATA_CHECKSUM: dataset.checksum}
    if model is not None:
        config[_MODEL_CHECKSUM] = model
    return Store(out, config, _describe_in_words(setting, experiment))


def _describe_in_words(setting: Setting, experiment: str) -> str:
    """Returns the prefix of a store name, such as fcnn-gc_r-k5-seed1."""
    words = []
    if experiment != "audit":
        words.append(experiment)

    model = re.sub(r"[^a-z0-9_]+", "_", setting.model.lower()).strip("_")
    words += [model[:24] or "model", setting.adversary.name]

    k = setting.schedule.periodicity
    if k != 1:
        insert = "" if setting.schedule.place == k else setting.schedule.insert
        words.append(f"k{k}{insert}")
    if setting.seed:
        words.append(f"seed{setting.seed}")
    return "-".join(words)
