"""Measure every public estimator of epsilon, ours among them, on the same scores.

    ./run.sh benchmark                  ten small audits a cell, two minutes
    ./run.sh benchmark --scale=full     1,000 audits a cell, an hour on two quiet cores
    ./run.sh benchmark --audits=25 --estimators=ours,jax        some of them

The scores are simulated by mechanisms whose truth is known. A cell that is done is kept under --out, so that
the same command goes on where it was ended. What is not installed is left out, with a line that says so.
"""

import os
import sys

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.machine import cores
from experiments.benchmark import registry, shown
from experiments.benchmark.measured import SCALES, AuditedCell, KeptCells, cells, missing
from experiments.benchmark.mechanisms import MECHANISMS

FLAGS = flags.FLAGS
flags.DEFINE_string("scale", "smoke", f"How many audits: {', '.join(SCALES)}.")
flags.DEFINE_integer("audits", None, "Audits a cell, in place of the scale's; slow estimators have fewer.")
flags.DEFINE_integer("n", None, "Scores a world, runs, or coins of the one run, in place of the scale's.")
flags.DEFINE_list("estimators", None, "Parts of estimators' names; by default all.")
flags.DEFINE_list("mechanisms", None, "Parts of mechanisms' names; by default all.")
flags.DEFINE_integer("processes", None, "Processes; by default one a core.")
flags.DEFINE_integer("seed", 0, "Seed of the scores.")
flags.DEFINE_string("out", "results", "Folder for results; the table goes into its folder benchmark.")

MOST_PROCESSES, MOST_AUDITS = 1024, 10**6
LEAST_N, MOST_N = 50, 5_000


def main() -> None:
    """Parse, measure what is missing, print, draw."""
    processes, folder, wanted = _processes(), cli.folder() / "benchmark", _wanted()
    kept = KeptCells(folder / "cells")
    lacking = sum(kept.load(cell) is None for cell in wanted)
    with tqdm(total=lacking, unit="cell", desc="benchmark", disable=not lacking) as bar:
        for _ in missing(wanted, kept, processes):
            bar.update()
    found = [one for one in map(kept.load, wanted) if one is not None]
    from experiments.benchmark import page

    written = page.write(folder, found)
    print(shown.summary(found).text())
    print("\n" + "\n".join(map(os.fspath, written)))


def _wanted() -> list[AuditedCell]:
    """The cells that the flags ask for; says on stderr which packages are missing."""
    require(FLAGS.scale in SCALES, f"--scale={FLAGS.scale} is unknown: choose one of {', '.join(SCALES)}")
    scale = SCALES[FLAGS.scale]
    if FLAGS.audits is not None:
        require(1 <= FLAGS.audits <= MOST_AUDITS, f"--audits={FLAGS.audits}: give 1 to {MOST_AUDITS:,}")
        scale = scale._replace(audits=FLAGS.audits)
    if FLAGS.n is not None:
        require(LEAST_N <= FLAGS.n <= MOST_N, f"--n={FLAGS.n}: give {LEAST_N} to {MOST_N:,}")
        scale = scale._replace(n=FLAGS.n)
    require(0 <= FLAGS.seed < 2**32, f"--seed={FLAGS.seed}: give 0 to 2^32 - 1")
    names = registry.chosen("estimators", FLAGS.estimators, registry.ESTIMATORS)
    mechanisms = registry.chosen("mechanisms", FLAGS.mechanisms, MECHANISMS)
    wanted = cells(names, mechanisms, scale, FLAGS.seed)
    require(wanted, "--estimators and --mechanisms: no estimator that is installed takes such scores")
    left_out = [one for one in map(registry.ESTIMATORS.__getitem__, names) if not registry.installed(one)]
    for package in dict.fromkeys(one.package for one in left_out):
        mend = f"{sys.prefix}/bin/pip install {package}"
        print(f"{package} is not installed, its estimators are left out: {mend}", file=sys.stderr)
    return wanted


def _processes() -> int:
    found = cores() if FLAGS.processes is None else FLAGS.processes
    require(1 <= found <= MOST_PROCESSES, f"--processes={found}: give 1 to {MOST_PROCESSES:,}")
    return found


if __name__ == "__main__":
    cli.run(main)
