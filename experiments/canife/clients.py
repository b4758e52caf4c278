"""The contract of a measured training's clients, and what is drawn of them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.mechanism.base import State
from audit.model import Model
from experiments.canife.attacked import Attacked
from experiments.canife.samples import Sample, Samples

Indices = NDArray[np.int64]


class UpdatesOf(Protocol):
    """(theta (p,), clients (n,)) -> the clipped updates (n, p) that they send."""

    def __call__(self, theta: Array, members: Indices, /) -> Array: ...


class DotsOf(Protocol):
    """(theta (p,), clients (n,), direction (p,)) -> (n,), their clipped updates' dot products with it."""

    def __call__(self, theta: Array, members: Indices, direction: Array, /) -> Array: ...


class Population(NamedTuple):
    """A training and its clients: those that it trains on, and the mock clients that canaries are designed
    on.

    mock_example(client) -> (features, label) of the first of its examples. rate: what a client of one example
    multiplies its gradient by; None where it sends the gradient. train(state, first round, rounds) -> the
    state after them. accuracy(theta) -> on test examples.
    """

    model: Model
    samples: Samples
    train_clients: int
    mock_clients: int
    train_dots: DotsOf
    mock_updates: UpdatesOf
    mock_example: Callable[[int], tuple[NDArray[Any], Any]]
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
    rng = generator(attacked, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if attacked.start == "random":
        return known.samples.random(rng), pool
    return known.samples.taken(*known.mock_example(int(pool[chosen]))), np.delete(pool, chosen)
