"""Train what the paper's figures need and the store lacks.

    ./run.sh sweep --list                                  names, cells, what is done
    ./run.sh sweep --name=figure_1c,figure_4,figure_7      the FCNN's figures, 10 minutes on two cores
    ./run.sh sweep --name=all --scale=paper --worker=3/16  the third of 16 jobs

Figures share cells, and a cell is never trained twice. Any number of workers may run the same command
on one --out: each takes cells that no other holds; --worker deals the cells out beforehand instead.
"""

import os
import re
import time
from pathlib import Path

from absl import flags

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for the landscape's small products

from audit.errors import require  # noqa: E402
from audit.storage import index  # noqa: E402
from experiments import cli  # noqa: E402
from experiments.cells import work  # noqa: E402
from experiments.cells.work import Work  # noqa: E402
from experiments.hidden_state import sweep as sweeps  # noqa: E402
from experiments.hidden_state.sweep import Sweep  # noqa: E402

FLAGS = flags.FLAGS
flags.DEFINE_list("name", [], "Sweeps, comma-separated, or all; --list has them.")
flags.DEFINE_string("scale", "laptop", "smoke (seconds), laptop (an hour a figure) or paper.")
flags.DEFINE_string("out", "results", "Folder of the store, shared by all workers.")
flags.DEFINE_string("worker", None, "i/n: of the cells only every n-th, from the i-th on.")
flags.DEFINE_bool("list", False, "Print names, cells and what is done; train nothing.")
flags.DEFINE_string("california_housing", None, "That data set as a file, instead of fetching it.")
flags.DEFINE_string("cifar10", None, "That data set as a file, instead of fetching it.")


def main() -> None:
    """Parse, find what is missing, train it."""
    out = Path(FLAGS.out)
    chosen = sweeps.chosen(FLAGS.scale, FLAGS.name or (["all"] if FLAGS.list else []))
    data = work.Data({name: FLAGS[name].value for name in ("california_housing", "cifar10")})
    if FLAGS.list:
        print(_listed(chosen, out, data))
        return
    names = ", ".join(sweep.name for sweep in chosen)
    works = _own(work.works([cell for sweep in chosen for cell in sweep.cells], out, data))
    held = index.holdings(out)
    missing = [work for work in works if not work.is_done(held)]
    if not missing:
        print(f"{names}: all {len(works)} cells are done\n./run.sh figures --out={out} draws them")
        return
    cli.prepare_jax()
    data.require_named()
    begin = time.perf_counter()
    outcome = work.do_all(missing, out)
    require(
        not outcome.failed,
        f"{len(outcome.failed)} of {len(works)} cells failed, the others are kept: mend what is said above, "
        "and start again",
    )
    took = time.strftime("%H:%M:%S", time.gmtime(time.perf_counter() - begin))
    there = len(works) - len(missing)
    counts = f"{len(outcome.here)} cells in {took}, {len(outcome.elsewhere)} by other workers, {there} before"
    print(f"{names}: {counts}")
    print(f"./run.sh figures --out={out} draws them")


def _own(works: list[Work]) -> list[Work]:
    """Those of this worker."""
    if FLAGS.worker is None:
        return works
    mend = f"--worker={FLAGS.worker}: give i/n with i from 1 to n, as 3/16"
    require(re.fullmatch(r"[0-9]{1,9}/[0-9]{1,9}", FLAGS.worker), mend)
    number, count = map(int, FLAGS.worker.split("/"))
    require(1 <= number <= count, mend)
    return works[number - 1 :: count]


def _listed(chosen: list[Sweep], out: Path, data: work.Data) -> str:
    """A row a sweep, in 80 columns."""
    held = index.holdings(out)
    lines = [f"{'name':<10} {'cells':>5} {'done':>5} {'minutes':>8}  title", "-" * 80]
    for sweep in chosen:
        works = work.works(sweep.cells, out, data)
        done = sum(work.is_done(held) for work in works)
        minutes = sum(work.seconds for work in works) / 60
        lines.append(f"{sweep.name:<10} {len(works):>5} {done:>5} {minutes:>8.1f}  {sweep.title[:47]}")
    note = f"scale {FLAGS.scale}; minutes of training, about, on two cores; cells that figures share"
    return "\n".join([*lines, note, "are trained once"])


if __name__ == "__main__":
    cli.run(main)
