"""Data sets divided among clients. Each client's examples are consecutive."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.tasks.task import Clients, Dataset, Dealing, Federation, UserFile
from models.data.sources import Arrays, Form, Recipe, check_examples, load_arrays


def read_clients(form: Form, setting: Dealing, user_file: UserFile) -> Federation:
    """Reads the first `setting.clients` clients (0: all) and any test examples from a user's .npz file.

    The file's arrays are `features` (N, ...), `labels` (N, ...) and `counts` (M,), each client's number of
    consecutive examples. `test_features` and `test_labels` are optional. Raises InputError if the file is
    missing or its arrays do not match `form`, the required shapes.
    """
    recipe = Recipe(
        form.name,
        make_canonical=partial(_make_canonical, form),
        hint="pass an .npz file with features, labels and counts as `data`",
    )
    arrays, source, checksum = load_arrays(recipe, user_file)
    counts = arrays["counts"]
    if setting.clients > 0:
        counts = counts[: setting.clients]
    owners = np.repeat(np.arange(len(counts)), counts)  # the client of each example
    features = arrays["features"][: len(owners)]
    labels = arrays["labels"][: len(owners)]
    dataset = Dataset(features, labels, source, checksum)
    test = None
    if "test_labels" in arrays:
        test = (arrays["test_features"], arrays["test_labels"])
    return Federation(group_by_client(dataset, owners), test)


def _make_canonical(form: Form, raw: Arrays) -> Arrays:
    """Returns a user's arrays converted to fixed types; raises InputError if they do not match `form`."""
    counts = raw["counts"].astype("<i4")  # (M,), the number of examples of each client
    adds_up = counts.ndim == 1 and counts.sum() == len(raw["labels"]) and (counts > 0).all()
    require(adds_up, "its counts must give each client's number of examples, at least 1")
    canonical = {"counts": counts, **check_examples(form, raw, "features", "labels")}
    if "test_labels" in raw:
        canonical |= check_examples(form, raw, "test_features", "test_labels")
    return canonical


def group_by_client(dataset: Dataset, owners: NDArray[np.integer]) -> Clients:
    """Groups a data set of N examples by client. Each client's examples keep their order.

    `owners` (N,) gives the client of each example: 0, 1, .... Each client must have at least one example.
    """
    counts = np.bincount(owners).astype(np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)  # each client's first row
    order = np.argsort(owners, kind="stable")
    features, labels, source, checksum = dataset
    return Clients(features[order], labels[order], starts, counts, source, checksum)


def select(clients: Clients, chosen: NDArray[np.integer]) -> Clients:
    """Returns the clients with the indices `chosen`, in their original order."""
    owners = np.repeat(np.arange(clients.number), clients.counts)
    is_chosen = np.isin(owners, chosen)
    # Numbers the chosen clients from 0, without gaps.
    _, new_owners = np.unique(owners[is_chosen], return_inverse=True)
    features = clients.features[is_chosen]
    labels = clients.labels[is_chosen]
    return group_by_client(Dataset(features, labels, clients.source, clients.checksum), new_owners)


def one_each(dataset: Dataset) -> Clients:
    """Makes each example a separate client, which turns client-level privacy into example-level privacy."""
    return group_by_client(dataset, np.arange(len(dataset.labels)))


def dirichlet(dataset: Dataset, clients: int, alpha: float, seed: int) -> Clients:
    """Deals a classification data set of N examples to M clients at random, with uneven class proportions.

    For each class, we draw the clients' fractions from a symmetric Dirichlet(alpha) distribution (Yurochkin
    et al., 2019), and divide the class's shuffled examples accordingly. If any client gets no examples, we
    deal all examples again.

    Raises InputError if `clients` is out of range, or if all 100 attempts leave a client without examples.
    """
    size = len(dataset.labels)
    require(
        1 <= clients <= size,
        f"`clients` must be between 1 and {size:,}, the number of examples, got {clients}",
    )
    generator = np.random.default_rng(seed)
    # If alpha is small, almost all attempts fail, so we limit their number.
    for _ in range(100):
        owners = _draw_owners(generator, dataset.labels, clients, alpha)
        if len(np.unique(owners)) == clients:
            return group_by_client(dataset, owners)
    raise InputError(
        f"`alpha={alpha}` leaves at least one of {clients:,} clients without examples: increase it"
    )


def _draw_owners(
    generator: np.random.Generator, labels: NDArray[np.integer], clients: int, alpha: float
) -> NDArray[np.int64]:
    """Draws each example's client (N,), as in `dirichlet`. Some clients may get no examples."""
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        fractions = generator.dirichlet(np.full(clients, alpha))
        # Client i's rows end at cut i. So a row's client is the number of cuts at or before its position. The
        # last client gets all remaining rows.
        cuts = np.floor(np.cumsum(fractions) * len(rows) + 0.5)
        owners[rows] = np.searchsorted(cuts[:-1], np.arange(len(rows)), side="right")
    return owners
