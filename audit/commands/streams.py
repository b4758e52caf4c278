"""Replaces standard streams that are closed, so that a command does its work without them."""

import io
import os
import sys

_STDERR = 2


def open_closed_streams() -> None:
    """Opens each closed standard stream on the null device.

    Otherwise the next file that the program opens would get the number of a closed stream, and what is
    printed would end up in that file.
    """
    # `os.open` returns the lowest free number: it fills 0, 1 and 2 where they are free, then returns a larger
    # number, which is closed again. The three are for child processes too, as standard streams are.
    number = 0
    while number <= _STDERR:
        number = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(number, number <= _STDERR)
    os.close(number)

    # Python sets these to None where it starts with closed streams.
    sys.stdout = sys.stdout or _open_null_device()
    sys.stderr = sys.stderr or _open_null_device()


def _open_null_device() -> io.TextIOWrapper:
    """Returns a text stream that discards what is written to it."""
    return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
