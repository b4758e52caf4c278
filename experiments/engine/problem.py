"""The problem that every engine is given, and the engine made of it; imports no engine's library."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GEMM_SIZE = 2048  # of the square matrices that `gemm` multiplies
CHECKED_STEPS = 3  # of a client in the round by which engines of DP-FedAvg are compared
_FLOATS = {"cpu": 1 << 26, "gpu": 1 << 30}  # of per-example gradients, at most, in a step of many models

Layout = list[tuple[NDArray[np.int64], ...]]
Run = Callable[[], int]  # does some model-steps or client-updates; returns their number when done


class Problem(NamedTuple):
    """DP-SGD with SGD on one model and fixed mini-batches.

    features (n, ...), labels (n,), batches (steps, B) of indices, theta_0 (p,). stepped (p,) is theta_0
    after our step on the first mini-batch without noise at learning rate 1. layout has, for each
    layer in the order of calls, where the numbers of its kernel or scale and those of its bias, if any, stand
    in theta, in Flax's shapes.
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
        return int(self.batches.shape[1])

    def save(self, path: Path) -> None:
        """Writes an .npz file that needs no unpickling."""
        _write(self._asdict(), path)

    @classmethod
    def load(cls, path: Path) -> "Problem":
        """Reads a file that `save` wrote."""
        return cls(**_read(path))

    def models_to_try(self, platform: str) -> list[int]:
        """1, 8, 64, ... models at once, as long as their per-example gradients fit."""
        floats = self.batch_size * self.theta_0.size
        return [1, *(m for m in (8, 64, 512, 4096) if m * floats <= _FLOATS[platform])]


class FederatedProblem(NamedTuple):
    """DP-FedAvg on one model with fixed cohorts of clients.

    features (N, ...), labels (N,), starts (M,), counts (M,): as in `models.data.clients.Clients`. cohorts
    (T, W): the clients of each round. theta_0 and layout as in `Problem`. stepped (p,) is theta_0 after a
    round of the first cohort without noise at server learning rate 1, each of whose clients takes
    CHECKED_STEPS steps on all of its examples.
    """

    model: str
    features: NDArray[Any]
    labels: NDArray[Any]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    cohorts: NDArray[np.int32]
    theta_0: NDArray[np.float32]
    stepped: NDArray[np.float32]
    layout: Layout
    batch_size: int
    client_learning_rate: float
    learning_rate: float
    momentum: float
    clipping_norm: float
    noise_multiplier: float

    def examples(self) -> float:
        """Examples of an update, on average over the cohorts."""
        return float(self.counts[self.cohorts].mean())

    def save(self, path: Path) -> None:
        """Writes an .npz file that needs no unpickling."""
        _write(self._asdict(), path)

    @classmethod
    def load(cls, path: Path) -> "FederatedProblem":
        """Reads a file that `save` wrote."""
        return cls(**_read(path))


def _write(fields: dict[str, Any], path: Path) -> None:
    """A problem's fields as an .npz file."""
    arrays = {name: value for name, value in fields.items() if name != "layout"}
    for i, layer in enumerate(fields["layout"]):
        arrays |= {f"layer_{i}_{j}": numbers for j, numbers in enumerate(layer)}
    np.savez(path, **arrays)


def _read(path: Path) -> dict[str, Any]:
    """The fields that `_write` wrote."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    layers = sum(name.startswith("layer_") and name.endswith("_0") for name in arrays)
    names = [[f"layer_{i}_{j}" for j in (0, 1) if f"layer_{i}_{j}" in arrays] for i in range(layers)]
    layout = [tuple(arrays.pop(name) for name in layer) for layer in names]
    scalars = {name: value.item() for name, value in arrays.items() if value.ndim == 0}
    return {"layout": layout, **arrays, **scalars}


class About(NamedTuple):
    """Models at once, platform ("cpu" or "gpu"), the device's name, and the Euclidean distance of the
    engine's noiseless step from ours."""

    models: int
    platform: str
    device: str
    distance: float = 0.0


class Engine(NamedTuple):
    """An engine that is ready to be timed; device_peak() is the most bytes of a GPU's memory in use."""

    about: About
    run: Run
    device_peak: Callable[[], int] | None = None


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
        found = rate(run, 0.5)
        if found > best_rate:
            best_rate, best = found, (models, run)
    return best
