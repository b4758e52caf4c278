"""What a store holds, found by the settings in plain text: it takes neither the data nor JAX to know."""

import contextlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage.scores import Scores
from audit.storage.store import CONFIG, Store, newest_scores

_DATA = "data_sha256"  # what a config says beside its setting


class Holdings(NamedTuple):
    """The folders under a store's root, by their setting without the data's checksum."""

    root: Path
    folders: dict[str, list[Path]]

    def holds(self, setting: dict[str, Any], name: str) -> bool:
        """Whether the setting's folder has a file of that name."""
        store = self.open(setting)
        return store is not None and (store.path / name).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """The store of a setting, on whatever data; None where there is none. Raises InputError where
        there are two, on different data."""
        found = self.folders.get(_name(setting), [])
        names = " and ".join(str(folder) for folder in found)
        require(len(found) < 2, f"{names} are one setting on different data: move one away")
        return Store.at(found[0]) if found else None

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """The scores of runs 0 .. runs - 1; None where some are missing. A damaged file is said."""
        store = self.open(setting)
        return None if store is None or store.missing(runs) else store.load(runs)


def holdings(root: Path) -> Holdings:
    """What lies under a store's root: nothing where there is no such folder. A folder whose config can't
    be read, or is not the one that it is named after, holds nothing."""
    folders: dict[str, list[Path]] = {}
    try:
        for path in sorted(root.glob(f"*/{CONFIG}")):
            with contextlib.suppress(InputError):
                folders.setdefault(_name(Store.at(path.parent).config()), []).append(path.parent)
    except OSError as error:
        raise InputError(f"cannot read {root} ({error.strerror}): name another folder with `out`") from None
    return Holdings(root, folders)


def settings(root: Path) -> list[Path]:
    """The folders under a store's root that hold scores, the one with the newest first; none where there is
    no such folder."""
    folders = [path.parent for path in root.glob(f"*/{CONFIG}") if path.is_file()]
    times = {folder: time for folder in folders if (time := newest_scores(folder)) is not None}
    return sorted(times, key=lambda folder: (-times[folder], folder.name))


def _name(setting: dict[str, Any]) -> str:
    """A setting's canonical text, without its data."""
    return json.dumps({name: value for name, value in setting.items() if name != _DATA}, sort_keys=True)
