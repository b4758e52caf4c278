"""Makes settings from flags, keywords and stored identities, and opens their stores."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from audit.adversaries.base import AdversaryFields
from audit.adversaries.sphere import SphereFields
from audit.claims.strategies import INDEPENDENT, pin_file
from audit.errors import InputError, plain, require, require_type
from audit.settings.adversaries import ADVERSARIES, OwnAdversary
from audit.settings.fields import (
    AUTO,
    Field,
    FieldLimits,
    declared,
)
from audit.settings.setting import (
    FIRST,
    KNOWN,
    LAST,
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
from audit.storage.index import holdings as holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset, task, tasks
from audit.written import counted


@cache
def fields(kind: type = Setting) -> dict[str, Field]:
    """Returns all fields that describe a kind of setting, by name.

    An audit's setting has the fields of all its parts and adversaries, and `insertions`.
    """
    if kind is not Setting:
        return declared(kind)
    models: dict[str, list[str]] = {}
    for name, row in tasks().items():
        models.setdefault(row.data.label, []).append(row.sizes or name)
    by_data = [f"{', '.join(names)} ({data})" for data, names in models.items()]
    canaries = [f"{name}: {adversary.canary}" for name, adversary in ADVERSARIES.items()]
    found = {}
    text = f"{'; '.join(by_data)}."
    limits = FieldLimits(choices=tuple(tasks()))
    found["model"] = Field("model", "model", str, "fcnn", text, limits)
    text = f"{'; '.join(canaries)}."
    limits = FieldLimits(choices=tuple(ADVERSARIES))
    found["adversary"] = Field("adversary", "adversary", str, "gc_s", text, limits)
    text = "Insertions; training takes insertions * k steps."
    limits = FieldLimits(least=1, most=MAX_STEPS)
    found["insertions"] = Field("insertions", "insertions", int, 250, text, limits)
    for part in (DpSgdFields, ScheduleFields, *ADVERSARIES.values(), Setting):
        found |= declared(part)
    return found


def setting_of(model: str, **given: Any) -> Setting:
    """Returns a setting of one of the repository's models, from values as in `make_setting`.

    The defaults are the model's learning rate and batch size, the adversary GC-S, and 250 steps.
    `canaries="auto"` means the catalogue's number for the model: its fresh directions if the adversary draws
    directions, otherwise its canaries.

    Raises:
      InputError: the model is unknown, or as in `make_setting`.
    """
    require_type("model", model, str)
    row = task(model)
    canaries = given.get("canaries")
    if isinstance(canaries, str) and canaries == AUTO:
        draws_directions = given.get("adversary") == SphereFields.name
        given["canaries"] = row.directions if draws_directions else row.canaries
    return make_setting(model, row.usual(), given, row.data.examples.number)


def usual_insertions(model: str) -> int:
    """Returns the default number of insertions of a model of the catalogue."""
    require_type("model", model, str)
    default: int = fields()["insertions"].default
    return task(model).insertions or default


def make_setting(
    model: str, usual: Mapping[str, Any], given: Mapping[str, Any], examples: int = 0
) -> Setting:
    """Returns the setting of any model from values by field or flag.

    Args:
      model: the model's name.
      usual: the model's defaults by field; None for a default that all models share.
      given: values by name; None means the default. `adversary` is a name or an `AdversaryFields`.
        `insertions` replaces `steps`: there are then insertions * periodicity steps. Without either, the
        number of steps is the default of `insertions`, in whole epochs if the sampler has epochs. Fields of
        other adversaries are checked, but not used.
      examples: the number of examples in the data, or 0 if unknown, for the length of an epoch if the sampler
        is given without a number.

    Raises:
      InputError: a name is unknown, or a value has a wrong type or is out of range.
    """
    require_type("model", model, str)
    changes = _read(given)
    steps = changes.get("steps")
    insertions = changes.get("insertions")
    require(
        steps is None or insertions is None,
        f"`steps={steps}` and `insertions={insertions}` conflict: drop one",
    )

    values: dict[str, Any] = {}
    for name, field in fields().items():
        values[name] = usual.get(name)
        if values[name] is None:
            values[name] = field.default
    values |= changes
    # The batch size is not checked yet.
    sampler = read_sampler(values["sampler"], examples // max(values["batch_size"], 1))
    values["sampler"] = str(sampler)
    if values["noise"] != INDEPENDENT:
        values["noise"] = pin_file(values["noise"])
    periodicity = values["periodicity"]
    # Settings with the same meaning get the same identity.
    names = {"1": FIRST, str(periodicity): LAST}
    names[FIRST] = names["1"]
    values["insert"] = names.get(values["insert"], values["insert"])
    if insertions is not None:
        values["steps"] = insertions * periodicity
        product = f"`insertions={insertions}` times `periodicity={periodicity}`"
        require(values["steps"] <= MAX_STEPS, f"{product}: give at most {MAX_STEPS:,} steps")
    elif steps is None:
        epoch = sampler.batches or 1
        values["steps"] = max(values["insertions"] // epoch, 1) * epoch

    def fill(kind: type, *parts: Any) -> Any:
        """Returns a part of the setting with the values of its fields."""
        names = declared(kind)
        return kind(*parts, **dict(zip(names, map(values.__getitem__, names), strict=True)))

    adversary = values["adversary"]
    if not isinstance(adversary, AdversaryFields):
        adversary = fill(ADVERSARIES[adversary])
    setting: Setting = fill(Setting, model, adversary, fill(DpSgdFields), fill(ScheduleFields))
    return setting


def _read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the checked values by field, except those that are None.

    A name may be a flag, such as k for periodicity. Scalars of NumPy or JAX become Python numbers.
    """
    by_flag = {}
    for field in fields().values():
        by_flag[field.flag] = field
    known = {**fields(), **by_flag}
    unknown = sorted(set(given) - set(known))
    choices = f"choose from {', '.join(sorted(by_flag))}"
    require(not unknown, f"{', '.join(unknown)} is not a field of a setting: {choices}")

    values = {}
    for name, value in given.items():
        field = known[name]
        value = plain(value)
        if field.name == "insert" and type(value) is int:
            value = str(value)
        if value is None:
            continue
        values[field.name] = value
        if field.name == "adversary" and isinstance(value, AdversaryFields):
            continue
        require_type(field.name, value, field.kind)
        field.require(value)
    return values


def from_identity(config: Mapping[str, Any]) -> Setting:
    """Returns the setting of a config, a dict from `setting.identity`; missing fields have their defaults.

    Raises:
      KeyError, TypeError, AttributeError or ValueError: the config is not that of an audit, or the scores
        come from another version of the adversary.
    """
    mechanism = dict(config["mechanism"])
    del mechanism["name"]
    adversary = dict(config["adversary"])
    kinds: dict[str, type[AdversaryFields]] = {**ADVERSARIES, OwnAdversary.name: OwnAdversary}
    kind = kinds[adversary.pop("name")]
    require(adversary.pop("version", 1) == kind.version, "the adversary has changed: train again")
    own = {name: config[name] for name in declared(Setting) if name in config}
    # Identities have only the sampler's number; !r writes all its digits.
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


_DATA = "data_sha256"
_MODEL = "model_sha256"

_MODEL_WIDTH = 24  # characters of a model's name in a folder's name


class StoredConfig(NamedTuple):
    """The content of a stored audit's config.

    Attributes:
      setting: the setting of the audit.
      data: the checksum of the training data, if known.
      model: the checksum of a custom model; None for the repository's models.
    """

    setting: Setting
    data: str | None
    model: str | None


def parse_config(config: dict[str, Any]) -> StoredConfig | None:
    """Parses the content of a config.json; returns None unless it describes a valid audit."""
    try:
        if config["experiment"] != "audit":
            return None
        setting = from_identity(config)
        validate(setting)
    except (KeyError, TypeError, AttributeError, ValueError):
        return None
    return StoredConfig(setting, config.get(_DATA), config.get(_MODEL))


def open_audit(folder: Path) -> tuple[Store, StoredConfig]:
    """Returns the store of an audit in a folder, and its config; raises InputError for another folder."""
    store = Store.at(folder)
    audited = parse_config(store.config())
    if audited is None:
        raise InputError(f"{folder} is not an audit of trained models: name another")
    return store, audited


def audits(root: Path) -> tuple[list[Path], list[str]]:
    """Returns the folders of audits with scores under a root, newest first, and messages on other folders.

    Raises InputError if the root can't be read.
    """
    folders = []
    messages = []
    others = 0
    for folder in index.list_stores(root):
        try:
            config = parse_config(Store.at(folder).config())
        except InputError as error:
            messages.append(f"left out: {error}")
            continue
        if config is None:
            others += 1
        else:
            folders.append(folder)
    if others:
        held = counted(others, "folder holds", "folders hold")
        messages.insert(0, f"skipped: {held} other results than audits")
    return folders, messages


def open_store(
    out: Path,
    setting: Setting,
    dataset: Dataset,
    experiment: str = "audit",
    model: str | None = None,
) -> Store:
    """Opens the store of a setting, or makes it, in a folder such as fcnn-gc_r-k5-seed1-<hash>.

    `out` is the root of all stores. `model` is the checksum of a custom model.
    """
    config = _make_config(setting, dataset, experiment, model)
    return Store(out, config, _describe_in_words(setting, experiment))


def find_store(
    out: Path, setting: Setting, dataset: Dataset, model: str | None = None
) -> Store | None:
    """Returns the store that `open_store` would open, if it exists; makes no folder."""
    return Store.find(out, _make_config(setting, dataset, "audit", model))


def _describe_in_words(setting: Setting, experiment: str) -> str:
    """Returns the words in a folder's name, such as fcnn-gc_r-k5-seed1."""
    words = []
    if experiment != "audit":
        words.append(experiment)

    model = re.sub(r"[^a-z0-9_]+", "_", setting.model.lower()).strip("_")
    words.append(model[:_MODEL_WIDTH] or "model")
    words.append(setting.adversary.name)

    k = setting.schedule.periodicity
    if k != 1:
        is_last = setting.schedule.place == k
        insert = "" if is_last else setting.schedule.insert
        words.append(f"k{k}{insert}")
    if setting.seed:
        words.append(f"seed{setting.seed}")
    return "-".join(words)


def _make_config(
    setting: Setting, dataset: Dataset, experiment: str, model: str | None
) -> dict[str, Any]:
    """Returns the content of a store's config: the setting's identity, and the checksums."""
    config = {**identity(setting, experiment), _DATA: dataset.checksum}
    if model is not None:
        config[_MODEL] = model
    return config
