"""From a federated setting and its clients to the game that is played."""

import dataclasses
import hashlib
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

from audit import game
from audit.adversaries import directions
from audit.adversaries.base import Adversary
from audit.errors import InputError, require
from audit.game import Game
from audit.mechanism import base, cohorts, ensemble, fedavg
from audit.mechanism.base import Hyperparameters, Schedule
from audit.mechanism.memory import Hardware, local_hardware
from audit.model import losses_by_example, losses_of_batch
from audit.settings.federated import FederatedSetting, noise, validate_federated
from audit.storage import files
from audit.task import Clients, Test
from audit.zoo import federated_task

_SEGMENT_CLIENTS = 250  # updates between two checkpoints, or a little more
_MOST_COHORTS = 1 << 30  # bytes
_COHORTS_HEADER = re.compile(r"[#\s]*round\s*,\s*client\s*", re.IGNORECASE)
_TESTED, _TESTED_LABELS = 10_000, 100_000  # examples, and labels, of which text has one a position

Rehearse = Callable[[Array], Array]  # theta_0 -> the final model without noise and canaries
_ADVERSARIES: dict[str, Callable[[FederatedSetting, Rehearse], Adversary]] = {
    "final": lambda setting, _: directions.final_cosines(setting.canaries, directions.itself),
    "weights": lambda setting, _: directions.final_cosines(setting.canaries, directions.nothing),
    "fresh": lambda setting, rehearse: directions.final_cosines(setting.canaries, rehearse, fresh=True),
    "all": lambda setting, _: directions.largest_cosines(setting.canaries),
    "means": lambda setting, _: directions.largest_cosines(setting.canaries, setting.momentum),
}


class Participation(NamedTuple):
    """Who takes part: clients (T, W), padded, and canaries (T, K); the mean number of both a round, of the
    canaries those that are in; and the most rounds of a client."""

    clients: NDArray[np.int32]
    canaries: NDArray[np.float32]
    mean: float
    most: int


def checksum(clients: Clients) -> str:
    """SHA-256 of clients' examples, in hex."""
    digest = hashlib.sha256()
    for part in (clients.features, clients.labels, clients.counts):
        digest.update(f"{part.dtype}{part.shape}".encode())
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def read_rounds(path: Path) -> list[NDArray[np.int64]]:
    """The clients of each round from lines `round,client`, rounds from 1 and clients from 0, below a header
    or none; raises InputError for a file that holds something else."""
    try:
        content = files.regular(path, "check `cohorts`", _MOST_COHORTS).read_bytes()
    except FileNotFoundError:
        raise InputError(f"`cohorts={path}`: there is no such file") from None
    except OSError as error:
        raise InputError(f"`cohorts={path}`: it cannot be read ({error.strerror})") from None
    lines = content.decode("utf-8-sig", errors="replace").splitlines()
    pairs = []
    for number, line in enumerate(lines, 1):
        if number > 1 or not _COHORTS_HEADER.fullmatch(line):
            pairs += [_participation(path, number, text) for text in line.split()]
    require(pairs, f"{path} holds no rounds: give lines round,client")
    rounds, members = np.array(pairs).T
    require(rounds.max() <= 1_000_000, f"{path} names round {rounds.max()}: give at most 1,000,000")
    return [members[rounds == t] for t in range(1, rounds.max() + 1)]


def _participation(path: Path, number: int, text: str) -> tuple[int, int]:
    parts = text.split(",")
    whole = len(parts) == 2 and all(part.isdecimal() and len(part) < 10 for part in parts)
    require(whole and int(parts[0]) >= 1, f"{path}, line {number}: {text[:40]!r} is not round,client")
    return int(parts[0]), int(parts[1])


def with_rounds(setting: FederatedSetting, listed: list[NDArray[np.int64]]) -> FederatedSetting:
    """The setting with as many rounds as are listed, and their mean number of clients."""
    mean = max(round(sum(map(len, listed)) / len(listed)), 1)
    found = dataclasses.replace(setting, rounds=len(listed), cohort=mean)
    validate_federated(found)
    return found


def rounds(
    setting: FederatedSetting, clients: Clients, listed: list[NDArray[np.int64]] | None
) -> Participation:
    """Who takes part in which round, decided by the seed; raises InputError where the clients are too few."""
    key, number = game.root(setting.seed, "batches"), clients.number
    own, mask = jax.random.fold_in(key, 1), None
    if listed is not None:
        members = cohorts.listed(listed, number)
    elif setting.participation == "poisson":
        members = cohorts.sampled(key, number, setting.rounds, setting.cohort)
        mask = cohorts.sampled_canaries(own, setting.canaries, setting.rounds, setting.cohort / number)
    else:
        members = cohorts.shuffled(key, number, setting.rounds, setting.cohort)
    if mask is None:
        mask = cohorts.repeated(own, setting.canaries, len(members), setting.repetitions)
    if setting.participation == "poisson":
        joined, inserted = setting.cohort, setting.canaries * setting.cohort / number
    else:
        joined, inserted = (members != cohorts.ABSENT).sum() / len(members), mask.sum() / len(members)
    return Participation(members, mask, float(joined + 0.5 * inserted), cohorts.most_rounds(members, number))


def build(setting: FederatedSetting, clients: Clients, who: Participation) -> Game:
    """The game of a setting on its clients."""
    split = noise(setting)
    given = setting.client_learning_rate, who.mean, setting.quantile
    own = fedavg.Federated(*given, split.quantile_rate, split.on_count)
    ordered = cohorts.by_size(who.clients, clients.counts)
    chosen, data = choices(setting, clients), tuple(map(jnp.asarray, clients.arrays))
    hyper = Hyperparameters(setting.learning_rate, setting.clipping_norm, split.multiplier, own)
    schedule = Schedule(jnp.asarray(ordered), jnp.asarray(who.canaries))

    def rehearse(theta_0: Array) -> Array:
        alone, empty = fedavg.mechanism(chosen._replace(spreads=False)), jnp.zeros(len(ordered))
        train = jax.jit(partial(base.rehearse, alone, canaries=base.no_canaries()))
        found: Array = train(hyper, theta_0, data, schedule._replace(mask=empty))
        return found

    return Game(
        fedavg.mechanism(chosen),
        _ADVERSARIES[setting.observe](setting, rehearse),
        federated_task(setting.model).make().init,
        data,
        hyper,
        schedule,
        setting.seed,
        segment_steps=max(1, _SEGMENT_CLIENTS // ordered.shape[1]),
    )


def choices(setting: FederatedSetting, clients: Clients, hardware: Hardware | None = None) -> fedavg.FedAvg:
    """DP-FedAvg's choices for a setting, on such devices, or on this process's."""
    row, most, on = federated_task(setting.model), int(clients.counts.max()), hardware or local_hardware()
    model = row.make()

    def optimizer(rate: Array) -> optax.GradientTransformation:
        return optax.sgd(rate, momentum=setting.momentum)

    found = fedavg.FedAvg(
        (losses_of_batch if row.by_batch else losses_by_example)(model),
        model.unravel,
        min(setting.batch_size, most),
        setting.client_epochs,
        most,
        block=1 if row.by_batch else 4,
        optimizer=optimizer,
        spreads=True,
    )
    if on.is_cpu:
        return found
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    client = fedavg.client_memory(found, theta, tuple(map(jax.typeof, clients.arrays)))
    return found._replace(block=ensemble.chunk_size(setting.cohort, client, on._replace(number=1)))


def accuracy(setting: FederatedSetting, clients: Clients, test: Test | None) -> Callable[[Array], Array]:
    """A compiled function (R, p) -> (R,): the share of labels that are the models' first choice, of at most
    10,000 test examples and 100,000 labels, or of the clients' own where there are no others."""
    row = federated_task(setting.model)
    model = row.make()
    features, labels = test or (clients.features, clients.labels)
    step = max(-(-len(labels) // _TESTED), -(-labels.size // _TESTED_LABELS))
    some = jnp.asarray(features[::step]), jnp.asarray(labels[::step])

    def right(theta: Array, features: Array, labels: Array) -> Array:
        def logits(one: Array) -> Any:
            found: Any = model.module.apply({"params": model.unravel(theta)}, one)
            return found

        first = jnp.argmax(jax.lax.map(logits, features, batch_size=500), axis=-1)
        counted = jnp.ones_like(labels) if row.padding is None else labels != row.padding
        return jnp.sum((first == labels) * counted) / jnp.sum(counted)

    measure = jax.jit(jax.vmap(right, (0, None, None)))
    return lambda thetas: measure(thetas, *some)


def require_clients(clients: Clients) -> None:
    """Raises InputError where there are no clients, or one without examples."""
    if not clients.number:
        raise InputError("there are no clients: name data that have some")
    empty = np.flatnonzero(clients.counts < 1)
    require(not empty.size, f"client {empty[:1]} has no examples: leave it out")
