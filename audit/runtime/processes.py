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
    """Yields function(task) for each task, in the order of the tasks, computed in several processes.

    Args:
      function: a function of a task, defined in a module that processes can import.
      tasks: the tasks, picklable.
      processes: the number of processes; with 1 everything is computed in this process.

    Raises:
      InputError: a process dies.
    """
    all_tasks = list(tasks)
    if processes == 1:
        yield from map(function, all_tasks)
        return
    # Tasks are sent in chunks, which costs less. Chunks are small enough for every process to get one, and
    # have at most 50 tasks: a chunk's results come together, and should not be long in coming.
    chunk = max(1, min(50, len(all_tasks) // processes))
    with _pool(processes) as pool:
        # Processes start here, and inherit the block: Ctrl-C then stops only this process, which ends them.
        with _sigint_blocked():
            results = pool.map(function, all_tasks, chunksize=chunk)
        yield from results


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) for each task, as soon as one of several processes has computed it.

    Args:
      function: a function of a task, defined in a module that processes can import.
      tasks: the tasks, picklable.
      processes: the number of processes, which are never this process itself.

    Raises:
      InputError: a process dies.
    """
    all_tasks = list(tasks)
    if not all_tasks:  # callers may then give 0 processes, of which there is no pool
        return
    with _pool(processes) as pool:
        # Processes start here, and inherit the block: Ctrl-C then stops only this process, which ends them.
        with _sigint_blocked():
            waiting = {pool.submit(function, task): task for task in all_tasks}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()


def run_in_own_process(function: Callable[[], Result]) -> Result:
    """Calls a function in a process of its own; returns its result, or raises its error.

    The process ends afterwards: what the function loads, allocates or sets in the environment is gone.
    """
    with _pool(1) as pool:
        # The process starts here, and inherits the block: Ctrl-C then stops only this process, which ends it.
        with _sigint_blocked():
            future = pool.submit(function)
        return future.result()


def run_with_limit(
    function: Callable[[], Iterable[Result]], seconds: float
) -> tuple[list[Result], str]:
    """Collects what a function yields in a process of its own, which is killed at a time limit.

    Args:
      function: a function that yields results.
      seconds: the time limit.

    Returns:
      (the results, a line that says why no more came); the line is empty if the function ended without error.
    """
    here, there = pipe(duplex=False)
    end = time.monotonic() + seconds
    results: list[Result] = []
    process = begin(_send_results, there, function)
    there.close()  # this process's copy: with the other's death the pipe then ends (EOFError)
    try:
        while here.poll(max(end - time.monotonic(), 0)):  # false once the time is over
            result, reason = here.recv()
            if reason is not None:  # the last message, which has no result: "", or an error's line
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
    """Starts a process that calls a function, and that ends when this process does.

    The child process inherits the block of SIGINT under which it is started, so that Ctrl-C in the terminal
    stops only this process. The child then ends with it.
    """
    process = _SPAWN.Process(target=_serve, args=(function, *arguments), daemon=True)
    # Python's tracker of shared resources would unblock SIGINT if it were first started in the
    # block below.
    resource_tracker.ensure_running()
    with _sigint_blocked():
        process.start()
    return process


def pipe(duplex: bool = True) -> tuple[Any, Any]:
    """Returns the two ends of a pipe, one of which can be passed to a process that `begin` starts."""
    return _SPAWN.Pipe(duplex)


@contextlib.contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes; if the caller's block raises, they are killed at once.

    Raises InputError if a process of the pool dies.
    """
    pool = ProcessPoolExecutor(processes, _SPAWN, _attach_to_parent)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError(
            "a process of the pool died: free memory, or use fewer processes"
        ) from None
    finally:  # after a proper end `_processes` is None: there are none left to kill
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


def _serve(function: Callable[..., object], *arguments: Any) -> None:
    """Calls a function in a process that `begin` starts, which then ends with its parent."""
    _attach_to_parent()
    function(*arguments)


def _send_results(there: connection.Connection, function: Callable[[], Iterable[object]]) -> None:
    """Sends what a function yields through a pipe, for `run_with_limit`.

    It sends (result, None) for each result, and at last (None, reason), where the reason is the first line of
    the function's error, or "" without an error.
    """
    reason = ""
    try:
        for result in function():
            there.send((result, None))
    except InputError as error:
        reason = _first_line(error)
    except Exception as error:  # whatever it is, the parent reports it
        reason = f"{type(error).__name__}: {_first_line(error)}"
    there.send((None, reason[:300]))  # cut, since an error may print arrays


def _first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or "" for an empty one."""
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def _attach_to_parent() -> None:
    """Makes this process, one that this module started, end when the process that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits until the parent process ends, and then ends this process.

    It runs in a thread of its own, where `sys.exit` would end only the thread.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])  # returns when the parent has ended
    os._exit(1)


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Blocks SIGINT (Ctrl-C) in this thread within the `with` block.

    Processes that are started in the block inherit the mask, and so never react to Ctrl-C.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
