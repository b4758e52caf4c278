"""Shakespeare's plays by play and speaker: each role's text, as sequences of characters.

Project Gutenberg distributes this edition, by World Library, for personal and non-commercial use. We
therefore download the text instead of shipping it, and print its licence.
"""

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.tasks.task import Clients, Dataset, UserFile
from models.data.clients import group_by_client
from models.data.sources import Arrays, Package, Recipe, load_arrays

LENGTH = 80  # characters per sequence
MIN_CHARACTERS = 160  # per role, about two sequences
# TensorFlow Federated's 86 characters, sorted by code point. Their numbers start at 1.
CHARACTERS = (
    "\n\r !\"#$%&'()*,-./0123456789:;?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
)
PADDING = 0
BEGIN = 87
END = 88
UNKNOWN = 89
VOCABULARY = 90
LICENCE = (
    "shakespeare: this electronic version is copyright 1990-1993 by World Library, Inc.; copies are for"
    " personal use only, not for commercial use"
)


def load_shakespeare(user_file: UserFile) -> Clients:
    """Loads the roles in Shakespeare's plays as clients. Each character's label is the next character.

    A role is a speaker in a play. We join a role's speeches in order, with line breaks, and cut the text into
    sequences (`cut_into_sequences`). Roles with fewer than MIN_CHARACTERS are left out. Features are uint8
    and labels int32, both (N, 80).

    A user's file must contain the complete works as text, in the default package's layout. Raises InputError
    for other files, or if no source has the text or no role is long enough.
    """
    arrays, source, checksum = load_arrays(SHAKESPEARE, user_file)
    # `text` joins the texts of all roles in order of their names; `counts` contains their lengths.
    ends = np.cumsum(arrays["counts"])
    texts = np.split(arrays["text"], ends[:-1])
    cut_texts = [cut_into_sequences(text) for text in texts if len(text) >= MIN_CHARACTERS]
    require(
        cut_texts,
        f"no speaker in {source} has {MIN_CHARACTERS} characters of text: pass a longer text",
    )
    role_features, role_labels = zip(*cut_texts, strict=True)
    features = np.concatenate(role_features)
    labels = np.concatenate(role_labels)
    sizes = list(map(len, role_features))  # sequences of each role
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return group_by_client(Dataset(features, labels, source, checksum), owners)


def load_sequences(user_file: UserFile) -> Dataset:
    """Loads all sequences from Shakespeare's plays as examples. Features and labels are (N, 80)."""
    roles = load_shakespeare(user_file)
    return Dataset(roles.features, roles.labels, roles.source, roles.checksum)


def encode(text: str) -> NDArray[np.uint8]:
    """Returns a number for each of n characters: 1 to 86 in the order of CHARACTERS, or UNKNOWN."""
    numbers = {character: number for number, character in enumerate(CHARACTERS, 1)}
    return np.array([numbers.get(character, UNKNOWN) for character in text], np.uint8)


def cut_into_sequences(text: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Cuts a role's text (characters,) into sequences of 80 numbers, and labels each number with the next.

    BEGIN comes before the text and END after it, and PADDING fills the last sequence. Returns features
    (n, 80) and labels (n, 80).
    """
    tokens = np.concatenate([[BEGIN], text, [END]]).astype(np.uint8)
    n_labels = len(tokens) - 1  # BEGIN is not a label
    n_padding = -n_labels % LENGTH  # up to a multiple of LENGTH labels
    padded = np.pad(tokens, (0, n_padding), constant_values=PADDING)
    labels = padded[1:].reshape(-1, LENGTH)
    features = padded[:-1].reshape(-1, LENGTH)
    # PADDING also replaces END as a feature, because no character follows it.
    features = np.where(labels == PADDING, PADDING, features)
    return features, labels.astype(np.int32)


def collect_roles(text: str) -> dict[str, str]:
    """Returns each role's text, keyed by "play / speaker", from the complete works."""
    lines_by_role: defaultdict[str, list[str]] = defaultdict(list)
    for title, play in _find_plays(text):
        for speaker, speech in _find_speeches(play):
            lines_by_role[f"{title} / {speaker}"] += speech
    return {role: "\n".join(lines) for role, lines in sorted(lines_by_role.items())}


def _find_plays(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields (title, lines from the first act on) for each play in the complete works.

    A work begins with a line that contains only its year. Works without acts, such as poems, are skipped.
    """
    text = text.replace("\r\n", "\n")
    text = re.sub(r"<<.*?>>", "", text, flags=re.DOTALL)  # the licence, repeated in each work
    works = re.split(r"^1[56]\d\d\n", text, flags=re.MULTILINE)
    for work in works[1:]:  # the edition's preface comes first
        title, _, body = work.strip().partition("\n")
        first_act = re.search(r"^ *ACT\b", body, flags=re.MULTILINE)
        if first_act:
            yield title.strip(), body[first_act.start() :].split("\n")


def _find_speeches(play: list[str]) -> list[tuple[str, list[str]]]:
    """Returns (speaker, lines) for each speech in a play's lines, without stage directions.

    A speech begins with its speaker's name, and continues while lines are indented further. Stage directions
    are lines that begin with a word such as Enter or Exit, lines that are indented further than verse, and
    the rest of a line after three or more spaces.
    """
    name_pattern = _NAME  # indented by one or two spaces
    max_name_indent = 2
    # In one play, names are in capitals and not indented. We use the form with more matches.
    if len(list(filter(_CAPITALS.match, play))) > len(list(filter(_NAME.match, play))):
        name_pattern = _CAPITALS
        max_name_indent = 0
    max_verse_indent = max_name_indent + 4  # as in this edition

    speeches: list[tuple[str, list[str]]] = []
    in_speech = False  # True if the previous line belongs to a speech
    for line in filter(str.strip, play):
        indent = len(line) - len(line.lstrip())
        name = name_pattern.match(line)
        if name is not None:
            speaker = name["name"].upper()  # a play may print both Anne and ANNE
            first_line = _strip_directions(line[name.end() :])
            speeches.append((speaker, [first_line]))
            in_speech = True
        elif indent <= max_name_indent:  # such as a heading
            in_speech = False
        elif in_speech and indent <= max_verse_indent and not _DIRECTION.match(line):
            _, lines = speeches[-1]
            lines.append(_strip_directions(line))
    return speeches


def _strip_directions(line: str) -> str:
    """Returns a line without the stage directions printed after three or more spaces."""
    spoken, *_ = re.split(r"(?<=\S) {3,}", line.strip(), maxsplit=1)
    return spoken


_NAME = re.compile(r" {1,2}(?P<name>[A-Z][A-Za-z'-]*(?: [A-Za-z][A-Za-z'-]*){0,3})\. *")
_CAPITALS = re.compile(r"(?P<name>(?!ACT\b|SCENE\b)[A-Z][A-Z'-]+(?: [A-Z][A-Z'-]*){0,3})\. +")
_DIRECTION = re.compile(r" *(?:Enter|Re-enter|Exit|Exeunt)\b")


def _read_text(content: bytes) -> Arrays:
    """Returns all roles' names, the lengths of their texts, and the joined texts."""
    # "utf-8-sig" drops a byte order mark. Invalid UTF-8 is decoded as replacement characters.
    texts_by_role = collect_roles(content.decode("utf-8-sig", errors="replace"))
    require(texts_by_role, "it must contain plays with speakers, laid out like the package's text")
    texts = list(map(encode, texts_by_role.values()))
    return {
        "names": np.array(list(texts_by_role)),
        "counts": np.array([len(text) for text in texts], "<i8"),
        "text": np.concatenate(texts),
    }


def _read_package(folder: Path) -> Arrays:
    """Reads the text from the package, and prints its licence."""
    print(LICENCE, file=sys.stderr)
    text = folder / "pug/data/cache/shakespeare-complete-works.txt.gz"
    return _read_text(gzip.decompress(text.read_bytes()))


SHAKESPEARE = Recipe(
    name="shakespeare",
    checksum="4b53d4921caa5c8f3ac2bb946e72484e698f11ac21f2116fccc4edf332d114e7",
    package=Package(
        client="pip",
        requirement="pug-data==0.0.4",
        sha256="c7025d329d4efd7fb517652fa52c5de78e6b606802129e6dec460ae9ebc7a4f2",
        read=_read_package,
    ),
    read_file=lambda path: _read_text(path.read_bytes()),
    hint="pass the text as `data`",
)
