"""A sweep's progress on stderr."""

import sys
import time
from collections.abc import Sequence

from tqdm import tqdm

from audit.progress import Progress, shortened
from experiments.cells.cell import Cell

_NAME_WIDTH = 32


class SweepProgress:
    """One line: cells done, the current one, runs a second, time left."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells, self._done, self._seconds = len(cells), 0, 0.0
        total = sum(cell.seconds for cell in cells)
        layout = "{desc} {percentage:3.0f}% {elapsed}, {remaining} left{postfix}"
        self._bar = tqdm(total=total, bar_format=layout, smoothing=0.1)
        self._runs, self._begin = 0.0, time.perf_counter()

    def begin(self, cell: Cell) -> Progress:
        """Hears of the runs of a cell that now begins."""
        self._bar.set_description_str(f"{self._done}/{self._cells} {shortened(cell.name, _NAME_WIDTH)}:")
        self._bar.set_postfix_str("compiling")
        self._runs, self._begin = 0.0, time.perf_counter()
        scale = cell.seconds / cell.runs

        def progress(runs: float) -> None:
            if not runs:  # the first call says that all is compiled
                self._begin = time.perf_counter()
                return
            self._runs += runs
            rate = self._runs / (time.perf_counter() - self._begin)
            self._bar.set_postfix_str(f"{rate:.0f} runs/s" if rate >= 10 else f"{rate:.2g} runs/s", False)
            self._bar.update(min(runs * scale, self._seconds + cell.seconds - self._bar.n))

        return progress

    def end(self, cell: Cell) -> None:
        """The cell ended, here or in another process."""
        self._done += 1
        self._seconds += cell.seconds
        self._bar.update(self._seconds - self._bar.n)

    def say(self, line: str) -> None:
        """A line above the progress."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Leaves the line as it is."""
        self._bar.set_description_str(f"{self._done}/{self._cells} cells:")
        self._bar.close()
