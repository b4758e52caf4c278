"""Measure every public estimator of epsilon on the same scores.

    ./run.sh benchmark                  ten small audits a cell, two minutes
    ./run.sh benchmark --scale=full     1,000 audits a cell, an hour on two quiet cores
    ./run.sh benchmark --audits=25 --estimators=ours,jax        some of them

Our own estimators are among them. The scores are simulated by mechanisms whose truth is known. A cell that is
done is kept under --out, so that the same command goes on where it was ended. What is not installed is left
out, with a line that says so.
"""

import os
import sys
from collections.abc import Sequence

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.runtime import installed
from experiments.benchmark import registry, tables
from experiments.benchmark.cells import (
    SCALES,
    AuditedCell,
    Cell,
    CellStore,
    Scale,
    find_missing,
    list_cells,
    list_claims,
    load_all,
    measure_missing,
)
from experiments.benchmark.mechanisms import MECHANISMS

FLAGS = flags.FLAGS
flags.DEFINE_string("scale", "smoke", f"How many audits: {', '.join(SCALES)}.")
flags.DEFINE_integer(
    "audits", None, "Audits a cell, in place of the scale's; slow estimators have fewer."
)
flags.DEFINE_integer(
    "n", None, "Scores a world, runs, or coins of the one run, in place of the scale's."
)
flags.DEFINE_list("estimators", None, "Parts of estimators' names; by default all.")
flags.DEFINE_list("mechanisms", None, "Parts of mechanisms' names; by default all.")
cli.define_processes()
cli.define_seed("Seed of the scores.")
cli.define_out("Folder for results; the table goes into its folder benchmark.")

MOST_AUDITS = 10**6
LEAST_N = 50
MOST_N = 5_000


def main() -> None:
    """Parses the flags, measures the cells that are not stored, prints the summary and writes all files.

    A cell is an estimator on a mechanism, measured over many audits. In `cells` the estimator bounds epsilon.
    In `claims` it is to refute a claim.
    """
    processes = cli.processes()
    folder = cli.folder() / "benchmark"
    scale = _parse_scale()
    cli.require_seed()
    estimators = registry.choose_names("estimators", FLAGS.estimators, registry.ESTIMATORS)
    cells = _choose_cells(estimators, scale)
    measured_estimators = list(dict.fromkeys(cell.estimator for cell in cells))
    claims = list_claims(measured_estimators, scale, FLAGS.seed)

    store = CellStore(folder / "cells")

    all_cells: list[Cell] = [*cells, *claims]
    n_missing = len(find_missing(all_cells, store))
    with tqdm(total=n_missing, unit="cell", desc="benchmark", disable=not n_missing) as bar:
        for _ in measure_missing(all_cells, store, processes):
            bar.update()

    from experiments.benchmark import page

    # All cells are in the store by now.
    measured = load_all(cells, store)
    measured_claims = load_all(claims, store)
    paths = page.write_files(folder, measured, measured_claims)
    print(tables.make_summary_table(measured, measured_claims).text())
    print("\n" + "\n".join(map(os.fspath, paths)))


def _choose_cells(estimators: list[str], scale: Scale) -> list[AuditedCell]:
    """Returns the cells of these estimators on the mechanisms that --mechanisms chooses.

    Estimators whose package is not installed are left out, and stderr says so. Raises InputError where no
    cell is left.
    """
    mechanisms = registry.choose_names("mechanisms", FLAGS.mechanisms, MECHANISMS)
    cells = list_cells(estimators, mechanisms, scale, FLAGS.seed)
    require(
        cells, "--estimators and --mechanisms: no estimator that is installed takes such scores"
    )
    for package in _find_missing_packages(estimators):
        fix = installed.pip_install(package)
        print(f"{package} is not installed, its estimators are left out: {fix}", file=sys.stderr)
    return cells


def _parse_scale() -> Scale:
    """Returns the scale that --scale names, with --audits and --n in place of its own numbers.

    A scale has the number of audits in a cell and the size n of an audit: its scores in each world, its runs,
    or its canaries in a single run, as the cell's estimator takes them.

    Raises InputError for an unknown scale, and for numbers that are out of range.
    """
    require(
        FLAGS.scale in SCALES,
        f"--scale={FLAGS.scale} is unknown: choose one of {', '.join(SCALES)}",
    )
    scale = SCALES[FLAGS.scale]
    if FLAGS.audits is not None:
        require(
            1 <= FLAGS.audits <= MOST_AUDITS, f"--audits={FLAGS.audits}: give 1 to {MOST_AUDITS:,}"
        )
        scale = scale._replace(audits=FLAGS.audits)
    if FLAGS.n is not None:
        require(LEAST_N <= FLAGS.n <= MOST_N, f"--n={FLAGS.n}: give {LEAST_N} to {MOST_N:,}")
        scale = scale._replace(n=FLAGS.n)
    return scale


def _find_missing_packages(estimators: Sequence[str]) -> list[str]:
    """Returns the names of the packages that these estimators need and lack, each once."""
    packages = []
    for name in estimators:
        estimator = registry.ESTIMATORS[name]
        if not registry.is_installed(estimator) and estimator.package not in packages:
            packages.append(estimator.package)
    return packages


if __name__ == "__main__":
    cli.run(main, keeps=True)
