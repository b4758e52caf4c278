"""Cells that measure training runs. Each cell trains its runs once and stores the measurement.

Figure 8 shows the norms of L's canary, the gradient of an example with a wrong label. Bounds on the last
model of a network need the expansion of its steps: how much they stretch distances between models.
"""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from audit.runtime.machine import Progress
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell, step_seconds
from experiments.cells.cell import Cell, read_answer, write_answer

if TYPE_CHECKING:
    from audit.training.game import Game

Norms = NDArray[np.float64]
NORMS = "canary_norms"
_KEY = "norms"


def norms_cell(setting: Setting, runs: int) -> Cell:
    """Returns the cell that trains runs and stores the norms of their canaries' gradients.

    The setting's adversary is L. Each run draws its own initial model, canary and noise.
    """

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Trains all runs in chunks that fit into memory, and stores the norms (runs, steps)."""
        from audit.training import build, game

        built = build.build(setting, dataset)
        chunk = game.chunk_size(built, runs)
        all_norms: list[list[float]] = []
        # All chunks have the same size, so they share one compiled program. The last may have extra runs.
        for first in range(0, runs, chunk):
            all_norms += canary_norms(built, np.arange(first, first + chunk)).tolist()
            progress(min(chunk, runs - first))
        write_answer(store, {_KEY: all_norms[:runs]})

    def is_complete(store: Store) -> bool:
        """Returns True if the store has the norms of all runs."""
        return take_norms(read_answer(store), runs) is not None

    name = f"norms of L's canary, {setting.model}"
    cell = setting_cell(name, setting, runs, is_complete, do, NORMS)
    return cell._replace(request=setting)


def take_norms(answer: dict[str, Any] | None, runs: int) -> Norms | None:
    """Returns the norms (runs, steps) of the first runs in a stored answer, or None if it has fewer runs."""
    if answer is None or len(answer[_KEY]) < runs:
        return None
    return np.array(answer[_KEY][:runs])


def canary_norms(game: "Game", runs: NDArray[np.int64]) -> Norms:
    """Trains runs, each with its canary inserted, and returns norms (runs, steps) before clipping.

    A norm is that of the canary's gradient at the model before the step. The indices `runs` decide the random
    draws of each run.
    """
    import jax
    import jax.numpy as jnp
    from jax import Array

    from audit.mechanism.base import Canaries, Data, Hyperparameters, Schedule, State

    def norms_of_run(
        hyper: Hyperparameters, data: Data, schedule: Schedule, keys: dict[str, Array]
    ) -> Array:
        """Returns the norms (steps,) of the canary's gradient in one run with these random keys."""
        theta_0 = game.init(keys["theta"])
        clipping_norm = jnp.asarray(hyper.clipping_norm)
        knowledge = game.adversary.init(keys["canary"], theta_0, clipping_norm)
        # Presence 1: the single canary is inserted.
        canaries = Canaries(partial(game.adversary.craft, knowledge), jnp.ones(1))

        def advance(state: State, now: Schedule) -> tuple[State, Array]:
            """Takes one step. Returns the next state, and the canary's norm before the step."""
            norm = jnp.linalg.norm(canaries.craft(state.step, state.theta)[0])
            this_step = Schedule(now.batches[None], now.mask[None])
            after = game.mechanism.segment(hyper, state, data, this_step, canaries, keys["noise"])
            return after, norm

        _, norms = jax.lax.scan(advance, game.mechanism.start(theta_0), schedule)
        return norms

    hyper = jax.tree.map(jnp.float32, game.hyper)
    compute = jax.jit(jax.vmap(norms_of_run, (None, None, None, 0)))
    keys = {name: game.run_keys(name, runs) for name in ("theta", "canary", "noise")}
    norms = compute(hyper, game.data, game.schedule, keys)
    return np.asarray(norms, np.float64)


EXPANSION = "expansion"
# The number of measured runs, and the largest number of measured steps in a run.
_USUAL_EFFORT = (4, 1250)
EFFORTS = {"wide_fcnn": (4, 223), "convnet": (2, 20), "gelu_convnet": (2, 20)}
_COMPILING_SECONDS = 15.0
# Measuring a step takes as long as this many training steps of a large model, and at least _MIN_SECONDS.
_NUM_TRAINING_STEPS = 300
_MIN_SECONDS = 0.005


def expansion_cell(setting: Setting) -> Cell:
    """Returns the cell that trains runs and measures how much their steps expand distances."""
    runs, max_steps = EFFORTS.get(setting.model, _USUAL_EFFORT)

    def is_complete(store: Store) -> bool:
        """Returns True if the store has a measurement of at least `runs` runs."""
        from audit.conclusions import lipschitz  # loads SciPy

        return lipschitz.find_measured(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Measures the expansion and stores it."""
        from audit.conclusions import measuring

        measuring.measure_zoo(store, setting, dataset, runs)
        progress(runs)

    name = f"expansion of {setting.model}'s steps, k = {setting.schedule.periodicity}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPANSION)
    steps = setting.schedule.steps
    training_a_step = step_seconds(setting)
    measuring_a_step = max(_NUM_TRAINING_STEPS * training_a_step, _MIN_SECONDS)
    seconds_a_run = steps * training_a_step + min(steps, max_steps) * measuring_a_step
    return cell._replace(seconds=_COMPILING_SECONDS + runs * seconds_a_run, request=setting)
