"""Kill an audit at random moments and compare its scores.

    ./run.sh kills                               100 kills, a few minutes
    ./run.sh kills --out=/shared/folder          on a disk that others share

Small audits are killed with SIGKILL and started again until they end; their scores must be, to the bit,
those of one left alone.
"""

import shutil
import time
from pathlib import Path

import kill_loop
from absl import flags
from tqdm import tqdm

from audit.errors import require
from experiments import cli

FLAGS = flags.FLAGS
flags.DEFINE_integer("kills", 100, "How many kills.")
flags.DEFINE_integer("seed", 0, "Seed of the moments.")
flags.DEFINE_string("out", "results/kills", "Folder for the audits; one that exists must be empty.")


def main() -> None:
    """Kill, compare, say so."""
    require(FLAGS.kills >= 1, f"--kills={FLAGS.kills}: give at least 1")
    require(FLAGS.seed >= 0, f"--seed={FLAGS.seed}: give at least 0")
    folder = Path(FLAGS.out)
    require(
        not folder.exists() or (folder.is_dir() and not list(folder.iterdir())),
        f"--out={folder} holds something: name an empty folder",
    )
    begin = time.perf_counter()
    with tqdm(total=FLAGS.kills, unit="kills", desc="killing") as bar:
        done = kill_loop.survive(folder, FLAGS.kills, FLAGS.seed, lambda kills: bar.update(kills - bar.n))
    shutil.rmtree(folder)
    print(
        f"{done.kills} kills in {time.perf_counter() - begin:.0f} s over {done.audits} audits: every score "
        f"is, to the bit, that of one left alone\n{done.checkpoints} kills left a checkpoint to go on from, "
        f"{done.half_written} something half written"
    )


if __name__ == "__main__":
    cli.run(main)
