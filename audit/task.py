"""The contract of what is trained: examples or clients, a model on them, and its own defaults. Starts no
JAX."""

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from audit.model import Model


class Dataset(NamedTuple):
    """Labelled examples, as a training takes them.

    Attributes:
      features: (N, ...), float32 or whole numbers (bytes of images, say).
      labels: (N, ...); of a classification int32 from 0.
      source: one line that says where the arrays came from.
      checksum: SHA-256, in hex, of the canonical arrays (see `checksum_of`).
    """

    features: np.ndarray
    labels: np.ndarray
    source: str
    checksum: str


class Clients(NamedTuple):
    """Examples by client; rows starts[i] : starts[i] + counts[i] are client i's.

    Attributes:
      features: (N, ...), as in a Dataset.
      labels: (N, ...), int32; of text a label a position, 0 where a position is padding.
      starts: (M,) int32, the first row of each client; clients are sorted by name.
      counts: (M,) int32, at least 1 each; they add up to N.
      source: one line that says where the arrays came from.
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
        """How many clients there are."""
        return len(self.counts)

    @property
    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """(features, labels, starts, counts), as DP-FedAvg takes them."""
        return self.features, self.labels, self.starts.astype("<i4"), self.counts.astype("<i4")

    def of(self, client: int) -> tuple[NDArray[np.generic], NDArray[np.integer]]:
        """A client's features (n, ...) and labels (n, ...)."""
        rows = slice(self.starts[client], self.starts[client] + self.counts[client])
        return self.features[rows], self.labels[rows]


def checksum_of(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """SHA-256, in hex, of each array's name, dtype, shape and little-endian bytes, in order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        digest.update(f"{name} {little.dtype.str} {little.shape}\n".encode())
        digest.update(little.tobytes())
    return digest.hexdigest()


class Sources(NamedTuple):
    """The sources that a user names: a data file or a prepared TFDS folder; of a frozen body a weights file
    and the side in pixels to which images are resized."""

    data_file: str | None = None
    tfds_dir: str | None = None
    weights: str | None = None
    input_size: int | None = None


class DataShape(NamedTuple):
    """How many training examples a data set has, and the shape and the type of one's features."""

    number: int
    shape: tuple[int, ...]
    dtype: str


class Data(NamedTuple):
    """A data set as people and programs know it.

    name: of its flag and its cache file. checksum: of the arrays that every source gives; None where they are
    computed, and so not the same to the bit everywhere. file: the data set that `data_file` stands in for.
    examples: what a loader gives without a file of the user's own.
    """

    name: str
    label: str
    checksum: str | None
    load: Callable[[Sources], Dataset]
    file: str
    examples: DataShape


MakeModel = Callable[[tuple[int, ...]], "Model"]  # (shape of an example's features) -> the model


class StepSeconds(NamedTuple):
    """Measured seconds of a model-step on two cores of a Xeon: a fixed part, and one an example."""

    fixed: float
    per_example: float

    def of(self, batch_size: int) -> float:
        """At a batch size."""
        return self.fixed + batch_size * self.per_example


class Convex(NamedTuple):
    """A model whose loss is l(w'x, y), convex in the scalar w'x: a clipped gradient is then that of a convex
    loss too. curvature: the most of l'', b. norm: the most of |x|, whatever the data, since the loader sees
    to it. A loss is b |x|^2-smooth."""

    curvature: float
    norm: float


class Task(NamedTuple):
    """A model on its data.

    label: on figures. description: for a report. clipping: the strategies that it can take, the fastest
    first. canaries: how many a run `auto` takes, so that they hardly disturb each other (README, "Many
    canaries a run"); directions: how many fresh ones, a power of 2 of at most an eighth of the parameters,
    until drawing them takes as long as training. over_parameterised: whether genuine gradients leave a
    crafted coordinate alone, so that its score's law is known (Errata H16). classes: 0 of a regression.
    convex: what makes its steps Lipschitz, else `not_convex` why no such constant is known of them.
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


Test = tuple[NDArray[np.generic], NDArray[np.integer]]  # features (n, ...), labels (n, ...)


class Federation(NamedTuple):
    """Clients, and examples to test the model on; without them it is tested on the clients' own."""

    clients: Clients
    test: Test | None


class Dealing(Protocol):
    """What a federated setting says of its clients: how many, how unevenly they are dealt, the seed."""

    @property
    def clients(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def seed(self) -> int: ...


class FederatedTask(NamedTuple):
    """A model and its clients' data. file: the data set that `data_file` stands in for. padding: the label
    that stands for none, of text. by_batch: its module takes a mini-batch at once
    (`audit.model.losses_of_batch`), and clients train fastest one by one. examples: of all clients."""

    description: str
    load: Callable[[Dealing, Sources], Federation]
    make: "Callable[[], Model]"
    file: str
    examples: DataShape
    padding: int | None = None
    by_batch: bool = False
