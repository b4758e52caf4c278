"""An audit's bounds and its time, before it is run: a probe of how fast this machine trains, and what linear
response expects along coordinates."""

import json
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit import game
from audit.machine import prepare_jax
from audit.report.table import Column, Table, number
from audit.settings import build
from audit.settings.make import changed
from audit.settings.setting import LAST, Setting
from audit.statistics import conversions
from audit.statistics.calibration import Calibration
from audit.statistics.many_calibration import ManyCalibration
from audit.statistics.planning import MOST_RUNS
from audit.task import Dataset
from audit.training import chunk_size

_SECONDS = 2.0  # of training, after compilation
_MOST_STEPS = 250  # a run's, of which a chunk is measured
_PATIENCE, _FLOPS = 60.0, 1e10  # seconds, and a second's of a core, for linear response unless asked for
_WHERE = {None: "here", 1: "on the cluster's one worker"}


class ManyForecast(NamedTuple):
    """Bounds of runs with several independent canaries, and the runs that prove the share `tightness`."""

    bounds: list[ManyCalibration]
    runs_needed: int | None


class Probe(NamedTuple):
    """Seconds a model-step, runs a chunk, and seconds until all was compiled."""

    model_step: float
    chunk: int
    compilation: float


class Expected(NamedTuple):
    """mu (p,) that linear response expects of GC-R and GC-S by coordinate; empty where `why` says why."""

    mu: NDArray[np.float64]
    why: str = ""

    def rows(self, delta: float) -> list[tuple[str, int | None, float, float]]:
        """(which coordinate, its index, mu, epsilon): the worst, their average, and the best."""
        if self.why:
            return []
        epsilons = [conversions.epsilon_from_mu(float(mu), delta) for mu in self.mu]
        ends = [("worst", int(np.argmin(self.mu))), ("best", int(np.argmax(self.mu)))]
        worst, best = ((name, at, float(self.mu[at]), epsilons[at]) for name, at in ends)
        return [worst, ("average", None, float(np.mean(self.mu)), float(np.mean(epsilons))), best]


class Forecast(NamedTuple):
    """An audit's expected bounds and time.

    bounds, a row a method, are of simulated audits of the planned number of runs; upper_bound is the
    accountant's epsilon; runs_needed, None where a million do not suffice, are the runs that prove the
    share `tightness` of the truth on average; a run of `model` takes `steps` steps. many: with several
    canaries a run, where they are requested. workers: of the cluster that is to train; None: this machine.
    expected: of canaries along coordinates, an estimate.
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
    expected: Expected | None = None

    def seconds(self, runs: int) -> float:
        """The time that so many runs take, compilation included."""
        chunk = self.probe.chunk
        rounds = math.ceil(math.ceil(runs / chunk) / max(self.workers or 1, 1))
        return self.probe.compilation + min(runs, rounds * chunk) * self.probe.model_step * self.steps


def as_text(forecast: Forecast) -> str:
    """In 80 columns."""
    known, truth = forecast.bounds[0].setting, forecast.bounds[0].true_epsilon
    before = [
        f"if epsilon is {truth:.3f} at delta {known.delta:g} "
        f"(the accountant's is {forecast.upper_bound:.3f}),",
        f"{known.n_scores} runs show, over {known.audits} simulated audits "
        f"at confidence {known.confidence:g}:",
        "",
    ]
    lines = [*before, _table(forecast.bounds, truth).text(), "", *_time_lines(forecast)]
    many = [] if forecast.many is None else ["", *_many_lines(forecast, forecast.many)]
    expected = [] if forecast.expected is None else ["", *_expected_lines(forecast.expected, known.delta)]
    return "\n".join([*lines, *many, *expected])


def _table(bounds: Sequence[Calibration | ManyCalibration], truth: float) -> Table[Any]:
    shown = number(".3f")
    columns = (
        Column("method", lambda row: row.method, "method", width=16, left=True),
        Column("mean", lambda row: row.mean_epsilon, "mean", shown, 8),
        Column("low", lambda row: row.low_epsilon, "5%", shown, 8),
        Column("high", lambda row: row.high_epsilon, "95%", shown, 8),
        Column(None, lambda row: row.mean_epsilon / truth, "of truth", number(".0%"), 9),
    )
    return Table(columns, bounds, gap=" ")


def _expected_lines(expected: Expected, delta: float) -> list[str]:
    if expected.why:
        return [f"linear response, an estimate, is left out: {expected.why}"]
    rows = expected.rows(delta)
    columns = (
        Column("coordinate", _named, "coordinate", width=12, left=True),
        Column("mu", lambda row: row[2], "mu", number(".3f"), 8),
        Column("epsilon", lambda row: row[3], "epsilon", number(".3f"), 8),
    )
    return [
        "linear response expects of a canary along a coordinate (an estimate, no bound):",
        "",
        *Table(columns, rows, gap=" ").text().splitlines(),
        "",
        f"the best is what --gc_s=linear_response audits; plan for it: --epsilon={rows[-1][3]:.3g}",
    ]


def _expected_json(expected: Expected, delta: float) -> dict[str, Any]:
    if expected.why:
        return {"left_out": expected.why}
    names = ("coordinate", "mu", "epsilon")
    return {name: dict(zip(names, row, strict=True)) for name, *row in expected.rows(delta)}


def _named(row: tuple[str, int | None, float, float]) -> str:
    return row[0] if row[1] is None else f"{row[0]} ({row[1]})"


def _many_lines(forecast: Forecast, many: ManyForecast) -> list[str]:
    setting, needed = many.bounds[0].setting, many.runs_needed
    need = f"over {MOST_RUNS:,} runs" if needed is None else f"about {needed:,} runs"
    took = "" if needed is None else f", {_clock(forecast.seconds(needed))}"
    return [
        f"{setting.runs} runs with {setting.canaries} canaries each, if these leave each other alone:",
        *_table(many.bounds, forecast.bounds[0].true_epsilon).text().splitlines()[2:],  # under the head above
        f"lifted_gaussian, on average {forecast.tightness:.0%} of the truth: {need}{took}",
    ]


def _time_lines(forecast: Forecast) -> list[str]:
    runs, needed, probed = forecast.bounds[0].setting.n_scores, forecast.runs_needed, forecast.probe
    need = f"over {MOST_RUNS:,}" if needed is None else f"about {needed:,}"
    where = _WHERE.get(forecast.workers, f"on each of {forecast.workers} workers")
    lines = [
        f"if_gaussian, on average {forecast.tightness:.0%} of the truth: {need} runs",
        f"{where} a model-step takes {_step(probed.model_step)} ({forecast.model}, chunks of {probed.chunk})",
        f"{runs} runs of {forecast.steps} steps: {_clock(forecast.seconds(runs))}, "
        f"{probed.compilation:.0f} s of them to compile",
    ]
    return lines if needed is None else [*lines, f"{needed} runs: {_clock(forecast.seconds(needed))}"]


def as_json(forecast: Forecast) -> str:
    """One object; the upper bound is null where it is infinite."""
    first, needed = forecast.bounds[0], forecast.runs_needed
    content = {
        "epsilon": first.true_epsilon,
        "upper_bound": forecast.upper_bound if math.isfinite(forecast.upper_bound) else None,
        "runs": first.setting.n_scores,
        "bounds": _table(forecast.bounds, first.true_epsilon).json(),
        "tightness": forecast.tightness,
        "runs_needed": needed,
        "probe": forecast.probe._asdict(),
        "seconds": forecast.seconds(first.setting.n_scores),
        "seconds_needed": None if needed is None else forecast.seconds(needed),
        **({} if forecast.workers is None else {"workers": forecast.workers}),
    }
    if forecast.expected is not None:
        content["linear_response"] = _expected_json(forecast.expected, first.setting.delta)
    if forecast.many is not None:
        canaries, rows = forecast.many.bounds[0].setting.canaries, _table(forecast.many.bounds, 1.0).json()
        many = {"canaries": canaries, "bounds": rows, "runs_needed": forecast.many.runs_needed}
        content["many_canaries"] = many
    return json.dumps(content)


def _step(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Trains chunks of the audit's own size: one step first, then as many as take about a second.

    Nothing is kept. Raises InputError where setting and data do not fit.
    """

    def stepping(steps: int) -> game.Game:
        return build.build(
            changed(setting, steps=steps, periodicity=1, insert=LAST), dataset
        )  # each with the canary

    first = stepping(1)
    chunk = chunk_size(first, runs, 0)
    begun = _timed(first, chunk, 0.0)
    steps = int(min(max(_SECONDS / 2 / (begun.model_step * chunk), 1), setting.schedule.steps, _MOST_STEPS))
    return _timed(stepping(steps), chunk, _SECONDS)._replace(compilation=begun.compilation)


def expected(setting: Setting, dataset: Dataset, probed: Probe, patient: bool) -> Expected:
    """What linear response expects; left out where it takes over a minute, unless one is patient."""
    parameters, steps = build.trainee(setting.model, dataset).model.n_parameters, setting.schedule.steps
    none, why = np.zeros(0), build.unresponsive(setting, parameters)
    seconds = steps * (2 * parameters * probed.model_step + 4 * parameters**3 / _FLOPS)
    if not why and seconds > _PATIENCE and not patient:
        why = f"it would take {_clock(seconds)}; ask with --linear_response"
    if why:
        return Expected(none, why)
    return Expected(np.asarray(build.mu_by_coordinate(build.build(setting, dataset))[0], np.float64))


def probe_elsewhere(devices: int, setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """`probe` by a process that has not touched JAX, on a CPU over so many devices."""
    prepare_jax(devices)
    return probe(setting, dataset, runs)


def _timed(played: game.Game, chunk: int, seconds: float) -> Probe:
    marks: list[float] = []
    begin = time.perf_counter()
    chunks = game.play(played, [(0, 2**31)], chunk, lambda runs, steps: marks.append(time.perf_counter()))
    runs = 0
    while not runs or marks[-1] - marks[0] < seconds:
        runs += len(next(chunks).scores)
    model_steps = runs * len(played.schedule.mask)
    return Probe((marks[-1] - marks[0]) / model_steps, chunk, marks[0] - begin)
