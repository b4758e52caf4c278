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
from audit.task import Clients, Dataset, Task
from experiments.canife import attacked as settings
from experiments.canife import clients, samples
from experiments.canife.attacked import Attacked
from experiments.canife.clients import Population
from experiments.canife.samples import ImageForm, Samples, TextForm
from models import convolutional, recurrent
from models.catalogue import TASKS
from models.data import leaf, shakespeare
from models.data.clients import dirichlet, one_each
from models.data.images import ImageDataset

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
    """A model's clients and canaries: load(attacked, what a user names) -> its clients; its samples; the
    label that stands for none."""

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


def roles(attacked: Attacked, everyone: Clients) -> Split:
    """A tenth of the roles, drawn by the seed, are mock clients, the test examples theirs."""
    order = np.random.default_rng(attacked.seed).permutation(everyone.number)
    mock = max(round(_MOCK_SHARE * everyone.number), 1)
    limit = everyone.number - mock
    require(0 <= attacked.clients <= limit, f"`clients={attacked.clients}`: give 0 to {limit:,}")
    held_out = _some(everyone, order[:mock])
    train = _some(everyone, order[mock : mock + (attacked.clients or limit)])
    return Split(train, held_out, (held_out.features, held_out.labels), everyone.checksum)


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
    split, most = row(attacked.model).load(attacked, named), attacked.examples
    return split._replace(train=_cut(split.train, most), mock=_cut(split.mock, most)) if most else split


def dealing(attacked: Attacked) -> Attacked:
    """A setting's fields that decide its clients, with the others at their defaults."""
    kept = Attacked(attacked.model, clients=attacked.clients, examples=attacked.examples)
    if attacked.model in settings.IMAGES and not attacked.clients:
        return kept
    return dataclasses.replace(kept, alpha=attacked.alpha, seed=attacked.seed)


def population(attacked: Attacked, split: Split) -> Population:
    """The clients of a setting, who train."""
    kind = row(attacked.model)
    model = kind.make()
    single = attacked.model in settings.IMAGES and not attacked.clients
    if single:
        strategy = TASKS[attacked.model].clipping[0]
        clipping = CLIPPING[strategy](model), DOTS[strategy](model)
        made = clients.of_examples(attacked, model, *clipping, split.train, split.mock)
    else:
        made = clients.of_clients(attacked, model, split.train, split.mock)

    def mock_example(client: int) -> tuple[NDArray[Any], Any]:
        features, labels = split.mock.of(client)
        return features[0], labels[0]

    return Population(
        model,
        kind.samples(attacked, model),
        split.train.number,
        split.mock.number,
        made.train_dots,
        made.mock_updates,
        mock_example,
        None if single else attacked.client_learning_rate,
        lambda: made.mechanism.start(jax.jit(model.init)(root(attacked.seed, "theta"))),
        clients.trainer(attacked, made, split.train.number),
        _accuracy(model, split.test, kind.padding),
    )


def _some(everyone: Clients, members: NDArray[np.integer]) -> Clients:
    """These clients, in the order of their numbers."""
    rows = [everyone.of(int(member)) for member in np.sort(members)]
    features, labels = (np.concatenate([row[i] for row in rows]) for i in range(2))
    counts = np.array([len(row[1]) for row in rows], np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    return everyone._replace(features=features, labels=labels, starts=starts, counts=counts)


def _cut(everyone: Clients, most: int) -> Clients:
    """Every client's first examples."""
    return everyone._replace(counts=np.minimum(everyone.counts, most).astype(np.int32))


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
        counts = [several(theta, features[part], labels[part]) for part in parts]
        return sum(map(int, counts)) / int(np.sum(labels != padding))

    return accuracy


def _image_row(task: Task) -> ModelRow:
    """A model of an audit, on images that are dealt."""
    images = settings.IMAGE_DATA[task.data.name]
    form = ImageForm(images.shape, task.classes, images.mean, images.deviation)

    def load(attacked: Attacked, named: Named) -> Split:
        return dealt(attacked, images.load(file=named.data_file, tfds_dir=named.tfds_dir))

    return ModelRow(load, lambda: task.make(images.shape), _images(form))


def _images(form: ImageForm) -> Callable[[Attacked, Model], Samples]:
    """Images as samples."""
    return lambda attacked, model: samples.images(model, form, attacked.soft_label, attacked.clamp)


def _texts(form: TextForm) -> Callable[[Attacked, Model], Samples]:
    """Texts as samples."""
    return lambda attacked, model: samples.texts(model, form, attacked.soft_label)


def _shakespeare(attacked: Attacked, named: Named) -> Split:
    return roles(attacked, shakespeare.load_shakespeare(file=named.data_file, tfds_dir=named.tfds_dir))


_CELEBA = (convolutional.CELEBA_CLASSES, convolutional.CELEBA_MEAN, convolutional.CELEBA_STD)
_FACES = _images(ImageForm((leaf.PIXELS, leaf.PIXELS, 3), *_CELEBA))
_TWEETS = TextForm(leaf.SENT140_LENGTH, leaf.SENT140_CHARACTERS, 0, leaf.SENT140_VOCABULARY, 2)
_PLAYS = TextForm(leaf.SHAKESPEARE_LENGTH, leaf.SHAKESPEARE_CHARACTERS, 0, 80, 80)
_ROLES = TextForm(shakespeare.LENGTH + 1, shakespeare.CHARACTERS, 1, shakespeare.VOCABULARY, 0)
ROWS: dict[str, ModelRow] = {  # beside these, every model of an audit whose data are images
    "character_lstm": ModelRow(_shakespeare, recurrent.character_lstm, _texts(_ROLES), shakespeare.PADDING),
    "celeba_cnn": ModelRow(partial(users, leaf.load_celeba), convolutional.face_cnn, _FACES),
    "celeba_resnet18": ModelRow(partial(users, leaf.load_celeba), convolutional.face_resnet18, _FACES),
    "sent140_lstm": ModelRow(partial(users, leaf.load_sent140), recurrent.tweet_lstm, _texts(_TWEETS)),
    "shakespeare_lstm": ModelRow(
        partial(users, leaf.load_shakespeare_json), recurrent.play_lstm, _texts(_PLAYS)
    ),
}


def row(model: str) -> ModelRow:
    """A model's row: its own, or that of its task on images. Raises InputError where it has neither."""
    if model in ROWS:
        return ROWS[model]
    settings.require_model(model)
    return _image_row(TASKS[model])
