"""Rounds in which every engine is timed once, and what they come to: a table, or JSON.

Engines run in processes of their own, so that their memory and their threads are their own. A worker builds
its engine, which compiles and warms up, and compares its step with ours; it then measures whenever it is told
to. The engines' libraries are imported in the workers only.
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
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tqdm import tqdm

from audit import processes
from audit.errors import InputError, require
from audit.machine import cores, prepare_jax
from audit.report.table import Column, Table, number
from audit.task import Sources
from experiments.engine.engines import DPSGD, GEMM, GEMM_SIZE, TIMED, About, Build, Kind, rate

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Memory(NamedTuple):
    """Bytes: a process's peak (its GPU's where it has one), and its peak after its imports."""

    peak: int
    imports: int


class Measurement(NamedTuple):
    """An engine on a model. rates, gemm: its units (see `Work`) and GEMM's operations a second, a value a
    round; flops: of a unit. memory sums over the engine's processes.
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
        """What the rates count."""
        return TIMED[self.model].work.unit

    def rate(self) -> float:
        """The rounds' median."""
        return statistics.median(self.rates)

    def gemm_share(self) -> float:
        """The model's arithmetic a second over the GEMM's: the median of the rounds' ratios."""
        return statistics.median(r * self.flops / g for r, g in zip(self.rates, self.gemm, strict=True))

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        counted = self.unit.replace("-", "_")
        return {
            "model": self.model,
            "engine": self.engine,
            f"{counted}_per_second": self.rate(),
            "gemm_share": self.gemm_share(),
            "peak_memory_bytes": self.memory.peak,
            "import_memory_bytes": self.memory.imports,
            f"rounds_{counted}_per_second": self.rates,
            "rounds_gemm_flops_per_second": self.gemm,
            "gemm_flops_per_second": statistics.median(self.gemm),
            f"flops_per_{counted.removesuffix('s')}": self.flops,
            "device": self.about.device,
            "processes": self.processes,
            "models_at_once": self.about.models,
            "distance_from_ours": self.about.distance,
        }


def measure(
    model: str, kinds: Sequence[Kind], rounds: int, seconds: float, sources: Sources
) -> list[Measurement]:
    """Every engine on a model, and the GEMM, in turn, for at least so many seconds a round; a bar on stderr
    shows them. Raises InputError where the data can't be had, and where an engine fails or takes
    another step than ours.
    """
    steps = 1 + len(kinds) * (1 + rounds)
    bar = tqdm(total=steps, desc=f"{model}: data", leave=False)
    with tempfile.TemporaryDirectory() as folder, bar:
        path = Path(folder, "problem.pickle")
        flops = in_a_process(_write_problem, model, sources, path)
        product = Team(GEMM, path)
        teams = []
        for kind in kinds:
            bar.set_description(f"{model}: {kind.name} starts")
            teams.append(Team(kind, path, TIMED[model].tolerance))
            bar.update()
        rates: list[list[float]] = [[] for _ in teams]
        gemm: list[float] = []
        for _ in range(rounds):
            gemm.append(2.0 * GEMM_SIZE**3 * product.rate(min(seconds, 1.0)))
            for team, own in zip(teams, rates, strict=True):
                bar.set_description(f"{model}: {team.name}")
                own.append(team.rate(seconds))
                bar.update()
        product.stop()
        return [
            Measurement(model, t.name, own, gemm, flops, t.stop(), t.about, len(t.workers))
            for t, own in zip(teams, rates, strict=True)
        ]


def _write_problem(model: str, sources: Sources, path: Path) -> int:
    """Writes a model's problem, in a process of its own; returns the operations of its unit."""
    prepare_jax()
    from experiments.engine import peers_jax

    row = TIMED[model]
    problem, flops = (
        peers_jax.given(model, row.steps, row.batch_size, sources)
        if row.work is DPSGD
        else peers_jax.given_federated(model, row.steps, sources)
    )
    path.write_bytes(pickle.dumps(problem, protocol=5))
    return flops


class Team:
    """An engine's processes: one, or one a core, which then measure at the same time."""

    def __init__(self, kind: Kind, problem: Path, tolerance: float = 0.0) -> None:
        self.name = kind.name
        self.workers = [Worker(kind, problem)]
        self.about = self.workers[0].about(tolerance)
        if kind.chooses:  # afresh, since what it tried counts in its peak memory
            self.workers[0].stop()
            self.workers = [Worker(kind, problem, self.about.models)]
            self.workers[0].about(tolerance)
        if kind.one_thread and self.about.platform == "cpu":
            self.workers += [Worker(kind, problem) for _ in range(cores() - 1)]
        for worker in self.workers[1:]:
            worker.about(tolerance)

    def rate(self, seconds: float) -> float:
        """Units a second of all."""
        for worker in self.workers:
            worker.begin(seconds)
        return sum(worker.rate() for worker in self.workers)

    def stop(self) -> Memory:
        """Ends them; the sums of their memory."""
        peaks, imports = zip(*(worker.stop() for worker in self.workers), strict=True)
        return Memory(sum(peaks), sum(imports))


class Worker:
    """A process that holds an engine; raises InputError where the engine fails."""

    def __init__(self, kind: Kind, problem: Path, *models: int) -> None:
        self.name = kind.name
        self._here, there = processes.pipe()
        self._process = processes.begin(_serve, there, kind.load, problem, *models)
        there.close()

    def about(self, tolerance: float) -> About:
        """Waits until it is ready; its step may be so far from ours."""
        about: About = self._receive()
        require_agreement(self.name, about, tolerance)
        return about

    def begin(self, seconds: float) -> None:
        """Has it measure for some seconds."""
        self._here.send(seconds)

    def rate(self) -> float:
        """Waits for the measurement that was begun: units a second."""
        rate: float = self._receive()
        return rate

    def stop(self) -> Memory:
        """Ends the process."""
        self._here.send(None)
        memory: Memory = self._receive()
        self._process.join()
        return memory

    def _receive(self) -> Any:
        try:
            answer = self._here.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise InputError(f"{self.name} ended with status {status}: leave it out of --engines") from None
        if isinstance(answer, InputError):
            raise answer
        return answer


def require_agreement(name: str, about: About, tolerance: float) -> None:
    """Raises InputError where an engine's step is not ours."""
    require(
        about.distance <= tolerance,
        f"{name}'s step is {about.distance:.1e} away from ours (at most {tolerance:g}): "
        "a comparison would mean nothing; leave it out of --engines",
    )


def in_a_process(
    function: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> _Result:
    """The function's result, or the error that it raised, from a process that ends with it."""
    return processes.apart(partial(function, *args, **kwargs))


def _serve(connection: Connection, load: Callable[[], Build], problem: Path, *models: int) -> None:
    """A worker's life."""
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
        connection.send(Memory((engine.device_peak or _peak_memory)(), imports))


def _peak_memory() -> int:
    """The peak resident bytes of this process; on Linux without what ru_maxrss inherits at a fork."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10


def as_json(measurements: list[Measurement], missing: Sequence[Kind]) -> str:
    """One object: a list `measurements`, and the names of the engines that were left out."""
    rows, names = [m.fields() for m in measurements], [kind.name for kind in missing]
    return json.dumps({"measurements": rows, "missing": names})


def as_table(measurements: list[Measurement]) -> str:
    """A row a model and engine, of at most 80 columns, in a block a unit; ratios are of one round."""
    units = dict.fromkeys(m.unit for m in measurements)
    blocks = [_block(unit, [m for m in measurements if m.unit == unit]) for unit in units]
    gemm = statistics.median(g for m in measurements for g in m.gemm)
    last = f"GEMM: {gemm / 1e9:,.0f} GFLOP/s; on {measurements[0].about.device}, {cores()} cores"
    return "\n".join([*blocks, last])


def _block(unit: str, measurements: list[Measurement]) -> str:
    ours = {m.model: m.rates for m in measurements if m.engine == "ours"}

    def ratio(m: Measurement) -> str | None:
        """Median, least and largest of the rounds' ratios."""
        if m.engine == "ours" or m.model not in ours:
            return None
        ratios = [own / peer for own, peer in zip(ours[m.model], m.rates, strict=True)]
        return f" {_rounded(statistics.median(ratios))} ({_rounded(min(ratios))} to {_rounded(max(ratios))})"

    columns = (
        Column(None, lambda m: m.model, "model", width=8, left=True),
        Column(None, lambda m: m.engine, "engine", width=11, left=True),
        Column(None, Measurement.rate, f"{unit}/s", _rounded, width=16),
        Column(None, ratio, " ours is faster by", width=20, left=True),
        Column(None, Measurement.gemm_share, "of GEMM", number(".2%"), width=8),
        Column(None, lambda m: m.memory.peak / 1e6, "peak MB", number(",.0f"), width=8),
    )
    return Table(columns, measurements, gap=" ", rule=76).text()


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
