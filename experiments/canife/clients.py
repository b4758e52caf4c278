"""A measured training's clients: their contract, what is drawn of them, and how they train. Clients with one
example each train by DP-SGD, a round a step with the cohort as its mini-batch; others by DP-FedAvg."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.game import root
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import ClippedDots, ClippedSum, scale_to_norm
from audit.model import Model, losses_by_example
from audit.task import Clients
from experiments.canife.attacked import Attacked
from experiments.canife.samples import Sample, Samples

Indices = NDArray[np.int64]

# (theta (p,), clients (n,)) -> the clipped updates (n, p) that they send
UpdatesOf = Callable[[Array, Indices], Array]
# (theta (p,), clients (n,), direction (p,)) -> (n,), their clipped updates' dot products with it
DotsOf = Callable[[Array, Indices, Array], Array]


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
    start: Callable[[], base.State]
    train: Callable[[base.State, int, int], base.State]
    accuracy: Callable[[Array], float]


def drawn(attacked: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """So many clients, drawn without replacement by the seed and a purpose."""
    return generator(attacked, purpose).choice(clients, size, replace=False, shuffle=False)


def generator(attacked: Attacked, purpose: str) -> np.random.Generator:
    """A generator of its own for each purpose."""
    return np.random.default_rng([attacked.seed, *purpose.encode()])


def first_sample(
    attacked: Attacked, population: Population, number: int, pool: Indices
) -> tuple[Sample, Indices]:
    """The sample that a round's design begins with, and the mock clients that it is designed on: all but its
    own, where it is one of theirs."""
    rng = generator(attacked, f"sample {number}")
    chosen = int(rng.integers(len(pool)))
    if attacked.start == "random":
        return population.samples.random(rng), pool
    return population.samples.taken(*population.mock_example(int(pool[chosen]))), np.delete(pool, chosen)


class ClientTraining(NamedTuple):
    """A mechanism that trains on clients, with its data and hyperparameters, and what its clients and mock
    clients send."""

    mechanism: base.Mechanism
    hyper: base.Hyperparameters
    data: base.Data
    train_dots: DotsOf
    mock_updates: UpdatesOf


def of_examples(
    attacked: Attacked,
    model: Model,
    clipped_sum: ClippedSum,
    dots: ClippedDots,
    train: Clients,
    mock: Clients,
) -> ClientTraining:
    """Clients of one example each, by DP-SGD."""
    norm = jnp.float32(attacked.clipping_norm)

    @jax.jit
    def gradients(theta: Array, features: Array, labels: Array) -> Array:
        raw: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return raw * scale_to_norm(jnp.sum(raw**2, axis=1), norm)[:, None]

    compiled = jax.jit(dots)

    def mock_updates(theta: Array, members: Indices) -> Array:
        sent: Array = gradients(theta, *map(jnp.asarray, (mock.features[members], mock.labels[members])))
        return sent

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        batch = jnp.asarray(train.features[members]), jnp.asarray(train.labels[members])
        products: Array = compiled(theta, batch, norm, direction)
        return products

    mechanism = dpsgd.mechanism(dpsgd.DPSGD(clipped_sum))
    data = jnp.asarray(train.features), jnp.asarray(train.labels)
    return ClientTraining(mechanism, _hyper(attacked), data, train_dots, mock_updates)


def of_clients(attacked: Attacked, model: Model, train: Clients, mock: Clients) -> ClientTraining:
    """Clients of many examples, by DP-FedAvg."""
    most = int(max(train.counts.max(), mock.counts.max()))
    batch_size = min(attacked.batch_size, most)
    choices = fedavg.FedAvg(losses_by_example(model), model.unravel, batch_size, attacked.client_epochs, most)
    own = fedavg.Federated(jnp.float32(attacked.client_learning_rate), jnp.float32(attacked.cohort))
    data, mock_data = (tuple(map(jnp.asarray, some.arrays)) for some in (train, mock))
    sent = _sent(attacked, choices, own, data)

    def dots(theta: Array, members: Indices, direction: Array) -> Array:
        return sent(theta, members) @ direction

    updates = _sent(attacked, choices, own, mock_data)
    return ClientTraining(fedavg.mechanism(choices), _hyper(attacked, own), data, dots, updates)


def trainer(
    attacked: Attacked, made: ClientTraining, train_clients: int
) -> Callable[[base.State, int, int], base.State]:
    """(state, first round, rounds) -> the state after rounds with a cohort each."""
    key = root(attacked.seed, "noise")

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        return made.mechanism.segment(made.hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        purposes = [f"cohort {number}" for number in range(first, first + rounds)]
        cohorts = np.stack([drawn(attacked, one, train_clients, attacked.cohort) for one in purposes])
        schedule = base.Schedule(jnp.asarray(cohorts, jnp.int32), jnp.zeros(rounds))
        after: base.State = segment(state, made.data, schedule)
        return after

    return train


def _hyper(attacked: Attacked, own: base.Tree = ()) -> base.Hyperparameters:
    """The setting's hyperparameters in float32."""
    rate, norm = jnp.float32(attacked.learning_rate), jnp.float32(attacked.clipping_norm)
    return base.Hyperparameters(rate, norm, jnp.float32(attacked.noise_multiplier), own)


def _sent(attacked: Attacked, choices: fedavg.FedAvg, own: fedavg.Federated, data: base.Data) -> UpdatesOf:
    """What clients of DP-FedAvg send: each is a cohort of its own."""
    norm, key = jnp.float32(attacked.clipping_norm), root(attacked.seed, "guess")

    @jax.jit
    def several(theta: Array, members: Array, data: base.Data) -> Array:
        def one(member: Array) -> Array:
            return fedavg.cohort_sums(choices, own, theta, norm, data, member[None], key).updates

        updates: Array = jax.lax.map(one, members, batch_size=choices.block)
        return updates

    return lambda theta, members: several(theta, jnp.asarray(members, jnp.int32), data)
