"""One process at a time in a folder: a lock of the operating system, which ends with its holder."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from audit.storage import files


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Holds a folder's lock in the block, after waiting for it; a block may be within another.

    A line on stderr reports that another process holds it. Raises CannotWriteError if the folder can't be
    written.
    """
    import filelock  # imported here: a finished sweep needs no lock

    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock", is_singleton=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            print(f"another process works in {folder}: waiting for it", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
