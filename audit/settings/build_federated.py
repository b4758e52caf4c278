"""Builds the game of a federated setting on its clients."""

import dataclasses
import hashlib
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
from audit.mechanism.base import Hyperparameters, Schedule
from audit.mechanism.memory import Hardware, local_hardware
from audit.settings.federated import FederatedSetting, noise, validate_federated
from audit.storage import files
from audit.tasks.model import losses_by_example, losses_of_batch
from audit.tasks.task import Clients, Test
from audit.tasks.zoo import federated_task
from audit.training import game
from audit.training.game import Game

_SEGMENT_CLIENTS = 250  # clients' updates between two checkpoints, about
_MOST_COHORTS_BYTES = 1 << 30
_MOST_LISTED_ROUNDS = 1_000_000
_COHORTS_HEADER = re.compile(r"[#\s]*round\s*,\s*client\s*", re.IGNORECASE)
_MOST_TEST_EXAMPLES = 10_000
_MOST_TEST_LABELS = 100_000  # text has a label for every position of an example

Rehearse = Callable[[Array], Array]  # theta_0 -> the final model without noise and canaries


class Participation(NamedTuple):
    """Who takes part in which of T rounds.

    Attributes:
      clients: (T, W) the clients of each round, padded with cohorts.ABSENT.
      canaries: (T, K) whether a canary takes part in a round where it is in.
      mean: the mean number of clients and of canaries that are in, in a round.
      most: the largest number of rounds of a client.
    """

    clients: NDArray[np.int32]
    canaries: NDArray[np.float32]
    mean: float
    most: int


def checksum(clients: Clients) -> str:
    """Returns the SHA-256 of clients' examples, in hex."""
    digest = hashlib.sha256()
    for part in (clients.features, clients.labels, clients.counts):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def read_rounds(path: Path) -> list[NDArray[np.int64]]:
    """Reads the clients of each round from lines `round,client`, below a header or none.

    Rounds count from 1, clients from 0.

    Raises:
      InputError: the file can't be read, or holds something else.
    """
    try:
        content = files.regular(path, "check `cohorts`", _MOST_COHORTS_BYTES).read_bytes()
    except FileNotFoundError:
        raise InputError(f"`cohorts={path}`: there is no such file") from None
    except OSError as error:
        raise InputError(f"`cohorts={path}`: it cannot be read ({error.strerror})") from None

    pairs = []
    lines = content.decode("utf-8-sig", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        if number == 1 and _COHORTS_HEADER.fullmatch(line):
            continue
        for text in line.split():
            pairs.append(_parse_pair(path, number, text))
    require(pairs, f"{path} holds no rounds: give lines round,client")

    round_of_pair, client_of_pair = np.array(pairs).T
    last = round_of_pair.max()
    require(
        last <= _MOST_LISTED_ROUNDS,
        f"{path} names round {last}: give at most {_MOST_LISTED_ROUNDS:,}",
    )
    return [client_of_pair[round_of_pair == t] for t in range(1, last + 1)]


def _parse_pair(path: Path, number: int, text: str) -> tuple[int, int]:
    """Returns (round from 1, client from 0) of the text "round,client"; raises InputError for others.

    Args:
      path: of the file, for the message.
      number: of the line, for the message.
      text: of a pair; numbers have at most nine digits.
    """
    parts = text.split(",")
    are_numbers = all(part.isdecimal() and len(part) < 10 for part in parts)
    is_pair = len(parts) == 2 and are_numbers and int(parts[0]) >= 1
    require(is_pair, f"{path}, line {number}: {text[:40]!r} is not round,client")
    return int(parts[0]), int(parts[1])


def with_rounds(setting: FederatedSetting, listed: list[NDArray[np.int64]]) -> FederatedSetting:
    """Returns the setting with the number of listed rounds, and their mean number of clients as its cohort.

    Args:
      setting: the setting, of participation "listed".
      listed: the clients of each round.

    Raises:
      InputError: the setting doesn't fit these rounds.
    """
    participations = sum(map(len, listed))
    mean_clients = max(round(participations / len(listed)), 1)
    with_listed = dataclasses.replace(setting, rounds=len(listed), cohort=mean_clients)
    validate_federated(with_listed)
    return with_listed


def rounds(
    setting: FederatedSetting, clients: Clients, listed: list[NDArray[np.int64]] | None
) -> Participation:
    """Draws which clients take part in which round, from the setting's seed, or takes them from a list.

    Args:
      setting: with participation, cohort and rounds, and with the canaries.
      clients: the clients' data.
      listed: the clients of each round, or None.

    Raises:
      InputError: there are too few clients.
    """
    key = game.root(setting.seed, "batches")
    canary_key = jax.random.fold_in(key, 1)

    if listed is None and setting.participation == "poisson":
        members = cohorts.sampled(key, clients.number, setting.rounds, setting.cohort)
        rate = setting.cohort / clients.number
        mask = cohorts.sampled_canaries(canary_key, setting.canaries, setting.rounds, rate)
        mean_clients = setting.cohort
        mean_canaries = setting.canaries * setting.cohort / clients.number
    else:
        if listed is None:
            members = cohorts.shuffled(key, clients.number, setting.rounds, setting.cohort)
        else:
            members = cohorts.listed(listed, clients.number)
        mask = cohorts.repeated(canary_key, setting.canaries, len(members), setting.repetitions)
        mean_clients = (members != cohorts.ABSENT).sum() / len(members)
        mean_canaries = mask.sum() / len(members)

    return Participation(
        clients=members,
        canaries=mask,
        mean=float(mean_clients + 0.5 * mean_canaries),  # a canary is in with probability 0.5
        most=cohorts.most_rounds(members, clients.number),
    )


def build(setting: FederatedSetting, clients: Clients, participation: Participation) -> Game:
    """Builds the game of a federated setting on its clients.

    Args:
      setting: the setting.
      clients: the clients' data.
      participation: which clients take part in which round.
    """
    split = noise(setting)
    hyper = Hyperparameters(
        setting.learning_rate,
        setting.clipping_norm,
        split.multiplier,
        own=fedavg.Federated(
            setting.client_learning_rate,
            denominator=participation.mean,
            target_quantile=setting.quantile,
            quantile_rate=split.quantile_rate,
            count_noise=split.on_count,
        ),
    )
    chosen = choices(setting, clients)
    data = tuple(map(jnp.asarray, clients.arrays))
    # Neighbours, who train in one block, then take equally many steps.
    batches = cohorts.by_size(participation.clients, clients.counts)
    schedule = Schedule(jnp.asarray(batches), jnp.asarray(participation.canaries))

    def rehearse(theta_0: Array) -> Array:
        """Returns the final model (p,) from theta_0 (p,), without noise and canaries, on a single device."""
        unspread = fedavg.mechanism(chosen._replace(spreads=False))
        without_canaries = schedule._replace(mask=jnp.zeros(len(batches)))
        train = jax.jit(partial(base.rehearse, unspread, canaries=base.no_canaries()))
        theta: Array = train(hyper, theta_0, data, without_canaries)
        return theta

    return Game(
        fedavg.mechanism(chosen),
        _make_adversary(setting, rehearse),
        federated_task(setting.model).make().init,
        data,
        hyper,
        schedule,
        setting.seed,
        segment_steps=max(1, _SEGMENT_CLIENTS // batches.shape[1]),
    )


def _make_adversary(setting: FederatedSetting, rehearse: Rehearse) -> Adversary:
    """Returns the one-shot adversary that observes what the setting says.

    Args:
      setting: names the observation; see its field `observe`.
      rehearse: theta_0 -> the final model without noise and canaries, for "fresh" directions.
    """
    canaries = setting.canaries
    if setting.observe == "final":
        return directions.final_cosines(canaries, directions.initial_model)
    if setting.observe == "weights":
        return directions.final_cosines(canaries, directions.zero_model)
    if setting.observe == "fresh":
        return directions.final_cosines(canaries, rehearse, fresh=True)
    if setting.observe == "all":
        return directions.largest_cosines(canaries)
    return directions.largest_cosines(canaries, setting.momentum)  # noisy means


def choices(
    setting: FederatedSetting, clients: Clients, hardware: Hardware | None = None
) -> fedavg.FedAvg:
    """Returns DP-FedAvg's functions and sizes for a setting.

    A block is the number of clients that train at once: on a CPU 4, or 1 of a model whose clients train
    fastest in turn (`by_batch`); on other devices as many as memory takes.

    Args:
      setting: the setting.
      clients: the clients' data.
      hardware: the devices to train on; by default this process's.
    """
    row = federated_task(setting.model)
    model = row.make()
    losses = losses_of_batch if row.by_batch else losses_by_example
    most_examples = int(clients.counts.max())

    def optimizer(rate: Array) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=setting.momentum)

    chosen = fedavg.FedAvg(
        losses(model),
        model.unravel,
        batch_size=min(setting.batch_size, most_examples),
        epochs=setting.client_epochs,
        most_examples=most_examples,
        block=1 if row.by_batch else 4,
        optimizer=optimizer,
        spreads=True,
    )
    devices = hardware or local_hardware()
    if devices.is_cpu:
        return chosen

    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    data_types = tuple(map(jax.typeof, clients.arrays))
    memory = fedavg.client_memory(chosen, theta, data_types)
    # What one device's memory takes; a device whose share of the cohort is smaller cuts the block to it.
    block = ensemble.chunk_size(setting.cohort, memory, devices._replace(number=1))
    return chosen._replace(block=block)


def accuracy(
    setting: FederatedSetting, clients: Clients, test: Test | None
) -> Callable[[Array], Array]:
    """Returns a compiled function that measures the accuracy of R models, (R, p) -> (R,).

    It is the share of labels that are a model's first choice, on every few of the test examples: at most
    10,000 examples and 100,000 labels. Padding does not count.

    Args:
      setting: names the model.
      clients: the clients' data, whose examples are used where there is no test data.
      test: features and labels, or None.
    """
    row = federated_task(setting.model)
    model = row.make()
    features, labels = test or (clients.features, clients.labels)
    by_examples = math.ceil(len(labels) / _MOST_TEST_EXAMPLES)
    by_labels = math.ceil(labels.size / _MOST_TEST_LABELS)
    step = max(by_examples, by_labels)
    some_features = jnp.asarray(features[::step])
    some_labels = jnp.asarray(labels[::step])

    def measure_one_model(theta: Array, features: Array, labels: Array) -> Array:
        """Returns the share of labels, padding left out, that are the first choice of a model (p,)."""

        def compute_logits(example: Array) -> Any:
            logits: Any = model.module.apply({"params": model.unravel(theta)}, example)
            return logits

        logits = jax.lax.map(compute_logits, features, batch_size=500)
        first_choices = jnp.argmax(logits, axis=-1)
        counts = jnp.ones_like(labels) if row.padding is None else labels != row.padding
        return jnp.sum((first_choices == labels) * counts) / jnp.sum(counts)

    measure_models = jax.jit(jax.vmap(measure_one_model, (0, None, None)))

    def measure(thetas: Array) -> Array:
        accuracies: Array = measure_models(thetas, some_features, some_labels)
        return accuracies

    return measure


def require_clients(clients: Clients) -> None:
    """Raises InputError where there are no clients, or a client has no examples."""
    if not clients.number:
        raise InputError("there are no clients: name data that have some")
    empty = np.flatnonzero(clients.counts < 1)
    require(not empty.size, f"client {empty[:1]} has no examples: leave it out")
