"""The problem that every engine is given, and the engine made of it; imports no engine's library."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.settings.federated import FederatedSetting
from audit.settings.setting import Setting

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

    @property
    def model(self) -> str:
        """The model's name."""
        return self.setting.model

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

    @property
    def model(self) -> str:
        """The model's name."""
        return self.setting.model


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
