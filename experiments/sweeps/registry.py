"""Finds the sweeps of all papers by name, and draws them."""

from importlib import import_module
from typing import TYPE_CHECKING

from audit.errors import require
from experiments.canife import sweep as canife
from experiments.hidden_state import sweep as hidden_state
from experiments.lidp import sweep as lidp
from experiments.one_shot import sweep as one_shot
from experiments.sweeps.sweep import Drawn, Sweep

if TYPE_CHECKING:
    from experiments.sweeps.points import Evidence

SMOKE = hidden_state.SMOKE
SCALES = hidden_state.SCALES  # smallest first
PAPERS = (canife, hidden_state, lidp, one_shot)


def sweeps(scale: str) -> dict[str, Sweep]:
    """Returns the sweeps of all papers at the given scale, keyed by name."""
    all_sweeps: dict[str, Sweep] = {}
    for paper in PAPERS:
        all_sweeps |= paper.sweeps(scale)
    return all_sweeps


def draw(sweep: Sweep, evidence: "Evidence") -> Drawn:
    """Draws a sweep's figure and table from its stored cells, with `draw` from the paper's `figures` module.

    Other functions do not import the module, because it loads matplotlib.
    """
    # Sweeps have the same names at all scales, and this scale has the fewest cells.
    (paper,) = [paper for paper in PAPERS if sweep.name in paper.sweeps(SMOKE)]
    figures = import_module(paper.__name__.replace(".sweep", ".figures"))
    drawn: Drawn = figures.draw(sweep, evidence)
    return drawn


def chosen(scale: str, names: list[str]) -> list[Sweep]:
    """Returns the sweeps with these names at the given scale; ["all"] selects all sweeps with cells.

    Raises InputError if a name is unknown or the list is empty.
    """
    all_sweeps = sweeps(scale)
    if names == ["all"]:
        return [sweep for sweep in all_sweeps.values() if sweep.cells]
    choices = ", ".join(all_sweeps)
    require(names, f"`name` is missing: give all, or any of {choices}")
    for name in names:
        require(name in all_sweeps, f"`name={name}` is unknown: give all, or any of {choices}")
    return [all_sweeps[name] for name in dict.fromkeys(names)]
