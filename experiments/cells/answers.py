"""A cell's answer in its store: a JSON object beside its SHA-256."""

import hashlib
import json
from typing import Any

from audit.errors import require
from audit.storage import files
from audit.storage.store import Store

_FILE, _CHECKSUM = "answer.json", "sha256"


def write(store: Store, values: dict[str, Any]) -> None:
    """Keeps an answer; raises InputError where it can't be written."""
    store.write_text(_FILE, json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n")


def read(store: Store) -> dict[str, Any] | None:
    """The answer; None where there is none that is whole. See `Store.distrust` for a damaged one."""
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        return _parsed(content)
    except (ValueError, RecursionError):
        store.distrust(store.path / _FILE, "it is computed again")
        return None


def _parsed(content: bytes) -> dict[str, Any]:
    """An answer; raises ValueError or RecursionError for what is torn or altered."""
    values = json.loads(content)
    require(isinstance(values, dict), "an object")
    checksum = values.pop(_CHECKSUM, None)
    require(checksum == _checksum(values), "altered")
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    """SHA-256 of the values as canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
