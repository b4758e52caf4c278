"""Ctrl-C and SIGTERM: each ends a command in one line, and what it stores can go on.

An interrupt is raised in the main thread, wherever that is. There a library's callback may swallow it, and
compiled code may not come back for minutes: so a thread raises it again until the command has ended, and ends
the process itself after a few seconds. What is stored is whole at any instant, so that nothing else need end.
"""

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

STATUS = 130
LINE = "interrupted: finished chunks are kept, the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.1  # until an interrupt is raised again
_MOST_SECONDS = 5.0  # from an interrupt to the end of the process
_IMPORT_MACHINERY = "<frozen importlib._bootstrap>"
_HAS_COME = threading.Event()  # an interrupt
_IS_OVER = threading.Event()  # the time in which interrupts matter


def install() -> None:
    """Has this process handle interrupts from now on, but for signals that it was started to ignore."""
    handled = [s for s in _SIGNALS if signal.getsignal(s) not in (signal.SIG_IGN, _interrupt)]
    if not handled:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    for number in handled:
        signal.signal(number, _interrupt)
    sys.unraisablehook = _without_interrupts(sys.unraisablehook)


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
    _ignore()
    if _HAS_COME.is_set():
        _end()


def _end() -> NoReturn:
    """Ends the process at once: compilers' threads crash an interpreter that is taken down beside them."""
    _ignore()
    with contextlib.suppress(Exception):
        print(f"error: {LINE}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    os._exit(STATUS)


def _ignore() -> None:
    """Ignores interrupts from now on."""
    _IS_OVER.set()
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles a signal by raising KeyboardInterrupt, unless now is a bad time: the watch comes again.

    It raises none where one is on its way already, as in the blocks that clean up behind one, and none while
    a module is imported: compiled modules crash or print tracebacks.
    """
    _HAS_COME.set()
    is_on_its_way = isinstance(sys.exception(), KeyboardInterrupt | SystemExit)
    if not is_on_its_way and not _is_importing(frame):
        raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    """Returns whether a frame belongs to the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_MACHINERY:
            return True
        frame = frame.f_back
    return False


def _watch(reading: int) -> None:
    """Waits for an interrupt, also while the main thread can't, and sends it again until the command ends.

    Args:
      reading: the end of a pipe that gets the number of every signal.
    """
    number = 0
    while number not in _SIGNALS:
        number = os.read(reading, 1)[0]
    _HAS_COME.set()
    end = time.monotonic() + _MOST_SECONDS
    while not _IS_OVER.wait(_AGAIN_SECONDS):
        if time.monotonic() > end:
            _leave()
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _leave() -> NoReturn:
    """Ends the process from the watch, with the line where stderr takes it.

    The main thread may be stuck in writing to stderr, and stderr may be behind a progress bar.
    """
    with contextlib.suppress(OSError):
        _, writable, _ = select.select([], [sys.stderr.fileno()], [], 0)
        if writable:
            os.write(sys.stderr.fileno(), f"\nerror: {LINE}\n".encode())
    os._exit(STATUS)


def _without_interrupts(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """Returns a hook that is silent on interrupts that were swallowed: they are raised again."""

    def report(unraisable: Any) -> None:
        is_interrupt = issubclass(unraisable.exc_type, KeyboardInterrupt)
        if not (_HAS_COME.is_set() and is_interrupt):
            hook(unraisable)

    return report
