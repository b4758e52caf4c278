"""The models of the repository: a row each, with its data, the hidden-state paper's hyperparameters (Table 2)
and its clients. Importing it starts no JAX."""

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from audit.errors import InputError, require
from audit.task import (
    Clients,
    Convex,
    Data,
    Dataset,
    DataShape,
    Dealing,
    FederatedTask,
    Federation,
    MakeModel,
    Sources,
    StepSeconds,
    Task,
)
from models.data import tables
from models.data.clients import dirichlet, one_each
from models.data.images import CIFAR10, FASHION_MNIST, load_cifar10, load_fashion_mnist, load_shirts
from models.data.shakespeare import load_shakespeare
from models.data.tff import load_emnist, load_stackoverflow

if TYPE_CHECKING:
    from audit.model import Model
    from models.data.images import ImageDataset
    from models.data.sources import Recipe
    from models.pretrained.features import Body


T = TypeVar("T")


class ZooModel(NamedTuple):
    """A model: trained on examples, on clients, or on both; where it is not, why."""

    name: str
    task: Task | None
    federated: FederatedTask | None
    why_not: str = ""


def task(model: str) -> Task:
    """The row of a model that trains on examples; raises InputError, which says why, for any other."""
    return _found(model, TASKS)


def federated_task(model: str) -> FederatedTask:
    """The row of a model that trains on clients; raises InputError, which says why, for any other."""
    return _found(model, FEDERATED_TASKS)


def _found(model: str, rows: dict[str, T]) -> T:
    if model in rows:
        return rows[model]
    reason = f"cannot be trained so: {MODELS[model].why_not}" if model in MODELS else "is unknown"
    raise InputError(f"`model={model}` {reason}: choose one of {', '.join(rows)}")


def _whole(load: Callable[..., Dataset]) -> Callable[[Sources], Dataset]:
    def loaded(sources: Sources) -> Dataset:
        message = "`weights` and `input_size` are for a frozen body: drop them, or name a model with a head"
        require(sources.weights is None and sources.input_size is None, message)
        return load(file=sources.data_file, tfds_dir=sources.tfds_dir)

    return loaded


def _images(load: "Callable[..., ImageDataset]") -> Callable[..., Dataset]:
    def loaded(file: str | None, tfds_dir: str | None) -> Dataset:
        images = load(file=file, tfds_dir=tfds_dir)
        return Dataset(images.train_images, images.train_labels, images.source, images.checksum)

    return loaded


def features_of(body: "Callable[[], Body]") -> Callable[[Sources], Dataset]:
    """The loader of a frozen body's features of CIFAR-10 (hidden-state paper, Remark 2)."""

    def loaded(sources: Sources) -> Dataset:
        from models.pretrained.features import frozen_features

        def images() -> "ImageDataset":
            return load_cifar10(file=sources.data_file, tfds_dir=sources.tfds_dir)

        return frozen_features(body(), images, weights=sources.weights, input_size=sources.input_size)

    return loaded


def _dealt(load: "Callable[..., ImageDataset]") -> Callable[[Dealing, Sources], Federation]:
    def loaded(setting: Dealing, sources: Sources) -> Federation:
        images = load(file=sources.data_file, tfds_dir=sources.tfds_dir)
        whole = Dataset(images.train_images, images.train_labels, images.source, images.checksum)
        some = setting.clients
        dealt = dirichlet(whole, some, setting.alpha, setting.seed) if some else one_each(whole)
        return Federation(dealt, (images.test_images, images.test_labels))

    return loaded


def _shakespeare(setting: Dealing, sources: Sources) -> Federation:
    roles = load_shakespeare(file=sources.data_file, tfds_dir=sources.tfds_dir)
    return Federation(_largest(roles, setting.clients), None)


def _emnist(setting: Dealing, sources: Sources) -> Federation:
    some = setting.clients or None
    whole = load_emnist(file=sources.data_file, clients=some)
    test = load_emnist(file=sources.data_file, clients=some, test=True)
    return Federation(whole, (test.features, test.labels))


def _stackoverflow(setting: Dealing, sources: Sources) -> Federation:
    return Federation(load_stackoverflow(file=sources.data_file, clients=setting.clients or None), None)


def _largest(clients: Clients, number: int) -> Clients:
    """The clients with most examples, as many as asked for; 0: all."""
    if not 0 < number < clients.number:
        return clients
    chosen = np.sort(np.argsort(-clients.counts, kind="stable")[:number])
    counts = clients.counts[chosen]
    features, labels = (np.concatenate(parts) for parts in zip(*map(clients.of, chosen), strict=True))
    return clients._replace(
        features=features, labels=labels, starts=np.cumsum(counts) - counts, counts=counts
    )


def _making(name: str, *, sized: bool = False, **fixed: Any) -> MakeModel:
    """A maker of `module:function`, loaded when called. sized: it takes the number of features first."""

    @cache
    def make(shape: tuple[int, ...]) -> "Model":
        module, _, function = name.partition(":")
        size = {"n_features": shape[0]} if sized else {}
        found: Model = getattr(importlib.import_module(f"models.{module}"), function)(**size, **fixed)
        return found

    return make


_LAYERS = ("unfolded", "per_example")
_NO_IMAGES = "its data are no images, which alone are dealt to clients"


def _data(recipe: "Recipe", label: str, load: Callable[..., Dataset], examples: DataShape) -> Data:
    return Data(recipe.name, label, recipe.checksum, _whole(load), recipe.name, examples)


_PIXELS, _COLOURS = DataShape(60_000, (28, 28), "u1"), DataShape(50_000, (32, 32, 3), "u1")
_HOUSING = _data(tables.HOUSING, "California Housing", tables.load_housing, DataShape(20_640, (8,), "f4"))
_PURCHASE = _data(tables.PURCHASE, "Purchase-100", tables.load_purchase, DataShape(20_000, (600,), "f4"))
_CIFAR10 = _data(CIFAR10, "CIFAR-10", _images(load_cifar10), _COLOURS), load_cifar10
_PRICES = _HOUSING._replace(
    name="california_prices", label="California Housing's prices", load=_whole(tables.load_prices)
)
_SHIRTS = Data(
    "fashion_mnist_shirts",
    "Fashion-MNIST's T-shirts and shirts",
    FASHION_MNIST.checksum,
    _whole(load_shirts),
    FASHION_MNIST.name,
    DataShape(12_000, (784,), "f4"),
)
_SOFTMAX = "the clipped gradient of a softmax of many classes is not that of a convex loss"
_FASHION = _data(FASHION_MNIST, "Fashion-MNIST", _images(load_fashion_mnist), _PIXELS), load_fashion_mnist


def _of_images(
    name: str,
    label: str,
    description: str,
    images: "tuple[Data, Callable[..., ImageDataset]]",
    make: MakeModel,
    step_seconds: StepSeconds,
    federated: str,
    **more: Any,
) -> ZooModel:
    """An over-parameterised model of images in ten classes. images: the data set, and its test's loader."""
    data, load = images
    about = name, label, description, data, make
    row = Task(*about, 10, 0.01, 128, _LAYERS, True, step_seconds, **more)
    bound = partial(make, data.examples.shape)
    return ZooModel(name, row, FederatedTask(federated, _dealt(load), bound, data.file, data.examples))


def _alone(row: Task, why: str = _NO_IMAGES) -> ZooModel:
    return ZooModel(row.name, row, None, why)


def _head(module: str, label: str, constant: str, width: int, step_seconds: StepSeconds) -> ZooModel:
    """The last layer on features of CIFAR-10 by the frozen `constant` of a module of `models.pretrained`."""

    def body() -> "Body":
        found: Body = getattr(importlib.import_module(f"models.pretrained.{module}"), constant)
        return found

    shape = DataShape(_COLOURS.number, (width,), "f4")
    features = Data(f"{module}_features", "CIFAR-10", None, features_of(body), CIFAR10.name, shape)
    name, description = f"{module}_head", f"last layer on a frozen {label}'s features of CIFAR-10"
    make, clipping = _making("dense:head", sized=True), ("book_keeping", "per_example")
    defaults = (10, 0.01, 128, clipping, True, step_seconds)
    return _alone(Task(name, f"{label}'s head", description, features, make, *defaults, not_convex=_SOFTMAX))


_ROWS = (
    _alone(
        Task(
            "fcnn",
            "FCNN",
            "FCNN, 8-6-2 with ReLU, 68 parameters, on California Housing",
            _HOUSING,
            _making("dense:fcnn", sized=True),
            classes=2,
            learning_rate=0.1,
            batch_size=400,
            clipping=("book_keeping", "unfolded", "per_example"),
            over_parameterised=False,
            step_seconds=StepSeconds(8e-7, 7.5e-9),
            canaries=8,
            directions=8,
        )
    ),
    _alone(
        Task(
            "wide_fcnn",
            "wide FCNN",
            "FCNN, 8-64-32-1 with ReLU, 2,689 parameters, on California Housing",
            _HOUSING,
            _making("dense:wide_fcnn", sized=True),
            classes=2,
            learning_rate=0.1,
            batch_size=400,
            clipping=("book_keeping", "unfolded", "per_example"),
            over_parameterised=False,
            step_seconds=StepSeconds(4e-5, 4e-7),
            directions=128,
        )
    ),
    _of_images(
        "convnet",
        "ConvNet",
        "ConvNet, two convolutions and three dense layers, 62,006 parameters, on CIFAR-10",
        _CIFAR10,
        _making("convolutional:convnet"),
        StepSeconds(6e-4, 5e-5),
        "ConvNet on CIFAR-10",
    ),
    _of_images(
        "resnet18",
        "ResNet18",
        "ResNet18 on CIFAR-10",
        _CIFAR10,
        _making("convolutional:resnet18"),
        StepSeconds(0.08, 0.028),
        "ResNet18 on CIFAR-10",
        directions=64,
    ),
    _head("mobilenet", "MobileNetV2", "MOBILENET_V2", 1280, StepSeconds(2e-5, 8e-7)),
    _head("alexnet", "AlexNet", "ALEXNET", 4096, StepSeconds(6e-5, 2.4e-6)),
    _of_images(
        "linear",
        "linear model",
        "linear model, 784-10, 7,850 parameters, on Fashion-MNIST",
        _FASHION,
        _making("dense:linear"),
        StepSeconds(2e-5, 1e-6),
        "784-10 on Fashion-MNIST",
        directions=512,
        not_convex=_SOFTMAX,
    ),
    _of_images(
        "mlp",
        "MLP",
        "MLP, 784-256-256-10 with ReLU, 269,322 parameters, on Fashion-MNIST",
        _FASHION,
        _making("dense:mlp"),
        StepSeconds(5e-4, 3e-5),
        "784-256-256-10 on Fashion-MNIST",
    ),
    _of_images(
        "two_layer",
        "two-layer network",
        "two dense layers, 784-128-10 with ReLU, 101,770 parameters, on Fashion-MNIST",
        _FASHION,
        _making("dense:mlp", widths=(128,)),
        StepSeconds(2e-4, 1e-5),
        "784-128-10 on Fashion-MNIST",
    ),
    _alone(
        Task(
            "purchase_mlp",
            "Purchase MLP",
            "MLP, 600-256-256-100 with ReLU, 245,348 parameters, on Purchase-100",
            _PURCHASE,
            _making("dense:mlp", sized=True, classes=tables.PURCHASE_CLASSES),
            classes=tables.PURCHASE_CLASSES,
            learning_rate=0.05,
            batch_size=100,
            clipping=_LAYERS,
            over_parameterised=True,
            step_seconds=StepSeconds(5e-4, 3e-5),
        )
    ),
    _alone(
        Task(
            "ridge",
            "ridge regression",
            "linear regression of standardised prices, 8 parameters, on California Housing; ridge regression "
            "with weight decay",
            _PRICES,
            _making("dense:least_squares", sized=True),
            classes=0,
            learning_rate=0.1,
            batch_size=400,
            clipping=_LAYERS,
            over_parameterised=False,
            step_seconds=StepSeconds(5e-7, 4e-9),
            canaries=1,
            directions=1,
            convex=Convex(curvature=1.0, norm=1.0),
        )
    ),
    _alone(
        Task(
            "logistic",
            "logistic regression",
            "logistic regression, 784 parameters, on Fashion-MNIST's T-shirts and shirts",
            _SHIRTS,
            _making("dense:logistic", sized=True),
            classes=2,
            learning_rate=0.5,
            batch_size=128,
            clipping=_LAYERS,
            over_parameterised=True,
            step_seconds=StepSeconds(1e-5, 1e-7),
            canaries=64,
            directions=64,
            convex=Convex(curvature=0.25, norm=1.0),
        ),
        "it has two of Fashion-MNIST's classes, and clients are dealt all",
    ),
)
_CLIENTS_ALONE = {
    "lenet": FederatedTask(
        "LeNet on Fashion-MNIST",
        _dealt(load_fashion_mnist),
        partial(_making("convolutional:lenet"), _PIXELS.shape),
        FASHION_MNIST.name,
        _PIXELS,
        by_batch=True,
    ),
    "character_lstm": FederatedTask(
        "two LSTMs on Shakespeare's roles",
        _shakespeare,
        partial(_making("recurrent:character_lstm"), ()),
        "shakespeare",
        DataShape(18_000, (80,), "u1"),
        padding=0,
    ),
    "emnist_cnn": FederatedTask(
        "CNN on EMNIST's writers (--data_file)",
        _emnist,
        partial(_making("convolutional:emnist_cnn"), ()),
        "emnist",
        DataShape(60_000, (28, 28), "f4"),
    ),
    "word_lstm": FederatedTask(
        "LSTM on Stack Overflow's users (--data_file)",
        _stackoverflow,
        partial(_making("recurrent:word_lstm"), ()),
        "stackoverflow",
        DataShape(76_800, (20,), "u2"),
        padding=0,
    ),
}
_WHY = "it trains on clients' examples alone, see ./run.sh federated"
MODELS: dict[str, ZooModel] = {row.name: row for row in _ROWS} | {
    name: ZooModel(name, None, row, _WHY) for name, row in _CLIENTS_ALONE.items()
}
TASKS: dict[str, Task] = {row.name: row.task for row in MODELS.values() if row.task}
FEDERATED_TASKS: dict[str, FederatedTask] = {
    row.name: row.federated for row in MODELS.values() if row.federated
}
