"""One process at a time on a folder, over hosts that share it: claims that die with their holders.

A claim is a file claim_<n> that says who holds it, and whose modification time the holder renews. The
highest n counts; taking over means making n + 1, which the file system grants to one process alone. The
highest is never removed, but marked as free, so that n only grows and a late look at an old claim wins
nothing. A claim is given back when its holder ends, when it is seen to be dead (same host), or when it
has not been renewed for a while (any host). Ages are differences of times that the folder's own file
system wrote: hosts' clocks may differ.
"""

import contextlib
import errno
import functools
import json
import os
import re
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from audit.storage import files

STALE_SECONDS = 60.0
_BEATS = 6  # renewals in the time after which a claim is stale
_CLAIM = re.compile(r"claim_(\d{8})")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


@contextlib.contextmanager
def claim(folder: Path, stale: float = STALE_SECONDS) -> Iterator[bool]:
    """Yields whether this process holds the folder, which it then does to the end of the block.

    A claim not renewed for `stale` seconds is taken over; a holder that was suspended for as long and
    wakes says so on stderr. Raises InputError where the folder can't be written.
    """
    with files.writing(folder):
        mine = _acquire(folder, stale)
    if mine is None:
        yield False
        return
    ended = threading.Event()
    beat = threading.Thread(target=_renew, args=(mine, stale / _BEATS, ended), daemon=True)
    beat.start()
    try:
        yield True
    finally:
        ended.set()
        beat.join()
        _release(mine)


def holder(folder: Path) -> str:
    """Host and process number of who holds or last held the folder."""
    found = _claims(folder)
    owner = _owner(found[-1]) if found else {}
    return f"{owner.get('host', 'unknown host')}, process {owner.get('pid', 'unknown')}"


def _acquire(folder: Path, stale: float) -> Path | None:
    """This process's claim, or None where another holds one."""
    candidate = folder / f".claim.{uuid.uuid4().hex[:8]}"
    candidate.write_text(json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "sees": _sees()}))
    try:
        held = _claims(folder)
        if held and _is_held(held[-1], candidate.stat().st_mtime - stale):
            return None
        mine = folder / f"claim_{_number(held[-1]) + 1 if held else 1:08d}"
        if not _made(mine, candidate):
            return None
    finally:
        candidate.unlink()
    if _claims(folder)[-1] != mine:  # it was made on an old look: others have been here since
        mine.unlink(missing_ok=True)
        return None
    for old in held:
        old.unlink(missing_ok=True)
    return mine


def _made(mine: Path, candidate: Path) -> bool:
    """Whether the claim was made, by this process alone, with what the candidate says."""
    try:
        os.link(candidate, mine)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with open(mine, "xb") as file:
                file.write(candidate.read_bytes())
        except FileExistsError:
            return False
    os.utime(mine)
    return True


def _is_held(path: Path, oldest: float) -> bool:
    """Whether a claim is neither free nor its holder dead, and was renewed since `oldest`."""
    try:
        age_is_fine = path.stat().st_mtime > oldest
    except FileNotFoundError:
        return True  # someone has just taken over
    owner = _owner(path)
    dead = owner.get("sees") == _sees() and not _runs(owner.get("pid"))
    return age_is_fine and not owner.get("free") and not dead


def _renew(mine: Path, seconds: float, ended: threading.Event) -> None:
    """Renews the claim until it is given back."""
    while not ended.wait(seconds):
        try:
            os.utime(mine)
            lost = _claims(mine.parent)[-1] != mine
        except FileNotFoundError:
            lost = True
        except OSError:
            continue  # a shared folder that is away for a moment
        if lost:
            print(
                f"{mine.parent} was taken over by {holder(mine.parent)} while this process was suspended: "
                "both train it, to the same scores; end one",
                file=sys.stderr,
            )
            return


def _release(mine: Path) -> None:
    """Marks the claim as free; where that can't be written its holder's death says so."""
    with contextlib.suppress(OSError):
        if mine.exists():  # else it was taken over
            beside = mine.with_name(f".{mine.name}.{uuid.uuid4().hex[:8]}")
            beside.write_text(json.dumps({**_owner(mine), "free": True}))
            os.replace(beside, mine)


def _claims(folder: Path) -> list[Path]:
    """The claims in a folder, the one that counts last."""
    return sorted(path for path in folder.iterdir() if _CLAIM.fullmatch(path.name))


def _number(path: Path) -> int:
    """A claim's n."""
    return int(path.name.removeprefix("claim_"))


def _owner(path: Path) -> dict[str, Any]:
    """What a claim says of its holder; nothing where it can't be read."""
    try:
        owner = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _runs(pid: Any) -> bool:
    """Whether a process of this host runs."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, TypeError, ValueError, OverflowError):
        return True
    return True


@functools.cache
def _sees() -> str:
    """This host since it booted, and the processes whose numbers mean the same as here."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
