"""Forecasts of an audit: the bounds that it will show and the time that it will take, before it is run."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from audit.calibration.calibration import Calibration
from audit.calibration.planning import MAX_RUNS, planned_method
from audit.json_text import finite, write_json
from audit.methods.level import show_level
from audit.report.table import Column, Table, at_most, number
from audit.settings.make import changed
from audit.settings.setting import LAST, Setting
from audit.tasks.task import Dataset
from audit.training import build, game

_SECONDS = 2.0  # for which a probe trains, after compilation
_MAX_STEPS = 250  # in a run of a probe
_ENDLESS = 2**31  # more runs than a probe has time for


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


class Forecast(NamedTuple):
    """An audit's expected bounds and time.

    Attributes:
      bounds: The lower bounds in simulated audits of the planned number of runs, a row for each method.
      upper_bound: The accountant's epsilon.
      tightness: The share of the truth that is to be proven.
      runs_needed: The number of runs that on average prove that share; None if MAX_RUNS do not suffice.
      probe: How fast this machine trains.
      model: The model's name.
      steps: The number of training steps in a run.
    """

    bounds: Sequence[Calibration]
    upper_bound: float
    tightness: float
    runs_needed: int | None
    probe: Probe
    model: str
    steps: int

    def seconds(self, runs: int) -> float:
        """Returns the seconds that `runs` runs take, compilation included."""
        return self.probe.compilation + runs * self.probe.model_step * self.steps


def as_text(forecast: Forecast) -> str:
    """Returns the forecast as text, 80 columns wide: bounds, the runs that are needed, and their time."""
    setting = forecast.bounds[0].setting  # the same in all rows
    truth = forecast.bounds[0].true_epsilon
    runs = setting.runs
    canaries = "" if setting.canaries == 1 else f" of {setting.canaries} canaries"
    need = f"over {MAX_RUNS:,} runs"
    if forecast.runs_needed is not None:
        need = f"about {forecast.runs_needed:,} runs, {_show_time(forecast, forecast.runs_needed)}"
    probed = forecast.probe
    lines = [
        f"if epsilon is {truth:.3f} at delta {show_level(setting.delta)} "
        f"(the accountant's is {at_most(forecast.upper_bound)}),",
        f"{runs} runs{canaries} show, over {setting.audits} simulated audits "
        f"at confidence {show_level(setting.confidence)}:",
        "",
        _make_table(forecast).text(),
        "",
        f"{planned_method(setting.canaries)}, on average {forecast.tightness:.0%} of the truth: {need}",
        f"{runs} runs of {forecast.steps} steps: {_show_time(forecast, runs)}",
        f"a step takes {probed.model_step:.2g} s ({forecast.model}, chunks of {probed.chunk}), "
        f"compilation {probed.compilation:.0f} s",
    ]
    return "\n".join(lines)


def as_json(forecast: Forecast) -> str:
    """Returns the forecast as a JSON object; the upper bound is null if it is infinite."""
    first = forecast.bounds[0]
    needed = forecast.runs_needed
    content: dict[str, Any] = {
        **forecast._asdict(),
        "epsilon": first.true_epsilon,
        "runs": first.setting.runs,
        "canaries": first.setting.canaries,
        "upper_bound": finite(forecast.upper_bound),
        "bounds": _make_table(forecast).json(),
        "probe": forecast.probe._asdict(),
        "seconds": forecast.seconds(first.setting.runs),
        "seconds_needed": None if needed is None else forecast.seconds(needed),
    }
    return write_json(content)


def _make_table(forecast: Forecast) -> Table[Calibration]:
    """Returns the table of bounds: their means and quantiles over simulated audits, a row for each method."""
    truth = forecast.bounds[0].true_epsilon
    show = number(".3f")
    columns = (
        Column("method", lambda row: row.method, "method", width=16, left=True),
        Column("mean", lambda row: row.mean_epsilon, "mean", show, 8),
        Column("low", lambda row: row.low_epsilon, "5%", show, 8),
        Column("high", lambda row: row.high_epsilon, "95%", show, 8),
        Column(None, lambda row: row.mean_epsilon / truth, "of truth", number(".0%"), 9),
    )
    return Table(columns, forecast.bounds, gap=" ")


def _show_time(forecast: Forecast, runs: int) -> str:
    """Returns the time of `runs` runs, as hours:minutes:seconds."""
    return str(timedelta(seconds=round(forecast.seconds(runs))))


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Measures how fast this machine trains an audit of `runs` runs, on chunks of the audit's size.

    First a single chunk of one-step runs is timed. From its time follows with how many steps a chunk takes
    half of _SECONDS. Then chunks of so many steps are timed for _SECONDS. Nothing is stored.

    Raises:
      InputError: Setting and data do not fit.
    """
    one_step = _build_game(setting, dataset, 1)
    chunk = game.chunk_size(one_step, runs)
    first = _time_chunks(one_step, chunk, seconds=0.0)
    affordable_steps = _SECONDS / 2 / (first.model_step * chunk)
    steps = int(min(max(affordable_steps, 1), setting.schedule.steps, _MAX_STEPS))
    timed = _time_chunks(_build_game(setting, dataset, steps), chunk, _SECONDS)
    # The second game may reuse programs that were compiled for the first.
    return timed._replace(compilation=first.compilation)


def _build_game(setting: Setting, dataset: Dataset, steps: int) -> game.Game:
    """Builds the audit's game with another number of steps, each of which inserts the canary."""
    shortened = changed(setting, steps=steps, periodicity=1, insert=LAST)
    return build.build(shortened, dataset)


def _time_chunks(played: game.Game, chunk: int, seconds: float) -> Probe:
    """Trains whole chunks, at least one, for some seconds after compilation."""
    times: list[
        float
    ] = []  # first when all was compiled, then when each segment of a chunk's steps ended
    begin = time.perf_counter()
    chunks = game.play(played, [(0, _ENDLESS)], chunk, lambda *_: times.append(time.perf_counter()))
    runs = 0
    while runs == 0 or times[-1] - times[0] < seconds:
        runs += len(next(chunks).scores)
    model_steps = runs * len(played.schedule.mask)
    return Probe((times[-1] - times[0]) / model_steps, chunk, compilation=times[0] - begin)
