"""Worker processes that ignore Ctrl-C and end with their parent, even if the parent is killed."""

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
# JAX's threads do not survive a fork.
_SPAWN = multiprocessing.get_context("spawn")


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[Result]:
    """Yields function(task) for each task, in the order of the tasks, computed in several processes.

    The function must be importable, and tasks and results picklable. With `processes` 1, this process
    computes.

    Raises:
      InputError: a worker process dies.
    """
    all_tasks = list(tasks)
    if processes == 1:
        yield from map(function, all_tasks)
        return
    # Large chunks cost less overhead, but every process needs a chunk, and results should come early.
    chunk = max(1, min(50, len(all_tasks) // processes))
    with _make_pool(processes) as pool:
        with _without_sigint():
            results = pool.map(function, all_tasks, chunksize=chunk)
        yield from results


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Yields (task, function(task)) in the order of completion, computed in other processes.

    Arguments and errors are those of `in_order`.
    """
    with _make_pool(processes) as pool:
        with _without_sigint():
            waiting = {pool.submit(function, task): task for task in tasks}
        for future in futures.as_completed(waiting):
            yield waiting[future], future.result()


@contextlib.contextmanager
def _make_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes, and kills them after the block; raises InputError if one has died."""
    pool = ProcessPoolExecutor(processes, _SPAWN, _attach_to_parent)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        fix = "free memory, or use fewer processes"
        raise InputError(f"a process of the pool died: {fix}") from None
    finally:  # `_processes` is None after `shutdown`
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """Lets processes that start in the block ignore Ctrl-C."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _attach_to_parent() -> None:
    """Makes this process end with its parent."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits for the end of the parent, and then ends this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)  # `sys.exit` would only end this thread
