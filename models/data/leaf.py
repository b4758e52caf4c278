"""LEAF's data sets by user (Caldas et al., 2018), from a folder that LEAF's preprocess.sh has written:
train/*.json and test/*.json, each with users, num_samples and user_data.

LEAF's scripts fetch CelebA, Sent140 and Shakespeare from where they are published; no package carries them.
"""

import json
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.storage.files import regular
from audit.task import Clients
from models.data.clients import by_name

PIXELS = 32  # a side, after cutting
IMAGE_FOLDERS = ("raw/img_align_celeba", "img_align_celeba", ".")  # where LEAF leaves them, and beside
SENT140_CHARACTERS = string.printable  # numbered from 0
SENT140_LENGTH, SENT140_VOCABULARY = 25, 101  # the last number stands for others, and fills up
SHAKESPEARE_CHARACTERS = (  # LEAF's 80, numbered from 0; others are its last, as there
    "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
)
SHAKESPEARE_LENGTH = 80

Examples = tuple[NDArray[np.uint8], NDArray[np.int32]]
_FORM = "users, num_samples and user_data, with lists x and y for each user"


class _Kind(NamedTuple):
    """A data set: its name in LEAF, how LEAF makes it, and what reads a user's x and y."""

    name: str
    made_by: str
    read: Callable[[list[Any], list[Any]], Examples]


def load_celeba(folder: str | None, split: str, clients: int = 0) -> Clients:
    """Faces of celebrities, smiling or not; a client is a celebrity.

    Args:
      folder: LEAF's data/celeba/data, with the images in raw/img_align_celeba, or beside train and test.
      split: "train" or "test".
      clients: how many to read at most, in the order of files and names; 0 for all.

    Returns:
      Clients with features (N, 32, 32, 3) uint8, the shorter side scaled to 32 and the middle cut out, and
      labels (N,), 0 or 1.

    Raises:
      InputError: no folder is named, it is not in that form, or an image can't be read.
    """
    made_by = "data/celeba/preprocess.sh -s niid --sf 1.0 -k 0 -t user, with images in raw/img_align_celeba"

    def read(names: list[Any], labels: list[Any]) -> Examples:
        return np.stack([_face(str(folder), str(name)) for name in names]), _labels(labels, 2)

    return _load(_Kind("celeba", made_by, read), folder, split, clients)


def load_sent140(folder: str | None, split: str, clients: int = 0) -> Clients:
    """Tweets and their sentiment; a client is a Twitter user.

    Arguments and errors as in `load_celeba`; the folder is LEAF's data/sent140/data.

    Returns:
      Clients with features (N, 25) uint8, the first characters of a tweet without its spaces, and labels
      (N,): 0 or 1.
    """

    def read(tweets: list[Any], labels: list[Any]) -> Examples:
        texts = ["".join(str(tweet[4]).split()) for tweet in tweets]  # id, date, query, user, text
        return _numbers(texts, SENT140_CHARACTERS, SENT140_LENGTH, 100), _labels(labels, 2)

    made_by = "data/sent140/preprocess.sh -s niid --sf 0.15 -k 1 -t user --tf 0.6"
    return _load(_Kind("sent140", made_by, read), folder, split, clients)


def load_shakespeare_json(folder: str | None, split: str, clients: int = 0) -> Clients:
    """80 characters of a role of Shakespeare's plays and the one that follows them; a client is a role.

    Arguments and errors as in `load_celeba`; the folder is LEAF's data/shakespeare/data.

    Returns:
      Clients with features (N, 80) uint8 and labels (N,) below 80.
    """

    def read(texts: list[Any], following: list[Any]) -> Examples:
        require(all(len(text) == SHAKESPEARE_LENGTH for text in texts), "a text has not 80 characters")
        features = _numbers(texts, SHAKESPEARE_CHARACTERS, SHAKESPEARE_LENGTH, 79)
        labels = _numbers(list(map(str, following)), SHAKESPEARE_CHARACTERS, 1, 79)[:, 0]
        return features, labels.astype(np.int32)

    made_by = "data/shakespeare/preprocess.sh -s niid --sf 1.0 -k 0 -t sample --tf 0.8"
    return _load(_Kind("shakespeare", made_by, read), folder, split, clients)


def _load(kind: _Kind, folder: str | None, split: str, clients: int) -> Clients:
    where = f"LEAF writes it with {kind.made_by}"
    message = f"`leaf`: name the folder data/{kind.name}/data, with train/*.json and test/*.json; {where}"
    require(folder, message)
    files = sorted(Path(str(folder)).expanduser().joinpath(split).glob("*.json"))
    require(files, f"`leaf={folder}` holds no {split}/*.json of {kind.name}; {where}")
    parts: dict[str, Examples] = {}
    for file in files:
        for user, x, y in _users(file):
            require(user not in parts, f"{file}: user {user!r} is there twice; {where}")
            if clients and len(parts) == clients:
                break
            parts[user] = _parsed(kind, file, user, x, y)
    return by_name(parts, f"{kind.name} of LEAF, {folder}/{split}")


def _users(file: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """(user, x, y) of each user of a file, by name; raises InputError for a file in another form."""
    try:
        content = json.loads(regular(file, "LEAF writes files").read_bytes())
        users, numbers, data = (content[name] for name in ("users", "num_samples", "user_data"))
        rows = [(str(user), data[user]["x"], data[user]["y"]) for user in users]
        fit = [len(x) == len(y) == number for (_, x, y), number in zip(rows, numbers, strict=True)]
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{file} is not LEAF's JSON: it is to hold {_FORM}") from None
    wrong = next((user for (user, _, _), fits in zip(rows, fit, strict=True) if not fits), "")
    require(all(fit), f"{file}: num_samples of user {wrong!r} is not the length of its x and y")
    yield from sorted(rows)


def _parsed(kind: _Kind, file: Path, user: str, x: list[Any], y: list[Any]) -> Examples:
    """A user's examples; raises InputError, with the file and the user, for what is none."""
    require(len(y), f"{file}: user {user!r} has no examples: leave it out")
    try:
        return kind.read(x, y)
    except InputError as error:
        raise InputError(f"{file}, user {user!r}: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise InputError(f"{file}: user {user!r} has examples that are not those of {kind.name}") from None


def _labels(values: list[Any], classes: int) -> NDArray[np.int32]:
    found = np.array([int(value) for value in values], np.int32)
    require((found >= 0).all() and (found < classes).all(), f"a label is not of 0 to {classes - 1}")
    return found


def _numbers(texts: list[str], characters: str, length: int, other: int) -> NDArray[np.uint8]:
    """(n, length) the numbers of characters; `other` for those that have none, and to fill up."""
    known = {character: number for number, character in enumerate(characters)}
    found = np.full((len(texts), length), other, np.uint8)
    for row, text in zip(found, texts, strict=True):
        row[: len(text)] = [known.get(character, other) for character in text[:length]]
    return found


def _face(folder: str, name: str) -> NDArray[np.uint8]:
    """(32, 32, 3), the shorter side scaled to 32 and the middle cut out."""
    from PIL import Image

    places = [Path(folder).expanduser() / inner / name for inner in IMAGE_FOLDERS]
    place = next((one for one in places if one.is_file()), None)
    require(place is not None, f"image {name} is not in {IMAGE_FOLDERS[0]} of {folder}, nor beside train")
    try:
        with Image.open(str(place), formats=["JPEG", "PNG"]) as image:
            scale = PIXELS / min(image.size)
            width, height = (max(int(side * scale), PIXELS) for side in image.size)
            left, top = round((width - PIXELS) / 2), round((height - PIXELS) / 2)
            small = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            return np.array(small.crop((left, top, left + PIXELS, top + PIXELS)))
    except OSError as error:
        raise InputError(f"{place} is no image that can be read ({error})") from None
