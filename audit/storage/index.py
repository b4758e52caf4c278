"""What a store holds, looked up by settings in plain text, without the data and without JAX."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage import files
from audit.storage.store import CONFIG, Scores, Store, newest_scores

_DATA = "data_sha256"  # the key of a config that is no part of the setting


class Held(NamedTuple):
    """A setting's folder.

    Attributes:
      folder: the folder.
      data: the checksum of the data that the setting is on; None where the config has none.
    """

    folder: Path
    data: str | None


class Holdings(NamedTuple):
    """The folders under a store's root.

    Attributes:
      root: the store's root.
      folders: its folders by the name of their setting, which leaves out the data's checksum.
    """

    root: Path
    folders: dict[str, list[Held]]

    def holds(self, setting: dict[str, Any], file: str) -> bool:
        """Returns whether the setting's folder has a file of that name."""
        store = self.open(setting)
        return store is not None and (store.path / file).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """Returns the store of a setting, on whatever data, or None where there is none.

        Where two folders hold the setting, it is that with more runs.

        Raises:
          InputError: folders hold the setting on different data.
        """
        holders = self.folders.get(name(setting), [])
        if not holders:
            return None
        data = {held.data for held in holders}
        paths = " and ".join(str(held.folder) for held in holders)
        require(len(data) == 1, f"{paths} are one setting on different data: move one away")
        stores = [Store.at(held.folder) for held in holders]
        if len(stores) == 1:
            return stores[0]
        return max(stores, key=Store.runs_held)

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """Returns the scores of runs 0 .. runs - 1, or None where some are missing.

        A damaged file is reported on stderr.
        """
        store = self.open(setting)
        if store is None or store.missing(runs):
            return None
        return store.load(runs)


def holdings(root: Path) -> Holdings:
    """Returns the folders of settings under a store's root; none where there is no such root.

    A folder whose config can't be read, or which is not named after it, holds nothing.

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
    """Returns the folders with scores under a store's root, those with the newest scores first.

    Folders that can't be looked into come last; there are none where there is no root.

    Raises:
      InputError: the root can't be read.
    """
    times = {}
    for folder in _list_folders(root):
        time = _find_time(folder)
        if time is not None:
            times[folder] = time
    return sorted(times, key=lambda folder: (-times[folder], folder.name))


def _list_folders(root: Path) -> list[Path]:
    """Returns the paths of all that lies in a root, sorted; none where there is no root.

    Raises InputError where the root can't be read.
    """
    try:
        return sorted(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise files.cannot_read(root, error) from None


def _find_time(folder: Path) -> int | None:
    """Returns when a folder's newest scores were written, in nanoseconds.

    Returns:
      None where the folder has no scores or no config, 0 where it can't be looked into.
    """
    try:
        (folder / CONFIG).lstat()
        return newest_scores(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0


def name(setting: dict[str, Any]) -> str:
    """Returns a setting as canonical JSON, without the checksum of its data."""
    without_data = {key: value for key, value in setting.items() if key != _DATA}
    return json.dumps(without_data, sort_keys=True)
