"""The machine that a process runs on; importing this starts nothing."""

import os


def cores() -> int:
    """Cores that this process may use; all of the machine's where the platform does not say (macOS)."""
    if hasattr(os, "process_cpu_count"):  # Python 3.13
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
