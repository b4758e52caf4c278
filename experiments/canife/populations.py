"""Models and their clients: sampling and training by DP-FedAvg.

If each client has one example and sends its gradient, this is DP-SGD: a round is a step with the cohort as
its mini-batch.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.mechanism import base, fedavg
from audit.tasks.model import Model
from audit.tasks.task import Clients, Dataset
from audit.training import build_federated
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife.attacked import Attacked
from experiments.canife.samples import ImageSamples, TextSamples
from experiments.cells.cell import DataSets
from models.catalogue import TASKS, federated_task
from models.data import images, shakespeare
from models.data.clients import dirichlet, one_each, select

_MOCK_SHARE = 0.1  # of the roles, as in the paper
# (theta (p,), the clients' arrays, members (n,)) -> the members' clipped updates (n, p)
UpdatesOf = Callable[[Array, Any, Any], Array]


class Split(NamedTuple):
    """The training clients, the mock clients for the design of canaries, and the test features and labels."""

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]


def split_clients(setting: Attacked, data: DataSets) -> Split:
    """Returns a setting's clients, with up to `setting.examples` examples (0: all), and its test set."""
    deal = _deal_images if setting.model in settings.IMAGE_MODELS else split_roles
    train, mock, test = deal(setting, data)
    if setting.examples:
        train = _limit_examples(train, setting.examples)
        mock = _limit_examples(mock, setting.examples)
    return Split(train, mock, test)


def _limit_examples(clients: Clients, most: int) -> Clients:
    """Returns clients with only the first `most` examples of each."""
    return clients._replace(counts=np.minimum(clients.counts, np.int32(most)))


def _deal_images(setting: Attacked, data: DataSets) -> Split:
    """Splits training images over training clients, and test images over mock clients.

    Clients get one image each, or shares of each class from a symmetric Dirichlet(alpha) distribution. Mock
    clients have the same number of images on average.
    """
    train, test = data.clients(setting)
    assert test is not None  # all data sets of images have a test set
    test_set = Dataset(*test, train.source, train.checksum)
    mock = one_each(test_set)
    if setting.clients:
        ratio = len(test_set.labels) / len(train.labels)
        mock_clients = max(int(setting.clients * ratio), 1)
        # A different seed, so mock client i does not prefer the classes of client i.
        mock = dirichlet(test_set, mock_clients, setting.alpha, setting.seed + 1)
    return Split(train, mock, test)


def split_roles(setting: Attacked, data: DataSets) -> Split:
    """Returns a tenth of Shakespeare's roles as mock clients, and `setting.clients` others (0: all).

    The seed chooses the mock clients. Their examples are also the test set. Raises InputError if `clients`
    exceeds the number of other roles.
    """
    # 0 loads all roles, so mock clients do not depend on the number of training clients.
    roles = data.clients(dataclasses.replace(setting, clients=0)).clients
    order = np.random.default_rng(setting.seed).permutation(roles.number)
    mock_clients = max(round(_MOCK_SHARE * roles.number), 1)
    limit = roles.number - mock_clients
    require(setting.clients <= limit, f"`clients={setting.clients}`: give 0 to {limit:,}")
    train_clients = setting.clients or limit
    mock = select(roles, order[:mock_clients])
    train = select(roles, order[mock_clients : mock_clients + train_clients])
    return Split(train, mock, (mock.features, mock.labels))


def make_samples(setting: Attacked, model: Model) -> ImageSamples | TextSamples:
    """Returns the kind of canary for a setting's model."""
    if setting.model not in settings.IMAGE_MODELS:
        length = shakespeare.LENGTH + 1
        return TextSamples(model, length, shakespeare.CHARACTERS, shakespeare.VOCABULARY)
    data = TASKS[setting.model].data
    moments = {
        images.CIFAR10.name: (images.CIFAR10_MEAN, images.CIFAR10_STD),
        images.FASHION_MNIST.name: (images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD),
    }
    mean, deviation = (jnp.asarray(moment, jnp.float32) for moment in moments[data.name])
    return ImageSamples(model, setting.soft_label, data.shape, mean, deviation)


class Population(NamedTuple):
    """A setting's model and clients.

    Attributes:
      rate: The learning rate of the clients' SGD.
      updates: (theta, the clients' arrays, members (n,)) -> the members' clipped updates (n, p).
      start: The state before the first round.
      train: (state, first, rounds) -> the state after rounds `first`, first + 1, ..., without canaries. A
        cohort depends only on the seed and the round's number.
      accuracy: (theta (p,)) -> the model's accuracy on the test set.
    """

    split: Split
    samples: ImageSamples | TextSamples
    rate: float
    updates: UpdatesOf
    start: base.State
    train: Callable[[base.State, int, int], base.State]
    accuracy: Callable[[Array], float]


def make_population(setting: Attacked, split: Split) -> Population:
    """Returns the population of a setting and its clients."""
    model = federated_task(setting.model).make()
    measure = build_federated.accuracy(setting, split.train, split.test)
    # Compiled shapes are those of the client with the most examples.
    most_examples = int(max(split.train.counts.max(), split.mock.counts.max()))
    choices = build_federated.choose(setting, model, most_examples)
    rate = setting.client_learning_rate
    if setting.model in settings.IMAGE_MODELS and not setting.clients:
        # A client with one example takes one step at rate 1, so its update is its gradient.
        rate = 1.0
        choices = choices._replace(epochs=1)
    federated = fedavg.Federated(jnp.float32(rate), jnp.float32(setting.cohort))
    mechanism = fedavg.mechanism(choices)
    data = tuple(map(jnp.asarray, split.train.arrays))

    @jax.jit
    def play(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        hyper = base.Hyperparameters(
            jnp.float32(setting.learning_rate),
            jnp.float32(setting.clipping_norm),
            jnp.float32(setting.noise_multiplier),
            federated,
        )
        key = root(setting.seed, "noise")
        return mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        cohorts = []
        for number in range(first, first + rounds):
            purpose = f"cohort {number}"
            cohorts.append(draw_clients(setting, purpose, split.train.number, setting.cohort))
        batches = jnp.asarray(np.stack(cohorts), jnp.int32)
        schedule = base.Schedule(batches, mask=jnp.zeros(rounds))  # without canaries
        after: base.State = play(state, data, schedule)
        return after

    theta = jax.jit(model.init)(root(setting.seed, "theta"))
    return Population(
        split,
        make_samples(setting, model),
        rate,
        _compile_updates(setting, choices, federated),
        start=mechanism.start(theta),
        train=train,
        accuracy=lambda theta: float(measure(theta[None])[0]),
    )


def draw_clients(setting: Attacked, purpose: str, clients: int, size: int) -> NDArray[np.int64]:
    """Draws indices (size,) of clients without replacement, by seed and purpose, in no random order."""
    return make_generator(setting, purpose).choice(clients, size, replace=False, shuffle=False)


def make_generator(setting: Attacked, purpose: str) -> np.random.Generator:
    """Returns a random generator for the setting's seed and a purpose."""
    return np.random.default_rng([setting.seed, *purpose.encode()])


def _compile_updates(
    setting: Attacked, choices: fedavg.FedAvg, federated: fedavg.Federated
) -> UpdatesOf:
    """Returns a function that trains clients and returns their clipped updates."""
    norm = jnp.float32(setting.clipping_norm)
    # Unlike in training, clients shuffle their examples in the same order at each call.
    key = root(setting.seed, "guess")

    @jax.jit
    def updates(theta: Array, data: base.Data, members: Array) -> Array:
        def compute_update(member: Array) -> Array:
            """Returns a client's clipped update (p,): the sum over a cohort of one."""
            cohort = member[None]
            return fedavg.cohort_sums(choices, federated, theta, norm, data, cohort, key).updates

        sent: Array = jax.lax.map(compute_update, members, batch_size=choices.block)
        return sent

    return updates
