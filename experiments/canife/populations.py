"""The models and their clients: what is drawn of the clients, and how they train.

Clients with one example each train by DP-SGD, a round being a step with the cohort as its mini-batch; others
train by DP-FedAvg.
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
from audit.mechanism import base, dpsgd, fedavg
from audit.mechanism.clipping.base import clip, scale_to_norm
from audit.tasks.model import Model, losses_by_example
from audit.tasks.task import Clients, Dataset
from audit.training.build import CLIPPING
from audit.training.game import root
from experiments.canife import attacked as settings
from experiments.canife import samples
from experiments.canife.attacked import Attacked
from experiments.canife.samples import ImageForm, Samples, TextForm
from experiments.cells.cell import DataSets
from models.catalogue import TASKS, federated_task
from models.data import images, shakespeare
from models.data.clients import dirichlet, one_each, select

_TEST_BLOCK = 1000  # examples that are tested at once
_MOST_TESTED = 10_000  # labels that are tested, about
_MOCK_SHARE = 0.1  # of the roles, as in the paper
_GRADIENTS_AT_ONCE = 8  # that are in memory where dot products are taken
Indices = NDArray[np.int64]
# (theta (p,), clients (n,)) -> the clipped updates (n, p) that they send
UpdatesOf = Callable[[Array, Indices], Array]
# (theta (p,), clients (n,), direction (p,)) -> (n,), their clipped updates' dot products with it
DotsOf = Callable[[Array, Indices, Array], Array]


class Split(NamedTuple):
    """The clients of a training run, the mock clients, and the test set.

    Attributes:
      train: The clients to train on.
      mock: The mock clients, on whose updates canaries are designed.
      test: Features and labels of the test examples.
      checksum: The checksum of the data that all of these come from.
    """

    train: Clients
    mock: Clients
    test: tuple[NDArray[Any], NDArray[Any]]
    checksum: str


class ModelRow(NamedTuple):
    """A row of the table of models: how to make a model, its clients and its canaries.

    Attributes:
      split: (setting, data sets) -> the clients.
      make: () -> the model.
      form: The form of the model's examples, which canaries have too.
      padding: The label that stands for no label.
    """

    split: Callable[[Attacked, DataSets], Split]
    make: Callable[[], Model]
    form: ImageForm | TextForm
    padding: int = -1


class ClientTraining(NamedTuple):
    """How clients train, and what they send.

    Attributes:
      mechanism: The mechanism of the training run.
      own: The hyperparameters that only this mechanism has.
      data: The data of the clients to train on.
      rate: The learning rate of local SGD; None where a client sends its gradient.
      train_dots: (theta, clients, direction) -> the dot products of these clients' clipped updates with it.
      mock_updates: (theta, mock clients) -> the clipped updates that these send.
    """

    mechanism: base.Mechanism
    own: base.Tree
    data: base.Data
    rate: float | None
    train_dots: DotsOf
    mock_updates: UpdatesOf


class Population(NamedTuple):
    """A model and its clients, with functions that train and test it.

    Attributes:
      model: The model.
      samples: What its canaries can be.
      split: The clients, and the test set.
      training: How clients train.
      start: () -> the first state.
      train: (state, first round, rounds) -> the state after them.
      accuracy: (theta) -> the accuracy on test examples.
    """

    model: Model
    samples: Samples
    split: Split
    training: ClientTraining
    start: Callable[[], base.State]
    train: Callable[[base.State, int, int], base.State]
    accuracy: Callable[[Array], float]


def deal_images(setting: Attacked, data: DataSets) -> Split:
    """Deals a data set of images to clients: one image each, or unequal shares of each class.

    Training images go to the clients to train on, test images to mock clients. The clients' shares of a class
    are drawn from a symmetric Dirichlet(alpha) distribution. The number of mock clients is such that they
    have as many images on average as the clients to train on.

    Args:
      setting: The setting: its model, its number of clients (0: one client for each image), and alpha. The
        smaller alpha is, the more unequal are the shares.
      data: The models' data.
    """
    train, test = data.clients(setting)
    assert test is not None  # all data sets of images have a test set
    test_set = Dataset(*test, train.source, train.checksum)
    if not setting.clients:  # a client for each image
        return Split(train, one_each(test_set), test, train.checksum)
    # The number of mock clients for each client to train on.
    mock_share = len(test_set.labels) / len(train.labels)
    mock_clients = max(int(setting.clients * mock_share), 1)
    # Another seed: otherwise mock client i would prefer the same classes as client i.
    mock = dirichlet(test_set, mock_clients, setting.alpha, setting.seed + 1)
    return Split(train, mock, test, train.checksum)


def split_roles(setting: Attacked, data: DataSets) -> Split:
    """Splits the roles of Shakespeare's plays into mock clients and clients to train on.

    Each role is a client. A tenth of the roles, drawn by the seed, are mock clients. Their examples are the
    test set too.

    Args:
      setting: The setting: its seed, and its number of clients to train on (0: all other roles).
      data: The models' data.

    Raises:
      InputError: More clients are to be trained on than there are other roles.
    """
    # 0 loads all roles: the mock clients come from them too, whatever the number of clients to train on.
    all_roles = data.clients(dataclasses.replace(setting, clients=0)).clients
    order = np.random.default_rng(setting.seed).permutation(all_roles.number)
    mock_clients = max(round(_MOCK_SHARE * all_roles.number), 1)
    limit = all_roles.number - mock_clients
    require(setting.clients <= limit, f"`clients={setting.clients}`: give 0 to {limit:,}")
    train_clients = setting.clients or limit
    mock = select(all_roles, order[:mock_clients])
    train = select(all_roles, order[mock_clients : mock_clients + train_clients])
    return Split(train, mock, (mock.features, mock.labels), all_roles.checksum)


_ROLES = TextForm(
    length=shakespeare.LENGTH + 1,
    alphabet=shakespeare.CHARACTERS,
    first=1,
    vocabulary=shakespeare.VOCABULARY,
)
# Beside these, every model of an audit whose data are images has a row; see `get_row`.
ROWS: dict[str, ModelRow] = {
    "character_lstm": ModelRow(
        split_roles, federated_task("character_lstm").make, _ROLES, shakespeare.PADDING
    ),
}
_IMAGE_FORMS = {
    images.FASHION_MNIST.name: ImageForm(
        (28, 28), 10, images.FASHION_MNIST_MEAN, images.FASHION_MNIST_STD
    ),
    images.CIFAR10.name: ImageForm((32, 32, 3), 10, images.CIFAR10_MEAN, images.CIFAR10_STD),
}


def get_row(model: str) -> ModelRow:
    """Returns the row of a model: how to make it, its clients, and the form of its canaries.

    Raises:
      InputError: The model is unknown, or reads neither images nor texts.
    """
    if model in ROWS:
        return ROWS[model]
    settings.require_model(model)
    task = TASKS[model]
    form = _IMAGE_FORMS[task.data.name]
    return ModelRow(deal_images, lambda: task.make(form.shape), form)


def split_clients(setting: Attacked, data: DataSets) -> Split:
    """Returns a setting's clients and test set; clients keep at most `setting.examples` examples (0: all).

    Raises:
      InputError: They can't be loaded, or do not fit the setting.
    """
    split = get_row(setting.model).split(setting, data)
    if not setting.examples:
        return split
    return split._replace(
        train=_cut_examples(split.train, setting.examples),
        mock=_cut_examples(split.mock, setting.examples),
    )


def _cut_examples(clients: Clients, most: int) -> Clients:
    """Returns the clients with at most `most` examples each."""
    counts = np.minimum(clients.counts, most).astype(np.int32)
    return clients._replace(counts=counts)


def make_population(setting: Attacked, split: Split) -> Population:
    """Returns a setting's model and clients, with functions that train and test the model.

    Models on images whose setting has `clients` = 0 have one image for each client. They are trained by
    DP-SGD, of which a step is a round. All others are trained by DP-FedAvg.

    Args:
      setting: The setting.
      split: The setting's clients, and the test set.
    """
    row = get_row(setting.model)
    model = row.make()
    # 0 clients: one for each image.
    if setting.model in settings.IMAGE_MODELS and not setting.clients:
        training = _train_by_dpsgd(setting, model, split)
    else:
        training = _train_by_fedavg(setting, model, split)
    if isinstance(row.form, ImageForm):
        canaries = samples.image_samples(model, row.form, setting.soft_label)
    else:
        canaries = samples.text_samples(model, row.form)

    def start() -> base.State:
        """Returns the state before the first round, with theta drawn by the setting's seed."""
        theta_0 = jax.jit(model.init)(root(setting.seed, "theta"))
        return training.mechanism.start(theta_0)

    trainer = _make_trainer(setting, training, split.train.number)
    accuracy = _make_accuracy(model, split.test, row.padding)
    return Population(model, canaries, split, training, start, trainer, accuracy)


def _make_accuracy(
    model: Model, test: tuple[NDArray[Any], NDArray[Any]], padding: int
) -> Callable[[Array], float]:
    """Returns a function theta (p,) -> the model's accuracy on test examples: the share of right labels.

    Of the test set every k-th example is taken, with k such that about _MOST_TESTED labels remain at most.
    Labels that are padding do not count.

    Args:
      model: The model.
      test: Features and labels of the test examples; a text may have a label for each character.
      padding: The label that stands for no label.
    """
    all_features, all_labels = test
    stride = -(-all_labels.size // _MOST_TESTED)  # rounded up
    features = all_features[::stride]
    labels = all_labels[::stride]

    def is_right(theta: Array, example: Array, label: Array) -> Array:
        """Returns whether the model's likeliest class is the label, for each label of an example.

        It is False for a label that is padding.
        """
        logits: Any = model.module.apply({"params": model.unravel(theta)}, example)
        return (jnp.argmax(logits, -1) == label) & (label != padding)

    @jax.jit
    def count_right(theta: Array, features: Array, labels: Array) -> Array:
        """Counts the right labels of a block of examples."""
        return jnp.sum(jax.vmap(is_right, (None, 0, 0))(theta, features, labels))

    def compute_accuracy(theta: Array) -> float:
        """Returns the share of the test labels, padding aside, that the model theta (p,) predicts.

        Right labels are counted block by block, so that memory holds the logits of a single block.
        """
        counts = []
        for start in range(0, len(labels), _TEST_BLOCK):
            block = slice(start, start + _TEST_BLOCK)
            counts.append(count_right(theta, features[block], labels[block]))
        right = sum(int(count) for count in counts)
        return right / int(np.sum(labels != padding))

    return compute_accuracy


def draw_clients(setting: Attacked, purpose: str, clients: int, size: int) -> Indices:
    """Draws indices (size,) of clients from 0, 1, ..., clients - 1 without replacement.

    The setting's seed and the purpose, a text, decide the draws.
    """
    rng = make_generator(setting, purpose)
    # Which clients are drawn is random, and their order need not be: without a shuffle it is faster.
    return rng.choice(clients, size, replace=False, shuffle=False)


def make_generator(setting: Attacked, purpose: str) -> np.random.Generator:
    """Returns a random generator for a purpose, a text: each purpose has draws of its own for a seed."""
    return np.random.default_rng([setting.seed, *purpose.encode()])


def _train_by_dpsgd(setting: Attacked, model: Model, split: Split) -> ClientTraining:
    """Returns how clients with a single example each train: by DP-SGD.

    A round is a step of DP-SGD with the cohort as its mini-batch. A client sends the clipped gradient of its
    example. Canaries are designed on the mock clients' clipped gradients. Of the clients to train on, only
    the dot products of clipped gradients with a direction are needed.

    Args:
      setting: The setting, with the clipping norm.
      model: The network.
      split: The clients.
    """
    train = split.train
    mock = split.mock
    norm = jnp.float32(setting.clipping_norm)

    @jax.jit
    def clipped_gradients(theta: Array, features: Array, labels: Array) -> Array:
        """Returns the clipped gradients (n, p) of n examples."""
        raw: Array = jax.vmap(jax.grad(model.loss), (None, 0))(theta, (features, labels))
        factors = scale_to_norm(jnp.sum(raw**2, axis=1), norm)  # (n,) from squared norms; at most 1
        return raw * factors[:, None]

    def mock_updates(theta: Array, members: Indices) -> Array:
        """Returns the clipped gradients (n, p) of mock clients (n,)."""
        features = jnp.asarray(mock.features[members])
        labels = jnp.asarray(mock.labels[members])
        updates: Array = clipped_gradients(theta, features, labels)
        return updates

    @jax.jit
    def compute_dots(theta: Array, features: Array, labels: Array, direction: Array) -> Array:
        """Returns the dot products (n,) of n examples' clipped gradients with a direction (p,)."""

        def dot(example: tuple[Array, Array]) -> Array:
            """Returns the dot product of a single example's clipped gradient with the direction."""
            return clip(jax.grad(model.loss)(theta, example), norm) @ direction

        dots: Array = jax.lax.map(dot, (features, labels), batch_size=_GRADIENTS_AT_ONCE)
        return dots

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        """Returns the dot products (n,) of clients' clipped gradients with a direction (p,)."""
        features = jnp.asarray(train.features[members])
        labels = jnp.asarray(train.labels[members])
        dots: Array = compute_dots(theta, features, labels, direction)
        return dots

    clipped_sum = CLIPPING[TASKS[setting.model].clipping](model)
    mechanism = dpsgd.mechanism(dpsgd.DPSGD(clipped_sum))
    data = (jnp.asarray(train.features), jnp.asarray(train.labels))
    return ClientTraining(
        mechanism,
        own=(),  # DP-SGD has no hyperparameters of its own
        data=data,
        rate=None,  # no local SGD: a client sends its gradient
        train_dots=train_dots,
        mock_updates=mock_updates,
    )


def _train_by_fedavg(setting: Attacked, model: Model, split: Split) -> ClientTraining:
    """Returns how clients with several examples train: by DP-FedAvg.

    A round is a step of DP-FedAvg. A client sends its clipped update by local SGD.

    Args:
      setting: The setting, with the clients' batch size, epochs and learning rate, and the cohort's size.
      model: The network.
      split: The clients.
    """
    # What is compiled in: its shapes are those of the client with the most examples.
    most_examples = int(max(split.train.counts.max(), split.mock.counts.max()))
    choices = fedavg.FedAvg(
        losses_by_example(model),
        model.unravel,
        batch_size=min(setting.batch_size, most_examples),  # at most all of the largest client
        epochs=setting.client_epochs,
        most_examples=most_examples,
    )
    rate = jnp.float32(setting.client_learning_rate)
    own = fedavg.Federated(rate, jnp.float32(setting.cohort))  # hyperparameters of DP-FedAvg alone

    train_data = tuple(jnp.asarray(array) for array in split.train.arrays)
    mock_data = tuple(jnp.asarray(array) for array in split.mock.arrays)
    train_updates = _make_updates(setting, choices, own, train_data)
    mock_updates = _make_updates(setting, choices, own, mock_data)

    def train_dots(theta: Array, members: Indices, direction: Array) -> Array:
        """Returns the dot products (n,) of clients' clipped updates with a direction (p,)."""
        return train_updates(theta, members) @ direction

    return ClientTraining(
        fedavg.mechanism(choices),
        own,
        train_data,
        setting.client_learning_rate,
        train_dots,
        mock_updates,
    )


def _make_trainer(
    setting: Attacked, training: ClientTraining, train_clients: int
) -> Callable[[base.State, int, int], base.State]:
    """Returns a function that plays rounds of the training run, without canaries.

    It is (state, number of the first round, number of rounds) -> the state after these rounds. A round's
    cohort depends on the seed and the round's number alone.

    Args:
      setting: The setting, with the hyperparameters, the seed and the cohort's size.
      training: How clients train.
      train_clients: The number of clients to train on.
    """
    key = root(setting.seed, "noise")  # of what rounds draw, but for their cohorts
    hyper = base.Hyperparameters(
        jnp.float32(setting.learning_rate),
        jnp.float32(setting.clipping_norm),
        jnp.float32(setting.noise_multiplier),
        training.own,
    )

    @jax.jit
    def segment(state: base.State, data: base.Data, schedule: base.Schedule) -> base.State:
        """Plays the rounds of a schedule without canaries, and returns the state after the last."""
        return training.mechanism.segment(hyper, state, data, schedule, base.no_canaries(), key)

    def train(state: base.State, first: int, rounds: int) -> base.State:
        """Returns the state after `rounds` rounds: the first, the next and so on, each with its cohort."""
        cohorts = []
        for number in range(first, first + rounds):
            cohort = draw_clients(setting, f"cohort {number}", train_clients, setting.cohort)
            cohorts.append(cohort)
        batches = jnp.asarray(np.stack(cohorts), jnp.int32)
        schedule = base.Schedule(batches, jnp.zeros(rounds))  # no round inserts a canary
        state_after: base.State = segment(state, training.data, schedule)
        return state_after

    return train


def _make_updates(
    setting: Attacked, choices: fedavg.FedAvg, own: fedavg.Federated, data: base.Data
) -> UpdatesOf:
    """Returns a function (theta (p,), clients (n,)) -> the clipped updates (n, p) that these clients send.

    Clients shuffle their examples before local SGD. A client's shuffles are the same at each call.

    Args:
      setting: The setting, with the clipping norm and the seed.
      choices: What of DP-FedAvg is compiled in.
      own: The hyperparameters that only DP-FedAvg has.
      data: The clients' features, labels, starts and counts.
    """
    norm = jnp.float32(setting.clipping_norm)
    # The key's name has to differ from that of training's key, so that clients shuffle their examples in
    # other orders there.
    key = root(setting.seed, "guess")

    @jax.jit
    def compute_updates(theta: Array, members: Array, data: base.Data) -> Array:
        """Returns the clipped updates (n, p) of clients (n,), computing `choices.block` of them at a time."""

        def compute_update(member: Array) -> Array:
            """Returns a client's clipped update (p,), as the sum over a cohort of this client alone."""
            sums = fedavg.cohort_sums(choices, own, theta, norm, data, member[None], key)
            return sums.updates

        updates: Array = jax.lax.map(compute_update, members, batch_size=choices.block)
        return updates

    def send_updates(theta: Array, members: Indices) -> Array:
        """Returns the clipped updates (n, p) of clients (n,), given by indices of NumPy.

        The data are an argument of the compiled function: it would hold a copy of them otherwise.
        """
        updates: Array = compute_updates(theta, jnp.asarray(members, jnp.int32), data)
        return updates

    return send_updates
