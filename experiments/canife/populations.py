"""Samples a model's clients, trains the model with DP-FedAvg, and computes clients' updates."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.mechanism import base, fedavg
from audit.tasks.model import Model
from audit.tasks.task import Clients, Dataset
from audit.training import build_federated
from audit.training.game import root
from experiments.canife.attacked import IMAGE_MODELS, Attacked
from experiments.canife.designed import Design, make_design
from experiments.canife.samples import ImageSamples, Sample, TextSamples
from experiments.cells.cell import DataSets
from models.catalogue import TASKS, federated_task
from models.data import images, shakespeare
from models.data.clients import dirichlet, one_each, select

_MOCK_FRACTION = 0.1  # the fraction of roles that are mock clients, as in the paper


class Split(NamedTuple):
    """The data of a setting.

    Attributes:
      train: The training clients.
      mock: The mock clients. Their updates are used to design canaries.
      test: The features and labels of the test set.
    """

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]


def split_clients(setting: Attacked, data: DataSets) -> Split:
    """Returns a setting's training clients, mock clients (for designing canaries) and test set.

    Each client keeps up to `setting.examples` examples (0: all). This does not limit the test set.
    """
    split = _split_images if setting.model in IMAGE_MODELS else _split_roles
    train, mock, test = split(setting, data)
    if setting.examples:
        train = _keep_first(train, setting.examples)
        mock = _keep_first(mock, setting.examples)
    return Split(train, mock, test)


def _keep_first(clients: Clients, most: int) -> Clients:
    """Limits each client to its first `most` examples."""
    return clients._replace(counts=np.minimum(clients.counts, np.int32(most)))


def _split_images(setting: Attacked, data: DataSets) -> Split:
    """Splits training images among the training clients, and test images among the mock clients.

    If `setting.clients` is 0, each client has one image. Otherwise, a symmetric Dirichlet(alpha) distribution
    splits each class among clients. On average, mock clients have as much data as training clients.
    """
    train, test = data.clients(setting)
    assert test is not None  # all image data sets have a test set
    test_set = Dataset(*test, train.source, train.checksum)
    mock = one_each(test_set)
    if setting.clients:
        ratio = len(test_set.labels) / len(train.labels)
        mock_clients = max(int(setting.clients * ratio), 1)
        # With a different seed, mock client i does not favor the same classes as training client i.
        mock = dirichlet(test_set, mock_clients, setting.alpha, setting.seed + 1)
    return Split(train, mock, test)


def _split_roles(setting: Attacked, data: DataSets) -> Split:
    """Makes a tenth of the roles in Shakespeare's plays mock clients, and the others training clients.

    The mock clients' examples also form the test set. There are at most `setting.clients` training clients
    (0: all other roles).
    """
    # We load all roles (clients=0), because mock clients must not depend on the number of training clients.
    roles = data.clients(dataclasses.replace(setting, clients=0)).clients
    order = np.random.default_rng(setting.seed).permutation(roles.number)
    mock_clients = max(round(_MOCK_FRACTION * roles.number), 1)
    mock = select(roles, order[:mock_clients])
    others = order[mock_clients:]
    if setting.clients:
        others = others[: setting.clients]
    return Split(select(roles, others), mock, (mock.features, mock.labels))


def make_samples(setting: Attacked, model: Model) -> ImageSamples | TextSamples:
    """Returns the functions for the model's canaries: texts for a language model, images otherwise."""
    if setting.model not in IMAGE_MODELS:
        length = shakespeare.LENGTH + 1  # the model's input plus the last label
        return TextSamples(model, length, shakespeare.CHARACTERS, shakespeare.VOCABULARY)
    data = TASKS[setting.model].data
    moments = {  # the mean and the standard deviation of pixels
        images.CIFAR10.name: (images.CIFAR10_MEAN, images.CIFAR10_STD),
        images.FASHION_MNIST.name: (images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD),
    }
    mean, deviation = jnp.asarray(moments[data.name], jnp.float32)
    return ImageSamples(model, setting.soft_label, data.shape, mean, deviation)


class Population(NamedTuple):
    """The model and the clients of a setting.

    Attributes:
      split: The clients and the test set.
      samples: The functions for canaries.
      design: Designs a canary; see `Design`.
      gradient: (theta (p,), sample) -> the gradient (p,) of the loss on an image or a drawn text.
      updates: (theta (p,), the clients' arrays, members (n,), direction (p,)) -> the dot products (n,) of the
        members' clipped updates with the direction. Without a direction: the updates, (n, p).
      start: The state before the first round.
      train: (state, first, rounds) -> the state after rounds `first`, first + 1, ..., without canaries.
      accuracy: (models (R, p)) -> their accuracies on the test set, (R,).
    """

    split: Split
    samples: ImageSamples | TextSamples
    design: Design
    gradient: Callable[[Array, Sample], Array]
    updates: Callable[..., Array]
    start: base.State
    train: Callable[..., base.State]
    accuracy: Callable[[Array], Array]


def make_population(setting: Attacked, data: DataSets) -> Population:
    """Returns a setting's clients and the functions that train and attack its model; see `Population`."""
    split = split_clients(setting, data)
    model = federated_task(setting.model).make()
    # The compiled shapes must fit both training and mock clients.
    most_examples = int(max(split.train.counts.max(), split.mock.counts.max()))
    # Options that are fixed at compile time, such as the number of local epochs.
    choices = build_federated.choose(setting, model, most_examples)
    hyper = base.Hyperparameters(
        setting.learning_rate,
        setting.clipping_norm,
        setting.noise_multiplier,
        mechanism_specific=fedavg.Federated(
            setting.client_learning_rate, denominator=setting.cohort
        ),
    )
    hyper = jax.tree.map(jnp.float32, hyper)  # training uses float32
    mechanism = fedavg.mechanism(choices)
    arrays = tuple(map(jnp.asarray, split.train.arrays))

    @jax.jit
    def play_rounds(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        """Trains on a schedule's rounds without canaries, and returns the final state."""
        # The mechanism also derives the noise from the round number in `state`.
        key = root(setting.seed, "noise")
        return mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        """Draws cohorts for several rounds and trains on them; see `Population`."""
        cohorts = [
            draw_clients(setting, f"cohort {number}", split.train.number, setting.cohort)
            for number in range(first, first + rounds)
        ]
        batches = jnp.asarray(np.stack(cohorts), jnp.int32)
        schedule = base.Schedule(batches, mask=jnp.zeros(rounds))  # no round inserts a canary
        return play_rounds(state, arrays, schedule)

    theta = jax.jit(model.init)(root(setting.seed, "theta"))
    samples = make_samples(setting, model)
    # The loss draws a text using the key. These texts have already been drawn, so any key works.
    gradient = partial(jax.grad(samples.loss), key=jax.random.key(0))
    return Population(
        split,
        samples,
        design=make_design(setting, samples.loss),
        gradient=jax.jit(gradient),
        updates=_compile_updates(setting, choices, hyper.mechanism_specific),
        start=mechanism.start(theta),
        train=train,
        accuracy=build_federated.accuracy(setting, split.train, split.test),
    )


def draw_clients(setting: Attacked, purpose: str, clients: int, size: int) -> NDArray[np.int64]:
    """Draws the indices of `size` clients without replacement.

    The draw depends on the setting's seed and the purpose, such as a round's cohort. The order is not random.
    """
    return make_generator(setting, purpose).choice(clients, size, replace=False, shuffle=False)


def make_generator(setting: Attacked, purpose: str) -> np.random.Generator:
    """Returns a random generator seeded with the setting's seed and the purpose."""
    return np.random.default_rng([setting.seed, *purpose.encode()])


def _compile_updates(
    setting: Attacked, choices: fedavg.FedAvg, federated: fedavg.Federated
) -> Callable[..., Array]:
    """Returns `Population.updates`, a compiled function that trains each client from theta."""
    norm = jnp.float32(setting.clipping_norm)
    # The attacker does not know how training shuffles a client's examples, so it shuffles them independently.
    key = root(setting.seed, "guess")

    @jax.jit
    def compute_updates(
        theta: Array, data: base.Data, members: Array, direction: Array | None = None
    ) -> Array:
        """Returns the members' clipped updates or their dot products; see `Population`."""

        def compute_update(member: Array) -> Array:
            """Returns the result for one client: its update is the sum over a cohort of one."""
            cohort = member[None]
            sums = fedavg.cohort_sums(choices, federated, theta, norm, data, cohort, key)
            return sums.updates if direction is None else sums.updates @ direction

        return jax.lax.map(compute_update, members, batch_size=choices.block)

    return compute_updates
