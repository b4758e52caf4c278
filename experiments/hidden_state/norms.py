"""Figure 8's cells: the gradient norms of L's canary, trained once and kept in the store."""

import dataclasses
import hashlib
import io
import sys
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from experiments.settings.setting import Setting
from models.data.base import Dataset

Norms = NDArray[np.float64]
_FILE = "norms.npz"


def setting_of(setting: Setting) -> dict[str, Any]:
    """What the store knows the norms by, beside the data."""
    return {"kind": "canary_norms", **dataclasses.asdict(setting)}


def open_store(out: Path, setting: Setting, dataset: Dataset) -> Store:
    """The store of a setting's norms on its data."""
    return Store(out, {**setting_of(setting), "data_sha256": dataset.checksum})


def read(held: Holdings, setting: Setting, runs: int) -> Norms | None:
    """The stored norms (runs, steps); None where there are none or fewer."""
    store = held.open(setting_of(setting))
    return None if store is None else _read(store, runs)


def kept(
    store: Store,
    setting: Setting,
    dataset: Dataset,
    runs: int,
    done: Callable[[int], object] = lambda runs: None,
) -> Norms:
    """The norms (runs, steps), from the store if it has them; `done` hears of runs as they end."""
    norms = _read(store, runs)
    if norms is None:
        norms = _train(setting, dataset, runs, done)
        buffer = io.BytesIO()
        np.savez(buffer, norms=norms, sha256=np.array(_checksum(norms)))
        store.write_bytes(_FILE, buffer.getvalue())
    return norms


def _train(setting: Setting, dataset: Dataset, runs: int, done: Callable[[int], object]) -> Norms:
    """The canary's gradient norms, every run with a theta_0, canary and noise of its own."""
    import jax

    from audit import game
    from audit.mechanism import ensemble
    from experiments.settings import build as auditing

    table = auditing.build(setting, dataset)
    theta_0 = table.init(jax.random.key(0))
    bytes_per_run = ensemble.bytes_per_run(table.mechanism, theta_0, table.data, setting.batch_size)
    chunk = ensemble.chunk_size(runs, bytes_per_run)
    parts = []
    for first in range(0, runs, chunk):
        size = min(chunk, runs - first)
        parts.append(game.canary_norms(table, np.arange(first, first + chunk))[:size])
        done(size)
    return np.concatenate(parts)


def _read(store: Store, runs: int) -> Norms | None:
    """The first rows of what is stored; a damaged file is said on stderr and set aside."""
    path = store.path / _FILE
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            norms, checksum = file["norms"], str(file["sha256"])
        if checksum == _checksum(norms):
            return norms[:runs] if len(norms) >= runs else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        pass
    with files.writing(path):
        path.rename(path.with_suffix(f".damaged-{uuid.uuid4().hex[:6]}"))
    print(f"{path} is damaged: set aside, its norms are trained again", file=sys.stderr)
    return None


def _checksum(norms: Norms) -> str:
    """SHA-256 over shape and values."""
    return hashlib.sha256(f"{norms.shape}".encode() + norms.astype("<f8").tobytes()).hexdigest()
