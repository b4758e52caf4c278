"""Draw figures and a table from the stored cells of sweeps.

    ./run.sh figures                            all figures with cells under results/
    ./run.sh figures --scale=paper --name=figure_1c,figure_4

This command does not train or load data. The figures and figures.csv are in the folder figures under --out,
or in a subfolder named after the scale (except laptop).
"""

import shlex
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.storage import index
from experiments.sweeps import registry
from experiments.sweeps.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FLAGS = flags.FLAGS
flags.DEFINE_enum("scale", "laptop", registry.SCALES, "Scale of the sweep.")
flags.DEFINE_list("name", ["all"], "Sweeps, comma-separated, or all.")
cli.define_levels()
cli.define_out("Folder of the store; figures go to the subfolder figures.")


def main() -> None:
    """Draws figures from stored cells, and prints the tables and how many cells are missing from each sweep.

    Raises InputError if a flag is out of range or no figure can be drawn.
    """
    from experiments.sweeps import points

    level = cli.level()
    held = index.holdings(cli.folder())
    scale = FLAGS.scale
    sweeps = registry.chosen(scale, FLAGS.name)
    audits = []
    for sweep in sweeps:
        audits += sweep.audits()
    evidence = points.evidence(held, audits, level)
    folder = held.root / "figures"
    if scale != "laptop":  # the default scale does not have a subfolder
        folder = folder / scale

    contents: dict[str, bytes] = {}  # of files, by name
    rows: list[Record] = []  # of the table that most figures share
    texts = []
    missing = {}  # the number of cells by sweep
    for sweep in sweeps:
        drawn = registry.draw(sweep, evidence)
        if drawn.figure is not None:
            contents |= _encode_figure(sweep.name, drawn.figure)
        rows += drawn.rows
        if drawn.table is not None:
            contents[f"{sweep.name}.csv"] = drawn.table.csv
            texts.append(drawn.table.text)
        if drawn.missing:
            missing[sweep.name] = drawn.missing
    require(
        contents,
        f"{held.root} has no finished cell of {','.join(FLAGS.name)} at scale {scale}: run "
        f"{_training_command(FLAGS.name)}",
    )

    if missing:
        counts = ", ".join(f"{count} of {name}" for name, count in missing.items())
        print(textwrap.fill(f"missing cells: {counts}", 80), file=sys.stderr)
        print(f"to train them: {_training_command(missing)}", file=sys.stderr)
    if rows:
        common = points.make_table(rows, level)
        contents["figures.csv"] = common.csv()
        texts.append(common.text())
    if scale == registry.SMOKE:
        print("smoke: a few runs of a few steps test the code; their values have no meaning")
    for text in texts:
        print(f"{text}\n")
    cli.write_files(folder, contents)


def _training_command(names: Iterable[str]) -> str:
    """Returns the command that trains the missing cells of these sweeps."""
    out = shlex.quote(FLAGS.out)
    return f"./run.sh sweep --name={','.join(names)} --scale={FLAGS.scale} --out={out}"


def _encode_figure(name: str, figure: "Figure") -> Iterator[tuple[str, bytes]]:
    """Yields the name and the content of a figure's file in each format of `style.FORMATS`."""
    import matplotlib.pyplot as plt

    from audit.report import style

    with plt.rc_context(style.STYLE):
        for suffix, encode in style.FORMATS.items():
            yield f"{name}{suffix}", encode(figure)
            # Keeps the layout for the next format, because computing it again could move parts.
            figure.set_layout_engine("none")


if __name__ == "__main__":
    cli.run(main)
