"""Standard streams that are closed, full, left by their reader, or that lack characters."""

import codecs
import errno
import io
import os
import sys

_STDERR = 2
_USAGE_ERROR = 2
_OUTPUT_ERRORS = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# What stands for characters of our messages where a stream's encoding lacks them.
_SPELLINGS = {"≥": ">=", "≤": "<=", "∞": "inf", "\N{NO-BREAK SPACE}": " "}
_SPELLING_OUT = "audit.spell_out"  # by this name Python knows the function that puts them there


def prepare() -> None:
    """Prepares the standard streams for a command: none is closed, and each takes any character."""
    _open_closed_streams()
    codecs.register_error(_SPELLING_OUT, _spell_out)
    for stream in (sys.stdout, sys.stderr):
        # A program may have put something else in a stream's place, which takes text as it likes.
        if isinstance(stream, io.TextIOWrapper) and not _takes_any_character(stream):
            stream.reconfigure(errors=_SPELLING_OUT)


def _takes_any_character(stream: io.TextIOWrapper) -> bool:
    """Returns whether a stream prints any character, and the bytes of a file's name that are none.

    These bytes are what UTF-8 lacks; Python prints them as they are where no locale is set.
    """
    return codecs.lookup(stream.encoding).name == "utf-8" and stream.errors != "strict"


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """Returns a spelling in ASCII of what an encoding lacks, and where the text goes on.

    A character without a spelling of ours becomes an escape, such as \\u2260.
    """
    assert isinstance(error, UnicodeEncodeError)
    spellings = []
    for character in error.object[error.start : error.end]:
        escape = character.encode("ascii", "backslashreplace").decode("ascii")
        spellings.append(_SPELLINGS.get(character, escape))
    return "".join(spellings), error.end


def _open_closed_streams() -> None:
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
