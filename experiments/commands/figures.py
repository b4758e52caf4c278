"""Draw figures and a table from the stored cells of sweeps.

    ./run.sh figures                            all figures with cells under results/
    ./run.sh figures --scale=paper --name=figure_1c,figure_4

This command neither trains nor loads data. It writes the figures and figures.csv to --out/figures, or to
--out/figures/SCALE if the scale is not laptop.
"""

import itertools
import shlex
import sys
import textwrap
from collections.abc import Iterable

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.storage import index
from experiments.sweeps import registry
from experiments.sweeps.records import Record

FLAGS = flags.FLAGS
flags.DEFINE_enum("scale", "laptop", registry.SCALES, "Scale of the sweeps.")
flags.DEFINE_list("name", ["all"], "Sweeps, comma-separated, or all.")
cli.define_levels()
cli.define_out("Folder with stored cells; figures go into its subfolder figures.")


def main() -> None:
    """Draws figures from stored cells; prints the tables and each sweep's number of missing cells.

    A sweep is a figure and its cells (audits and measurements). Raises InputError if a flag is out of range
    or if no figure can be drawn.
    """
    from audit.report import style
    from experiments.sweeps import points

    level = cli.level()
    held = index.holdings(cli.folder())
    scale = FLAGS.scale
    sweeps = registry.chosen(scale, FLAGS.name)
    audits = itertools.chain.from_iterable(sweep.audits() for sweep in sweeps)
    evidence = points.evidence(held, audits, level)
    folder = held.root / "figures"
    if scale != "laptop":  # the default scale has no subfolder
        folder /= scale

    contents: dict[str, bytes] = {}
    rows: list[Record] = []  # of the table shared by most figures
    texts = []
    missing = {}  # number of cells, keyed by sweep name
    for sweep in sweeps:
        drawn = registry.draw(sweep, evidence)
        if drawn.figure is not None:
            for suffix, encode in style.FORMATS.items():
                contents[f"{sweep.name}{suffix}"] = encode(drawn.figure)
        rows += drawn.rows
        if drawn.table is not None:
            contents[f"{sweep.name}.csv"] = drawn.table.csv
            texts.append(drawn.table.text)
        if drawn.missing:
            missing[sweep.name] = drawn.missing
    require(
        contents,
        f"{held.root} has no finished cells for {','.join(FLAGS.name)} at scale {scale}: run "
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
        print("smoke: a few short runs that only test the code; the values are meaningless")
    for text in texts:
        print(f"{text}\n")
    cli.write_files(folder, contents)


def _training_command(names: Iterable[str]) -> str:
    """Returns the command that trains the missing cells of these sweeps."""
    out = shlex.quote(FLAGS.out)
    return f"./run.sh sweep --name={','.join(names)} --scale={FLAGS.scale} --out={out}"


if __name__ == "__main__":
    cli.run(main)
