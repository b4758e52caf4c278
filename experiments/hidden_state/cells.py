"""The paper's own cells: the gradient norms of L's canary before clipping (Figure 8), trained once and kept
in the store; and the crafted landscape, all of whose laws are solved in one pool, under one claim."""

import contextlib
import dataclasses
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audit.progress import Progress
from audit.settings import stored
from audit.settings.setting import Setting, identity
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.task import Dataset
from experiments.cells.audits import is_on, step_seconds
from experiments.cells.cell import Audited, Cell, DataSets, Levels
from experiments.hidden_state import landscape
from experiments.hidden_state.landscape import Grid

if TYPE_CHECKING:
    from audit.game import Game

Norms = NDArray[np.float64]
EXPERIMENT = "canary_norms"
_FILE = "norms.npz"
_LAW_SECONDS = 0.015  # of the landscape's cells, a step


def norms_cell(request: Audited) -> Cell:
    """The norms of a setting over runs with canaries of their own."""
    setting, runs = request.setting, request.runs

    def is_done(held: Holdings, data: DataSets) -> bool:
        store = held.open(identity(setting, EXPERIMENT))
        known = store is not None and is_on(store, data.checksum(setting.model))
        return known and read_norms(held, setting, runs) is not None

    def open_store(out: Path, data: DataSets) -> Store:
        return stored.open_store(out, setting, data.load(setting.model), EXPERIMENT)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        kept_norms(store, setting, data.load(setting.model), runs, progress)

    name, key = f"norms of L's canary, {setting.model}", json.dumps(identity(setting, EXPERIMENT))
    seconds = runs * setting.schedule.steps * step_seconds(setting)
    return Cell(name, key, runs, seconds, is_done, open_store, do, request=request)


def landscape_cell(grid: Grid) -> Cell:
    """A grid's exact and simulated cells, and Algorithm 6."""
    study = landscape.study(grid, *Levels())
    marker = {"kind": "landscape_sweep", **dataclasses.asdict(grid)}

    def is_done(held: Holdings, data: DataSets) -> bool:
        return not landscape.results(landscape.with_cells(held), study).missing

    def open_store(out: Path, data: DataSets) -> Store:
        return Store(out / landscape.CELLS, marker)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        from experiments.hidden_state import landscape_solve

        laws = len(study.all_laws())
        out = store.path.parents[len(landscape.CELLS.parts)]
        landscape_solve.keep(out, study, progress=lambda: progress(grid.runs / laws))

    key, seconds = json.dumps(marker), _LAW_SECONDS * len(study.cells) * grid.steps
    return Cell("crafted landscape", key, grid.runs, seconds, is_done, open_store, do, request=grid)


def read_norms(held: Holdings, setting: Setting, runs: int) -> Norms | None:
    """The stored norms (runs, steps); None where there are none or fewer."""
    store = held.open(identity(setting, EXPERIMENT))
    return None if store is None else _read(store, runs)


def kept_norms(
    store: Store, setting: Setting, dataset: Dataset, runs: int, progress: Progress = lambda runs: None
) -> Norms:
    """The norms (runs, steps), from the store if it has them; else trained, and kept there."""
    norms = _read(store, runs)
    if norms is None:
        with store.claim():
            _read(store, runs)  # sets a damaged file aside
            norms = _train(setting, dataset, runs, progress)
            store.write_arrays(_FILE, {"norms": norms, "sha256": np.array(_checksum(norms))})
    return norms


def _train(setting: Setting, dataset: Dataset, runs: int, progress: Progress) -> Norms:
    from audit import game
    from audit.settings import build

    played = build.build(setting, dataset)
    chunk = game.chunk_size(played, runs)
    parts = []
    for first in range(0, runs, chunk):
        size = min(chunk, runs - first)
        parts.append(canary_norms(played, np.arange(first, first + chunk))[:size])
        progress(size)
    return np.concatenate(parts)


def canary_norms(played: "Game", runs: NDArray[np.int64]) -> Norms:
    """The norms (runs, steps) of the canary before clipping, at the model that each step starts from; every
    run is in, and draws its own theta_0, canary and noise (hidden-state paper, Figure 8)."""
    import jax
    import jax.numpy as jnp
    from jax import Array

    from audit import game
    from audit.mechanism.base import Data, Hyperparameters, Schedule, State
    from audit.mechanism.ensemble import Placement

    def one(hyper: Hyperparameters, data: Data, schedule: Schedule, run: Array) -> Array:
        roots = (game.root(played.seed, name) for name in ("theta", "canary", "noise"))
        init, draw, noise = (jax.random.fold_in(root, run) for root in roots)
        theta_0 = played.init(init)
        known = played.adversary.init(draw, theta_0, jnp.asarray(hyper.clipping_norm))
        canaries = played.insertion().bind(known, jnp.ones(1))

        def advance(state: State, now: Schedule) -> tuple[State, Array]:
            norm = jnp.linalg.norm(canaries.craft(state.step, state.theta)[0])
            part = Schedule(now.batches[None], now.mask[None])
            return played.mechanism.segment(hyper, state, data, part, canaries, noise), norm

        return jax.lax.scan(advance, played.mechanism.start(theta_0), schedule)[1]

    placement = Placement.local()
    shared = jax.tree.map(jnp.float32, played.hyper), played.data, played.schedule
    full = np.resize(runs, placement.round_up(len(runs)))
    run = placement.over_runs(one, (None, None, None, 0))
    norms = run(*placement.everywhere(shared), placement.by_run(jnp.asarray(full, jnp.uint32)))
    return np.asarray(norms, np.float64)[: len(runs)]


def _read(store: Store, runs: int) -> Norms | None:
    path = store.path / _FILE
    content = files.read(path)
    if content is None:
        return None
    with contextlib.suppress(*files.NOT_AN_ARCHIVE):
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            norms, checksum = file["norms"], str(file["sha256"])
        if checksum == _checksum(norms) and not store.is_foreign(content):
            return norms[:runs] if len(norms) >= runs else None
    store.distrust(path, "its norms are trained again")
    return None


def _checksum(norms: Norms) -> str:
    return hashlib.sha256(f"{norms.shape}".encode() + norms.astype("<f8").tobytes()).hexdigest()
