"""What a store holds, looked up by settings in plain text, without the data and without JAX."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage import files
from audit.storage.store import CONFIG, Scores, Store, newest_scores

_DATA = "data_sha256"  # the only key of a config that is no part of the setting


class Held(NamedTuple):
    """A folder that holds results of a setting.

    Attributes:
      folder: the folder.
      data: the checksum of the data that the runs were trained on; None where the config has none.
    """

    folder: Path
    data: str | None


class Holdings(NamedTuple):
    """All that the stores under a root hold.

    Attributes:
      root: the folder of all stores.
      folders: the settings' folders under it, by the setting's canonical JSON (`name`). The JSON is without
        the data's checksum, so that a setting may have folders for several data sets.
    """

    root: Path
    folders: dict[str, list[Held]]

    def holds(self, setting: dict[str, Any], file: str) -> bool:
        """Returns whether the setting has a folder that holds a file of this name."""
        store = self.open(setting)
        return store is not None and (store.path / file).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """Returns the store of a setting; None where there is none.

        The caller need not know on which data the runs were trained. Where several folders hold the setting
        on the same data, the store is that with the most runs.

        Args:
          setting: the setting as a dict for JSON; a checksum of the data in it is ignored.

        Raises:
          InputError: several folders hold the setting on different data.
        """
        holders = self.folders.get(name(setting), [])
        if not holders:
            return None
        checksums = {held.data for held in holders}
        paths = " and ".join(str(held.folder) for held in holders)
        require(len(checksums) == 1, f"{paths} are one setting on different data: move one away")
        stores = [Store.at(held.folder) for held in holders]
        if len(stores) == 1:  # needs no `runs_held`, which reads all scores
            return stores[0]
        return max(stores, key=Store.runs_held)

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """Returns the scores of a setting's runs 0 .. runs - 1; None where some of them are missing.

        The runs of a damaged file are missing, and the file is reported on stderr.
        """
        store = self.open(setting)
        if store is None or store.missing(runs):
            return None
        return store.load(runs)


def holdings(root: Path) -> Holdings:
    """Returns what the stores under a root hold: nothing where there is no such folder.

    Folders are left out whose config can't be read, or whose name does not end in the config's hash.

    Raises:
      InputError: the root can't be read.
    """
    folders: dict[str, list[Held]] = {}
    for path in _list_folders(root):
        with contextlib.suppress(InputError):
            config = Store.at(path).config()
            folders.setdefault(name(config), []).append(Held(path, config.get(_DATA)))
    return Holdings(root, folders)


def settings(root: Path) -> list[Path]:
    """Returns the folders of settings that have scores, under the root of stores, the newest scores first.

    Folders that can't be looked into come last. Where the root is missing, the list is empty.

    Raises:
      InputError: the root can't be read.
    """
    time_by_folder = {}
    for folder in _list_folders(root):
        time = _find_time(folder)
        if time is not None:
            time_by_folder[folder] = time
    return sorted(time_by_folder, key=lambda folder: (-time_by_folder[folder], folder.name))


def _list_folders(root: Path) -> list[Path]:
    """Returns the paths of everything directly under a root, sorted; none where there is no root.

    Raises InputError where the root can't be read.
    """
    try:
        return sorted(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise files.cannot_read(root, error) from None


def _find_time(folder: Path) -> int | None:
    """Returns when a folder's newest scores were written, in nanoseconds since 1970.

    It is None where the folder has no scores or no config, and 0 where it can't be looked into.
    """
    try:
        (folder / CONFIG).lstat()  # raises FileNotFoundError where there is no config
        return newest_scores(folder)
    except (FileNotFoundError, NotADirectoryError):  # the latter where `folder` is a file
        return None
    except OSError:  # no permission, for instance: `settings` lists the folder last
        return 0


def name(setting: dict[str, Any]) -> str:
    """Returns a setting's canonical JSON, which identifies it; the checksum of its data is left out."""
    without_data = {key: value for key, value in setting.items() if key != _DATA}
    return json.dumps(without_data, sort_keys=True)
