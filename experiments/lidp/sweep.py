"""The LiDP paper's experiments as data, at three scales.

smoke    seconds a figure
laptop   the paper's seeds, its sizes as far as they take seconds: up to 4,096 runs of 64 canaries
paper    Appendix E's grid, as far as its rule goes: n K at most 1e8, K d at most 1e9
"""

import functools
import math
from typing import TYPE_CHECKING, NamedTuple

from experiments.cells.cell import Levels
from experiments.lidp.audits import MechanismAudit, Panels
from experiments.lidp.mechanism_cell import mechanism_cell
from experiments.sweeps.sweep import Drawn, Sweep

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence

DIMENSIONS = (100, 1000, 10_000, 100_000, 1_000_000)
_DIMENSION = 10_000  # of panels over n and K


class MechanismGrid(NamedTuple):
    """How much is audited: runs with sqrt(n) canaries and with one, canaries at `runs`, seeds; the paper's
    epsilons of the panel over n and of the others."""

    lifted_runs: tuple[int, ...]
    single_runs: tuple[int, ...]
    canaries: tuple[int, ...]
    dimensions: tuple[int, ...]
    runs: int
    seeds: int
    epsilons: tuple[float, float] = (1.0, 4.0)


_RUNS = (256, 1024, 4096, 16384, 65536)
GRIDS = {
    "smoke": MechanismGrid((64, 256), (64, 256), (1, 4, 16), DIMENSIONS[:2], 256, 2),
    "laptop": MechanismGrid(_RUNS[:3], _RUNS, tuple(2**i for i in range(9)), DIMENSIONS, 1024, 25),
    "paper": MechanismGrid(_RUNS, _RUNS, tuple(2**i for i in range(11)), DIMENSIONS, 1024, 25),
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every sweep of a scale, by name."""
    found = [_figure_3(GRIDS[scale]), _figure_4(GRIDS[scale])]
    return {sweep.name: sweep for sweep in found}


def panels(grid: MechanismGrid, levels: Levels) -> Panels:
    """A grid's audits at some levels."""
    few, many = grid.epsilons
    usual = math.isqrt(grid.runs)

    def audit(runs: int, canaries: int, dimension: int, epsilon: float) -> MechanismAudit:
        return MechanismAudit(runs, canaries, dimension, epsilon, grid.seeds, *levels)

    return Panels(
        [
            *(audit(n, 1, _DIMENSION, few) for n in grid.single_runs),
            *(audit(n, math.isqrt(n), _DIMENSION, few) for n in grid.lifted_runs),
        ],
        [audit(grid.runs, k, _DIMENSION, many) for k in grid.canaries],
        [audit(grid.runs, usual, d, many) for d in grid.dimensions],
    )


def _figure_3(grid: MechanismGrid) -> Sweep:
    cells = tuple(mechanism_cell(one) for panel in panels(grid, Levels()) for one in panel)
    title = "Gaussian mechanism: epsilon over runs, canaries and dimension"
    return Sweep("lidp_figure_3", title, cells, functools.partial(_draw_figure_3, grid=grid))


def _figure_4(grid: MechanismGrid) -> Sweep:
    _, over_k, over_d = panels(grid, Levels())
    cells = tuple(mechanism_cell(one) for one in (*over_k, *over_d))
    title = "Gaussian mechanism: bias, variance and correlation"
    return Sweep("lidp_figure_4", title, cells, functools.partial(_draw_figure_4, grid=grid))


def _draw_figure_3(sweep: Sweep, evidence: "Evidence", grid: MechanismGrid) -> Drawn:
    from experiments.lidp import figures  # matplotlib, which work on cells does not need

    return figures.draw_epsilons(sweep.name, evidence.held, panels(grid, evidence.levels))


def _draw_figure_4(sweep: Sweep, evidence: "Evidence", grid: MechanismGrid) -> Drawn:
    from experiments.lidp import figures

    return figures.draw_correlations(sweep.name, evidence.held, panels(grid, evidence.levels))
