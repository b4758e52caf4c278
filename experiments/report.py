"""One self-contained HTML page on audits that are done.

    ./run.sh report                                    the newest audit in results/
    ./run.sh report --setting=1f3a,77c0                settings by hash, or all of them: --setting=all
    ./run.sh report --sweep=figure_1c --scale=laptop   every finished cell of a sweep

It reads the store alone, trains nothing and opens offline.
"""

from pathlib import Path

from absl import flags

from audit.errors import require
from audit.statistics import conversions
from audit.storage import files, index
from experiments import cli
from experiments.cells.cell import Sweep
from experiments.hidden_state import sweep as sweeps
from experiments.pages import report, subjects, sweep_report
from experiments.settings import stored

FLAGS = flags.FLAGS
flags.DEFINE_string("out", "results", "Folder that holds the audits.")
flags.DEFINE_string("setting", None, "Hashes, or their beginnings, or all; by default the newest.")
flags.DEFINE_string("sweep", None, "A sweep's name, instead of settings.")
flags.DEFINE_string("scale", "laptop", f"The sweep's scale: {', '.join(sweeps.SCALES)}.")
flags.DEFINE_float("delta", None, "delta of the bounds; by default as audited.")
flags.DEFINE_float("confidence", None, "Confidence of the lower bounds; by default as audited.")
flags.DEFINE_string("report", None, "The page's file; by default beside what it is about.")


def main() -> None:
    """Find, read, write."""
    if FLAGS.delta is not None:
        conversions.require_delta(FLAGS.delta)
    if FLAGS.confidence is not None:
        conversions.require_confidence(FLAGS.confidence)
    one = FLAGS.setting is None or FLAGS.sweep is None
    require(one, "--setting and --sweep do not go together: drop one")
    levels, root = subjects.Levels(FLAGS.delta, FLAGS.confidence), Path(FLAGS.out)
    if FLAGS.sweep is not None:
        content = sweep_report.of_sweep(_sweep(), FLAGS.scale, stored.holdings(root), levels)
        place = root / f"{FLAGS.sweep}_{FLAGS.scale}.html"
    else:
        folders = index.settings(root)
        require(folders, f"--out={root} holds no audits: run ./run.sh audit, or name another folder")
        chosen = _chosen(folders)
        content = report.of_settings(chosen, levels)
        place = (chosen[0] if len(chosen) == 1 else root) / "report.html"
    print(f"report: {files.write_whole(Path(FLAGS.report) if FLAGS.report else place, content)}")


def _chosen(folders: list[Path]) -> list[Path]:
    """The folders that --setting names."""
    if FLAGS.setting in (None, "all"):
        return folders if FLAGS.setting else folders[:1]
    chosen = []
    for name in FLAGS.setting.split(","):
        found = [folder for folder in folders if name and folder.name.startswith(name)]
        known = ", ".join(folder.name for folder in folders[:8])
        require(found, f"--setting={name} is no audit in {FLAGS.out}: there are {known}")
        require(len(found) == 1, f"--setting={name} begins {len(found)} hashes: write more of it")
        chosen += found
    return list(dict.fromkeys(chosen))


def _sweep() -> Sweep:
    """The sweep that --sweep and --scale name."""
    require(FLAGS.scale in sweeps.SCALES, f"--scale={FLAGS.scale}: choose one of {', '.join(sweeps.SCALES)}")
    known = sweeps.sweeps(FLAGS.scale)
    require(FLAGS.sweep in known, f"--sweep={FLAGS.sweep} is unknown: choose one of {', '.join(known)}")
    return known[FLAGS.sweep]


if __name__ == "__main__":
    cli.run(main)
