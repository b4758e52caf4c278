"""TensorFlow Federated's published data sets: EMNIST by writer and Stack Overflow by user.

No package carries them. Each is an SQLite file of examples by split and client, every example a serialised
tf.train.Example. The standard library and TFDS read it, without TensorFlow.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.errors import InputError, require
from audit.tasks.task import Clients
from models.data.clients import by_name

EMNIST_CLASSES = 62
EMNIST_PUBLISHED = (
    "EMNIST by writer is TensorFlow Federated's emnist_all.sqlite, which"
    " tff.simulation.datasets.emnist.load_data() downloads as emnist_all.sqlite.lzma"
)

SENTENCE_LENGTH = 20  # positions
WORDS = 10_000
PADDING = 0
BEGIN = WORDS + 1
END = WORDS + 2
UNKNOWN = WORDS + 3
VOCABULARY = WORDS + 4
COUNTS = "stackoverflow.word_count"
STACKOVERFLOW_PUBLISHED = (
    "Stack Overflow by user is TensorFlow Federated's stackoverflow.sqlite, which"
    " tff.simulation.datasets.stackoverflow.load_data() downloads as stackoverflow.sqlite.lzma, with"
    f" {COUNTS} of load_word_counts() beside it"
)

Example = tuple[NDArray[np.generic], NDArray[np.int32] | np.int32]  # features, label
ParseExample = Callable[[dict[str, Sequence[Any]]], Example]


def load_emnist(
    *,
    file: str | None = None,
    test: bool = False,
    clients: int | None = None,
) -> Clients:
    """Loads EMNIST, handwritten characters and their classes; each of its 3,400 writers is a client.

    The data set is that of Caldas et al. (2018) and Reddi et al. (2020).

    Args:
      file: the path of emnist_all.sqlite, unpacked.
      test: whether to load each writer's test examples instead of the training examples.
      clients: the largest number of writers to read, in the order of their names; None for all.

    Returns:
      Clients with features (N, 28, 28) float32 on [0, 1], 1 being the background, as published, and labels
      (N,): digits, then capitals, then small letters.

    Raises:
      InputError: no file is given, or it is not in that form.
    """
    split = "all_test" if test else "all_train"
    writers = _load_clients(file, split, _parse_character, EMNIST_PUBLISHED, clients)

    strays = writers.labels[(writers.labels < 0) | (writers.labels >= EMNIST_CLASSES)]
    most = EMNIST_CLASSES - 1
    message = f"{writers.source} holds label {strays[:1].tolist()}, not only 0 to {most}"
    require(not len(strays), message)
    return writers


def _parse_character(features: dict[str, Sequence[Any]]) -> tuple[NDArray[np.float32], np.int32]:
    """Returns a character's pixels (28, 28) and its label; raises ValueError for another form."""
    pixels = np.asarray(features["pixels"], "<f4").reshape(28, 28)
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise ValueError("a pixel is not on [0, 1]")
    (label,) = features["label"]
    return pixels, np.int32(int(label))


def load_stackoverflow(
    *,
    file: str | None = None,
    clients: int | None = None,
    sentences: int = 128,
) -> Clients:
    """Loads Stack Overflow, sentences of 342,477 users, with the next word as each word's label.

    Each user is a client (Reddi et al., 2020).

    The first 10,000 words of the published word counts have the numbers 1 to 10,000; all others are UNKNOWN.
    A sentence becomes the tokens BEGIN, its words, END. The features (20,) are its first 20 tokens, the
    labels (20,) the tokens 2 to 21; both are filled up with PADDING. A sentence of more than 19 words is cut
    and has no END among its labels.

    Args:
      file: the path of stackoverflow.sqlite, unpacked, with stackoverflow.word_count beside it.
      clients: the largest number of users to read, in the order of their names; None for all. All users
        need memory for up to 44 million sentences, at the default of `sentences`.
      sentences: the largest number of sentences to read of each user.

    Returns:
      Clients with features (N, 20) uint16 and labels (N, 20) int32. Users without sentences are left out.

    Raises:
      InputError: no file is given, it is not in that form, or a number is not above 0.
    """
    require(sentences >= 1, f"`sentences={sentences}`: give at least 1")
    require(clients is None or clients >= 1, f"`clients={clients}`: give at least 1")
    numbers: dict[str, int] = {}
    if file is not None:  # without a file, `_load_clients` raises the error that says which to name
        numbers = _read_word_numbers(Path(str(file)).expanduser().with_name(COUNTS))
    parse = partial(_parse_sentence, numbers)
    return _load_clients(file, "train", parse, STACKOVERFLOW_PUBLISHED, clients, sentences)


def _read_word_numbers(path: Path) -> dict[str, int]:
    """Reads the first 10,000 words of a file of word counts; returns the numbers from 1 by word.

    The file has a word and its count on each line, the most frequent word first. Raises InputError if it is
    missing or holds no words.
    """
    require(path.is_file(), f"no {path}; {STACKOVERFLOW_PUBLISHED}")
    words = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in islice(lines, WORDS):
            if line.strip():
                words.append(line.split()[0])
    require(words, f"{path} holds no words; {STACKOVERFLOW_PUBLISHED}")
    return {word: number for number, word in enumerate(words, 1)}


def _parse_sentence(
    numbers: Mapping[str, int],
    features: dict[str, Sequence[Any]],
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Returns a sentence's token numbers (20,) and the numbers of the tokens that follow them (20,).

    Args:
      numbers: the numbers of the 10,000 words, by word.
      features: the features of a tf.train.Example, of which "tokens" is the sentence.
    """
    (text,) = features["tokens"]
    words = bytes(text).decode("utf-8", errors="replace").split()
    sentence = [numbers.get(word, UNKNOWN) for word in words]
    tokens = [BEGIN, *sentence, END][: SENTENCE_LENGTH + 1]

    length = len(tokens) - 1
    inputs = np.full(SENTENCE_LENGTH, PADDING, "<u2")
    inputs[:length] = tokens[:-1]
    labels = np.full(SENTENCE_LENGTH, PADDING, "<i4")
    labels[:length] = tokens[1:]
    return inputs, labels


def _load_clients(
    file: str | None,
    split: str,
    parse: ParseExample,
    origin: str,
    clients: int | None,
    examples: int | None = None,
) -> Clients:
    """Loads the clients of a split, without those that have no examples.

    Args:
      file: the path of the SQLite file, unpacked.
      split: the split's name in the file.
      parse: a function from the features of a tf.train.Example to (features, label); it may raise ValueError
        or KeyError.
      origin: the data set, its file and where it is published, in words, for messages.
      clients: the largest number of clients to read; None for all.
      examples: the largest number of examples to read of each client; None for all.

    Raises:
      InputError: no file is given, or it is not in that form.
    """
    require(file is not None, f"{origin}: name it with `data_file`")
    path = Path(str(file)).expanduser().absolute()
    require(path.is_file(), f"`data_file={file}` is no file; {origin}")
    is_packed = path.suffix in (".lzma", ".xz")
    require(not is_packed, f"`data_file={file}` is packed: unpack it with xz and name the file")
    try:
        read_only = f"{path.as_uri()}?mode=ro"
        with closing(sqlite3.connect(read_only, uri=True)) as database:
            examples_by_client = _read_clients(database, split, parse, clients, examples)
    except (sqlite3.Error, KeyError, ValueError, IndexError) as error:
        reason = type(error).__name__
        if str(error):
            reason = str(error).splitlines()[0][:100]
        raise InputError(f"`data_file={file}` cannot be read ({reason}); {origin}") from None

    parts = {}
    for name, pairs in examples_by_client.items():
        if pairs:
            features, labels = zip(*pairs, strict=True)
            parts[name] = (np.stack(features), np.stack(labels))
    return by_name(parts, f"file {file}, {split}")


def _read_clients(
    database: sqlite3.Connection,
    split: str,
    parse: ParseExample,
    clients: int | None,
    examples: int | None,
) -> dict[str, list[Example]]:
    """Returns the examples of a split's clients, by the client's name.

    Queries client by client, so that of a file larger than memory, such as Stack Overflow's, only the
    examples within the limits are read. Raises ValueError where there is no such split.

    Args:
      database: a database in TensorFlow Federated's form, with the tables client_metadata and examples.
      split: the split's name.
      parse: a function from the features of a tf.train.Example to (features, label).
      clients: the largest number of clients to read; None for all.
      examples: the largest number of examples to read of each client; None for all.
    """
    no_limit = -1  # in SQLite
    most_clients = no_limit if clients is None else clients
    most_examples = no_limit if examples is None else examples

    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id LIMIT ?"
    names = [name for (name,) in database.execute(query, (split, most_clients))]
    if not names:
        query = "SELECT DISTINCT split_name FROM client_metadata"
        splits = [name for (name,) in database.execute(query)]
        raise ValueError(f"it holds no split {split}, only {splits}")

    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ?"
        " ORDER BY rowid LIMIT ?"
    )
    by_client: dict[str, list[Example]] = {}
    for name in names:
        by_client[name] = []
        for (message,) in database.execute(query, (split, name, most_examples)):
            features = parse_example(message)
            by_client[name].append(parse(features))
    return by_client


def parse_example(message: bytes) -> dict[str, Sequence[Any]]:
    """Returns the features of a serialised tf.train.Example, as sequences of values by name.

    Raises ValueError if `message` is no such example.
    """
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto.tf_example_generated_pb2 import Example as Message

    try:
        features = Message.FromString(message).features.feature
    except DecodeError:
        raise ValueError("an example is torn") from None
    values = {}
    for name, feature in features.items():
        # The list of values is stored under its type: bytes_list, float_list or int64_list. A feature that
        # has no list has no kind, which gives None.
        kind = feature.WhichOneof("kind")
        values[name] = getattr(feature, kind).value if kind else ()
    return values
