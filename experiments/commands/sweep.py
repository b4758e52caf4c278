"""Train the missing cells of the papers' figures.

    ./run.sh sweep --list                                  names, cells, finished cells
    ./run.sh sweep --name=figure_1c,figure_4,figure_7      FCNN figures, 5 minutes on two cores
    ./run.sh sweep --name=all --scale=paper --ray_address=auto   on a Ray cluster

Figures share cells, and each cell is trained only once.
"""

import itertools
import shlex
import time
from datetime import timedelta

from absl import flags

from audit.commands import cli
from audit.written import counted, shortened
from experiments.cells import work
from experiments.cells.cell import DataSets, file_names
from experiments.commands import grid_flags
from experiments.sweeps import registry
from experiments.sweeps.sweep import Sweep

FLAGS = flags.FLAGS
flags.DEFINE_list("name", [], "Sweeps, comma-separated, or all; see --list.")
flags.DEFINE_enum(
    "scale",
    "laptop",
    registry.SCALES,
    "smoke takes seconds, laptop takes at most an hour per figure, and paper uses the paper's scale.",
)
cli.define_out("Folder where cells are stored.")
grid_flags.define_engine()
flags.DEFINE_bool("list", False, "Only list the sweeps, with the number of cells in each.")
_FILE_HELP = "Path to a local copy of the data set, used instead of downloading it."
cli.define_optional(str, **dict.fromkeys(file_names(), _FILE_HELP))


def main() -> None:
    """Trains the missing cells of the chosen sweeps or, with --list, lists the sweeps.

    If some cells fail, it trains the others and then raises InputError.
    """
    names = FLAGS.name
    if FLAGS.list and not names:
        names = ["all"]
    sweeps = registry.chosen(FLAGS.scale, names)
    user_files = {name: FLAGS[name].value for name in file_names()}  # None without the flag
    data = DataSets(user_files)
    place = work.Workplace(cli.folder(), data)
    if FLAGS.list:
        print(_list_sweeps(sweeps, place))
        return

    title = ", ".join(sweep.name for sweep in sweeps)
    # Sweeps share cells.
    cells = work.distinct(itertools.chain.from_iterable(sweep.cells for sweep in sweeps))
    missing = work.find_missing(cells, place)

    command = f"./run.sh figures --name={','.join(FLAGS.name)} --scale={FLAGS.scale}"
    closing = f"{command} --out={shlex.quote(FLAGS.out)} draws them"
    if not missing:
        print(f"{title}: {counted(len(cells), 'cell is', 'cells are')} already done\n{closing}")
        return

    begin = time.perf_counter()
    done = len(grid_flags.complete(missing, place).completed)
    duration = timedelta(seconds=round(time.perf_counter() - begin))
    print(f"{title}: {counted(done, 'cell')} in {duration}, {len(cells) - done} before\n{closing}")


def _list_sweeps(sweeps: list[Sweep], place: work.Workplace) -> str:
    """Returns a table of sweeps that shows how many cells each has and how many are finished."""
    lines = [f"{'name':<17} {'cells':>5} {'done':>5}  title", "-" * 80]
    for sweep in sweeps:
        cells = work.distinct(sweep.cells)
        done = len(cells) - len(work.find_missing(cells, place))
        title = shortened(sweep.title, 49)
        lines.append(f"{sweep.name:<17} {len(cells):>5} {done:>5}  {title}")
    lines.append(f"scale {FLAGS.scale}; sweeps share cells")
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
