"""Kills what Ray leaves of a local cluster: a process that outlives its parent, whose end closes a pipe.

When the parent is killed the kernel kills Ray's servers, but not their own children, two of which go on for
another minute. Run as a script, on Linux.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path


def find_descendants(ancestor: int) -> set[int]:
    """Finds the processes that a process started, those that these started, and so on."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            # After the name in brackets, which may hold spaces, come the state and the parent.
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])

    descendants: set[int] = set()
    generation = {ancestor}
    while generation:
        generation = {child for child, parent in parents.items() if parent in generation}
        descendants |= generation
    return descendants


def main() -> None:
    """Finds the parent's other descendants, prints a line, and kills those that outlive the parent."""
    handles = []
    for process in find_descendants(os.getppid()) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            handles.append(
                os.pidfd_open(process)
            )  # unlike its number, it never means another process
    print(flush=True)
    sys.stdin.read()  # until the parent ends
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main()
