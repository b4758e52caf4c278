"""The looks that were declared for a setting, kept beside its scores from the first look on.

A schedule that is chosen after a look proves nothing, so that the one under which the first look was taken
stays the setting's own.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from audit.errors import InputError, require
from audit.statistics import conclusion
from audit.storage import files
from audit.storage.store import RESULT, Store

_LOOKS = "looks.json"


class Declared(NamedTuple):
    """The declared numbers of runs, and how many of these looks were taken, at least one."""

    schedule: tuple[int, ...]
    taken: int

    def looks(self) -> tuple[int, ...]:
        """The numbers of runs at which a look was taken."""
        return self.schedule[: self.taken]


def declared(store: Store) -> Declared | None:
    """The looks of a store; None where none was declared. Raises InputError where they can't be read."""
    path = store.path / _LOOKS
    content = files.read(path)
    try:
        return None if content is None else _parsed(content)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(f"{path} is damaged: move {store.path} away, or take another `seed`") from None


def require_declared(store: Store, schedule: Sequence[int]) -> None:
    """Raises InputError where a look was taken under another schedule, or under none; () is none."""
    found, said = declared(store), ",".join(map(str, schedule))
    if found is None:
        seen = schedule and (store.path / RESULT).exists()
        why = "looks that are declared after one was taken prove nothing: take another `seed`"
        require(not seen, f"`looks={said}`: {store.path} has been looked at already, and {why}")
        return
    kept, given = ",".join(map(str, found.schedule)), f"`looks={said}`" if schedule else "no `looks`"
    why = f"{store.path} has {found.taken} of the looks {kept} behind it, and another schedule proves nothing"
    same = tuple(schedule) == found.schedule
    require(same, f"{given}: {why}: give `looks={kept}`, or take another `seed`")


def take(store: Store, schedule: Sequence[int], taken: int) -> bool:
    """Keeps that so many looks of a schedule were taken, before anyone sees them; returns whether they were
    not yet. Raises InputError where it can't be written."""
    with store.turn("looks"):
        found = declared(store)
        if found is not None and found.taken >= taken:
            return False
        store.write_text(_LOOKS, json.dumps({"schedule": list(schedule), "taken": taken}) + "\n")
    return True


def _parsed(content: bytes) -> Declared:
    """The looks that a file holds; raises ValueError, TypeError, KeyError or RecursionError for none."""
    values = json.loads(content)
    schedule, taken = tuple(values["schedule"]), values["taken"]
    require(all(type(value) is int for value in (*schedule, taken)), "whole numbers")
    conclusion.require_schedule(schedule)
    require(1 <= taken <= len(schedule), "a number of looks")
    return Declared(schedule, taken)
