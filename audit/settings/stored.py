"""Settings in a store: their names there, and how to read them back."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, OutdatedError
from audit.settings.fields import require_types
from audit.settings.make import from_identity
from audit.settings.setting import Setting, identity, validate
from audit.storage import index
from audit.storage.index import holdings as holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset

# Keys of a config that are no part of the setting.
_DATA = "data_sha256"
_MODEL = "model_sha256"

_MODEL_WIDTH = 24  # characters of a model's name in a folder's name


class StoredConfig(NamedTuple):
    """What the config of a stored audit holds.

    Attributes:
      setting: the setting of the audit.
      data: the checksum of the data it was trained on; None where the config has none.
      model: the checksum of a caller's own model; None for the repository's models.
    """

    setting: Setting
    data: str | None
    model: str | None


class Audits(NamedTuple):
    """The folders with scores under a store's root, sorted out.

    Attributes:
      folders: the folders of audits of trained models, the one with the newest scores first.
      others: the number of folders with results of another kind.
      refused: the folders that can't be read, each with the reason.
    """

    folders: list[Path]
    others: int
    refused: dict[Path, str]

    def left_out(self) -> list[str]:
        """Returns lines for people: one on folders of other results, and one for each unreadable folder."""
        lines = []
        if self.others:
            folders = "1 folder holds" if self.others == 1 else f"{self.others} folders hold"
            lines.append(f"skipped: {folders} other results than audits")
        for message in self.refused.values():
            lines.append(f"left out: {message}")
        return lines


def parse_config(config: dict[str, Any]) -> StoredConfig | None:
    """Parses the content of a config.json; returns None unless it describes an audit with valid values.

    Other experiments, such as federated runs, are no audits.

    Args:
      config: what `Store.config` returns.

    Raises:
      OutdatedError: the scores are of another version of the adversary than this program's.
    """
    try:
        if config["experiment"] != "audit":
            return None
        setting = from_identity(config)
        require_types(setting)
        validate(setting)
    except OutdatedError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError):  # an InputError is a ValueError
        return None

    # Checksums, in hex, of the data and of a caller's own model: each is a text or is missing.
    data = config.get(_DATA)
    model = config.get(_MODEL)
    if not isinstance(data, str | None) or not isinstance(model, str | None):
        return None
    return StoredConfig(setting, data, model)


def audits(root: Path) -> Audits:
    """Finds the audits under the root of stores, and counts the folders with scores of other kinds.

    Folders whose config can't be read are in the result with the reason. Raises InputError where the root
    can't be read.
    """
    folders = []
    others = 0
    refused = {}
    for folder in index.settings(root):
        try:
            config = parse_config(Store.at(folder).config())
        except OutdatedError as error:
            refused[folder] = f"{folder} holds {error}"
        except InputError as error:
            refused[folder] = str(error)
        else:
            if config is None:
                others += 1
            else:
                folders.append(folder)
    return Audits(folders, others, refused)


def federated(root: Path) -> list[Path]:
    """Finds the folders of federated runs under a store's root, those with the newest scores first.

    A folder whose config can't be read is skipped. `audits`, which goes through the same folders, reports it.
    """
    folders = []
    for folder in index.settings(root):
        with contextlib.suppress(InputError):
            if Store.at(folder).config().get("experiment") == "federated":
                folders.append(folder)
    return folders


def open_store(
    out: Path,
    setting: Setting,
    dataset: Dataset,
    experiment: str = "audit",
    model: str | None = None,
) -> Store:
    """Opens the store of a setting; makes it where there is none.

    Args:
      out: the root of all stores.
      setting: the setting.
      dataset: the data that models are trained on.
      experiment: the name of what is computed for the setting.
      model: the checksum of a caller's own model; None for the repository's models.

    Returns:
      The store; its folder has a name such as fcnn-gc_r-k5-seed1-<hash>.
    """
    config = _make_config(setting, dataset, experiment, model)
    return Store(out, config, _describe_in_words(setting, experiment))


def find_store(
    out: Path,
    setting: Setting,
    dataset: Dataset,
    experiment: str = "audit",
    model: str | None = None,
) -> Store | None:
    """Finds the store that `open_store` would open; returns None where there is none, and makes nothing."""
    config = _make_config(setting, dataset, experiment, model)
    return Store(out, config) if Store.exists(out, config) else None


def _describe_in_words(setting: Setting, experiment: str) -> str:
    """Returns the words in a folder's name, such as fcnn-gc_r-k5-seed1.

    These are the experiment unless it is an audit, the model, the adversary, the periodicity k unless it is
    1, and the seed unless it is 0. The step of a period that inserts follows k, unless it is the last.
    """
    words = []
    if experiment != "audit":
        words.append(experiment)

    model = re.sub(r"[^a-z0-9_]+", "_", setting.model.lower()).strip("_")
    words.append(model[:_MODEL_WIDTH] or "model")  # a name of other characters alone leaves nothing
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
    """Returns the content of a store's config: the setting's identity, and the checksums of data and model.

    Args:
      setting: the setting.
      dataset: the data that models are trained on.
      experiment: the name of what is computed for the setting.
      model: the checksum of a caller's own model; None for the repository's models, whose name is enough.
    """
    config = {**identity(setting, experiment), _DATA: dataset.checksum}
    if model is not None:
        config[_MODEL] = model
    return config
