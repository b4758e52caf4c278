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
    store.write_text(_FILE, text(values))


def read(store: Store) -> dict[str, Any] | None:
    """The answer; None where there is none that is whole. See `Store.distrust` for a damaged one."""
    content = files.read(store.path / _FILE)
    if content is None:
        return None
    try:
        return parsed(content)
    except (ValueError, RecursionError):
        store.distrust(store.path / _FILE, "it is computed again")
        return None


def text(values: dict[str, Any]) -> str:
    """An answer as it is written."""
    return json.dumps({**values, _CHECKSUM: _checksum(values)}) + "\n"


def parsed(content: bytes, unsigned: bool = False) -> dict[str, Any]:
    """A written answer; raises ValueError or RecursionError for one that is torn, altered or, unless
    `unsigned`, without its checksum."""
    values = json.loads(content)
    require(isinstance(values, dict), "an object")
    checksum = values.pop(_CHECKSUM, None)
    require(checksum == _checksum(values) or (unsigned and checksum is None), "altered")
    return dict(values)


def _checksum(values: dict[str, Any]) -> str:
    """SHA-256 of the values as canonical JSON."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
