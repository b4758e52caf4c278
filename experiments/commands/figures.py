"""Draw the figures whose cells a sweep has stored, and a table.

    ./run.sh figures                            what a sweep has trained under results/
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
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.settings import make
from audit.storage import files
from audit.written import Level, counted
from experiments.cells.cell import Audited
from experiments.sweeps import registry
from experiments.sweeps.sweep import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from experiments.sweeps.points import Evidence
    from experiments.sweeps.records import Record

FLAGS = flags.FLAGS
flags.DEFINE_string("scale", "laptop", "smoke, laptop or paper: that of the sweep.")
flags.DEFINE_list("name", ["all"], "Sweeps, comma-separated, or all.")
cli.define_levels()
cli.define_out("Folder of the store; figures go into its folder figures.")


class _Drawing(NamedTuple):
    """What has been drawn of all sweeps so far.

    Attributes:
      files: The files that were written, in order.
      rows: The rows of the common table.
      incomplete: The numbers of missing cells, by the names of sweeps that were drawn without these.
      waiting: The names of sweeps of which nothing can be drawn yet.
    """

    files: list[Path]
    rows: "list[Record]"
    incomplete: dict[str, int]
    waiting: list[str]


def main() -> None:
    """Parses the flags, draws the figures that stored cells allow, and prints the table and what is missing.

    Raises InputError for flags out of range, and where no figure can be drawn.
    """
    from audit.laws import conversions
    from experiments.sweeps import points, table

    levels = Level(FLAGS.delta, FLAGS.confidence)
    conversions.require_delta(levels.delta)
    conversions.require_confidence(levels.confidence)

    # What the store holds of the chosen sweeps at a scale, and the conclusions from it.
    held = make.holdings(cli.folder())
    scale = FLAGS.scale
    sweeps = registry.chosen(scale, FLAGS.name)
    audits: list[Audited] = []
    for sweep in sweeps:
        audits += sweep.audits()
    evidence = points.evidence(held, audits, levels)
    folder = held.root / "figures"
    if scale != "laptop":  # the usual scale, whose figures are in no folder below
        folder = folder / scale

    # What is drawn; `_draw_sweep` adds to it.
    drawing = _Drawing(files=[], rows=[], incomplete={}, waiting=[])
    for sweep in sweeps:
        _draw_sweep(sweep, evidence, scale, folder, drawing)
    nothing_drawn = f"{held.root} holds no finished cell of {','.join(FLAGS.name)} at scale {scale}"
    require(drawing.files, f"{nothing_drawn}: run {_training_command(FLAGS.name, scale)}")

    # What is missing goes to stderr; the tables and paths go to stdout.
    for line in _missing_lines(drawing, scale):
        print(line, file=sys.stderr)
    if drawing.rows:
        shown = table.make_table(drawing.rows, levels)
        drawing.files.append(files.write_whole(folder / "figures.csv", shown.csv()))
        if scale == registry.SMOKE:  # trained to try the code, with too few runs for a bound
            print(table.PROVES_NOTHING)
        print(shown.text() + "\n")
    for path in drawing.files:
        print(os.fspath(path))


def _draw_sweep(
    sweep: Sweep, evidence: "Evidence", scale: str, folder: Path, drawing: _Drawing
) -> None:
    """Draws a sweep's figures, and writes and prints its own table if it has one.

    The sweep's rows of the table that all sweeps have in common are only collected.

    Args:
      sweep: The sweep.
      evidence: What the store holds of all sweeps' cells.
      scale: The name of the sweep's scale.
      folder: The folder for the files.
      drawing: What has been drawn so far; it is extended in place.
    """
    from experiments.sweeps import table

    drawn = registry.draw(sweep, evidence)
    for name, figure in drawn.figures:
        drawing.files.extend(_write_figure(folder / name, figure))
    drawing.rows.extend(drawn.rows)
    if drawn.table is not None:
        drawing.files.append(files.write_whole(folder / f"{sweep.name}.csv", drawn.table.csv))
        if scale == registry.SMOKE:  # trained to try the code, with too few runs for a bound
            print(table.PROVES_NOTHING)
        print(drawn.table.text + "\n")
    # Where cells are missing, its figures are incomplete, or else there are none yet.
    if drawn.missing and (drawn.figures or drawn.table):
        drawing.incomplete[sweep.name] = drawn.missing
    elif drawn.missing:
        drawing.waiting.append(sweep.name)


def _missing_lines(drawing: _Drawing, scale: str) -> list[str]:
    """Returns lines that say which sweeps lack cells, and which command trains these cells.

    There are none where no sweep lacks cells.

    Args:
      drawing: What was drawn and what is missing.
      scale: The name of the sweeps' scale.
    """
    lines = []
    for name, missing in drawing.incomplete.items():
        verb = "is" if missing == 1 else "are"
        lines.append(f"{name}: {counted(missing, 'cell')} {verb} missing")
    if drawing.waiting:
        lines += textwrap.wrap(f"not drawn, for want of cells: {', '.join(drawing.waiting)}", 80)
    if lines:
        # The command is for figures that are drawn but incomplete, or else for those that are not drawn.
        names = list(drawing.incomplete) or drawing.waiting
        lines.append(f"to train them: {_training_command(names, scale)}")
    return lines


def _training_command(names: Sequence[str], scale: str) -> str:
    """Returns the command that trains the missing cells of the sweeps with these names, at a scale."""
    return f"./run.sh sweep --name={','.join(names)} --scale={scale} --out={shlex.quote(FLAGS.out)}"


def _write_figure(path: Path, figure: "Figure") -> Iterator[Path]:
    """Writes a figure in each format of `style.FORMATS`, and yields the files' paths.

    Args:
      path: The path that the files share, but for the suffix.
      figure: The figure.
    """
    import matplotlib.pyplot as plt

    from audit.report import style

    with plt.rc_context(style.STYLE):
        for suffix, encode in style.FORMATS.items():
            yield files.write_whole(path.with_suffix(suffix), encode(figure))
            # Encoding the first format lays the figure out; without an engine the others keep that layout.
            figure.set_layout_engine("none")


if __name__ == "__main__":
    cli.run(main)
