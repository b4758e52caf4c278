"""The crafted loss landscape: heat maps, exact and simulated.

./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
./run.sh landscape --sigmas=4 --steps=50        other cells; --runs=1000000 simulates more
"""

import os

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.landscape import process
from audit.report import style
from audit.settings.setting import LEAST_NOISE, MOST_NOISE, require_runs
from audit.statistics import conversions
from audit.storage import files
from experiments.hidden_state import (
    landscape_figures,
    landscape_solve,
    landscape_stored,
    landscape_work,
)
from experiments.hidden_state.landscape_cells import LandscapeCell, Simulation, Study
from experiments.hidden_state.landscape_stored import CellResults

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(s) for s in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.")
flags.DEFINE_float("clipping_norm", 1.0, "Clipping norm C: the unit of --threshold and of the figures.")
flags.DEFINE_float("threshold", None, "The simulated landscape's threshold h; by default C / 2.")
flags.DEFINE_float("delta", 1e-5, "delta of every epsilon.")
flags.DEFINE_float("confidence", 0.95, "Confidence of the simulated audits' bounds.")
flags.DEFINE_integer("runs", 5000, "Simulated runs a cell, half of them in.")
flags.DEFINE_integer("seed", 0, "Seed of the simulated runs.")
flags.DEFINE_string("out", "results", "Folder for results; figures go into its folder landscape.")

MOST_BATCH, MOST_STEPS, MOST_THRESHOLD, LEAST_DELTA = 10**9, 10**5, 1e6, 1e-100
COLUMNS = "sigma, batch_size, steps, adversary, epsilon_gaussian, epsilon_exact, epsilon_upper"


def main() -> None:
    """Parse, solve, simulate, draw, print."""
    study, out = _study(), cli.folder()
    if landscape_work.simulates(landscape_stored.holdings(out), study):
        cli.prepare_jax()
    landscape_work.simulate(out, study)
    with tqdm(total=len(study.all_laws()), desc="exact", unit="laws") as bar:
        landscape_work.solve(out, study, bar.update)
    held = landscape_stored.holdings(out)
    cells, searches = landscape_stored.cells(held, study), landscape_stored.searches(held, study)
    folder, table = out / "landscape", _table(cells)
    header = f"# delta={FLAGS.delta:g} clipping_norm={FLAGS.clipping_norm:g}\n"
    tables = {"landscape.csv": table, "simulated.csv": _simulated_table(cells)}
    written = [files.write_whole(folder / name, (header + text).encode()) for name, text in tables.items()]
    for name, figure in landscape_figures.figures(cells, searches, FLAGS.runs, FLAGS.clipping_norm):
        written.append(files.write_whole(folder / f"{name}.png", style.png(figure)))
    print(_aligned(table))
    print("\n" + "\n".join(os.fspath(path) for path in written))


def _study() -> Study:
    """The study that the flags ask for."""
    cells, norm = _cells(), FLAGS.clipping_norm
    require_runs(FLAGS.runs, least=4)
    require(1e-6 <= norm <= 1e6, f"--clipping_norm={norm}: give 1e-6 to 1e6")
    conversions.require_confidence(FLAGS.confidence)
    require(0 <= FLAGS.seed < 2**32, f"--seed={FLAGS.seed}: give 0 to 2^32 - 1")
    threshold = 0.5 if FLAGS.threshold is None else FLAGS.threshold / norm
    most = MOST_THRESHOLD * norm
    require(abs(threshold) <= MOST_THRESHOLD, f"--threshold={FLAGS.threshold}: give {-most:g} to {most:g}")
    return Study(cells, threshold, Simulation(FLAGS.runs, FLAGS.seed, FLAGS.confidence))


def _cells() -> tuple[LandscapeCell, ...]:
    """The cells that the flags ask for."""
    sigmas, sizes = cli.numbers("sigmas"), cli.whole_numbers("batch_sizes")
    for sigma in sigmas:
        require(0 < sigma < float("inf"), f"--sigmas: {sigma:g} is no positive finite number")
        limits = f"give {LEAST_NOISE:g} to {MOST_NOISE:g}"
        require(LEAST_NOISE <= sigma <= MOST_NOISE, f"--sigmas: {sigma:g}: {limits}")
    for size in sizes:
        require(size >= 1, f"--batch_sizes: {size}: give at least 1")
        require(size <= MOST_BATCH, f"--batch_sizes: {size:.3g}: give at most {MOST_BATCH:,}")
    require(FLAGS.steps <= MOST_STEPS, f"--steps={FLAGS.steps}: give at most {MOST_STEPS:,}")
    cells = [LandscapeCell(sigma, size, FLAGS.steps, FLAGS.delta) for sigma in sigmas for size in sizes]
    require(cells, "--sigmas or --batch_sizes is empty: give numbers, comma-separated")
    process.validate(landscape_solve.process_of(cells[0]))
    conversions.require_delta(FLAGS.delta)
    require(FLAGS.delta >= LEAST_DELTA, f"--delta={FLAGS.delta}: give at least {LEAST_DELTA:g}")
    return tuple(cells)


def _table(cells: list[CellResults]) -> str:
    """landscape.csv's rows."""
    lines = [COLUMNS.replace(" ", "")]
    for cell, exact, _, _ in cells:
        for name, result in exact.items():
            values = (result.epsilon_gaussian[-1], result.epsilon_exact[-1], result.epsilon_upper)
            numbers = ",".join(f"{value:.6g}" for value in values)
            lines.append(f"{cell.noise_multiplier:g},{cell.batch_size},{cell.steps},{name},{numbers}")
    return "\n".join(lines) + "\n"


def _simulated_table(cells: list[CellResults]) -> str:
    """simulated.csv's rows: every bound at the last step, and that at the first."""
    lines = ["sigma,batch_size,steps,runs,method,assumes,epsilon,epsilon_at_step_1"]
    for cell, _, _, result in cells:
        for first, last in zip(result.first, result.last, strict=True):
            lines.append(
                f"{cell.noise_multiplier:g},{cell.batch_size},{cell.steps},{FLAGS.runs},{last['method']},"
                f"{last['assumes']},{last['epsilon']:.6g},{first['epsilon']:.6g}"
            )
    return "\n".join(lines) + "\n"


def _aligned(table: str) -> str:
    """A CSV text in columns, for a terminal of 80."""
    names = {"epsilon_gaussian": "eps_gaussian", "epsilon_exact": "eps_exact", "epsilon_upper": "eps_upper"}
    rows = [line.split(",") for line in table.strip().splitlines()]
    rows[0] = [names.get(name, name) for name in rows[0]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


if __name__ == "__main__":
    cli.run(main)
