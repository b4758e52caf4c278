"""How those who train tell those who show it."""

from typing import Protocol


class Progress(Protocol):
    """Hears of runs as they are trained, parts of runs too."""

    def __call__(self, runs: float, /) -> object: ...


class SegmentProgress(Protocol):
    """Hears of (0, 0) when all is compiled and of (runs, steps) as segments end."""

    def __call__(self, runs: int, steps: int, /) -> object: ...
