"""Times engines that train by DP-SGD, in rounds that time each engine once.

Each engine runs in processes of its own. It must take our step before it is timed.
"""

import contextlib
import importlib
import multiprocessing
import signal
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import trange

from audit.errors import InputError, require
from audit.report.table import Column, Table
from audit.runtime.machine import cores
from audit.tasks.task import Sources

if TYPE_CHECKING:
    from experiments.benchmark.engines_jax import Engine, Problem

_SPAWN = multiprocessing.get_context("spawn")  # a process with JAX's threads cannot fork


class TimedModel(NamedTuple):
    """How engines are timed on a model.

    Attributes:
      steps: the number of mini-batches through which engines cycle.
      tolerance: the largest distance between an engine's first step and ours, without noise at learning rate
        1. Both steps are means of clipped gradients with norms of at most 1.
      batch_size: the size of mini-batches; None for the model's own.
    """

    steps: int
    tolerance: float
    batch_size: int | None = None


MODELS = {
    "fcnn": TimedModel(steps=250, tolerance=1e-5),
    "convnet": TimedModel(steps=10, tolerance=1e-5),
    # Its 18 layers add many numbers in float32, each engine in another order.
    "resnet18": TimedModel(steps=8, tolerance=1e-3, batch_size=8),
}


class Peer(NamedTuple):
    """An engine that is not built yet.

    Attributes:
      module: the file in this folder that has the function which builds it.
      package: the package that it needs, as pip calls it.
      one_thread: whether it uses one core, so that a CPU runs a process for each core.
    """

    module: str
    package: str
    one_thread: bool = False


ENGINES = {
    "ours": Peer("engines_jax", "jax"),
    "jax_privacy": Peer("engines_jax", "jax-privacy"),
    "opacus": Peer("engines_torch", "opacus", one_thread=True),
    "torch_func": Peer("engines_torch", "torch"),
}


class Timing(NamedTuple):
    """The speed of an engine on a model.

    Attributes:
      model: the model's name.
      engine: the engine's name.
      rates: the model-steps a second in each round.
      built: the engine as its process reported it.
      processes: the number of its processes.
    """

    model: str
    engine: str
    rates: list[float]
    built: "Engine"
    processes: int


def measure(
    model: str, engines: Sequence[str], rounds: int, seconds: float, sources: Sources
) -> list[Timing]:
    """Times engines on a model; shows a progress bar.

    Args:
      model: a name of `MODELS`.
      engines: names of `ENGINES`.
      rounds: the number of rounds.
      seconds: the least time for which an engine is timed in a round.
      sources: where the data come from.

    Raises:
      InputError: the data cannot be read, an engine fails, or its step differs from ours.
    """
    problem = _make_problem(model, sources)
    teams = [_Team(engine, problem, MODELS[model].tolerance) for engine in engines]
    rates: list[list[float]] = [[] for _ in teams]
    for _ in trange(rounds, desc=model, leave=False):
        for team, team_rates in zip(teams, rates, strict=True):
            team_rates.append(team.rate(seconds))
    timings = []
    for team, team_rates in zip(teams, rates, strict=True):
        team.stop()
        processes = len(team.connections)
        timings.append(Timing(model, team.name, team_rates, team.engine, processes))
    return timings


def _make_problem(model: str, sources: Sources) -> "Problem":
    """Returns the model's problem, made in a process of its own, whose JAX ends with it."""
    from experiments.benchmark import engines_jax

    timed = MODELS[model]
    ignore = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(1, _SPAWN, signal.signal, ignore) as pool:
        made = pool.submit(engines_jax.make_problem, model, timed.steps, timed.batch_size, sources)
        return made.result()


class _Team:
    """The processes of an engine, which measure at the same time.

    Attributes:
      name: the engine's name.
      connections: the connections to the processes.
      engine: what the first process reported.
    """

    def __init__(self, name: str, problem: "Problem", tolerance: float) -> None:
        """Starts the processes, and waits until each has built the engine and taken our step."""
        self.name = name
        self.connections: list[Connection] = []
        self.engine = self._start(problem, tolerance)
        if ENGINES[name].one_thread and self.engine.device == "cpu":
            for _ in range(cores() - 1):
                self._start(problem, tolerance)

    def _start(self, problem: "Problem", tolerance: float) -> "Engine":
        here, there = _SPAWN.Pipe()
        _SPAWN.Process(target=_serve, args=(there, self.name, problem), daemon=True).start()
        there.close()  # the process has its own copy; the connection ends with the process
        self.connections.append(here)
        engine: Engine = self._receive(here)
        require_agreement(self.name, engine.distance, tolerance)
        return engine

    def _receive(self, connection: Connection) -> Any:
        """Waits for a process's answer; raises InputError if the engine fails."""
        try:
            answer = connection.recv()
        except EOFError:
            raise InputError(f"{self.name}'s process ended: leave it out of --engines") from None
        if isinstance(answer, InputError):
            raise answer
        return answer

    def rate(self, seconds: float) -> float:
        """Returns the units a second of all processes together, measured for some seconds."""
        for connection in self.connections:
            connection.send(seconds)
        total = 0.0
        for connection in self.connections:
            total += self._receive(connection)
        return total

    def stop(self) -> None:
        """Ends the processes."""
        for connection in self.connections:
            connection.close()


def require_agreement(name: str, distance: float, tolerance: float) -> None:
    """Raises InputError if an engine's first step is further than `tolerance` from ours."""
    require(
        distance <= tolerance,
        f"{name}'s step is {distance:.1e} away from ours (at most {tolerance:g}): "
        "a comparison would mean nothing; leave it out of --engines",
    )


def _serve(connection: Connection, name: str, problem: "Problem") -> None:
    """Builds an engine in a process of its own, sends it without `run`, and answers seconds with rates."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and so this process
    from experiments.benchmark.engines_jax import measure_rate

    try:
        module = importlib.import_module(f"experiments.benchmark.{ENGINES[name].module}")
        engine = getattr(module, name)(problem)
        engine.run()  # compiles
    except Exception as error:  # whatever it is, the parent reports it in one line
        reason = " ".join(str(error).split())[:200]
        connection.send(InputError(f"{name}: {type(error).__name__}: {reason}"))
        return
    connection.send(engine._replace(run=None))
    with contextlib.suppress(EOFError):  # the parent has closed the connection, or has ended
        while True:
            seconds = connection.recv()
            connection.send(measure_rate(engine.run, seconds))


def make_table(timings: Sequence[Timing]) -> Table[Timing]:
    """Returns the table with a row for each model and engine."""
    ours = {row.model: row.rates for row in timings if row.engine == "ours"}

    def find_ratios(row: Timing) -> list[float] | None:
        """Returns our rate over the engine's in each round; None for ours, and if ours is not timed."""
        if row.engine == "ours" or row.model not in ours:
            return None
        pairs = zip(ours[row.model], row.rates, strict=True)
        return [our_rate / rate for our_rate, rate in pairs]

    steps_per_second = "model_steps_per_second"
    columns = (
        Column("model", lambda row: row.model, "model", left=True),
        Column("engine", lambda row: row.engine, "engine", width=11, left=True),
        Column(steps_per_second, find_median_rate, "model-steps/s", _show_rate),
        Column("ratios", find_ratios, "ours is faster by", _show_ratios, width=20, left=True),
        Column("rates", lambda row: row.rates),
        Column("models_at_once", lambda row: row.built.models),
        Column("processes", lambda row: row.processes),
        Column("distance_from_ours", lambda row: row.built.distance),
        Column("device", lambda row: row.built.device),
    )
    return Table(columns, timings)


def find_median_rate(row: Timing) -> float:
    """Returns the median of the rounds' rates."""
    return statistics.median(row.rates)


def _show_ratios(ratios: list[float]) -> str:
    """Returns the median, the least and the largest ratio over rounds."""
    median = _show_rate(statistics.median(ratios))
    return f"{median} ({_show_rate(min(ratios))} to {_show_rate(max(ratios))})"


def _show_rate(value: float) -> str:
    """Formats a rate or a ratio with three significant digits, or as a whole number from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
