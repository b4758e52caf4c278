"""Forecasts of an audit's bounds and training time."""

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from audit.calibration.calibration import Calibration
from audit.report.table import make_text_table
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
    model_steps = 0

    def note(segment_runs: int, segment_steps: int) -> None:
        """Records the time and the work of a segment; ends the probe after 2 seconds of training.

        The first call, without work, comes after the compilation.
        """
        nonlocal model_steps
        model_steps += segment_runs * segment_steps
        times.append(time.perf_counter())
        if times[-1] - times[0] > _MAX_SECONDS:
            raise _Enough

    with contextlib.suppress(_Enough):
        for _ in game.play(played, [(0, runs)], chunk, note):
            pass
    return Probe((times[-1] - times[0]) / model_steps, chunk, times[0] - begin)


def show_bounds(bounds: Sequence[Calibration]) -> str:
    """Returns the table of an audit's simulated bounds: a row for each method, with mean and quantiles."""
    setting = bounds[0].setting  # the same in all rows
    truth = bounds[0].true_epsilon
    records = []
    for row in bounds:
        record = {
            "method": row.method,
            "mean": f"{row.mean_epsilon:.3f}",
            "5%": f"{row.low_epsilon:.3f}",
            "95%": f"{row.high_epsilon:.3f}",
            "of truth": f"{row.mean_epsilon / truth:.0%}",
        }
        records.append(record)
    canaries = ""
    if setting.canaries > 1:
        canaries = f" of {setting.canaries} canaries"
    before = (
        f"if epsilon is {truth:.3f} at delta {show_level(setting.delta)}, "
        f"{setting.runs} runs{canaries} show",
        f"over {setting.audits} simulated audits at confidence {show_level(setting.confidence)}:",
        "",
    )
    right = ("mean", "5%", "95%", "of truth")
    return make_text_table(records, right, before=before).text()
