"""Forecasts of an audit: the bounds that it will show and the time that it will take, before it is run."""

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

_SECONDS = 2.0  # for which a probe trains, after compilation
_SEGMENT_STEPS = 10  # after which a probe looks at the clock


class Probe(NamedTuple):
    """How fast this machine trains.

    Attributes:
      model_step: The seconds of a model-step, a step of a single model.
      chunk: The number of runs that are trained at once.
      compilation: The seconds from the start until all is compiled.
    """

    model_step: float
    chunk: int
    compilation: float

    def show_time(self, runs: int, steps: int) -> str:
        """Returns the time of runs of `steps` steps, compilation included, as hours:minutes:seconds."""
        seconds = self.compilation + runs * steps * self.model_step
        return str(timedelta(seconds=round(seconds)))


class _Enough(Exception):
    """Ends a probe."""


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Measures how fast this machine trains an audit of `runs` runs, by its first steps. Nothing is stored.

    Raises:
      InputError: Setting and data do not fit.
    """
    played = build.build(setting, dataset)._replace(segment_steps=_SEGMENT_STEPS)
    chunk = game.chunk_size(played, runs)
    begin = time.perf_counter()
    times: list[float] = []
    model_steps = []

    def note(segment_runs: int, segment_steps: int) -> None:
        """Notes the time when all is compiled, and after each segment; ends the probe after _SECONDS."""
        times.append(time.perf_counter())
        model_steps.append(segment_runs * segment_steps)
        if times[-1] - times[0] > _SECONDS:
            raise _Enough

    try:
        for _ in game.play(played, [(0, runs)], chunk, note):
            pass
    except _Enough:
        pass
    return Probe((times[-1] - times[0]) / sum(model_steps), chunk, times[0] - begin)


def show_bounds(bounds: Sequence[Calibration]) -> str:
    """Returns simulated bounds of an audit as a table: their means and quantiles, a row for each method."""
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
