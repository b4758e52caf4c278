"""All papers' sweeps under one roof: which there are, and which the store has finished cells of."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from audit.errors import require
from experiments.cells.cell import Cell
from experiments.hidden_state import sweep as hidden_state
from experiments.lidp import sweep as lidp
from experiments.one_shot import sweep as one_shot
from experiments.sweeps.sweep import Drawn, Sweep

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence

SMOKE = hidden_state.SMOKE
SCALES = hidden_state.SCALES  # the smallest first
FIGURES = {  # modules with a function draw(sweep, evidence) -> Drawn, which import matplotlib
    "experiments.hidden_state.figures": hidden_state,
    "experiments.lidp.figures": lidp,
    "experiments.one_shot.figures": one_shot,
}


def sweeps(scale: str) -> dict[str, Sweep]:
    """Every paper's sweeps of a scale, by name."""
    return {name: sweep for paper in FIGURES.values() for name, sweep in paper.sweeps(scale).items()}


def draw(sweep: Sweep, evidence: "Evidence") -> Drawn:
    """A sweep's figures of the cells that are there, by its paper's `figures.draw`."""
    (figures,) = (name for name, paper in FIGURES.items() if sweep.name in paper.sweeps(SMOKE))
    drawn: Drawn = importlib.import_module(figures).draw(sweep, evidence)
    return drawn


def chosen(scale: str, names: list[str]) -> list[Sweep]:
    """The sweeps of a scale by name, or all of them; raises InputError for others."""
    require(scale in SCALES, f"`scale={scale}` is unknown: choose one of {', '.join(SCALES)}")
    every = sweeps(scale)
    if names == ["all"]:
        return list(every.values())
    known = ", ".join(every)
    require(names, f"`name` is missing: give all, or some of {known}")
    for name in names:
        require(name in every, f"`name={name}` is unknown: give all, or some of {known}")
    return [every[name] for name in dict.fromkeys(names)]


def largest(finished: Callable[[Cell], bool], names: list[str]) -> str:
    """The largest scale that has a finished cell which no smaller scale has; laptop where none has."""
    known: set[tuple[str, int]] = set()
    found = "laptop"
    for scale in SCALES:
        cells = {(cell.identity, cell.runs): cell for sweep in chosen(scale, names) for cell in sweep.cells}
        if any(finished(cells[key]) for key in cells.keys() - known):
            found = scale
        known |= cells.keys()
    return found
