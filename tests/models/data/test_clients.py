"""Tests that every example has one client, every client has examples, and a seed determines both."""

from functools import partial

import numpy as np
import pytest

from audit.settings.federated import FederatedSetting
from audit.tasks.task import Dataset
from models.catalogue import EMNIST
from models.data import clients
from tests.models.data.made_up import refusal


def _dataset(size=1200, classes=10):
    labels = np.random.default_rng(0).permutation(np.arange(size) % classes).astype(np.int32)
    return Dataset(np.arange(size)[:, None], labels, "made up", "0" * 64)


@pytest.mark.parametrize("alpha", [0.05, 1e6])
def test_every_example_is_dealt_once_with_its_label(alpha):
    dataset = _dataset()
    dealt = clients.dirichlet(dataset, 30, alpha, seed=1)
    rows = dealt.features[:, 0]
    assert sorted(rows) == list(range(1200))
    np.testing.assert_array_equal(dealt.labels, dataset.labels[rows])
    assert dealt.counts.min() >= 1 and dealt.counts.sum() == 1200 and dealt.number == 30
    np.testing.assert_array_equal(dealt.starts, np.cumsum(dealt.counts) - dealt.counts)


def test_one_seed_deals_alike_as_evenly_as_alpha_says():
    first, same, other = (clients.dirichlet(_dataset(), 30, 0.5, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.features, same.features)
    assert not np.array_equal(first.counts, other.counts)
    even = clients.dirichlet(_dataset(12000), 20, 1e6, seed=2)
    for client in range(20):
        assert abs(np.bincount(even.of(client)[1]) - 60).max() <= 6
    dataset = _dataset(20_000)
    counts = np.array([clients.dirichlet(dataset, 50, 0.5, seed).counts for seed in range(20)])
    expected = 20_000 / 50 * np.sqrt((50 - 1) / (1 + 50 * 0.5) / 10)
    assert counts.std() == pytest.approx(expected, rel=0.1)


def test_one_example_a_client_keeps_the_order_and_so_do_chosen_clients():
    dataset = _dataset(50)
    dealt = clients.one_each(dataset)
    np.testing.assert_array_equal(dealt.features, dataset.features)
    np.testing.assert_array_equal(dealt.counts, np.ones(50))
    assert dealt.of(7)[0].tolist() == [[7]]
    three = clients.group_by_client(_dataset(6), np.array([0, 1, 1, 2, 2, 2]))
    chosen = clients.select(three, np.array([2, 0]))
    assert chosen.features[:, 0].tolist() == [0, 3, 4, 5]
    assert (chosen.counts.tolist(), chosen.starts.tolist()) == ([1, 3], [0, 1])


def test_what_cannot_be_dealt_is_one_line():
    for number, alpha, message in (
        (0, 1.0, "`clients` must be between 1 and 1,200"),
        (1100, 1e-3, "`alpha=0.001` leaves at least one of 1,100 clients without examples"),
    ):
        given = (number, alpha, 0)
        refusal(lambda _, given=given: clients.dirichlet(_dataset(), *given), message)


def _arrays(**changes):
    rng = np.random.default_rng(0)
    arrays = {
        "features": rng.random((6, 28, 28), np.float32),
        "labels": np.arange(6),
        "counts": np.array([1, 3, 2]),
        "test_features": rng.random((2, 28, 28), np.float32),
        "test_labels": np.arange(2),
    }
    return {name: value for name, value in (arrays | changes).items() if value is not None}


def read(file, number=0):
    """Returns the first clients of a file, or all."""
    return clients.read_clients(EMNIST, FederatedSetting(clients=number), file)


def test_clients_of_a_file_keep_their_examples(tmp_path):
    file = str(tmp_path / "c.npz")
    np.savez(file, **_arrays())
    loaded = read(file)
    assert loaded.clients.counts.tolist() == [1, 3, 2]
    assert loaded.clients.of(1)[1].tolist() == [1, 2, 3]
    assert loaded.test[1].tolist() == [0, 1]
    first = read(file, 2).clients
    assert first.number == 2 and first.labels.tolist() == [0, 1, 2, 3]
    np.savez(file, **_arrays(test_features=None, test_labels=None))
    assert read(file).test is None


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": None},
        {"counts": np.array([0, 4, 2])},
        {"labels": np.arange(6) + 57},
        {"features": np.zeros((6, 28, 28))},
    ],
)
def test_clients_that_do_not_fit_are_one_line(tmp_path, changes):
    file = str(tmp_path / "c.npz")
    np.savez(file, **_arrays(**changes))
    load = partial(clients.read_clients, EMNIST, FederatedSetting(clients=0))
    refusal(load, "cannot be used", data=file)
    refusal(load, "pass an .npz file", "`data`")
