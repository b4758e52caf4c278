"""Draw the figures whose cells a sweep has stored, and a table.

    ./run.sh figures                            the largest scale that is under results/
    ./run.sh figures --scale=paper --name=figure_1c,figure_4

Reads the store alone: nothing is trained, no data are loaded. A figure of which some cells are missing is
drawn with those that are there. PNG, SVG and figures.csv go into the folder figures under --out, those of
other scales than laptop into its folder of that name.
"""

import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.progress import counted
from audit.settings import stored
from audit.settings.setting import identity
from audit.storage import files
from audit.storage.index import Holdings
from experiments.cells.cell import Cell, DataSets, Levels
from experiments.sweeps import registry
from experiments.sweeps.sweep import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGS = flags.FLAGS
flags.DEFINE_string("scale", None, "smoke, laptop or paper; by default the largest with finished cells.")
flags.DEFINE_list("name", ["all"], "Sweeps, comma-separated, or all.")
flags.DEFINE_float("delta", 1e-5, "delta of the bounds.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the lower bounds.")
flags.DEFINE_string("out", "results", "Folder of the store; figures go into its folder figures.")


def main() -> None:
    """Parse, read, draw, write, print."""
    from audit.statistics import conversions
    from experiments.sweeps import points, table

    levels = Levels(FLAGS.delta, FLAGS.confidence)
    conversions.require_delta(levels.delta)
    conversions.require_confidence(levels.confidence)
    held = stored.holdings(cli.folder())
    scale = _largest(held) if FLAGS.scale is None else FLAGS.scale
    chosen = registry.chosen(scale, FLAGS.name)
    evidence = points.evidence(held, [one for sweep in chosen for one in sweep.audits()], levels)
    folder = held.root / "figures" / ("" if scale == "laptop" else scale)
    written, found, missing = list[Path](), list[Row](), list[str]()
    incomplete, waiting = list[str](), list[str]()
    for sweep in chosen:
        drawn = registry.draw(sweep, evidence)
        for name, figure in drawn.figures:
            written += _write(folder / name, figure)
        found += drawn.rows
        if drawn.table is not None:
            written.append(files.write_whole(folder / f"{sweep.name}.csv", drawn.table.csv))
            smoke = [table.PROVES_NOTHING] if scale == registry.SMOKE else []
            print("\n".join([*smoke, drawn.table.text]) + "\n")
        if drawn.missing and not drawn.figures:
            waiting.append(sweep.name)
        elif drawn.missing:
            incomplete.append(sweep.name)
            are = "is" if drawn.missing == 1 else "are"
            missing.append(f"{sweep.name}: {counted(drawn.missing, 'cell')} {are} missing")
    names = ",".join(FLAGS.name)
    said = (
        f"{held.root} holds no finished cell of {names} at scale {scale}: run {_training(FLAGS.name, scale)}"
    )
    require(written, said)
    if FLAGS.scale is None:
        print(f"scale: {scale}", file=sys.stderr)
    if waiting:
        missing += textwrap.wrap(f"not drawn, for want of cells: {', '.join(waiting)}", 80)
    if missing:
        missing.append(f"to train them: {_training(incomplete or waiting, scale)}")
    print("\n".join(missing), end="\n" if missing else "", file=sys.stderr)
    if found:
        written.append(files.write_whole(folder / "figures.csv", table.as_csv(found)))
        print(table.as_text(chosen, found, *levels, proves=scale != registry.SMOKE) + "\n")
    print("\n".join(os.fspath(path) for path in written))


def _training(names: Sequence[str], scale: str) -> str:
    return f"./run.sh sweep --name={','.join(names)} --scale={scale} --out={shlex.quote(FLAGS.out)}"


def _largest(held: Holdings) -> str:
    def is_there(cell: Cell) -> bool:
        if cell.audited is None:
            return cell.is_done(held, DataSets({}))
        store = held.open(identity(cell.audited.setting))
        return store is not None and not store.missing(cell.runs)

    return registry.largest(is_there, FLAGS.name)


def _write(path: Path, figure: "Figure") -> Iterator[Path]:
    import matplotlib.pyplot as plt

    from audit.report import style

    with plt.rc_context(style.STYLE):
        for suffix, encode in style.FORMATS.items():
            yield files.write_whole(path.with_suffix(suffix), encode(figure))
            figure.set_layout_engine("none")  # it is laid out


if __name__ == "__main__":
    cli.run(main)
