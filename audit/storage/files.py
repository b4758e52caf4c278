"""Files that are written whole or not at all."""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from audit.errors import InputError, require

_TEMPORARY = re.compile(r"\..+\.(\d{1,9})-[0-9a-f]{8}")  # with the number of the writing process
_OTHER_FOLDER = "name another folder with `out`"


class CannotWriteError(InputError):
    """A folder or disk can't be written to, and trying again would not help."""


def write_whole(path: Path, content: bytes, fix: str = _OTHER_FOLDER) -> Path:
    """Writes a file whole or not at all: writes a temporary file next to it, and renames that into place.

    A link's target is replaced, not the link. A device or a pipe is written to directly.

    Args:
      path: the file; its folder is made if it is missing.
      content: the file's bytes.
      fix: the advice at the end of the error's message.

    Returns:
      `path`.

    Raises:
      CannotWriteError: the file can't be written.
    """
    with writing(path, fix):
        is_file = True
        with contextlib.suppress(FileNotFoundError):  # but not the error for a loop of links
            is_file = stat.S_ISREG(path.stat().st_mode)
        if not is_file:
            path.write_bytes(content)
            return path
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as temporary, open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    return path


def read(path: Path) -> bytes | None:
    """Returns a file's content; None if there is no file.

    Raises InputError if it can't be read, or is a folder, a device or a pipe.
    """
    try:
        require(
            stat.S_ISREG(path.stat().st_mode), f"cannot read {path}: it is no file; move it away"
        )
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refuse(path, error) from None


def _refuse(path: Path, error: OSError) -> InputError:
    """Returns the error that a path can't be read."""
    fix = f"fix that, or {_OTHER_FOLDER}"
    return InputError(f"cannot read {path} ({error.strerror}): {fix}")


def compute_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file's content, in hex; raises InputError if it can't be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _refuse(path, error) from None


def list_folder(folder: Path) -> list[Path]:
    """Returns the paths in a folder, sorted; none if there is no folder. Raises InputError on failure."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _refuse(folder, error) from None


def regular(path: Path, fix: str = "copy it into one") -> Path:
    """Returns the path of a regular file; `fix` is the advice at the end of the error's message.

    Raises InputError for a device or a pipe, which may never end, and OSError if the path can't be looked at.
    """
    require(stat.S_ISREG(path.stat().st_mode), f"cannot read {path}: it is no file; {fix}")
    return path


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yields a hidden path in the same folder, for the block to write a file or folder there.

    At the end of the block it is renamed to `path`; after an error in the block it is removed instead.
    """
    # The name has this process's number, by which `remove_abandoned` sees whether the writer has died.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:  # interrupts, too
        remove(temporary)
        raise


def remove_abandoned(folder: Path) -> None:
    """Removes what processes left in a folder that were killed while they wrote there (`beside`).

    Files of processes that run on this machine stay. Errors of removing are ignored.
    """
    for path in folder.iterdir():
        match = _TEMPORARY.fullmatch(path.name)
        if match is None:
            continue
        with contextlib.suppress(PermissionError):  # somebody else's process
            try:
                os.kill(int(match[1]), 0)  # signal 0 sends nothing, and only looks the process up
            except ProcessLookupError:
                remove(path)


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it, if it is there; errors are ignored."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(path: Path, fix: str, problem: str = "is damaged") -> None:
    """Renames a damaged file to a name that nobody reads if that is possible, with a line on stderr.

    Args:
      path: the file.
      fix: what is done about the loss, for the message.
      problem: what is wrong with the file, for the message.
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
    """Turns an OSError that is raised in the block into a CannotWriteError.

    Args:
      path: what the block writes, for the message.
      fix: what to do about it, for the message.
    """
    try:
        yield
    except OSError as error:
        raise CannotWriteError(f"cannot write {path} ({error.strerror}): {fix}") from None
