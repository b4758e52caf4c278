"""Files that are written whole or not at all."""

import contextlib
import os
import uuid
from pathlib import Path

from audit.errors import InputError


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


def cannot_write(path: Path, error: OSError) -> InputError:
    """The one line for a folder or disk that refuses."""
    return InputError(f"cannot write {path} ({error.strerror}): name another folder with --out")
