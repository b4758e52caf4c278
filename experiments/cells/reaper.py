"""Kills the processes that Ray leaves of a local cluster; a script for Linux.

It is started by the process that started the cluster, outlives it, and notices its end by the end of a pipe.
When that process is killed, the kernel kills Ray's servers, but not the servers' children, two of which would
run for another minute.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path


def find_descendants(ancestor: int) -> set[int]:
    """Returns the process numbers of a process's descendants: its children, their children, and so on."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # raised where the process has ended
            # After the name in brackets, which may contain spaces, come the state and the parent's number.
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])

    descendants: set[int] = set()
    generation = {ancestor}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        descendants |= generation
    return descendants


def main() -> None:
    """Kills the parent's other descendants, once the parent ends or closes the pipe to this process.

    First it notes which they are, and prints an empty line, which tells the parent so.
    """
    handles = []
    for process in find_descendants(os.getppid()) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            # Unlike a process's number, a handle never comes to mean another process.
            handles.append(os.pidfd_open(process))
    print(flush=True)
    sys.stdin.read()  # returns when the parent closes the pipe, or ends
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main()
