"""The cell that measures how much a network's steps expand distances between models.

Bounds on the last model of a network need this measurement.
"""

from audit.runtime.machine import Progress
from audit.settings.setting import Setting
from audit.storage.store import Store
from audit.tasks.task import Dataset
from experiments.cells.audits import setting_cell, step_seconds
from experiments.cells.cell import Cell

EXPANSION = "expansion"
# The number of measured runs, and the largest number of measured steps in a run.
_USUAL_EFFORT = (4, 1250)
EFFORTS = {"wide_fcnn": (4, 223), "convnet": (2, 20), "gelu_convnet": (2, 20)}
_COMPILING_SECONDS = 15.0
# Measuring a step takes as long as this many training steps of a large model, and at least _MIN_SECONDS.
_NUM_TRAINING_STEPS = 300
_MIN_SECONDS = 0.005


def expansion_cell(setting: Setting) -> Cell:
    """Returns the cell that measures how much steps expand distances, in runs that it trains."""
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
