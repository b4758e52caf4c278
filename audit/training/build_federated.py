"""Builds the game of a federated setting on its clients."""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from audit.adversaries import directions
from audit.adversaries.base import Adversary
from audit.errors import InputError, require
from audit.mechanism import base, cohorts, ensemble, fedavg
from audit.mechanism.base import Hyperparameters, Schedule, local_hardware
from audit.settings.federated import FederatedSetting, FederatedTraining, noise
from audit.tasks.model import losses_by_example
from audit.tasks.task import Clients, Test, federated_task
from audit.training import game
from audit.training.game import Game

_SEGMENT_CLIENTS = 250  # about how many clients' updates there are between two checkpoints
_MOST_TEST_EXAMPLES = 10_000
_MOST_TEST_LABELS = 100_000  # text has a label for every position of an example

Rehearse = Callable[[Array], Array]  # theta_0 -> the final model without noise and canaries


class Participation(NamedTuple):
    """Which clients and canaries take part in which of T rounds.

    Attributes:
      clients: (T, W) the indices of each round's clients, padded with cohorts.ABSENT.
      canaries: (T, K) 1 in the rounds in which each of K canaries takes part, if it is in at all; else 0.
      mean: the mean number of participants of a round: clients, and canaries that are in.
      most: the largest number of rounds in which any one client takes part.
    """

    clients: NDArray[np.int32]
    canaries: NDArray[np.float32]
    mean: float
    most: int


def checksum(clients: Clients) -> str:
    """Returns the SHA-256, in hex, of the clients' features, labels and numbers of examples."""
    digest = hashlib.sha256()
    for array in (clients.features, clients.labels, clients.counts):
        # Type and shape too, since different arrays may have the same bytes.
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def rounds(setting: FederatedSetting, clients: Clients) -> Participation:
    """Draws from the setting's seed which clients and canaries take part in which round.

    With Poisson participation, canaries take part in each round with the clients' probability. Else each
    canary takes part in `setting.repetitions` rounds.

    Args:
      setting: the setting, whose participation says how clients are drawn.
      clients: the clients' data.

    Returns:
      The clients (T, W) of each of T rounds, padded to the largest round's number W; a mask (T, K) of the
      rounds in which each canary takes part, if it is in; the mean number of a round's participants; and the
      largest number of rounds of any client.

    Raises:
      InputError: there are too few clients for a cohort.
    """
    key = game.root(setting.seed, "batches")
    # For the canaries' draws, each of which folds it once more. Clients draw by `key`, whose round 1 may use
    # this key itself: no draw of either has the other's key. Other keys would change all stored scores.
    canary_key = jax.random.fold_in(key, 1)

    if setting.participation == "poisson":
        members = cohorts.sampled(key, clients.number, setting.rounds, setting.cohort)
        rate = setting.cohort / clients.number
        mask = cohorts.sampled_canaries(canary_key, setting.canaries, setting.rounds, rate)
        # Expected numbers of participants, which do not depend on the draw.
        mean_clients = setting.cohort
        mean_canaries = setting.canaries * setting.cohort / clients.number
    else:
        members = cohorts.shuffled(key, clients.number, setting.rounds, setting.cohort)
        mask = cohorts.repeated(canary_key, setting.canaries, len(members), setting.repetitions)
        # Rounds with fewer clients than others are padded with ABSENT.
        mean_clients = (members != cohorts.ABSENT).sum() / len(members)
        mean_canaries = mask.sum() / len(members)

    return Participation(
        clients=members,
        canaries=mask,
        mean=float(mean_clients + 0.5 * mean_canaries),  # a canary is in with probability 0.5
        most=cohorts.most_rounds(members, clients.number),
    )


def build(setting: FederatedSetting, clients: Clients, participation: Participation) -> Game:
    """Builds the game of a federated setting: how DP-FedAvg trains, and how an adversary attacks it.

    Args:
      setting: the setting.
      clients: the clients' data.
      participation: which clients take part in which round.
    """
    round_noise = noise(setting)
    hyper = Hyperparameters(
        setting.learning_rate,
        setting.clipping_norm,
        round_noise.multiplier,
        own=fedavg.Federated(  # the hyperparameters that only DP-FedAvg has
            setting.client_learning_rate,
            denominator=participation.mean,  # by which the sum of a round's updates is divided
            target_quantile=setting.quantile,
            quantile_rate=round_noise.quantile_rate,
            count_noise=round_noise.on_count,
        ),
    )
    chosen = choices(setting, clients)
    data = tuple(map(jnp.asarray, clients.arrays))
    # Clients that are next to each other train in one block. Sorted, they take about as many steps each.
    batches = cohorts.by_size(participation.clients, clients.counts)
    schedule = Schedule(jnp.asarray(batches), jnp.asarray(participation.canaries))

    def rehearse(theta_0: Array) -> Array:
        """Returns the final model (p,) of training from theta_0 (p,) without noise and canaries.

        It is for the adversary. A single device trains it: a round's clients are not spread over devices.
        """
        on_one_device = fedavg.mechanism(chosen._replace(spreads=False))
        without_canaries = schedule._replace(mask=jnp.zeros(len(batches)))
        train = jax.jit(partial(base.rehearse, on_one_device, canaries=base.no_canaries()))
        theta: Array = train(hyper, theta_0, data, without_canaries)
        return theta

    # A checkpoint may come after each segment of rounds, which is to have about 250 clients' updates.
    clients_per_round = batches.shape[1]
    segment_steps = max(1, _SEGMENT_CLIENTS // clients_per_round)
    return Game(
        mechanism=fedavg.mechanism(chosen),
        adversary=_make_adversary(setting, rehearse),
        init=federated_task(setting.model).make().init,
        data=data,
        hyper=hyper,
        schedule=schedule,
        seed=setting.seed,
        segment_steps=segment_steps,
    )


def _make_adversary(setting: FederatedSetting, rehearse: Rehearse) -> Adversary:
    """Returns the one-shot adversary, whose scores are cosines with the models that the setting lets it see.

    Args:
      setting: the setting; its field `observe` says what the adversary sees.
      rehearse: theta_0 -> the final model without noise and canaries, which "fresh" directions need.
    """
    # The adversary sees the final model alone. The cosine is that with its displacement from the model that
    # the second argument gives: the initial one, zeros, or that of a rehearsal.
    canaries = setting.canaries
    if setting.observe == "final":
        return directions.final_cosines(canaries, directions.initial_model)
    if setting.observe == "weights":  # the displacement from 0 is the final model itself
        return directions.final_cosines(canaries, directions.zero_model)
    if setting.observe == "fresh":
        return directions.final_cosines(canaries, rehearse, fresh=True)

    # It sees every round's model. The score is the largest of a canary's cosines over rounds.
    if setting.observe == "all":  # with the model's moves
        return directions.largest_cosines(canaries)
    # "means": with the noisy means of updates, which follow from the moves and the momentum
    return directions.largest_cosines(canaries, setting.momentum)


def choices(setting: FederatedSetting, clients: Clients) -> fedavg.FedAvg:
    """Returns DP-FedAvg's functions and sizes for a setting.

    A device trains a block of clients at once. On a CPU a block is 4 clients, on other devices as many as
    memory takes.

    Args:
      setting: the setting.
      clients: the clients' data.
    """
    model = federated_task(setting.model).make()
    most_examples = int(clients.counts.max())

    def optimizer(rate: Array) -> optax.GradientTransformation:
        """Returns the server's optimizer, SGD with the setting's momentum, at a learning rate."""
        return optax.sgd(rate, momentum=setting.momentum)

    chosen = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        batch_size=min(setting.batch_size, most_examples),  # further places would be empty
        epochs=setting.client_epochs,
        most_examples=most_examples,
        optimizer=optimizer,
        spreads=True,  # a round's clients are divided over the devices
    )
    devices = local_hardware()
    if devices.is_cpu:
        return chosen

    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    data_types = tuple(map(jax.typeof, clients.arrays))
    memory = fedavg.client_memory(chosen, theta, data_types)
    # As many as one device's memory takes. A device whose share of the cohort is smaller trains only that.
    block = ensemble.chunk_size(setting.cohort, memory, devices._replace(number=1))
    return chosen._replace(block=block)


def accuracy(
    setting: FederatedTraining, clients: Clients, test: Test | None
) -> Callable[[Array], Array]:
    """Returns a compiled function that measures the accuracy of R models, (R, p) -> (R,).

    Accuracy is the share of labels that are a model's first choice; padding does not count. It is measured on
    at most 10,000 examples with at most 100,000 labels: on every n-th example where there are more.

    Args:
      setting: the setting, which names the model.
      clients: the clients' data, whose examples are used where there are no test data.
      test: the test data's features and labels, or None.
    """
    row = federated_task(setting.model)
    model = row.make()
    features, labels = test or (clients.features, clients.labels)

    # Every n-th example, for the least n that keeps within both limits.
    by_examples = math.ceil(len(labels) / _MOST_TEST_EXAMPLES)
    by_labels = math.ceil(labels.size / _MOST_TEST_LABELS)
    step = max(by_examples, by_labels)
    some_features = jnp.asarray(features[::step])
    some_labels = jnp.asarray(labels[::step])

    def measure_one_model(theta: Array, features: Array, labels: Array) -> Array:
        """Returns the share of labels, padding left out, that are the first choice of a model (p,)."""

        def compute_logits(example: Array) -> Any:
            """Returns the logits of a single example; of a text, those of each position."""
            logits: Any = model.module.apply({"params": model.unravel(theta)}, example)
            return logits

        # In batches of 500 examples, which bounds the memory.
        logits = jax.lax.map(compute_logits, features, batch_size=500)
        first_choices = jnp.argmax(logits, axis=-1)
        is_counted = jnp.ones_like(labels) if row.padding is None else labels != row.padding
        return jnp.sum((first_choices == labels) * is_counted) / jnp.sum(is_counted)

    measure_models = jax.jit(jax.vmap(measure_one_model, (0, None, None)))  # over models alone

    def measure(thetas: Array) -> Array:
        """Returns the accuracies (R,) of models (R, p) on the chosen examples."""
        accuracies: Array = measure_models(thetas, some_features, some_labels)
        return accuracies

    return measure


def require_clients(clients: Clients) -> None:
    """Raises InputError where there are no clients, or where a client has no examples."""
    if not clients.number:
        raise InputError("there are no clients: name data that have some")
    empty = np.flatnonzero(clients.counts < 1)  # the message has the first of these
    require(not empty.size, f"client {empty[:1]} has no examples: leave it out")
