"""LEAF's data sets by user (Caldas et al., 2018), from a folder that LEAF's preprocess.sh has written.

The folder holds train/*.json and test/*.json, each with users, num_samples and user_data. LEAF's scripts
fetch CelebA, Sent140 and Shakespeare from where they are published; no package carries them.
"""

import json
import string
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.storage.files import regular
from audit.tasks.task import Clients
from models.data.clients import by_name

PIXELS = 32  # the side of an image, after cropping
IMAGE_FOLDERS = (  # where images are looked for, within the folder that the user names
    "raw/img_align_celeba",
    "img_align_celeba",
    ".",
)
SENT140_CHARACTERS = string.printable  # numbered from 0
SENT140_LENGTH = 25
SENT140_VOCABULARY = (
    101  # the last number stands for all other characters, and fills up short texts
)
SHAKESPEARE_CHARACTERS = (  # LEAF's 80, numbered from 0; LEAF too gives all others the last number
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
SHAKESPEARE_LENGTH = 80

Examples = tuple[NDArray[np.uint8], NDArray[np.int32]]  # features (n, ...), labels (n,)
UserData = tuple[str, list[Any], list[Any]]  # user, x, y
_FORM = "users, num_samples and user_data, with lists x and y for each user"


class _LeafDataset(NamedTuple):
    """A data set of LEAF.

    Attributes:
      name: the data set's name in LEAF.
      made_by: LEAF's command that writes it, for messages.
      parse: a function from a user's x and y, as in the JSON, to (features (n, ...), labels (n,)).
    """

    name: str
    made_by: str
    parse: Callable[[list[Any], list[Any]], Examples]


def load_celeba(folder: str | None, split: str, clients: int = 0) -> Clients:
    """Loads CelebA from LEAF: faces that smile or not; a client is a celebrity.

    Args:
      folder: LEAF's data/celeba/data, with the images in raw/img_align_celeba, in img_align_celeba, or beside
        train and test.
      split: "train" or "test".
      clients: the largest number of clients to read, in the order of files and names; 0 for all.

    Returns:
      Clients with features (N, 32, 32, 3) uint8, images scaled to a shorter side of 32 pixels and cropped to
      their middle square, and labels (N,), 0 or 1 as in LEAF.

    Raises:
      InputError: no folder is given, it is not in that form, or an image can't be read.
    """

    def parse(names: list[Any], labels: list[Any]) -> Examples:
        """Reads a celebrity's images, by the names of their files, and parses their labels."""
        # `folder` is not None here: `_load` has refused that before it parses anything.
        faces = [_read_face(str(folder), str(name)) for name in names]
        return np.stack(faces), _parse_labels(labels)

    made_by = "data/celeba/preprocess.sh -s niid --sf 1.0 -k 0 -t user, with images in raw/img_align_celeba"
    return _load(_LeafDataset("celeba", made_by, parse), folder, split, clients)


def load_sent140(folder: str | None, split: str, clients: int = 0) -> Clients:
    """Loads Sent140 from LEAF: tweets and their sentiment; a client is a Twitter user.

    Args:
      folder: LEAF's data/sent140/data.
      split: "train" or "test".
      clients: the largest number of clients to read, in the order of files and names; 0 for all.

    Returns:
      Clients with features (N, 25) uint8 and labels (N,), 0 or 1 as in LEAF. The features of a tweet are
      numbers that stand for its first 25 characters, not counting spaces.

    Raises:
      InputError: no folder is given, or it is not in that form.
    """

    def parse(tweets: list[Any], labels: list[Any]) -> Examples:
        """Turns a user's tweets into numbers (n, 25) of characters and their labels into an array (n,).

        A tweet is a list, a row of Sent140's table; its fifth column is the text.
        """
        texts = []
        for tweet in tweets:
            text = str(tweet[4])
            texts.append("".join(text.split()))  # without spaces
        # The last number stands for every character outside SENT140_CHARACTERS.
        other = SENT140_VOCABULARY - 1
        features = _number_characters(texts, SENT140_CHARACTERS, SENT140_LENGTH, other)
        return features, _parse_labels(labels)

    made_by = "data/sent140/preprocess.sh -s niid --sf 0.15 -k 1 -t user --tf 0.6"
    return _load(_LeafDataset("sent140", made_by, parse), folder, split, clients)


def load_shakespeare_json(folder: str | None, split: str, clients: int = 0) -> Clients:
    """Loads Shakespeare from LEAF: 80 characters and the next one as label; a client is a role of a play.

    Args:
      folder: LEAF's data/shakespeare/data.
      split: "train" or "test".
      clients: the largest number of clients to read, in the order of files and names; 0 for all.

    Returns:
      Clients with features (N, 80) uint8, a text's characters, and labels (N,), the character that follows.
      Characters are numbered from 0 to 79.

    Raises:
      InputError: no folder is given, or it is not in that form.
    """

    def parse(texts: list[Any], next_characters: list[Any]) -> Examples:
        """Turns a role's texts into numbers (n, 80) of characters, and the next characters into (n,)."""
        have_length = all(len(text) == SHAKESPEARE_LENGTH for text in texts)
        require(have_length, "a text has not 80 characters")
        # As in LEAF, a character outside SHAKESPEARE_CHARACTERS gets the number of the last that is inside.
        other = len(SHAKESPEARE_CHARACTERS) - 1
        features = _number_characters(texts, SHAKESPEARE_CHARACTERS, SHAKESPEARE_LENGTH, other)
        following = list(map(str, next_characters))
        # Each next character is read as a text of length 1; the labels are its only column.
        labels = _number_characters(following, SHAKESPEARE_CHARACTERS, length=1, other=other)
        return features, labels[:, 0].astype(np.int32)

    made_by = "data/shakespeare/preprocess.sh -s niid --sf 1.0 -k 0 -t sample --tf 0.8"
    return _load(_LeafDataset("shakespeare", made_by, parse), folder, split, clients)


def _load(dataset: _LeafDataset, folder: str | None, split: str, clients: int) -> Clients:
    """Loads a split of a data set of LEAF from its JSON files.

    Args:
      dataset: the data set, with the function that parses it.
      folder: the folder that the user names; None where they name none.
      split: "train" or "test", the name of a folder within it.
      clients: the largest number of clients to read, in the order of files and names; 0 for all.

    Returns:
      The users' examples; each of LEAF's users is a client.

    Raises:
      InputError: no folder is given, it is not in LEAF's form, or a user is there twice.
    """
    name = dataset.name
    origin = f"LEAF writes it with {dataset.made_by}"
    message = (
        f"`leaf`: name the folder data/{name}/data, with train/*.json and test/*.json; {origin}"
    )
    require(folder, message)
    split_folder = Path(str(folder)).expanduser() / split  # `str` tells the type checker: not None
    files = sorted(split_folder.glob("*.json"))
    require(files, f"`leaf={folder}` holds no {split}/*.json of {name}; {origin}")

    parts: dict[str, Examples] = {}
    users = islice(_read_files(files), clients or None)  # None, for 0, takes all
    for file, user, x, y in users:
        require(user not in parts, f"{file}: user {user!r} is there twice; {origin}")
        parts[user] = _parse_user(dataset, file, user, x, y)
    return by_name(parts, f"{name} of LEAF, {folder}/{split}")


def _read_files(files: list[Path]) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """Yields (file, user, x, y) of all users of some files; reads a file when its first user is needed."""
    for file in files:
        for user, x, y in _read_users(file):
            yield file, user, x, y


def _read_users(file: Path) -> list[UserData]:
    """Reads the users of one of LEAF's JSON files, sorted by name, with their examples.

    LEAF's JSON has parallel lists `users` and `num_samples`; its `user_data` holds for each user a list x of
    examples and a list y of their labels.

    Returns:
      (user's name, x, y) for each user.

    Raises:
      InputError: the file cannot be read, is in another form, or a user's lists are not num_samples long.
    """
    try:
        content = json.loads(regular(file, "LEAF writes files").read_bytes())
        users = content["users"]
        sizes = content["num_samples"]
        data = content["user_data"]
        rows = []
        misfits = []
        for user, size in zip(users, sizes, strict=True):
            x = data[user]["x"]
            y = data[user]["y"]
            rows.append((str(user), x, y))
            if not len(x) == len(y) == size:
                misfits.append(str(user))
    except InputError:  # from `regular`; it is a ValueError, but has its message already
        raise
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):  # the last from deeply nested JSON
        raise InputError(f"{file} is not LEAF's JSON: it is to hold {_FORM}") from None
    # Wrong lengths are reported last, in a file that is otherwise LEAF's JSON.
    if misfits:
        raise InputError(
            f"{file}: num_samples of user {misfits[0]!r} is not the length of its x and y"
        )
    return sorted(rows)


def _parse_user(
    dataset: _LeafDataset, file: Path, user: str, x: list[Any], y: list[Any]
) -> Examples:
    """Returns a user's examples; an InputError names the file and the user.

    Args:
      dataset: the data set; its `parse` turns x and y into arrays.
      file: the file's path, for messages.
      user: the user's name, for messages.
      x: the user's examples, as they stand in the JSON.
      y: their labels, likewise.
    """
    require(len(y), f"{file}: user {user!r} has no examples: leave it out")
    try:
        return dataset.parse(x, y)
    except InputError as error:
        raise InputError(f"{file}, user {user!r}: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        message = f"{file}: user {user!r} has examples that are not those of {dataset.name}"
        raise InputError(message) from None


def _parse_labels(values: list[Any]) -> NDArray[np.int32]:
    """Returns labels (n,) as int32; raises InputError for a label that is neither 0 nor 1."""
    labels = np.array(list(map(int, values)), np.int32)
    require(np.isin(labels, (0, 1)).all(), "a label is not of 0 to 1")
    return labels


def _number_characters(
    texts: list[str],
    characters: str,
    length: int,
    other: int,
) -> NDArray[np.uint8]:
    """Returns the numbers (n, length) of the first characters of n texts.

    Args:
      texts: the n texts; shorter ones are filled up with `other`.
      characters: the characters that have a number of their own, in the order of their numbers from 0.
      length: the number of characters to return of each text.
      other: the number of all other characters.
    """
    numbers = {character: number for number, character in enumerate(characters)}
    numbered = np.full((len(texts), length), other, np.uint8)
    for row, text in zip(numbered, texts, strict=True):
        row[: len(text)] = [numbers.get(character, other) for character in text[:length]]
    return numbered


def _read_face(folder: str, name: str) -> NDArray[np.uint8]:
    """Reads an image and crops it to its middle square, as (32, 32, 3) of uint8.

    The image is first scaled to a shorter side of 32 pixels.

    Args:
      folder: LEAF's folder of CelebA.
      name: the name of the image's file.

    Raises:
      InputError: there is no such image, or it cannot be read.
    """
    from PIL import Image

    path = _find_image(folder, name)
    try:
        with Image.open(str(path), formats=["JPEG", "PNG"]) as image:
            scale = PIXELS / min(image.size)
            # The size is rounded down; `max` undoes it where rounding left the shorter side a pixel short.
            width = max(int(image.width * scale), PIXELS)
            height = max(int(image.height * scale), PIXELS)
            scaled = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            left = round((width - PIXELS) / 2)
            top = round((height - PIXELS) / 2)
            return np.array(scaled.crop((left, top, left + PIXELS, top + PIXELS)))
    except OSError as error:
        raise InputError(f"{path} is no image that can be read ({error})") from None


def _find_image(folder: str, name: str) -> Path:
    """Finds an image in one of the folders where LEAF, or the user, may have put it.

    Raises InputError where it is in none.
    """
    for inner_folder in IMAGE_FOLDERS:
        path = Path(folder).expanduser() / inner_folder / name
        if path.is_file():
            return path
    raise InputError(f"image {name} is not in {IMAGE_FOLDERS[0]} of {folder}, nor beside train")
