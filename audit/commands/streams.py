"""Standard streams that nobody reads, or that are closed: a command does its work without them."""

import contextlib
import io
import os
import sys
from typing import Any

_STDERR = 2


def repair() -> None:
    """Makes closed standard streams usable, so that a command does its work without a reader.

    A closed stream is opened to where all is lost, so that no file is opened in its place. What stderr does
    not take is no error.
    """
    while True:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        if number > _STDERR:
            os.close(number)
            break
        os.set_inheritable(number, True)

    sys.stdout = sys.stdout or _open_null()
    sys.stderr = sys.stderr or _open_null()
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _make_forgiving(sys.stderr)


def _open_null() -> io.TextIOWrapper:
    """Opens a text stream to where all is lost."""
    return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")


class _ForgivingFile(io.FileIO):
    """A file that drops what can't be written: its disk may be full, or its reader away."""

    def write(self, content: Any, /) -> int:
        """Writes what the file takes, and returns how much that is; all where it takes nothing."""
        written = None
        with contextlib.suppress(OSError):
            written = super().write(content)
        if written is None:
            return len(content)
        return written


def _make_forgiving(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Returns a stream to the same file that drops what can't be written."""
    raw = _ForgivingFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )
