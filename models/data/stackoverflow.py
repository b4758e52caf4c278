"""Stack Overflow by user, from TensorFlow Federated's published files; no package carries it."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.task import Clients, checksum_of
from models.data.clients import by_name
from models.data.tff import Feature, read_clients

LENGTH = 20  # positions of a sentence
WORDS = 10_000
PADDING, BEGIN, END, UNKNOWN = 0, WORDS + 1, WORDS + 2, WORDS + 3
VOCABULARY = WORDS + 4
COUNTS = "stackoverflow.word_count"
PUBLISHED = (
    "Stack Overflow by user is TensorFlow Federated's stackoverflow.sqlite, which"
    " tff.simulation.datasets.stackoverflow.load_data() downloads as stackoverflow.sqlite.lzma, with"
    f" {COUNTS} of load_word_counts() beside it"
)


def load_stackoverflow(
    *,
    file: str | None = None,
    split: str = "train",
    clients: int | None = None,
    sentences: int = 128,
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
    numbers = word_numbers(Path(str(file)).expanduser().with_name(COUNTS)) if file is not None else {}
    parse = partial(_example, numbers)
    found = read_clients(file, split, parse, what=PUBLISHED, clients=clients, examples=sentences)
    parts = {
        name: (np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs]))
        for name, pairs in found.items()
        if pairs
    }
    said = by_name(parts, f"file {file}, {split}", "")
    arrays = {"features": said.features, "labels": said.labels, "counts": said.counts}
    return said._replace(checksum=checksum_of(arrays))


def word_numbers(path: Path) -> dict[str, int]:
    """The number of each word of a file with a line a word, its count behind it, the most frequent first."""
    require(path.is_file(), f"no {path}; {PUBLISHED}")
    with open(path, encoding="utf-8", errors="replace") as lines:
        words = [line.split()[0] for line, _ in zip(lines, range(WORDS), strict=False) if line.strip()]
    require(words, f"{path} holds no words; {PUBLISHED}")
    return {word: number for number, word in enumerate(words, 1)}


def sequence(numbers: Mapping[str, int], tokens: list[str]) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    """Features and labels (20,) of one sentence's words."""
    whole = [BEGIN, *(numbers.get(token, UNKNOWN) for token in tokens), END][: LENGTH + 1]
    labels = np.full(LENGTH, PADDING, "<i4")
    labels[: len(whole) - 1] = whole[1:]
    features = np.full(LENGTH, PADDING, "<u2")
    features[: len(whole) - 1] = whole[:-1]
    return features, labels


def _example(
    numbers: Mapping[str, int], features: dict[str, Feature]
) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    (tokens,) = features["tokens"]
    return sequence(numbers, bytes(tokens).decode("utf-8", errors="replace").split())
