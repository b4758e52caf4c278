"""Times engines in rounds, each of which times every engine once; writes the results as a table or JSON.

Every engine runs in processes of its own, so that neither memory nor threads are shared. A worker process
builds its engine, which compiles, and compares its step with ours; then it measures on request. The engines'
libraries are imported in the workers only.
"""

import contextlib
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
from audit.json_text import write_json
from audit.report.table import Column, Table, number
from audit.runtime import processes
from audit.runtime.machine import cores, prepare_jax
from audit.tasks.task import Sources
from experiments.engine.engines import DPSGD, GEMM, GEMM_SIZE, TIMED, About, Build, Kind, rate

_GEMM_SECONDS = 1.0  # the most for which the product of matrices is timed in a round


class Memory(NamedTuple):
    """The memory of a process, in bytes.

    Attributes:
      peak: The peak until the end; of the GPU's memory where the engine has a GPU, else of the process's.
      imports: The process's peak once its libraries were imported.
    """

    peak: int
    imports: int


class Measurement(NamedTuple):
    """The speed and memory of an engine that trains a model.

    Attributes:
      model: The model's name.
      engine: The engine's name.
      rates: The engine's speed in each round, in units a second. The unit is a model-step or a client's
        update.
      gemm: The speed of the product of matrices in each round, in floating-point operations a second.
      flops: The number of floating-point operations of a unit.
      memory: The memory, summed over the engine's processes.
      about: What the engine reports about itself.
      processes: The number of the engine's processes.
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
        """Returns the unit that the rates count: "model-steps" or "client-updates"."""
        return TIMED[self.model].work.unit

    def rate(self) -> float:
        """Returns the median of the rounds' speeds, in units a second."""
        return statistics.median(self.rates)

    def gemm_share(self) -> float:
        """Returns the share of the matrix product's arithmetic speed that the engine reaches.

        In each round the engine's floating-point operations a second are divided by the product's. The result
        is the median over rounds.
        """
        ratios = []
        # A unit is a model-step or a client's update, and has `flops` operations.
        for units_per_second, product_flops_per_second in zip(self.rates, self.gemm, strict=True):
            engine_flops_per_second = units_per_second * self.flops
            ratios.append(engine_flops_per_second / product_flops_per_second)
        return statistics.median(ratios)

    def fields(self) -> dict[str, Any]:
        """Returns the measurement for JSON; the keys of rates and of operations contain the unit.

        So a key is "model_steps_per_second" or "client_updates_per_second", and another is
        "flops_per_model_step" or "flops_per_client_update".
        """
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
    """Times engines on a model, and beside them a product of matrices; shows a progress bar.

    Args:
      model: The name of a model in `TIMED`.
      kinds: The engines to time.
      rounds: The number of rounds, each of which times the product and every engine once, in turn.
      seconds: The least time for which an engine is timed in a round.
      sources: Where the data come from.

    Returns:
      A measurement for each engine, in the order of `kinds`.

    Raises:
      InputError: The data can't be had, an engine fails, or its step differs from ours.
    """
    # The bar counts the problem, and for each engine its start and its rounds.
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
            # The product only serves as a yardstick, so that a round spends little time on it.
            products_per_second = product.rate(min(seconds, _GEMM_SECONDS))
            # A product of n x n matrices has n^3 multiplications and as many additions.
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
    """Writes a model's problem to a file, and returns the number of floating-point operations of a unit.

    The problem is a pickled `Problem` of DP-SGD, or a `FederatedProblem` of DP-FedAvg. For DP-SGD a unit is a
    step of a single model. For DP-FedAvg it is the update of a client that has the mean number of examples.
    To be called in a process of its own, so that JAX's settings and the data's memory end with it.

    Args:
      model: The name of a model in `TIMED`.
      sources: Where the data come from.
      path: The file.
    """
    prepare_jax()  # before JAX touches a device
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
    """The processes of an engine: one, or one for each core. All of them measure at the same time."""

    def __init__(self, kind: Kind, problem: Path, tolerance: float = 0.0) -> None:
        """Starts the processes, and waits until each has built the engine and agrees with our step.

        Args:
          kind: The engine.
          problem: The file with the pickled problem.
          tolerance: The largest distance allowed between the engine's noiseless step and ours.

        Raises:
          InputError: The engine fails, or its step is further from ours.
        """
        self.name = kind.name
        self.workers = [Worker(kind, problem)]
        self.about = self.workers[0].about(tolerance)
        if kind.chooses:
            # Another process, since the numbers of models that this one tried count in its peak memory.
            self.workers[0].stop()
            self.workers = [Worker(kind, problem, self.about.models)]
            self.workers[0].about(tolerance)  # waits until it is ready
        # An engine that uses a single core has a process for each core; the first is running already.
        if kind.one_thread and self.about.platform == "cpu":
            for _ in range(cores() - 1):
                self.workers.append(Worker(kind, problem))
        for worker in self.workers[1:]:  # only now, so that they build their engines side by side
            worker.about(tolerance)

    def rate(self, seconds: float) -> float:
        """Measures for some seconds, and returns the units a second of all processes together."""
        for worker in self.workers:
            worker.begin(seconds)
        return sum(worker.rate() for worker in self.workers)

    def stop(self) -> Memory:
        """Ends the processes, and returns their memory, summed."""
        memories = [worker.stop() for worker in self.workers]
        peak = sum(memory.peak for memory in memories)
        imports = sum(memory.imports for memory in memories)
        return Memory(peak, imports)


class Worker:
    """A process that holds an engine.

    Where the engine fails or the process dies, the next method that waits for an answer raises InputError.
    """

    def __init__(self, kind: Kind, problem: Path, *models: int) -> None:
        """Starts the process, which then builds the engine.

        Args:
          kind: The engine.
          problem: The file with the pickled problem.
          *models: The number of models to train at once, or nothing where the engine is not given a number.
        """
        self.name = kind.name
        self._here, there = processes.pipe()
        self._process = processes.begin(_serve, there, kind.load, problem, *models)
        # The process has its own copy of this end. Once ours is closed, the connection ends when the process
        # dies, so that we do not wait for its answer forever.
        there.close()

    def about(self, tolerance: float) -> About:
        """Waits until the engine is ready, and returns what it reports about itself.

        Raises InputError where its noiseless step is further than `tolerance` from ours.
        """
        about: About = self._receive()
        require_agreement(self.name, about, tolerance)
        return about

    def begin(self, seconds: float) -> None:
        """Makes the process measure for some seconds, without waiting; `rate` waits for the result."""
        self._here.send(seconds)

    def rate(self) -> float:
        """Waits until the measurement that `begin` started has ended, and returns its units a second."""
        units_per_second: float = self._receive()
        return units_per_second

    def stop(self) -> Memory:
        """Ends the process, and returns the memory that it took."""
        self._here.send(None)  # in place of seconds: asks it to end
        memory: Memory = self._receive()
        self._process.join()
        return memory

    def _receive(self) -> Any:
        """Waits for the process's answer; raises InputError if the process sends an InputError, or dies."""
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
    """Runs in a worker process: builds the engine, reports about it, and measures on request.

    Sends an `About` first, or the InputError with which the engine failed. A request is a number of seconds,
    and is answered with a rate. The request None ends the worker, which then sends its `Memory`.

    Args:
      connection: The connection to the process that requests measurements.
      load: () -> the function that builds the engine; imports its libraries.
      problem: The file with the pickled problem.
      *models: The number of models to train at once, or nothing where the engine is not given a number.
    """
    try:
        build = load()
        imports = _peak_memory()
        with problem.open("rb") as file:
            engine = build(pickle.load(file), *models)
        engine.run()  # compiles
    except InputError as error:
        connection.send(error)
        return
    connection.send(engine.about)
    with contextlib.suppress(EOFError):  # where the parent has ended
        while seconds := connection.recv():  # until None
            connection.send(rate(engine.run, seconds))
        find_peak = engine.device_peak or _peak_memory  # the GPU's memory where there is a GPU
        connection.send(Memory(find_peak(), imports))


def _peak_memory() -> int:
    """Returns the peak of this process's resident memory, in bytes.

    On Linux it is VmHWM ("high water mark") in /proc. The usual ru_maxrss, which is the fallback, may be too
    large: it begins not at 0 but at the peak of the process that forked this one.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        kibibytes = int(line.split()[1])
        return kibibytes << 10  # in bytes
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if sys.platform == "darwin":  # whose ru_maxrss is in bytes, not in kibibytes
            return peak
        return peak << 10


def as_json(measurements: list[Measurement], missing: Sequence[Kind]) -> str:
    """Returns a JSON object: "measurements", and "missing", the names of engines that were left out."""
    content = {
        "measurements": [measurement.fields() for measurement in measurements],
        "missing": [kind.name for kind in missing],
    }
    return write_json(content)


def as_table(measurements: list[Measurement]) -> str:
    """Returns the measurements as text of at most 80 columns.

    Every unit has a block, with a row for each model and engine. The last line has the matrix product's
    speed, the device and the number of cores.
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
    """Returns a table of the measurements in a unit, a row for each, as text.

    Args:
      unit: "model-steps" or "client-updates".
      measurements: The measurements in that unit.
    """
    our_rates = {}  # by model, a rate for each round
    for measurement in measurements:
        if measurement.engine == "ours":
            our_rates[measurement.model] = measurement.rates

    def show_ratio(measurement: Measurement) -> str | None:
        """Returns how many times as fast as a peer we are: the rounds' median, least and largest ratio.

        Each ratio is of two rates of the same round. None for our own row, or where we were not timed.
        """
        if measurement.engine == "ours" or measurement.model not in our_rates:
            return None
        ratios = []
        for ours, peer in zip(our_rates[measurement.model], measurement.rates, strict=True):
            ratios.append(ours / peer)
        middle = _show_rate(statistics.median(ratios))
        return f" {middle} ({_show_rate(min(ratios))} to {_show_rate(max(ratios))})"

    # Each column's key (None: it is not in JSON), value, heading, format and width.
    columns = (
        Column(None, lambda row: row.model, "model", width=8, left=True),
        Column(None, lambda row: row.engine, "engine", width=11, left=True),
        Column(None, Measurement.rate, f"{unit}/s", _show_rate, width=16),
        Column(None, show_ratio, " ours is faster by", width=20, left=True),
        Column(None, Measurement.gemm_share, "of GEMM", number(".2%"), width=8),
        Column(None, lambda row: row.memory.peak / 1e6, "peak MB", number(",.0f"), width=8),
    )
    # The columns' widths and the gaps add up to 76. With 0 the rule would be as long as the longest row, and
    # differ between blocks where a ratio is wider than its column.
    return Table(columns, measurements, gap=" ", rule=76).text()


def _show_rate(value: float) -> str:
    """Formats a rate or a ratio with three significant digits, or as a whole number from 100 on."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
