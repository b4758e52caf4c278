"""How much a network's steps stretch distances between models, as cells: measured once and stored."""

from typing import TYPE_CHECKING

from audit.runtime.machine import Progress
from audit.settings.setting import Setting, identity
from audit.storage.index import Holdings
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell, step_seconds
from experiments.cells.cell import Cell

if TYPE_CHECKING:
    from audit.conclusions.lipschitz import Steps

EXPERIMENT = "expansion"
# Along how many runs, and at how many steps of each at most, as the library decides by a model's size.
_USUAL_EFFORT = (4, 1250)
EFFORTS = {"wide_fcnn": (4, 223), "convnet": (2, 20), "gelu_convnet": (2, 20)}
_COMPILING_SECONDS = 15.0
# To measure a step takes as long as to train for so many steps of a large model, and never less than this.
_NUM_TRAINING_STEPS = 300
_LEAST_SECONDS = 0.005


def expansion_cell(setting: Setting) -> Cell:
    """Returns the cell of work that measures how much a setting's steps stretch distances between models.

    They are measured along rehearsed runs, which are trained for the measurement alone.
    """
    runs, most_measured = EFFORTS.get(setting.model, _USUAL_EFFORT)

    def is_complete(store: Store) -> bool:
        """Returns whether the store has a measurement along at least `runs` runs."""
        from audit.conclusions import lipschitz  # loads SciPy

        return lipschitz.find_measured(store, runs) is not None

    def do(store: Store, dataset: Dataset, progress: Progress) -> None:
        """Measures the steps along the rehearsed runs, and stores what is found."""
        from audit.conclusions import measuring

        measuring.measure_zoo(store, setting, dataset, runs)
        progress(runs)

    name = f"expansion of {setting.model}'s steps, k = {setting.schedule.periodicity}"
    cell = setting_cell(name, setting, runs, is_complete, do, EXPERIMENT)
    steps = setting.schedule.steps
    seconds_a_step = step_seconds(setting)
    measuring_a_step = max(_NUM_TRAINING_STEPS * seconds_a_step, _LEAST_SECONDS)
    seconds_a_run = steps * seconds_a_step + min(steps, most_measured) * measuring_a_step
    return cell._replace(seconds=_COMPILING_SECONDS + runs * seconds_a_run, request=setting)


def read(held: Holdings, setting: Setting) -> "Steps | None":
    """Returns what was measured of a setting's steps; None where the store does not have it."""
    from audit.conclusions import lipschitz  # loads SciPy

    store = held.open(identity(setting, EXPERIMENT))
    return None if store is None else lipschitz.find_current(store)
