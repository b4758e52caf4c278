"""Files that are written whole or not at all."""

import contextlib
import errno
import functools
import math
import os
import shutil
import stat
import sys
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from audit.errors import InputError, require

NOT_AN_ARCHIVE: tuple[type[Exception], ...] = (  # what np.load raises, at last, of bytes that are damaged
    *(AttributeError, EOFError, KeyError, MemoryError, OSError, RuntimeError, SyntaxError, TypeError),
    *(ValueError, zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
_SPARE_BYTES = 1 << 20
_MEND = "name another folder with `out`"


class CannotWriteError(InputError):
    """A folder or disk refuses, and will go on to."""


def write_whole(path: Path, content: bytes, mend: str = _MEND) -> Path:
    """Writes beside and renames into place, there where links lead; a device or a pipe is written to as it
    is. Raises InputError, which ends in the mend, where that can't be done."""
    with writing(path, mend):
        if _is_replaceable(path):
            real = Path(os.path.realpath(path))
            real.parent.mkdir(parents=True, exist_ok=True)
            with beside(real) as place, open(place, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        else:
            with open(path, "wb") as file:
                file.write(content)
    return path


def read(path: Path) -> bytes | None:
    """A file's content, None where there is none; raises InputError where it can't be read now."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_read(path, error) from None


def regular(path: Path, mend: str = "copy it into one", most: float = math.inf) -> Path:
    """The path, if it is a file's of at most so many bytes. Raises InputError, which ends in the mend, for a
    larger one, and for a device or a pipe, which may never end; OSError where it can't be found out."""
    status = path.stat()
    require(stat.S_ISREG(status.st_mode), f"cannot read {path}: it is no file; {mend}")
    require(status.st_size <= most, f"cannot read {path}: it is larger than {most / 2**30:g} GiB; {mend}")
    return path


def _is_replaceable(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A hidden path that the end of the block renames to `path`, or removes where something failed."""
    place = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        yield place
        os.replace(place, path)
    except BaseException:
        remove(place)
        raise


def remove(path: Path) -> None:
    """Removes a file or folder, as far as the disk lets it."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(path: Path, mend: str, what: str = "is damaged") -> Path:
    """Moves a damaged file or folder to a name that nobody reads, which is returned, and says on stderr what
    is wrong with it and what mends it; raises InputError where it can't be moved."""
    aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:6]}")
    with writing(path):
        os.replace(path, aside)
    print(f"{path} {what}: set aside, {mend}", file=sys.stderr)
    return aside


@functools.cache
def say_once(line: str) -> None:
    """Prints a line on stderr, once a process."""
    print(line, file=sys.stderr)


@contextlib.contextmanager
def writing(path: Path, mend: str = _MEND) -> Iterator[None]:
    """Raises InputError where the folder or disk refuses what is done in here."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, mend) from None


def require_room(folder: Path, size: int) -> None:
    """Raises OSError where the disk has no room for so many bytes: for libraries that fail loudly."""
    if shutil.disk_usage(folder).free < size + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def cannot_write(path: Path, error: OSError, mend: str = _MEND) -> CannotWriteError:
    """The one line for a folder or disk that refuses, and what mends it."""
    return CannotWriteError(f"cannot write {path} ({error.strerror}): {mend}")


def cannot_read(path: Path, error: OSError) -> InputError:
    """The one line for a file or folder that can't be read now."""
    return InputError(f"cannot read {path} ({error.strerror}): mend that, or name another folder with `out`")
