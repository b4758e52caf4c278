"""An audit's bounds and its time, before it is run.

The time comes from a probe of how fast this machine trains; beside the bounds is what linear response
expects along coordinates.
"""

import json
import math
import textwrap
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.calibration.calibration import Calibration
from audit.calibration.planning import MOST_RUNS
from audit.claims import accounting
from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz, measuring, rehearsals, results
from audit.laws import conversions
from audit.report.table import Column, Table, at_least, at_most, number
from audit.runtime.machine import prepare_jax
from audit.settings import build
from audit.settings.make import changed
from audit.settings.setting import LAST, Setting
from audit.storage.store import finite
from audit.tasks.task import Dataset
from audit.training import game
from audit.training.rehearsal import Effort

_SECONDS = 2.0  # of training, after compilation
_MOST_STEPS = 250  # of a run in a chunk that is measured
_PATIENCE = 60.0  # seconds for linear response, unless it is asked for
_FLOPS = 1e10  # of a core, a second
_ENDLESS = 2**31  # runs, of which a probe plays as many as it has time for
# Of measuring how steps expand.
_QUICK = Effort(runs=2, steps=25, walked=25, reach=4, searched=1, starts=16, rounds=4)
_SUMS_OF_AN_EXPANSION = 400  # training steps that take as long as measuring one


class ManyForecast(NamedTuple):
    """Bounds of runs with several independent canaries, and the runs that prove the share `tightness`."""

    bounds: list[Calibration]
    runs_needed: int | None


class Probe(NamedTuple):
    """Seconds of a model-step, runs of a chunk, and seconds until all was compiled."""

    model_step: float
    chunk: int
    compilation: float


class ExpectedLeak(NamedTuple):
    """What linear response expects of a canary: which coordinate, its index, mu and epsilon.

    Attributes:
      name: "worst", "average" or "best".
      coordinate: Its index; None for the average over all.
      mu: Of the Gaussian trade-off curve.
      epsilon: At the bounds' delta.
    """

    name: str
    coordinate: int | None
    mu: float
    epsilon: float


class Expected(NamedTuple):
    """What linear response expects of GC-R and GC-S.

    Attributes:
      mu: (p,) by coordinate; empty where it is left out.
      why: Why it is left out.
    """

    mu: NDArray[np.float64]
    why: str = ""

    def rows(self, delta: float) -> list[ExpectedLeak]:
        """Returns what is expected of the worst coordinate, on average over all, and of the best.

        Epsilon is at delta, and its average is over coordinates; [] where linear response is left out.
        """
        if self.why:
            return []
        epsilons = [conversions.epsilon_from_mu(float(mu), delta) for mu in self.mu]
        worst = int(np.argmin(self.mu))
        best = int(np.argmax(self.mu))
        mean_mu = float(np.mean(self.mu))
        mean_epsilon = float(np.mean(epsilons))
        return [
            ExpectedLeak("worst", worst, float(self.mu[worst]), epsilons[worst]),
            ExpectedLeak("average", None, mean_mu, mean_epsilon),
            ExpectedLeak("best", best, float(self.mu[best]), epsilons[best]),
        ]


class LastModelForecast(NamedTuple):
    """What the last model alone can leak where canaries come in one of k > 1 steps.

    Attributes:
      k: How many steps are in a period.
      composition: The accountant's epsilon, of all models.
      state: The upper bound on the last model alone, or a text on why composition is the only one.
      reach: Epsilon of a canary along a direction in which genuine gradients do not interfere; None where
        no formula gives it.
    """

    k: int
    composition: float
    state: HiddenState | str
    reach: float | None


class Forecast(NamedTuple):
    """An audit's expected bounds and time.

    Attributes:
      bounds: Of simulated audits of the planned number of runs, a row for each method.
      upper_bound: The accountant's epsilon.
      tightness: A share of the truth.
      runs_needed: The runs that prove that share on average; None where a million do not suffice.
      probe: How fast the machine trains.
      model: The model's name.
      steps: Of a run.
      many: Bounds of several canaries a run, where they are requested.
      workers: Of the cluster that is to train; None for this machine.
      expected: An estimate for canaries along coordinates.
      last_model: What the last model alone can leak; None at k = 1, where it is what all models leak.
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
    last_model: LastModelForecast | None = None

    def seconds(self, runs: int) -> float:
        """Returns the seconds that so many runs take, compilation included.

        Where a cluster trains, its workers take whole chunks side by side.
        """
        chunks = math.ceil(runs / self.probe.chunk)
        workers = max(self.workers or 1, 1)
        rounds = math.ceil(chunks / workers)
        runs_in_turn = min(runs, rounds * self.probe.chunk)
        return self.probe.compilation + runs_in_turn * self.probe.model_step * self.steps


def as_text(forecast: Forecast) -> str:
    """Returns the forecast as text of 80 columns: bounds, time, and whatever else the forecast holds."""
    audits = forecast.bounds[0].setting
    truth = forecast.bounds[0].true_epsilon
    lines = [
        f"if epsilon is {truth:.3f} at delta {audits.delta:g} "
        f"(the accountant's is {forecast.upper_bound:.3f}),",
        f"{audits.runs} runs show, over {audits.audits} simulated audits "
        f"at confidence {audits.confidence:g}:",
        "",
        _make_table(forecast.bounds, truth).text(),
        "",
        *_describe_time(forecast),
    ]
    if forecast.many is not None:
        lines += ["", *_describe_many(forecast, forecast.many)]
    if forecast.last_model is not None:
        lines += ["", *_describe_last_model(forecast.last_model)]
    if forecast.expected is not None:
        lines += ["", *_describe_expected(forecast.expected, audits.delta)]
    return "\n".join(lines)


def _make_table(bounds: Sequence[Calibration], truth: float) -> Table[Any]:
    """Returns the table of bounds, a row for each method.

    Args:
      bounds: What each method shows in simulated audits.
      truth: The mechanisms' epsilon, of which the last column shows a share.
    """
    show = number(".3f")
    columns = (
        Column("method", lambda row: row.method, "method", width=16, left=True),
        Column("mean", lambda row: row.mean_epsilon, "mean", show, 8),
        Column("low", lambda row: row.low_epsilon, "5%", show, 8),
        Column("high", lambda row: row.high_epsilon, "95%", show, 8),
        Column(None, lambda row: row.mean_epsilon / truth, "of truth", number(".0%"), 9),
    )
    return Table(columns, bounds, gap=" ")


def _describe_time(forecast: Forecast) -> list[str]:
    """Returns lines on the runs that are needed, and on the time that runs take."""
    runs = forecast.bounds[0].setting.runs
    needed = forecast.runs_needed
    probed = forecast.probe
    need = f"over {MOST_RUNS:,}" if needed is None else f"about {needed:,}"
    lines = [
        f"if_gaussian, on average {forecast.tightness:.0%} of the truth: {need} runs",
        f"{_describe_place(forecast.workers)} a model-step takes {_show_step(probed.model_step)} "
        f"({forecast.model}, chunks of {probed.chunk})",
        f"{runs} runs of {forecast.steps} steps: {_show_time(forecast.seconds(runs))}, "
        f"{probed.compilation:.0f} s of them to compile",
    ]
    if needed is not None:
        lines.append(f"{needed} runs: {_show_time(forecast.seconds(needed))}")
    return lines


def _describe_place(workers: int | None) -> str:
    """Returns where the runs are to be trained."""
    if workers is None:
        return "here"
    if workers == 1:
        return "on the cluster's one worker"
    return f"on each of {workers} workers"


def _describe_many(forecast: Forecast, many: ManyForecast) -> list[str]:
    """Returns lines on runs with several canaries: their bounds, and the runs that are needed."""
    setting = many.bounds[0].setting
    need = f"over {MOST_RUNS:,} runs"
    if many.runs_needed is not None:
        seconds = forecast.seconds(many.runs_needed)
        need = f"about {many.runs_needed:,} runs, {_show_time(seconds)}"
    table = _make_table(many.bounds, forecast.bounds[0].true_epsilon)
    rows = table.text().splitlines()[2:]  # without a head: these stand under the table above
    return [
        f"{setting.runs} runs with {setting.canaries} canaries each, if these leave each other alone:",
        *rows,
        f"lifted_gaussian, on average {forecast.tightness:.0%} of the truth: {need}",
    ]


def _describe_last_model(last: LastModelForecast) -> list[str]:
    """Returns lines on what bounds the last model alone, and on what an audit can reach."""
    lines = [
        f"the last model alone, a canary in one of {last.k} steps, leaks at most",
        f"  {at_most(last.composition)} by composition, as if all models were seen",
    ]
    if isinstance(last.state, str):
        lines += textwrap.wrap(f"  no less is known: {last.state}", 80, subsequent_indent="  ")
    else:
        epsilon = at_most(last.state.bound.epsilon)
        bound = f"  {epsilon} as a hidden state: {last.state.reason}"
        lines += textwrap.wrap(bound, 80, subsequent_indent="  ")
        if last.state.runs:
            margins = [last.state.describe_margin(factor) for factor in last.state.margins]
            lines.append(f"  ({', '.join(margins)})")
    if last.reach is not None:
        lines.append(
            f"an audit can reach {at_least(last.reach)} where genuine gradients do not interfere"
        )
    return lines


def _describe_expected(expected: Expected, delta: float) -> list[str]:
    """Returns lines on what linear response expects, or on why it is left out."""
    if expected.why:
        return [f"linear response, an estimate, is left out: {expected.why}"]
    rows = expected.rows(delta)
    columns = (
        Column("coordinate", _show_coordinate, "coordinate", width=12, left=True),
        Column("mu", lambda row: row.mu, "mu", number(".3f"), 8),
        Column("epsilon", lambda row: row.epsilon, "epsilon", number(".3f"), 8),
    )
    best = rows[-1]
    return [
        "linear response expects of a canary along a coordinate (an estimate, no bound):",
        "",
        *Table(columns, rows, gap=" ").text().splitlines(),
        "",
        f"the best is what --gc_s=linear_response audits; plan for it: --epsilon={best.epsilon:.3g}",
    ]


def _show_coordinate(row: ExpectedLeak) -> str:
    """Returns which coordinate it is, with its index if any."""
    if row.coordinate is None:
        return row.name
    return f"{row.name} ({row.coordinate})"


def as_json(forecast: Forecast) -> str:
    """Returns the forecast as a JSON object; the upper bound is null where it is infinite."""
    first = forecast.bounds[0]
    needed = forecast.runs_needed
    upper_bound = forecast.upper_bound if math.isfinite(forecast.upper_bound) else None
    content: dict[str, Any] = {
        "epsilon": first.true_epsilon,
        "upper_bound": upper_bound,
        "runs": first.setting.runs,
        "bounds": _make_table(forecast.bounds, first.true_epsilon).json(),
        "tightness": forecast.tightness,
        "runs_needed": needed,
        "probe": forecast.probe._asdict(),
        "seconds": forecast.seconds(first.setting.runs),
        "seconds_needed": None if needed is None else forecast.seconds(needed),
    }
    if forecast.workers is not None:
        content["workers"] = forecast.workers
    if forecast.last_model is not None:
        content["last_model"] = _last_model_json(forecast.last_model)
    if forecast.expected is not None:
        content["linear_response"] = _expected_json(forecast.expected, first.setting.delta)
    if forecast.many is not None:
        content["many_canaries"] = _many_json(forecast.many)
    return json.dumps(content)


def _last_model_json(last: LastModelForecast) -> dict[str, Any]:
    """Returns what the last model alone can leak, its bound in the form of an audit's JSON."""
    content: dict[str, Any] = {"composition": finite(last.composition), "reach": last.reach}
    if isinstance(last.state, str):
        return {**content, "why_not": last.state}
    return {**content, **results.last_model_fields(last.state)}


def _expected_json(expected: Expected, delta: float) -> dict[str, Any]:
    """Returns what linear response expects, an object for each of worst, average and best."""
    if expected.why:
        return {"left_out": expected.why}
    content: dict[str, Any] = {}
    for row in expected.rows(delta):
        content[row.name] = {"coordinate": row.coordinate, "mu": row.mu, "epsilon": row.epsilon}
    return content


def _many_json(many: ManyForecast) -> dict[str, Any]:
    """Returns the bounds of runs with several canaries, and the runs that are needed, for JSON."""
    return {
        "canaries": many.bounds[0].setting.canaries,
        "bounds": _make_table(many.bounds, 1.0).json(),  # the share of truth is not in JSON
        "runs_needed": many.runs_needed,
    }


def _show_step(seconds: float) -> str:
    """Returns the time of a step in a unit that suits it."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms"


def _show_time(seconds: float) -> str:
    """Returns the time of runs in a unit that suits it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Trains chunks of the audit's own size to time them: one step first, then as many as take a second.

    Nothing is stored. Raises InputError where setting and data do not fit.

    Args:
      setting: Of the audit.
      dataset: Its data.
      runs: That the audit has, which its chunks depend on.
    """
    one_step = _build_game(setting, dataset, 1)
    chunk = game.chunk_size(one_step, runs)
    first = _time_chunks(one_step, chunk, seconds=0.0)

    # A chunk takes half of the time, so that at least two are timed.
    affordable_steps = _SECONDS / 2 / (first.model_step * chunk)
    steps = int(min(max(affordable_steps, 1), setting.schedule.steps, _MOST_STEPS))
    timed = _time_chunks(_build_game(setting, dataset, steps), chunk, _SECONDS)
    return timed._replace(compilation=first.compilation)


def _build_game(setting: Setting, dataset: Dataset, steps: int) -> game.Game:
    """Returns the audit's training with another number of steps, each of which inserts the canary."""
    shortened = changed(setting, steps=steps, periodicity=1, insert=LAST)
    return build.build(shortened, dataset)


def _time_chunks(played: game.Game, chunk: int, seconds: float) -> Probe:
    """Trains whole chunks for at least `seconds` after compilation; returns what a model-step took.

    Args:
      played: What is trained.
      chunk: Runs of a chunk.
      seconds: At least; 0 is a single chunk.
    """
    marks: list[float] = []

    def mark(runs: int, steps: int) -> None:
        marks.append(time.perf_counter())

    begin = time.perf_counter()
    chunks = game.play(played, [(0, _ENDLESS)], chunk, mark)
    runs = 0
    while not runs or marks[-1] - marks[0] < seconds:
        runs += len(next(chunks).scores)
    model_steps = runs * len(played.schedule.mask)
    seconds_per_step = (marks[-1] - marks[0]) / model_steps
    return Probe(seconds_per_step, chunk, compilation=marks[0] - begin)


def expected(setting: Setting, dataset: Dataset, probed: Probe, patient: bool) -> Expected:
    """Returns what linear response expects of canaries along coordinates.

    Args:
      setting: Of the audit.
      dataset: Its data.
      probed: How fast this machine trains.
      patient: Whether it is computed where it takes more than a minute.
    """
    why = _find_obstacle(setting, dataset, probed, patient)
    if why:
        return Expected(np.zeros(0), why)
    mu_of_score, _ = build.mu_by_coordinate(build.build(setting, dataset))
    return Expected(np.asarray(mu_of_score, np.float64))


def forecast_last_model(
    setting: Setting, dataset: Dataset, probed: Probe, delta: float
) -> LastModelForecast | None:
    """Returns what an adversary can learn who sees the last model alone; None at k = 1.

    At k = 1 the canary comes in every step, and no step hides anything.
    """
    k = setting.schedule.periodicity
    if k == 1:
        return None
    composition = accounting.epsilon_upper_bound(
        setting.mechanism.noise_multiplier, setting.insertions, delta
    )
    state = _find_state(setting, dataset, probed, delta)
    # The formula is that of plain SGD, and divides by the noise.
    reach = None
    if setting.mechanism.optimizer == "sgd" and setting.mechanism.noise_multiplier > 0:
        mu = lipschitz.compute_mu_along_one_direction(setting)
        reach = conversions.epsilon_from_mu(mu, delta)
    return LastModelForecast(k, composition, state, reach)


def _find_state(
    setting: Setting, dataset: Dataset, probed: Probe, delta: float
) -> HiddenState | str:
    """Returns the bound on a setting's last model, or a text on why there is none.

    Where nothing is proven of a smooth network's steps, they are measured along two runs, unless that takes
    more than a minute.
    """
    if rehearsals.count_rehearsals(setting) is None:
        return lipschitz.hidden_state(setting, delta)
    effort = _QUICK
    measured_steps = _SUMS_OF_AN_EXPANSION * effort.steps
    seconds = effort.runs * (setting.schedule.steps + measured_steps) * probed.model_step
    if seconds > _PATIENCE:
        return f"`audit` measures how much steps expand, in about {_show_time(seconds)}"
    model = build.trainee(setting.model, dataset).model
    clipped_sum = build.choices(setting, model).clipped_sum
    steps = measuring.measure_steps(setting, build.build(setting, dataset), clipped_sum, effort)
    return lipschitz.hidden_state(setting, delta, steps)


def _find_obstacle(setting: Setting, dataset: Dataset, probed: Probe, patient: bool) -> str:
    """Returns why linear response is left out; "" where it is not.

    A step of it takes 2 p steps of training and a QR decomposition of (2 p, p), of about 4 p^3 operations.

    Args:
      setting: Of the audit.
      dataset: Its data.
      probed: How fast this machine trains.
      patient: Whether it may take more than a minute.
    """
    parameters = build.trainee(setting.model, dataset).model.n_parameters
    why = build.unresponsive(setting, parameters)
    if why or patient:
        return why
    seconds_per_step = 2 * parameters * probed.model_step + 4 * parameters**3 / _FLOPS
    seconds = setting.schedule.steps * seconds_per_step
    if seconds <= _PATIENCE:
        return ""
    return f"it would take {_show_time(seconds)}; ask with --linear_response"


def probe_elsewhere(devices: int, setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Starts JAX in this process and times steps of an audit, to be called in a process of its own.

    Args:
      devices: How many devices are made of the process's CPU.
      setting: Of the audit.
      dataset: Its data.
      runs: That the audit has, which its chunks depend on.
    """
    prepare_jax(devices)
    return probe(setting, dataset, runs)
