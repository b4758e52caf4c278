"""Several looks at one audit while runs are added, at numbers of runs that were declared beforehand.

Who looks five times and keeps the best bound has five chances to exceed the truth. Here each of L looks gets
an equal share of the error, (1 - confidence) / L, so that by the union bound all of a method's looks hold at
once at the confidence, and so does the best of them, whenever one stops. It holds for numbers of runs that
no score has decided. Shares by the number of runs, or half of the error for the last look, raise the mean of
the best of five bounds on mu by less than 1%, and equal ones say the same at every look.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from audit.errors import require
from audit.statistics.estimate import Bound


class Look(NamedTuple):
    """A look: the runs that it is at, and its bounds, at its own confidence."""

    runs: int
    bounds: tuple[Bound, ...]


class Looks(NamedTuple):
    """The declared numbers of runs, the confidence of each look, and the looks that were taken, in order."""

    schedule: tuple[int, ...]
    confidence: float
    taken: tuple[Look, ...]

    def number(self, look: Look) -> int:
        """A look's number in the schedule, from 1."""
        return self.schedule.index(look.runs) + 1


def require_schedule(schedule: Sequence[int]) -> None:
    """Raises InputError unless the numbers of runs ascend, and the first has a run for each world."""
    said = f"`looks={','.join(map(str, schedule))}`"
    require(schedule, f"{said}: give the numbers of runs at which to look, comma-separated")
    require(schedule[0] >= 2, f"{said}: give at least 2 runs, half of them in each world")
    ascending = all(one < next_ for one, next_ in zip(schedule, schedule[1:], strict=False))
    require(ascending, f"{said}: give numbers of runs that ascend")


def confidence_of_each(confidence: float, looks: int) -> float:
    """The confidence of each of so many looks, that all hold at once at the confidence."""
    return 1 - (1 - confidence) / looks


def best(taken: Sequence[Look], confidence: float) -> tuple[Bound, ...]:
    """Each method's best bound of the looks, at the confidence at which all looks hold at once."""
    by_method = zip(*(look.bounds for look in taken), strict=True)
    highest = (max(bounds, key=lambda bound: bound.epsilon) for bounds in by_method)
    return tuple(dataclasses.replace(bound, confidence=confidence) for bound in highest)
