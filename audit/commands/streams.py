"""Standard streams that are closed: a command does its work without them."""

import io
import os
import sys

_STDERR = 2


def repair() -> None:
    """Opens closed standard streams to where all is lost, so that no file is opened in their place."""
    number = 0
    while number <= _STDERR:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
        os.set_inheritable(number, number <= _STDERR)
    os.close(number)
    sys.stdout = sys.stdout or _open_null()
    sys.stderr = sys.stderr or _open_null()


def _open_null() -> io.TextIOWrapper:
    """Opens a text stream to where all is lost."""
    return io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8")
