"""Cells that measure training runs: each is trained once and stored.

Figure 8 shows the norms of L's canary, the gradient of an example with a wrong label. Bounds on the last
model of a network need the expansion of its steps: how much they stretch distances between models.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from audit.runtime.machine import Progress
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell, step_seconds
from experiments.cells.cell import Cell, find_answer, read_answer, write_answer

if TYPE_CHECKING:
    from audit.conclusions.lipschitz import Steps
    from audit.training.game import Game

Norms = NDArray[np.float64]
NORMS = "canary_norms"
_KEY = "norms"


def norms_cell(setting: Setting, runs: int) -> Cell:
    """Returns the cell that trains runs and stores the norms of their canaries' gradients.

    The setting's adversary is L. Each run draws its own initial model, canary and noise.
    """

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        from audit.training import build, game

        played = build.build(setting, dataset)
        chunk = game.chunk_size(played, runs)
        all_norms: list[list[float]] = []
        for first in range(0, runs, chunk):
            all_norms += canary_norms(played, np.arange(first, first + chunk)).tolist()
            progress(min(chunk, runs - first))
        write_answer(store, {_KEY: all_norms[:runs]})

    name = f"norms of L's canary, {setting.model}"
    is_complete = partial(_has_norms, runs=runs)
    cell = setting_cell(name, setting, runs, is_complete, do, NORMS)
    return cell._replace(request=setting)


def _has_norms(store: Store, runs: int) -> bool:
    """Returns whether a store has the norms of all runs."""
    answer = read_answer(store)
    return answer is not None and len(answer[_KEY]) >= runs


def read_norms(held: Holdings, setting: Setting, runs: int) -> Norms | None:
    """Returns the stored norms (runs, steps) of the first runs; None if fewer runs are stored."""
    answer = find_answer(held, identity(setting, NORMS))
    if answer is None or len(answer[_KEY]) < runs:
        return None
    return np.array(answer[_KEY][:runs])


def canary_norms(played: "Game", runs: NDArray[np.int64]) -> Norms:
    """Trains runs and returns the norms (runs, steps) of the canary's gradient before clipping.

    A step's norm is taken at the model before the step. Every run inserts its canary. The runs' numbers
    decide their random draws.
    """
    import jax
    import jax.numpy as jnp
    from jax import Array

    from audit.mechanism.base import Canaries, Data, Hyperparameters, Schedule, State
    from audit.training import game

    def norms_of_run(hyper: Hyperparameters, data: Data, schedule: Schedule, run: Array) -> Array:
        """Returns the norms (steps,) of the canary's gradient in one run."""

        def draw_key(name: str) -> Array:
            return jax.random.fold_in(game.root(played.seed, name), run)

        theta_0 = played.init(draw_key("theta"))
        clipping_norm = jnp.asarray(hyper.clipping_norm)
        knowledge = played.adversary.init(draw_key("canary"), theta_0, clipping_norm)
        # Presence 1: the single canary is inserted.
        canaries = Canaries(partial(played.adversary.craft, knowledge), jnp.ones(1))
        noise_key = draw_key("noise")

        def advance(state: State, now: Schedule) -> tuple[State, Array]:
            """Takes one step. Returns the next state, and the canary's norm before the step."""
            norm = jnp.linalg.norm(canaries.craft(state.step, state.theta)[0])
            this_step = Schedule(now.batches[None], now.mask[None])
            after = played.mechanism.segment(hyper, state, data, this_step, canaries, noise_key)
            return after, norm

        _, norms = jax.lax.scan(advance, played.mechanism.start(theta_0), schedule)
        return norms

    hyper = jax.tree.map(jnp.float32, played.hyper)
    compute = jax.jit(jax.vmap(norms_of_run, (None, None, None, 0)))
    norms = compute(hyper, played.data, played.schedule, jnp.asarray(runs, jnp.uint32))
    return np.asarray(norms, np.float64)


EXPANSION = "expansion"
# The number of measured runs, and the most measured steps of a run.
_USUAL_EFFORT = (4, 1250)
EFFORTS = {"wide_fcnn": (4, 223), "convnet": (2, 20), "gelu_convnet": (2, 20)}
_COMPILING_SECONDS = 15.0
# Measuring a step takes as long as this many training steps of a large model, and at least these seconds.
_NUM_TRAINING_STEPS = 300
_MIN_SECONDS = 0.005


def expansion_cell(setting: Setting) -> Cell:
    """Returns the cell that measures the expansion of a setting's steps, along runs that it trains."""
    runs, most_measured = EFFORTS.get(setting.model, _USUAL_EFFORT)

    def is_complete(store: Store) -> bool:
        """Returns whether the store has a measurement of at least `runs` runs."""
        from audit.conclusions import lipschitz  # loads SciPy

        return lipschitz.find_measured(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        from audit.conclusions import measuring

        measuring.measure_zoo(store, setting, dataset, runs)
        progress(runs)

    name = f"expansion of {setting.model}'s steps, k = {setting.schedule.periodicity}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPANSION)
    steps = setting.schedule.steps
    seconds_a_step = step_seconds(setting)
    measuring_a_step = max(_NUM_TRAINING_STEPS * seconds_a_step, _MIN_SECONDS)
    seconds_a_run = steps * seconds_a_step + min(steps, most_measured) * measuring_a_step
    return cell._replace(seconds=_COMPILING_SECONDS + runs * seconds_a_run, request=setting)


def read_expansion(held: Holdings, setting: Setting) -> "Steps | None":
    """Returns the measured expansion of a setting's steps; None if it is not stored."""
    from audit.conclusions import lipschitz  # loads SciPy

    store = held.open(identity(setting, EXPANSION))
    return None if store is None else lipschitz.find_current(store)
