"""A short look at how fast this machine trains a setting."""

import time

from audit import game
from audit.settings import build
from audit.settings.devices import prepare_jax
from audit.settings.make import changed
from audit.settings.setting import Setting
from audit.task import Dataset
from audit.training import chunk_size
from experiments.engine.forecast import Probe

_SECONDS = 2.0  # of training, after compilation
_MOST_STEPS = 250  # a run's, of which a chunk is measured


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Trains chunks of the audit's own size: one step first, then as many as take about a second.

    Nothing is kept. Raises InputError where setting and data do not fit.
    """
    first = _game(setting, dataset, 1)
    chunk = chunk_size(first, runs, 0)
    begun = _timed(first, chunk, 0.0)
    steps = int(min(max(_SECONDS / 2 / (begun.model_step * chunk), 1), setting.schedule.steps, _MOST_STEPS))
    measured = _timed(_game(setting, dataset, steps), chunk, _SECONDS)
    return measured._replace(compilation=begun.compilation)


def probe_elsewhere(devices: int, setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """`probe` by a process that has not touched JAX, on a CPU over so many devices."""
    prepare_jax(devices)
    return probe(setting, dataset, runs)


def _game(setting: Setting, dataset: Dataset, steps: int) -> game.Game:
    """The setting's game, but for so many steps, each with the canary."""
    return build.build(changed(setting, steps=steps, periodicity=1), dataset)


def _timed(played: game.Game, chunk: int, seconds: float) -> Probe:
    """Whole chunks for at least so long."""
    marks: list[float] = []
    begin = time.perf_counter()
    chunks = game.play(played, [(0, 2**31)], chunk, lambda runs, steps: marks.append(time.perf_counter()))
    runs = 0
    while not runs or marks[-1] - marks[0] < seconds:
        runs += len(next(chunks).scores)
    model_steps = runs * len(played.schedule.mask)
    return Probe((marks[-1] - marks[0]) / model_steps, chunk, marks[0] - begin)
