"""Table 1 beside the paper's, and noise floors: 80 columns."""

from collections.abc import Sequence

import numpy as np

from audit.statistics.names import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, ONE_SHOT_THRESHOLD
from experiments.one_shot.claims import DELTA, TABLE_1, Printed
from experiments.one_shot.simulation import Floors, TableCell

_METHODS = (ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, ONE_SHOT_THRESHOLD)
_NAMES = ("equal variance", "fitted", "threshold")
_ERRORS, _DEVIATIONS = 3.0, 0.3  # standard errors of a mean, and the share of a deviation
_ESTIMATES = """\
mean (deviation) over simulations; neither is a bound. fitted: the estimate as
the paper prints it. *: the equal variance's mean is beyond three standard
errors and the rounding of the paper's, or its deviation is 30% off"""
_FLOORS = "mean (95% quantile) where nothing leaks, the null known"


def printed(cell: TableCell, delta: float) -> Printed | None:
    """The paper's cell of the same sigma and dimension, where its delta is ours."""
    of = {(row.sigma, row.dimension): row for row in TABLE_1}
    return of.get((cell.sigma, cell.dimension)) if delta == DELTA else None


def agrees(cell: TableCell, paper: Printed, simulations: int) -> bool:
    """Whether the equal-variance estimate is the paper's within what simulations of both tell."""
    values = cell.epsilons[ONE_SHOT_EQUAL_VARIANCE]
    allowed = _ERRORS * paper.deviation / np.sqrt(simulations) + (0.05 if paper.mean >= 10 else 0.005)
    near = abs(values.mean() - paper.mean) <= allowed
    return bool(near and abs(values.std() / paper.deviation - 1) <= _DEVIATIONS)


def cells_table(cells: Sequence[TableCell], delta: float, simulations: int) -> str:
    """A row a cell."""
    header = f"{'sigma':>5} {'d':>8} {'k':>5} {'exact':>6}  {'paper':>13}"
    lines = [
        f"Table 1: estimates of epsilon at delta {delta:g}, {simulations} simulations a cell",
        header + "".join(f" {name:>14}" for name in _NAMES[:2]),
    ]
    lines.append("-" * len(lines[-1]))
    for cell in cells:
        paper = printed(cell, delta)
        said = "" if paper is None else f"{paper.mean:.2f} ({paper.deviation:.2f})"
        mark = " " if paper is None or agrees(cell, paper, simulations) else "*"
        values = [f"{v.mean():.2f} ({v.std():.2f})" for v in (cell.epsilons[name] for name in _METHODS[:2])]
        start = f"{cell.sigma:>5g} {cell.dimension:>8,.0e} {cell.canaries:>5} {cell.exact:>6.3f}"
        lines.append(f"{start}  {said:>13} {values[0]:>14}{mark}{values[1]:>14}".rstrip())
    return "\n".join([*lines, _ESTIMATES])


def floors_table(floors: Sequence[Floors], delta: float) -> str:
    """A row a number of canaries."""
    lines = [
        f"Noise floors of epsilon at delta {delta:g}",
        f"{'canaries':>8}" + "".join(f" {name:>17}" for name in _NAMES),
    ]
    lines.append("-" * len(lines[-1]))
    for row in floors:
        found = [row.by_method[name] for name in _METHODS]
        lines.append(
            f"{row.canaries:>8,}"
            + "".join(f" {f'{one.mean:.3f} ({one.quantile_95:.3f})':>17}" for one in found)
        )
    return "\n".join([*lines, _FLOORS])


def as_csv(cells: Sequence[TableCell]) -> str:
    """A line a cell and estimate."""
    lines = ["sigma,dimension,canaries,exact,method,mean,deviation,simulations"]
    for cell in cells:
        for name, values in cell.epsilons.items():
            start = f"{cell.sigma:g},{cell.dimension},{cell.canaries},{cell.exact:.6g}"
            lines.append(f"{start},{name},{values.mean():.6g},{values.std():.6g},{len(values)}")
    return "\n".join(lines) + "\n"
