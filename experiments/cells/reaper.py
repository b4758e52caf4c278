"""Kills what Ray leaves of a local cluster: a process that outlives the one that started it, and hears of its
end by a pipe.

When that one is killed the kernel kills Ray's servers, but not their own children, two of which go on for
another minute. Run as a script, on Linux.
"""

import contextlib
import os
import signal
import sys
from pathlib import Path


def descendants(ancestor: int) -> set[int]:
    """The processes that a process started, and theirs."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found, more = set[int](), {ancestor}
    while more:
        more = {child for child, parent in parents.items() if parent in more}
        found |= more
    return found


def main() -> None:
    """Finds the parent's other descendants, says so, and kills those that are left when the parent ends."""
    handles = []
    for process in descendants(os.getppid()) - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            handles.append(os.pidfd_open(process))  # no other process can take its place
    print(flush=True)
    sys.stdin.read()
    for handle in handles:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)


if __name__ == "__main__":
    main()
