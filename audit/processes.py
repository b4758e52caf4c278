"""Processes that work for this one: they leave Ctrl-C to it, and end when it ends, however it does.

A terminal sends Ctrl-C to every process of its group, and a killed process cannot tell its own. So they are
begun where no interrupt strikes, hear none, and watch the process that began them. Importing this starts
nothing.
"""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from audit.errors import InputError

Task = TypeVar("Task")
Result = TypeVar("Result")
_SPAWN = multiprocessing.get_context("spawn")  # a process of JAX's threads can't be forked


def in_order(function: Callable[[Task], Result], tasks: Iterable[Task], processes: int) -> Iterator[Result]:
    """The results of many tasks in their order, spread over processes; one process is this one.

    Raises InputError where a process dies.
    """
    listed = list(tasks)
    if processes == 1:
        yield from map(function, listed)
        return
    with _pool(processes) as pool:
        with _undisturbed():
            results = pool.map(function, listed, chunksize=max(1, min(50, len(listed) // processes)))
        yield from results


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Tasks and their results as they are done in so many processes; errors are those of `in_order`."""
    listed = list(tasks)
    if not listed:
        return
    with _pool(processes) as pool:
        with _undisturbed():
            waiting = {pool.submit(function, task): task for task in listed}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()


def apart(function: Callable[[], Result]) -> Result:
    """A function's result, or the error that it raised, from a process that ends with it."""
    with _pool(1) as pool:
        with _undisturbed():
            future = pool.submit(function)
        return future.result()


def attempt(function: Callable[[], Iterable[Result]], seconds: float) -> tuple[list[Result], str]:
    """What a function yields in a process of its own, which is killed after so many seconds, and a line that
    says why no more came; empty where the function ended by itself."""
    here, there = pipe(duplex=False)
    end, found = time.monotonic() + seconds, list[Result]()
    process = begin(_tell, there, function)
    there.close()
    try:
        while here.poll(max(end - time.monotonic(), 0)):
            result, why = here.recv()
            if why is not None:
                return found, why
            found.append(result)
        return found, f"not done after {seconds:.0f} s"
    except EOFError:
        process.join()
        return found, f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def begin(function: Callable[..., object], *arguments: Any) -> SpawnProcess:
    """A process that calls a function, and ends with this one."""
    process = _SPAWN.Process(target=_serve, args=(function, *arguments), daemon=True)
    resource_tracker.ensure_running()  # what begins it lets interrupts through again
    with _undisturbed():
        process.start()
    return process


def pipe(duplex: bool = True) -> tuple[Any, Any]:
    """The two ends of a pipe to a process that `begin` begins."""
    return _SPAWN.Pipe(duplex)


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """A pool that is killed, whatever it is at, where the block does not end well."""
    with _undisturbed():
        pool = ProcessPoolExecutor(processes, _SPAWN, _attach)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError("a process of the pool died: free memory, or use fewer processes") from None
    finally:
        with _undisturbed():
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(cancel_futures=True)


def _serve(function: Callable[..., object], *arguments: Any) -> None:
    _attach()
    function(*arguments)


def _tell(there: connection.Connection, function: Callable[[], Iterable[object]]) -> None:
    """Sends (a result, None) for each, and at last (None, why there are no more)."""
    try:
        for result in function():
            there.send((result, None))
        why = ""
    except Exception as error:  # whatever it is, it is said
        line = (str(error).splitlines() or [""])[0]
        why = line if isinstance(error, InputError) else f"{type(error).__name__}: {line}"
    there.send((None, why[:300]))


def _attach() -> None:
    """In a process that was begun here: deaf to Ctrl-C, and watching who began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Interrupts wait for the end of the block; a process that is begun in it hears no SIGINT."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda number, frame: heard.append(number)) for number in numbers]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler or signal.SIG_DFL)
        for first in heard[:1]:
            signal.raise_signal(first)
