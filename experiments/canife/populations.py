"""The models and their clients: a row each, what is drawn of the clients, and how they train. Clients with
one example each train by DP-SGD, a round a step with the cohort as its mini-batch; others by DP-FedAvg."""

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
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import scale_to_norm
from audit.model import Model, losses_by_example
from audit.settings.build import CLIPPING, DOTS
from audit.task import Clients, Dataset
from experiments.canife import attacked as settings
from experiments.canife import samples
from experiments.canife.attacked import Attacked
from experiments.canife.samples import ImageForm, Samples, TextForm
from models import convolutional, recurrent
from models.catalogue import TASKS
from models.data import images, leaf, shakespeare
from models.data.clients import dirichlet, one_each

_TEST_BLOCK = 1000
_TESTED = 10_000  # labels
_MOCK_SHARE = 0.1  # of the roles, as in the paper
Indices = NDArray[np.int64]
# (theta (p,), clients (n,)) -> the clipped updates (n, p) that they send
UpdatesOf = Callable[[Array, Indices], Array]
# (theta (p,), clients (n,), direction (p,)) -> (n,), their clipped updates' dot products with it
DotsOf = Callable[[Array, Indices, Array], Array]


class Split(NamedTuple):
    """Clients to train on, mock clients, and examples to test on; a name for all of them."""

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]
    checksum: str


class Named(NamedTuple):
    """What a user names instead of having data fetched: LEAF's folder, a data file, a TFDS folder."""

    leaf: str | None = None
    data_file: str | None = None
    tfds_dir: str | None = None


LoadClients = Callable[[Attacked, Named], Split]


class ModelRow(NamedTuple):
    """A model's clients and canaries: load(attacked, named) -> clients; form; the label for none."""

    load: LoadClients
    make: Callable[[], Model]
    form: ImageForm | TextForm
    padding: int = -1


class ClientTraining(NamedTuple):
    """A mechanism that trains on clients, its data, and what clients and mock clients send."""

    mechanism: base.Mechanism
    own: base.Tree
    data: base.Data
    train_dots: DotsOf
    mock_updates: UpdatesOf


class Population(NamedTuple):
    """A training and its clients: those that it trains on, and the mock clients that canaries are designed
    on.

    rate: what a client of one example multiplies its gradient by; None where it sends the gradient.
    train(state, first round, rounds) -> the state after them. accuracy(theta) -> on test examples.
    """

    model: Model
    samples: Samples
    train_clients: int
    mock: Clients
    train_dots: DotsOf
    mock_updates: UpdatesOf
    rate: float | None
    start: Callable[[], base.State]
    train: Callable[[base.State, int, int], base.State]
    accuracy: Callable[[Array], float]


def dealt(attacked: Attacked, data: images.ImageDataset) -> Split:
    """Images of one example each, or dealt by Dirichlet's proportions: training images to clients, test
    images to as many mock clients as gives each as much."""
    limit = len(data.train_labels)
    require(0 <= attacked.clients <= limit, f"`clients={attacked.clients}`: give 0 to {limit:,}")
    test = data.test_images, data.test_labels
    train_set = Dataset(data.train_images, data.train_labels, data.source, data.checksum)
    test_set = Dataset(*test, data.source, data.checksum)
    if not attacked.clients:
        return Split(one_each(train_set), one_each(test_set), test, data.checksum)
    mock = max(int(attacked.clients * (len(test[1]) / limit)), 1)
    train_clients = dirichlet(train_set, attacked.clients, attacked.alpha, attacked.seed)
    mock_clients = dirichlet(test_set, mock, attacked.alpha, attacked.seed + 1)
    return Split(train_clients, mock_clients, test, data.checksum)


def roles(attacked: Attacked, everyone: Clients) -> Split:
    """A tenth of the roles, drawn by the seed, are mock clients, the test examples theirs."""
    order = np.random.default_rng(attacked.seed).permutation(everyone.number)
    mock = max(round(_MOCK_SHARE * everyone.number), 1)
    limit = everyone.number - mock
    require(0 <= attacked.clients <= limit, f"`clients={attacked.clients}`: give 0 to {limit:,}")
    held_out = _some(everyone, order[:mock])
    train = _some(everyone, order[mock : mock + (attacked.clients or limit)])
    return Split(train, held_out, (held_out.features, held_out.labels), everyone.checksum)


def _some(everyone: Clients, members: NDArray[np.integer]) -> Clients:
    rows = [everyone.of(int(member)) for member in np.sort(members)]
    features, labels = (np.concatenate([row[i] for row in rows]) for i in range(2))
    counts = np.array([len(row[1]) for row in rows], np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    return everyone._replace(features=features, labels=labels, starts=starts, counts=counts)


def users(load: Callable[..., Clients], attacked: Attacked, named: Named) -> Split:
    """The users of LEAF's training split, and of its test split as mock clients."""
    given = named.data_file or named.tfds_dir
    require(given is None, f"`model={attacked.model}` reads LEAF's folder: name it with `leaf`, not {given}")
    require(0 <= attacked.clients <= 10**7, f"`clients={attacked.clients}`: give 0 to 10,000,000")
    train, mock = load(named.leaf, "train", attacked.clients), load(named.leaf, "test")
    return Split(train, mock, (mock.features, mock.labels), f"{train.checksum} {mock.checksum}")


def _fetched(load: Callable[..., Any], deal: Callable[[Attacked, Any], Split]) -> LoadClients:
    return lambda attacked, named: deal(attacked, load(file=named.data_file, tfds_dir=named.tfds_dir))


_FACES = ImageForm(
    (leaf.PIXELS, leaf.PIXELS, 3),
    convolutional.CELEBA_CLASSES,
    convolutional.CELEBA_MEAN,
    convolutional.CELEBA_STD,
)
_TWEETS = TextForm(leaf.SENT140_LENGTH, leaf.SENT140_CHARACTERS, 0, leaf.SENT140_VOCABULARY, 2)
_PLAYS = TextForm(leaf.SHAKESPEARE_LENGTH, leaf.SHAKESPEARE_CHARACTERS, 0, 80, 80)
_ROLES = TextForm(shakespeare.LENGTH + 1, shakespeare.CHARACTERS, 1, shakespeare.VOCABULARY, 0)
_CELEBA, _SENT140 = partial(users, leaf.load_celeba), partial(users, leaf.load_sent140)
_JSON, _TEXTS = partial(users, leaf.load_shakespeare_json), _fetched(shakespeare.load_shakespeare, roles)
ROWS: dict[str, ModelRow] = {  # beside these, every model of an audit whose data are images
    "character_lstm": ModelRow(_TEXTS, recurrent.character_lstm, _ROLES, shakespeare.PADDING),
    "celeba_cnn": ModelRow(_CELEBA, convolutional.face_cnn, _FACES),
    "celeba_resnet18": ModelRow(_CELEBA, convolutional.face_resnet18, _FACES),
    "sent140_lstm": ModelRow(_SENT140, recurrent.tweet_lstm, _TWEETS),
    "shakespeare_lstm": ModelRow(_JSON, recurrent.play_lstm, _PLAYS),
}
_IMAGES = {  # loaders of images, and what a canary among them is, by the names that tasks' rows have for them
    images.FASHION_MNIST.name: (
        images.load_fashion_mnist,
        ImageForm((28, 28), 10, images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD),
    ),
    images.CIFAR10.name: (
        images.load_cifar10,
        ImageForm((32, 32, 3), 10, images.CIFAR10_MEAN, images.CIFAR10_STD),
    ),
}


def row(model: str) -> ModelRow:
    """A model's row: its own, or that of its task on images. Raises InputError where it has neither."""
    if model in ROWS:
        return ROWS[model]
    settings.require_model(model)
    task = TASKS[model]
    load_images, form = _IMAGES[task.data.name]
    return ModelRow(_fetched(load_images, dealt), lambda: task.make(form.shape), form)


def load(attacked: Attacked, named: Named) -> Split:
    """A setting's clients, cut to its examples; raises InputError where what is named doesn't fit."""
    needed = attacked.model in settings.LEAF
    require(needed or named.leaf is None, f"`leaf={named.leaf}` is for {', '.join(settings.LEAF)}: drop it")
    require(attacked.examples >= 0, f"`examples={attacked.examples}`: give 0, or a number above")
    split, most = row(attacked.model).load(attacked, named), attacked.examples
    if not most:
        return split

    def cut(clients: Clients) -> Clients:
        return clients._replace(counts=np.minimum(clients.counts, most).astype(np.int32))

    return split._replace(train=cut(split.train), mock=cut(split.mock))


def dealing(attacked: Attacked) -> Attacked:
    """A setting's fields that decide its clients, with the others at their defaults."""
    kept = Attacked(attacked.model, clients=attacked.clients, examples=attacked.examples)
    if attacked.model in settings.IMAGES and not attacked.clients:
        return kept
    return dataclasses.replace(kept, alpha=attacked.alpha, seed=attacked.seed)


def population(attacked: Attacked, split: Split) -> Population:
    """The clients of a setting, who train."""
    _, make, form, padding = row(attacked.model)
    model = make()
    single = attacked.model in settings.IMAGES and not attacked.clients
    made = (_of_examples if single else _of_clients)(attacked, model, split)
    if isinstance(form, ImageForm):
        canaries = samples.images(model, form, attacked.soft_label, attacked.clamp)
    else:
        canaries = samples.texts(model, form, attacked.soft_label)
    return Population(
        model,
        canaries,
        split.train.number,
        split.mock,
        made.train_dots,
        made.mock_updates,
        None if single else attacked.client_learning_rate,
        lambda: made.mechanism.start(jax.jit(model.init)(root(attacked.seed, "theta"))),
        _trainer(attacked, made, split.train.number),
        _accuracy(model, split.test, padding),
    )


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


def drawn(attacked: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """So many clients, drawn without replacement by the seed and a purpose."""
    return generator(attacked, purpose).choice(clients, size, replace=False, shuffle=False)


def generator(attacked: Attacked, purpose: str) -> np.random.Generator:
    """A generator of its own for each purpose."""
    return np.random.default_rng([attacked.seed, *purpose.encode()])


def _of_examples(attacked: Attacked, model: Model, split: Split) -> ClientTraining:
    train, mock, norm = split.train, split.mock, jnp.float32(attacked.clipping_norm)
    strategy = TASKS[attacked.model].clipping[0]
    compiled = jax.jit(DOTS[strategy](model))

    @jax.jit
    def gradients(theta: Array, features: Array, labels: Array) -> Array:
        raw: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return raw * scale_to_norm(jnp.sum(raw**2, axis=1), norm)[:, None]

    def mock_updates(theta: Array, members: Indices) -> Array:
        sent: Array = gradients(theta, *map(jnp.asarray, (mock.features[members], mock.labels[members])))
        return sent

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        batch = jnp.asarray(train.features[members]), jnp.asarray(train.labels[members])
        products: Array = compiled(theta, batch, norm, direction)
        return products

    mechanism = dpsgd.mechanism(dpsgd.DPSGD(CLIPPING[strategy](model)))
    data = jnp.asarray(train.features), jnp.asarray(train.labels)
    return ClientTraining(mechanism, (), data, train_dots, mock_updates)


def _of_clients(attacked: Attacked, model: Model, split: Split) -> ClientTraining:
    most = int(max(split.train.counts.max(), split.mock.counts.max()))
    batch_size = min(attacked.batch_size, most)
    choices = fedavg.FedAvg(losses_by_example(model), model.unravel, batch_size, attacked.client_epochs, most)
    own = fedavg.Federated(jnp.float32(attacked.client_learning_rate), jnp.float32(attacked.cohort))
    data, mock_data = (tuple(map(jnp.asarray, some.arrays)) for some in split[:2])
    sent, updates = (_sent(attacked, choices, own, some) for some in (data, mock_data))

    def dots(theta: Array, members: Indices, direction: Array) -> Array:
        return sent(theta, members) @ direction

    return ClientTraining(fedavg.mechanism(choices), own, data, dots, updates)


def _trainer(
    attacked: Attacked, made: ClientTraining, train_clients: int
) -> Callable[[base.State, int, int], base.State]:
    key = root(attacked.seed, "noise")
    values = attacked.learning_rate, attacked.clipping_norm, attacked.noise_multiplier
    rate, norm, sigma = map(jnp.float32, values)
    hyper = base.Hyperparameters(rate, norm, sigma, made.own)

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        return made.mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        purposes = [f"cohort {number}" for number in range(first, first + rounds)]
        cohorts = np.stack([drawn(attacked, one, train_clients, attacked.cohort) for one in purposes])
        schedule = base.Schedule(jnp.asarray(cohorts, jnp.int32), jnp.zeros(rounds))
        after: base.State = segment(state, made.data, schedule)
        return after

    return train


def _sent(attacked: Attacked, choices: fedavg.FedAvg, own: fedavg.Federated, data: base.Data) -> UpdatesOf:
    norm, key = jnp.float32(attacked.clipping_norm), root(attacked.seed, "guess")

    @jax.jit
    def several(theta: Array, members: Array, data: base.Data) -> Array:
        def one(member: Array) -> Array:
            return fedavg.cohort_sums(choices, own, theta, norm, data, member[None], key).updates

        updates: Array = jax.lax.map(one, members, batch_size=choices.block)
        return updates

    return lambda theta, members: several(theta, jnp.asarray(members, jnp.int32), data)
