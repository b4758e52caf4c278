"""The engines that `throughput` times, the models that it times them on, and the problem that every engine is
given. An engine's library is imported when the engine is loaded, in a process of its own."""

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
from audit.machine import prepare_jax
from audit.settings.federated import FederatedSetting
from audit.settings.setting import Setting
from models.catalogue import FEDERATED_TASKS, TASKS

GEMM_SIZE = 2048  # of the square matrices that `gemm` multiplies
CHECKED_STEPS = 3  # of a client in the round by which engines of DP-FedAvg are compared
_FLOATS = {"cpu": 1 << 26, "gpu": 1 << 30}  # of per-example gradients, at most, in a step of many models

Layout = list[tuple[NDArray[np.int64], ...]]
Run = Callable[[], int]  # does some model-steps or client-updates; returns their number when done


class Problem(NamedTuple):
    """DP-SGD on one model and fixed mini-batches.

    features (n, ...), labels (n,), batches (steps, B) of indices, theta_0 (p,). stepped (p,) is theta_0
    after our step on the first mini-batch without noise at learning rate 1. layout has, for each
    layer in the order of calls, where the numbers of its kernel or scale and those of its bias, if any, stand
    in theta, in Flax's shapes.
    """

    setting: Setting
    features: NDArray[Any]
    labels: NDArray[Any]
    batches: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout

    def models_to_try(self, platform: str) -> list[int]:
        """1, 8, 64, ... models at once, as long as their per-example gradients fit."""
        floats = self.setting.mechanism.batch_size * self.theta_0.size
        return [1, *(m for m in (8, 64, 512, 4096) if m * floats <= _FLOATS[platform])]


class FederatedProblem(NamedTuple):
    """DP-FedAvg on one model with fixed cohorts of clients.

    features (N, ...), labels (N,), starts (M,), counts (M,): as in `audit.task.Clients`. cohorts
    (T, W): the clients of each round. theta_0 and layout as in `Problem`. stepped (p,) is theta_0 after a
    round of the first cohort without noise at server learning rate 1, each of whose clients takes
    CHECKED_STEPS steps on all of its examples.
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
    """Models at once, platform, the device's name, and the distance of its noiseless step from ours."""

    models: int
    platform: str
    device: str
    distance: float = 0.0


class Engine(NamedTuple):
    """An engine that is ready to be timed; device_peak() is the most bytes of a GPU's memory in use."""

    about: About
    run: Run
    device_peak: Callable[[], int] | None = None


Build = Callable[..., Engine]  # of a problem, or of (problem, models at once) where the engine `chooses`


def rate(run: Run, seconds: float) -> float:
    """Model-steps or client-updates a second, over at least so many seconds."""
    begin, done = time.perf_counter(), 0
    while True:
        done += run()
        elapsed = time.perf_counter() - begin
        if elapsed >= seconds:
            return done / elapsed


def fastest(build: Callable[[int], Run], counts: list[int]) -> tuple[int, Run]:
    """Of build(models) for each count of models, the one of the highest rate, and its count."""
    best_rate, best = 0.0, (0, lambda: 0)
    for models in counts:
        run = build(models)
        run()
        measured = rate(run, 0.5)
        if measured > best_rate:
            best_rate, best = measured, (models, run)
    return best


class Kind(NamedTuple):
    """An engine before it is built.

    load() imports its libraries, of which `needs` may be missing. one_thread: it takes a process a core.
    chooses: it tries several counts of models at once, unless it is given one.
    """

    name: str
    load: Callable[[], Build]
    needs: str = "jax"
    one_thread: bool = False
    chooses: bool = False

    def is_installed(self) -> bool:
        """Whether its library can be imported; imports nothing."""
        return importlib.util.find_spec(self.needs) is not None


def _in_jax(name: str) -> Build:
    if name != "gemm":  # which has JAX as it comes: XLA's threads on all cores
        prepare_jax()
    return _named("peers_jax", name)


def _named(module: str, name: str) -> Build:
    build: Build = getattr(importlib.import_module(f"experiments.engine.{module}"), name)
    return build


class Work(NamedTuple):
    """A mechanism that engines are timed on: the unit that is counted, and the engines that can do it."""

    unit: str
    kinds: tuple[Kind, ...]

    def kind(self, name: str) -> Kind:
        """The engine of that name."""
        return next(kind for kind in self.kinds if kind.name == name)


GEMM = Kind("gemm", partial(_in_jax, "gemm"))
DPSGD = Work(
    "model-steps",
    (
        Kind("ours", partial(_in_jax, "ours")),
        Kind("jax_privacy", partial(_in_jax, "jax_privacy"), "jax_privacy", chooses=True),
        Kind("opacus", partial(_named, "peers_torch", "opacus"), "opacus", one_thread=True),
        Kind("torch_func", partial(_named, "peers_torch", "torch_func"), "torch", chooses=True),
    ),
)
FEDAVG = Work(
    "client-updates",
    (
        Kind("ours", partial(_in_jax, "ours_federated")),
        Kind("torch_loop", partial(_named, "peers_torch", "torch_loop"), "torch", one_thread=True),
    ),
)
ENGINES = tuple(dict.fromkeys(kind.name for kind in (*DPSGD.kinds, *FEDAVG.kinds)))


class Timed(NamedTuple):
    """A model that is timed; `peers_torch.NETWORKS` has its network in PyTorch.

    steps: of a measurement, or rounds; all engines cycle through their mini-batches or cohorts. batch_size:
    where it is not the model's own. tolerance: Euclidean distance of two engines' mean clipped gradients,
    each at most C = 1 long.
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
    """Raises InputError for a model that is not timed."""
    why = "can't be timed, its network has not been written in PyTorch, for the peers"
    why = why if model in {*TASKS, *FEDERATED_TASKS} else "is unknown"
    require(model in TIMED, f"--models: {model!r} {why}: choose of {', '.join(TIMED)}")


def missing_line(missing: Sequence[Kind]) -> str:
    """A sentence on the engines that are left out and on how to install them."""
    libraries = ", ".join(dict.fromkeys(kind.needs for kind in missing))
    return (
        f"left out: {', '.join(kind.name for kind in missing)} ({libraries} not installed; "
        f"{sys.executable} -m pip install -c requirements.lock -e '.[bench]' brings it)"
    )
