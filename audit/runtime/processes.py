"""Worker processes that ignore Ctrl-C and exit when their parent does, even if it is killed."""

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


def as_completed(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int
) -> Iterator[tuple[Task, Result]]:
    """Computes function(task) for each task in several processes, and yields (task, result) as they finish.

    The function must be importable. Tasks and results must be picklable. If `processes` is 1, this process
    does the work itself.

    Raises:
      InputError: a worker process dies.
    """
    if processes == 1:
        for task in tasks:
            yield task, function(task)
        return
    with _make_pool(processes) as pool:
        # Processes start on submission and inherit the blocked signal.
        with _without_sigint():
            task_of_future = {pool.submit(function, task): task for task in tasks}
        for future in futures.as_completed(task_of_future):
            yield task_of_future[future], future.result()


@contextlib.contextmanager
def _make_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yields a pool of processes, shut down after the `with` block; raises InputError if a process dies.

    If the block raises an exception, for example on Ctrl-C, the processes are killed. Otherwise they finish.
    """
    pool = ProcessPoolExecutor(processes, _SPAWN, initializer=_attach_to_parent)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool:
        raise InputError("a worker process died: free memory, or use fewer processes") from None
    finally:
        running = pool._processes or {}  # None after a shutdown
        for process in list(running.values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_sigint() -> Iterator[None]:
    """Blocks SIGINT during the `with` block. Processes that start in the block ignore Ctrl-C."""
    earlier_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier_mask)


def _attach_to_parent() -> None:
    """Makes this process exit when its parent exits."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits until the parent exits, then terminates this process."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # None only in the main process
    connection.wait([parent.sentinel])
    os._exit(1)  # `sys.exit` would only end this thread
