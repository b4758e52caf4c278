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
_RENEWALS = 6  # of a claim, in the time after which it would be stale
_WAIT_SECONDS = 0.05


@contextlib.contextmanager
def claim(folder: Path, stale: float = STALE_SECONDS, part: str = "claim") -> Iterator[bool]:
    """Tries to claim a part of a folder until the end of the block, and yields whether that succeeded.

    It does not wait. A claim is taken over where its holder died on this host, or has not renewed it for
    `stale` seconds. A holder that loses its claim so, and wakes up later, says so on stderr.

    Args:
      folder: the folder.
      stale: the seconds after which a claim that is not renewed may be taken over.
      part: the name of what is claimed; the lease's file is <part>.lease.

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
            # Where the folder can't be reached any more, the lease's file stays until it is stale.
            with contextlib.suppress(OSError):
                lease.release()


@contextlib.contextmanager
def turn(folder: Path, part: str) -> Iterator[None]:
    """Waits until this process can claim a part of a folder, and holds it until the end of the block.

    It is for work that takes moments, such as reading and rewriting a file.
    """
    while True:
        with claim(folder, part=part) as mine:
            if mine:
                yield
                return
        time.sleep(_WAIT_SECONDS)


def holder(folder: Path, part: str = "claim") -> str:
    """Returns who holds a part of a folder, in words: "host, process 123".

    A remark follows where the claim is dated far in the future: until then, other processes would take its
    holder to be alive, unless it died on this host.
    """
    path = folder / f"{part}.lease"
    owner = _make_lease(path, STALE_SECONDS).owner
    if owner is None:
        process = "unknown host, process unknown"
    else:
        # filelock writes unusual characters as ?XX: the host is shown up to the first of them.
        host = owner.hostname.partition("?")[0]
        process = f"{host}, process {owner.pid}"
    return process + _remark_on_future(path)


def _remark_on_future(path: Path) -> str:
    """Returns a remark on a lease that is dated far in the future; empty for all other leases.

    A clock that was set back leaves such a lease. Unless its holder died on this host, it counts as abandoned
    only STALE_SECONDS after its date. A date at most STALE_SECONDS ahead passes soon, and gets no remark.
    """
    try:
        seconds_ahead = path.stat().st_mtime - time.time()
    except OSError:
        return ""
    if seconds_ahead <= STALE_SECONDS:
        return ""
    return f"; {path} is dated in the future: remove it if that process has ended"


def _make_lease(path: Path, stale: float) -> filelock.SoftFileLease:
    """Returns an object by which the lease at a path can be acquired; acquires nothing.

    Args:
      path: the lease's file.
      stale: the seconds without renewal after which the lease counts as abandoned. In that time its holder
        renews it _RENEWALS times.
    """
    return filelock.SoftFileLease(
        path,
        lease_duration=stale,
        heartbeat_interval=stale / _RENEWALS,
        on_compromise=lambda lease: _report_takeover(path),
        timeout=0,  # `acquire` tries once and does not wait
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
    """Acquires a lease if it is free, and returns whether it was.

    A lease whose holder lets it grow stale after another time (LeaseSettingsMismatch) is not free either.
    """
    try:
        lease.acquire()
    except (filelock.Timeout, filelock.LeaseSettingsMismatch):
        return False
    return True


def _remove_abandoned(lease: filelock.SoftFileLease, stale: float) -> bool:
    """Removes a lease that its holder has abandoned, and returns whether to try to acquire it now.

    While this process decides, another process may remove the abandoned file and make a lease of its own
    under the same name. That lease must stay. So this process opens and locks the file on which it decides.
    Just before it removes the lease, it checks that the name still leads to that file.

    Returns:
      True where the abandoned lease is gone, removed by this call or by another process. The other process
      may have made its own lease already; then acquiring fails. False where the holder is alive, or where
      another process has the lock and so is about to remove the lease.
    """
    path = Path(lease.lock_file)
    # Some network file systems lock only files that are open for writing.
    mode = "r+b" if os.access(path, os.W_OK) else "rb"
    try:
        with open(path, mode) as file:
            # A file system without locks raises an error; samestat below is then the only protection.
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
      renewed: when it was last renewed, in seconds, by the file system's clock.
      stale: the seconds without renewal after which it counts as abandoned.
    """
    # This process acquires a lease of its own in the same folder for a moment. The date of its file is the
    # time now by the same clock as `renewed`, and its owner has this host's name as filelock writes it.
    path = Path(lease.lock_file)
    with _make_lease(path.with_name(f".claim.{uuid.uuid4().hex[:8]}"), stale) as probe:
        now = os.stat(probe.lock_file).st_mtime
        this_process = probe.owner
    owner = lease.owner
    if owner is not None and this_process is not None:
        is_here = owner.hostname == this_process.hostname
        if is_here and not files.is_running(owner.pid):
            return True
    # The holder runs, or can't be looked up from here because it is on another host: the lease's age decides.
    return now - renewed > stale
