"""Ctrl-C and SIGTERM: each ends a command with one line on stderr, which says whether the command can go on.

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

LINE = "interrupted"
KEPT_LINE = "interrupted: what is finished is kept, the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_MOST_SECONDS = 3.0  # from an interrupt to the end of the process
# Files of Python's own, as a frame names them: while their code runs, KeyboardInterrupt does harm. A
# compiled module that is interrupted while it is imported crashes, and a process that is being started
# prints a traceback.
_FRAGILE = ("<frozen importlib._bootstrap>", "popen_spawn_posix.py")
_come: list[int] = []  # the number of the first signal, once it has come
_KEEPS = threading.Event()  # set if the command keeps what is finished
# Set once the command's work is done, when interrupts no longer matter.
_IS_OVER = threading.Event()


def install() -> None:
    """Makes this process handle SIGINT and SIGTERM from now on; a signal that it ignores stays ignored.

    The first signal raises KeyboardInterrupt in the main thread. A second thread learns of it through a pipe,
    even while the main thread runs compiled code, and ends the process if that takes too long. A second call
    changes nothing.
    """
    handled = [s for s in _SIGNALS if signal.getsignal(s) not in (signal.SIG_IGN, _interrupt)]
    if not handled:  # all are ignored, or handled since an earlier call
        return
    # Python writes the number of each signal into the pipe. It must not block where the pipe is full.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    for number in handled:
        signal.signal(number, _interrupt)


def say_kept() -> None:
    """Makes the line of an interrupt say from now on that the command keeps what is finished."""
    _KEEPS.set()


@contextlib.contextmanager
def end_in_one_line() -> Iterator[None]:
    """Ends the process with a single line if an interrupt comes in the block, whatever the block raises then.

    Interrupts after the block are ignored: the command's work is done.
    """
    try:
        yield
    except BaseException as error:
        # An error after an interrupt counts as caused by it.
        if _come or isinstance(error, KeyboardInterrupt):
            _end()
        raise
    _IS_OVER.set()
    if _come:  # the block has swallowed the KeyboardInterrupt
        _end()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles a signal: raises KeyboardInterrupt in the main thread at the first one, ignores all others.

    It does not raise while a module is imported or a process is started, which an exception would break; the
    watching thread then ends the process. Signals after the command's work are ignored, too.

    Args:
      number: the signal's number.
      frame: the frame that the main thread was executing.
    """
    if _come or _IS_OVER.is_set():
        return
    _come.append(number)
    sys.unraisablehook = lambda unraisable: None  # Python would report an interrupt in a callback
    # The frame that was executing, and its callers: none may be in the code of imports or process starts.
    while frame is not None:
        if frame.f_code.co_filename.endswith(_FRAGILE):
            return  # `_watch` ends the process
        frame = frame.f_back
    raise KeyboardInterrupt


def _watch(reading: int) -> None:
    """Waits for an interrupt, and ends the process _MOST_SECONDS later unless its work is done by then.

    It runs in a thread of its own, so that it works even while the main thread is in compiled code.

    Args:
      reading: the end to read of a pipe that gets the number of every signal.
    """
    number = 0  # no signal's number
    while number not in _SIGNALS:  # the pipe also gets the numbers of other signals
        number = os.read(reading, 1)[0]
    if not _IS_OVER.wait(_MOST_SECONDS):
        _come.append(number)  # the main thread may never have handled it
        _end()


def _end() -> NoReturn:
    """Writes a line on stderr, and ends the process at once, without Python's clean-up.

    The exit status is that of the first signal: 130 for Ctrl-C, 143 for SIGTERM. During the clean-up, a
    compiler's threads that still run would crash the interpreter. The line begins with a line break, since a
    progress bar may be before it. It is left out where writing to stderr would block.
    """
    line = KEPT_LINE if _KEEPS.is_set() else LINE
    with contextlib.suppress(OSError):
        _, writable, _ = select.select([], [2], [], 0)
        if writable:
            os.write(2, f"\nerror: {line}\n".encode())
    number = _come[0] if _come else signal.SIGINT
    os._exit(status_of(number))


def status_of(number: int) -> int:
    """Returns the exit status of a command that a signal of this number ended, as shells give it."""
    return 128 + number
