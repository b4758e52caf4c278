"""What a store holds, looked up by settings in plain text, without the data and without JAX."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage import files
from audit.storage.store import CONFIG, Scores, Store, newest_scores

_DATA = "data_sha256"  # the only key of a config that is no part of the setting


class Holdings(NamedTuple):
    """All that the stores under a root hold.

    Attributes:
      root: the folder of all stores.
      stores: the stores of each setting by its JSON without the data's checksum: a setting may have folders
        for several data sets.
    """

    root: Path
    stores: dict[str, list[Store]]

    def holds(self, setting: dict[str, Any], file: str) -> bool:
        """Returns whether the setting has a folder that holds a file of this name."""
        store = self.open(setting)
        return store is not None and (store.path / file).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """Returns the store of a setting, whatever its data; None if there is none.

        If several folders hold the setting on the same data, it is the one with the most runs.

        Args:
          setting: the setting as a dict for JSON; a checksum of the data in it is ignored.

        Raises:
          InputError: several folders hold the setting on different data.
        """
        stores = self.stores.get(_name(setting), [])
        if len(stores) > 1:
            paths = " and ".join(str(store.path) for store in stores)
            checksums = {store.config().get(_DATA) for store in stores}
            message = f"{paths} are one setting on different data: move one away"
            require(len(checksums) == 1, message)
            stores = [max(stores, key=Store.runs_held)]  # reads all scores
        return stores[0] if stores else None

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """Returns the scores of a setting's runs 0 .. runs - 1; None if some of them are missing."""
        store = self.open(setting)
        if store is None or store.missing(runs):
            return None
        return store.load(runs)


def holdings(root: Path) -> Holdings:
    """Returns what the stores under a root hold; raises InputError if the root can't be read.

    Folders are left out whose config can't be read, or whose name does not end in the config's hash.
    """
    stores: dict[str, list[Store]] = {}
    for path in files.list_folder(root):
        with contextlib.suppress(InputError):
            store = Store.at(path)
            stores.setdefault(_name(store.config()), []).append(store)
    return Holdings(root, stores)


def settings(root: Path) -> list[Path]:
    """Returns the folders of settings that have scores, under the root of stores, the newest scores first.

    Raises InputError if the root can't be read.
    """
    times = {}
    for folder in files.list_folder(root):
        if os.path.lexists(folder / CONFIG):
            times[folder] = newest_scores(folder) or 0
    with_scores = [folder for folder in times if times[folder]]
    return sorted(with_scores, key=lambda folder: (-times[folder], folder.name))


def _name(setting: dict[str, Any]) -> str:
    """Returns a setting's JSON without the checksum of its data."""
    without_data = {key: value for key, value in setting.items() if key != _DATA}
    return json.dumps(without_data, sort_keys=True)
