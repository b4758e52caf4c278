"""Ctrl-C and SIGTERM: each ends a command with one line on stderr, and what it stored can be continued.

The main thread raises KeyboardInterrupt once, so that blocks clean up. A library's callback may swallow it,
compiled code may not come back for minutes: a thread ends the process itself after a few seconds. What is
stored is whole at any instant.
"""

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

STATUS = 130
LINE = "interrupted: finished chunks are kept, the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_SECONDS = 3.0  # from an interrupt to the end of the process
# Compiled modules that are interrupted while they are imported crash, begun processes print
# tracebacks.
_FRAGILE = ("<frozen importlib._bootstrap>", "popen_spawn_posix.py")
_HAS_COME = threading.Event()  # an interrupt
_IS_OVER = threading.Event()  # the time in which interrupts matter


def install() -> None:
    """Has this process handle SIGINT and SIGTERM from now on, except those that it was started to ignore.

    A thread gets the number of each signal through a pipe, even while the main thread runs compiled code. A
    second call changes nothing.
    """
    handled = [s for s in _SIGNALS if signal.getsignal(s) not in (signal.SIG_IGN, _interrupt)]
    if not handled:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    for number in handled:
        signal.signal(number, _interrupt)


@contextlib.contextmanager
def end_in_one_line() -> Iterator[None]:
    """Ends the process with one line where an interrupt comes in the block, whatever the block raises then.

    After the block, interrupts are too late, and ignored.
    """
    try:
        yield
    except BaseException as error:
        # Whatever goes wrong after an interrupt is its doing.
        if _HAS_COME.is_set() or isinstance(error, KeyboardInterrupt):
            _end()
        raise
    _IS_OVER.set()
    if _HAS_COME.is_set():
        _end()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles the first signal by raising KeyboardInterrupt in the main thread.

    Not while a module is imported or a process started, which an exception would break: the watching thread
    then ends the process. Further signals, and those after the command's work, are ignored.

    Args:
      number: of the signal.
      frame: what the main thread was executing.
    """
    if _HAS_COME.is_set() or _IS_OVER.is_set():
        return
    _HAS_COME.set()
    sys.unraisablehook = lambda unraisable: None  # Python would report an interrupt in a callback
    while frame is not None:
        if frame.f_code.co_filename.endswith(_FRAGILE):
            return  # the watch ends the process
        frame = frame.f_back
    raise KeyboardInterrupt


def _watch(reading: int) -> None:
    """Waits for an interrupt, also while the main thread can't, and ends the process some seconds later.

    Args:
      reading: the end of a pipe that gets the number of every signal.
    """
    number = 0
    while number not in _SIGNALS:
        number = os.read(reading, 1)[0]
    if not _IS_OVER.wait(_MOST_SECONDS):
        _end()


def _end() -> NoReturn:
    """Writes a line on stderr, and ends the process at once, without Python's cleaning up.

    Threads of compilers crash an interpreter that is taken down beside them. The line begins with a line
    break, since a progress bar may be before it, and is left out where stderr would block.
    """
    with contextlib.suppress(OSError):
        _, writable, _ = select.select([], [2], [], 0)
        if writable:
            os.write(2, f"\nerror: {LINE}\n".encode())
    os._exit(STATUS)
