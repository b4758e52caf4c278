"""The models that an audit can choose: a row each, with its data and the hidden-state paper's hyperparameters
(Table 2). Importing it starts no JAX."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from audit.errors import require
from models.data.base import Dataset
from models.data.cifar10 import CIFAR10, load_cifar10
from models.data.fashion_mnist import FASHION_MNIST, load_fashion_mnist
from models.data.housing import HOUSING, load_housing
from models.data.purchase import CLASSES, FEATURES, PURCHASE, load_purchase

if TYPE_CHECKING:
    from models.base import Model
    from models.data.base import ImageDataset
    from models.pretrained.features import Body


class Sources(NamedTuple):
    """The sources that a user names: a data file or a prepared TFDS folder; of a frozen
    body a weights file and the side in pixels to which images are resized."""

    data_file: str | None = None
    tfds_dir: str | None = None
    weights: str | None = None
    input_size: int | None = None


class Data(NamedTuple):
    """A data set as people and programs know it.

    name: of its flag and its cache file. checksum: of the arrays that every source gives; None where they are
    computed, and so not the same to the bit everywhere. file: the data set that `data_file` stands in for.
    """

    name: str
    label: str
    checksum: str | None
    load: Callable[[Sources], Dataset]
    file: str


class MakeModel(Protocol):
    """(shape of an example's features) -> the model."""

    def __call__(self, shape: tuple[int, ...], /) -> "Model": ...


class StepSeconds(NamedTuple):
    """The time of a model-step on two cores of a Xeon, by measurement: whatever the mini-batch, and more for
    each of its examples."""

    fixed: float
    per_example: float

    def of(self, batch_size: int) -> float:
        """At a batch size."""
        return self.fixed + batch_size * self.per_example


class Task(NamedTuple):
    """A model on its data.

    label: on figures. description: for a report. clipping: the strategies that it can take, the fastest
    first. canaries: how many a run `auto` takes, so that they hardly disturb each other (README, "Many
    canaries a run"). over_parameterised: whether genuine gradients leave a crafted coordinate alone, so that
    its score's law is known (Errata H16).
    """

    name: str
    label: str
    description: str
    data: Data
    make: MakeModel
    classes: int
    learning_rate: float
    batch_size: int
    clipping: tuple[str, ...]
    over_parameterised: bool
    step_seconds: StepSeconds
    canaries: int = 256


def _whole(load: Callable[..., Dataset]) -> Callable[[Sources], Dataset]:
    """The loader of a model that has no frozen body."""

    def loaded(sources: Sources) -> Dataset:
        message = "`weights` and `input_size` are for a frozen body: drop them, or name a model with a head"
        require(sources.weights is None and sources.input_size is None, message)
        return load(file=sources.data_file, tfds_dir=sources.tfds_dir)

    return loaded


def _images(load: "Callable[..., ImageDataset]") -> Callable[..., Dataset]:
    """The loader of a data set's training images as bytes; the model normalises them."""

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


def _mobilenet() -> "Body":
    from models.pretrained.mobilenet import MOBILENET_V2

    return MOBILENET_V2


def _alexnet() -> "Body":
    from models.pretrained.alexnet import ALEXNET

    return ALEXNET


@cache
def _fcnn(shape: tuple[int, ...]) -> "Model":
    from models.fcnn import fcnn

    return fcnn(*shape)


@cache
def _convnet(shape: tuple[int, ...]) -> "Model":
    from models.convnet import convnet

    return convnet()


@cache
def _resnet18(shape: tuple[int, ...]) -> "Model":
    from models.resnet import resnet18

    return resnet18()


@cache
def _head(shape: tuple[int, ...]) -> "Model":
    from models.head import head

    return head(*shape)


@cache
def _linear(shape: tuple[int, ...]) -> "Model":
    from models.linear import linear

    return linear()


@cache
def _mlp(shape: tuple[int, ...]) -> "Model":
    from models.mlp import mlp

    return mlp()


@cache
def _two_layer(shape: tuple[int, ...]) -> "Model":
    from models.mlp import mlp

    return mlp(widths=(128,))


@cache
def _purchase_mlp(shape: tuple[int, ...]) -> "Model":
    from models.mlp import mlp

    (n_features,) = shape
    return mlp(n_features, classes=CLASSES)


_HOUSING = Data(HOUSING.name, "California Housing", HOUSING.checksum, _whole(load_housing), HOUSING.name)
_CIFAR10 = Data(CIFAR10.name, "CIFAR-10", CIFAR10.checksum, _whole(_images(load_cifar10)), CIFAR10.name)
_MOBILENET = Data("mobilenet_features", "CIFAR-10", None, features_of(_mobilenet), CIFAR10.name)
_ALEXNET = Data("alexnet_features", "CIFAR-10", None, features_of(_alexnet), CIFAR10.name)

_FASHION = Data(
    FASHION_MNIST.name,
    "Fashion-MNIST",
    FASHION_MNIST.checksum,
    _whole(_images(load_fashion_mnist)),
    FASHION_MNIST.name,
)

_PURCHASE = Data(PURCHASE.name, "Purchase-100", PURCHASE.checksum, _whole(load_purchase), PURCHASE.name)

_DENSE = ("book_keeping", "per_example")
_LAYERS = ("unfolded", "per_example")


def _of_ten_classes(
    name: str,
    label: str,
    description: str,
    data: Data,
    make: MakeModel,
    clipping: tuple[str, ...],
    step_seconds: StepSeconds,
) -> Task:
    """An over-parameterised model of images, with the paper's hyperparameters."""
    return Task(name, label, description, data, make, 10, 0.01, 128, clipping, True, step_seconds)


_ROWS = (
    Task(
        "fcnn",
        "FCNN",
        "FCNN, 8-6-2 with ReLU, 68 parameters, on California Housing",
        _HOUSING,
        _fcnn,
        classes=2,
        learning_rate=0.1,
        batch_size=400,
        clipping=("book_keeping", "unfolded", "per_example"),
        over_parameterised=False,
        step_seconds=StepSeconds(8e-7, 7.5e-9),
        canaries=8,
    ),
    _of_ten_classes(
        "convnet",
        "ConvNet",
        "ConvNet, two convolutions and three dense layers, 62,006 parameters, on CIFAR-10",
        _CIFAR10,
        _convnet,
        _LAYERS,
        StepSeconds(6e-4, 5e-5),
    ),
    _of_ten_classes(
        "resnet18", "ResNet18", "ResNet18 on CIFAR-10", _CIFAR10, _resnet18, _LAYERS, StepSeconds(0.08, 0.028)
    ),
    _of_ten_classes(
        "mobilenet_head",
        "MobileNetV2's head",
        "last layer on a frozen MobileNetV2's features of CIFAR-10",
        _MOBILENET,
        _head,
        _DENSE,
        StepSeconds(2e-5, 8e-7),
    ),
    _of_ten_classes(
        "alexnet_head",
        "AlexNet's head",
        "last layer on a frozen AlexNet's features of CIFAR-10",
        _ALEXNET,
        _head,
        _DENSE,
        StepSeconds(6e-5, 2.4e-6),
    ),
    _of_ten_classes(
        "linear",
        "linear model",
        "linear model, 784-10, 7,850 parameters, on Fashion-MNIST",
        _FASHION,
        _linear,
        _LAYERS,
        StepSeconds(2e-5, 1e-6),
    ),
    _of_ten_classes(
        "mlp",
        "MLP",
        "MLP, 784-256-256-10 with ReLU, 269,322 parameters, on Fashion-MNIST",
        _FASHION,
        _mlp,
        _LAYERS,
        StepSeconds(5e-4, 3e-5),
    ),
    _of_ten_classes(
        "two_layer",
        "two-layer network",
        "two dense layers, 784-128-10 with ReLU, 101,770 parameters, on Fashion-MNIST",
        _FASHION,
        _two_layer,
        _LAYERS,
        StepSeconds(2e-4, 1e-5),
    ),
    Task(
        "purchase_mlp",
        "Purchase MLP",
        f"MLP, {FEATURES}-256-256-{CLASSES} with ReLU, 245,348 parameters, on Purchase-100",
        _PURCHASE,
        _purchase_mlp,
        classes=CLASSES,
        learning_rate=0.05,
        batch_size=100,
        clipping=_LAYERS,
        over_parameterised=True,
        step_seconds=StepSeconds(5e-4, 3e-5),
    ),
)
TASKS: dict[str, Task] = {row.name: row for row in _ROWS}


def task(model: str) -> Task:
    """A model's row; raises InputError for a model that has none."""
    require(model in TASKS, f"`model={model}` is unknown: choose one of {', '.join(TASKS)}")
    return TASKS[model]
