"""How training reports its progress, and a bar that shows it."""

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Progress(Protocol):
    """Hears of runs as they are trained, parts of runs too."""

    def __call__(self, runs: float, /) -> object: ...


class SegmentProgress(Protocol):
    """Hears of (0, 0) when all is compiled and of (runs, steps) as segments end."""

    def __call__(self, runs: int, steps: int, /) -> object: ...


@contextlib.contextmanager
def bar(count: int) -> Iterator[Progress]:
    """A bar on stderr that hears of runs as they are trained; none where nothing is to be trained."""
    from tqdm import tqdm

    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} runs [{elapsed}<{remaining}, {rate_fmt}]"
    with tqdm(total=count, unit="runs", desc="compiling", bar_format=layout, disable=not count) as line:

        def progress(runs: float) -> None:
            line.set_description_str("training", refresh=False)  # the first call says that all is compiled
            line.update(min(runs, count - line.n))

        yield progress
        line.update(count - line.n)
