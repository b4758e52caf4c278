"""Standard streams that nobody reads: a command does its work without them."""

import contextlib
import io
import os
import sys
from typing import Any

_STDERR = 2


def mend() -> None:
    """Opens streams that are closed to where all is lost, so that no file is opened in their place, and lets
    nothing fail for what stderr does not take."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stdout = sys.stdout or _unread()
    sys.stderr = sys.stderr or _unread()
    if sys.stderr is sys.__stderr__ and isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr = _unheard(sys.stderr)


def _unread() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")


class _Unheard(io.FileIO):
    """A file whose disk may be full, or whose reader away."""

    def write(self, content: Any, /) -> int:
        written = None
        with contextlib.suppress(OSError):
            written = super().write(content)
        return len(content) if written is None else written


def _unheard(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Unheard(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors=stream.errors, line_buffering=True
    )
