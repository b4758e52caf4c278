"""Examples dealt to clients: each once, none without, alike for one seed."""

import numpy as np
import pytest

from audit.task import Dataset
from models.data import clients
from tests.models.data.made_up import refusal


def _dataset(size=1200, classes=10):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(size) % classes).astype(np.int32)
    return Dataset(np.arange(size)[:, None], labels, "made up", "0" * 64)


def _shares(dealt):
    """(M, 10) of each client's examples, the share of each class."""
    counts = np.array([np.bincount(dealt.of(i)[1], minlength=10) for i in range(dealt.number)])
    return counts / dealt.counts[:, None]


@pytest.mark.parametrize("alpha", [0.05, 0.5, 5.0, 1e6])
def test_every_example_is_dealt_once_with_its_label(alpha):
    dataset = _dataset()
    dealt = clients.dirichlet(dataset, 30, alpha, seed=1)
    rows = dealt.features[:, 0]
    assert sorted(rows) == list(range(1200))
    np.testing.assert_array_equal(dealt.labels, dataset.labels[rows])
    assert dealt.counts.min() >= 1 and dealt.counts.sum() == 1200 and dealt.number == 30
    np.testing.assert_array_equal(dealt.starts, np.cumsum(dealt.counts) - dealt.counts)
    assert (dealt.source, dealt.checksum) == ("made up", "0" * 64)


def test_one_seed_deals_alike_as_evenly_as_alpha_says():
    one, same, other = (clients.dirichlet(_dataset(), 30, 0.5, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.features, same.features)
    assert not np.array_equal(one.counts, other.counts)
    even = clients.dirichlet(_dataset(12000), 20, 1e6, seed=2)
    assert abs(even.counts - 600).max() <= 12  # a rounding and a few per mille in each of ten classes
    assert abs(_shares(even) - 0.1).max() < 0.01
    uneven = _shares(clients.dirichlet(_dataset(12000), 20, 0.1, seed=2))
    assert np.median(uneven.max(axis=1)) > 0.4
    alpha, m, n = 0.5, 50, 20_000
    dataset = _dataset(n)
    counts = np.array([clients.dirichlet(dataset, m, alpha, seed).counts for seed in range(20)])
    expected = n / m * np.sqrt((m - 1) / (1 + m * alpha) / 10)
    assert counts.std() == pytest.approx(expected, rel=0.1)


def test_one_example_a_client_keeps_the_order_and_names_are_sorted():
    dataset = _dataset(50)
    dealt = clients.one_each(dataset)
    np.testing.assert_array_equal(dealt.features, dataset.features)
    np.testing.assert_array_equal(dealt.counts, np.ones(50))
    np.testing.assert_array_equal(dealt.starts, np.arange(50))
    assert dealt.of(7)[0].tolist() == [[7]]
    parts = {"b": (np.array([1, 2]), np.array([3, 4])), "a": (np.array([5]), np.array([6]))}
    found = clients.by_name(parts, "here", "1" * 64)
    assert found.features.tolist() == [5, 1, 2] and found.labels.tolist() == [6, 3, 4]
    assert found.starts.tolist() == [0, 1] and found.counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("deal", "said"),
    [
        (lambda: clients.dirichlet(_dataset(), 0, 1.0, 0), "`clients=0`: give 1 to 1,200"),
        (lambda: clients.dirichlet(_dataset(), 3, 0.0, 0), "`alpha=0.0`"),
        (lambda: clients.dirichlet(_dataset(), 3, np.nan, 0), "`alpha=nan`"),
        (lambda: clients.dealt(_dataset(3), np.array([0, 2, 2])), "client 1 of 3 has no examples"),
        (lambda: clients.by_name({}, "here", ""), "here holds no clients"),
        (lambda: clients.by_name({"a": (np.zeros(0), [])}, "here", ""), "client 'a' of here has no"),
    ],
)
def test_what_cannot_be_dealt_is_one_line(deal, said):
    refusal(deal, said)


def test_images_are_dealt_with_their_labels():
    """Bytes of images, as Fashion-MNIST and CIFAR-10 come."""
    rng = np.random.default_rng(5)
    for shape in ((28, 28), (32, 32, 3)):
        images = rng.integers(0, 256, (60, *shape), np.uint8)
        labels = np.arange(60, dtype=np.int32) % 10
        dealt = clients.dirichlet(Dataset(images, labels, "", ""), 5, 1.0, seed=0)
        assert dealt.features.dtype == np.uint8 and dealt.features.shape == images.shape
        got, _ = dealt.of(2)
        assert all((images == image).all(axis=tuple(range(1, images.ndim))).any() for image in got)
