"""TensorFlow Federated's published data sets, EMNIST by writer and Stack Overflow by user, which no package
carries: an SQLite file of examples by split and client, each a serialised tf.train.Example. The standard
library and NumPy read it, without TensorFlow."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.task import Clients
from models.data.clients import by_name

EMNIST_CLASSES, EMNIST_DIGITS = 62, 10
EMNIST_PUBLISHED = (
    "EMNIST by writer is TensorFlow Federated's emnist_all.sqlite, which"
    " tff.simulation.datasets.emnist.load_data() downloads as emnist_all.sqlite.lzma"
)
SENTENCE_LENGTH = 20  # positions
WORDS = 10_000
PADDING, BEGIN, END, UNKNOWN = 0, WORDS + 1, WORDS + 2, WORDS + 3
VOCABULARY = WORDS + 4
COUNTS = "stackoverflow.word_count"
STACKOVERFLOW_PUBLISHED = (
    "Stack Overflow by user is TensorFlow Federated's stackoverflow.sqlite, which"
    " tff.simulation.datasets.stackoverflow.load_data() downloads as stackoverflow.sqlite.lzma, with"
    f" {COUNTS} of load_word_counts() beside it"
)
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # the kinds of a feature's list, by its field's number
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # wire types

Feature = NDArray[np.float32] | NDArray[np.int64] | list[bytes]
Parse = Callable[[dict[str, Feature]], tuple[NDArray[np.generic], NDArray[np.int32] | np.int32]]


def load_emnist(
    *, file: str | None = None, only_digits: bool = False, test: bool = False, clients: int | None = None
) -> Clients:
    """Handwritten characters of 3,400 writers, or digits of 3,383 (Caldas et al., 2018; Reddi et al., 2020).

    Args:
      file: emnist_all.sqlite, unpacked.
      only_digits: the split of ten classes; 341,873 training examples instead of 671,585.
      test: each writer's test examples instead of the training examples.
      clients: how many writers to read at most, in the order of their names; None for all.

    Returns:
      Clients with features (N, 28, 28) float32 on [0, 1], 1 being the background, as published, and labels
      (N,): digits, then capitals, then small letters.

    Raises:
      InputError: no file is named, or it is not in that form.
    """
    split = f"{'digits_only' if only_digits else 'all'}_{'test' if test else 'train'}"
    written = _clients(file, split, _character, EMNIST_PUBLISHED, clients)
    classes = EMNIST_DIGITS if only_digits else EMNIST_CLASSES
    strays = written.labels[(written.labels < 0) | (written.labels >= classes)]
    message = f"{written.source} holds label {strays[:1].tolist()}, not only 0 to {classes - 1}"
    require(not len(strays), message)
    return written


def _character(features: dict[str, Feature]) -> tuple[NDArray[np.float32], np.int32]:
    pixels = np.asarray(features["pixels"], "<f4").reshape(28, 28)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError("a pixel is not on [0, 1]")
    (label,) = features["label"]
    return pixels, np.int32(int(label))


def load_stackoverflow(
    *, file: str | None = None, split: str = "train", clients: int | None = None, sentences: int = 128
) -> Clients:
    """Sentences of 342,477 users, with the next word as each word's label (Reddi et al., 2020).

    Words are numbered from 1 by how many users write them, the 10,000 first; others are UNKNOWN. Of BEGIN, a
    sentence's words and END, features (20,) are the first 20 numbers and labels (20,) those one further,
    filled up with PADDING; a longer sentence is cut and has no END.

    Args:
      file: stackoverflow.sqlite, unpacked, with stackoverflow.word_count beside it.
      split: "train", "heldout" or "test".
      clients: how many users to read at most, in the order of their names; None for all, which takes memory
        for up to 44 million sentences.
      sentences: how many of a user's to read at most.

    Returns:
      Clients with features (N, 20) uint16 and labels (N, 20) int32. Users without sentences are left out.

    Raises:
      InputError: no file is named, it is not in that form, or a number is not above 0.
    """
    require(sentences >= 1, f"`sentences={sentences}`: give at least 1")
    require(clients is None or clients >= 1, f"`clients={clients}`: give at least 1")
    numbers = _word_numbers(Path(str(file)).expanduser().with_name(COUNTS)) if file is not None else {}
    parse = partial(_sentence, numbers)
    return _clients(file, split, parse, STACKOVERFLOW_PUBLISHED, clients, sentences)


def _word_numbers(path: Path) -> dict[str, int]:
    """The number of each word of a file with a line a word, its count behind it, the most frequent first."""
    require(path.is_file(), f"no {path}; {STACKOVERFLOW_PUBLISHED}")
    with open(path, encoding="utf-8", errors="replace") as lines:
        words = [line.split()[0] for line, _ in zip(lines, range(WORDS), strict=False) if line.strip()]
    require(words, f"{path} holds no words; {STACKOVERFLOW_PUBLISHED}")
    return {word: number for number, word in enumerate(words, 1)}


def _sentence(
    numbers: Mapping[str, int], features: dict[str, Feature]
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    (tokens,) = features["tokens"]
    words = bytes(tokens).decode("utf-8", errors="replace").split()
    whole = [BEGIN, *(numbers.get(word, UNKNOWN) for word in words), END][: SENTENCE_LENGTH + 1]
    read, following = np.full(SENTENCE_LENGTH, PADDING, "<u2"), np.full(SENTENCE_LENGTH, PADDING, "<i4")
    read[: len(whole) - 1] = whole[:-1]
    following[: len(whole) - 1] = whole[1:]
    return read, following


def _clients(
    file: str | None, split: str, parse: Parse, what: str, clients: int | None, examples: int | None = None
) -> Clients:
    """A split's clients with examples, so many at most. `what`: data set, file and origin, for messages."""
    require(file is not None, f"{what}: name it with `data_file`")
    path = Path(str(file)).expanduser().absolute()
    require(path.is_file(), f"`data_file={file}` is no file; {what}")
    packed = path.suffix in (".lzma", ".xz")
    require(not packed, f"`data_file={file}` is packed: unpack it with xz and name the file")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            most = (-1 if number is None else number for number in (clients, examples))
            found = _read(database, split, parse, *most)
    except (sqlite3.Error, KeyError, ValueError, IndexError) as error:
        line = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise InputError(f"`data_file={file}` cannot be read ({line}); {what}") from None
    parts = {
        name: (np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs]))
        for name, pairs in found.items()
        if pairs
    }
    return by_name(parts, f"file {file}, {split}")


def _read(
    database: sqlite3.Connection, split: str, parse: Parse, clients: int, examples: int
) -> dict[str, list[tuple[NDArray[np.generic], NDArray[np.int32] | np.int32]]]:
    named = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
    names = [name for (name,) in database.execute(named, (split, clients))]
    if not names:
        splits = [name for (name,) in database.execute("SELECT DISTINCT split_name FROM client_metadata")]
        raise ValueError(f"it holds no split {split}, only {splits}")
    rows = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ?"
        " ORDER BY rowid LIMIT ?"
    )
    return {
        name: [parse(parsed_example(row)) for (row,) in database.execute(rows, (split, name, examples))]
        for name in names
    }


def parsed_example(message: bytes) -> dict[str, Feature]:
    """A serialised tf.train.Example's features, by name. Raises ValueError if torn, or no such message."""
    found: dict[str, Feature] = {}
    for features in _fields(message, 1):
        for entry in _fields(features, 1):
            (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
            found[bytes(name).decode()] = _values(feature)
    return found


def _values(feature: bytes) -> Feature:
    for values in _fields(feature, _FLOATS):
        return np.frombuffer(b"".join(_fields(values, 1)), "<f4")
    for values in _fields(feature, _INTEGERS):
        return np.array(list(_varints(b"".join(_fields(values, 1)))), np.uint64).astype(np.int64)
    for values in _fields(feature, _BYTES):
        return _fields(values, 1)
    return []


def _fields(message: bytes, number: int) -> list[bytes]:
    """The contents of a message's fields of one number, in their order; a varint's are its bytes."""
    return [content for found, content in _all_fields(message) if found == number]


def _all_fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, content) of every field of a protocol buffer's message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            end = _varint(message, place)[1]
        elif wire == _SIZED:
            size, place = _varint(message, place)
            end = place + size
        elif wire in (_FOUR, _EIGHT):
            end = place + (4 if wire == _FOUR else 8)
        else:
            raise ValueError("an example is no tf.train.Example")
        if end > len(message):
            raise ValueError("an example is torn")
        yield number, message[place:end]
        place = end


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("an example is torn")
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), place


def _varints(message: bytes) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value
