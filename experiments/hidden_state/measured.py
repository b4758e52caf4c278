"""Cells that train runs and store a measurement."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit.runtime.machine import Progress
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell
from experiments.cells.cell import Cell, read_answer, write_answer

if TYPE_CHECKING:
    from jax import Array

    from audit.mechanism.base import Data, Hyperparameters, Schedule, State
    from audit.training.game import Game

Norms = NDArray[np.float64]
NORMS = "canary_norms"
_NORMS_FIELD = "norms"


def norms_cell(setting: Setting, runs: int) -> Cell:
    """Returns a cell (a unit of a sweep) that trains runs and stores the norms of their canary gradients.

    The setting's adversary must be L, which inserts a mislabelled example.
    """

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains all runs in chunks that fit into memory, and stores the norms (runs, steps)."""
        from audit.training import build
        from audit.training.game import chunk_size

        game = build.build(setting, dataset)
        size = chunk_size(game, runs)
        all_norms: list[list[float]] = []
        for first in range(0, runs, size):
            chunk = np.arange(first, min(first + size, runs))
            all_norms += canary_norms(game, chunk).tolist()
            progress(len(chunk))
        write_answer(store, {_NORMS_FIELD: all_norms})

    def is_complete(store: Store) -> bool:
        """Returns True if the store has the norms for all runs."""
        return take_norms(read_answer(store), runs) is not None

    name = f"norms of L's canary, {setting.model}"
    cell = setting_cell(name, setting, runs, is_complete, do, NORMS)
    return cell._replace(request=setting)  # for the figure


def take_norms(answer: dict[str, Any] | None, runs: int) -> Norms | None:
    """Returns the norms (runs, steps) of the first `runs` runs in an answer, or None if it has fewer."""
    if answer is None or len(answer[_NORMS_FIELD]) < runs:
        return None
    return np.array(answer[_NORMS_FIELD][:runs])


def canary_norms(game: "Game", runs: NDArray[np.int64]) -> Norms:
    """Trains runs with one canary each; returns the canaries' gradient norms (runs, steps) before clipping.

    Each gradient is evaluated at the model before the step. `runs` are the runs' indices, which determine
    their random draws.
    """
    import jax
    import jax.numpy as jnp

    hyper = jax.tree.map(jnp.float32, game.hyper)  # as in training
    # Runs differ only in their keys, so only the keys have an axis for runs.
    compute = jax.jit(jax.vmap(partial(_norms_of_run, game), (None, None, None, 0)))
    keys = {name: game.run_keys(name, runs) for name in ("theta", "canary", "noise")}
    norms = compute(hyper, game.data, game.schedule, keys)
    return np.asarray(norms, np.float64)


def _norms_of_run(
    game: "Game",
    hyper: "Hyperparameters",
    data: "Data",
    schedule: "Schedule",
    keys: "dict[str, Array]",
) -> "Array":
    """Returns the norms (steps,) of the canary's gradient in one run.

    `keys` are the run's random keys for its initial model ("theta"), its canary and its noise.
    """
    import jax
    import jax.numpy as jnp

    from audit.mechanism.base import Canaries

    theta_0 = game.init(keys["theta"])
    clipping_norm = jnp.asarray(hyper.clipping_norm)
    knowledge = game.adversary.init(keys["canary"], theta_0, clipping_norm)
    inserted = jnp.ones(1)  # the single canary is always present
    canaries = Canaries(partial(game.adversary.craft, knowledge), inserted)

    def advance(state: "State", now: "Schedule") -> "tuple[State, Array]":
        """Takes one step, and returns the next state and the canary's norm before the step."""
        canary = canaries.craft(state.step, state.theta)[0]
        norm = jnp.linalg.norm(canary)
        # A segment needs a schedule with a step axis, here of length 1.
        this_step = now._replace(batches=now.batches[None], mask=now.mask[None])
        after = game.mechanism.segment(hyper, state, data, this_step, canaries, keys["noise"])
        return after, norm

    _, norms = jax.lax.scan(advance, game.mechanism.start(theta_0), schedule)
    return norms


EXPANSION = "expansion"
_SLOW_MODELS = ("convnet", "gelu_convnet")


def expansion_cell(setting: Setting) -> Cell:
    """Returns a cell that trains runs and measures how much steps expand the distance between models.

    Upper bounds on the last model's leakage need this measurement.
    """
    # Each run measures every step, so a few runs suffice.
    runs = 2 if setting.model in _SLOW_MODELS else 4

    def is_complete(store: Store) -> bool:
        """Returns True if the store has a measurement of at least `runs` runs."""
        from audit.conclusions import lipschitz  # loads SciPy

        return lipschitz.find_measured(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains all runs, and stores how much their steps increase the distance between two models."""
        from audit.conclusions.measuring import measure

        measure(store, setting, dataset, runs)
        progress(runs)

    name = f"expansion of {setting.model}'s steps, k = {setting.schedule.periodicity}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPANSION)
    return cell._replace(request=setting)  # for the figure
