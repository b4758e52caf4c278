"""Tasks: models with their data and defaults. Loads the repository's tasks if its folder `models/` exists.

Importing this module does not start JAX.
"""

import hashlib
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require

if TYPE_CHECKING:
    from audit.tasks.model import Model


class Dataset(NamedTuple):
    """Labelled examples for training.

    Attributes:
      features: (N, ...), float32 or integers (for example, uint8 images).
      labels: (N, ...); int32 classes that start at 0, for classification.
      source: one line about the origin of the arrays.
      checksum: the checksum of the canonical arrays (see `checksum_of`).
    """

    features: np.ndarray
    labels: np.ndarray
    source: str
    checksum: str


class Clients(NamedTuple):
    """The examples of M clients. Rows starts[i] : starts[i] + counts[i] belong to client i.

    Attributes:
      features: (N, ...), as in a Dataset.
      labels: (N, ...), int32. For text, each position has a label (0 for padding).
      starts: (M,) int32, the first row of each client. Clients are sorted by name.
      counts: (M,) int32, at least 1 each; they add up to N.
      source, checksum: as in a Dataset.
    """

    features: NDArray[np.generic]
    labels: NDArray[np.integer]
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    source: str
    checksum: str

    @property
    def number(self) -> int:
        """The number of clients."""
        return len(self.counts)

    @property
    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """The arrays (features, labels, starts, counts), as DP-FedAvg expects them."""
        return self.features, self.labels, self.starts, self.counts

    def of(self, client: int) -> tuple[NDArray[np.generic], NDArray[np.integer]]:
        """Returns the features and labels, both of shape (n, ...), of the client with this index."""
        start = self.starts[client]
        rows = slice(start, start + self.counts[client])
        return self.features[rows], self.labels[rows]


def checksum_of(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Returns the hex SHA-256 of named arrays: their names, dtypes, shapes and little-endian bytes."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little_endian.dtype.str} {little_endian.shape}\n".encode())
        digest.update(little_endian.tobytes())
    return digest.hexdigest()


# The path of the user's data, a file or a folder that TFDS prepared; None for the published data.
UserFile = str | None


class Data(NamedTuple):
    """A data set, as used by tasks.

    Attributes:
      name: its name in code.
      label: its name in text.
      checksum: the checksum of the arrays from any source; None for computed arrays, whose rounding depends
        on the machine.
      load: the user's file -> the examples.
      file: the name of the data set that the user's `data` replaces.
      examples: the number of training examples, unless the user gives other data.
      shape: the shape of the features of one example.
    """

    name: str
    label: str
    checksum: str | None
    load: Callable[[UserFile], Dataset]
    file: str
    examples: int
    shape: tuple[int, ...]


# (the shape of an example's features) -> the model.
MakeModel = Callable[[tuple[int, ...]], "Model"]


class Curvature(NamedTuple):
    """Limits on a single example's convex loss, for any data and any parameters.

    Attributes:
      largest_eigenvalue: L, the largest eigenvalue of the loss's Hessian.
      reason: why these limits hold.
      largest_gradient: the largest norm of the loss's gradient; clipping to a smaller norm breaks convexity.
        0 if clipping does not matter: for example, if the loss is convex in a scalar w'x, its clipped
        gradient is the gradient of another such loss.
    """

    largest_eigenvalue: float
    reason: str
    largest_gradient: float = 0.0


class Task(NamedTuple):
    """A model and its training data.

    Attributes:
      name: the name that users type.
      label: the name in figures.
      description: a text for reports.
      data: the data set.
      make: maps the shape of one example's features to the model.
      classes: the number of classes; 0 for a regression.
      learning_rate, batch_size: defaults.
      clipping: the name of the model's fastest clipping strategy.
      over_parameterised: True if measurements show that training examples do not move a crafted gradient's
        coordinate. The gradient's score then has a known distribution (Errata H16).
      canaries: the number of canaries per run for `canaries=auto`, chosen so that they barely interfere.
      directions: the number of fresh directions per run for `canaries=auto`: a power of 2, at most an eighth
        of the number of parameters.
      curvature: the bounds on the curvature of its loss, which make steps Lipschitz; None if unknown.
      why_unbounded: the reason if `curvature` is None.
      smooth: True if its loss has no kinks, so Lipschitz constants can be measured along runs.
      noise_multiplier, insertions: defaults; None for the defaults that all models share.
      sizes: its possible names, such as "gpt or gpt:WIDTHxBLOCKS"; empty if it has a single size.
    """

    name: str
    label: str
    description: str
    data: Data
    make: MakeModel
    classes: int
    learning_rate: float
    batch_size: int
    clipping: str
    over_parameterised: bool = False
    canaries: int = 256
    directions: int = 1024
    curvature: Curvature | None = None
    why_unbounded: str = "a network with ReLU is not smooth"
    smooth: bool = False
    noise_multiplier: float | None = None
    insertions: int | None = None
    sizes: str = ""

    def usual(self) -> dict[str, float | None]:
        """Returns the model's defaults, keyed by field; None for a default that all models share."""
        return {
            "learning_rate": self.learning_rate,
            "batch_size": self.batch_size,
            "noise_multiplier": self.noise_multiplier,
            "insertions": self.insertions,
        }


# Features (n, ...), labels (n, ...).
Test = tuple[NDArray[np.generic], NDArray[np.integer]]


class Federation(NamedTuple):
    """Clients and test examples; if `test` is None, models are tested on the clients' examples."""

    clients: Clients
    test: Test | None


class Dealing(Protocol):
    """The fields of a setting that determine how examples are dealt to clients.

    A smaller `alpha` concentrates each class's examples on fewer clients.
    """

    @property
    def clients(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def seed(self) -> int: ...


class FederatedTask(NamedTuple):
    """A model and its clients' data.

    Attributes:
      description: a text for reports.
      load: (how to deal examples, the user's file) -> the clients and the test examples.
      make: () -> the model.
      file: the name of the data set that the user's `data` replaces.
      padding: for text, the label that marks padding; None otherwise.
    """

    description: str
    load: Callable[[Dealing, UserFile], Federation]
    make: "Callable[[], Model]"
    file: str
    padding: int | None = None


_ROOT = Path(__file__).resolve().parents[2]


def tasks() -> Mapping[str, Task]:
    """Returns the repository's tasks that train on examples, keyed by model; {} if `models/` is missing."""
    try:
        return _import_catalogue("").TASKS  # the name is only used in an error
    except InputError:
        return {}


def task(model: str) -> Task:
    """Returns the task of a repository model that trains on examples; raises InputError for other models."""
    return _import_catalogue(model).task(model)


def find_task(model: str) -> Task | None:
    """Returns the task of a repository model that trains on examples; None for other models."""
    try:
        return task(model)
    except InputError:
        return None


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a repository model that trains on clients; raises InputError for other models."""
    return _import_catalogue(model).federated_task(model)


def _import_catalogue(model: str) -> Any:
    """Returns the module `models.catalogue`, from the folder `models/` next to `audit/`.

    It may append the repository's root to sys.path. Raises an InputError about `model` if the folder is
    missing, or if Python finds another module named `models`.
    """
    problem = f"`model={model}` is a model of the repository"
    require(
        (_ROOT / "run.sh").is_file(),  # only in a clone
        f"{problem}: pass your own model to audit.audit_loss, or run your script in a clone of the "
        "repository",
    )
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    models = importlib.import_module("models")
    require(
        Path(str(models.__file__)).parent == _ROOT / "models",
        f"{problem}: {models.__file__} has the same name; rename it, or start your script with "
        "./run.sh python",
    )
    return importlib.import_module("models.catalogue")
