"""Measure every public estimator of epsilon on the same scores.

    ./run.sh benchmark                  ten small audits a cell, two minutes
    ./run.sh benchmark --scale=full     1,000 audits a cell, an hour on two quiet cores
    ./run.sh benchmark --audits=25 --estimators=ours,jax        some of them

Mechanisms with a known epsilon simulate the scores. Finished cells are kept under --out, so an interrupted
benchmark continues. Estimators of packages that are not installed are skipped and listed.
"""

import sys

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.runtime import installed
from audit.runtime.machine import cores
from experiments.benchmark import tables
from experiments.benchmark.cells import (
    SCALES,
    Cell,
    Scale,
    list_cells,
    list_claims,
    load_measured,
    measure_missing,
)
from experiments.benchmark.mechanisms import MECHANISMS
from experiments.benchmark.registry import ESTIMATORS
from experiments.sweeps.records import make_csv

FLAGS = flags.FLAGS
flags.DEFINE_enum("scale", "smoke", list(SCALES), "How many audits.")
flags.DEFINE_integer(
    "audits", None, "Audits per cell, by default those of the scale; fewer for slow estimators."
)
flags.DEFINE_integer(
    "n", None, "Scores per world, runs, or coins of a single run, by default those of the scale."
)
flags.DEFINE_list("estimators", None, "Parts of estimators' names. Default: all.")
flags.DEFINE_list("mechanisms", None, "Parts of mechanisms' names. Default: all.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.", lower_bound=1)
cli.define_seed("Seed of the scores.")
cli.define_out("Folder for results; the table goes into its folder benchmark.")


def main() -> None:
    """Measures missing cells, prints the summary and writes all files."""
    processes = FLAGS.processes or cores()
    folder = cli.folder() / "benchmark"
    scale = _parse_scale()
    chosen = cli.choose_names("estimators", ESTIMATORS)
    cells = list_cells(chosen, cli.choose_names("mechanisms", MECHANISMS), scale, FLAGS.seed)
    require(cells, "--estimators and --mechanisms: no installed estimator takes such scores")
    uninstalled: dict[str, None] = {}  # a dict keeps the order
    for estimator in map(ESTIMATORS.__getitem__, chosen):
        if not estimator.is_installed():
            uninstalled[estimator.package] = None
    for package in uninstalled:
        fix = installed.pip_install(package)
        print(f"{package} is not installed, skipping its estimators: {fix}", file=sys.stderr)
    claims = list_claims(dict.fromkeys(cell.estimator for cell in cells), scale, FLAGS.seed)

    journal = folder / "cells.jsonl"
    all_cells: list[Cell] = [*cells, *claims]
    n_done = len(load_measured(all_cells, journal))
    progress = measure_missing(all_cells, journal, processes)
    for _ in tqdm(progress, "benchmark", len(all_cells), initial=n_done, unit="cell"):
        pass

    from audit.report import style
    from audit.storage import files
    from experiments.benchmark import figure

    measured = list(load_measured(cells, journal).values())
    summary = tables.make_summary_table(measured, list(load_measured(claims, journal).values()))
    print(f"{summary.text()}\n")
    contents = {
        "estimators.csv": summary.csv(),
        "benchmark.csv": make_csv(measured),
        "benchmark.png": style.png(figure.draw_figure(summary.rows)),
    }
    for name, content in contents.items():
        print(files.write_whole(folder / name, content))


def _parse_scale() -> Scale:
    """Returns the scale of --scale, changed by --audits and --n."""
    scale = SCALES[FLAGS.scale]
    if FLAGS.audits is not None:
        require(1 <= FLAGS.audits <= 10**6, f"--audits={FLAGS.audits}: give 1 to 1,000,000")
        scale = scale._replace(audits=FLAGS.audits)
    if FLAGS.n is not None:
        require(50 <= FLAGS.n <= 5_000, f"--n={FLAGS.n}: give 50 to 5,000")
        scale = scale._replace(sizes=(FLAGS.n,))
    return scale


if __name__ == "__main__":
    cli.run(main, keeps=True)
