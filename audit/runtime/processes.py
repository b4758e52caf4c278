"""Worker processes: they leave Ctrl-C to their parent, and end when it ends, however it ends.

A terminal sends Ctrl-C to each process of its group, and a killed process cannot stop its own. So they ignore
Ctrl-C, and watch the process that began them. Importing this starts nothing.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
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
    pool = ProcessPoolExecutor(processes, _SPAWN, _attach_to_parent)
    try:
        # Processes start here, and inherit the block: Ctrl-C then stops only this process, which ends them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = pool.map(function, all_tasks, chunksize=chunk)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        yield from results
        pool.shutdown()
    except BrokenProcessPool:
        fix = "free memory, or use fewer processes"
        raise InputError(f"a process of the pool died: {fix}") from None
    finally:  # after a proper end `_processes` is None: there are none left to kill
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


def _attach_to_parent() -> None:
    """Makes this process end when the process that started it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Waits until the parent ends, and ends this process; `sys.exit` would end only this thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
