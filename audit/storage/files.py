"""Files that are written whole or not at all."""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from audit.errors import InputError

_SPARE_BYTES = 1 << 20


class CannotWriteError(InputError):
    """A folder or disk refuses, and will go on to."""


def write_whole(path: Path, content: bytes) -> Path:
    """Writes beside and renames into place; raises InputError where that can't be done."""
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise cannot_write(path, error) from None
    return path


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises InputError where the folder or disk refuses what is done in here."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None


def require_room(folder: Path, size: int) -> None:
    """Raises OSError where the disk has no room for so many bytes: for libraries that fail loudly."""
    if shutil.disk_usage(folder).free < size + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def cannot_write(path: Path, error: OSError) -> CannotWriteError:
    """The one line for a folder or disk that refuses."""
    return CannotWriteError(f"cannot write {path} ({error.strerror}): name another folder with --out")
