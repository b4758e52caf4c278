"""Compare all public estimators of epsilon on the same scores.

    ./run.sh benchmark                  ten small audits per cell, two minutes
    ./run.sh benchmark --scale=full     1,000 audits per cell, two hours on two cores
    ./run.sh benchmark --audits=25 --estimators=ours,jax        some of the estimators

Scores are simulated with a known epsilon. Finished cells are stored under --out, so you can resume the
command. Estimators from packages that are not installed are listed and skipped.
"""

import sys

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.runtime import installed
from audit.runtime.machine import cores

FLAGS = flags.FLAGS
flags.DEFINE_enum("scale", "smoke", ["smoke", "full"], "Number and size of audits.")
flags.DEFINE_integer(
    "audits",
    None,
    "Audits per cell; the default depends on the scale. Slow estimators get fewer.",
    lower_bound=1,
    upper_bound=10**6,
)
flags.DEFINE_list("estimators", None, "Estimators whose names contain one of these. Default: all.")
flags.DEFINE_list("mechanisms", None, "Mechanisms whose names contain one of these. Default: all.")
cli.define_seed("Seed of the scores.")
cli.define_out("Folder for results; they go into its subfolder benchmark.")


def main() -> None:
    """Measures the missing cells, prints the summary, and writes the tables and the figure.

    In each cell, one estimator audits one mechanism repeatedly. In `claims`, it tests a false privacy claim.
    """
    # --help must not load SciPy or pandas.
    from experiments.benchmark import tables
    from experiments.benchmark.cells import (
        SCALES,
        Cell,
        list_cells,
        list_claims,
        load_measured,
        measure_missing,
    )
    from experiments.benchmark.mechanisms import MECHANISMS
    from experiments.benchmark.registry import ESTIMATORS
    from experiments.sweeps.records import make_csv

    folder = cli.folder() / "benchmark"
    scale = SCALES[FLAGS.scale]
    if FLAGS.audits is not None:
        scale = scale._replace(audits=FLAGS.audits)
    chosen = cli.choose_names("estimators", ESTIMATORS)
    cells = list_cells(chosen, cli.choose_names("mechanisms", MECHANISMS), scale, FLAGS.seed)
    require(cells, "--estimators and --mechanisms: no installed estimator for these mechanisms")
    uninstalled = [
        ESTIMATORS[name].package for name in chosen if not ESTIMATORS[name].find_version()
    ]
    for package in dict.fromkeys(uninstalled):
        print(
            f"{package} is not installed, skipping its estimators: {installed.pip_install(package)}",
            file=sys.stderr,
        )

    claims = list_claims(dict.fromkeys(cell.estimator for cell in cells), scale, FLAGS.seed)
    stored = folder / "cells"
    all_cells: list[Cell] = [*cells, *claims]
    num_done = len(load_measured(all_cells, stored))
    finished = measure_missing(all_cells, stored, cores())
    for _ in tqdm(finished, "benchmark", len(all_cells), initial=num_done, unit="cell"):
        pass

    from audit.report import style
    from experiments.benchmark import figure

    measured = list(load_measured(cells, stored).values())
    summary = tables.make_summary_table(measured, list(load_measured(claims, stored).values()))
    print(f"{summary.text()}\n")
    contents = {
        "estimators.csv": summary.csv(),
        "benchmark.csv": make_csv(measured),
        "benchmark.png": style.png(figure.draw_figure(summary.rows)),
    }
    cli.write_files(folder, contents)


if __name__ == "__main__":
    cli.run(main)
