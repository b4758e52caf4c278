"""Training's progress, a bar that shows it, and words that fit; importing this starts nothing."""

import contextlib
import textwrap
from collections.abc import Callable, Iterator

# Called with runs as they are trained, parts of runs too.
Progress = Callable[[float], object]
# Called with (0, 0) when all is compiled, and with (runs, steps) after each segment.
SegmentProgress = Callable[[int, int], object]


@contextlib.contextmanager
def bar(
    count: int,
    describe: Callable[[], str] = lambda: "training",
    unit: str = "runs",
    has_stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Progress]:
    """Shows a progress bar on stderr; yields the function that advances it by a number of runs.

    The words before the bar are "compiling" until the function is called for the first time. Nothing is shown
    if no runs are to be trained.

    Args:
      count: the number of runs to train.
      describe: a function that gives the words before the bar, once all is compiled.
      unit: the word for what is counted.
      has_stopped: a function that is asked at the end whether fewer runs were trained. The bar then stays
        where it is; otherwise it is filled.
    """
    from tqdm import tqdm

    layout = (
        "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total} {unit} "
        "[{elapsed}<{remaining}, {rate_fmt}]"
    )
    with tqdm(
        total=count, unit=unit, desc="compiling", bar_format=layout, disable=not count
    ) as line:

        def progress(runs: float) -> None:
            """Advances the bar by a number of runs, but not beyond its end."""
            line.set_description_str(describe(), refresh=False)
            line.update(min(runs, count - line.n))  # `line.n` is how far it is

        yield progress
        line.set_description_str(describe(), refresh=False)
        if not has_stopped():
            line.update(count - line.n)  # parts of runs may not add up to all of them


def shortened(text: str, width: int) -> str:
    """Returns a text of at most `width` characters: the text, or its first words and an ellipsis.

    A single word that is too long is cut to its beginning.
    """
    words = textwrap.shorten(text, width, placeholder=" ...")
    if words == "...":  # not even the first word fits: `shorten` leaves the placeholder alone
        return f"{text[: width - 3]}..."
    return words


def counted(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun, in the plural unless it is 1: "1 cell", "2 cells".

    Args:
      number: the number, a whole one.
      noun: what is counted; words that agree with it may follow, as in "batch holds".
      plural: the same in the plural; by default with an s at the end.
    """
    if number == 1:
        return f"{number} {noun}"
    return f"{number:,} {plural or f'{noun}s'}"
