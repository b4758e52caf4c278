"""Builds the game for a federated setting from its clients."""

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from audit.adversaries import directions
from audit.adversaries.base import Adversary, NullLaw
from audit.mechanism import base, cohorts, ensemble, fedavg
from audit.mechanism.base import Hyperparameters, Schedule, local_hardware
from audit.settings.federated import FederatedSetting, FederatedTraining, noise
from audit.tasks.model import Model, losses_by_example
from audit.tasks.task import Clients, Test, federated_task
from audit.training import game
from audit.training.game import Game

_SEGMENT_CLIENTS = 250  # the approximate number of client updates between checkpoints
_MAX_TEST_EXAMPLES = 10_000
_MAX_TEST_LABELS = 100_000


class Participation(NamedTuple):
    """The clients and canaries of each of T rounds.

    Attributes:
      clients: (T, W) the indices of each round's clients.
      canaries: (T, K) 1 for rounds that the canary joins if it is inserted; else 0.
      mean: the expected total number of clients and inserted canaries in a round.
      most: the largest number of rounds that include the same client.
    """

    clients: NDArray[np.int32]
    canaries: NDArray[np.float32]
    mean: float
    most: int


def checksum(clients: Clients) -> str:
    """Returns the SHA-256, in hex, of the clients' features, labels and example counts."""
    digest = hashlib.sha256()
    for array in (clients.features, clients.labels, clients.counts):
        # Arrays with different shapes or dtypes may have the same bytes.
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def rounds(setting: FederatedSetting, clients: Clients) -> Participation:
    """Draws the clients and canaries of each round.

    Raises InputError if there are fewer clients than a round needs.
    """
    key = game.root(setting.seed, "batches")
    cohorts_by_round = cohorts.shuffled(key, clients.number, setting.rounds, setting.cohort)
    # Any number but 1 would change the scores of existing stores.
    canary_key = jax.random.fold_in(key, 1)
    mask = cohorts.repeated(canary_key, setting.canaries, setting.rounds, setting.repetitions)
    canaries_per_round = float(mask.sum() / setting.rounds)
    rounds_by_client = np.bincount(cohorts_by_round.ravel())
    return Participation(
        clients=cohorts_by_round,
        canaries=mask,
        # Each canary is inserted with probability 1/2.
        mean=setting.cohort + 0.5 * canaries_per_round,
        most=int(rounds_by_client.max()),
    )


def build(setting: FederatedSetting, clients: Clients, participation: Participation) -> Game:
    """Builds the game for a federated setting; `participation` is from `rounds`."""
    round_noise = noise(setting)
    hyper = Hyperparameters(
        setting.learning_rate,
        setting.clipping_norm,
        round_noise.multiplier,
        mechanism_specific=fedavg.Federated(
            setting.client_learning_rate,
            denominator=participation.mean,
            target_quantile=setting.quantile,
            quantile_rate=round_noise.quantile_rate,
            count_noise=round_noise.on_count,
        ),
    )
    model = federated_task(setting.model).make()
    choices = _choose_for_devices(setting, model, clients)
    data = tuple(map(jnp.asarray, clients.arrays))
    # Each client takes as many steps as the largest client in its block, so we sort clients by size.
    batches = cohorts.by_size(participation.clients, clients.counts)
    schedule = Schedule(jnp.asarray(batches), jnp.asarray(participation.canaries))

    def rehearse(theta_0: Array) -> Array:
        """Returns a reference model (p,) for scores, trained from theta_0 without noise or canaries."""
        # Unlike `game.Player`, this program runs on one device and cannot spread clients over several.
        on_one_device = fedavg.mechanism(choices._replace(spreads=False))
        # Unlike the schedule's (T, K), a mask (T,) works for any number of canaries, even 0.
        without_canaries = schedule._replace(mask=jnp.zeros(len(batches)))
        train = jax.jit(partial(base.rehearse, on_one_device, canaries=base.no_canaries()))
        return train(hyper, theta_0, data, without_canaries)

    return Game(
        mechanism=fedavg.mechanism(choices),
        adversary=_make_adversary(setting, model.n_parameters, rehearse),
        init=model.init,
        data=data,
        hyper=hyper,
        schedule=schedule,
        seed=setting.seed,
        # The rounds between checkpoints; each trains `cohort` clients.
        segment_steps=max(1, _SEGMENT_CLIENTS // setting.cohort),
    )


def _make_adversary(
    setting: FederatedSetting, parameters: int, rehearse: Callable[[Array], Array]
) -> Adversary:
    """Returns the adversary that the setting's field `observe` selects; its canaries are random directions.

    `rehearse` maps theta_0 (p,) to the final model (p,) without noise or canaries.
    """
    canaries = setting.canaries
    observe = setting.observe
    if observe == "all":
        return directions.largest_cosines(canaries)
    if observe == "means":
        # A round's displacement minus its momentum term is the noisy mean of updates.
        return directions.largest_cosines(canaries, setting.momentum)
    if observe == "fresh":
        # Displacements from the rehearsed model exclude the clients' effect.
        adversary = directions.final_cosines(canaries, rehearse)
        # Each run draws its own directions, because bounds from several runs require independent cosines.
        return adversary._replace(
            draw=directions.RandomDirections.draw, null=NullLaw(dimension=parameters)
        )
    # The reference model is theta_0 for "final" and 0 for "weights".
    return directions.final_cosines(canaries, directions.REFERENCE_MODELS[observe])


def choose(setting: FederatedTraining, model: Model, most_examples: int) -> fedavg.FedAvg:
    """Returns the DP-FedAvg configuration for one CPU and a server that uses SGD without momentum.

    Both are defaults of `FedAvg`. `most_examples` is the number of examples of the largest client.
    """
    return fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        batch_size=min(setting.batch_size, most_examples),
        epochs=setting.client_epochs,
        most_examples=most_examples,
    )


def _choose_for_devices(setting: FederatedSetting, model: Model, clients: Clients) -> fedavg.FedAvg:
    """Returns the DP-FedAvg configuration of `choose`, adapted to this machine's devices.

    A device trains a block of clients at once. On an accelerator, the block is the largest that fits into
    memory; on a CPU, it has the default size of `FedAvg`.
    """
    choices = choose(setting, model, int(clients.counts.max()))._replace(
        optimizer=partial(optax.sgd, momentum=setting.momentum),
        spreads=True,  # devices share the clients of a round
    )
    devices = local_hardware()
    if devices.is_cpu:
        return choices
    theta = jax.ShapeDtypeStruct((model.n_parameters,), jnp.float32)
    data_types = tuple(map(jax.typeof, clients.arrays))
    bytes_per_client = fedavg.client_memory(choices, theta, data_types)
    one_device = devices._replace(number=1)  # each device has its own blocks
    block = ensemble.chunk_size(setting.cohort, bytes_per_client, one_device)
    return choices._replace(block=block)


def accuracy(
    setting: FederatedTraining, clients: Clients, test: Test | None
) -> Callable[[Array], Array]:
    """Returns a compiled function that computes the accuracy of R models, (R, p) -> (R,).

    Accuracy is the fraction of correctly predicted labels, excluding padding. Without test data, the function
    uses the clients' data.
    """
    task = federated_task(setting.model)
    model = task.make()
    features, labels = test or (clients.features, clients.labels)
    # To save time, we use only every n-th example. An example may have one label per character.
    n = max(
        math.ceil(len(labels) / _MAX_TEST_EXAMPLES),
        math.ceil(labels.size / _MAX_TEST_LABELS),
    )

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None, None))  # over models
    def measure(theta: Array, features: Array, labels: Array) -> Array:
        """Returns the accuracy of a single model (p,)."""
        compute_logits = partial(model.module.apply, {"params": model.unravel(theta)})
        predicted = jax.lax.map(
            lambda example: jnp.argmax(compute_logits(example), axis=-1),
            features,
            batch_size=500,  # to save memory
        )
        is_counted = jnp.ones_like(labels)
        if task.padding is not None:
            is_counted = labels != task.padding
        return jnp.sum((predicted == labels) * is_counted) / jnp.sum(is_counted)

    every_nth = (jnp.asarray(features[::n]), jnp.asarray(labels[::n]))
    return lambda thetas: measure(thetas, *every_nth)
