"""What a store holds, found by the settings in plain text: it takes neither the data nor JAX to know."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from audit.errors import InputError, require
from audit.storage.scores import Scores
from audit.storage.store import Store

_DATA = "data_sha256"  # what a config says beside its setting


class Holdings(NamedTuple):
    """The configs under a store's root, by their setting without the data's checksum."""

    root: Path
    configs: dict[str, list[dict[str, Any]]]

    def holds(self, setting: dict[str, Any], name: str) -> bool:
        """Whether the setting's folder has a file of that name."""
        store = self.open(setting)
        return store is not None and (store.path / name).exists()

    def open(self, setting: dict[str, Any]) -> Store | None:
        """The store of a setting, on whatever data; None where there is none. Raises InputError where
        there are two, on different data."""
        found = self.configs.get(_name(setting), [])
        if not found:
            return None
        stores = [Store(self.root, config) for config in found]
        names = " and ".join(str(store.path) for store in stores)
        require(len(stores) == 1, f"{names} are one setting on different data: move one away")
        return stores[0]

    def scores(self, setting: dict[str, Any], runs: int) -> Scores | None:
        """The scores of runs 0 .. runs - 1; None where some are missing. A damaged file is said."""
        store = self.open(setting)
        return None if store is None or store.missing(runs) else store.load(runs)


def holdings(root: Path) -> Holdings:
    """What lies under a store's root: nothing where there is no such folder. A folder whose config can't
    be read holds nothing."""
    configs: dict[str, list[dict[str, Any]]] = {}
    try:
        for path in sorted(root.glob("*/config.json")):
            config = _config(path)
            if config is not None:
                configs.setdefault(_name(config), []).append(config)
    except OSError as error:
        raise InputError(f"cannot read {root} ({error.strerror}): name another folder with --out") from None
    return Holdings(root, configs)


def _config(path: Path) -> dict[str, Any] | None:
    """A folder's config."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _name(setting: dict[str, Any]) -> str:
    """A setting's canonical text, without its data."""
    return json.dumps({name: value for name, value in setting.items() if name != _DATA}, sort_keys=True)
