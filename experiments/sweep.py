"""Train what the paper's figures need and the store lacks.

    ./run.sh sweep --list                                  names, cells, what is done
    ./run.sh sweep --name=figure_1c,figure_4,figure_7      the FCNN's figures, 5 minutes on two cores
    ./run.sh sweep --name=all --scale=paper --worker=3/16  the third of 16 jobs
    ./run.sh sweep --name=all --scale=paper --engine=ray --ray_address=auto   on a Ray cluster

Figures share cells, and a cell is never trained twice. Any number of workers may run the same command
on one --out: each takes cells that no other holds; --worker deals the cells out beforehand instead.
"""

import re
import shlex
import time

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.progress import counted, shortened
from audit.settings import stored
from experiments import engine_flags
from experiments.cells import audits, work
from experiments.cells.cell import Cell, DataSets, file_names
from experiments.cells.work import Workplace
from experiments.sweeps import registry
from experiments.sweeps.sweep import Sweep

FLAGS = flags.FLAGS
flags.DEFINE_list("name", [], "Sweeps, comma-separated, or all; --list has them.")
flags.DEFINE_string("scale", "laptop", "smoke (seconds), laptop (an hour a figure) or paper.")
flags.DEFINE_string("out", "results", "Folder of the store, shared by all workers.")
flags.DEFINE_string("worker", None, "i/n: of the cells only every n-th, from the i-th on.")
engine_flags.define_engine()
flags.DEFINE_bool("list", False, "Print names, cells and what is done; train nothing.")
for name in file_names():
    flags.DEFINE_string(name, None, "That data set as a file, instead of fetching it.")


def main() -> None:
    """Parse, find what is missing, train it."""
    chosen = registry.chosen(FLAGS.scale, FLAGS.name or (["all"] if FLAGS.list else []))
    data = DataSets({name: FLAGS[name].value for name in file_names()})
    place = Workplace(cli.folder(), data)
    if FLAGS.list:
        print(_listed(chosen, place))
        return
    names = ", ".join(sweep.name for sweep in chosen)
    cells = _own(work.distinct(cell for sweep in chosen for cell in sweep.cells))
    held = stored.holdings(place.out)
    missing = [cell for cell in cells if not cell.is_done(held, data)]
    asked = ",".join(FLAGS.name)
    draws = f"./run.sh figures --name={asked} --scale={FLAGS.scale} --out={shlex.quote(FLAGS.out)} draws them"
    if not missing:
        every = "its only cell is" if len(cells) == 1 else f"all {len(cells)} cells are"
        print(f"{names}: {every} done\n{draws}")
        return
    with engine_flags.engine() as engine:
        data.require_named()
        begin = time.perf_counter()
        outcome = engine.do_all(missing, place)
    require(
        not outcome.failed,
        f"{len(outcome.failed)} of {counted(len(cells), 'cell')} failed, the others are kept: "
        "mend what is said above, and start again",
    )
    took = time.strftime("%H:%M:%S", time.gmtime(time.perf_counter() - begin))
    there = len(cells) - len(missing)
    here, elsewhere = counted(len(outcome.here), "cell"), len(outcome.elsewhere)
    print(f"{names}: {here} in {took}, {elsewhere} by other workers, {there} before\n{draws}")


def _own(cells: list[Cell]) -> list[Cell]:
    if FLAGS.worker is None:
        return cells
    mend = f"`worker={FLAGS.worker}`: give i/n with i from 1 to n, as 3/16"
    require(re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", FLAGS.worker), mend)
    number, count = map(int, FLAGS.worker.split("/"))
    require(1 <= number <= count, mend)
    return cells[number - 1 :: count]


def _listed(chosen: list[Sweep], place: Workplace) -> str:
    held = stored.holdings(place.out)
    lines = [f"{'name':<17} {'cells':>5} {'done':>5} {'minutes':>8}  title", "-" * 80]
    for sweep in chosen:
        cells = work.distinct(sweep.cells)
        done = sum(cell.is_done(held, place.data) for cell in cells)
        minutes = (sum(cell.seconds for cell in cells) + audits.compiling_seconds(cells)) / 60
        title = shortened(sweep.title, 40)
        lines.append(f"{sweep.name:<17} {len(cells):>5} {done:>5} {minutes:>8.1f}  {title}")
    note = f"scale {FLAGS.scale}; minutes about, on two cores, of compiling and training; cells"
    return "\n".join([*lines, note, "that figures share are trained once"])


if __name__ == "__main__":
    cli.run(main)
