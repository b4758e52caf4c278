"""The contract of what is trained: examples or clients, a model on them, and its own defaults.

Importing this starts no JAX.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from audit.tasks.model import Model


class Dataset(NamedTuple):
    """Labelled examples, as a training run takes them.

    Attributes:
      features: (N, ...), float32 or whole numbers (bytes of images, say).
      labels: (N, ...); of a classification int32 from 0.
      source: a line that says where the arrays came from.
      checksum: SHA-256, in hex, of the canonical arrays (see `checksum_of`).
    """

    features: np.ndarray
    labels: np.ndarray
    source: str
    checksum: str


class Clients(NamedTuple):
    """Examples by client; rows starts[i] : starts[i] + counts[i] belong to client i.

    Attributes:
      features: (N, ...), as in a Dataset.
      labels: (N, ...), int32; of text a label a position, 0 where a position is padding.
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
        """Returns a client's features (n, ...) and labels (n, ...)."""
        start = self.starts[client]
        rows = slice(start, start + self.counts[client])
        return self.features[rows], self.labels[rows]


def checksum_of(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Returns the SHA-256, in hex, of arrays: of the name, dtype, shape and little-endian bytes of each."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little_endian.dtype.str} {little_endian.shape}\n".encode())
        digest.update(little_endian.tobytes())
    return digest.hexdigest()


class Sources(NamedTuple):
    """The sources that a user gives.

    Attributes:
      data_file: a data file.
      tfds_dir: or a prepared TFDS folder.
      weights: the weights file of a frozen body.
      input_size: the side in pixels to which images are resized for it.
    """

    data_file: str | None = None
    tfds_dir: str | None = None
    weights: str | None = None
    input_size: int | None = None


class DataShape(NamedTuple):
    """The number of training examples of a data set, and the shape and the type of one example's features."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class Data(NamedTuple):
    """A data set, for people and programs.

    Attributes:
      name: of its flag and its cache file.
      label: for people.
      checksum: of the arrays that every source gives; None where they are computed, and so not the same to
        the bit everywhere.
      load: reads it.
      file: the data set that `data_file` replaces.
      examples: what a loader gives without a file of the user's own.
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
        """Returns the seconds at a batch size."""
        return self.fixed + batch_size * self.per_example


class Convex(NamedTuple):
    """A model whose loss is l(w'x, y), convex in the scalar w'x.

    A clipped gradient is then that of a convex loss too. A loss is b |x|^2-smooth.

    Attributes:
      curvature: b, the largest value of l''.
      norm: the largest |x|, whatever the data, since the loader sees to it.
    """

    curvature: float
    norm: float


class Curved(NamedTuple):
    """A model whose loss of one example has bounded curvature, whatever the data and the parameters.

    Attributes:
      largest_negative: m, where no eigenvalue of the Hessian is below -m.
      largest_positive: L, where none is above L.
      largest_gradient: the largest norm of a gradient, so that a clipping norm of as much never clips.
      reason: why, in a few words.
    """

    largest_negative: float
    largest_positive: float
    largest_gradient: float
    reason: str


class Task(NamedTuple):
    """A model on its data.

    Attributes:
      name: as users type it.
      label: on figures.
      description: for a report.
      data: what it is trained on.
      make: builds the model.
      classes: 0 of a regression.
      learning_rate: its default.
      batch_size: its default.
      clipping: the strategies that it can take, the fastest first.
      over_parameterised: whether genuine gradients leave a crafted coordinate alone, so that its score's law
        has a formula (Errata H16).
      step_seconds: how long a model-step takes.
      canaries: how many a run `auto` takes, so that they hardly disturb each other (README, "Many canaries a
        run").
      directions: how many fresh directions a run, a power of 2 of at most an eighth of the parameters, until
        drawing them takes as long as training.
      convex: what makes its steps Lipschitz.
      not_convex: where there is no `convex`, why its steps have no known Lipschitz constant.
      curved: of a model that is not convex in a scalar, what bounds its curvature.
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
    clipping: tuple[str, ...]
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
    """Clients, and examples to test the model on; without them it is tested on the clients' own."""

    clients: Clients
    test: Test | None


class Dealing(Protocol):
    """What a federated setting says of its clients: how many, how unevenly examples are dealt, the seed."""

    @property
    def clients(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def seed(self) -> int: ...


class FederatedTask(NamedTuple):
    """A model and its clients' data.

    Attributes:
      description: for a report.
      load: reads the data and deals them to clients.
      make: builds the model.
      file: the data set that `data_file` replaces.
      examples: of all clients.
      padding: of text, the label that means none.
      by_batch: whether its module takes a mini-batch at once (`audit.tasks.model.losses_of_batch`), and
        clients train fastest in turn.
    """

    description: str
    load: Callable[[Dealing, Sources], Federation]
    make: "Callable[[], Model]"
    file: str
    examples: DataShape
    padding: int | None = None
    by_batch: bool = False
