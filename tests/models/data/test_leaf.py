"""LEAF's folders, made up: what is read of them, and the line that says what is wrong."""

import json

import numpy as np
import pytest
from PIL import Image

from audit.errors import InputError
from models.data import leaf


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
    write(tmp_path, "train", {"b": ([tweet("so sad"), tweet("é!" + "x" * 40)], [0, 1])}, "one")
    return write(tmp_path, "train", {"a": ([tweet("hi you")], ["1"])}, "two")


def test_tweets_are_characters_by_user_of_one_file(tweets):
    found = leaf.load_sent140(str(tweets), "train")
    assert found.number == 2 and found.counts.tolist() == [1, 2]  # a, then b
    assert found.features.shape == (3, 25) and found.labels.tolist() == [1, 0, 1]
    letters = [leaf.SENT140_CHARACTERS.index(c) for c in "hiyou"]
    assert found.features[0].tolist() == letters + [100] * 20
    assert found.features[2, 0] == 100 and (found.features[2, 2:] == leaf.SENT140_CHARACTERS.index("x")).all()
    assert leaf.load_sent140(str(tweets), "train", 1).number == 1
    assert len(found.checksum) == 64 and found.checksum == leaf.load_sent140(str(tweets), "train").checksum
    write(tweets, "train", {"a": ([tweet("again")], [0])}, "xwo")
    with pytest.raises(InputError, match="xwo.json: user 'a' is there twice"):
        leaf.load_sent140(str(tweets), "train")


def test_plays_are_80_characters_and_the_next(tmp_path):
    text = "To be, or not to be, that is the question: whether tis nobler in the mind to suf"
    assert len(text) == 80 == len(leaf.SHAKESPEARE_CHARACTERS)
    found = leaf.load_shakespeare_json(str(write(tmp_path, "test", {"HAMLET": ([text], ["f"])})), "test")
    assert "".join(leaf.SHAKESPEARE_CHARACTERS[i] for i in found.features[0]) == text
    assert found.labels.tolist() == [leaf.SHAKESPEARE_CHARACTERS.index("f")]
    with pytest.raises(InputError, match="user 'X': a text has not 80 characters"):
        leaf.load_shakespeare_json(str(write(tmp_path / "short", "test", {"X": (["ab"], ["c"])})), "test")


@pytest.mark.parametrize("place", leaf.IMAGE_FOLDERS)
def test_faces_are_cut_from_the_images_beside_the_json(tmp_path, place):
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((218, 178, 3), np.uint8)
    pixels[:18], pixels[-12:] = 255, 255  # cut away
    Image.fromarray(pixels).save(folder / "000001.jpg")
    Image.fromarray(np.full((178, 218, 3), 200, np.uint8)).save(folder / "000002.jpg")
    write(tmp_path, "train", {"7": (["000001.jpg", "000002.jpg"], [1, 0])})
    found = leaf.load_celeba(str(tmp_path), "train")
    assert found.features.shape == (2, 32, 32, 3) and found.features.dtype == np.uint8
    assert found.features[0].max() < 40 and found.features[0, 16].max() < 5
    assert abs(int(found.features[1].min()) - 200) < 3 and found.labels.tolist() == [1, 0]


def one_user(x, y, number):
    return json.dumps({"users": ["a"], "num_samples": number, "user_data": {"a": {"x": x, "y": y}}})


@pytest.mark.parametrize(
    "content, said",
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
def test_a_malformed_file_is_named_in_a_line(tmp_path, content, said):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "one.json").write_text(content)
    with pytest.raises(InputError, match=said) as caught:
        leaf.load_sent140(str(tmp_path), "train")
    assert "\n" not in str(caught.value)


def test_an_image_that_is_missing_or_none_is_named(tmp_path):
    write(tmp_path, "train", {"7": (["000001.jpg"], [1])})
    with pytest.raises(InputError, match="user '7': image 000001.jpg is not in raw/img_align_celeba"):
        leaf.load_celeba(str(tmp_path), "train")
    (tmp_path / "000001.jpg").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"000001.jpg is no image that can be read"):
        leaf.load_celeba(str(tmp_path), "train")
