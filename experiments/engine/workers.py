"""Engines in processes of their own, so that their memory and their threads are their own.

A worker builds its engine, which compiles and warms up, and compares its step with ours; it then measures
whenever it is told to. The engines' libraries are imported in the workers only.
"""

import contextlib
import multiprocessing
import resource
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from audit.errors import InputError, require
from experiments.engine.engines import Build, Kind
from experiments.engine.problem import About, rate

TOLERANCE = 1e-5  # Euclidean distance of two engines' mean clipped gradients, each at most C = 1 long
_CONTEXT = multiprocessing.get_context("spawn")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Memory(NamedTuple):
    """Bytes: a process's peak (its GPU's where it has one), and its peak after its imports."""

    peak: int
    imports: int


class Worker:
    """A process that holds an engine; raises InputError where the engine fails."""

    def __init__(self, kind: Kind, problem: Path, *models: int) -> None:
        self.name = kind.name
        self._here, there = _CONTEXT.Pipe()
        arguments = (there, kind.load, problem, *models)
        self._process = _CONTEXT.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        there.close()

    def about(self, tolerance: float = TOLERANCE) -> About:
        """Waits until it is ready; its step may be so far from ours."""
        about: About = self._receive()
        require_agreement(self.name, about, tolerance)
        return about

    def begin(self, seconds: float) -> None:
        """Has it measure for some seconds."""
        self._here.send(seconds)

    def rate(self) -> float:
        """Waits for the measurement that was begun: model-steps a second."""
        rate: float = self._receive()
        return rate

    def stop(self) -> Memory:
        """Ends the process."""
        self._here.send(None)
        memory: Memory = self._receive()
        self._process.join()
        return memory

    def _receive(self) -> Any:
        """The next answer."""
        try:
            answer = self._here.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode
            raise InputError(f"{self.name} ended with status {status}: leave it out of --engines") from None
        if isinstance(answer, InputError):
            raise answer
        return answer


def require_agreement(name: str, about: About, tolerance: float = TOLERANCE) -> None:
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
    with ProcessPoolExecutor(1, _CONTEXT, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _serve(connection: Connection, load: Callable[[], Build], problem: Path, *models: int) -> None:
    """A worker's life; Ctrl-C is its parent's affair."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        build = load()
        imports = _peak_memory()
        engine = build(problem, *models)
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
