"""Worker processes: they leave Ctrl-C to their parent, and end when it ends, however it ends.

A terminal sends Ctrl-C to each process of its group, and a killed process cannot stop its own. So they ignore
Ctrl-C, and watch the process that began them. Importing this starts nothing.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing import connection
from typing import TypeVar

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
    with _make_pool(processes) as pool:
        with _without_sigint():
            results = pool.map(function, all_tasks, chunksize=chunk)
        yield from results


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) for each task, as soon as one of several processes has computed it.

    Arguments and errors are those of `in_order`, but no task is computed in this process.
    """
    with _make_pool(processes) as pool:
        with _without_sigint():
            waiting = {pool.submit(function, task): task for task in tasks}
        for future in futures.as_completed(waiting):
            yield waiting[future], future.result()


@contextlib.contextmanager
def _make_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool whose processes are killed at the end; raises InputError if one of them dies."""
    pool = ProcessPoolExecutor(processes, _SPAWN, _attach_to_parent)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        fix = "free memory, or use fewer processes"
        raise InputError(f"a process of the pool died: {fix}") from None
    finally:  # after a proper end `_processes` is None: there are none left to kill
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """Blocks Ctrl-C for processes that start in the block: it then stops only this one, which ends them."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _attach_to_parent() -> None:
    """Makes this process end when the process that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits until the parent ends, and ends this process; `sys.exit` would end only this thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
