"""The models and their clients: a row each, with what a canary of theirs is."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from audit.errors import require
from audit.game import root
from audit.model import Model
from audit.settings.build import CLIPPING, DOTS
from audit.task import Clients, Dataset
from experiments.canife import attacked as settings
from experiments.canife import samples, trainings
from experiments.canife.attacked import Attacked
from experiments.canife.clients import Population
from experiments.canife.samples import ImageForm, Samples, TextForm
from models import celeba, recurrent
from models.catalogue import task
from models.data import leaf, shakespeare
from models.data.base import ImageDataset
from models.data.cifar10 import CIFAR10_MEAN, CIFAR10_STD, load_cifar10
from models.data.clients import dirichlet, one_each
from models.data.fashion_mnist import FASHION_MNIST_MEAN, FASHION_MNIST_STD, load_fashion_mnist

_TEST_BLOCK = 1000
_TESTED = 10_000  # labels
_MOCK_SHARE = 0.1  # of the roles, as in the paper


class Split(NamedTuple):
    """Clients to train on, mock clients, and examples to test on; a name for all of them."""

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]
    checksum: str


class Named(NamedTuple):
    """What a user names instead of having data fetched: LEAF's folder, or a data file or prepared TFDS
    folder."""

    leaf: str | None = None
    data_file: str | None = None
    tfds_dir: str | None = None


class ModelRow(NamedTuple):
    """A model: load(attacked, what a user names) -> its clients; its samples; the label that stands for
    none."""

    load: Callable[[Attacked, Named], Split]
    make: Callable[[], Model]
    samples: Callable[[Attacked, Model], Samples]
    padding: int = -1


def dealt(attacked: Attacked, images: ImageDataset) -> Split:
    """Images of one example each, or dealt by Dirichlet's proportions: training images to clients, test
    images to as many mock clients as gives each as much."""
    limit = len(images.train_labels)
    require(0 <= attacked.clients <= limit, f"`clients={attacked.clients}`: give 0 to {limit:,}")
    test = images.test_images, images.test_labels
    train_set = Dataset(images.train_images, images.train_labels, images.source, images.checksum)
    test_set = Dataset(*test, images.source, images.checksum)
    if not attacked.clients:
        return Split(one_each(train_set), one_each(test_set), test, images.checksum)
    mock = max(int(attacked.clients * (len(test[1]) / limit)), 1)
    train_clients = dirichlet(train_set, attacked.clients, attacked.alpha, attacked.seed)
    mock_clients = dirichlet(test_set, mock, attacked.alpha, attacked.seed + 1)
    return Split(train_clients, mock_clients, test, images.checksum)


def roles(attacked: Attacked, found: Clients) -> Split:
    """A tenth of the roles, drawn by the seed, are mock clients, the test examples theirs."""
    order = np.random.default_rng(attacked.seed).permutation(found.number)
    mock = max(round(_MOCK_SHARE * found.number), 1)
    limit = found.number - mock
    require(0 <= attacked.clients <= limit, f"`clients={attacked.clients}`: give 0 to {limit:,}")
    held_out = _some(found, order[:mock])
    train = _some(found, order[mock : mock + (attacked.clients or limit)])
    return Split(train, held_out, (held_out.features, held_out.labels), found.checksum)


def users(load: Callable[..., Clients], attacked: Attacked, named: Named) -> Split:
    """The users of LEAF's training split, and of its test split as mock clients."""
    given = named.data_file or named.tfds_dir
    require(given is None, f"`model={attacked.model}` reads LEAF's folder: name it with `leaf`, not {given}")
    require(0 <= attacked.clients <= 10**7, f"`clients={attacked.clients}`: give 0 to 10,000,000")
    train, mock = load(named.leaf, "train", attacked.clients), load(named.leaf, "test")
    return Split(train, mock, (mock.features, mock.labels), f"{train.checksum} {mock.checksum}")


def load(attacked: Attacked, named: Named) -> Split:
    """The clients of a setting, each with so many examples at most; raises InputError where what is named
    does not fit."""
    needed = attacked.model in settings.LEAF
    require(needed or named.leaf is None, f"`leaf={named.leaf}` is for {', '.join(settings.LEAF)}: drop it")
    require(attacked.examples >= 0, f"`examples={attacked.examples}`: give 0, or a number above")
    split = ROWS[attacked.model].load(attacked, named)
    if not attacked.examples:
        return split
    return split._replace(
        train=_cut(split.train, attacked.examples), mock=_cut(split.mock, attacked.examples)
    )


def dealing(attacked: Attacked) -> Attacked:
    """A setting's fields that decide its clients, with the others at their defaults."""
    kept = Attacked(attacked.model, clients=attacked.clients, examples=attacked.examples)
    if attacked.model in IMAGE_TASKS and not attacked.clients:
        return kept
    return dataclasses.replace(kept, alpha=attacked.alpha, seed=attacked.seed)


def population(attacked: Attacked, split: Split) -> Population:
    """The clients of a setting, who train."""
    row = ROWS[attacked.model]
    model = row.make()
    single = attacked.model in IMAGE_TASKS and not attacked.clients
    if single:
        strategy = task(attacked.model).clipping[0]
        clipping = CLIPPING[strategy](model), DOTS[strategy](model)
        made = trainings.of_examples(attacked, model, *clipping, split.train, split.mock)
    else:
        made = trainings.of_clients(attacked, model, split.train, split.mock)

    def mock_example(client: int) -> tuple[NDArray[Any], Any]:
        features, labels = split.mock.of(client)
        return features[0], labels[0]

    return Population(
        model,
        row.samples(attacked, model),
        split.train.number,
        split.mock.number,
        made.train_dots,
        made.mock_updates,
        mock_example,
        None if single else attacked.client_learning_rate,
        lambda: made.mechanism.start(jax.jit(model.init)(root(attacked.seed, "theta"))),
        trainings.trainer(attacked, made),
        _accuracy(model, split.test, row.padding),
    )


def _some(clients: Clients, members: NDArray[np.integer]) -> Clients:
    """These clients, in the order of their numbers."""
    rows = [clients.of(int(member)) for member in np.sort(members)]
    features, labels = (np.concatenate([row[i] for row in rows]) for i in range(2))
    counts = np.array([len(row[1]) for row in rows], np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    return clients._replace(features=features, labels=labels, starts=starts, counts=counts)


def _cut(clients: Clients, most: int) -> Clients:
    """Every client's first examples."""
    return clients._replace(counts=np.minimum(clients.counts, most).astype(np.int32))


def _accuracy(
    model: Model, test: tuple[NDArray[Any], NDArray[Any]], padding: int
) -> Callable[[Array], float]:
    """The share of labels that a model gets right, of at most 10,000 and what is no padding."""
    step = -(-test[1].size // _TESTED)
    features, labels = test[0][::step], test[1][::step]

    def right(theta: Array, one: Array, label: Array) -> Array:
        logits: Any = model.module.apply({"params": model.unravel(theta)}, one)
        return (jnp.argmax(logits, -1) == label) & (label != padding)

    @jax.jit
    def several(theta: Array, features: Array, labels: Array) -> Array:
        return jnp.sum(jax.vmap(right, (None, 0, 0))(theta, features, labels))

    def accuracy(theta: Array) -> float:
        starts = range(0, len(labels), _TEST_BLOCK)
        parts = [slice(start, start + _TEST_BLOCK) for start in starts]
        found = [several(theta, features[part], labels[part]) for part in parts]
        return sum(map(int, found)) / int(np.sum(labels != padding))

    return accuracy


def _image_row(name: str, images: Callable[..., ImageDataset]) -> ModelRow:
    """A model of an audit, on images that are dealt."""
    colour = images is load_cifar10
    shape = (32, 32, 3) if colour else (28, 28)
    mean, deviation = (CIFAR10_MEAN, CIFAR10_STD) if colour else (FASHION_MNIST_MEAN, FASHION_MNIST_STD)
    return ModelRow(
        lambda attacked, named: dealt(attacked, images(file=named.data_file, tfds_dir=named.tfds_dir)),
        lambda: task(name).make(shape),
        _images(shape, 10, mean, deviation, not colour),
    )


def _images(shape: tuple[int, ...], classes: int, mean: Any, deviation: Any, flat: bool) -> Any:
    """Images as samples."""

    def made(attacked: Attacked, model: Model) -> Samples:
        normal = jnp.asarray(mean, jnp.float32), jnp.asarray(deviation, jnp.float32)
        form = ImageForm(shape, classes, *normal, flat)
        return samples.images(model, form, attacked.soft_label, attacked.clamp)

    return made


def _texts(form: TextForm) -> Callable[[Attacked, Model], Samples]:
    """Texts as samples."""
    return lambda attacked, model: samples.texts(model, form, attacked.soft_label)


_FACES = _images((leaf.PIXELS, leaf.PIXELS, 3), celeba.CLASSES, celeba.MEAN, celeba.DEVIATION, False)
_TWEETS = TextForm(leaf.SENT140_LENGTH, leaf.SENT140_CHARACTERS, 0, leaf.SENT140_VOCABULARY, 2)
_PLAYS = TextForm(leaf.SHAKESPEARE_LENGTH, leaf.SHAKESPEARE_CHARACTERS, 0, 80, 80)
_ROLES = TextForm(shakespeare.LENGTH + 1, shakespeare.CHARACTERS, 1, shakespeare.VOCABULARY, 0)
IMAGE_TASKS = {
    **{name: load_fashion_mnist for name in ("two_layer", "linear", "mlp")},
    **{name: load_cifar10 for name in ("convnet", "resnet18")},
}
ROWS: dict[str, ModelRow] = {
    **{name: _image_row(name, images) for name, images in IMAGE_TASKS.items()},
    "character_lstm": ModelRow(
        lambda attacked, named: roles(
            attacked, shakespeare.load_shakespeare(file=named.data_file, tfds_dir=named.tfds_dir)
        ),
        recurrent.character_lstm,
        _texts(_ROLES),
        shakespeare.PADDING,
    ),
    "celeba_cnn": ModelRow(partial(users, leaf.load_celeba), celeba.face_cnn, _FACES),
    "celeba_resnet18": ModelRow(partial(users, leaf.load_celeba), celeba.face_resnet18, _FACES),
    "sent140_lstm": ModelRow(partial(users, leaf.load_sent140), recurrent.tweet_lstm, _texts(_TWEETS)),
    "shakespeare_lstm": ModelRow(
        partial(users, leaf.load_shakespeare_json), recurrent.play_lstm, _texts(_PLAYS)
    ),
}
