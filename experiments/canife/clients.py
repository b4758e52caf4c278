"""The contract of a measured training's clients, what is drawn of them, and the samples that are designed
against them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.mechanism.base import State
from experiments.canife.attacked import Attacked
from models import soft
from models.base import Model

Indices = NDArray[np.int64]
_LABEL_WEIGHT = 4.0  # a mixture's log weight at its first label: 86% of ten


class Sample(NamedTuple):
    """What is designed: pixels (height, width, ...), normalised, and a label's log weights (classes,)."""

    pixels: Array
    label: Array


class Shape(NamedTuple):
    """What samples look like: of an image, how many classes, and the pixels' mean and deviation on [0, 1]."""

    image: tuple[int, ...]
    classes: int
    mean: Array
    deviation: Array


class UpdatesOf(Protocol):
    """(theta (p,), clients (n,)) -> the clipped updates (n, p) that they send."""

    def __call__(self, theta: Array, members: Indices, /) -> Array: ...


class Population(NamedTuple):
    """A training and its clients: those that it trains on, and the mock clients that canaries are designed
    on.

    dress(sample) -> the features that the model takes of it. mock_sample(client) -> (pixels, label) of one of
    its examples. rate: what a client of one example multiplies its gradient by; None where it sends the
    gradient. train(state, first round, rounds) -> the state after them. accuracy(theta) -> on test examples.
    """

    model: Model
    shape: Shape
    train_clients: int
    mock_clients: int
    train_updates: UpdatesOf
    mock_updates: UpdatesOf
    dress: Callable[[Sample], Array]
    mock_sample: Callable[[int], tuple[NDArray[np.uint8], int]]
    rate: float | None
    start: Callable[[], State]
    train: Callable[[State, int, int], State]
    accuracy: Callable[[Array], float]


def cohort(attacked: Attacked, train_clients: int, number: int) -> Indices:
    """A round's clients, drawn without replacement."""
    return drawn(attacked, f"cohort {number}", train_clients, attacked.cohort)


def drawn(attacked: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """So many clients, drawn without replacement by the seed and a purpose."""
    return generator(attacked, purpose).choice(clients, size, replace=False, shuffle=False)


def generator(attacked: Attacked, purpose: str) -> np.random.Generator:
    """A generator of its own for each purpose."""
    return np.random.default_rng([attacked.seed, *purpose.encode()])


def first_sample(attacked: Attacked, known: Population, number: int, pool: Indices) -> tuple[Sample, Indices]:
    """The sample that a round's design begins with, and the mock clients that it is designed on: all but its
    own, where it is one of theirs."""
    rng, shape = generator(attacked, f"sample {number}"), known.shape
    chosen, label = int(rng.integers(len(pool))), int(rng.integers(shape.classes))
    pixels: NDArray[np.floating[Any]] = rng.random(shape.image, np.float32)
    if attacked.start == "sample":
        found, label = known.mock_sample(int(pool[chosen]))
        pixels, pool = found.astype(np.float32) / 255, np.delete(pool, chosen)
    log_weights = _LABEL_WEIGHT * jax.nn.one_hot(label, shape.classes)
    return Sample((jnp.asarray(pixels) - shape.mean) / shape.deviation, log_weights), pool


def sample_loss(attacked: Attacked, known: Population) -> Callable[[Array, Sample, Array], Array]:
    """The model's loss of a sample, with a fixed label or a mixture."""
    mixed = soft.soft_label(known.model, known.shape.classes)

    def loss(theta: Array, sample: Sample, key: Array) -> Array:
        if attacked.soft_label:
            return mixed(theta, (known.dress(sample), jax.nn.softmax(sample.label)))
        label = jnp.argmax(jax.lax.stop_gradient(sample.label))
        return known.model.loss(theta, (known.dress(sample), label))

    return loss


def within(attacked: Attacked, known: Population) -> Callable[[Sample], Sample]:
    """The projection of a sample onto images, where pixels are clamped."""
    mean, deviation = known.shape.mean, known.shape.deviation

    def project(sample: Sample) -> Sample:
        pixels = jnp.clip(sample.pixels, (0 - mean) / deviation, (1 - mean) / deviation)
        return sample._replace(pixels=pixels) if attacked.clamp else sample

    return project
