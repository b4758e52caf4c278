"""Finds stored results by setting, without data or JAX."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage import files
from audit.storage.store import CONFIG, Scores, Store, newest_scores

_DATA_CHECKSUM = "data_sha256"  # the field of a setting that this module ignores


class Holdings(NamedTuple):
    """The stores under a root.

    Attributes:
      root: the folder of all stores.
      stores: {JSON of a setting without its data checksum: its stores, one for each data set}.
    """

    root: Path
    stores: dict[str, list[Store]]

    def open(self, setting: dict[str, Any]) -> Store | None:
        """Returns the store of a setting, or None if there is none. Ignores the setting's data checksum.

        Raises InputError if there are several stores with different data.
        """
        stores = self.stores.get(_make_key(setting), [])
        paths = " and ".join(str(store.path) for store in stores)
        require(len(stores) < 2, f"{paths} have the same setting but different data: move one away")
        return stores[0] if stores else None

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """Returns the scores of the first `runs` runs of a setting, or None if any are missing."""
        store = self.open(setting)
        if store is None or store.missing(runs):
            return None
        return store.load(runs)


def holdings(root: Path) -> Holdings:
    """Returns the readable stores under a root; raises InputError if the root can't be read."""
    stores: dict[str, list[Store]] = {}
    for path in files.list_folder(root):
        with contextlib.suppress(InputError):
            store = Store.at(path)
            stores.setdefault(_make_key(store.config()), []).append(store)
    return Holdings(root, stores)


def list_stores(root: Path) -> list[Path]:
    """Returns the folders with scores under a root, ordered by their newest scores, newest first.

    Raises InputError if the root can't be read.
    """
    times = {}
    for folder in files.list_folder(root):
        # `lexists` also finds dangling links, so the config's reader can report them.
        if os.path.lexists(folder / CONFIG):
            time = newest_scores(folder)
            if time > 0:  # the folder has scores
                times[folder] = time
    return sorted(times, key=lambda folder: (-times[folder], folder.name))


def _make_key(setting: dict[str, Any]) -> str:
    """Returns a setting's JSON with an empty checksum, to make it the same for all data sets."""
    return json.dumps({**setting, _DATA_CHECKSUM: ""}, sort_keys=True)
