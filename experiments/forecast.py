"""Forecasts of an audit's bounds and training time."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from audit.calibration.calibration import Calibration
from audit.report.table import Column, Table, number
from audit.settings.setting import Setting
from audit.tasks.task import Dataset
from audit.training import build, game
from audit.written import show_level

_MAX_SECONDS = 2.0  # of a probe's training after compilation
_SEGMENT_STEPS = 10  # steps between two measurements of the time


class Probe(NamedTuple):
    """The training speed of this machine.

    Attributes:
      model_step: The seconds of a step of a single model.
      chunk: The number of runs trained together.
      compilation: The seconds of building and compilation.
    """

    model_step: float
    chunk: int
    compilation: float

    def show_time(self, runs: int, steps: int) -> str:
        """Returns the time of runs of `steps` steps, with compilation, as hours:minutes:seconds."""
        return str(timedelta(seconds=round(self.compilation + runs * steps * self.model_step)))


class _Enough(Exception):
    """Ends a probe."""


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Measures the training speed of an audit of `runs` runs by its first steps, without storing them.

    Raises:
      InputError: The setting does not fit the data.
    """
    played = build.build(setting, dataset)._replace(segment_steps=_SEGMENT_STEPS)
    chunk = game.chunk_size(played, runs)
    begin = time.perf_counter()
    times: list[float] = []
    model_steps = []

    def note(segment_runs: int, segment_steps: int) -> None:
        """Records the time after compilation and after each segment; ends the probe after _MAX_SECONDS."""
        times.append(time.perf_counter())
        model_steps.append(segment_runs * segment_steps)
        if times[-1] - times[0] > _MAX_SECONDS:
            raise _Enough

    try:
        for _ in game.play(played, [(0, runs)], chunk, note):
            pass
    except _Enough:
        pass
    return Probe((times[-1] - times[0]) / sum(model_steps), chunk, times[0] - begin)


def show_bounds(bounds: Sequence[Calibration]) -> str:
    """Returns the table of an audit's simulated bounds: a row for each method, with mean and quantiles."""
    setting = bounds[0].setting  # the same in all rows
    truth = bounds[0].true_epsilon
    show = number(".3f")
    columns = (
        Column(None, lambda row: row.method, "method", width=16, left=True),
        Column(None, lambda row: row.mean_epsilon, "mean", show, 8),
        Column(None, lambda row: row.low_epsilon, "5%", show, 8),
        Column(None, lambda row: row.high_epsilon, "95%", show, 8),
        Column(None, lambda row: row.mean_epsilon / truth, "of truth", number(".0%"), 9),
    )
    canaries = "" if setting.canaries == 1 else f" of {setting.canaries} canaries"
    before = (
        f"if epsilon is {truth:.3f} at delta {show_level(setting.delta)}, "
        f"{setting.runs} runs{canaries} show",
        f"over {setting.audits} simulated audits at confidence {show_level(setting.confidence)}:",
        "",
    )
    return Table(columns, bounds, before=before, gap=" ").text()
