"""The repository's models, one row for each: its data, hyperparameters and clients.

The hyperparameters come from the hidden-state paper (Table 2). Importing this module does not start JAX.
"""

import pkgutil
import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from audit.errors import require, require_type
from audit.tasks.task import (
    Curvature,
    Data,
    Dataset,
    Dealing,
    FederatedTask,
    Federation,
    MakeModel,
    Task,
    UserFile,
)
from models.data import tables
from models.data.clients import dirichlet, one_each, read_clients, select
from models.data.images import CIFAR10, FASHION_MNIST, load_examples, load_images, load_shirts
from models.data.shakespeare import SHAKESPEARE, load_sequences, load_shakespeare
from models.data.sources import Form, Recipe

Row = TypeVar("Row", Task, FederatedTask)

EMNIST = Form("EMNIST by writer", (28, 28), "f4", classes=62)
# Tokens: 0 for padding, 1 to 10,000 for words in order of frequency, then begin, end and unknown.
STACKOVERFLOW = Form("Stack Overflow by user", (20,), "u2", label_shape=(20,), classes=10_004)


def task(model: str) -> Task:
    """Returns the task of a model trained on examples; raises InputError for other models.

    `model` is a name such as "gpt". A size may follow, as in "gpt:128x3".
    """
    require_type("model", model, str)
    name, colon, size = model.partition(":")
    row = _find_row(name, TASKS, trains_on="examples")
    return _resize(row, size) if colon else row


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a model for federated training; raises InputError for other models."""
    return _find_row(model, FEDERATED_TASKS, trains_on="clients")


def _find_row(model: str, rows: dict[str, Row], trains_on: str) -> Row:
    """Returns a model's task from `rows`, which are keyed by name; raises InputError for other models.

    `trains_on` completes the error's message.
    """
    choices = ", ".join(rows)
    require(
        model in rows,
        f"`model={model}` is not a model that trains on {trains_on}: choose one of {choices}",
    )
    return rows[model]


@cache  # JAX compiles models of equal size only once
def _resize(row: Task, size: str) -> Task:
    """Returns `row`, the GPT's task, resized to "WIDTHxBLOCKS".

    Raises InputError if the size is invalid, or if `row` is another model's task.
    """
    given = f"`model={row.name}:{size}`"
    require(row.sizes, f"{given}: {row.name} comes in one size: give `model={row.name}`")
    advice = f"{given}: give {row.sizes} with a width divisible by 4, such as gpt:128x3"
    require(re.fullmatch("[1-9][0-9]{0,3}x[1-9][0-9]?", size), advice)
    width, layers = map(int, size.split("x"))
    require(width % 4 == 0, advice)  # for 4 attention heads
    return row._replace(
        name=f"{row.name}:{size}",
        description=f"GPT, {layers} blocks of width {width}, on Shakespeare",
        make=_make_lazily("gpt:gpt", width=width, layers=layers),
    )


def _make_lazily(name: str, **fixed: Any) -> MakeModel:
    """Returns a function that maps an example's shape to the model, which it makes only once per shape.

    `name` is "module:function" within `models`. We import the module on the first call, because it starts
    JAX. The named function receives `fixed` and, if examples are vectors, their length as `n_features`.
    """

    @cache
    def make(shape: tuple[int, ...]) -> Any:
        """Returns the model for examples of this shape."""
        make_model = pkgutil.resolve_name(f"models.{name}")
        if len(shape) == 1:
            return make_model(n_features=shape[0], **fixed)
        return make_model(**fixed)  # other models accept a single shape

    return make


def _load_features(user_file: UserFile) -> Dataset:
    """Loads the features that a frozen MobileNetV2 computes from CIFAR-10 images."""
    from models.mobilenet import load_features

    return load_features(user_file)


def _deal_images(recipe: Recipe, setting: Dealing, user_file: UserFile) -> Federation:
    """Loads images and deals the training images to `setting.clients` clients (0: one per image)."""
    dataset, test = load_images(recipe, user_file)
    clients = one_each(dataset)
    if setting.clients > 0:
        clients = dirichlet(dataset, setting.clients, setting.alpha, setting.seed)
    return Federation(clients, test)


def _load_roles(setting: Dealing, user_file: UserFile) -> Federation:
    """Loads the `setting.clients` largest roles in Shakespeare's plays as clients; 0 means all roles."""
    roles = load_shakespeare(user_file)
    by_size = np.argsort(-roles.counts, kind="stable")  # roles of equal size keep their order
    number = setting.clients or roles.number
    return Federation(select(roles, by_size[:number]), test=None)


# Reasons why a model's steps have no known Lipschitz constant.
_SOFTMAX = "the clipped gradient of a multi-class softmax is not that of a convex loss"
_SMOOTH = "a smooth network's constants are measured (with `lipschitz=measured`), not proven"

# The logistic loss is convex in w'x, with second derivative at most 1/4. The loader ensures |x| <= 1. So the
# eigenvalues of the Hessian with respect to the weights w are between 0 and 1/4.
_LOGISTIC_CURVATURE = Curvature(0.25, reason="convex loss, any data with |x| <= 1")
# With respect to the logits, softmax cross entropy has a Hessian of norm at most 1/2, and a gradient of norm
# at most sqrt(2). The features' squared norm is at most 1/2, so the Hessian with respect to the weights has
# norm at most 1/4.
_SOFTMAX_CURVATURE = Curvature(
    largest_eigenvalue=0.25,
    largest_gradient=1.0,
    reason="softmax without clipping, on features whose norm the model limits",
)


def _describe(
    recipe: Recipe,
    label: str,
    load: Callable[[UserFile], Dataset],
    examples: int,
    shape: tuple[int, ...],
) -> Data:
    """Describes a recipe's data set as `Data`; `label` is its name in text."""
    return Data(
        name=recipe.name,
        label=label,
        checksum=recipe.checksum,
        load=load,
        file=recipe.name,
        examples=examples,
        shape=shape,
    )


_HOUSING = _describe(tables.HOUSING, "California Housing", tables.load_housing, 20_640, (8,))
_PURCHASE = _describe(tables.PURCHASE, "Purchase-100", tables.load_purchase, 20_000, (600,))
_CIFAR10 = _describe(
    CIFAR10, "CIFAR-10", partial(load_examples, CIFAR10), 50_000, shape=(32, 32, 3)
)
_FASHION_MNIST = _describe(
    FASHION_MNIST, "Fashion-MNIST", partial(load_examples, FASHION_MNIST), 60_000, shape=(28, 28)
)
_SHIRTS = _FASHION_MNIST._replace(
    name="fashion_mnist_shirts",
    label="Fashion-MNIST's T-shirts and shirts",
    load=load_shirts,
    examples=12_000,
    shape=(784,),
)
_SHAKESPEARE = _describe(SHAKESPEARE, "Shakespeare", load_sequences, 52_341, (80,))
# The least significant bits of computed features differ between machines.
_FEATURES = _CIFAR10._replace(
    name="mobilenet_features",
    checksum=None,
    load=_load_features,
    shape=(1280,),
)

_on_housing = partial(
    Task,
    data=_HOUSING,
    classes=2,
    learning_rate=0.1,
    batch_size=400,
    clipping="book_keeping",
)
_fcnn = partial(_on_housing, canaries=8, directions=8)
_smooth_fcnn = partial(_fcnn, why_unbounded=_SMOOTH, smooth=True)
_on_images = partial(
    Task,
    classes=10,
    learning_rate=0.01,
    batch_size=128,
    clipping="unfolded",
    over_parameterised=True,
)
_head = partial(
    _on_images,
    description="last layer on frozen MobileNetV2 features of CIFAR-10",
    data=_FEATURES,
    why_unbounded=_SOFTMAX,
    smooth=True,
)

_ROWS = (
    _fcnn(
        name="fcnn",
        label="FCNN",
        description="FCNN, 8-6-2 with ReLU, 68 parameters, on California Housing",
        make=_make_lazily("dense:fcnn"),
    ),
    _smooth_fcnn(
        name="tanh_fcnn",
        label="tanh FCNN",
        description="FCNN, 8-6-2 with tanh, 68 parameters, on California Housing",
        make=_make_lazily("dense:fcnn", activation="tanh"),
    ),
    _smooth_fcnn(
        name="gelu_fcnn",
        label="GELU FCNN",
        description="FCNN, 8-6-2 with GELU, 68 parameters, on California Housing",
        make=_make_lazily("dense:fcnn", activation="gelu"),
    ),
    _on_housing(
        name="wide_fcnn",
        label="wide FCNN",
        description="FCNN, 8-64-32-1 with ReLU, 2,689 parameters, on California Housing",
        make=_make_lazily("dense:wide_fcnn"),
        directions=128,
    ),
    _on_images(
        name="convnet",
        label="ConvNet",
        description="ConvNet, two convolutions and three dense layers, 62,006 parameters, on CIFAR-10",
        data=_CIFAR10,
        make=_make_lazily("convolutional:convnet"),
    ),
    _on_images(
        name="gelu_convnet",
        label="GELU ConvNet",
        description=(
            "ConvNet, two convolutions with average pooling and three dense layers, GELU, "
            "62,006 parameters, on CIFAR-10"
        ),
        data=_CIFAR10,
        make=_make_lazily("convolutional:gelu_convnet"),
        why_unbounded=_SMOOTH,
        smooth=True,
    ),
    _on_images(
        name="resnet18",
        label="ResNet18",
        description="ResNet18 on CIFAR-10",
        data=_CIFAR10,
        make=_make_lazily("convolutional:resnet18"),
        directions=64,
    ),
    _head(
        name="mobilenet_head",
        label="MobileNetV2's head",
        make=_make_lazily("dense:head"),
        clipping="book_keeping",
    ),
    _head(
        name="mobilenet_softmax_head",
        label="MobileNetV2's softmax head",
        make=_make_lazily("dense:softmax_head"),
        curvature=_SOFTMAX_CURVATURE,
    ),
    _on_images(
        name="linear",
        label="linear model",
        description="linear model, 784-10, 7,850 parameters, on Fashion-MNIST",
        data=_FASHION_MNIST,
        make=_make_lazily("dense:mlp", widths=()),
        directions=512,
        why_unbounded=_SOFTMAX,
        smooth=True,
    ),
    _on_images(
        name="mlp",
        label="MLP",
        description="MLP, 784-256-256-10 with ReLU, 269,322 parameters, on Fashion-MNIST",
        data=_FASHION_MNIST,
        make=_make_lazily("dense:mlp"),
    ),
    _on_images(
        name="two_layer",
        label="two-layer network",
        description="two dense layers, 784-128-10 with ReLU, 101,770 parameters, on Fashion-MNIST",
        data=_FASHION_MNIST,
        make=_make_lazily("dense:mlp", widths=(128,)),
    ),
    _on_images(
        name="purchase_mlp",
        label="Purchase MLP",
        description="MLP, 600-256-256-100 with ReLU, 245,348 parameters, on Purchase-100",
        data=_PURCHASE,
        make=_make_lazily("dense:mlp", classes=tables.PURCHASE_CLASSES),
        classes=tables.PURCHASE_CLASSES,
        learning_rate=0.05,
        batch_size=100,
    ),
    Task(
        name="gpt",
        label="GPT",
        description="GPT, 5 blocks of width 256, 4,015,962 parameters, on Shakespeare",
        data=_SHAKESPEARE,
        make=_make_lazily("gpt:gpt"),
        classes=0,
        learning_rate=0.1,
        batch_size=16,
        clipping="per_example",
        why_unbounded=_SMOOTH,
        # These 50 insertions give epsilon 24.0, as do the paper's 250 with noise multiplier 4.
        insertions=50,
        noise_multiplier=4 * (50 / 250) ** 0.5,
        sizes="gpt or gpt:WIDTHxBLOCKS",
    ),
    _on_images(
        name="logistic",
        label="logistic regression",
        description="logistic regression, 784 parameters, on Fashion-MNIST's T-shirts and shirts",
        data=_SHIRTS,
        make=_make_lazily("dense:logistic"),
        classes=2,
        learning_rate=0.5,
        canaries=64,
        directions=64,
        curvature=_LOGISTIC_CURVATURE,
    ),
)
_RECIPES = {CIFAR10.name: CIFAR10, FASHION_MNIST.name: FASHION_MNIST}
TASKS: dict[str, Task] = {}
FEDERATED_TASKS: dict[str, FederatedTask] = {}
for _row in _ROWS:
    TASKS[_row.name] = _row
    # Models for these data sets can also be trained on clients.
    if _row.data.name in _RECIPES:
        FEDERATED_TASKS[_row.name] = FederatedTask(
            description=f"{_row.label} on {_row.data.label}",
            load=partial(_deal_images, _RECIPES[_row.data.name]),
            make=partial(_row.make, _row.data.shape),
            file=_row.data.file,
        )
FEDERATED_TASKS |= {
    "character_lstm": FederatedTask(
        description="two LSTM layers, on Shakespeare by role",
        load=_load_roles,
        make=partial(_make_lazily("recurrent:character_lstm"), ()),
        file="shakespeare",
        padding=0,
    ),
    "emnist_cnn": FederatedTask(
        description="CNN on EMNIST by writer (--data)",
        load=partial(read_clients, EMNIST),
        make=partial(_make_lazily("convolutional:emnist_cnn"), EMNIST.shape),
        file="emnist",
    ),
    "word_lstm": FederatedTask(
        description="LSTM on Stack Overflow by user (--data)",
        load=partial(read_clients, STACKOVERFLOW),
        make=partial(_make_lazily("recurrent:word_lstm"), ()),
        file="stackoverflow",
        padding=0,
    ),
}
