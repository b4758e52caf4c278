"""The holdings of a store, found by the settings in plain text: it takes neither the data nor JAX to know."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage import files
from audit.storage.store import CONFIG, Scores, Store, newest_scores

_DATA = "data_sha256"  # what a config says beside its setting


class Held(NamedTuple):
    """A setting's folder, and the checksum of the data that it is on, where it says one."""

    folder: Path
    data: str | None


class Holdings(NamedTuple):
    """The folders under a store's root, by their setting without the data's checksum."""

    root: Path
    folders: dict[str, list[Held]]

    def holds(self, setting: dict[str, Any], file: str) -> bool:
        """Whether the setting's folder has a file of that name."""
        store = self.open(setting)
        return store is not None and (store.path / file).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """The store of a setting, on whatever data, the one of most runs where two folders hold it;
        None where there is none. Raises InputError where there are two on different data."""
        found = self.folders.get(name(setting), [])
        names = " and ".join(str(held.folder) for held in found)
        message = f"{names} are one setting on different data: move one away"
        require(len({held.data for held in found}) < 2, message)
        stores = [Store.at(held.folder) for held in found]
        return max(stores, key=Store.runs_held) if len(stores) > 1 else next(iter(stores), None)

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """The scores of runs 0 .. runs - 1; None where some are missing. A damaged file is said."""
        store = self.open(setting)
        return None if store is None or store.missing(runs) else store.load(runs)


def holdings(root: Path) -> Holdings:
    """Holdings under a store's root; none without the folder. A folder whose config can't be read or has
    another name holds nothing. Raises InputError for a root that can't be read."""
    found: dict[str, list[Held]] = {}
    for path in _folders(root):
        with contextlib.suppress(InputError):
            config = Store.at(path).config()
            found.setdefault(name(config), []).append(Held(path, config.get(_DATA)))
    return Holdings(root, found)


def settings(root: Path) -> list[Path]:
    """A root's folders with scores, newest first, those that can't be looked into last; none without the
    root. Raises InputError for a root that can't be read."""
    times = {folder: time for folder in _folders(root) if (time := _time(folder)) is not None}
    return sorted(times, key=lambda folder: (-times[folder], folder.name))


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(root.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise files.cannot_read(root, error) from None


def _time(folder: Path) -> int | None:
    """When a folder's newest scores were written, in nanoseconds; None where it has none or no config."""
    try:
        (folder / CONFIG).lstat()
        return newest_scores(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0


def name(setting: dict[str, Any]) -> str:
    """A setting's canonical text, without its data."""
    return json.dumps({key: value for key, value in setting.items() if key != _DATA}, sort_keys=True)
