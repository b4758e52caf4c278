"""The models that a federated audit can choose: a row each, with its clients and the one-shot paper's
hyperparameters where it gives some. Importing it starts no JAX."""

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from audit.errors import require
from experiments.settings.tasks import Sources, task
from models.data import clients
from models.data.clients import Clients
from models.data.emnist import load_emnist
from models.data.shakespeare import load_shakespeare
from models.data.stackoverflow import load_stackoverflow

if TYPE_CHECKING:
    from models.base import Model


class Deal(NamedTuple):
    """How a classification data set is dealt to clients: to so many, by Dirichlet(alpha), with a seed. Data
    whose examples have owners are not dealt: `clients` then is how many of them are read, None for all."""

    clients: int | None = None
    alpha: float = 1.0
    seed: int = 0


class Federation(NamedTuple):
    """A model on clients' data.

    label: on figures. description: for a report. load: the clients, of the named sources and as dealt.
    by_batch: whether the module takes a mini-batch at once (`models.base.losses_of_batch`), and is faster so.
    rates and sizes: of a client's SGD and the server's; cohort is the mean number of clients a round.
    """

    name: str
    label: str
    description: str
    load: Callable[[Sources, Deal], Clients]
    make: "Callable[[], Model]"
    by_batch: bool
    client_learning_rate: float
    server_learning_rate: float
    server_momentum: float
    batch_size: int
    epochs: int
    cohort: int

    def delta(self, population: int) -> float:
        """The one-shot paper's rule for m clients: m^-1.1."""
        return math.pow(population, -1.1)


@cache
def _lenet() -> "Model":
    from models.lenet import lenet

    return lenet()


@cache
def _convnet() -> "Model":
    from models.convnet import convnet

    return convnet()


@cache
def _emnist_cnn() -> "Model":
    from models.emnist_cnn import emnist_cnn

    return emnist_cnn()


@cache
def _digits_cnn() -> "Model":
    from models.data.emnist import DIGITS
    from models.emnist_cnn import emnist_cnn

    return emnist_cnn(DIGITS)


@cache
def _word_lstm() -> "Model":
    from models.recurrent import word_lstm

    return word_lstm()


@cache
def _character_lstm() -> "Model":
    from models.recurrent import character_lstm

    return character_lstm()


def _dealt(model: str, most: int) -> Callable[[Sources, Deal], Clients]:
    """The training examples of a task's data set, dealt to `most` clients where the deal names no number."""

    def load(sources: Sources, deal: Deal) -> Clients:
        number = most if deal.clients is None else deal.clients
        return clients.dirichlet(task(model).data.load(sources), number, deal.alpha, deal.seed)

    return load


def _owned(load: Callable[..., Clients], **choices: Any) -> Callable[[Sources, Deal], Clients]:
    """Data whose examples have owners, of which only a file can be named."""

    def loaded(sources: Sources, deal: Deal) -> Clients:
        named = sources.tfds_dir is None
        require(named, "`tfds_dir` holds no examples by client: name a file with `data_file`")
        return load(file=sources.data_file, clients=deal.clients, **choices)

    return loaded


def _shakespeare(sources: Sources, deal: Deal) -> Clients:
    """All roles."""
    message = f"`clients={deal.clients}`: Shakespeare's roles are taken whole; leave it out"
    require(deal.clients is None, message)
    return load_shakespeare(file=sources.data_file, tfds_dir=sources.tfds_dir)


_ROWS = (
    Federation(
        "fashion_mnist",
        "LeNet",
        "LeNet-5 with ReLU, 44,426 parameters, on Fashion-MNIST's images dealt to clients",
        _dealt("linear", 1000),
        _lenet,
        by_batch=True,
        client_learning_rate=0.05,
        server_learning_rate=1.0,
        server_momentum=0.9,
        batch_size=16,
        epochs=1,
        cohort=50,
    ),
    Federation(
        "cifar10",
        "ConvNet",
        "ConvNet, 62,006 parameters, on CIFAR-10's images dealt to clients",
        _dealt("convnet", 500),
        _convnet,
        by_batch=False,
        client_learning_rate=0.05,
        server_learning_rate=1.0,
        server_momentum=0.9,
        batch_size=16,
        epochs=1,
        cohort=25,
    ),
    Federation(
        "shakespeare",
        "character LSTM",
        "two LSTMs of 256, 820,522 parameters, on what Shakespeare's roles say",
        _shakespeare,
        _character_lstm,
        by_batch=False,
        client_learning_rate=1.0,
        server_learning_rate=1.0,
        server_momentum=0.9,
        batch_size=4,
        epochs=1,
        cohort=10,
    ),
    Federation(
        "emnist",
        "EMNIST's CNN",
        "convolutional network, 1,206,590 parameters, on EMNIST's characters by writer",
        _owned(load_emnist),
        _emnist_cnn,
        by_batch=False,
        client_learning_rate=0.031,
        server_learning_rate=1.0,
        server_momentum=0.9,
        batch_size=16,
        epochs=1,
        cohort=34,
    ),
    Federation(
        "emnist_digits",
        "EMNIST's CNN, digits",
        "convolutional network, 1,199,882 parameters, on EMNIST's digits by writer",
        _owned(load_emnist, only_digits=True),
        _digits_cnn,
        by_batch=False,
        client_learning_rate=0.031,
        server_learning_rate=1.0,
        server_momentum=0.9,
        batch_size=16,
        epochs=1,
        cohort=34,
    ),
    Federation(
        "stackoverflow",
        "word LSTM",
        "LSTM of 670, 4,050,748 parameters, on Stack Overflow's sentences by user",
        _owned(load_stackoverflow),
        _word_lstm,
        by_batch=False,
        client_learning_rate=1.0,
        server_learning_rate=0.56,
        server_momentum=0.9,
        batch_size=16,
        epochs=1,
        cohort=167,
    ),
)
FEDERATIONS: dict[str, Federation] = {row.name: row for row in _ROWS}


def federation(name: str) -> Federation:
    """A row; raises InputError for a name that has none."""
    require(name in FEDERATIONS, f"`federation={name}` is unknown: choose one of {', '.join(FEDERATIONS)}")
    return FEDERATIONS[name]
