"""The models of the repository, a row each: its data, its hyperparameters and its clients.

The hyperparameters are the hidden-state paper's (Table 2). Importing this module starts no JAX.
"""

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from audit.errors import InputError, require
from audit.tasks.task import (
    Clients,
    Convex,
    Curved,
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
from models.data.clients import dirichlet, one_each, select
from models.data.images import (
    CIFAR10,
    FASHION_MNIST,
    ImageDataset,
    load_cifar10,
    load_fashion_mnist,
    load_shirts,
)
from models.data.shakespeare import load_shakespeare
from models.data.sources import Recipe
from models.data.tff import load_emnist, load_stackoverflow

if TYPE_CHECKING:
    from audit.tasks.model import Model
    from models.pretrained.features import Body


Row = TypeVar("Row", Task, FederatedTask)
LoadImages = Callable[..., ImageDataset]


class ZooModel(NamedTuple):
    """A model and what it can be trained on.

    Attributes:
      name: the model's name, as users spell it.
      task: the task of training it on examples; None where there is none.
      federated: the task of training it on clients; None where there is none.
      why_not: the reason why one of the two is missing; empty where neither is.
    """

    name: str
    task: Task | None
    federated: FederatedTask | None
    why_not: str = ""


class Images(NamedTuple):
    """A data set of images, for training on examples and on clients.

    Attributes:
      data: the row for tasks that train on examples.
      load: a function (file, tfds_dir) -> training and test images.
    """

    data: Data
    load: LoadImages


def task(model: str) -> Task:
    """Returns the task of a model that trains on examples; raises InputError, which says why, for others."""
    return _find_row(model, TASKS)


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a model that trains on clients; raises InputError, with a reason, for any other."""
    return _find_row(model, FEDERATED_TASKS)


def _find_row(model: str, rows: dict[str, Row]) -> Row:
    """Returns a model's task, of one kind: of training on examples, or of training on clients.

    Args:
      model: the model's name.
      rows: all tasks of that kind, by the name of their model.

    Raises:
      InputError: there is no such task. The message says whether the model is unknown or has a task of the
        other kind alone.
    """
    if model in rows:
        return rows[model]
    reason = "is unknown"
    if model in MODELS:
        reason = f"cannot be trained so: {MODELS[model].why_not}"
    raise InputError(f"`model={model}` {reason}: choose one of {', '.join(rows)}")


def _make_loader(load: Callable[..., Dataset]) -> Callable[[Sources], Dataset]:
    """Makes the function by which a task loads its data set from a user's sources.

    It raises InputError where the sources have `weights` or `input_size`, which are for frozen bodies alone.

    Args:
      load: a function of `file`, the user's data file, and `tfds_dir`, a folder that TensorFlow Datasets
        prepared, to the data set. Both are None for the data set as published.
    """

    def load_from(sources: Sources) -> Dataset:
        """Loads the data set from a user's sources, after checks."""
        message = "`weights` and `input_size` are for a frozen body: drop them, or name a model with a head"
        require(sources.weights is None and sources.input_size is None, message)
        return load(file=sources.data_file, tfds_dir=sources.tfds_dir)

    return load_from


def _make_image_loader(load: LoadImages) -> Callable[[Sources], Dataset]:
    """Makes the function by which a task loads the training images of a data set.

    Args:
      load: a function of `file`, the user's data file, and `tfds_dir`, a folder that TensorFlow Datasets
        prepared, to training and test images. Both are None for the data set as published.
    """

    def load_training_images(file: str | None, tfds_dir: str | None) -> Dataset:
        """Loads all images and returns the training images."""
        return _take_training_images(load(file=file, tfds_dir=tfds_dir))

    return _make_loader(load_training_images)


def _take_training_images(images: ImageDataset) -> Dataset:
    """Returns the training images as examples."""
    return Dataset(images.train_images, images.train_labels, images.source, images.checksum)


def make_feature_loader(make_body: "Callable[[], Body]") -> Callable[[Sources], Dataset]:
    """Makes a task's loader of the features that a frozen body computes from CIFAR-10's images.

    It is for the training of a last layer alone (hidden-state paper, Remark 2).

    Args:
      make_body: returns the frozen body; called when the features are loaded.
    """

    def load_features(sources: Sources) -> Dataset:
        """Loads CIFAR-10's images and the body's weights from the sources; returns the images' features."""
        # Imported only here, since it starts JAX, which listing the models does not need.
        from models.pretrained.features import frozen_features

        def load_images() -> ImageDataset:
            """Loads the images, once `frozen_features` has checked the size and the weights."""
            return load_cifar10(file=sources.data_file, tfds_dir=sources.tfds_dir)

        return frozen_features(
            make_body(),
            load_images,
            weights=sources.weights,
            input_size=sources.input_size,
        )

    return load_features


def _make_dealer(load: LoadImages) -> Callable[[Dealing, Sources], Federation]:
    """Makes the function by which a federated task loads images and deals them to clients.

    The training images are dealt; the test images serve as the federation's test.

    Args:
      load: a function of `file`, the user's data file, and `tfds_dir`, a folder that TensorFlow Datasets
        prepared, to training and test images. Both are None for the data set as published.
    """

    def load_and_deal(setting: Dealing, sources: Sources) -> Federation:
        """Loads the images, and deals the training images unevenly to `setting.clients` clients.

        A class's images are divided by proportions from a Dirichlet(alpha) law: the smaller `setting.alpha`,
        the fewer clients get most of a class.
        """
        images = load(file=sources.data_file, tfds_dir=sources.tfds_dir)
        dataset = _take_training_images(images)
        # 0 clients means that every example is a client of its own.
        if setting.clients:
            clients = dirichlet(dataset, setting.clients, setting.alpha, setting.seed)
        else:
            clients = one_each(dataset)
        return Federation(clients, (images.test_images, images.test_labels))

    return load_and_deal


def _load_shakespeare_roles(setting: Dealing, sources: Sources) -> Federation:
    """Loads Shakespeare's roles as clients: the `setting.clients` roles that say most, or all if it is 0.

    There are no test examples.
    """
    roles = load_shakespeare(file=sources.data_file, tfds_dir=sources.tfds_dir)
    return Federation(_select_largest(roles, setting.clients), None)


def _load_emnist_writers(setting: Dealing, sources: Sources) -> Federation:
    """Loads EMNIST's writers as clients, and their test examples.

    They are the first `setting.clients` writers in the order of their names, or all if it is 0.
    """
    number = setting.clients or None
    clients = load_emnist(file=sources.data_file, clients=number)
    test = load_emnist(file=sources.data_file, clients=number, test=True)
    return Federation(clients, (test.features, test.labels))


def _load_stackoverflow_users(setting: Dealing, sources: Sources) -> Federation:
    """Loads Stack Overflow's users as clients, without test examples.

    They are the first `setting.clients` users in the order of their names, or all if it is 0.
    """
    number = setting.clients or None
    return Federation(load_stackoverflow(file=sources.data_file, clients=number), None)


def _select_largest(clients: Clients, number: int) -> Clients:
    """Selects the `number` clients with the most examples; selects all for 0, or if there are no more."""
    if not 0 < number < clients.number:
        return clients
    by_size = np.argsort(-clients.counts, kind="stable")  # equal ones stay in order
    return select(clients, by_size[:number])


def _make_lazily(name: str, *, sized: bool = False, **fixed: Any) -> MakeModel:
    """Returns a function that makes a model, and imports the model's module only when it is called.

    Args:
      name: "module:function" within `models`.
      sized: whether the function takes the number of an example's features, `n_features`. If so, an example
        is a vector.
      fixed: the function's other arguments.

    Returns:
      make(shape of an example) -> the model, made once for each shape.
    """
    module_name, _, function_name = name.partition(":")

    @cache
    def make(shape: tuple[int, ...]) -> "Model":
        """Imports the model's module and makes the model for examples of this shape.

        A function that takes the number of features gets it as `n_features`, from the shape (n_features,).
        """
        module = importlib.import_module(f"models.{module_name}")
        function = getattr(module, function_name)
        arguments = dict(fixed)
        if sized:
            arguments["n_features"] = shape[0]
        model: Model = function(**arguments)
        return model

    return make


def _make_data(
    recipe: Recipe,
    label: str,
    load: Callable[[Sources], Dataset],
    examples: DataShape,
) -> Data:
    """Returns the description, for tasks, of a data set that is used just as it is fetched.

    Its name and checksum are the recipe's. Under that name a user's file may replace it.

    Args:
      recipe: the recipe that fetches the data set.
      label: the data set's name for people.
      load: a function from a user's sources to the data set.
      examples: the number, shape and type of its examples.
    """
    return Data(
        name=recipe.name,
        label=label,
        checksum=recipe.checksum,
        load=load,
        file=recipe.name,
        examples=examples,
    )


_NO_IMAGES = "its data are no images, which alone are dealt to clients"
_SOFTMAX = "the clipped gradient of a softmax of many classes is not that of a convex loss"

_SMOOTH = "a smooth network's constants are measured, by `lipschitz=measured`, not proven"

# The Hessian of softmax cross entropy in the logits is at most 1/2, its gradient at most sqrt(2) long, and
# features have a squared norm of 1/2.
_SOFTMAX_CURVATURE = Curved(
    largest_negative=0.0,
    largest_positive=0.25,
    largest_gradient=1.0,
    reason="softmax without clipping, on features that the model shortens",
)
# The logit is sum_j +-tanh(w_j . x) / sqrt(h), with h = 64 and |x| <= 1. The second derivative of tanh is at
# most 0.77, so the logit's Hessian is at most 0.77 / sqrt(h); the logit's gradient is at most 1 long. The
# logistic loss, as a function of the logit, has slope at most 1 and second derivative in [0, 1/4].
_TWO_LAYER_LEAST = 0.7699 / 64**0.5
_TWO_LAYER_CURVATURE = Curved(
    largest_negative=_TWO_LAYER_LEAST,
    largest_positive=0.25 + _TWO_LAYER_LEAST,
    largest_gradient=1.0,
    reason="two layers, the second fixed, any data with |x| <= 1",
)

_HOUSING = _make_data(
    tables.HOUSING,
    "California Housing",
    _make_loader(tables.load_housing),
    DataShape(20_640, (8,), "f4"),
)
_PRICES = _HOUSING._replace(
    name="california_prices",
    label="California Housing's prices",
    load=_make_loader(tables.load_prices),
)
_PURCHASE = _make_data(
    tables.PURCHASE,
    "Purchase-100",
    _make_loader(tables.load_purchase),
    DataShape(20_000, (600,), "f4"),
)
_CIFAR10_SHAPE = DataShape(50_000, (32, 32, 3), "u1")
_CIFAR10 = Images(
    _make_data(CIFAR10, "CIFAR-10", _make_image_loader(load_cifar10), _CIFAR10_SHAPE),
    load_cifar10,
)
_FASHION_MNIST_SHAPE = DataShape(60_000, (28, 28), "u1")
_FASHION_MNIST = Images(
    _make_data(
        FASHION_MNIST,
        "Fashion-MNIST",
        _make_image_loader(load_fashion_mnist),
        _FASHION_MNIST_SHAPE,
    ),
    load_fashion_mnist,
)
_SHIRTS = Data(
    name="fashion_mnist_shirts",
    label="Fashion-MNIST's T-shirts and shirts",
    checksum=FASHION_MNIST.checksum,
    load=_make_loader(load_shirts),
    file=FASHION_MNIST.name,
    examples=DataShape(12_000, (784,), "f4"),
)


def _make_image_row(
    *,
    name: str,
    label: str,
    description: str,
    images: Images,
    make: MakeModel,
    step_seconds: StepSeconds,
    federated_description: str,
    **more: Any,
) -> ZooModel:
    """Returns the catalogue's row of an over-parameterised model that sorts images into ten classes.

    It can be trained on examples, and on clients to which the training images are dealt.

    Args:
      name: the model's name.
      label: the model's name for people.
      description: the description of the training on examples, for a report.
      images: the data set.
      make: (shape of an example) -> the model.
      step_seconds: the seconds of a model-step.
      federated_description: the description of the training on clients, for a report.
      more: further fields of the `Task`.
    """
    data = images.data
    row = Task(
        name=name,
        label=label,
        description=description,
        data=data,
        make=make,
        classes=10,
        # The defaults, where a user sets neither.
        learning_rate=0.01,
        batch_size=128,
        clipping="unfolded",
        over_parameterised=True,
        step_seconds=step_seconds,
        **more,
    )
    federated = FederatedTask(
        description=federated_description,
        load=_make_dealer(images.load),
        make=partial(make, data.examples.shape),
        file=data.file,
        examples=data.examples,
    )
    return ZooModel(name, row, federated)


def _make_central_row(row: Task, why_not: str = _NO_IMAGES) -> ZooModel:
    """Returns the row of a model that trains on examples but not on clients, for the reason `why_not`."""
    return ZooModel(row.name, row, None, why_not)


def _make_housing_row(*, name: str, **more: Any) -> ZooModel:
    """Returns the catalogue's row of a network that classifies the blocks of California Housing.

    The two classes are prices above the median price and all others. A function of `models.dense` makes the
    network.

    Args:
      name: the model's name, and that of the function in `models.dense`.
      more: further fields of the `Task`.
    """
    row = Task(
        name=name,
        data=_HOUSING,
        make=_make_lazily(f"dense:{name}", sized=True),
        classes=2,
        # The defaults, where a user sets neither.
        learning_rate=0.1,
        batch_size=400,
        clipping="book_keeping",
        over_parameterised=False,
        **more,
    )
    return _make_central_row(row)


def _make_federated_row(name: str, row: FederatedTask) -> ZooModel:
    """Returns the row of a model that trains on clients but not on single examples."""
    return ZooModel(name, None, row, "it trains on clients' examples alone, see ./run.sh federated")


class _FrozenBody(NamedTuple):
    """A pretrained network without its last layer, which turns CIFAR-10's images into features.

    Attributes:
      module: the name of its module in `models.pretrained`.
      constant: the name of its `Body` in that module.
      label: its name on figures.
      width: the number of its features.
      step_seconds: the seconds of a step of the last layer's training, as in `Task`.
    """

    module: str
    constant: str
    label: str
    width: int
    step_seconds: StepSeconds


_MOBILENET = _FrozenBody("mobilenet", "MOBILENET_V2", "MobileNetV2", 1280, StepSeconds(2e-5, 8e-7))
_ALEXNET = _FrozenBody("alexnet", "ALEXNET", "AlexNet", 4096, StepSeconds(6e-5, 2.4e-6))


def _make_head_row(body: _FrozenBody, shortens: bool = False) -> ZooModel:
    """Returns the catalogue's row of a last layer that is trained on a frozen body's features of CIFAR-10.

    Args:
      body: the frozen body.
      shortens: whether the layer shortens long features, so that its loss has proven limits on its curvature
        (`dense.softmax_head`); else it is a plain dense layer, without such limits (`dense.head`).
    """

    def import_body() -> "Body":
        """Imports the body's module, which takes time, only when features are loaded."""
        module = importlib.import_module(f"models.pretrained.{body.module}")
        imported: Body = getattr(module, body.constant)
        return imported

    features = Data(
        name=f"{body.module}_features",
        label="CIFAR-10",
        checksum=None,  # computed features differ in their last bits between machines
        load=make_feature_loader(import_body),
        file=CIFAR10.name,
        examples=DataShape(_CIFAR10_SHAPE.number, (body.width,), "f4"),
    )
    head = "softmax_head" if shortens else "head"
    # Book-keeping is the fastest strategy. It applies the layer to a whole batch at once, so that shortening
    # would mix the examples' norms.
    clipping = "unfolded" if shortens else "book_keeping"
    row = Task(
        name=f"{body.module}_{head}",
        label=f"{body.label}'s softmax head" if shortens else f"{body.label}'s head",
        description=f"last layer on a frozen {body.label}'s features of CIFAR-10",
        data=features,
        make=_make_lazily(f"dense:{head}", sized=True),
        classes=10,
        # The defaults, where a user sets neither.
        learning_rate=0.01,
        batch_size=128,
        clipping=clipping,
        over_parameterised=True,
        step_seconds=body.step_seconds,
        not_convex=_SOFTMAX,
        curved=_SOFTMAX_CURVATURE if shortens else None,
        smooth=True,
    )
    return _make_central_row(row)


_ROWS = (
    _make_housing_row(
        name="fcnn",
        label="FCNN",
        description="FCNN, 8-6-2 with ReLU, 68 parameters, on California Housing",
        step_seconds=StepSeconds(8e-7, 7.5e-9),
        canaries=8,
        directions=8,
    ),
    _make_housing_row(
        name="tanh_fcnn",
        label="tanh FCNN",
        description="FCNN, 8-6-2 with tanh, 68 parameters, on California Housing",
        step_seconds=StepSeconds(8e-7, 1.5e-8),
        canaries=8,
        directions=8,
        not_convex=_SMOOTH,
        smooth=True,
    ),
    _make_housing_row(
        name="gelu_fcnn",
        label="GELU FCNN",
        description="FCNN, 8-6-2 with GELU, 68 parameters, on California Housing",
        step_seconds=StepSeconds(8e-7, 1.5e-8),
        canaries=8,
        directions=8,
        not_convex=_SMOOTH,
        smooth=True,
    ),
    _make_housing_row(
        name="wide_fcnn",
        label="wide FCNN",
        description="FCNN, 8-64-32-1 with ReLU, 2,689 parameters, on California Housing",
        step_seconds=StepSeconds(4e-5, 4e-7),
        directions=128,
    ),
    _make_image_row(
        name="convnet",
        label="ConvNet",
        description="ConvNet, two convolutions and three dense layers, 62,006 parameters, on CIFAR-10",
        images=_CIFAR10,
        make=_make_lazily("convolutional:convnet"),
        step_seconds=StepSeconds(6e-4, 5e-5),
        federated_description="ConvNet on CIFAR-10",
    ),
    _make_image_row(
        name="gelu_convnet",
        label="GELU ConvNet",
        description=(
            "ConvNet, two convolutions with average pooling and three dense layers, GELU, "
            "62,006 parameters, on CIFAR-10"
        ),
        images=_CIFAR10,
        make=_make_lazily("convolutional:gelu_convnet"),
        step_seconds=StepSeconds(6e-4, 8e-5),
        federated_description="GELU ConvNet on CIFAR-10",
        not_convex=_SMOOTH,
        smooth=True,
    ),
    _make_image_row(
        name="resnet18",
        label="ResNet18",
        description="ResNet18 on CIFAR-10",
        images=_CIFAR10,
        make=_make_lazily("convolutional:resnet18"),
        step_seconds=StepSeconds(0.08, 0.028),
        federated_description="ResNet18 on CIFAR-10",
        directions=64,
    ),
    _make_head_row(_MOBILENET),
    _make_head_row(_ALEXNET),
    _make_head_row(_MOBILENET, shortens=True),
    _make_head_row(_ALEXNET, shortens=True),
    _make_image_row(
        name="linear",
        label="linear model",
        description="linear model, 784-10, 7,850 parameters, on Fashion-MNIST",
        images=_FASHION_MNIST,
        make=_make_lazily("dense:linear"),
        step_seconds=StepSeconds(2e-5, 1e-6),
        federated_description="784-10 on Fashion-MNIST",
        directions=512,
        not_convex=_SOFTMAX,
        smooth=True,
    ),
    _make_image_row(
        name="mlp",
        label="MLP",
        description="MLP, 784-256-256-10 with ReLU, 269,322 parameters, on Fashion-MNIST",
        images=_FASHION_MNIST,
        make=_make_lazily("dense:mlp"),
        step_seconds=StepSeconds(5e-4, 3e-5),
        federated_description="784-256-256-10 on Fashion-MNIST",
    ),
    _make_image_row(
        name="two_layer",
        label="two-layer network",
        description="two dense layers, 784-128-10 with ReLU, 101,770 parameters, on Fashion-MNIST",
        images=_FASHION_MNIST,
        make=_make_lazily("dense:mlp", widths=(128,)),
        step_seconds=StepSeconds(2e-4, 1e-5),
        federated_description="784-128-10 on Fashion-MNIST",
    ),
    _make_central_row(
        Task(
            name="purchase_mlp",
            label="Purchase MLP",
            description="MLP, 600-256-256-100 with ReLU, 245,348 parameters, on Purchase-100",
            data=_PURCHASE,
            make=_make_lazily("dense:mlp", sized=True, classes=tables.PURCHASE_CLASSES),
            classes=tables.PURCHASE_CLASSES,
            learning_rate=0.05,
            batch_size=100,
            clipping="unfolded",
            over_parameterised=True,
            step_seconds=StepSeconds(5e-4, 3e-5),
        )
    ),
    _make_central_row(
        Task(
            name="two_layer_tanh",
            label="two-layer tanh network",
            description="two layers of 64 tanh units, the second fixed, on California Housing",
            data=_HOUSING,
            make=_make_lazily("dense:two_layer_tanh", sized=True),
            classes=2,
            learning_rate=0.1,
            batch_size=400,
            clipping="unfolded",
            over_parameterised=False,
            step_seconds=StepSeconds(1e-5, 1e-7),
            canaries=8,
            directions=64,
            curved=_TWO_LAYER_CURVATURE,
            smooth=True,
        )
    ),
    _make_central_row(
        Task(
            name="ridge",
            label="ridge regression",
            description=(
                "linear regression of standardised prices, 8 parameters, on California Housing; "
                "ridge regression with weight decay"
            ),
            data=_PRICES,
            make=_make_lazily("dense:least_squares", sized=True),
            classes=0,
            learning_rate=0.1,
            batch_size=400,
            clipping="unfolded",
            over_parameterised=False,
            step_seconds=StepSeconds(5e-7, 4e-9),
            canaries=1,
            directions=1,
            convex=Convex(curvature=1.0, norm=1.0),
        )
    ),
    _make_central_row(
        Task(
            name="logistic",
            label="logistic regression",
            description="logistic regression, 784 parameters, on Fashion-MNIST's T-shirts and shirts",
            data=_SHIRTS,
            make=_make_lazily("dense:logistic", sized=True),
            classes=2,
            learning_rate=0.5,
            batch_size=128,
            clipping="unfolded",
            over_parameterised=True,
            step_seconds=StepSeconds(1e-5, 1e-7),
            canaries=64,
            directions=64,
            convex=Convex(curvature=0.25, norm=1.0),
        ),
        "it has two of Fashion-MNIST's classes, and clients are dealt all",
    ),
    _make_federated_row(
        "lenet",
        FederatedTask(
            description="LeNet on Fashion-MNIST",
            load=_make_dealer(load_fashion_mnist),
            make=partial(_make_lazily("convolutional:lenet"), _FASHION_MNIST_SHAPE.shape),
            file=FASHION_MNIST.name,
            examples=_FASHION_MNIST_SHAPE,
            by_batch=True,
        ),
    ),
    _make_federated_row(
        "character_lstm",
        FederatedTask(
            description="two LSTMs on Shakespeare's roles",
            load=_load_shakespeare_roles,
            make=partial(_make_lazily("recurrent:character_lstm"), ()),
            file="shakespeare",
            # The number depends on the clients; this one is typical of 600, for which
            # `experiments.engine.ahead` compiles. Nothing else reads it.
            examples=DataShape(18_000, (80,), "u1"),
            padding=0,
        ),
    ),
    _make_federated_row(
        "emnist_cnn",
        FederatedTask(
            description="CNN on EMNIST's writers (--data_file)",
            load=_load_emnist_writers,
            make=partial(_make_lazily("convolutional:emnist_cnn"), ()),
            file="emnist",
            # For 600 clients, as above.
            examples=DataShape(60_000, (28, 28), "f4"),
        ),
    ),
    _make_federated_row(
        "word_lstm",
        FederatedTask(
            description="LSTM on Stack Overflow's users (--data_file)",
            load=_load_stackoverflow_users,
            make=partial(_make_lazily("recurrent:word_lstm"), ()),
            file="stackoverflow",
            # For 600 clients, as above.
            examples=DataShape(76_800, (20,), "u2"),
            padding=0,
        ),
    ),
)

MODELS: dict[str, ZooModel] = {row.name: row for row in _ROWS}
TASKS: dict[str, Task] = {row.name: row.task for row in _ROWS if row.task}
FEDERATED_TASKS: dict[str, FederatedTask] = {
    row.name: row.federated for row in _ROWS if row.federated
}
