"""Worker processes: they leave Ctrl-C to their parent, and end when it ends, however it ends.

A terminal sends Ctrl-C to each process of its group, and a killed process cannot stop its own. So they ignore
Ctrl-C, and watch the process that began them. Importing this starts nothing.
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
# A process of JAX's threads can't be forked.
_SPAWN = multiprocessing.get_context("spawn")


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[Result]:
    """Yields function(task) of each task, in the tasks' order, computed in several processes.

    Args:
      function: of a task; a function of a module, which processes can import.
      tasks: picklable.
      processes: how many; with 1 everything is computed in this process.

    Raises:
      InputError: a process dies.
    """
    all_tasks = list(tasks)
    if processes == 1:
        yield from map(function, all_tasks)
        return
    # Tasks are sent in chunks, which costs less; every process gets a chunk at least.
    chunk = max(1, min(50, len(all_tasks) // processes))
    with _pool(processes) as pool:
        with _sigint_blocked():
            results = pool.map(function, all_tasks, chunksize=chunk)
        yield from results


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) as processes complete them; see `in_order` for arguments and errors."""
    all_tasks = list(tasks)
    if not all_tasks:
        return
    with _pool(processes) as pool:
        with _sigint_blocked():
            waiting = {pool.submit(function, task): task for task in all_tasks}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()


def run_in_own_process(function: Callable[[], Result]) -> Result:
    """Returns a function's result, or raises its error, from a process of its own that ends afterwards.

    What the function loads, allocates or sets in the environment is gone with it.
    """
    with _pool(1) as pool:
        with _sigint_blocked():
            future = pool.submit(function)
        return future.result()


def run_with_limit(
    function: Callable[[], Iterable[Result]], seconds: float
) -> tuple[list[Result], str]:
    """Calls a function in a process of its own, which is killed after some seconds.

    Args:
      function: yields results.
      seconds: to the limit.

    Returns:
      (the results, a line that says why no more came); the line is empty where the function ended by itself.
    """
    here, there = pipe(duplex=False)
    end = time.monotonic() + seconds
    results: list[Result] = []
    process = begin(_send_results, there, function)
    there.close()  # this process's copy: with the other's death the pipe then ends (EOFError)
    try:
        while here.poll(max(end - time.monotonic(), 0)):
            result, reason = here.recv()
            if reason is not None:
                return results, reason
            results.append(result)
        return results, f"not done after {seconds:.0f} s"
    except EOFError:
        process.join()
        return results, f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()


def begin(function: Callable[..., object], *arguments: Any) -> SpawnProcess:
    """Starts a process that calls a function with arguments, and that ends when this process does."""
    process = _SPAWN.Process(target=_serve, args=(function, *arguments), daemon=True)
    # Python's tracker of shared resources would unblock SIGINT if it were first started in the
    # block below.
    resource_tracker.ensure_running()
    with _sigint_blocked():
        process.start()
    return process


def pipe(duplex: bool = True) -> tuple[Any, Any]:
    """Returns the two ends of a pipe to a process that `begin` begins."""
    return _SPAWN.Pipe(duplex)


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes; where the block raises, they are killed at once, whatever they do.

    Raises InputError where a process of the pool dies.
    """
    pool = ProcessPoolExecutor(processes, _SPAWN, _attach_to_parent)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError(
            "a process of the pool died: free memory, or use fewer processes"
        ) from None
    finally:  # after a proper end there are none left to kill
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


def _serve(function: Callable[..., object], *arguments: Any) -> None:
    """Calls a function in a process that `begin` starts, which then ends with its parent."""
    _attach_to_parent()
    function(*arguments)


def _send_results(there: connection.Connection, function: Callable[[], Iterable[object]]) -> None:
    """Sends what a function yields through a pipe, for `run_with_limit`.

    It sends (a result, None) for each, and at last (None, the error's first line, empty without an error).
    """
    reason = ""
    try:
        for result in function():
            there.send((result, None))
    except InputError as error:
        reason = _first_line(error)
    except Exception as error:  # whatever it is, the parent reports it
        reason = f"{type(error).__name__}: {_first_line(error)}"
    there.send((None, reason[:300]))  # characters, of an error that may print arrays


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def _attach_to_parent() -> None:
    """Makes a process that was begun here watch the process that began it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits until the parent process ends, and then ends this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Blocks Ctrl-C within the block: processes that are started there inherit that and never see it."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
