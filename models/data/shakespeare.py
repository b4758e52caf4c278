"""Shakespeare's plays by play and speaker: what each role says, as sequences of characters.

The text is World Library's edition, distributed by Project Gutenberg for personal use and not commercially.
It is fetched, never shipped; whoever fetches it is told so.
"""

import gzip
import re
import sys
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from audit.errors import require
from audit.task import Clients
from models.data.clients import by_name
from models.data.formats import Arrays, gunzip, read_npz, zip_member
from models.data.sources import Package, Recipe, load_arrays

LENGTH = 80  # positions of a sequence
CHARACTERS = (  # TFF's 86, in the order of their codes; numbered from 1
    "\n\r !\"#$%&'()*,-./0123456789:;?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_abcdefghijklmnopqrstuvwxyz"
)
PADDING, BEGIN, END, UNKNOWN = 0, 87, 88, 89
VOCABULARY = 90
LICENCE = (
    "shakespeare: this electronic version is copyright 1990-1993 by World Library, Inc.; copies are for"
    " personal use only, not for commercial use"
)


def load_shakespeare(
    *,
    file: str | None = None,
    tfds_dir: str | None = None,
    cache_dir: str | None = None,
    least_characters: int = 160,
) -> Clients:
    """Roles of Shakespeare's plays as clients, with the next character as each character's label.

    A role is a speaker of a play; what it says, its speeches in order with a line break between them, is one
    text, from BEGIN to END. Characters are numbered as in CHARACTERS, from 1; others are UNKNOWN. A text of
    n characters gives ceil((n + 1) / 80) sequences: features (80,) are 80 numbers and labels (80,) those one
    further, so that each character of the text, and its END, is a label once. The last sequence is filled up
    with PADDING.

    Args:
      file: the text, as the package has it, .txt or .txt.gz, or the .npz that is in the cache.
      tfds_dir: must be None: TFDS has these plays without their speakers.
      cache_dir: as of `load_arrays`.
      least_characters: roles that say fewer, by default two sequences, are left out.

    Returns clients with features and labels (N, 80) of uint8 and int32; raises InputError as `load_arrays`,
    and where no role says so much. Fetching says the text's licence on stderr.
    """
    require(tfds_dir is None, "`tfds_dir` has no roles of Shakespeare's: name the text with `data_file`")
    loaded = load_arrays(SHAKESPEARE, file=file, cache_dir=cache_dir)
    texts = np.split(loaded.arrays["text"], np.cumsum(loaded.arrays["counts"])[:-1])
    roles = zip(loaded.arrays["names"].tolist(), texts, strict=True)
    chosen = {name: sequences(text) for name, text in roles if len(text) >= least_characters}
    require(chosen, f"`least_characters={least_characters}` leaves no role of {loaded.source}: lower it")
    return by_name(chosen, loaded.source, loaded.checksum)


def encoded(text: str) -> NDArray[np.uint8]:
    """The numbers of a text's characters."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    numbers: NDArray[np.uint8] = _NUMBERS[np.minimum(codes, len(_NUMBERS) - 1)]
    return numbers


def sequences(text: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Features and labels (n, 80) of one role's numbers."""
    whole = np.concatenate([[BEGIN], text, [END]]).astype(np.uint8)
    count = -(-(len(whole) - 1) // LENGTH)
    padded = np.concatenate([whole, np.full(count * LENGTH + 1 - len(whole), PADDING, np.uint8)])
    features = padded[:-1].reshape(count, LENGTH).copy()
    features[padded[1:].reshape(count, LENGTH) == PADDING] = PADDING
    return features, padded[1:].reshape(count, LENGTH).astype(np.int32)


def roles(text: str) -> dict[str, str]:
    """What each role says, by "play / speaker", from the text of the complete works."""
    said: defaultdict[str, list[str]] = defaultdict(list)
    for title, body in _plays(text):
        for speaker, speech in _speeches(body):
            said[f"{title} / {speaker}"].append(speech)
    return {name: "\n".join(speeches) for name, speeches in sorted(said.items())}


def _plays(text: str) -> Iterator[tuple[str, list[str]]]:
    """(title, lines) of each work that has acts; a work begins with a line that is its year."""
    text = re.sub(r"<<.*?>>", "", text.replace("\r\n", "\n"), flags=re.DOTALL)
    for work in re.split(r"^1[56]\d\d\n", text, flags=re.MULTILINE)[1:]:
        lines = work.strip().split("\n")
        acts = [i for i, line in enumerate(lines) if re.match(r" *ACT\b", line)]
        if acts:
            yield lines[0].strip(), lines[acts[0] :]


def _speeches(lines: list[str]) -> Iterator[tuple[str, str]]:
    """(speaker, speech): a speech begins with its speaker's name and goes on while lines are indented more.

    Names are indented by one or two spaces, or, in one play, not at all and then in capitals. Lines that are
    indented further than verse, or begin with Enter or Exit, are stage directions, as is what stands behind a
    wide space.
    """
    at_margin, indented = (sum(bool(name.match(line)) for line in lines) for name in (_CAPITALS, _NAME))
    name, depth = (_CAPITALS, 0) if at_margin > indented else (_NAME, 2)
    speaker, speech = "", list[str]()
    for line in filter(str.strip, lines):
        indent = len(line) - len(line.lstrip())
        begins = name.match(line)
        if (begins or indent <= depth) and speech:
            yield speaker, "\n".join(speech)
            speech = []
        if begins:
            speaker = begins["name"].upper()
            speech = [_spoken(line[begins.end() :])]
        elif speech and indent <= depth + 4 and not _DIRECTION.match(line):
            speech.append(_spoken(line))
    if speech:
        yield speaker, "\n".join(speech)


def _spoken(line: str) -> str:
    """A line without what stands behind a wide space (an exit, say)."""
    return re.split(r"(?<=\S) {3,}", line.strip(), maxsplit=1)[0]


_NAME = re.compile(r" {1,2}(?P<name>[A-Z][A-Za-z'-]*(?: [A-Za-z][A-Za-z'-]*){0,3})\. *")
_CAPITALS = re.compile(r"(?P<name>(?!ACT\b|SCENE\b)[A-Z][A-Z'-]+(?: [A-Z][A-Z'-]*){0,3})\. +")
_DIRECTION = re.compile(r" *(?:Enter|Re-enter|Exit|Exeunt)\b")
_NUMBERS = np.full(129, UNKNOWN, np.uint8)
_NUMBERS[[ord(character) for character in CHARACTERS]] = np.arange(1, 1 + len(CHARACTERS))


def _read(content: bytes) -> Arrays:
    said = roles(content.decode("utf-8-sig", errors="replace"))
    names = np.array(list(said), dtype=np.str_)
    texts = [encoded(text) for text in said.values()]
    counts = np.array([len(text) for text in texts], np.int64)
    return {"names": names, "counts": counts, "text": np.concatenate([np.zeros(0, np.uint8), *texts])}


def _canonical(raw: Arrays) -> Arrays:
    missing = [name for name in ("names", "counts", "text") if name not in raw]
    require(not missing, f"array {', '.join(missing)} is missing; it has {list(raw)}"[:300])
    names, counts, text = raw["names"], raw["counts"], raw["text"]
    require(len(names), "it holds no play with speakers, in the form of the package's text")
    fits = text.dtype == np.uint8 and counts.shape == names.shape and counts.sum() == len(text)
    require(fits and (counts >= 0).all(), "its roles' lengths do not add up to its text")
    require((text >= 1).all() and (text <= UNKNOWN).all(), f"a character is not of 1 to {UNKNOWN}")
    return {"names": names.astype(np.str_), "counts": counts.astype("<i8"), "text": text}


def _package(archive: bytes) -> Arrays:
    print(LICENCE, file=sys.stderr)
    return _read(gzip.decompress(zip_member(archive, "pug/data/cache/shakespeare-complete-works.txt.gz")))


PUG_DATA = Package(
    "pip",
    "pug-data==0.0.4",
    "c7025d329d4efd7fb517652fa52c5de78e6b606802129e6dec460ae9ebc7a4f2",
    _package,
)
SHAKESPEARE = Recipe(
    "shakespeare",
    "4b53d4921caa5c8f3ac2bb946e72484e698f11ac21f2116fccc4edf332d114e7",
    _canonical,
    {".txt": _read, ".gz": lambda content: _read(gunzip(content)), ".npz": read_npz},
    None,
    (PUG_DATA,),
    "name the text with `data_file`",
)
