"""Standard streams that are closed, full or left by their reader: a command needs no traceback for them."""

import errno
import io
import os
import sys

_STDERR = 2
_USAGE_ERROR = 2
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


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


def print_whole(text: str) -> None:
    """Prints a text, such as a program's help; does not mind if stdout's reader leaves before its end.

    Exits with status 2 and a line on stderr where stdout can't be written.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        problem = drop_unprinted(error)
        if problem:
            print(f"error: {problem}: send the output elsewhere", file=sys.stderr)
            sys.exit(_USAGE_ERROR)


def drop_unprinted(error: OSError) -> str:
    """Drops what stdout does not take, and returns why it does not, for a message.

    Returns "" where stdout's reader has left. Raises the error again where it does not come from stdout.

    Args:
      error: the error of printing, such as that of a full disk.
    """
    # An error that names a file comes from that file, not from stdout.
    if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
        raise error
    # What is still in stdout's buffer goes to the null device: flushing it at the end would fail again.
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return ""
    return f"cannot print ({error.strerror})"
