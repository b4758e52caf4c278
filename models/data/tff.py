"""TensorFlow Federated's published data sets: an SQLite file of examples by split and client, each a
serialised tf.train.Example. The standard library and NumPy read it, without TensorFlow."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require

Feature = NDArray[np.float32] | NDArray[np.int64] | list[bytes]
_Parsed = TypeVar("_Parsed")
_BYTES, _FLOATS, _INTEGERS = 1, 2, 3  # the kinds of a feature's list, by its field's number
_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5  # wire types


def read_clients(
    file: str | None,
    split: str,
    parse: Callable[[dict[str, Feature]], _Parsed],
    *,
    what: str,
    clients: int | None = None,
    examples: int | None = None,
) -> dict[str, list[_Parsed]]:
    """Each client's examples in the file's order, by the client's name.

    Args:
      file: path of the SQLite file.
      split: its name in the file.
      parse: from one example's features to what is wanted of it.
      what: the data set, its file and where that comes from, for messages.
      clients: how many clients to read at most, in the order of their names; None for all.
      examples: how many of a client's to read at most; None for all.

    Raises:
      InputError: no file is named, or it is not in that form.
    """
    require(file is not None, f"{what}: name it with `data_file`")
    path = Path(str(file)).expanduser().absolute()
    require(path.is_file(), f"`data_file={file}` is no file; {what}")
    packed = path.suffix in (".lzma", ".xz")
    require(not packed, f"`data_file={file}` is packed: unpack it with xz and name the file")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, split, parse, -1 if clients is None else clients, examples)
    except (sqlite3.Error, KeyError, ValueError, IndexError) as error:
        line = str(error).splitlines()[0][:100] if str(error) else type(error).__name__
        raise InputError(f"`data_file={file}` cannot be read ({line}); {what}") from None


def _read(
    database: sqlite3.Connection,
    split: str,
    parse: Callable[[dict[str, Feature]], _Parsed],
    clients: int,
    examples: int | None,
) -> dict[str, list[_Parsed]]:
    """An open file's clients."""
    named = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
    names = [name for (name,) in database.execute(named, (split, clients))]
    if not names:
        splits = [name for (name,) in database.execute("SELECT DISTINCT split_name FROM client_metadata")]
        raise ValueError(f"it holds no split {split}, only {splits}")
    rows = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ?"
        " ORDER BY rowid LIMIT ?"
    )
    most = -1 if examples is None else examples
    return {
        name: [parse(parsed_example(row)) for (row,) in database.execute(rows, (split, name, most))]
        for name in names
    }


def parsed_example(message: bytes) -> dict[str, Feature]:
    """The features of a serialised tf.train.Example, by name: floats, integers or strings of bytes.

    Raises:
      ValueError: the message is torn, or no such message.
    """
    found: dict[str, Feature] = {}
    for features in _fields(message, 1):
        for entry in _fields(features, 1):
            (name,), (feature,) = _fields(entry, 1), _fields(entry, 2)
            found[bytes(name).decode()] = _values(feature)
    return found


def _values(feature: bytes) -> Feature:
    """A feature's list."""
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
    """All of them, one after the other."""
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value
