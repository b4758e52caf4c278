"""An audit's bounds and its time, before it is run."""

import json
import math
from typing import Any, NamedTuple

from audit.statistics.calibration import Calibration
from audit.statistics.many_calibration import ManyCalibration
from audit.statistics.planning import MOST_RUNS
from audit.storage.results import with_former_names

_WHERE = {None: "here", 1: "on the cluster's one worker"}


class ManyForecast(NamedTuple):
    """Bounds that as many runs with several canaries each show, if canaries leave each other alone, and the
    runs that prove the share `tightness`."""

    bounds: list[ManyCalibration]
    runs_needed: int | None


class Probe(NamedTuple):
    """Seconds a model-step, runs a chunk, and seconds until all was compiled."""

    model_step: float
    chunk: int
    compilation: float


class NotTimed(NamedTuple):
    """A device that the time is not measured on but assumed, as a share of its upper limit: its name, seconds
    that a model-step takes at least, and what sets this limit."""

    device: str
    model_step: float
    by: str
    share: float


class Forecast(NamedTuple):
    """An audit's expected bounds and time.

    bounds, a row a method, are of simulated audits of the planned number of runs; upper_bound is the
    accountant's epsilon; runs_needed, None where a million do not suffice, are the runs that prove the
    share `tightness` of the truth on average; a run of `model` takes `steps` steps. many: with several
    canaries a run, where they are asked for. workers: of the cluster that is to train; None: this machine.
    not_timed: where the probe is none.
    """

    bounds: list[Calibration]
    upper_bound: float
    tightness: float
    runs_needed: int | None
    probe: Probe
    model: str
    steps: int
    many: ManyForecast | None = None
    workers: int | None = None
    not_timed: NotTimed | None = None

    def seconds(self, runs: int) -> float:
        """The time that so many runs take, compilation included."""
        chunk = self.probe.chunk
        rounds = math.ceil(math.ceil(runs / chunk) / max(self.workers or 1, 1))
        return self.probe.compilation + min(runs, rounds * chunk) * self.probe.model_step * self.steps


def as_text(forecast: Forecast) -> str:
    """In 80 columns."""
    lines = [*_bounds_lines(forecast), "", *_time_lines(forecast)]
    many = [] if forecast.many is None else ["", *_many_lines(forecast, forecast.many)]
    return "\n".join([*lines, *many])


def _bounds_lines(forecast: Forecast) -> list[str]:
    """The bounds that so many runs show, a row a method."""
    known, truth = forecast.bounds[0].setting, forecast.bounds[0].true_epsilon
    lines = [
        f"if epsilon is {truth:.3f} at delta {known.delta:g} "
        f"(the accountant's is {forecast.upper_bound:.3f}),",
        f"{known.n_scores} runs show, over {known.audits} simulated audits "
        f"at confidence {known.confidence:g}:",
        "",
        f"{'method':<16} {'mean':>8} {'5%':>8} {'95%':>8} {'of truth':>9}",
        "-" * 53,
    ]
    return [*lines, *(_row(row, truth) for row in forecast.bounds)]


def _row(row: Calibration | ManyCalibration, truth: float) -> str:
    """A method's line."""
    values = f"{row.mean_epsilon:8.3f} {row.low_epsilon:8.3f} {row.high_epsilon:8.3f}"
    return f"{row.method:<16} {values} {row.mean_epsilon / truth:>9.0%}"


def _many_lines(forecast: Forecast, many: ManyForecast) -> list[str]:
    """What several canaries a run change, if they leave each other alone."""
    setting, needed = many.bounds[0].setting, many.runs_needed
    truth = forecast.bounds[0].true_epsilon
    need = f"over {MOST_RUNS:,} runs" if needed is None else f"about {needed:,} runs"
    took = "" if needed is None else f", {_clock(forecast.seconds(needed))}"
    return [
        f"{setting.runs} runs with {setting.canaries} canaries each, if these leave each other alone:",
        *(_row(row, truth) for row in many.bounds),
        f"lifted_gaussian, on average {forecast.tightness:.0%} of the truth: {need}{took}",
    ]


def _time_lines(forecast: Forecast) -> list[str]:
    """The runs that are needed, and how long they and the planned ones take."""
    runs, needed, probe = forecast.bounds[0].setting.n_scores, forecast.runs_needed, forecast.probe
    need = f"over {MOST_RUNS:,}" if needed is None else f"about {needed:,}"
    lines = [
        f"if_gaussian, on average {forecast.tightness:.0%} of the truth: {need} runs",
        f"{_where(forecast)} ({forecast.model}, chunks of {probe.chunk})",
        f"{runs} runs of {forecast.steps} steps: {_clock(forecast.seconds(runs))}, "
        f"{probe.compilation:.0f} s of them to compile",
    ]
    return lines if needed is None else [*lines, f"{needed} runs: {_clock(forecast.seconds(needed))}"]


def _where(forecast: Forecast) -> str:
    """A model-step's time, measured here or assumed elsewhere."""
    step, other = _step(forecast.probe.model_step), forecast.not_timed
    if other is None:
        where = _WHERE.get(forecast.workers, f"on each of {forecast.workers} workers")
        return f"{where} a model-step takes {step}"
    best = f"at least {_step(other.model_step)} ({other.by} limit it)"
    return f"{other.device}, not timed: a model-step takes {best};\nat {other.share:.0%} of that, {step}"


def as_json(forecast: Forecast) -> str:
    """One object; the upper bound is null where it is infinite."""
    first, needed = forecast.bounds[0], forecast.runs_needed
    content = {
        "epsilon": first.true_epsilon,
        "upper_bound": forecast.upper_bound if math.isfinite(forecast.upper_bound) else None,
        "runs": first.setting.n_scores,
        "bounds": with_former_names([_fields(row) for row in forecast.bounds]),
        "tightness": forecast.tightness,
        "runs_needed": needed,
        "probe": forecast.probe._asdict(),
        "seconds": forecast.seconds(first.setting.n_scores),
        "seconds_needed": None if needed is None else forecast.seconds(needed),
        **({} if forecast.workers is None else {"workers": forecast.workers}),
        **({} if forecast.many is None else {"many_canaries": _many_fields(forecast.many)}),
        **({} if forecast.not_timed is None else {"not_timed": forecast.not_timed._asdict()}),
    }
    return json.dumps(content)


def _many_fields(many: ManyForecast) -> dict[str, Any]:
    """The rows with several canaries a run, for JSON."""
    rows = [_fields(row) for row in many.bounds]
    return {"canaries": many.bounds[0].setting.canaries, "bounds": rows, "runs_needed": many.runs_needed}


def _fields(row: Calibration | ManyCalibration) -> dict[str, Any]:
    """A method's row, for JSON."""
    return {
        "method": row.method,
        "mean": row.mean_epsilon,
        "low": row.low_epsilon,
        "high": row.high_epsilon,
    }


def _step(seconds: float) -> str:
    """A model-step's time."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _clock(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
