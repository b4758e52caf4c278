"""One process at a time on a part of a folder, over hosts that share it: claims that die with their holders.

A claim is a lease of filelock's: a file that only one process can make, that names its holder and that the
holder's heartbeat touches. filelock takes over the lease of a process that died on this host only where the
file system can exchange two names, which network file systems cannot. It takes over a lease that grew old
only where the same object has watched it do so, which a command that has just begun has not. This module does
both: a lease's age is the difference of two times that the folder's own file system wrote, since hosts'
clocks may differ.

An expired lease stops nobody: a holder that was suspended and wakes trains on beside its successor, to the
same scores, and says so.
"""

import contextlib
import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import filelock

from audit.storage import files

STALE_SECONDS = 60.0
_RENEWALS = 6  # in the time after which a claim is stale
_WAIT_SECONDS = 0.05


@contextlib.contextmanager
def claim(folder: Path, stale: float = STALE_SECONDS, part: str = "claim") -> Iterator[bool]:
    """Tries to claim a part of a folder, to the end of the block, and yields whether this process has it.

    A holder that was suspended for longer than `stale`, and wakes, says so on stderr.

    Args:
      folder: the folder.
      stale: the seconds after which a claim that is not renewed is taken over.
      part: the name of the part.

    Raises:
      CannotWriteError: the folder can't be written.
    """
    lease = _make_lease(folder / f"{part}.lease", stale)
    with files.writing(folder):
        mine = _try_acquire(lease)
        if not mine and _remove_abandoned(lease, stale):
            mine = _try_acquire(lease)
    try:
        yield mine
    finally:
        if mine:
            with contextlib.suppress(OSError):  # a folder that is away: the claim grows old
                lease.release()


@contextlib.contextmanager
def turn(folder: Path, part: str) -> Iterator[None]:
    """Waits until this process can claim a part of a folder, and holds it to the end of the block.

    It is for work that takes moments, as reading and rewriting a file.
    """
    while True:
        with claim(folder, part=part) as mine:
            if mine:
                yield
                return
        time.sleep(_WAIT_SECONDS)


def holder(folder: Path, part: str = "claim") -> str:
    """Returns the holder of a part of a folder, in words: "host, process 123".

    Where the claim is dated in the future, which keeps it from being taken over, a remark follows.
    """
    path = folder / f"{part}.lease"
    owner = _make_lease(path, STALE_SECONDS).owner
    if owner is None:
        process = "unknown host, process unknown"
    else:
        host = owner.hostname.partition("?")[0]  # filelock writes unusual characters as ?XX
        process = f"{host}, process {owner.pid}"
    return process + _remark_on_future(path)


def _remark_on_future(path: Path) -> str:
    """Returns a remark on a lease that is dated in the future, as a clock that was set back leaves it.

    Empty for other leases.
    """
    try:
        seconds_ahead = path.stat().st_mtime - time.time()
    except OSError:
        return ""
    if seconds_ahead <= STALE_SECONDS:
        return ""
    return f"; {path} is dated in the future: remove it if that process has ended"


def _make_lease(path: Path, stale: float) -> filelock.SoftFileLease:
    """Returns an object for the lease at a path, which this does not acquire yet.

    Args:
      path: of the lease's file.
      stale: the seconds without renewal after which it counts as abandoned; the holder renews it six times
        as often.
    """
    return filelock.SoftFileLease(
        path,
        lease_duration=stale,
        heartbeat_interval=stale / _RENEWALS,
        on_compromise=lambda lease: _report_takeover(path),
        timeout=0,  # a try, and no wait
        thread_local=False,  # the heartbeat's thread renews it
    )


def _report_takeover(path: Path) -> None:
    """Reports on stderr that another process took over the lease at a path, which this process held."""
    successor = holder(path.parent, path.stem)
    print(
        f"{path.parent} was taken over ({successor}) while this process was suspended or could not write: "
        "both train it, to the same scores; end one",
        file=sys.stderr,
    )


def _try_acquire(lease: filelock.SoftFileLease) -> bool:
    """Acquires a lease where it is free, and returns whether it was."""
    try:
        lease.acquire()
    except (filelock.Timeout, filelock.LeaseSettingsMismatch):
        return False
    return True


def _remove_abandoned(lease: filelock.SoftFileLease, stale: float) -> bool:
    """Removes a lease that its holder has abandoned, and returns whether to try to acquire it now.

    The race: two processes open the same abandoned file, the first removes it and a successor makes a lease
    of the same name; the second must not remove that lease. So each locks the file that it opened and, before
    it removes anything, compares it with the file that now has the name.

    Returns:
      True where the abandoned lease is gone: this call removed it, or another process did so before. That
      process may have put its own lease in the place already; then acquiring it fails. False where the
      holder is alive, or another process has the lock, since it is about to remove the lease.
    """
    path = Path(lease.lock_file)
    mode = "r+b" if os.access(path, os.W_OK) else "rb"
    try:
        with open(path, mode) as file:
            # Of a file system without locks the lock fails, and the comparison alone must do.
            with contextlib.suppress(OSError):
                if not filelock.lock_descriptor(file.fileno(), blocking=False):
                    return False
            opened = os.fstat(file.fileno())
            is_abandoned = _is_abandoned(lease, opened.st_mtime, stale)
            if is_abandoned and os.path.samestat(opened, path.stat()):
                lease.force_break()
            return is_abandoned
    except FileNotFoundError:  # another process removed it
        return True


def _is_abandoned(lease: filelock.SoftFileLease, renewed: float, stale: float) -> bool:
    """Returns whether a lease's holder is dead, or has not renewed it for too long.

    Args:
      lease: the lease.
      renewed: when it was last renewed, by the file system's clock.
      stale: the seconds after which it is abandoned.
    """
    # A lease of this process's own tells the time of the file system, and the name of this host.
    path = Path(lease.lock_file)
    with _make_lease(path.with_name(f".claim.{uuid.uuid4().hex[:8]}"), stale) as probe:
        now = os.stat(probe.lock_file).st_mtime
        this_process = probe.owner
    owner = lease.owner
    if owner is not None and this_process is not None:
        is_here = owner.hostname == this_process.hostname
        if is_here and not _is_running(owner.pid):
            return True
    return now - renewed > stale


def _is_running(pid: int) -> bool:
    """Returns whether there is a process of that number on this host."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
