"""Rounds in which every engine is timed once, and what they come to: a table, or JSON.

Engines run in processes of their own, so that their memory and their threads are their own. A worker builds
its engine, which compiles and warms up, and compares its step with ours; then it measures on request. The
engines' libraries are imported in the workers only.
"""

import contextlib
import json
import pickle
import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from audit.errors import InputError, require
from audit.report.table import Column, Table, number
from audit.runtime import processes
from audit.runtime.machine import cores, prepare_jax
from audit.tasks.task import Sources
from experiments.engine.engines import DPSGD, GEMM, GEMM_SIZE, TIMED, About, Build, Kind, rate

_GEMM_SECONDS = 1.0  # for which the product of matrices is timed, at most


class Memory(NamedTuple):
    """Bytes: a process's peak (its GPU's where it has one), and its peak after its imports."""

    peak: int
    imports: int


class Measurement(NamedTuple):
    """An engine on a model.

    Attributes:
      model, engine: Their names.
      rates: Units (see `Work`) a second, a value for each round.
      gemm: Floating-point operations a second of the product of matrices, a value for each round.
      flops: Floating-point operations of a unit.
      memory: Summed over the engine's processes.
      about: What the engine says of itself.
      processes: How many the engine has.
    """

    model: str
    engine: str
    rates: list[float]
    gemm: list[float]
    flops: int
    memory: Memory
    about: About
    processes: int

    @property
    def unit(self) -> str:
        """Returns what the rates count, "model-steps" or "client-updates"."""
        return TIMED[self.model].work.unit

    def rate(self) -> float:
        """Returns the rounds' median."""
        return statistics.median(self.rates)

    def gemm_share(self) -> float:
        """Returns the model's arithmetic a second over that of the matrix product: the rounds' median."""
        ratios = []
        for units_per_second, gemm in zip(self.rates, self.gemm, strict=True):
            ratios.append(units_per_second * self.flops / gemm)
        return statistics.median(ratios)

    def fields(self) -> dict[str, Any]:
        """Returns the measurement as JSON has it; names of rates have the unit in them."""
        units = self.unit.replace("-", "_")
        return {
            "model": self.model,
            "engine": self.engine,
            f"{units}_per_second": self.rate(),
            "gemm_share": self.gemm_share(),
            "peak_memory_bytes": self.memory.peak,
            "import_memory_bytes": self.memory.imports,
            f"rounds_{units}_per_second": self.rates,
            "rounds_gemm_flops_per_second": self.gemm,
            "gemm_flops_per_second": statistics.median(self.gemm),
            f"flops_per_{units.removesuffix('s')}": self.flops,
            "device": self.about.device,
            "processes": self.processes,
            "models_at_once": self.about.models,
            "distance_from_ours": self.about.distance,
        }


def measure(
    model: str, kinds: Sequence[Kind], rounds: int, seconds: float, sources: Sources
) -> list[Measurement]:
    """Times every engine on a model, and a product of matrices, in turn, under a progress bar.

    Args:
      model: One of `TIMED`.
      kinds: The engines.
      rounds: In each of which every engine is timed once.
      seconds: For how long an engine is timed in a round, at least.
      sources: Where the data come from.

    Raises:
      InputError: The data can't be had, an engine fails, or its step differs from ours.
    """
    bar = tqdm(total=1 + len(kinds) * (1 + rounds), desc=f"{model}: data", leave=False)
    with tempfile.TemporaryDirectory() as folder, bar:
        problem = Path(folder, "problem.pickle")
        flops = processes.run_in_own_process(partial(_write_problem, model, sources, problem))
        bar.update()
        product = Team(GEMM, problem)
        teams = []
        for kind in kinds:
            bar.set_description(f"{model}: {kind.name} starts")
            teams.append(Team(kind, problem, TIMED[model].tolerance))
            bar.update()

        rates: list[list[float]] = [[] for _ in teams]
        gemm: list[float] = []
        for _ in range(rounds):
            products_per_second = product.rate(min(seconds, _GEMM_SECONDS))
            gemm.append(2.0 * GEMM_SIZE**3 * products_per_second)
            for team, team_rates in zip(teams, rates, strict=True):
                bar.set_description(f"{model}: {team.name}")
                team_rates.append(team.rate(seconds))
                bar.update()

        product.stop()
        measurements = []
        for team, team_rates in zip(teams, rates, strict=True):
            memory = team.stop()
            measurement = Measurement(
                model, team.name, team_rates, gemm, flops, memory, team.about, len(team.workers)
            )
            measurements.append(measurement)
        return measurements


def _write_problem(model: str, sources: Sources, path: Path) -> int:
    """Makes a model's problem and writes it as a pickle; returns the floating-point operations of its unit.

    Runs in a process of its own, which JAX's settings and the data's memory end with.
    """
    prepare_jax()
    from experiments.engine import peers_jax

    row = TIMED[model]
    problem: Any
    if row.work is DPSGD:
        problem, flops = peers_jax.make_problem(model, row.steps, row.batch_size, sources)
    else:
        problem, flops = peers_jax.make_federated_problem(model, row.steps, sources)
    path.write_bytes(pickle.dumps(problem, protocol=5))
    return flops


class Team:
    """An engine's processes: one, or one for each core, which then measure at the same time."""

    def __init__(self, kind: Kind, problem: Path, tolerance: float = 0.0) -> None:
        """Starts the processes, which build the engine, and waits until each agrees with our step.

        Args:
          kind: The engine.
          problem: The file that has the problem.
          tolerance: The largest distance of its noiseless step from ours.
        """
        self.name = kind.name
        self.workers = [Worker(kind, problem)]
        self.about = self.workers[0].about(tolerance)
        if kind.chooses:
            # Started afresh: the numbers of models that it tried count in its peak memory.
            self.workers[0].stop()
            self.workers = [Worker(kind, problem, self.about.models)]
            self.workers[0].about(tolerance)
        if kind.one_thread and self.about.platform == "cpu":
            for _ in range(cores() - 1):
                self.workers.append(Worker(kind, problem))
        for worker in self.workers[1:]:
            worker.about(tolerance)

    def rate(self, seconds: float) -> float:
        """Returns the units a second of all processes together."""
        for worker in self.workers:
            worker.begin(seconds)
        return sum(worker.rate() for worker in self.workers)

    def stop(self) -> Memory:
        """Ends the processes; returns the sums of their memory."""
        memories = [worker.stop() for worker in self.workers]
        peak = sum(memory.peak for memory in memories)
        imports = sum(memory.imports for memory in memories)
        return Memory(peak, imports)


class Worker:
    """A process that holds an engine; raises InputError where the engine fails."""

    def __init__(self, kind: Kind, problem: Path, *models: int) -> None:
        self.name = kind.name
        self._here, there = processes.pipe()
        self._process = processes.begin(_serve, there, kind.load, problem, *models)
        there.close()

    def about(self, tolerance: float) -> About:
        """Waits until the engine is ready, and returns what it says of itself.

        Raises InputError where its step is further than `tolerance` from ours.
        """
        about: About = self._receive()
        require_agreement(self.name, about, tolerance)
        return about

    def begin(self, seconds: float) -> None:
        """Makes the process measure for some seconds; `rate` then waits for it."""
        self._here.send(seconds)

    def rate(self) -> float:
        """Waits for the measurement that was begun; returns units a second."""
        units_per_second: float = self._receive()
        return units_per_second

    def stop(self) -> Memory:
        """Ends the process, by None in place of seconds; returns the memory that it took."""
        self._here.send(None)
        memory: Memory = self._receive()
        self._process.join()
        return memory

    def _receive(self) -> Any:
        """Waits for an answer; raises InputError where the process sends one, or dies."""
        try:
            answer = self._here.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise InputError(
                f"{self.name} ended with status {status}: leave it out of --engines"
            ) from None
        if isinstance(answer, InputError):
            raise answer
        return answer


def require_agreement(name: str, about: About, tolerance: float) -> None:
    """Raises InputError where an engine's noiseless step is further than `tolerance` from ours."""
    require(
        about.distance <= tolerance,
        f"{name}'s step is {about.distance:.1e} away from ours (at most {tolerance:g}): "
        "a comparison would mean nothing; leave it out of --engines",
    )


def _serve(connection: Connection, load: Callable[[], Build], problem: Path, *models: int) -> None:
    """Runs a worker: builds its engine, sends what the engine says of itself, and measures on request.

    A request is a number of seconds, answered by a rate; None ends the worker, which then sends its memory.

    Args:
      connection: To the process that asks.
      load: Imports the engine's libraries, and returns what builds it.
      problem: The file that has the problem.
      *models: How many to train at once, if the engine takes a number.
    """
    try:
        build = load()
        imports = _peak_memory()
        with problem.open("rb") as file:
            engine = build(pickle.load(file), *models)
        engine.run()
    except InputError as error:
        connection.send(error)
        return
    connection.send(engine.about)
    with contextlib.suppress(EOFError):  # the parent has gone
        while seconds := connection.recv():
            connection.send(rate(engine.run, seconds))
        find_peak = engine.device_peak or _peak_memory
        connection.send(Memory(find_peak(), imports))


def _peak_memory() -> int:
    """Returns the peak resident bytes of this process.

    Linux's own count is taken if it exists: ru_maxrss begins with that of the process that forked.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        kibibytes = int(line.split()[1])
        return kibibytes << 10
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if sys.platform == "darwin":  # where it is in bytes, not in kibibytes
            return peak
        return peak << 10


def as_json(measurements: list[Measurement], missing: Sequence[Kind]) -> str:
    """Returns a JSON object: a list `measurements`, and the names of the engines that were left out."""
    content = {
        "measurements": [measurement.fields() for measurement in measurements],
        "missing": [kind.name for kind in missing],
    }
    return json.dumps(content)


def as_table(measurements: list[Measurement]) -> str:
    """Returns a row for each model and engine, in at most 80 columns, in a block for each unit.

    Ratios are taken within rounds. The last line is the matrix product's speed.
    """
    units = dict.fromkeys(measurement.unit for measurement in measurements)
    lines = []
    for unit in units:
        block = [measurement for measurement in measurements if measurement.unit == unit]
        lines.append(_make_block(unit, block))

    gemm: list[float] = []
    for measurement in measurements:
        gemm.extend(measurement.gemm)
    gigaflops = statistics.median(gemm) / 1e9
    device = measurements[0].about.device
    lines.append(f"GEMM: {gigaflops:,.0f} GFLOP/s; on {device}, {cores()} cores")
    return "\n".join(lines)


def _make_block(unit: str, measurements: list[Measurement]) -> str:
    """Returns the table, for people alone, of the measurements of a unit.

    Args:
      unit: "model-steps" or "client-updates".
      measurements: Of that unit.
    """
    our_rates = {}
    for measurement in measurements:
        if measurement.engine == "ours":
            our_rates[measurement.model] = measurement.rates

    def show_ratio(measurement: Measurement) -> str | None:
        """Returns the median, least and largest of the rounds' ratios of our rate to a peer's."""
        if measurement.engine == "ours" or measurement.model not in our_rates:
            return None
        ratios = []
        for ours, peer in zip(our_rates[measurement.model], measurement.rates, strict=True):
            ratios.append(ours / peer)
        middle = _show_rate(statistics.median(ratios))
        return f" {middle} ({_show_rate(min(ratios))} to {_show_rate(max(ratios))})"

    columns = (
        Column(None, lambda row: row.model, "model", width=8, left=True),
        Column(None, lambda row: row.engine, "engine", width=11, left=True),
        Column(None, Measurement.rate, f"{unit}/s", _show_rate, width=16),
        Column(None, show_ratio, " ours is faster by", width=20, left=True),
        Column(None, Measurement.gemm_share, "of GEMM", number(".2%"), width=8),
        Column(None, lambda row: row.memory.peak / 1e6, "peak MB", number(",.0f"), width=8),
    )
    return Table(columns, measurements, gap=" ", rule=76).text()


def _show_rate(value: float) -> str:
    """Returns a rate or a ratio with three digits, or in whole numbers from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
