"""Solve and simulate crafted loss landscapes, and audits of them.

./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
./run.sh landscape --sigmas=4 --steps=50        other landscapes; --runs=1000000 simulates more
./run.sh landscape --momentum=0.9               only convex landscapes that beat momentum

The convex landscape attains its bound. The last iterate of the latch shows the largest sum of a shuffled
training run: without Lipschitz steps, hiding all other iterates does not reduce the leak.
"""

import itertools
from pathlib import Path

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import MAX_NOISE, MIN_NOISE, require
from audit.settings.setting import require_runs
from audit.storage import files, index
from audit.written import show_level
from experiments.cells.cell import find_answer

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(sigma) for sigma in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.")
cli.define_levels()
flags.DEFINE_float("momentum", None, "Only craft convex losses against this momentum (heavy ball).")
flags.DEFINE_integer("runs", 5000, "Simulated runs per landscape, half with the canary.")
cli.define_seed("Seed of the simulated runs.")
cli.define_out("Folder for results; figures go into its folder landscape.")

MAX_BATCH = 10**4
MAX_STEPS = 10**5
MIN_DELTA = 1e-100


def main() -> None:
    """Draws and prints the leak of training on the paper's landscape, a convex one, and the latch."""
    sigmas = cli.numbers("sigmas")
    batch_sizes = list(map(int, cli.numbers("batch_sizes", whole=True)))
    _require_valid_flags(sigmas, batch_sizes)
    out = cli.folder()
    cli.prepare_jax()
    if FLAGS.momentum is not None:
        _print_momentum(out)
        return
    from audit.report import style
    from experiments.hidden_state import crafted, landscape, landscape_figures
    from experiments.hidden_state.landscape import AUDIT, SEARCH, Process, Result

    places = itertools.product(dict.fromkeys(sigmas), dict.fromkeys(batch_sizes))
    processes = [Process(sigma, size, FLAGS.steps) for sigma, size in places]
    studies = landscape.list_studies(
        processes,
        delta=FLAGS.delta,
        runs=FLAGS.runs,
        seed=FLAGS.seed,
        confidence=FLAGS.confidence,
    )
    held = index.holdings(out)
    missing = [study for study in studies if find_answer(held, study.setting()) is None]
    for study in tqdm(missing, desc="landscapes", unit="landscape"):
        landscape.keep(out, study)
    held = index.holdings(out)
    results: dict[str, list[Result]] = {AUDIT: [], SEARCH: []}
    for study in studies:
        answer = find_answer(held, study.setting())
        if answer is not None:
            results[study.kind].append((study, answer))

    # The convex landscape and the latch have fixed settings.
    tables = {
        "landscape": landscape_figures.make_table(results[AUDIT]),
        "convex": crafted.make_convex_table(FLAGS.delta),
        "latch": crafted.make_latch_table(FLAGS.delta),
    }
    folder = out / "landscape"
    header = f"# delta={show_level(FLAGS.delta)}\n".encode()
    written = []
    for name, table in tables.items():
        written.append(files.write_whole(folder / f"{name}.csv", header + table.csv()))
        print(table.text() + "\n")
    for name, figure in landscape_figures.draw(results[AUDIT], results[SEARCH]):
        written.append(files.write_whole(folder / f"{name}.png", style.png(figure)))
    for path in written:
        print(path)


def _print_momentum(out: Path) -> None:
    """Prints and writes the table of crafted landscapes against momentum."""
    from experiments.hidden_state import momentum

    table = momentum.make_table(FLAGS.momentum, FLAGS.delta)
    print(table.text() + "\n")
    header = f"# momentum={FLAGS.momentum:g}, delta={show_level(FLAGS.delta)}\n".encode()
    path = files.write_whole(out / "landscape" / "momentum.csv", header + table.csv())
    print(path)


def _require_valid_flags(sigmas: list[float], batch_sizes: list[int]) -> None:
    """Raises InputError for a flag out of range."""
    for sigma in sigmas:
        limits = f"give {MIN_NOISE:g} to {MAX_NOISE:g}"
        require(MIN_NOISE <= sigma <= MAX_NOISE, f"--sigmas: {sigma:g}: {limits}")
    for size in batch_sizes:
        require(1 <= size <= MAX_BATCH, f"--batch_sizes: {size}: give 1 to {MAX_BATCH:,}")
    require(1 <= FLAGS.steps <= MAX_STEPS, f"--steps={FLAGS.steps}: give 1 to {MAX_STEPS:,}")
    require(
        sigmas and batch_sizes, "--sigmas or --batch_sizes is empty: give numbers, comma-separated"
    )
    cli.require_levels()
    require(FLAGS.delta >= MIN_DELTA, f"--delta={FLAGS.delta}: give at least {MIN_DELTA:g}")
    # 2 runs in each world, since some estimates choose a threshold on one and test it on the other.
    require_runs(FLAGS.runs, least=4)
    if FLAGS.momentum is not None:
        require(0 <= FLAGS.momentum < 1, f"--momentum={FLAGS.momentum:g}: give 0 to below 1")


if __name__ == "__main__":
    cli.run(main, keeps=True)
