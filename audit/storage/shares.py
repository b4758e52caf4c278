"""Chunks of one setting's runs, shared by workers that come and go: whoever trains a chunk holds its lease.

A lease lies beside the scores as runs_<first>_<stop>.lease (`audit.storage.claims`). Workers that cut the
runs into chunks of other sizes share them too: nobody trains a chunk that overlaps with another's.
"""

import contextlib
import re
import sys
import time
from collections.abc import Generator, Iterator

from audit.progress import Progress
from audit.storage import files
from audit.storage.store import Store, gaps

Range = tuple[int, int]
_LEASE = re.compile(r"runs_(\d+)_(\d+)\.lease")
_POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 10.0  # after which it is said for whom a worker waits


def chunks(
    store: Store, runs: int, size: int, elsewhere: Progress = lambda runs: None
) -> Generator[Range, None, None]:
    """The chunks [start, stop) of at most `size` runs that the store lacks below `runs`, each held by this
    process until the next is asked for.

    Those that nobody holds come first. Where others hold all that are left, waits until these are stored, or
    until a holder died; ends when nothing is missing. `elsewhere` hears of runs that others have stored.
    Raises InputError where the folder can't be read or written.
    """
    known: dict[str, Range] = {}
    count, patience = 0, _Patience()
    while True:
        known = store.held(known)
        missing = gaps(known.values(), runs)
        if (others := count - count_runs(missing)) > 0:
            elsewhere(others)
        if not missing:
            return
        count, leased = count_runs(missing), set(_leases(store))
        for chunk in sorted(cut(missing, size), key=leased.__contains__):
            with _held(store, chunk, known) as mine:
                if mine:
                    yield chunk
                    count, patience = count - count_runs([chunk]), _Patience()
                    break
        else:
            patience.wait(store)


def cut(missing: list[Range], size: int) -> list[Range]:
    """Ranges [start, stop) cut into chunks of at most `size` runs."""
    return [(i, min(i + size, stop)) for start, stop in missing for i in range(start, stop, size)]


def count_runs(ranges: list[Range]) -> int:
    """How many runs there are in ranges."""
    return sum(stop - start for start, stop in ranges)


@contextlib.contextmanager
def all_below(store: Store, runs: int) -> Iterator[bool]:
    """Yields whether this process has all runs below `runs` to itself, to the end of the block: for one that
    trains many chunks at once, by others' hands."""
    from audit.storage import claims

    with claims.claim(store.path, part=_part((0, runs))) as mine:
        yield mine and not _overlaps(store, (0, runs))


def is_idle(store: Store) -> bool:
    """Whether nobody holds a chunk; leases of the dead are removed."""
    return all([_is_free(store, chunk) for chunk in _leases(store)])


class _Patience:
    """Waits for the chunks of others, and says so after a while."""

    def __init__(self) -> None:
        self._begin, self._said = time.monotonic(), False

    def wait(self, store: Store) -> None:
        if not self._said and time.monotonic() - self._begin > _PATIENCE_SECONDS:
            from audit.storage import claims

            for chunk in _leases(store)[:1]:
                who = claims.holder(store.path, _part(chunk))
                print(f"runs {chunk[0]} to {chunk[1] - 1} are with {who}", file=sys.stderr)
                self._said = True
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _held(store: Store, chunk: Range, known: dict[str, Range]) -> Iterator[bool]:
    """Yields whether this process holds the chunk, of which no run is stored or with others."""
    from audit.storage import claims

    start, end = chunk
    with claims.claim(store.path, part=_part(chunk)) as mine:
        yield (
            mine
            and not _overlaps(store, chunk)
            and all(stop <= start or end <= first for first, stop in store.held(known).values())
        )


def _overlaps(store: Store, chunk: Range) -> bool:
    others = (other for other in _leases(store) if other != chunk)
    return any(not _is_free(store, other) for other in others if other[0] < chunk[1] and chunk[0] < other[1])


def _is_free(store: Store, chunk: Range) -> bool:
    from audit.storage import claims

    with claims.claim(store.path, part=_part(chunk)) as mine:
        return mine


def _leases(store: Store) -> list[Range]:
    try:
        found = [_LEASE.fullmatch(path.name) for path in sorted(store.path.iterdir())]
    except OSError as error:
        raise files.cannot_read(store.path, error) from None
    return [(int(match[1]), int(match[2])) for match in found if match]


def _part(chunk: Range) -> str:
    return f"runs_{chunk[0]:07d}_{chunk[1]:07d}"
