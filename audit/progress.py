"""Training's progress, a bar that shows it, and words that fit; importing this starts nothing."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator

Progress = Callable[[float], object]  # hears of runs as they are trained, parts of runs too
SegmentProgress = Callable[[int, int], object]  # of (0, 0) when all is compiled, (runs, steps) after segments


@contextlib.contextmanager
def bar(count: int, describe: Callable[[], str] = lambda: "training") -> Iterator[Progress]:
    """A bar on stderr that hears of runs as they are trained, behind what there is to say of them; none where
    nothing is to be trained."""
    from tqdm import tqdm

    layout = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} runs [{elapsed}<{remaining}, {rate_fmt}]"
    with tqdm(total=count, unit="runs", desc="compiling", bar_format=layout, disable=not count) as line:

        def progress(runs: float) -> None:
            line.set_description_str(describe(), refresh=False)  # the first call says that all is compiled
            line.update(min(runs, count - line.n))

        yield progress
        line.update(count - line.n)


def shortened(text: str, width: int) -> str:
    """The text where it fits, else its first words, or of a long word its beginning, and an ellipsis."""
    words = textwrap.shorten(text, width, placeholder=" ...")
    return f"{text[: width - 3]}..." if words == "..." else words


def counted(number: int, noun: str) -> str:
    """1 cell, 2 cells."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
