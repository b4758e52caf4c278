"""The contract of what is trained: examples or clients, a model on them, and its own defaults.

`tasks` and `task` find the models of the repository; `audit` installed without it has none. Importing this
starts no JAX.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from audit.errors import require

if TYPE_CHECKING:
    from audit.tasks.model import Model


class Dataset(NamedTuple):
    """Labelled examples, as a training run takes them.

    Attributes:
      features: (N, ...), float32 or whole numbers (bytes of images, say).
      labels: (N, ...); for classification, classes as int32 from 0.
      source: a line that says where the arrays came from.
      checksum: SHA-256, in hex, of the canonical arrays (see `checksum_of`).
    """

    features: np.ndarray
    labels: np.ndarray
    source: str
    checksum: str


class Clients(NamedTuple):
    """The examples of M clients; rows starts[i] : starts[i] + counts[i] belong to client i.

    Attributes:
      features: (N, ...), as in a Dataset.
      labels: (N, ...), int32; for text one label for each position, 0 if it is padding.
      starts: (M,) int32, the first row of each client; clients are sorted by name.
      counts: (M,) int32, at least 1 each; they add up to N.
      source: a line that says where the arrays came from.
      checksum: SHA-256, in hex, of the canonical arrays that the examples came from.
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
        """The arrays (features, labels, starts, counts), as DP-FedAvg takes them."""
        starts = self.starts.astype("<i4")
        counts = self.counts.astype("<i4")
        return self.features, self.labels, starts, counts

    def of(self, client: int) -> tuple[NDArray[np.generic], NDArray[np.integer]]:
        """Returns the features (n, ...) and labels (n, ...) of the client of this index."""
        start = self.starts[client]
        rows = slice(start, start + self.counts[client])
        return self.features[rows], self.labels[rows]


def checksum_of(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Returns the SHA-256, in hex, of named arrays: of each one's name, dtype, shape and little-endian bytes.

    It is therefore the same on machines of either byte order.
    """
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little_endian.dtype.str} {little_endian.shape}\n".encode())
        digest.update(little_endian.tobytes())
    return digest.hexdigest()


class Sources(NamedTuple):
    """The sources of data that a user gives; None for each that is not given.

    Attributes:
      data_file: a data file.
      tfds_dir: a folder of data that TFDS prepared, in place of a data file.
    """

    data_file: str | None = None
    tfds_dir: str | None = None


class DataShape(NamedTuple):
    """The number of training examples of a data set, and the shape and the type of one example's features."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class Data(NamedTuple):
    """A data set, for people and programs.

    Attributes:
      name: the name of its flag and of its cache file.
      label: its name for people.
      checksum: the checksum of the arrays as every source gives them; None if they are computed, and so not
        the same to the bit everywhere.
      load: sources -> the examples.
      file: the name of the data set that `data_file` replaces.
      examples: the number and the shape of the examples that `load` gives without a file of the user's own.
    """

    name: str
    label: str
    checksum: str | None
    load: Callable[[Sources], Dataset]
    file: str
    examples: DataShape


# (shape of an example's features) -> the model.
MakeModel = Callable[[tuple[int, ...]], "Model"]


class StepSeconds(NamedTuple):
    """Measured seconds of a model-step on two cores of a Xeon: a fixed part, and a part for each example."""

    fixed: float
    per_example: float

    def of(self, batch_size: int) -> float:
        """Returns the seconds of a model-step on so many examples."""
        return self.fixed + batch_size * self.per_example


class Convex(NamedTuple):
    """A model with weights w whose loss l(w'x, y) of an example (x, y) is convex in the scalar w'x.

    A clipped gradient is then that of a convex loss too. The loss is b |x|^2-smooth in w.

    Attributes:
      curvature: b, the largest second derivative of l in w'x.
      norm: the largest |x|, which the loader ensures for any data.
    """

    curvature: float
    norm: float


class Curved(NamedTuple):
    """Limits on the curvature of a single example's loss, for any data and any parameters.

    Attributes:
      largest_negative: m; no eigenvalue of the loss's Hessian is below -m.
      largest_positive: L; no eigenvalue is above L.
      largest_gradient: the largest norm of the loss's gradient; a clipping norm of at least this never clips.
      reason: why these limits hold, in a few words.
    """

    largest_negative: float
    largest_positive: float
    largest_gradient: float
    reason: str


class Task(NamedTuple):
    """A model and the data that it is trained on.

    Attributes:
      name: the name that users type.
      label: the name on figures.
      description: the description in reports.
      data: the data set.
      make: the shape of a single example's features -> the model.
      classes: the number of classes; 0 for a regression.
      learning_rate: the default learning rate.
      batch_size: the default batch size.
      clipping: the name of the fastest clipping strategy that takes the model.
      over_parameterised: whether genuine gradients leave a crafted coordinate alone, so that its score's law
        has a formula (Errata H16).
      step_seconds: the seconds of a model-step.
      canaries: the number of canaries a run that `auto` stands for, so few that they hardly disturb each
        other (README, "Many canaries a run").
      directions: the number of fresh directions a run: a power of 2 that is at most an eighth of the
        parameters, and small enough for drawing them to take no longer than training.
      convex: the limits that make its steps Lipschitz, if its loss is convex in a scalar; else None.
      not_convex: why its steps have no known Lipschitz constant, if `convex` is None.
      curved: the limits on its curvature, if it has any and `convex` is None; else None.
      smooth: whether its loss has no kinks, so that constants may be measured along training runs.
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
    over_parameterised: bool
    step_seconds: StepSeconds
    canaries: int = 256
    directions: int = 1024
    convex: Convex | None = None
    not_convex: str = "a network with ReLU is not smooth"
    curved: Curved | None = None
    smooth: bool = False


# Features (n, ...), labels (n, ...).
Test = tuple[NDArray[np.generic], NDArray[np.integer]]


class Federation(NamedTuple):
    """Clients, and examples to test the model on; if these are None, it is tested on the clients' own."""

    clients: Clients
    test: Test | None


class Dealing(Protocol):
    """How examples are dealt to clients: their number, how unevenly (alpha), and the seed."""

    @property
    def clients(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def seed(self) -> int: ...


class FederatedTask(NamedTuple):
    """A model and its clients' data.

    Attributes:
      description: the description in reports.
      load: (how examples are dealt, sources) -> the clients and the test examples.
      make: () -> the model.
      file: the name of the data set that `data_file` replaces.
      padding: for text, the label that marks padding; None otherwise.
    """

    description: str
    load: Callable[[Dealing, Sources], Federation]
    make: "Callable[[], Model]"
    file: str
    padding: int | None = None


_ROOT = Path(__file__).resolve().parents[2]


def tasks() -> Mapping[str, Task]:
    """Returns the tasks of the models that train on examples, by model; empty if `models/` can't be used."""
    zoo = _find_zoo()
    return {} if isinstance(zoo, str) else zoo.TASKS


def federated_tasks() -> Mapping[str, FederatedTask]:
    """Returns the tasks of the models that train on clients, by model; empty if `models/` can't be used."""
    zoo = _find_zoo()
    return {} if isinstance(zoo, str) else zoo.FEDERATED_TASKS


def task(model: str) -> Task:
    """Returns the task of a model of `models/` that trains on examples.

    Raises InputError for an unknown name, for a model that trains only on clients, and if `models/` can't be
    used.
    """
    zoo = _find_zoo()
    require(not isinstance(zoo, str), f"`model={model}` is a model of the repository: {zoo}")
    row: Task = zoo.task(model)
    return row


def federated_task(model: str) -> FederatedTask:
    """Returns the task of a model of `models/` that trains on clients.

    Raises InputError for an unknown name, and if `models/` can't be used.
    """
    zoo = _find_zoo()
    require(not isinstance(zoo, str), f"`model={model}` is a model of the repository: {zoo}")
    row: FederatedTask = zoo.federated_task(model)
    return row


@cache
def _find_zoo() -> Any:
    """Returns the module `models.catalogue`, or a string: why it can't be used, with what to do.

    It is the only module of `models/` to which the library refers. From now on `import models` works, even if
    the repository's root is not on sys.path.
    """
    # `audit` may be installed without the repository: there is no run.sh then.
    if not (_ROOT / "run.sh").is_file():
        fix = "give your own model to audit.audit_loss"
        return f"{fix}, or run your script in a clone of the repository"
    if importlib.util.find_spec("models") is None:
        sys.path.append(str(_ROOT))
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("models")
    assert spec is not None
    # Another package or module of that name may come first: a module has no folder, but a file, its origin.
    locations = [*(spec.submodule_search_locations or []), spec.origin or ""]
    if Path(locations[0]).resolve() == _ROOT / "models":
        return importlib.import_module("models.catalogue")
    fix = "rename that, or start your script with ./run.sh python"
    return f"{locations[0]} stands in its way; {fix}"
