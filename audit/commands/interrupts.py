"""Ctrl-C and SIGTERM end a command with one line on stderr. A store is whole at any instant."""

import contextlib
import os
import signal
import threading
from types import FrameType

LINE = "interrupted"
KEPT_LINE = "interrupted: what is finished is kept, the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_is_kept = threading.Event()  # set if the command keeps what is finished


def install() -> None:
    """Ends this process at SIGINT and SIGTERM from now on; an ignored signal stays ignored.

    Python's own handlers wait while the main thread runs compiled code, which may take minutes, and a library
    may swallow their KeyboardInterrupt. So a second thread reads the signals' numbers from a pipe.
    """
    handled = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_end_at_signal, args=(reading,), daemon=True).start()
    for number in handled:
        signal.signal(number, _ignore)


def say_kept() -> None:
    """Makes the line of an interrupt say from now on that the command keeps what is finished."""
    _is_kept.set()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Leaves a signal to the thread that reads the pipe."""


def _end_at_signal(reading: int) -> None:
    """Waits for a signal, writes the line, and ends the process without Python's clean-up."""
    number = 0
    while number not in _SIGNALS:  # the pipe gets the numbers of other signals too
        number = os.read(reading, 1)[0]
    line = KEPT_LINE if _is_kept.is_set() else LINE
    with contextlib.suppress(OSError):
        os.write(2, f"\nerror: {line}\n".encode())  # on a line below a progress bar
    os._exit(128 + number)
