"""The page of the Gaussian mechanism's simulated audits: Table 1, floors, and a figure."""

from collections.abc import Sequence

from audit.report import page
from audit.statistics.names import ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, ONE_SHOT_THRESHOLD
from experiments.one_shot import table
from experiments.one_shot.simulation import Floors, TableCell

_TITLE = "One-shot estimates of a Gaussian mechanism whose epsilon is known"
_METHODS = (ONE_SHOT_EQUAL_VARIANCE, ONE_SHOT_FITTED, ONE_SHOT_THRESHOLD)
_POINTS = (
    "No value on this page is a confidence bound: an estimate takes a fitted normal law for the truth, and "
    "may lie above epsilon.",
    "The exact value is the mechanism's own epsilon: a good estimate is near it and varies little.",
    "A floor is what an estimate shows where nothing leaks, with so many canaries: less than its 95% "
    "quantile is no evidence of a leak.",
    "The figure is one audit a panel: its cosines, the law that they have where nothing leaks, and the "
    "normal fit that the estimates rest on.",
)


def simulated_page(
    cells: Sequence[TableCell], floors: Sequence[Floors], figure: bytes, delta: float, simulations: int
) -> bytes:
    """The page of a table's cells, floors, and the figure as an image."""
    caption = f"Table 1: mean (deviation) of epsilon at delta = {delta:g} over {simulations:,} simulations"
    names = [name.removeprefix("one_shot_").replace("_", " ") for name in _METHODS]
    header = ("sigma", "dimension", "canaries", "exact", "paper", *names)
    known = page.table(caption, header, [_cell(cell, delta) for cell in cells])
    caption = f"Floors of epsilon at delta = {delta:g}: mean (95% quantile) where nothing leaks"
    rows = [(f"{row.canaries:,}", *(_floor(row, name) for name in _METHODS)) for row in floors]
    words = "Histograms of cosines beside the law where nothing leaks and a normal fit, a panel a noise."
    return page.document(
        _TITLE,
        page.element("h1", _TITLE),
        page.points(_POINTS),
        known,
        page.table(caption, ("canaries", *names), rows),
        page.figure(figure, words, "Density of the canaries' cosines, in units of 1/sqrt(d).", "wide"),
    )


def _cell(cell: TableCell, delta: float) -> tuple[str, ...]:
    """A row of Table 1."""
    paper = table.printed(cell, delta)
    said = "" if paper is None else f"{paper.mean:.2f} ({paper.deviation:.2f})"
    values = (cell.epsilons[name] for name in _METHODS)
    found = (f"{value.mean():.2f} ({value.std():.2f})" for value in values)
    return (f"{cell.sigma:g}", f"{cell.dimension:,}", f"{cell.canaries:,}", f"{cell.exact:.3f}", said, *found)


def _floor(row: Floors, method: str) -> str:
    """A floor's cell."""
    return f"{row.by_method[method].mean:.3f} ({row.by_method[method].quantile_95:.3f})"
