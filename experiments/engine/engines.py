"""The engines that `throughput` times, the models that it times them on, and the problems that it gives them.

An engine's library is imported when the engine is loaded, in a process of its own.
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

GEMM_SIZE = 2048  # of the square matrices that `gemm` multiplies
CHECKED_STEPS = 3  # of a client in the round by which engines of DP-FedAvg are compared
_MOST_FLOATS = {"cpu": 1 << 26, "gpu": 1 << 30}  # of per-example gradients in a step of many models
_TRIAL_SECONDS = 0.5  # for which each number of models at once is tried

Layout = list[tuple[NDArray[np.int64], ...]]
Run = Callable[[], int]  # does some model-steps or client-updates; returns their number when done


class Problem(NamedTuple):
    """DP-SGD on a model and fixed mini-batches.

    Attributes:
      setting: Of the training run.
      features: (n, ...)
      labels: (n,)
      batches: (steps, B) indices of examples.
      theta_0: (p,) initial parameters.
      stepped: (p,) theta_0 after our step on the first mini-batch, without noise, at learning rate 1.
      layout: For each layer, in the order of calls, the indices in theta of its kernel or scale, and those of
        its bias, if any; in Flax's shapes.
    """

    setting: Setting
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout

    def models_to_try(self, platform: str) -> list[int]:
        """Returns 1, 8, 64, ... models at once, as long as their per-example gradients fit.

        They are B p floats a model; _MOST_FLOATS of a platform, "cpu" or "gpu", are tried.
        """
        floats_per_model = self.setting.mechanism.batch_size * self.theta_0.size
        counts = [1]
        for models in (8, 64, 512, 4096):
            if models * floats_per_model <= _MOST_FLOATS[platform]:
                counts.append(models)
        return counts


class FederatedProblem(NamedTuple):
    """DP-FedAvg on a model with fixed cohorts of clients.

    Attributes:
      setting: Of the training run.
      features: (N, ...) of all clients' examples, as in `audit.tasks.task.Clients`.
      labels: (N,)
      starts: (M,) each client's first example.
      counts: (M,) each client's number of examples.
      cohorts: (T, W) the clients of each round.
      theta_0: (p,) initial parameters.
      stepped: (p,) theta_0 after our round of the first cohort, without noise, at server learning rate 1.
        Each client takes `CHECKED_STEPS` steps on all of its examples.
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
    """What an engine says of itself.

    Attributes:
      models: Which it trains at once.
      platform: "cpu" or "gpu".
      device: The device's name.
      distance: Of its noiseless step from ours.
    """

    models: int
    platform: str
    device: str
    distance: float = 0.0


class Engine(NamedTuple):
    """An engine that is ready to be timed; device_peak() is the most bytes of a GPU's memory in use."""

    about: About
    run: Run
    device_peak: Callable[[], int] | None = None


# Of a problem, or of (problem, models at once) where the engine `chooses`.
Build = Callable[..., Engine]


def rate(run: Run, seconds: float) -> float:
    """Returns the model-steps or client-updates a second of `run`, called for at least `seconds`."""
    begin = time.perf_counter()
    done = 0
    while True:
        done += run()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return done / elapsed


def find_fastest(build: Callable[[int], Run], counts: list[int]) -> tuple[int, Run]:
    """Finds the number of models at once with which an engine does most model-steps a second.

    Each number is run once to compile, then timed.

    Args:
      build: models at once -> what trains them.
      counts: The numbers of models to try.

    Returns:
      That number, and what trains so many.
    """
    best_rate = 0.0
    for models in counts:
        run = build(models)
        run()
        models_rate = rate(run, _TRIAL_SECONDS)
        if models_rate > best_rate:
            best_rate = models_rate
            fastest = (models, run)
    return fastest


class Kind(NamedTuple):
    """An engine before it is built.

    Attributes:
      name: In tables and flags.
      load: Imports its libraries; returns what builds it.
      needs: The library that may be missing.
      one_thread: Whether it takes a process for each core.
      chooses: Whether it tries several numbers of models at once, unless a number is given.
    """

    name: str
    load: Callable[[], Build]
    needs: str = "jax"
    one_thread: bool = False
    chooses: bool = False

    def is_installed(self) -> bool:
        """Returns whether its library can be imported; imports nothing."""
        return importlib.util.find_spec(self.needs) is not None


def _load_jax_engine(name: str) -> Build:
    """Imports `peers_jax`, and returns its function that builds an engine of this name.

    JAX is prepared as commands do, but for "gemm", which takes JAX as it comes: XLA's threads on all cores.
    """
    if name != "gemm":
        prepare_jax()
    return _load_engine("peers_jax", name)


def _load_engine(module: str, name: str) -> Build:
    """Imports a module of this folder, and returns its function that builds an engine of this name."""
    build: Build = getattr(importlib.import_module(f"experiments.engine.{module}"), name)
    return build


class Work(NamedTuple):
    """A mechanism that engines are timed on: the unit that is counted, and the engines that can do it."""

    unit: str
    kinds: tuple[Kind, ...]

    def kind(self, name: str) -> Kind:
        """Returns the engine of a name, which must be among them."""
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
    """A model that is timed; `peers_torch.NETWORKS` has its network in PyTorch.

    Attributes:
      work: The mechanism that trains it.
      steps: Of a measurement, or rounds; all engines cycle through their mini-batches or cohorts.
      batch_size: Where it is not the model's own.
      tolerance: The greatest Euclidean distance of two engines' mean clipped gradients, each at most C = 1
        long.
    """

    work: Work
    steps: int
    batch_size: int | None = None
    tolerance: float = 1e-5


TIMED = {
    "fcnn": Timed(DPSGD, 250),
    "convnet": Timed(DPSGD, 10),
    "resnet18": Timed(DPSGD, 8, 8, 1e-3),  # through 18 layers of normalised sums in float32
    "lenet": Timed(FEDAVG, 10),
}


def require_timed(model: str) -> None:
    """Raises InputError for a model that `throughput` can't time, and says why."""
    why = "is unknown"
    if model in TASKS or model in FEDERATED_TASKS:
        why = "can't be timed, its network has not been written in PyTorch, for the peers"
    require(model in TIMED, f"--models: {model!r} {why}: choose of {', '.join(TIMED)}")


def missing_line(missing: Sequence[Kind]) -> str:
    """Returns a sentence on the engines that are left out, and the command that installs them."""
    names = ", ".join(kind.name for kind in missing)
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))
    return (
        f"left out: {names} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
