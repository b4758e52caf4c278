"""Examples dealt to clients: each once, none without, alike for one seed."""

import json

import numpy as np
import pytest
from PIL import Image

from audit.errors import InputError
from audit.tasks.task import Dataset
from models.data import clients, leaf
from tests.models.data.made_up import refusal


def _dataset(size=1200, classes=10):
    labels = np.random.default_rng(0).permutation(np.arange(size) % classes).astype(np.int32)
    return Dataset(np.arange(size)[:, None], labels, "made up", "0" * 64)


def _shares(dealt):
    """Computes the share of each class (M, 10) of each client's examples."""
    counts = []
    for client in range(dealt.number):
        _, labels = dealt.of(client)
        counts.append(np.bincount(labels, minlength=10))
    return np.array(counts) / dealt.counts[:, None]


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
    first = clients.dirichlet(_dataset(), 30, 0.5, seed=3)
    same = clients.dirichlet(_dataset(), 30, 0.5, seed=3)
    other = clients.dirichlet(_dataset(), 30, 0.5, seed=4)
    np.testing.assert_array_equal(first.features, same.features)
    assert not np.array_equal(first.counts, other.counts)
    even = clients.dirichlet(_dataset(12000), 20, 1e6, seed=2)
    assert (
        abs(even.counts - 600).max() <= 12
    )  # a rounding and a few per mille in each of ten classes
    assert abs(_shares(even) - 0.1).max() < 0.01
    uneven = clients.dirichlet(_dataset(12000), 20, 0.1, seed=2)
    assert np.median(_shares(uneven).max(axis=1)) > 0.4
    alpha = 0.5
    m = 50
    n = 20_000
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
    loaded = clients.by_name(parts, "here", "1" * 64)
    assert loaded.features.tolist() == [5, 1, 2] and loaded.labels.tolist() == [6, 3, 4]
    assert loaded.starts.tolist() == [0, 1] and loaded.counts.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("deal", "message"),
    [
        (lambda: clients.dirichlet(_dataset(), 0, 1.0, 0), "`clients=0`: give 1 to 1,200"),
        (lambda: clients.dirichlet(_dataset(), 3, 0.0, 0), "`alpha=0.0`"),
        (lambda: clients.dirichlet(_dataset(), 3, np.nan, 0), "`alpha=nan`"),
        (lambda: clients.dealt(_dataset(3), np.array([0, 2, 2])), "client 1 of 3 has no examples"),
        (lambda: clients.by_name({}, "here", ""), "here holds no clients"),
        (
            lambda: clients.by_name({"a": (np.zeros(0), [])}, "here", ""),
            "client 'a' of here has no",
        ),
    ],
)
def test_what_cannot_be_dealt_is_one_line(deal, message):
    refusal(deal, message)


def test_images_are_dealt_with_their_labels():
    """The images are bytes, as Fashion-MNIST and CIFAR-10 come."""
    rng = np.random.default_rng(5)
    for shape in ((28, 28), (32, 32, 3)):
        images = rng.integers(0, 256, (60, *shape), np.uint8)
        labels = np.arange(60, dtype=np.int32) % 10
        dealt = clients.dirichlet(Dataset(images, labels, "", ""), 5, 1.0, seed=0)
        assert dealt.features.dtype == np.uint8
        assert dealt.features.shape == images.shape
        pixel_axes = tuple(range(1, images.ndim))
        images_of_client, _ = dealt.of(2)
        for image in images_of_client:
            assert (images == image).all(axis=pixel_axes).any()


def write(folder, split, users, name="all_data_0"):
    (folder / split).mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / split / f"{name}.json").write_text(json.dumps(content))
    return folder


def tweet(text):
    return [1, "Mon Apr 06", "NO_QUERY", "someone", text, "training"]


@pytest.fixture
def tweets(tmp_path):
    texts = [tweet("so sad"), tweet("é!" + "x" * 40)]
    write(tmp_path, "train", {"b": (texts, [0, 1])}, "one")
    return write(tmp_path, "train", {"a": ([tweet("hi you")], ["1"])}, "two")


def test_tweets_are_characters_by_user_of_one_file(tweets):
    loaded = leaf.load_sent140(str(tweets), "train")
    assert loaded.number == 2
    assert loaded.counts.tolist() == [1, 2]  # a, then b
    assert loaded.features.shape == (3, 25)
    assert loaded.labels.tolist() == [1, 0, 1]
    letters = [leaf.SENT140_CHARACTERS.index(c) for c in "hiyou"]
    assert loaded.features[0].tolist() == letters + [100] * 20
    assert loaded.features[2, 0] == 100
    assert (loaded.features[2, 2:] == leaf.SENT140_CHARACTERS.index("x")).all()
    assert leaf.load_sent140(str(tweets), "train", 1).number == 1
    again = leaf.load_sent140(str(tweets), "train")
    assert len(loaded.checksum) == 64
    assert loaded.checksum == again.checksum
    write(tweets, "train", {"a": ([tweet("again")], [0])}, "xwo")
    with pytest.raises(InputError, match="xwo.json: user 'a' is there twice"):
        leaf.load_sent140(str(tweets), "train")


def test_plays_are_80_characters_and_the_next(tmp_path):
    text = "To be, or not to be, that is the question: whether tis nobler in the mind to suf"
    assert len(text) == 80 == len(leaf.SHAKESPEARE_CHARACTERS)
    folder = write(tmp_path, "test", {"HAMLET": ([text], ["f"])})
    loaded = leaf.load_shakespeare_json(str(folder), "test")
    assert "".join(leaf.SHAKESPEARE_CHARACTERS[i] for i in loaded.features[0]) == text
    assert loaded.labels.tolist() == [leaf.SHAKESPEARE_CHARACTERS.index("f")]
    folder = write(tmp_path / "short", "test", {"X": (["ab"], ["c"])})
    with pytest.raises(InputError, match="user 'X': a text has not 80 characters"):
        leaf.load_shakespeare_json(str(folder), "test")


@pytest.mark.parametrize("place", leaf.IMAGE_FOLDERS)
def test_faces_are_cut_from_the_images_beside_the_json(tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((218, 178, 3), np.uint8)
    pixels[:18] = 255  # cropped away
    pixels[-12:] = 255
    Image.fromarray(pixels).save(folder / "000001.jpg")
    Image.fromarray(np.full((178, 218, 3), 200, np.uint8)).save(folder / "000002.jpg")
    write(tmp_path, "train", {"7": (["000001.jpg", "000002.jpg"], [1, 0])})
    loaded = leaf.load_celeba(str(tmp_path), "train")
    assert loaded.features.shape == (2, 32, 32, 3)
    assert loaded.features.dtype == np.uint8
    assert loaded.features[0].max() < 40
    assert loaded.features[0, 16].max() < 5
    assert abs(int(loaded.features[1].min()) - 200) < 3
    assert loaded.labels.tolist() == [1, 0]


def test_no_file_is_read_after_the_limit_of_clients(tmp_path):
    write(tmp_path, "train", {"a": ([tweet("x")], [0]), "b": ([tweet("y")], [1])})
    (tmp_path / "train" / "zzz.json").write_text("{")
    assert leaf.load_sent140(str(tmp_path), "train", clients=2).number == 2
    with pytest.raises(InputError, match="zzz.json is not LEAF's JSON"):
        leaf.load_sent140(str(tmp_path), "train", clients=3)


def one_user(x, y, number):
    return json.dumps({"users": ["a"], "num_samples": number, "user_data": {"a": {"x": x, "y": y}}})


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "one.json is not LEAF's JSON: it is to hold users"),
        ("[]", "is not LEAF's JSON"),
        ('{"users": ["a"], "num_samples": [1], "user_data": {}}', "is not LEAF's JSON"),
        (one_user([1], [1], [1, 1]), "is not LEAF's JSON"),
        (one_user([1], [1], [2]), "num_samples of user 'a'"),
        (one_user(["ab"], [1], [1]), "user 'a' has examples"),
        (one_user([tweet("x")], [2], [1]), "a label is not of"),
        (one_user([], [], [0]), "user 'a' has no examples"),
    ],
)
def test_a_malformed_file_is_named_in_a_line(tmp_path, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "one.json").write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        leaf.load_sent140(str(tmp_path), "train")
    assert "\n" not in str(caught.value)


def test_an_image_that_is_missing_or_none_is_named(tmp_path):
    write(tmp_path, "train", {"7": (["000001.jpg"], [1])})
    with pytest.raises(
        InputError, match="user '7': image 000001.jpg is not in raw/img_align_celeba"
    ):
        leaf.load_celeba(str(tmp_path), "train")
    (tmp_path / "000001.jpg").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"000001.jpg is no image that can be read"):
        leaf.load_celeba(str(tmp_path), "train")
