"""Solve and simulate crafted loss landscapes, and audits of them.

./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
./run.sh landscape --sigmas=4 --steps=50        other landscapes; --runs=1000000 simulates more

The convex one attains its bound. The latch shows in its last iterate the largest sum of a shuffled training
run: without Lipschitz steps, releasing the last model alone hides nothing.
"""

import os

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import MAX_NOISE, MIN_NOISE, require
from audit.laws import conversions
from audit.settings.setting import require_runs
from audit.storage import files, index
from audit.written import show_level
from experiments.cells.cell import DataSets
from experiments.hidden_state import landscape, landscape_cells
from experiments.hidden_state.landscape import AUDIT, SEARCH, Grid, Simulation

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(sigma) for sigma in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.")
cli.define_levels()
flags.DEFINE_integer("runs", 5000, "Simulated runs a landscape, half of them in.")
cli.define_seed("Seed of the simulated runs.")
cli.define_out("Folder for results; figures go into its folder landscape.")

MAX_BATCH = 10**4
MAX_STEPS = 10**5
MIN_DELTA = 1e-100


def main() -> None:
    """Parses the flags, and draws and prints what training on three crafted loss landscapes leaks.

    Each landscape is a loss that is crafted to show how much the last model can leak. The three are the
    hidden-state paper's, a convex landscape, and the latch, whose last model hides nothing of the earlier
    models. What the paper's landscape leaks is computed exactly, and audits of it are simulated.
    """
    grid = _check_grid()
    simulation = _check_simulation()
    out = cli.folder()
    cells = landscape_cells.list_cells(grid, simulation, FLAGS.delta)
    held = index.holdings(out)
    no_data = DataSets({})
    missing = [cell for cell in cells if not cell.is_done(held, no_data)]
    if missing:
        cli.prepare_jax()
    for cell in tqdm(missing, desc="landscapes", unit="landscape"):
        cell.do(cell.open(out, no_data), no_data, lambda runs: None)
    held = index.holdings(out)
    audits = landscape.read(held, cells, AUDIT)

    folder = out / "landscape"
    header = f"# delta={show_level(FLAGS.delta)}\n".encode()
    from audit.report import style
    from experiments.hidden_state import convex_landscape, landscape_figures, latch

    exact = landscape_figures.make_table(audits)
    written = [files.write_whole(folder / "landscape.csv", header + exact.csv())]
    searches = landscape.read(held, cells, SEARCH)
    for name, figure in landscape_figures.draw(audits, searches):
        written.append(files.write_whole(folder / f"{name}.png", style.png(figure)))

    # The convex landscape and the latch, which are studied at settings of their own.
    schedules = [convex_landscape.make_row(*x, FLAGS.delta) for x in convex_landscape.SCHEDULES]
    convex = convex_landscape.make_table(schedules, FLAGS.delta)
    written.append(files.write_whole(folder / "convex.csv", header + convex.csv()))
    trainings = [latch.make_row(training, FLAGS.delta) for training in latch.TRAININGS]
    latches = latch.make_table(trainings, FLAGS.delta)
    written.append(files.write_whole(folder / "latch.csv", header + latches.csv()))

    print(f"{exact.text()}\n\n{convex.text()}\n\n{latches.text()}\n")
    for path in written:
        print(os.fspath(path))


def _check_simulation() -> Simulation:
    """Returns how runs are simulated; raises InputError for a flag out of range."""
    # 2 runs in each world: some bounds choose a threshold on a part of them, and test it on the rest.
    require_runs(FLAGS.runs, least=4)
    conversions.require_confidence(FLAGS.confidence)
    cli.require_seed()
    return Simulation(FLAGS.runs, FLAGS.seed, FLAGS.confidence)


def _check_grid() -> Grid:
    """Returns the landscapes; raises InputError for a flag out of range."""
    sigmas = cli.numbers("sigmas")
    batch_sizes = [int(size) for size in cli.numbers("batch_sizes", whole=True)]
    for sigma in sigmas:
        limits = f"give {MIN_NOISE:g} to {MAX_NOISE:g}"
        require(MIN_NOISE <= sigma <= MAX_NOISE, f"--sigmas: {sigma:g}: {limits}")
    for size in batch_sizes:
        require(1 <= size <= MAX_BATCH, f"--batch_sizes: {size}: give 1 to {MAX_BATCH:,}")
    require(1 <= FLAGS.steps <= MAX_STEPS, f"--steps={FLAGS.steps}: give 1 to {MAX_STEPS:,}")
    require(
        sigmas and batch_sizes, "--sigmas or --batch_sizes is empty: give numbers, comma-separated"
    )
    conversions.require_delta(FLAGS.delta)
    require(FLAGS.delta >= MIN_DELTA, f"--delta={FLAGS.delta}: give at least {MIN_DELTA:g}")
    return Grid(sigmas, batch_sizes, FLAGS.steps)


if __name__ == "__main__":
    cli.run(main, keeps=True)
