"""Settings in a store: how they are named there, and found again."""

import contextlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError
from audit.settings.fields import require_types
from audit.settings.make import from_identity
from audit.settings.setting import Setting, identity, validate
from audit.storage import index
from audit.storage.index import holdings as holdings
from audit.storage.store import Store
from audit.task import Dataset

_DATA, _MODEL = "data_sha256", "model_sha256"
_WIDTH = 24  # of a model's name in a folder's


class Known(NamedTuple):
    """The content of an audit's config: its setting, and the checksums of data and of a caller's model."""

    setting: Setting
    data: str | None
    model: str | None


class Audits(NamedTuple):
    """The folders with scores under a store's root, the newest first: audits of trained models, how many are
    of something else, and why others could not be read, by their path."""

    folders: list[Path]
    others: int
    refused: dict[Path, str]

    def left_out(self) -> list[str]:
        """A line for the folders of other results, and one for each that can't be read."""
        what = "1 folder holds" if self.others == 1 else f"{self.others} folders hold"
        skipped = [f"skipped: {what} other results than audits"] if self.others else []
        return [*skipped, *(f"left out: {message}" for message in self.refused.values())]


def known(config: dict[str, Any]) -> Known | None:
    """The content of an audit's config; None for what is no audit of a trained model."""
    try:
        if config["experiment"] != "audit":
            return None
        setting = from_identity(config)
        require_types(setting)
        validate(setting, 2, (setting.mechanism.clipping,))
        data, model = config.get(_DATA), config.get(_MODEL)
        fits = isinstance(data, str | None) and isinstance(model, str | None)
        return Known(setting, data, model) if fits else None
    except (KeyError, TypeError, AttributeError, ValueError):
        return None


def audits(root: Path) -> Audits:
    """The audits under a store's root; raises InputError where that can't be read."""
    found = Audits([], 0, {})
    for folder in index.settings(root):
        try:
            is_audit = known(Store.at(folder).config()) is not None
        except InputError as error:
            found.refused[folder] = str(error)
            continue
        if is_audit:
            found.folders.append(folder)
        else:
            found = found._replace(others=found.others + 1)
    return found


def federated(root: Path) -> list[Path]:
    """Folders of federated runs under a store's root, newest first; unreadable ones are `audits`'."""
    found = []
    for folder in index.settings(root):
        with contextlib.suppress(InputError):
            if Store.at(folder).config().get("experiment") == "federated":
                found.append(folder)
    return found


def open_store(
    out: Path, setting: Setting, dataset: Dataset, experiment: str = "audit", model: str | None = None
) -> Store:
    """A setting's store on its data, and on a caller's model; its folder: fcnn-gc_r-k5-seed1-<hash>."""
    found = find_store(out, setting, dataset, experiment, model)
    if found is not None:
        return found
    words = re.sub(r"[^a-z0-9_]+", "_", setting.model.lower()).strip("_")[:_WIDTH] or "model"
    k, seed = setting.schedule.periodicity, setting.seed
    insert = "" if setting.schedule.place == k else setting.schedule.insert
    unusual = [*([f"k{k}{insert}"] if k != 1 else []), *([f"seed{seed}"] if seed else [])]
    named = [*([] if experiment == "audit" else [experiment]), words, setting.adversary.name, *unusual]
    return Store(out, _config(setting, dataset, experiment, model), "-".join(named))


def find_store(
    out: Path, setting: Setting, dataset: Dataset, experiment: str = "audit", model: str | None = None
) -> Store | None:
    """`open_store` where there is one; creates nothing."""
    config = _config(setting, dataset, experiment, model)
    return Store(out, config) if Store.exists(out, config) else None


def _config(setting: Setting, dataset: Dataset, experiment: str, model: str | None) -> dict[str, Any]:
    checksums = {_DATA: dataset.checksum, **({} if model is None else {_MODEL: model})}
    return {**identity(setting, experiment), **checksums}
