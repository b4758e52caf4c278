"""One process at a time on a part of a folder, over hosts that share it: claims that die with their holders.

A claim is a lease of filelock's: a file that one process alone can make, that says who holds it and that the
holder's heartbeat touches. filelock takes over the lease of a process that died on this host where the file
system can exchange two names, which network file systems cannot, and one that grew old only where the same
object has watched it do so, which a command that has just begun has not. Both are done here: the age is the
difference of two times that the folder's own file system wrote, since hosts' clocks may differ.

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
_BEATS = 6  # renewals in the time after which a claim is stale


@contextlib.contextmanager
def claim(folder: Path, stale: float = STALE_SECONDS, part: str = "claim") -> Iterator[bool]:
    """Yields whether this process holds a part of the folder, which it then does to the end of the block. A
    claim not renewed for `stale` seconds is taken over; a holder that was suspended for as long and wakes
    says so on stderr. Raises InputError where the folder can't be written."""
    lease = _lease(folder / f"{part}.lease", stale)
    with files.writing(folder):
        mine = _acquired(lease)
        if not mine and _removed(lease, stale):
            mine = _acquired(lease)
    try:
        yield mine
    finally:
        if mine:
            with contextlib.suppress(OSError):  # a folder that is away: the claim grows old
                lease.release()


@contextlib.contextmanager
def turn(folder: Path, part: str) -> Iterator[None]:
    """Waits for the claim of a part, which is then held to the end of the block: for what takes moments."""
    while True:
        with claim(folder, part=part) as mine:
            if mine:
                yield
                return
        time.sleep(0.05)


def holder(folder: Path, part: str = "claim") -> str:
    """Host and process number of who holds a part of the folder; names a claim far in the future."""
    path = folder / f"{part}.lease"
    owner = _lease(path, STALE_SECONDS).owner
    host, pid = (
        ("unknown host", "unknown") if owner is None else (owner.hostname.partition("?")[0], owner.pid)
    )
    return f"{host}, process {pid}{_dated_ahead(path)}"


def _dated_ahead(path: Path) -> str:
    """A remark on a claim of the future, as a clock that was set back leaves one; empty for others."""
    try:
        ahead = path.stat().st_mtime - time.time()
    except OSError:
        return ""
    remove = f"; {path} is dated in the future: remove it if that process has ended"
    return remove if ahead > STALE_SECONDS else ""


def _lease(path: Path, stale: float) -> filelock.SoftFileLease:
    return filelock.SoftFileLease(
        path,
        lease_duration=stale,
        heartbeat_interval=stale / _BEATS,
        on_compromise=lambda lost: _complain(path),
        timeout=0,
        thread_local=False,
    )


def _complain(path: Path) -> None:
    """From the heartbeat's thread."""
    who = holder(path.parent, path.stem)
    print(
        f"{path.parent} was taken over ({who}) while this process was suspended or could not write: "
        "both train it, to the same scores; end one",
        file=sys.stderr,
    )


def _acquired(lease: filelock.SoftFileLease) -> bool:
    try:
        lease.acquire()
    except (filelock.Timeout, filelock.LeaseSettingsMismatch):
        return False
    return True


def _removed(lease: filelock.SoftFileLease, stale: float) -> bool:
    """Whether an abandoned lease is gone; who removes one locks it and looks whether it is still in place,
    so that nobody removes a successor's."""
    path = Path(lease.lock_file)
    try:
        with open(path, "r+b" if os.access(path, os.W_OK) else "rb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                if not filelock.lock_descriptor(file.fileno(), blocking=False):
                    return False
            judged = os.fstat(file.fileno())
            abandoned = _is_abandoned(lease, judged.st_mtime, stale)
            if abandoned and os.path.samestat(judged, path.stat()):
                lease.force_break()
            return abandoned
    except FileNotFoundError:
        return True


def _is_abandoned(lease: filelock.SoftFileLease, renewed: float, stale: float) -> bool:
    """Whether a lease's holder is dead, or has not renewed it for too long by the file system's clock."""
    with _lease(Path(lease.lock_file).with_name(f".claim.{uuid.uuid4().hex[:8]}"), stale) as probe:
        now, here = os.stat(probe.lock_file).st_mtime, probe.owner
    owner = lease.owner
    if owner is not None and here is not None and owner.hostname == here.hostname and not _runs(owner.pid):
        return True
    return now - renewed > stale


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
