"""Ctrl-C and SIGTERM: each ends a command in one line, and what it stores can go on.

An interrupt is raised in the main thread, wherever that is. There a library's callback may swallow it, and
compiled code may not come back for minutes: so a thread raises it again until the command has ended, and ends
the process itself after a few seconds. What is kept is whole at any instant, so that nothing else need end.
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

STATUS, LINE = 130, "interrupted: finished chunks are kept, the same command goes on"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS, _MOST_SECONDS = 0.1, 5.0
_IMPORT = "<frozen importlib._bootstrap>"
_HEARD, _OVER = threading.Event(), threading.Event()


def install() -> None:
    """Has this process hear interrupts so, from now on; one that was begun deaf to Ctrl-C stays so."""
    wanted = [one for one in _SIGNALS if signal.getsignal(one) not in (signal.SIG_IGN, _interrupt)]
    if not wanted:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()
    for one in wanted:
        signal.signal(one, _interrupt)
    sys.unraisablehook = _without_interrupts(sys.unraisablehook)


def heard() -> bool:
    """Whether an interrupt came: whatever went wrong since then is its doing."""
    return _HEARD.is_set()


@contextlib.contextmanager
def ending() -> Iterator[None]:
    """A block at whose end interrupts are too late, and which one ends, whatever it raised, with the line."""
    try:
        yield
    except BaseException as error:
        if heard() or isinstance(error, KeyboardInterrupt):
            _end()
        raise
    _ignore()
    if heard():
        _end()


def _end() -> NoReturn:
    """Ends the process at once: compilers' threads crash an interpreter that is taken down beside them."""
    _ignore()
    with contextlib.suppress(Exception):
        print(f"error: {LINE}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    os._exit(STATUS)


def _ignore() -> None:
    _OVER.set()
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises where none is on its way already, as in the blocks that clean up behind one, and no module is
    being imported: compiled ones crash or print tracebacks. The watch comes again."""
    _HEARD.set()
    if not isinstance(sys.exception(), KeyboardInterrupt | SystemExit) and not _imports(frame):
        raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None


def _watch(reading: int) -> None:
    """Hears of every signal, also while the main thread can't."""
    number = 0
    while number not in _SIGNALS:
        number = os.read(reading, 1)[0]
    _HEARD.set()
    end = time.monotonic() + _MOST_SECONDS
    while not _OVER.wait(_AGAIN_SECONDS):
        if time.monotonic() > end:
            _leave()
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _leave() -> NoReturn:
    """Ends the process from the watch, with the line where stderr takes it: the main thread may be stuck in
    writing to it, and behind a bar."""
    with contextlib.suppress(OSError):
        if select.select([], [sys.stderr.fileno()], [], 0)[1]:
            os.write(sys.stderr.fileno(), f"\nerror: {LINE}\n".encode())
    os._exit(STATUS)


def _without_interrupts(hook: Callable[[Any], object]) -> Callable[[Any], object]:
    """A hook that is silent on interrupts that were swallowed: they are raised again."""

    def said(unraisable: Any) -> None:
        if not (_HEARD.is_set() and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            hook(unraisable)

    return said
