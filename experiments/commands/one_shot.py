"""The one-shot paper's Gaussian mechanism: Table 1, noise floors.

./run.sh one_shot                                    Table 1, half a minute
./run.sh one_shot --sigmas=1 --dimensions=1e4,1e5    other cells
./run.sh one_shot --report=page.html                 a page as well
./run.sh one_shot --canaries=1000 --delta=1e-5       other floors
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.laws import conversions, cosine_law
from audit.methods.level import show_level
from audit.storage import files
from experiments.one_shot import estimates, tables
from experiments.one_shot.estimates import Floors, TableCell

if TYPE_CHECKING:
    from experiments.one_shot.figures import Panel

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "sigmas",
    ["0.541", "1.54", "4.22"],
    "Noise of the mechanisms, whose sensitivity is 1.",
)
flags.DEFINE_list(
    "dimensions",
    ["1e4", "1e5", "1e6", "1e7"],
    "Dimensions d; each has sqrt(d) canaries.",
)
flags.DEFINE_list(
    "canaries",
    ["100", "316", "1000", "3162", "10000"],
    "Canaries, for the noise floors.",
)
flags.DEFINE_integer("simulations", tables.SIMULATIONS, "Simulations a cell.")
flags.DEFINE_float("delta", tables.DELTA, "delta of every epsilon.")
cli.define_seed("Seed of the simulations.")
flags.DEFINE_string("report", None, "Also write a page into this HTML file.")
cli.define_out("Folder for results; these go into its folder one_shot.")

_FIGURE_DIMENSION = 10**6
_MOST_PANELS = 4
_TITLE = "One-shot estimates of a Gaussian mechanism whose epsilon is known"
_POINTS = (
    "No value on this page is a confidence bound: an estimate takes a fitted normal law for the truth, and "
    "may lie above epsilon.",
    "The exact value is the mechanism's own epsilon: a good estimate is near it and varies little.",
    "A floor is what an estimate shows where nothing leaks, with so many canaries: less than its 95% "
    "quantile is no evidence of a leak.",
    "The figure is one audit a panel: its cosines, the law that they have where nothing leaks, and the "
    "normal fit that the estimates rest on.",
)


def main() -> None:
    """Parses the flags, simulates the one-shot paper's Table 1, and prints and draws it.

    It also prints the floors: what every estimate of epsilon shows where nothing leaks.
    """
    cli.require_output("report", "an HTML file")
    sigmas = _parse_sigmas()
    # A dimension d has sqrt(d) canaries, here 10 to 10,000. Floors may have more canaries: these are not
    # drawn, but only the mean and the deviation that the cosines of so many would have.
    dimensions = _parse_whole_numbers("dimensions", 100, 10**8)
    canaries = _parse_whole_numbers("canaries", 10, 10**7)
    # At least 2, since the table has the deviation of epsilon over simulations.
    require(
        2 <= FLAGS.simulations <= 10**6,
        f"--simulations={FLAGS.simulations}: give 2 to 1,000,000",
    )
    cli.require_seed()
    conversions.require_delta(FLAGS.delta)
    folder = cli.folder() / "one_shot"

    cells = _simulate_cells(sigmas, dimensions)
    floors = estimates.floors(canaries, FLAGS.delta)
    from audit.report import style
    from experiments.one_shot import figures

    image = style.png(figures.simulated_figure(_simulate_panels(sigmas)))
    written = [
        files.write_whole(folder / "table_1.csv", tables.make_cells_csv(cells)),
        files.write_whole(folder / "cosines.png", image),
    ]
    if FLAGS.report is not None:
        content = _make_page(cells, floors, image)
        page = files.write_whole(Path(FLAGS.report), content, "name another file with --report")
        written.append(page)

    print(tables.make_cells_table(cells, FLAGS.delta, FLAGS.simulations).text())
    print("\n" + tables.make_floors_table(floors, FLAGS.delta).text())
    print("\n" + "\n".join(os.fspath(path) for path in written))


def _parse_sigmas() -> list[float]:
    """Returns the noise multipliers of --sigmas; raises InputError for none, or for one out of range."""
    sigmas = cli.numbers("sigmas")
    require(sigmas, "--sigmas is empty: give numbers, comma-separated")
    for sigma in sigmas:
        require(1e-3 <= sigma <= 1e6, f"--sigmas: {sigma:g}: give 0.001 to 1e+06")
    return sigmas


def _parse_whole_numbers(flag: str, least: int, most: int) -> list[int]:
    """Returns the whole numbers of a list flag; raises InputError if it is empty or any is out of range."""
    numbers = cli.whole_numbers(flag)
    require(numbers, f"--{flag} is empty: give whole numbers, comma-separated")
    for number in numbers:
        require(least <= number <= most, f"--{flag}: {number}: give {least:,} to {most:,}")
    return numbers


def _simulate_cells(sigmas: list[float], dimensions: list[int]) -> list[TableCell]:
    """Simulates Table 1's cells under a progress bar; returns them sorted by sigma, then by dimension."""
    cells = []
    # A simulation draws its canaries once for all sigmas, and so counts once for all of them.
    with tqdm(total=len(dimensions) * FLAGS.simulations, desc="simulating", unit="audits") as bar:
        for dimension in dimensions:
            cells += estimates.simulate_cells(
                sigmas,
                dimension,
                FLAGS.simulations,
                FLAGS.delta,
                FLAGS.seed,
                bar.update,
            )
    cells.sort(key=lambda cell: (cell.sigma, cell.dimension))
    return cells


def _simulate_panels(sigmas: list[float]) -> "list[Panel]":
    """Simulates an audit for each panel of the figure: the cosines of sqrt(d) canaries in R^d, d = 10^6.

    Panels share their canaries and differ in the noise multiplier sigma. Each of the first _MOST_PANELS
    sigmas has a panel.
    """
    from experiments.one_shot.figures import Panel

    rng = np.random.default_rng([FLAGS.seed, 1])  # other draws than those of Table 1
    number = int(np.sqrt(_FIGURE_DIMENSION))
    canaries = cosine_law.draw_canaries(rng, number, _FIGURE_DIMENSION)
    panels = []
    for sigma in sigmas[:_MOST_PANELS]:
        title = rf"$\sigma$ = {sigma:g}, k = {number:,}, d = $10^6$"
        cosines = cosine_law.draw_cosines(rng, canaries, _FIGURE_DIMENSION, sigma)
        panels.append(Panel(title, cosines, _FIGURE_DIMENSION))
    return panels


def _make_page(cells: list[TableCell], floors: list[Floors], figure: bytes) -> bytes:
    """Returns the HTML page with Table 1, the floors and the figure.

    Args:
      cells: The cells of Table 1.
      floors: What estimates show where nothing leaks, for each number of canaries.
      figure: The figure as a PNG.
    """
    from audit.report import page

    delta = FLAGS.delta
    cells_table = tables.make_page_table(cells, delta)
    over = f"over {FLAGS.simulations:,} simulations"
    cells_caption = f"Table 1: mean (deviation) of epsilon at delta = {show_level(delta)} {over}"
    floors_table = tables.make_floors_table(floors, delta)
    floors_caption = (
        f"Floors of epsilon at delta = {show_level(delta)}: mean (95% quantile) where nothing leaks"
    )
    description = (
        "Histograms of cosines beside the law where nothing leaks and a normal fit, "
        "a panel a noise."
    )
    figure_caption = "Density of the canaries' cosines, in units of 1/sqrt(d)."
    return page.document(
        _TITLE,
        page.macros.heading(_TITLE),
        page.macros.points(_POINTS),
        page.table(cells_caption, cells_table.header(), cells_table.cells()),
        page.table(floors_caption, floors_table.header(), floors_table.cells()),
        page.figure(figure, description, figure_caption, "wide"),
    )


if __name__ == "__main__":
    cli.run(main)
