"""Engines in processes of their own, so that their memory and their threads are their own.

A worker builds its engine, which compiles and warms up, and checks its step; it then measures whenever
it is told to. The engines' libraries are imported in the workers only.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from experiments import cli

GEMM_SIZE = 2048
TOLERANCE = 1e-5  # Euclidean distance of two engines' mean clipped gradients, each at most C = 1 long
_FLOATS = {"cpu": 1 << 26, "gpu": 1 << 30}  # of per-example gradients, at most, in a step of many models

Layout = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


class Problem(NamedTuple):
    """What every engine computes: DP-SGD with SGD on one model and fixed mini-batches.

    features (n, ...), labels (n,), batches (steps, B) of indices, theta_0 (p,). stepped (p,) is theta_0
    after our step on the first mini-batch without noise at learning rate 1. layout has, a layer from the
    input to the output, where its kernel's and its bias's numbers stand in theta, in Flax's shapes.
    """

    model: str
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout
    learning_rate: float
    clipping_norm: float
    noise_multiplier: float

    @property
    def batch_size(self) -> int:
        """Examples a mini-batch."""
        return self.batches.shape[1]

    def save(self, path: Path) -> None:
        """Writes an .npz file that needs no unpickling."""
        arrays = {name: value for name, value in self._asdict().items() if name != "layout"}
        for i, (kernel, bias) in enumerate(self.layout):
            arrays |= {f"kernel_{i}": kernel, f"bias_{i}": bias}
        np.savez(path, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Problem":
        """Reads what `save` wrote."""
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        layers = sum(name.startswith("kernel_") for name in arrays)
        layout = [(arrays.pop(f"kernel_{i}"), arrays.pop(f"bias_{i}")) for i in range(layers)]
        scalars = {name: value.item() for name, value in arrays.items() if value.ndim == 0}
        return cls(layout=layout, **{**arrays, **scalars})

    def models_to_try(self, platform: str) -> list[int]:
        """1, 8, 64, ... models at once, as long as their per-example gradients fit."""
        floats = self.batch_size * self.theta_0.size
        return [1, *(m for m in (8, 64, 512, 4096) if m * floats <= _FLOATS[platform])]


class About(NamedTuple):
    """What is to be known of an engine. check is the distance of its noiseless step from ours."""

    models: int
    platform: str
    device: str
    check: float = 0.0


class Engine(NamedTuple):
    """Ready to be timed.

    run() does some steps of some models and returns their product, the model-steps, when they are done;
    device_peak() is the most bytes of a GPU's memory that were in use.
    """

    about: About
    run: Callable[[], int]
    device_peak: Callable[[], int] | None = None


Build = Callable[..., Engine]  # (problem file), or (problem file, how many models at once)


class Kind(NamedTuple):
    """How an engine is started: load() imports its libraries. one_thread means a process a core; one that
    `chooses` tries several counts of models at once, and then takes the count as an argument."""

    load: Callable[[], Build]
    needs: str = "jax"
    one_thread: bool = False
    chooses: bool = False

    def is_installed(self) -> bool:
        """Whether its library can be imported; imports nothing."""
        return importlib.util.find_spec(self.needs) is not None


def _ours() -> Build:
    from experiments.engine import peers_jax

    cli.prepare_jax()
    return peers_jax.ours


def _jax_privacy() -> Build:
    from experiments.engine import peers_jax

    cli.prepare_jax()
    return peers_jax.jax_privacy


def _opacus() -> Build:
    from experiments.engine import peers_torch

    return peers_torch.opacus


def _torch_func() -> Build:
    from experiments.engine import peers_torch

    return peers_torch.torch_func


def _gemm() -> Build:
    from experiments.engine import peers_jax

    return peers_jax.gemm


ENGINES = {
    "ours": Kind(_ours),
    "jax_privacy": Kind(_jax_privacy, "jax_privacy", chooses=True),
    "opacus": Kind(_opacus, "opacus", one_thread=True),
    "torch_func": Kind(_torch_func, "torch", chooses=True),
}
GEMM = Kind(_gemm)


class Memory(NamedTuple):
    """Bytes: a process's peak (its GPU's where it has one), and its peak after its imports."""

    peak: int
    imports: int


class Worker:
    """A process that holds an engine; raises InputError where the engine fails."""

    def __init__(self, name: str, kind: Kind, problem: Path, *models: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._here, there = context.Pipe()
        arguments = (there, kind.load, problem, *models)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        there.close()

    def about(self) -> About:
        """Waits until it is ready."""
        about = self._receive()
        require_agreement(self.name, about)
        return about

    def begin(self, seconds: float) -> None:
        """Has it measure for some seconds."""
        self._here.send(seconds)

    def rate(self) -> float:
        """Waits for the measurement that was begun: model-steps a second."""
        return self._receive()

    def stop(self) -> Memory:
        """Ends the process."""
        self._here.send(None)
        memory = self._receive()
        self._process.join()
        return memory

    def _receive(self) -> Any:
        """The next answer."""
        try:
            answer = self._here.recv()
        except EOFError:
            self._process.join()
            raise InputError(
                f"{self.name} ended with status {self._process.exitcode}: leave it out of --engines"
            ) from None
        if isinstance(answer, InputError):
            raise answer
        return answer


def require_agreement(name: str, about: About) -> None:
    """Raises InputError where an engine's step is not ours."""
    require(
        about.check <= TOLERANCE,
        f"{name}'s step is {about.check:.1e} away from ours (at most {TOLERANCE:g}): "
        "a comparison would mean nothing; leave it out of --engines",
    )


def write_problem(model: str, file: str | None, tfds_dir: str | None, path: Path) -> int:
    """Writes a model's Problem, from a process of its own, and returns its batch size."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        return pool.submit(_write_problem, model, file, tfds_dir, path).result()


def _write_problem(*arguments: Any) -> int:
    from experiments.engine import peers_jax

    cli.prepare_jax()
    return peers_jax.write_problem(*arguments)


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
            connection.send(measure(engine.run, seconds))
        connection.send(Memory((engine.device_peak or _peak_memory)(), imports))


def measure(run: Callable[[], int], seconds: float) -> float:
    """Model-steps a second, over at least so many seconds."""
    begin, done = time.perf_counter(), 0
    while True:
        done += run()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return done / elapsed


def fastest(build: Callable[[int], Callable[[], int]], counts: list[int]) -> tuple[int, Callable[[], int]]:
    """Of build(models) for each count of models, the one of the highest rate, and its count."""
    best_rate, best = 0.0, (0, lambda: 0)
    for models in counts:
        run = build(models)
        run()
        rate = measure(run, 0.5)
        if rate > best_rate:
            best_rate, best = rate, (models, run)
    return best


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _peak_memory() -> int:
    """The peak resident bytes of this process; on Linux without what ru_maxrss inherits at a fork."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak << 10
