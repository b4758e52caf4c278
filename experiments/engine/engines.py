"""The engines that `throughput` times, the models that they train, and the records of their problems.

An engine is a library, or a way of using one, that trains by DP-SGD or DP-FedAvg. Its library is imported
when the engine is loaded, in a process of its own.
"""

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.runtime.machine import prepare_jax
from audit.settings.federated import FederatedSetting
from audit.settings.setting import Setting
from models.catalogue import FEDERATED_TASKS, TASKS

GEMM_SIZE = 2048  # rows of the square matrices that `gemm` multiplies
CHECKED_STEPS = 3  # steps of each client in the round that checks engines of DP-FedAvg against ours
_MOST_FLOATS = {"cpu": 1 << 26, "gpu": 1 << 30}  # in all models' per-example gradients of a step
_TRIAL_SECONDS = 0.5  # for which each number of models at once is timed

Layout = list[tuple[NDArray[np.int64], ...]]  # of a network's parameters in theta; see `Problem`
Run = Callable[[], int]  # does some model-steps or client-updates; returns their number when done


class Problem(NamedTuple):
    """A training run of DP-SGD, with fixed mini-batches, that every engine is given.

    Attributes:
      setting: The setting of the training run.
      features: (n, ...) the examples' features.
      labels: (n,) the examples' labels.
      batches: (steps, B) the indices of each mini-batch's examples.
      theta_0: (p,) the initial parameters.
      stepped: (p,) the parameters after our engine's step from theta_0 on the first mini-batch, without
        noise, at learning rate 1. Every engine's step is compared with it.
      layout: For each layer, in the order of calls, two index arrays or one: where in theta the entries of
        its kernel (or scale) are, and where those of its bias, if any. The arrays have Flax's shapes.
    """

    setting: Setting
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout

    def models_to_try(self, platform: str) -> list[int]:
        """Returns the candidates for the number of models to train at once: 1, and then 8, 64, 512 and 4,096.

        Larger candidates than 1 are left out where they do not fit in memory. A candidate fits if the
        per-example gradients of so many models, in a step, have at most _MOST_FLOATS floats together. Those
        of a single model have B p floats, for mini-batches of B examples and p parameters.

        Args:
          platform: "cpu" or "gpu".
        """
        floats_per_model = self.setting.mechanism.batch_size * self.theta_0.size
        counts = [1]
        for models in (8, 64, 512, 4096):
            if models * floats_per_model <= _MOST_FLOATS[platform]:
                counts.append(models)
        return counts


class FederatedProblem(NamedTuple):
    """A training run of DP-FedAvg, with fixed cohorts of clients, that every engine is given.

    Attributes:
      setting: The setting of the training run.
      features: (N, ...) the features of all clients' examples, one client after the other.
      labels: (N,) the labels of these examples.
      starts: (M,) the index of each client's first example.
      counts: (M,) each client's number of examples.
      cohorts: (T, W) the indices of each round's clients.
      theta_0: (p,) the initial parameters.
      stepped: (p,) the parameters after our engine's round from theta_0 with the first cohort, without noise,
        at server learning rate 1. Each client takes `CHECKED_STEPS` steps on all of its examples. Every
        engine's round is compared with it.
      layout: As in `Problem`.
    """

    setting: FederatedSetting
    features: NDArray[Any]
    labels: NDArray[Any]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    cohorts: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout


class About(NamedTuple):
    """What an engine reports about itself once it is built.

    Attributes:
      models: The number of models that it trains at once.
      platform: "cpu" or "gpu".
      device: The device's name.
      distance: The Euclidean distance between the parameters after its noiseless step and after ours.
    """

    models: int
    platform: str
    device: str
    distance: float = 0.0


class Engine(NamedTuple):
    """An engine that is ready to be timed.

    Attributes:
      about: What it reports about itself.
      run: Trains for a moment, and returns how many model-steps or client-updates that were.
      device_peak: () -> the most bytes of the GPU's memory that were in use so far; None on a CPU.
    """

    about: About
    run: Run
    device_peak: Callable[[], int] | None = None


# (problem) -> the engine; where its `Kind` has `chooses`, also (problem, models at once) -> the engine.
Build = Callable[..., Engine]


def rate(run: Run, seconds: float) -> float:
    """Returns how many model-steps or client-updates a second `run` does.

    Args:
      run: Does some model-steps or client-updates, and returns how many.
      seconds: The least time for which `run` is called again and again.
    """
    begin = time.perf_counter()
    done = 0
    while True:
        done += run()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return done / elapsed


def find_fastest(build: Callable[[int], Run], counts: list[int]) -> tuple[int, Run]:
    """Finds how many models an engine trains at once to do the most model-steps a second.

    Args:
      build: (models at once) -> the function that trains so many models, which is timed for each number.
      counts: The numbers of models to try, at least one.

    Returns:
      (the fastest number of models, the function that trains so many)
    """
    best_rate = 0.0
    for models in counts:
        run = build(models)
        run()  # compiles
        models_rate = rate(run, _TRIAL_SECONDS)
        if models_rate > best_rate:
            best_rate = models_rate
            fastest = (models, run)
    return fastest


class Kind(NamedTuple):
    """An engine that is not built yet.

    Attributes:
      name: The name in tables and flags.
      load: () -> the function that builds the engine; imports its libraries.
      needs: The name of the library that may be missing.
      one_thread: Whether a process of it uses a single core, so that a CPU is given a single process for each
        core.
      chooses: Whether the engine tries several numbers of models at once, unless it is given a number.
    """

    name: str
    load: Callable[[], Build]
    needs: str = "jax"
    one_thread: bool = False
    chooses: bool = False

    def is_installed(self) -> bool:
        """Returns whether Python finds the library that the engine needs, without importing it."""
        return importlib.util.find_spec(self.needs) is not None


def _load_jax_engine(name: str) -> Build:
    """Imports `peers_jax`, and returns its function of this name, which builds an engine.

    JAX is first set up as in this project's commands, which make a device of each core and switch off the
    threads by which XLA divides a product. The exception is "gemm": JAX's defaults let its single product use
    all cores.
    """
    if name != "gemm":
        prepare_jax()
    return _load_engine("peers_jax", name)


def _load_engine(module: str, name: str) -> Build:
    """Imports a module of this folder, and returns its function of this name, which builds an engine."""
    build: Build = getattr(importlib.import_module(f"experiments.engine.{module}"), name)
    return build


class Work(NamedTuple):
    """A mechanism by which engines train while they are timed.

    Attributes:
      unit: The unit of speed: "model-steps" or "client-updates".
      kinds: The engines that can train by the mechanism.
    """

    unit: str
    kinds: tuple[Kind, ...]

    def kind(self, name: str) -> Kind:
        """Returns the engine with a name, which one of `kinds` must have."""
        return next(kind for kind in self.kinds if kind.name == name)


GEMM = Kind("gemm", partial(_load_jax_engine, "gemm"))
DPSGD = Work(
    "model-steps",
    (
        Kind("ours", partial(_load_jax_engine, "ours")),
        Kind("jax_privacy", partial(_load_jax_engine, "jax_privacy"), "jax_privacy", chooses=True),
        Kind("opacus", partial(_load_engine, "peers_torch", "opacus"), "opacus", one_thread=True),
        Kind(
            "torch_func", partial(_load_engine, "peers_torch", "torch_func"), "torch", chooses=True
        ),
    ),
)
FEDAVG = Work(
    "client-updates",
    (
        Kind("ours", partial(_load_jax_engine, "ours_federated")),
        Kind(
            "torch_loop",
            partial(_load_engine, "peers_torch", "torch_loop"),
            "torch",
            one_thread=True,
        ),
    ),
)
ENGINES = tuple(dict.fromkeys(kind.name for kind in (*DPSGD.kinds, *FEDAVG.kinds)))


class Timed(NamedTuple):
    """How engines are timed on a model; `peers_torch.NETWORKS` has its network in PyTorch.

    Attributes:
      work: The mechanism that trains it.
      steps: The number of the problem's steps (or rounds), through whose mini-batches (or cohorts) all
        engines cycle.
      batch_size: The size of mini-batches; None for the model's own.
      tolerance: The largest distance allowed between an engine's noiseless step and ours, at learning rate 1.
        Both steps are means of clipped gradients, of norms up to C = 1.
    """

    work: Work
    steps: int
    batch_size: int | None = None
    tolerance: float = 1e-5


TIMED = {
    "fcnn": Timed(DPSGD, 250),
    "convnet": Timed(DPSGD, 10),
    "resnet18": Timed(DPSGD, 8, 8, 1e-3),  # through 18 layers of normalised sums in float32
    # Each client takes several steps through max-pooling. Where two pixels are equal but for rounding, either
    # may win: float32 is 2e-4 from float64, and so may two engines be from each other.
    "lenet": Timed(FEDAVG, 10, tolerance=1e-3),
}


def require_timed(model: str) -> None:
    """Raises InputError, with the reason, for a model that `throughput` can't time."""
    why = "is unknown"
    if model in TASKS or model in FEDERATED_TASKS:
        why = "can't be timed, its network has not been written in PyTorch, for the peers"
    require(model in TIMED, f"--models: {model!r} {why}: choose of {', '.join(TIMED)}")


def missing_line(missing: Sequence[Kind]) -> str:
    """Returns a line that names the engines whose library is missing, and the command that installs it."""
    names = ", ".join(kind.name for kind in missing)
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))  # each library once
    return (
        f"left out: {names} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
