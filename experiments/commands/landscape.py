"""Solve, simulate and audit crafted loss landscapes.

    ./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
    ./run.sh landscape --sigmas=4 --steps=50        other landscapes; --runs=1000000 simulates more
    ./run.sh landscape --momentum=0.9               only convex landscapes that beat momentum

The convex landscape attains its bound. With the latch, the last iterate reveals the largest sum of a shuffled
training run.
"""

import itertools
from pathlib import Path

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import MAX_NOISE, MIN_NOISE, require
from audit.settings.setting import require_runs
from audit.storage import index
from audit.written import Level, show_level
from experiments.cells.cell import find_answer

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(sigma) for sigma in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.", lower_bound=1, upper_bound=10**5)
cli.define_levels()
flags.DEFINE_float(
    "momentum", None, "Craft only convex losses, against this momentum (heavy ball)."
)
flags.DEFINE_integer("runs", 5000, "Simulated runs per landscape, half with the canary.")
cli.define_seed("Seed of the simulated runs.")
cli.define_out("Folder for results; figures go to the subfolder landscape.")


def main() -> None:
    """Prints and draws the epsilon of training on three landscapes: the paper's, a convex one and the latch.

    With --momentum, it prints the epsilon only for convex landscapes (`_print_momentum`).
    """
    level = cli.level()
    # Some estimates use half of the runs to choose a threshold and the other half to test it. Each half needs
    # a run with the canary and a run without it.
    require_runs(FLAGS.runs, least=4)
    sigmas = cli.numbers("sigmas", MIN_NOISE, MAX_NOISE)
    batch_sizes = cli.numbers("batch_sizes", least=1, most=10**4)
    for size in batch_sizes:
        require(size.is_integer(), f"--batch_sizes={size:g}: give whole numbers")
    folder = cli.folder() / "landscape"
    cli.prepare_jax()
    if FLAGS.momentum is not None:
        _print_momentum(level, folder)
        return
    from audit.report import style
    from experiments.hidden_state import crafted, landscape, landscape_figures
    from experiments.hidden_state.landscape import AUDIT, SEARCH, Process, Result

    pairs = itertools.product(dict.fromkeys(sigmas), dict.fromkeys(batch_sizes))
    processes = [Process(sigma, int(size), FLAGS.steps) for sigma, size in pairs]
    studies = landscape.list_studies(processes, **level._asdict(), runs=FLAGS.runs, seed=FLAGS.seed)
    held = index.holdings(cli.folder())
    results: dict[str, list[Result]] = {AUDIT: [], SEARCH: []}
    for study in tqdm(studies, desc="landscapes", unit="landscape"):
        answer = find_answer(held, study.setting())
        if answer is None:
            answer = landscape.keep(cli.folder(), study)
        results[study.kind].append((study, answer))

    # The convex landscape and the latch have fixed settings.
    tables = {
        "landscape": landscape_figures.make_table(results[AUDIT]),
        "convex": crafted.make_convex_table(level.delta),
        "latch": crafted.make_latch_table(level.delta),
    }
    header = f"# delta={show_level(level.delta)}\n".encode()
    contents = {}
    for name, table in tables.items():
        print(f"{table.text()}\n")
        contents[f"{name}.csv"] = header + table.csv()
    for name, figure in landscape_figures.draw(results[AUDIT], results[SEARCH]):
        contents[f"{name}.png"] = style.png(figure)
    cli.write_files(folder, contents)


def _print_momentum(level: Level, folder: Path) -> None:
    """Prints the epsilon of training on convex landscapes with --momentum, and writes it to the folder."""
    from experiments.hidden_state import momentum

    beta = FLAGS.momentum
    require(0 <= beta < 1, f"--momentum={beta:g}: give 0 to below 1")
    table = momentum.make_table(beta, level, FLAGS.runs, FLAGS.seed)
    print(f"{table.text()}\n")
    header = f"# momentum={beta:g}, delta={show_level(level.delta)}\n"
    cli.write_files(folder, {"momentum.csv": header.encode() + table.csv()})


if __name__ == "__main__":
    cli.run(main)
