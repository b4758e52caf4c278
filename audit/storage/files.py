"""Reads files and writes them atomically."""

import contextlib
import hashlib
import os
import re
import shutil
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from audit.errors import InputError

# Matches the temporary files of `replacing`. The group is the process ID.
_TEMPORARY = re.compile(r"\..+\.(\d{1,9})-[0-9a-f]{8}")
_OTHER_FOLDER = "name another folder with `out`"


class CannotWriteError(InputError):
    """A file or folder can't be written."""


def write_whole(path: Path, content: bytes, fix: str = _OTHER_FOLDER) -> Path:
    """Writes a file atomically, creates missing folders, and returns the file's path.

    We write directly to devices and pipes, because renaming would replace them. Raises CannotWriteError with
    the advice `fix` on failure.
    """
    with writing(path, fix):
        if os.path.lexists(path) and not path.is_file():
            path.write_bytes(content)
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return path


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns an OSError in the `with` block into an InputError about `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot read {path} ({error.strerror}): fix that, or {_OTHER_FOLDER}"
        ) from None


def read(path: Path) -> bytes | None:
    """Returns a file's content, or None if it does not exist; raises InputError if it can't be read."""
    with _reading(path), contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def compute_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hex; raises InputError if it can't be read."""
    with _reading(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


def list_folder(folder: Path) -> list[Path]:
    """Returns the sorted paths in a folder, or [] if it does not exist.

    Raises InputError if the folder can't be read.
    """
    with _reading(folder), contextlib.suppress(FileNotFoundError):
        return sorted(folder.iterdir())
    return []


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`, and renames it to `path` after the `with` block.

    If the block raises an error, the temporary file is removed instead.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:  # even after an interrupt
        remove(temporary)
        raise


def remove_abandoned(folder: Path) -> None:
    """Removes the temporary files that dead processes left in a folder; ignores errors."""
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(PermissionError):  # another user's process is alive
            try:
                os.kill(int(match[1]), 0)  # signal 0 only checks that the process exists
            except ProcessLookupError:
                remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder and its contents; ignores errors."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(path: Path, fix: str, problem: str = "is damaged") -> None:
    """Renames an unusable file, if possible, and reports its `problem` on stderr.

    `fix` is the caller's next step, such as "its runs are trained again".
    """
    aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:6]}")
    outcome = f"set aside, {fix}"
    try:
        os.replace(path, aside)
    except OSError:
        outcome = "it counts as missing"
    print(f"{path} {problem}: {outcome}", file=sys.stderr)


@contextlib.contextmanager
def writing(path: Path, fix: str = _OTHER_FOLDER) -> Iterator[None]:
    """Turns an OSError in the `with` block into a CannotWriteError about `path` with the advice `fix`."""
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write {path} ({error.strerror}): {fix}") from None
