"""Chunks of a setting's runs, shared by workers that come and go: a worker holds the lease of its chunk.

A lease lies beside the scores as runs_<first>_<stop>.lease (`audit.storage.claims`). Workers that cut the
runs into chunks of other sizes share them too: nobody trains a chunk that overlaps with another's.
"""

import contextlib
import re
import sys
import time
from collections.abc import Generator, Iterator

from audit.runtime.progress import Progress
from audit.storage import files
from audit.storage.store import Store, gaps

Range = tuple[int, int]  # runs [start, stop)
_LEASE = re.compile(r"runs_(\d+)_(\d+)\.lease")
_POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 10.0  # of waiting, after which a worker says for whom it waits


def chunks(
    store: Store, runs: int, size: int, elsewhere: Progress = lambda runs: None
) -> Generator[Range, None, None]:
    """Yields chunks [start, stop) of the runs that a store lacks, until it lacks none.

    This process holds the lease of a chunk until it asks for the next; by then it has to have stored the
    chunk. Where other processes hold all chunks that are left, the generator waits until one of them is
    stored or its holder has died.

    Args:
      store: the store.
      runs: the number of runs that it is to have.
      size: the largest number of runs in a chunk.
      elsewhere: a function that is called with the number of runs that other processes have stored since the
        last look.

    Raises:
      InputError: the folder can't be read or written.
    """
    stored: dict[str, Range] = {}  # by file, so that every file is read only once
    # The number of runs that would be missing now if only this process had stored any since the last look. It
    # is 0 before the first look, so that `elsewhere` is not called then.
    missing_without_others = 0
    patience = _Patience()  # sleeps between looks; reports a long time without a chunk
    while True:
        # Look at the store, and report what other processes have stored.
        stored = store.find_runs_by_file(stored)
        missing = gaps(stored.values(), runs)
        stored_by_others = missing_without_others - count_runs(missing)
        if stored_by_others > 0:
            elsewhere(stored_by_others)
        if not missing:
            return
        missing_without_others = count_runs(missing)

        # Yield the first chunk that this process can hold. Chunks without a lease are tried first, as False
        # sorts before True. Those with a lease are tried too: its holder may have died.
        leased = set(_find_leases(store))
        for chunk in sorted(cut(missing, size), key=leased.__contains__):
            with _hold(store, chunk, stored) as mine:
                if mine:
                    yield chunk
                    missing_without_others -= count_runs([chunk])  # the caller has stored it
                    patience = _Patience()  # its clock begins anew after a chunk
                    break
        else:  # no chunk was yielded: other processes hold them all
            patience.wait(store)


def cut(missing: list[Range], size: int) -> list[Range]:
    """Cuts ranges [start, stop) of runs into chunks of at most `size` runs, in order."""
    pieces = []
    for start, stop in missing:
        for first in range(start, stop, size):
            pieces.append((first, min(first + size, stop)))
    return pieces


def count_runs(ranges: list[Range]) -> int:
    """Returns the number of runs in all ranges [start, stop) together."""
    return sum(stop - start for start, stop in ranges)


@contextlib.contextmanager
def all_below(store: Store, runs: int) -> Iterator[bool]:
    """Tries to claim the runs 0 to `runs` - 1 until the end of the block, and yields whether that succeeded.

    It fails where another process holds any of these runs. It is for a process that has other processes train
    many chunks at once.
    """
    everything = (0, runs)
    with _claim(store, everything) as mine:
        yield mine and not _overlaps_leased(store, everything)


def is_idle(store: Store) -> bool:
    """Returns whether no process holds a chunk of a store; removes the leases of processes that died."""
    idle = True
    # The loop goes on after a chunk that is held: `_is_free` removes abandoned leases as it looks at them.
    for chunk in _find_leases(store):
        if not _is_free(store, chunk):
            idle = False
    return idle


class _Patience:
    """Waits for chunks that other processes hold; says once on stderr for whom, after ten seconds."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._has_reported = False

    def wait(self, store: Store) -> None:
        """Sleeps for _POLL_SECONDS between two looks for a chunk.

        Once more than _PATIENCE_SECONDS have passed since this object was made, it reports who holds a chunk.
        It does so a single time.
        """
        waited = time.monotonic() - self._begin
        if waited > _PATIENCE_SECONDS and not self._has_reported:
            self._report(store)
        time.sleep(_POLL_SECONDS)

    def _report(self, store: Store) -> None:
        """Prints on stderr which process holds the first leased chunk, if any chunk is leased."""
        from audit.storage import claims  # it loads filelock, which only a claim or a wait needs

        leased = _find_leases(store)
        if leased:  # the last lease may have been released since the look for a chunk
            first, stop = leased[0]
            holder = claims.holder(store.path, _name_part(leased[0]))
            print(f"runs {first} to {stop - 1} are with {holder}", file=sys.stderr)
            self._has_reported = True


@contextlib.contextmanager
def _hold(store: Store, chunk: Range, stored: dict[str, Range]) -> Iterator[bool]:
    """Tries to claim a chunk until the end of the block, and yields whether this process is to train it.

    It yields False where another process holds any of the chunk's runs, or has stored any of them.

    Args:
      store: the store of the runs.
      chunk: the runs [start, stop).
      stored: what `Store.find_runs_by_file` returned last, so that these files are not read again.
    """
    with _claim(store, chunk) as mine:
        if not mine or _overlaps_leased(store, chunk):
            yield False
        else:
            # Another process may have stored the runs after the last look, and freed its lease.
            stored_now = store.find_runs_by_file(stored).values()
            yield not any(_overlap(chunk, other) for other in stored_now)


def _claim(store: Store, chunk: Range) -> contextlib.AbstractContextManager[bool]:
    """Returns a context that tries to claim a chunk until its end, and yields whether that succeeded."""
    from audit.storage import claims  # filelock's import is a fifth of a finished sweep's time

    return claims.claim(store.path, part=_name_part(chunk))


def _overlap(left: Range, right: Range) -> bool:
    """Returns whether two ranges have runs in common."""
    return left[0] < right[1] and right[0] < left[1]


def _overlaps_leased(store: Store, chunk: Range) -> bool:
    """Returns whether processes hold runs of a chunk under leases of other chunks, cut differently."""
    for leased in _find_leases(store):
        if leased != chunk and _overlap(leased, chunk) and not _is_free(store, leased):
            return True
    return False


def _is_free(store: Store, chunk: Range) -> bool:
    """Returns whether no process holds a chunk; finds out by claiming it for a moment."""
    with _claim(store, chunk) as mine:
        return mine


def _find_leases(store: Store) -> list[Range]:
    """Returns the chunks [start, stop) with a lease's file in a store's folder, in order.

    Their holders need not be alive. Raises InputError where the folder can't be read.
    """
    try:
        names = sorted(path.name for path in store.path.iterdir())
    except OSError as error:
        raise files.cannot_read(store.path, error) from None
    leased = []
    for name in names:
        match = _LEASE.fullmatch(name)
        if match:
            leased.append((int(match[1]), int(match[2])))
    return leased


def _name_part(chunk: Range) -> str:
    """Returns the name under which a chunk is claimed: its lease is the file <name>.lease."""
    return f"runs_{chunk[0]:07d}_{chunk[1]:07d}"
