"""The models and their clients: what is drawn of the clients, and how they train.

Clients with one example each train by DP-SGD, a round being a step with the cohort as its mini-batch; others
train by DP-FedAvg.
"""

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
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import scale_to_norm
from audit.settings.build import CLIPPING, DOTS
from audit.tasks.model import Model, losses_by_example
from audit.tasks.task import Clients, Dataset
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import samples
from experiments.canife.attacked import Attacked
from experiments.canife.samples import ImageForm, Samples, TextForm
from models import convolutional, recurrent
from models.catalogue import TASKS
from models.data import images, leaf, shakespeare
from models.data.clients import dirichlet, one_each

_TEST_BLOCK = 1000  # examples that are tested at once
_MOST_TESTED = 10_000  # labels
_MOCK_SHARE = 0.1  # of the roles, as in the paper
Indices = NDArray[np.int64]
# (theta (p,), clients (n,)) -> the clipped updates (n, p) that they send
UpdatesOf = Callable[[Array, Indices], Array]
# (theta (p,), clients (n,), direction (p,)) -> (n,), their clipped updates' dot products with it
DotsOf = Callable[[Array, Indices, Array], Array]


class Split(NamedTuple):
    """Clients and examples.

    Attributes:
      train: The clients to train on.
      mock: The mock clients, on whom canaries are designed.
      test: Features and labels to test on.
      checksum: A name for all of them.
    """

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]
    checksum: str


class DataPaths(NamedTuple):
    """The data that a user names instead of having them fetched.

    Attributes:
      leaf: LEAF's folder.
      data_file: A data file.
      tfds_dir: A folder of TFDS.
    """

    leaf: str | None = None
    data_file: str | None = None
    tfds_dir: str | None = None


LoadClients = Callable[[Attacked, DataPaths], Split]


class ModelRow(NamedTuple):
    """A model's clients and canaries.

    Attributes:
      load: (setting, paths) -> the clients.
      make: () -> the model.
      form: The form of its examples.
      padding: The label that stands for none.
    """

    load: LoadClients
    make: Callable[[], Model]
    form: ImageForm | TextForm
    padding: int = -1


class ClientTraining(NamedTuple):
    """How clients train.

    Attributes:
      mechanism: The mechanism.
      own: The mechanism's own hyperparameters.
      data: The data of the clients to train on.
      train_dots: The dot products of what those clients send.
      mock_updates: What mock clients send.
    """

    mechanism: base.Mechanism
    own: base.Tree
    data: base.Data
    train_dots: DotsOf
    mock_updates: UpdatesOf


class Population(NamedTuple):
    """A model and the clients that train it.

    Attributes:
      model: The model.
      samples: What a canary can be.
      train_clients: How many clients it trains on.
      mock: The mock clients, on whom canaries are designed.
      train_dots: The dot products of what the former send.
      mock_updates: What mock clients send.
      rate: By what a client of one example multiplies its gradient; None where it sends the gradient.
      start: () -> the first state.
      train: (state, first round, rounds) -> the state after them.
      accuracy: (theta) -> the accuracy on test examples.
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


def deal_images(setting: Attacked, data: images.ImageDataset) -> Split:
    """Deals images to clients: one example each, or by Dirichlet's proportions.

    Training images go to clients, test images to as many mock clients as gives each as much.
    """
    limit = len(data.train_labels)
    require(
        0 <= setting.clients <= limit,
        f"`clients={setting.clients}`: give 0 to {limit:,}",
    )
    test = (data.test_images, data.test_labels)
    train_set = Dataset(data.train_images, data.train_labels, data.source, data.checksum)
    test_set = Dataset(data.test_images, data.test_labels, data.source, data.checksum)
    if not setting.clients:
        return Split(one_each(train_set), one_each(test_set), test, data.checksum)
    mock_clients = max(int(setting.clients * (len(data.test_labels) / limit)), 1)
    train = dirichlet(train_set, setting.clients, setting.alpha, setting.seed)
    mock = dirichlet(test_set, mock_clients, setting.alpha, setting.seed + 1)
    return Split(train, mock, test, data.checksum)


def split_roles(setting: Attacked, everyone: Clients) -> Split:
    """Makes a tenth of the roles, drawn by the seed, mock clients; their examples are those to test on."""
    order = np.random.default_rng(setting.seed).permutation(everyone.number)
    mock_clients = max(round(_MOCK_SHARE * everyone.number), 1)
    limit = everyone.number - mock_clients
    require(
        0 <= setting.clients <= limit,
        f"`clients={setting.clients}`: give 0 to {limit:,}",
    )
    train_clients = setting.clients or limit
    mock = _select_clients(everyone, order[:mock_clients])
    train = _select_clients(everyone, order[mock_clients : mock_clients + train_clients])
    return Split(train, mock, (mock.features, mock.labels), everyone.checksum)


def _select_clients(everyone: Clients, members: NDArray[np.integer]) -> Clients:
    """Returns some of the clients, in the order of all."""
    features = []
    labels = []
    for member in np.sort(members):
        own_features, own_labels = everyone.of(int(member))
        features.append(own_features)
        labels.append(own_labels)
    counts = np.array([len(own_labels) for own_labels in labels], np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    return everyone._replace(
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        starts=starts,
        counts=counts,
    )


def load_users(load: Callable[..., Clients], setting: Attacked, paths: DataPaths) -> Split:
    """Loads the users of LEAF's training split and, as mock clients, those of its test split."""
    other = paths.data_file or paths.tfds_dir
    message = f"`model={setting.model}` reads LEAF's folder: name it with `leaf`, not {other}"
    require(other is None, message)
    require(
        0 <= setting.clients <= 10**7,
        f"`clients={setting.clients}`: give 0 to 10,000,000",
    )
    train = load(paths.leaf, "train", setting.clients)
    mock = load(paths.leaf, "test")
    checksum = f"{train.checksum} {mock.checksum}"
    return Split(train, mock, (mock.features, mock.labels), checksum)


def _load_and_split(
    load: Callable[..., Any], split: Callable[[Attacked, Any], Split]
) -> LoadClients:
    """Returns a loader of data that are fetched where no file is named, and then split into clients."""

    def load_clients(setting: Attacked, paths: DataPaths) -> Split:
        return split(setting, load(file=paths.data_file, tfds_dir=paths.tfds_dir))

    return load_clients


_FACES = ImageForm(
    (leaf.PIXELS, leaf.PIXELS, 3),
    convolutional.CELEBA_CLASSES,
    convolutional.CELEBA_MEAN,
    convolutional.CELEBA_STD,
)
_TWEETS = TextForm(
    length=leaf.SENT140_LENGTH,
    alphabet=leaf.SENT140_CHARACTERS,
    first=0,
    vocabulary=leaf.SENT140_VOCABULARY,
    classes=2,
)
_PLAYS = TextForm(
    length=leaf.SHAKESPEARE_LENGTH,
    alphabet=leaf.SHAKESPEARE_CHARACTERS,
    first=0,
    vocabulary=80,
    classes=80,
)
_ROLES = TextForm(
    length=shakespeare.LENGTH + 1,
    alphabet=shakespeare.CHARACTERS,
    first=1,
    vocabulary=shakespeare.VOCABULARY,
    classes=0,
)
_load_celeba = partial(load_users, leaf.load_celeba)
_load_sent140 = partial(load_users, leaf.load_sent140)
_load_plays = partial(load_users, leaf.load_shakespeare_json)
_load_roles = _load_and_split(shakespeare.load_shakespeare, split_roles)
# beside these, every model of an audit whose data are images
ROWS: dict[str, ModelRow] = {
    "character_lstm": ModelRow(_load_roles, recurrent.character_lstm, _ROLES, shakespeare.PADDING),
    "celeba_cnn": ModelRow(_load_celeba, convolutional.face_cnn, _FACES),
    "celeba_resnet18": ModelRow(_load_celeba, convolutional.face_resnet18, _FACES),
    "sent140_lstm": ModelRow(_load_sent140, recurrent.tweet_lstm, _TWEETS),
    "shakespeare_lstm": ModelRow(_load_plays, recurrent.play_lstm, _PLAYS),
}
_IMAGES = {  # loaders and forms of images, by the names that tasks' rows have for them
    images.FASHION_MNIST.name: (
        images.load_fashion_mnist,
        ImageForm((28, 28), 10, images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD),
    ),
    images.CIFAR10.name: (
        images.load_cifar10,
        ImageForm((32, 32, 3), 10, images.CIFAR10_MEAN, images.CIFAR10_STD),
    ),
}


def get_row(model: str) -> ModelRow:
    """Returns a model's row: its own, or that of its task on images.

    Raises:
      InputError: It has neither.
    """
    if model in ROWS:
        return ROWS[model]
    settings.require_model(model)
    task = TASKS[model]
    load_images, form = _IMAGES[task.data.name]
    load = _load_and_split(load_images, deal_images)
    return ModelRow(load, lambda: task.make(form.shape), form)


def load_split(setting: Attacked, paths: DataPaths) -> Split:
    """Loads a setting's clients, cut to its number of examples.

    Raises:
      InputError: The named data do not fit the setting.
    """
    takes_leaf = setting.model in settings.LEAF_MODELS
    message = f"`leaf={paths.leaf}` is for {', '.join(settings.LEAF_MODELS)}: drop it"
    require(takes_leaf or paths.leaf is None, message)
    require(
        setting.examples >= 0,
        f"`examples={setting.examples}`: give 0, or a number above",
    )
    split = get_row(setting.model).load(setting, paths)
    if not setting.examples:
        return split
    return split._replace(
        train=_cut_examples(split.train, setting.examples),
        mock=_cut_examples(split.mock, setting.examples),
    )


def _cut_examples(clients: Clients, most: int) -> Clients:
    """Returns the clients with so many examples each, at most."""
    counts = np.minimum(clients.counts, most).astype(np.int32)
    return clients._replace(counts=counts)


def select_split_fields(setting: Attacked) -> Attacked:
    """Returns a setting with the fields that decide its clients, and the others at their defaults."""
    selected = Attacked(setting.model, clients=setting.clients, examples=setting.examples)
    if _has_single_examples(setting):
        return selected
    return dataclasses.replace(selected, alpha=setting.alpha, seed=setting.seed)


def _has_single_examples(setting: Attacked) -> bool:
    """Returns whether each client has one example."""
    return setting.model in settings.IMAGE_MODELS and not setting.clients


def make_population(setting: Attacked, split: Split) -> Population:
    """Makes a setting's model and the clients that train it."""
    row = get_row(setting.model)
    model = row.make()
    if _has_single_examples(setting):
        training = _train_by_dpsgd(setting, model, split)
        rate = None
    else:
        training = _train_by_fedavg(setting, model, split)
        rate = setting.client_learning_rate
    if isinstance(row.form, ImageForm):
        canaries = samples.image_samples(model, row.form, setting.soft_label, setting.clamp)
    else:
        canaries = samples.text_samples(model, row.form, setting.soft_label)

    def start() -> base.State:
        theta_0 = jax.jit(model.init)(root(setting.seed, "theta"))
        return training.mechanism.start(theta_0)

    return Population(
        model,
        canaries,
        split.train.number,
        split.mock,
        training.train_dots,
        training.mock_updates,
        rate,
        start,
        _make_trainer(setting, training, split.train.number),
        _make_accuracy(model, split.test, row.padding),
    )


def _make_accuracy(
    model: Model, test: tuple[NDArray[Any], NDArray[Any]], padding: int
) -> Callable[[Array], float]:
    """Returns a function that computes the share of labels that a model gets right.

    It tests about 10,000 labels at most, and none that is padding.
    """
    all_features, all_labels = test
    every = -(-all_labels.size // _MOST_TESTED)
    features = all_features[::every]
    labels = all_labels[::every]

    def is_right(theta: Array, example: Array, label: Array) -> Array:
        logits: Any = model.module.apply({"params": model.unravel(theta)}, example)
        return (jnp.argmax(logits, -1) == label) & (label != padding)

    @jax.jit
    def count_right(theta: Array, features: Array, labels: Array) -> Array:
        return jnp.sum(jax.vmap(is_right, (None, 0, 0))(theta, features, labels))

    def compute_accuracy(theta: Array) -> float:
        counts = []
        for start in range(0, len(labels), _TEST_BLOCK):
            block = slice(start, start + _TEST_BLOCK)
            counts.append(count_right(theta, features[block], labels[block]))
        right = sum(int(count) for count in counts)
        return right / int(np.sum(labels != padding))

    return compute_accuracy


def draw_clients(setting: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """Draws so many clients without replacement, by the seed and a purpose."""
    rng = make_generator(setting, purpose)
    return rng.choice(clients, size, replace=False, shuffle=False)


def make_generator(setting: Attacked, purpose: str) -> np.random.Generator:
    """Returns a generator of its own for each seed and purpose."""
    return np.random.default_rng([setting.seed, *purpose.encode()])


def _train_by_dpsgd(setting: Attacked, model: Model, split: Split) -> ClientTraining:
    """Returns the training of clients with one example each."""
    train = split.train
    mock = split.mock
    norm = jnp.float32(setting.clipping_norm)
    strategy = TASKS[setting.model].clipping[0]
    compute_dots = jax.jit(DOTS[strategy](model))

    @jax.jit
    def clipped_gradients(theta: Array, features: Array, labels: Array) -> Array:
        raw: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        return raw * scale_to_norm(jnp.sum(raw**2, axis=1), norm)[:, None]

    def mock_updates(theta: Array, members: Indices) -> Array:
        features = jnp.asarray(mock.features[members])
        labels = jnp.asarray(mock.labels[members])
        updates: Array = clipped_gradients(theta, features, labels)
        return updates

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        batch = (
            jnp.asarray(train.features[members]),
            jnp.asarray(train.labels[members]),
        )
        dots: Array = compute_dots(theta, batch, norm, direction)
        return dots

    mechanism = dpsgd.mechanism(dpsgd.DPSGD(CLIPPING[strategy](model)))
    data = (jnp.asarray(train.features), jnp.asarray(train.labels))
    return ClientTraining(mechanism, (), data, train_dots, mock_updates)


def _train_by_fedavg(setting: Attacked, model: Model, split: Split) -> ClientTraining:
    """Returns the training of clients with several examples."""
    most_examples = int(max(split.train.counts.max(), split.mock.counts.max()))
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        min(setting.batch_size, most_examples),
        setting.client_epochs,
        most_examples,
    )
    rate = jnp.float32(setting.client_learning_rate)
    own = fedavg.Federated(rate, jnp.float32(setting.cohort))
    train_data = tuple(jnp.asarray(array) for array in split.train.arrays)
    mock_data = tuple(jnp.asarray(array) for array in split.mock.arrays)
    train_updates = _make_updates(setting, choices, own, train_data)
    mock_updates = _make_updates(setting, choices, own, mock_data)

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        return train_updates(theta, members) @ direction

    mechanism = fedavg.mechanism(choices)
    return ClientTraining(mechanism, own, train_data, train_dots, mock_updates)


def _make_trainer(
    setting: Attacked, training: ClientTraining, train_clients: int
) -> Callable[[base.State, int, int], base.State]:
    """Returns a function (state, first round, rounds) -> the state after these rounds."""
    key = root(setting.seed, "noise")
    hyper = base.Hyperparameters(
        jnp.float32(setting.learning_rate),
        jnp.float32(setting.clipping_norm),
        jnp.float32(setting.noise_multiplier),
        training.own,
    )

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        return training.mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        cohorts = []
        for number in range(first, first + rounds):
            cohort = draw_clients(setting, f"cohort {number}", train_clients, setting.cohort)
            cohorts.append(cohort)
        batches = jnp.asarray(np.stack(cohorts), jnp.int32)
        schedule = base.Schedule(batches, jnp.zeros(rounds))
        after: base.State = segment(state, training.data, schedule)
        return after

    return train


def _make_updates(
    setting: Attacked, choices: fedavg.FedAvg, own: fedavg.Federated, data: base.Data
) -> UpdatesOf:
    """Returns a function (theta, clients) -> the clipped updates that these clients send."""
    norm = jnp.float32(setting.clipping_norm)
    key = root(setting.seed, "guess")

    @jax.jit
    def compute_updates(theta: Array, members: Array, data: base.Data) -> Array:
        def compute_update(member: Array) -> Array:
            sums = fedavg.cohort_sums(choices, own, theta, norm, data, member[None], key)
            return sums.updates

        updates: Array = jax.lax.map(compute_update, members, batch_size=choices.block)
        return updates

    return lambda theta, members: compute_updates(theta, jnp.asarray(members, jnp.int32), data)
