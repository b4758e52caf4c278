"""Figures and pages made from a setting's scores: whether those that are there would be made alike now.

made.json says what they were made from, and the SHA-256 of each. It is written after them: what a kill cut
off is made again, and so is what anyone changed.
"""

import hashlib
import json
from collections.abc import Iterable

from audit.statistics.conclusion import Conclusion
from audit.storage import files
from audit.storage.store import Store
from audit.version import __version__

_MADE = "made.json"


def source(store: Store, conclusion: Conclusion) -> str:
    """SHA-256 of what decides a conclusion's files: this version, the setting, levels and scores."""
    said: list[object] = [__version__, store.text, conclusion.delta, conclusion.confidence]
    if conclusion.looks is not None:
        said += [conclusion.looks.schedule, [look.runs for look in conclusion.looks.taken]]
    digest = hashlib.sha256(json.dumps(said).encode())
    for scores in (conclusion.scores_in, conclusion.scores_out):
        digest.update(f"{scores.shape}".encode() + scores.astype("<f8").tobytes())
    return digest.hexdigest()


def stands(store: Store, made_from: str, names: Iterable[str]) -> bool:
    """Whether files of these names were made from that source, and nobody touched them since."""
    content = files.read(store.path / _MADE)
    try:
        kept = None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return False
    return bool(kept == _record(store, made_from, names))


def mark(store: Store, made_from: str, names: Iterable[str]) -> None:
    """Keeps that files were made from a source; raises InputError where that can't be written."""
    store.write_text(_MADE, json.dumps(_record(store, made_from, names), indent=2) + "\n")


def _record(store: Store, made_from: str, names: Iterable[str]) -> dict[str, object]:
    """The content of made.json for the files as they are, null for one that is missing."""
    contents = {name: files.read(store.path / name) for name in names}
    sums = {name: c if c is None else hashlib.sha256(c).hexdigest() for name, c in contents.items()}
    return {"from": made_from, "files": sums}
