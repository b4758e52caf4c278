"""One self-contained HTML page on audits that are done.

    ./run.sh report                                    the newest audit in results/
    ./run.sh report --setting=1f3a,77c0                settings by hash, or all of them: --setting=all
    ./run.sh report --sweep=figure_1c --scale=laptop   every finished cell of a sweep

It reads the store alone, trains nothing and opens offline.
"""

import dataclasses
from pathlib import Path

from absl import flags

from audit.errors import require
from audit.statistics import conversions
from audit.storage import files, index
from experiments import cli
from experiments.hidden_state import figures
from experiments.hidden_state import sweep as sweeps
from experiments.pages import page, reporting, subjects
from experiments.pages.page import Html
from experiments.plots import audit_panels, points

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
        content, place = _of_sweep(root, levels), root / f"{FLAGS.sweep}_{FLAGS.scale}.html"
    else:
        folders = subjects.settings(root)
        require(folders, f"--out={root} holds no audits: run ./run.sh audit, or name another folder")
        chosen = _chosen(folders)
        content = _of_settings(chosen, levels)
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


def _of_settings(chosen: list[Path], levels: subjects.Levels) -> bytes:
    """The page of settings."""
    about = [subjects.of_setting(folder, levels) for folder in chosen]
    title = f"Audit: {about[0].title}" if len(about) == 1 else f"{len(about)} audits"
    return reporting.report(title, about)


def _of_sweep(root: Path, levels: subjects.Levels) -> bytes:
    """The page of a sweep's finished cells, with its figure."""
    require(FLAGS.scale in sweeps.SCALES, f"--scale={FLAGS.scale}: choose one of {', '.join(sweeps.SCALES)}")
    known = sweeps.sweeps(FLAGS.scale)
    require(FLAGS.sweep in known, f"--sweep={FLAGS.sweep} is unknown: choose one of {', '.join(known)}")
    sweep = known[FLAGS.sweep]
    cells = [cell for cell in sweep.cells if isinstance(cell, sweeps.Cell)]
    require(cells, f"--sweep={FLAGS.sweep} holds no audits of trained models: see ./run.sh figures")
    held = index.holdings(root)
    about = [subject for cell in cells for subject in _of_cell(held, sweep.xlabel, cell, levels)]
    message = f"--out={root} holds no finished cell of {sweep.name} at scale {FLAGS.scale}"
    require(about, f"{message}: run ./run.sh sweep --name={sweep.name} --scale={FLAGS.scale}")
    share = f"{len(about)} of the sweep's {len(cells)} cells"
    count = page.element("p", f"{share} at scale {FLAGS.scale} are done.")
    figures = _figures(sweep, held, cells, levels)
    return reporting.report(f"{sweep.name}: {sweep.title}", about, count, *figures)


def _of_cell(
    held: index.Holdings, xlabel: str, cell: sweeps.Cell, levels: subjects.Levels
) -> list[subjects.Subject]:
    """A cell's audit, named after its place in the figure; nothing where it is not finished."""
    store = held.open(dataclasses.asdict(cell.setting))
    if store is None or store.missing(cell.runs):
        return []
    place = [cell.panel, cell.series, f"{xlabel} {cell.x:g}" if xlabel else "", f"seed {cell.setting.seed}"]
    about = subjects.of_setting(store.path, levels, cell.runs)
    return [about._replace(title=", ".join(part for part in place if part))]


def _figures(
    sweep: sweeps.Sweep, held: index.Holdings, cells: list[sweeps.Cell], levels: subjects.Levels
) -> list[Html]:
    """The sweep's figures of the cells that are there."""
    at = figures.Levels(levels.delta or 1e-5, levels.confidence or 0.95)
    drawn = figures.draw(sweep, held, points.audits(held, cells, *at), at)
    alternative = f"{sweep.title}. The numbers are in the table of audits."
    images = [audit_panels.svg(figure) for _, figure in drawn.figures]
    return [page.figure(image, alternative, sweep.title, "wide") for image in images]


if __name__ == "__main__":
    cli.run(main)
