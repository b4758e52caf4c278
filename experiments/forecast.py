"""Forecasts of an audit: the bounds that it will show and the time that it will take, before it is run.

The time follows from a probe, which measures how fast this machine trains.
"""

import math
import textwrap
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from audit.calibration.calibration import Calibration
from audit.calibration.planning import MOST_RUNS
from audit.claims import accounting
from audit.claims.hidden_state import HiddenState
from audit.conclusions import lipschitz, measuring, rehearsals, results
from audit.json_text import finite, write_json
from audit.laws import conversions
from audit.methods.level import show_level
from audit.report.table import Column, Table, at_least, at_most, number
from audit.settings.make import changed
from audit.settings.setting import LAST, Setting
from audit.tasks.task import Dataset
from audit.training import build, game
from audit.training.rehearsal import Effort

_SECONDS = 2.0  # for which a probe trains, after compilation
_MOST_STEPS = 250  # in a run of a probe
_PATIENCE = 60.0  # seconds that a part of a forecast may take
_ENDLESS = 2**31  # more runs than a probe has time for
# How much is measured of a network's steps: little, so that a forecast stays quick.
_QUICK = Effort(runs=2, steps=25, walked=25, reach=4, searched=1, starts=16, rounds=4)
_STEPS_PER_EXPANSION = 400  # training steps that take as long as measuring one step's expansion


class ManyForecast(NamedTuple):
    """What runs with several canaries each show, if canaries of a run do not influence each other.

    Attributes:
      bounds: The lower bounds in simulated audits, a row for each method.
      runs_needed: The number of runs that on average prove the share `Forecast.tightness` of the truth; None
        where MOST_RUNS do not suffice.
    """

    bounds: list[Calibration]
    runs_needed: int | None


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


class LastModelForecast(NamedTuple):
    """The most that the last model alone can leak, where a canary comes in one of every k > 1 steps.

    Attributes:
      k: The number of steps in a period.
      composition: The accountant's epsilon, which holds for all models together.
      state: The upper bound for the last model alone, or a text that says why there is none but
        composition's.
      reach: The epsilon that a canary reaches along a direction in which genuine gradients do not interfere;
        None where no formula gives it.
    """

    k: int
    composition: float
    state: HiddenState | str
    reach: float | None


class Forecast(NamedTuple):
    """An audit's expected bounds and time.

    Attributes:
      bounds: The lower bounds in simulated audits of the planned number of runs, a row for each method.
      upper_bound: The accountant's epsilon.
      tightness: The share of the truth that is to be proven.
      runs_needed: The number of runs that on average prove that share; None where MOST_RUNS do not suffice.
      probe: How fast this machine.
      model: The model's name.
      steps: The number of training steps in a run.
      many: The bounds of several canaries a run; None where they are not requested.
      last_model: The most that the last model alone can leak; None at k = 1, where it is what all models
        leak.
    """

    bounds: list[Calibration]
    upper_bound: float
    tightness: float
    runs_needed: int | None
    probe: Probe
    model: str
    steps: int
    many: ManyForecast | None = None
    last_model: LastModelForecast | None = None

    def seconds(self, runs: int) -> float:
        """Returns the seconds that `runs` runs take, compilation included."""
        return self.probe.compilation + runs * self.probe.model_step * self.steps


def as_text(forecast: Forecast) -> str:
    """Returns the forecast as text, 80 columns wide: bounds, time, and whatever else the forecast holds."""
    # All rows of bounds are of the same simulated audits, so that the first has their setting and truth.
    setting = forecast.bounds[0].setting
    truth = forecast.bounds[0].true_epsilon
    lines = [
        f"if epsilon is {truth:.3f} at delta {show_level(setting.delta)} "
        f"(the accountant's is {at_most(forecast.upper_bound)}),",
        f"{setting.runs} runs show, over {setting.audits} simulated audits "
        f"at confidence {show_level(setting.confidence)}:",
        "",
        _make_table(forecast.bounds, truth).text(),
        "",
        *_describe_time(forecast),
    ]
    if forecast.many is not None:
        lines += ["", *_describe_many(forecast, forecast.many)]
    if forecast.last_model is not None:
        lines += ["", *_describe_last_model(forecast.last_model)]
    return "\n".join(lines)


def _make_table(bounds: Sequence[Calibration], truth: float) -> Table[Any]:
    """Returns the table of bounds, a row for each method.

    The columns "mean", "5%" and "95%" are of a method's bounds over the simulated audits.

    Args:
      bounds: The lower bounds that each method shows in simulated audits.
      truth: The mechanism's epsilon; the last column shows the mean bound as a share of it.
    """
    show = number(".3f")
    # Each column's key in JSON, value, heading, format and width. A column without a key is not in JSON.
    columns = (
        Column("method", lambda row: row.method, "method", width=16, left=True),
        Column("mean", lambda row: row.mean_epsilon, "mean", show, 8),
        Column("low", lambda row: row.low_epsilon, "5%", show, 8),
        Column("high", lambda row: row.high_epsilon, "95%", show, 8),
        Column(None, lambda row: row.mean_epsilon / truth, "of truth", number(".0%"), 9),
    )
    return Table(columns, bounds, gap=" ")


def _describe_time(forecast: Forecast) -> list[str]:
    """Returns lines that say how many runs are needed, and how long the planned and the needed runs take.

    The needed runs are those after which the method "if_gaussian" proves, on average over audits, the share
    `forecast.tightness` of the true epsilon.
    """
    runs = forecast.bounds[0].setting.runs  # the planned number, the same in all rows
    needed = forecast.runs_needed
    probed = forecast.probe
    # `needed` is None where MOST_RUNS runs do not suffice.
    need = f"over {MOST_RUNS:,}" if needed is None else f"about {needed:,}"
    lines = [
        f"if_gaussian, on average {forecast.tightness:.0%} of the truth: {need} runs",
        f"here a model-step takes {_show_step(probed.model_step)} "
        f"({forecast.model}, chunks of {probed.chunk})",
        f"{runs} runs of {forecast.steps} steps: {_show_time(forecast.seconds(runs))}, "
        f"{probed.compilation:.0f} s of them to compile",
    ]
    if needed is not None:
        lines.append(f"{needed} runs: {_show_time(forecast.seconds(needed))}")
    return lines


def _describe_many(forecast: Forecast, many: ManyForecast) -> list[str]:
    """Returns lines on runs with several canaries: their bounds, and how many such runs are needed.

    They follow the lines on runs with a single canary, whose table has the same columns. The needed runs are
    those after which the method "lifted_gaussian" proves, on average over audits, the share
    `forecast.tightness` of the true epsilon.
    """
    setting = many.bounds[0].setting  # the same in all rows
    if many.runs_needed is None:
        need = f"over {MOST_RUNS:,} runs"  # the largest number that was tried is not enough
    else:
        # The runs that were timed had as many canaries each.
        seconds = forecast.seconds(many.runs_needed)
        need = f"about {many.runs_needed:,} runs, {_show_time(seconds)}"
    table = _make_table(many.bounds, forecast.bounds[0].true_epsilon)
    rows = table.text().splitlines()[2:]  # without the head and its rule, which the first table has
    return [
        f"{setting.runs} runs with {setting.canaries} canaries each, if these leave each other alone:",
        *rows,
        f"lifted_gaussian, on average {forecast.tightness:.0%} of the truth: {need}",
    ]


def _describe_last_model(last: LastModelForecast) -> list[str]:
    """Returns lines on the upper bounds for the last model alone, and on what an audit of it can reach.

    The bounds are composition, which holds for all models together, and the hidden-state bound. Where there
    is no hidden-state bound, its line says why. All are epsilons.
    """
    lines = [
        f"the last model alone, a canary in one of {last.k} steps, leaks at most",
        f"  {at_most(last.composition)} by composition, as if all models were seen",
    ]
    if isinstance(last.state, str):  # the reason why there is no hidden-state bound
        lines += textwrap.wrap(f"  no less is known: {last.state}", 80, subsequent_indent="  ")
    else:
        epsilon = at_most(last.state.bound.epsilon)
        bound = f"  {epsilon} as a hidden state: {last.state.reason}"
        lines += textwrap.wrap(bound, 80, subsequent_indent="  ")
        # The bound rests on Lipschitz constants of the steps. Where these were measured along training runs,
        # not proven, a line tells what the bound would be if they were larger.
        if last.state.runs:
            margins = [last.state.describe_margin(factor) for factor in last.state.margins]
            lines.append(f"  ({', '.join(margins)})")
    if last.reach is not None:
        lines.append(
            f"an audit can reach {at_least(last.reach)} where genuine gradients do not interfere"
        )
    return lines


def as_json(forecast: Forecast) -> str:
    """Returns the forecast as a JSON object; the upper bound is null where it is infinite."""
    first = forecast.bounds[0]  # its setting and its truth are those of all rows
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
    if forecast.last_model is not None:
        content["last_model"] = _last_model_json(forecast.last_model)
    if forecast.many is not None:
        content["many_canaries"] = _many_json(forecast.many)
    return write_json(content)


def _last_model_json(last: LastModelForecast) -> dict[str, Any]:
    """Returns the most that the last model alone can leak, for JSON.

    "composition" is the epsilon of all models together, null where it is infinite. "reach" is the epsilon
    that an audit reaches where the data's gradients do not interfere, null where no formula gives it. The
    hidden-state bound has the same fields as in an audit's results. Where there is no such bound, "why_not"
    has the reason.
    """
    content: dict[str, Any] = {"composition": finite(last.composition), "reach": last.reach}
    if isinstance(last.state, str):
        return {**content, "why_not": last.state}
    return {**content, **results.last_model_fields(last.state)}


def _many_json(many: ManyForecast) -> dict[str, Any]:
    """Returns the bounds of runs with several canaries, and how many runs are needed, for JSON."""
    return {
        "canaries": many.bounds[0].setting.canaries,
        "bounds": _make_table(many.bounds, 1.0).json(),  # the share of truth is not in JSON
        "runs_needed": many.runs_needed,
    }


def _show_step(seconds: float) -> str:
    """Formats the time of a step, in nanoseconds, microseconds or milliseconds."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.3g} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.3g} ms"


def _show_time(seconds: float) -> str:
    """Formats the time of runs: in seconds, in minutes from 2 of them on, in hours from 2 of them on."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def probe(setting: Setting, dataset: Dataset, runs: int) -> Probe:
    """Measures how fast this machine trains, by training chunks of the size that the audit will have.

    A chunk is the runs that are trained at once. First a single chunk of one-step runs is timed. From its
    time follows with how many steps a chunk takes half of _SECONDS. Then chunks of so many steps, or fewer,
    are timed for _SECONDS. Nothing is stored.

    Args:
      setting: The audit's setting.
      dataset: The audit's data.
      runs: The number of the audit's runs, on which the size of its chunks depends.

    Returns:
      The time of a model-step in the longer chunks, and the compilation time of the first chunk.

    Raises:
      InputError: Setting and data do not fit.
    """
    one_step = _build_game(setting, dataset, 1)
    chunk = game.chunk_size(one_step, runs)
    first = _time_chunks(one_step, chunk, seconds=0.0)  # a single chunk

    # A chunk is to take half of _SECONDS, so that more than a single chunk is timed where a step is short.
    seconds_per_step = first.model_step * chunk  # of a whole chunk
    affordable_steps = _SECONDS / 2 / seconds_per_step
    # A run has at least a step, and no more than in the audit. _MOST_STEPS time a step well enough.
    steps = int(min(max(affordable_steps, 1), setting.schedule.steps, _MOST_STEPS))
    timed = _time_chunks(_build_game(setting, dataset, steps), chunk, _SECONDS)
    # The second game may reuse programs that were compiled for the first.
    return timed._replace(compilation=first.compilation)


def _build_game(setting: Setting, dataset: Dataset, steps: int) -> game.Game:
    """Builds the audit's game with another number of steps, each of which inserts the canary."""
    shortened = changed(setting, steps=steps, periodicity=1, insert=LAST)
    return build.build(shortened, dataset)


def _time_chunks(played: game.Game, chunk: int, seconds: float) -> Probe:
    """Trains whole chunks for some seconds, and returns how fast that was and how long compilation took.

    Args:
      played: The training configuration and its adversary.
      chunk: The number of runs in a chunk, which are trained at once.
      seconds: The least time to train, after compilation; 0 for a single chunk.
    """
    # Times on the clock: first when all was compiled, then when each segment of a chunk's steps ended.
    times: list[float] = []

    def note_time(segment_runs: int, segment_steps: int) -> None:
        """Notes the time; `game.play` calls it, with numbers that are not needed here."""
        times.append(time.perf_counter())

    begin = time.perf_counter()
    # An iterator over chunks of more runs than there is time for; `next` trains a chunk.
    chunks = game.play(played, [(0, _ENDLESS)], chunk, note_time)
    runs = 0
    while runs == 0 or times[-1] - times[0] < seconds:  # at least one chunk
        runs += len(next(chunks).scores)  # a row of scores for each run
    model_steps = runs * len(played.schedule.mask)  # the mask has an entry for each step
    seconds_per_step = (times[-1] - times[0]) / model_steps
    return Probe(seconds_per_step, chunk, compilation=times[0] - begin)


def forecast_last_model(
    setting: Setting, dataset: Dataset, probed: Probe, delta: float
) -> LastModelForecast | None:
    """Returns the most that the last model alone can leak, and what an audit of it can reach; None at k = 1.

    A canary is inserted in one of every k steps. At k = 1 that is every step, so that no later step hides it.

    Args:
      setting: The audit's setting.
      dataset: The audit's data.
      probed: How fast this machine trains.
      delta: The delta of each epsilon.

    Returns:
      k and three epsilons. The first is composition's upper bound, which holds for all models together. The
      second is the hidden-state upper bound for the last model alone, or the reason why there is none. The
      third is what an audit reaches along a direction in which the data's gradients do not interfere; None
      where no formula gives it.
    """
    k = setting.schedule.periodicity
    if k == 1:
        return None
    composition = accounting.epsilon_upper_bound(
        setting.mechanism.noise_multiplier, setting.insertions, delta
    )
    state = _find_state(setting, dataset, probed, delta)
    reach = None
    # The formula of `compute_mu_along_one_direction` is for plain SGD, and divides by the noise multiplier.
    if setting.mechanism.optimizer == "sgd" and setting.mechanism.noise_multiplier > 0:
        mu = lipschitz.compute_mu_along_one_direction(setting)
        reach = conversions.epsilon_from_mu(mu, delta)
    return LastModelForecast(k, composition, state, reach)


def _find_state(
    setting: Setting, dataset: Dataset, probed: Probe, delta: float
) -> HiddenState | str:
    """Returns the upper bound for the last model alone, or a text that says why there is none.

    The bound needs Lipschitz constants of the training steps. Where none are proven, as for a smooth network,
    they are measured along two training runs. If that would take more than a minute, the text says so.

    Args:
      setting: The audit's setting.
      dataset: The audit's data.
      probed: How fast this machine trains.
      delta: The delta of the bound's epsilon.
    """
    if rehearsals.count_rehearsals(setting) is None:  # nothing is to be measured
        return lipschitz.hidden_state(setting, delta)
    effort = _QUICK  # two runs, and few steps of each
    # Each of the runs is trained, and the constants of `effort.steps` of its steps are measured. Measuring
    # the constant of a single step takes as long as _STEPS_PER_EXPANSION training steps.
    steps_per_run = setting.schedule.steps + _STEPS_PER_EXPANSION * effort.steps
    seconds = effort.runs * steps_per_run * probed.model_step
    if seconds > _PATIENCE:
        return f"`audit` measures how much steps expand, in about {_show_time(seconds)}"
    clipped_sum = build.choices(setting, build.trainee(setting.model, dataset)).clipped_sum
    steps = measuring.measure_steps(setting, build.build(setting, dataset), clipped_sum, effort)
    return lipschitz.hidden_state(setting, delta, steps)
