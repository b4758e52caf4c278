"""Clients of images: with one example each, whose round is a step of DP-SGD with the cohort as its
mini-batch, or with examples dealt by Dirichlet's proportions, who train by DP-FedAvg."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.game import root
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import scale_to_norm
from experiments.canife import clients
from experiments.canife.attacked import Attacked
from experiments.canife.clients import Indices, Population, Sample, Shape, UpdatesOf
from experiments.settings.build import CLIPPING
from experiments.settings.tasks import task
from models.base import Model, losses_by_example
from models.data import clients as federated_data
from models.data.base import Dataset, ImageDataset
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD, load_cifar10
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD, load_fashion_mnist

_TEST_BLOCK = 1000


class _Training(NamedTuple):
    """A mechanism that trains on clients, with its data and hyperparameters, and what its clients send."""

    mechanism: base.Mechanism
    hyper: base.Hyperparameters
    data: base.Data
    train_clients: int
    mock_clients: int
    train_updates: UpdatesOf
    mock_updates: UpdatesOf
    mock_rows: NDArray[np.int64]  # a test image of each mock client


def images_of(model: str) -> ImageDataset:
    """The images that a model is trained on."""
    return load_cifar10() if model == "convnet" else load_fashion_mnist()


def population(attacked: Attacked, images: ImageDataset) -> Population:
    """The clients of a setting: of one example each, or as many as it says."""
    model = task(attacked.model).make(images.train_images.shape[1:])
    made = _dealt(attacked, model, images) if attacked.clients else _single(attacked, model, images)
    shape = _shape(attacked, images)
    colour = len(shape.image) == 3

    def dress(sample: Sample) -> Array:
        if colour:
            return (sample.pixels * shape.deviation + shape.mean) * 255  # the model divides and normalises
        return sample.pixels.reshape(-1)

    def mock_sample(client: int) -> tuple[NDArray[np.uint8], int]:
        row = made.mock_rows[client]
        return images.test_images[row], int(images.test_labels[row])

    return Population(
        model,
        shape,
        made.train_clients,
        made.mock_clients,
        made.train_updates,
        made.mock_updates,
        dress,
        mock_sample,
        attacked.client_learning_rate if attacked.clients else None,
        lambda: made.mechanism.start(jax.jit(model.init)(root(attacked.seed, "theta"))),
        _trainer(attacked, made),
        _accuracy(model, images),
    )


def _shape(attacked: Attacked, images: ImageDataset) -> Shape:
    """What the samples look like."""
    colour = attacked.model == "convnet"
    mean, deviation = (CIFAR10_MEAN, CIFAR10_STD) if colour else (FASHION_MNIST_MEAN, FASHION_MNIST_STD)
    normal = jnp.asarray(mean, jnp.float32), jnp.asarray(deviation, jnp.float32)
    return Shape(images.train_images.shape[1:], 10, *normal)


def _hyper(attacked: Attacked, own: base.Tree = ()) -> base.Hyperparameters:
    """The setting's hyperparameters in float32."""
    rate, norm = jnp.float32(attacked.learning_rate), jnp.float32(attacked.clipping_norm)
    return base.Hyperparameters(rate, norm, jnp.float32(attacked.noise_multiplier), own)


def _single(attacked: Attacked, model: Model, images: ImageDataset) -> _Training:
    """Clients of one example each, by DP-SGD."""
    norm = jnp.float32(attacked.clipping_norm)

    @jax.jit
    def gradients(theta: Array, features: Array, labels: Array) -> Array:
        found: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return found * scale_to_norm(jnp.sum(found**2, axis=1), norm)[:, None]

    def updates(images: NDArray[Any], labels: NDArray[Any]) -> UpdatesOf:
        def of(theta: Array, members: Indices) -> Array:
            found: Array = gradients(theta, jnp.asarray(images[members]), jnp.asarray(labels[members]))
            return found

        return of

    make = CLIPPING[task(attacked.model).clipping[0]]
    return _Training(
        dpsgd.mechanism(dpsgd.DPSGD(make(model))),
        _hyper(attacked),
        (jnp.asarray(images.train_images), jnp.asarray(images.train_labels)),
        len(images.train_labels),
        len(images.test_labels),
        updates(images.train_images, images.train_labels),
        updates(images.test_images, images.test_labels),
        np.arange(len(images.test_labels)),
    )


def _dealt(attacked: Attacked, model: Model, images: ImageDataset) -> _Training:
    """Clients of many examples, by DP-FedAvg; mock clients have as many each, of the test set."""
    share = len(images.test_labels) / len(images.train_labels)
    mock_number = max(int(attacked.clients * share), 1)
    train, mock = (
        federated_data.dirichlet(
            Dataset(*arrays, images.source, images.checksum), number, attacked.alpha, seed
        )
        for arrays, number, seed in (
            ((images.train_images, images.train_labels), attacked.clients, attacked.seed),
            ((images.test_images, images.test_labels), mock_number, attacked.seed + 1),
        )
    )
    most = int(max(train.counts.max(), mock.counts.max()))
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        min(attacked.batch_size, most),
        attacked.client_epochs,
        most,
    )
    own = fedavg.Federated(jnp.float32(attacked.client_learning_rate), jnp.float32(attacked.cohort))
    data = _arrays(train)
    order = _mock_rows(mock, images)
    return _Training(
        fedavg.mechanism(choices),
        _hyper(attacked, own),
        data,
        train.number,
        mock.number,
        _sent(attacked, choices, own, data),
        _sent(attacked, choices, own, _arrays(mock)),
        order,
    )


def _mock_rows(mock: federated_data.Clients, images: ImageDataset) -> NDArray[np.int64]:
    """The row among the test images of each mock client's first example."""
    known = {image.tobytes(): row for row, image in enumerate(images.test_images)}
    return np.array([known[mock.features[start].tobytes()] for start in mock.starts])


def _arrays(dealt: federated_data.Clients) -> base.Data:
    """DP-FedAvg's data."""
    parts = dealt.features, dealt.labels, dealt.starts.astype("<i4"), dealt.counts.astype("<i4")
    return tuple(map(jnp.asarray, parts))


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


def _trainer(attacked: Attacked, made: _Training) -> Callable[[base.State, int, int], base.State]:
    """Rounds of a training, each with a cohort of its own."""
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


def _accuracy(model: Model, images: ImageDataset) -> Callable[[Array], float]:
    """The share of test images that a model gets right."""

    def right(theta: Array, image: Array, label: Array) -> Array:
        logits: Any = model.module.apply({"params": model.unravel(theta)}, image)
        return jnp.argmax(logits, -1) == label

    @jax.jit
    def several(theta: Array, images: Array, labels: Array) -> Array:
        return jnp.sum(jax.vmap(right, (None, 0, 0))(theta, images, labels))

    def accuracy(theta: Array) -> float:
        starts = range(0, len(images.test_labels), _TEST_BLOCK)
        parts = [slice(start, start + _TEST_BLOCK) for start in starts]
        found = [several(theta, images.test_images[part], images.test_labels[part]) for part in parts]
        return sum(map(int, found)) / len(images.test_labels)

    return accuracy
