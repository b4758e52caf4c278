"""How clients train: with one example each, whose round is a step of DP-SGD with the cohort as its
mini-batch, or with examples of their own, by DP-FedAvg."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from audit.game import root
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import ClippedDots, ClippedSum, scale_to_norm
from audit.model import Model, losses_by_example
from audit.task import Clients
from experiments.canife import clients
from experiments.canife.attacked import Attacked
from experiments.canife.clients import DotsOf, Indices, UpdatesOf


class ClientTraining(NamedTuple):
    """A mechanism that trains on clients, with its data and hyperparameters, and what its clients and mock
    clients send."""

    mechanism: base.Mechanism
    hyper: base.Hyperparameters
    data: base.Data
    train_clients: int
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
        found: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return found * scale_to_norm(jnp.sum(found**2, axis=1), norm)[:, None]

    compiled = jax.jit(dots)

    def mock_updates(theta: Array, members: Indices) -> Array:
        found: Array = gradients(theta, *map(jnp.asarray, (mock.features[members], mock.labels[members])))
        return found

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        batch = jnp.asarray(train.features[members]), jnp.asarray(train.labels[members])
        found: Array = compiled(theta, batch, norm, direction)
        return found

    return ClientTraining(
        dpsgd.mechanism(dpsgd.DPSGD(clipped_sum)),
        _hyper(attacked),
        (jnp.asarray(train.features), jnp.asarray(train.labels)),
        train.number,
        train_dots,
        mock_updates,
    )


def of_clients(attacked: Attacked, model: Model, train: Clients, mock: Clients) -> ClientTraining:
    """Clients of many examples, by DP-FedAvg."""
    most = int(max(train.counts.max(), mock.counts.max()))
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        min(attacked.batch_size, most),
        attacked.client_epochs,
        most,
    )
    own = fedavg.Federated(jnp.float32(attacked.client_learning_rate), jnp.float32(attacked.cohort))
    data = tuple(map(jnp.asarray, train.arrays))
    sent = _sent(attacked, choices, own, data)

    def dots(theta: Array, members: Indices, direction: Array) -> Array:
        return sent(theta, members) @ direction

    return ClientTraining(
        fedavg.mechanism(choices),
        _hyper(attacked, own),
        data,
        train.number,
        dots,
        _sent(attacked, choices, own, tuple(map(jnp.asarray, mock.arrays))),
    )


def trainer(attacked: Attacked, made: ClientTraining) -> Callable[[base.State, int, int], base.State]:
    """(state, first round, rounds) -> the state after rounds with a cohort each."""
    key = root(attacked.seed, "noise")

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        return made.mechanism.segment(made.hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        numbers = range(first, first + rounds)
        cohorts = np.stack([clients.cohort(attacked, made.train_clients, number) for number in numbers])
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

        found: Array = jax.lax.map(one, members, batch_size=choices.block)
        return found

    def updates(theta: Array, members: Indices) -> Array:
        found: Array = several(theta, jnp.asarray(members, jnp.int32), data)
        return found

    return updates
