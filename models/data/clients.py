"""Data sets with examples that belong to clients; the examples of a client are consecutive."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.tasks.task import Clients, Dataset, Dealing, Federation, Sources
from models.data.sources import Arrays, Form, Recipe, check_examples, load_arrays


def read_clients(form: Form, setting: Dealing, sources: Sources) -> Federation:
    """Reads clients, and test examples if there are any, from a user's .npz file.

    Its arrays are `features` (N, ...), `labels` (N, ...) and `counts` (M,), the number of consecutive
    examples of each client; `test_features` and `test_labels` are optional. Reads at most the first
    `setting.clients` clients (0: all). Raises InputError if no file is given, or it is not in that form.
    """
    hint = "name an .npz file of features, labels and counts with `data`"
    recipe = Recipe(form.name, None, partial(_make_canonical, form), package=None, hint=hint)
    arrays, source, checksum = load_arrays(recipe, Sources(sources.data))
    counts = arrays["counts"][: setting.clients or None]
    owners = np.repeat(np.arange(len(counts)), counts)
    rows = slice(len(owners))
    dataset = Dataset(arrays["features"][rows], arrays["labels"][rows], source, checksum)
    test = None
    if "test_labels" in arrays:
        test = (arrays["test_features"], arrays["test_labels"])
    return Federation(dealt(dataset, owners), test)


def _make_canonical(form: Form, raw: Arrays) -> Arrays:
    """Returns a file's arrays in fixed types; raises InputError if they do not fit."""
    counts = raw["counts"].astype("<i4")
    adds_up = counts.ndim == 1 and counts.sum() == len(raw["labels"]) and (counts > 0).all()
    require(adds_up, "its counts must be the number of examples of each client, above 0")
    canonical = {"counts": counts}
    for split in ("", "test_") if "test_labels" in raw else ("",):
        canonical |= check_examples(form, raw, f"{split}features", f"{split}labels")
    return canonical


def dealt(dataset: Dataset, owners: NDArray[np.integer]) -> Clients:
    """Returns a data set's N examples as those of clients, in the data set's order.

    `owners` (N,) is the client of each example. Each of the clients 0, 1, ... must have an example.
    """
    counts = np.bincount(owners).astype(np.int32)
    starts = (np.cumsum(counts) - counts).astype(np.int32)
    order = np.argsort(owners, kind="stable")  # client after client
    features, labels, source, checksum = dataset
    return Clients(features[order], labels[order], starts, counts, source, checksum)


def select(clients: Clients, members: NDArray[np.integer]) -> Clients:
    """Returns the clients of these indices, given in any order, in their original order."""
    owners = np.repeat(np.arange(clients.number), clients.counts)
    rows = np.isin(owners, members)
    _, numbers = np.unique(owners[rows], return_inverse=True)
    features = clients.features[rows]
    labels = clients.labels[rows]
    return dealt(Dataset(features, labels, clients.source, clients.checksum), numbers)


def one_each(dataset: Dataset) -> Clients:
    """Returns each example as a client; the privacy of a client is then that of an example."""
    return dealt(dataset, np.arange(len(dataset.labels)))


def dirichlet(dataset: Dataset, clients: int, alpha: float, seed: int) -> Clients:
    """Deals a classification data set to clients at random, with unequal shares of each class.

    For each class, the shares of the M clients are drawn from a symmetric Dirichlet(alpha) distribution
    (Yurochkin et al., 2019), and the class's shuffled examples are divided accordingly. As alpha grows,
    shares become equal. If a client gets no example, the whole deal is drawn again.

    The mean number of examples of a client is N / M. With K classes of equal size, its standard deviation is
    about (N / M) sqrt((M - 1) / (K (1 + M alpha))), if few deals are drawn again. Raises InputError if
    `clients` is out of range, or 100 deals leave a client without examples.
    """
    size = len(dataset.labels)
    allowed = f"between 1 and {size:,}, the number of examples"
    require(1 <= clients <= size, f"`clients` must be {allowed}, got {clients}")
    generator = np.random.default_rng(seed)
    for _ in range(100):  # with a small alpha, almost every deal leaves a client without examples
        owners = _draw_owners(generator, dataset.labels, clients, alpha)
        if len(np.unique(owners)) == clients:
            return dealt(dataset, owners)
    raise InputError(
        f"`alpha={alpha}` leaves one of {clients:,} clients without examples: raise it"
    )


def _draw_owners(
    generator: np.random.Generator, labels: NDArray[np.integer], clients: int, alpha: float
) -> NDArray[np.int64]:
    """Draws the client of each example, (N,), class by class; some clients may have no example."""
    owners = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        # A shuffled row's client is the number of cuts at or before its place. The last client gets all
        # remaining rows.
        cuts = np.floor(np.cumsum(shares) * len(rows) + 0.5)  # rounded to whole rows
        owners[rows] = np.searchsorted(cuts[:-1], np.arange(len(rows)), side="right")
    return owners
