"""The hidden-state paper's own cells, beside its audits.

One kind holds the gradient norms of L's canary before clipping (Figure 8), which are trained once and stored.
L is the adversary that inserts the gradient of a training example with a wrong label. The other kind is the
crafted landscape: a single pool of processes solves all of its laws, under a single claim.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audit.methods.level import Level
from audit.runtime.progress import Progress
from audit.settings.setting import Setting, identity
from audit.storage import files
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell
from experiments.cells.cell import Cell, DataSets
from experiments.hidden_state import landscape
from experiments.hidden_state.landscape import Grid

if TYPE_CHECKING:
    from audit.training.game import Game

Norms = NDArray[np.float64]
EXPERIMENT = "canary_norms"
_FILE = "norms.npz"
_LAW_SECONDS = 0.015  # for each step of each of the landscape's cells


def norms_cell(setting: Setting, runs: int) -> Cell:
    """Returns the cell of work that trains runs and stores the norms of their canaries' gradients.

    Args:
      setting: The setting; its adversary is L, which inserts the gradient of an example with a wrong label.
      runs: The number of runs; each draws its own canary.
    """

    def is_complete(store: Store) -> bool:
        """Returns whether the store has the norms of all runs."""
        return _read(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains the runs and stores their norms, unless they are stored already."""
        kept_norms(store, setting, dataset, runs, progress)

    name = f"norms of L's canary, {setting.model}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPERIMENT)
    return cell._replace(request=setting)  # the figure of norms looks up what is stored by it


def landscape_cell(grid: Grid) -> Cell:
    """Returns the cell of work that computes all results of a grid of the crafted landscape.

    These are the exact laws, the simulated audits, and the searches by the hidden-state paper's Algorithm 6.

    Args:
      grid: The noise multipliers, batch sizes, number of steps and number of runs.
    """
    study = landscape.study(grid, *Level())  # at the usual delta and confidence
    # The setting of a store for the cell as a whole. That store holds no result: a process claims it, so that
    # no other does the same work. Each result has a store of its own beside it.
    marker = {"kind": "landscape_sweep", **dataclasses.asdict(grid)}

    def is_done(held: Holdings, data: DataSets) -> bool:
        """Returns whether all results of the grid are stored; no data are needed."""
        return not landscape.results(landscape.with_cells(held), study).missing

    def open_store(out: Path, data: DataSets) -> Store:
        """Returns the store by which the cell is claimed, under the root `out`."""
        return Store(out / landscape.CELLS, marker)

    def do(store: Store, data: DataSets, progress: Progress) -> None:
        """Simulates and solves the grid's results that the store lacks."""
        from experiments.hidden_state import landscape_solve  # loads SciPy

        # Progress is counted in runs, but `keep` reports laws: each counts for an equal share of the runs.
        laws = len(study.all_laws())
        # The store's path is `out`, then the folders of CELLS, then its own folder (see `open_store`).
        out = store.path.parents[len(landscape.CELLS.parts)]
        landscape_solve.keep(out, study, progress=lambda: progress(grid.runs / laws))

    key = json.dumps(marker)
    seconds = _LAW_SECONDS * len(study.cells) * grid.steps
    runs = grid.runs
    return Cell("crafted landscape", key, runs, seconds, is_done, open_store, do, request=grid)


def read_norms(held: Holdings, setting: Setting, runs: int) -> Norms | None:
    """Returns the stored norms (runs, steps) of the first runs; None where fewer runs are stored."""
    store = held.open(identity(setting, EXPERIMENT))
    if store is None:
        return None
    return _read(store, runs)


def kept_norms(
    store: Store,
    setting: Setting,
    dataset: Dataset,
    runs: int,
    progress: Progress = lambda runs: None,
) -> Norms:
    """Returns the canaries' gradient norms (runs, steps); trains the runs unless all of them are stored.

    Args:
      store: The store of the setting's norms; what is trained is written there.
      setting: The setting; its adversary is L, which inserts the gradient of an example with a wrong label.
      dataset: The setting's data.
      runs: The number of runs.
      progress: A function that is called with the number of runs trained since the call before.
    """
    norms = _read(store, runs)
    if norms is None:
        with store.claim():
            # Reads again only for a side effect: under the claim, a damaged file is set aside, and so it is
            # not overwritten below.
            _read(store, runs)
            norms = _train(setting, dataset, runs, progress)
            store.write_arrays(_FILE, {"norms": norms, "sha256": np.array(_checksum(norms))})
    return norms


def _train(setting: Setting, dataset: Dataset, runs: int, progress: Progress) -> Norms:
    """Trains runs and returns the norms (runs, steps) of their canaries' gradients.

    Runs are trained in chunks of equal size, which share one compiled program. Of the last chunk, the norms
    of runs beyond `runs` are dropped.
    """
    from audit.settings import build
    from audit.training import game

    played = build.build(setting, dataset)
    chunk = game.chunk_size(played, runs)
    parts = []
    for first in range(0, runs, chunk):
        size = min(chunk, runs - first)
        norms = canary_norms(played, np.arange(first, first + chunk))
        parts.append(norms[:size])
        progress(size)
    return np.concatenate(parts)


def canary_norms(played: "Game", runs: NDArray[np.int64]) -> Norms:
    """Trains runs and returns the norms (runs, steps) of the canary's gradient before clipping.

    Figure 8 of the hidden-state paper shows them. The norm of a step is taken at the model from which the
    step starts. Every run has its canary in, and draws its own initial model theta_0, canary and noise.

    Args:
      played: The training and its adversary, which crafts a single canary.
      runs: (n,) the runs' numbers, which decide their random draws.
    """
    import jax
    import jax.numpy as jnp
    from jax import Array

    from audit.mechanism.base import Data, Hyperparameters, Schedule, State
    from audit.mechanism.ensemble import Placement
    from audit.training import game

    def norms_of_run(hyper: Hyperparameters, data: Data, schedule: Schedule, run: Array) -> Array:
        """Trains run number `run`; returns the norm of its canary's gradient at every step, (steps,)."""
        # The run's own keys: of its initial model, its canary and its noise.
        theta_key = jax.random.fold_in(game.root(played.seed, "theta"), run)
        canary_key = jax.random.fold_in(game.root(played.seed, "canary"), run)
        noise_key = jax.random.fold_in(game.root(played.seed, "noise"), run)

        theta_0 = played.init(theta_key)
        # What the adversary decides before training: here it draws the example with a wrong label.
        knowledge = played.adversary.init(canary_key, theta_0, jnp.asarray(hyper.clipping_norm))
        presence = jnp.ones(1)  # the single canary is in
        canaries = played.insertion().bind(knowledge, presence)

        def advance(state: State, now: Schedule) -> tuple[State, Array]:
            """Takes one step; returns the state after it, and the norm of the canary at the state before.

            Args:
              state: The run before the step.
              now: The step's row of the schedule: its mini-batch (B,), and whether it inserts the canary, ().
            """
            gradients = canaries.craft(state.step, state.theta)  # (1, p), not clipped yet
            norm = jnp.linalg.norm(gradients[0])
            # A segment takes a schedule with a leading axis of steps, here of length 1.
            this_step = Schedule(now.batches[None], now.mask[None])
            after = played.mechanism.segment(hyper, state, data, this_step, canaries, noise_key)
            return after, norm

        _, norms = jax.lax.scan(advance, played.mechanism.start(theta_0), schedule)
        return norms

    # Every device has a copy of what all runs share, and a part of the runs.
    placement = Placement.local()
    hyper = jax.tree.map(jnp.float32, played.hyper)
    shared = placement.everywhere((hyper, played.data, played.schedule))
    # Every device takes the same number of runs: some runs are repeated, and dropped below.
    padded_runs = np.resize(runs, placement.round_up(len(runs)))
    placed_runs = placement.by_run(jnp.asarray(padded_runs, jnp.uint32))

    # Maps `norms_of_run` over its last argument, the run's number; the first three are shared.
    compute = placement.over_runs(norms_of_run, (None, None, None, 0))
    norms = compute(*shared, placed_runs)
    return np.asarray(norms, np.float64)[: len(runs)]


def _read(store: Store, runs: int) -> Norms | None:
    """Returns a store's norms (runs, steps) of the first `runs` runs; None where it holds fewer.

    A damaged file counts as none. It is reported, and set aside if this process has claimed the store.
    """
    path = store.path / _FILE
    content = files.read(path)
    if content is None:
        return None
    # A file that can't be parsed leaves this block by an exception, and counts as damaged below. So does a
    # file with a wrong checksum, or of another setting.
    with contextlib.suppress(*files.NOT_AN_ARCHIVE):
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            norms = file["norms"]
            checksum = str(file["sha256"])
        if checksum == _checksum(norms) and not store.is_foreign(content):
            return norms[:runs] if len(norms) >= runs else None
    store.distrust(path, "its norms are trained again")
    return None


def _checksum(norms: Norms) -> str:
    """Returns the SHA-256 of the norms' shape and values."""
    shape = f"{norms.shape}".encode()
    values = norms.astype("<f8").tobytes()
    return hashlib.sha256(shape + values).hexdigest()
