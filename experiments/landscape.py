"""The crafted loss landscape, exact and simulated, and its convex sibling, which attains its bound.

./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
./run.sh landscape --sigmas=4 --steps=50        other cells; --runs=1000000 simulates more
"""

import os
from typing import Any

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.landscape import process
from audit.report.table import Column, Table, number
from audit.settings.setting import LEAST_NOISE, MOST_NOISE, require_runs
from audit.statistics import conversions
from audit.storage import files
from experiments.hidden_state import landscape, landscape_solve
from experiments.hidden_state.landscape import CellResults, Exact, LandscapeCell, Simulation, Study

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


def main() -> None:
    """Parse, solve, simulate, draw, print."""
    study, out = _study(), cli.folder()
    if landscape_solve.simulates(landscape.holdings(out), study):
        cli.prepare_jax()
    landscape_solve.keep_simulations(out, study)
    with tqdm(total=len(study.all_laws()), desc="exact", unit="laws") as bar:
        landscape_solve.keep_laws(out, study, bar.update)
    results = landscape.results(landscape.holdings(out), study)
    folder, table = out / "landscape", _table(results.cells)
    header = f"# delta={FLAGS.delta:g} clipping_norm={FLAGS.clipping_norm:g}\n".encode()
    tables = {"landscape.csv": table.csv(), "simulated.csv": _simulated_table(results.cells).csv()}
    written = [files.write_whole(folder / name, header + content) for name, content in tables.items()]
    from audit.report import style
    from experiments.hidden_state import figures

    for name, figure in figures.landscape_figures(results, FLAGS.runs, FLAGS.clipping_norm):
        written.append(files.write_whole(folder / f"{name}.png", style.png(figure)))
    from experiments.hidden_state import convex_landscape

    levels = FLAGS.runs, FLAGS.seed, FLAGS.delta, FLAGS.confidence
    rows = [convex_landscape.audited(one, *levels) for one in convex_landscape.schedules()]
    of_convex = convex_landscape.table(rows, FLAGS.delta)
    written.append(files.write_whole(folder / "convex.csv", header + of_convex.csv()))
    drawn = convex_landscape.figure(rows, FLAGS.delta)
    written.append(files.write_whole(folder / "convex.png", style.png(drawn)))
    print(f"{table.text()}\n\n{of_convex.text()}")
    print("\n" + "\n".join(os.fspath(path) for path in written))


def _study() -> Study:
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
    process.validate(process.Process(*cells[0][:3]))
    conversions.require_delta(FLAGS.delta)
    require(FLAGS.delta >= LEAST_DELTA, f"--delta={FLAGS.delta}: give at least {LEAST_DELTA:g}")
    return tuple(cells)


def _table(cells: list[CellResults]) -> Table[tuple[LandscapeCell, str, Exact]]:
    epsilon = number(".6g")
    columns = [
        *_of_cell(),
        Column("adversary", lambda row: row[1], "adversary"),
        Column("epsilon_gaussian", lambda row: row[2].epsilon_gaussian[-1], "eps_gaussian", epsilon),
        Column("epsilon_exact", lambda row: row[2].epsilon_exact[-1], "eps_exact", epsilon),
        Column("epsilon_upper", lambda row: row[2].epsilon_upper, "eps_upper", epsilon),
    ]
    return Table(columns, [(one.cell, *result) for one in cells for result in one.exact.items()])


def _simulated_table(cells: list[CellResults]) -> Table[tuple[LandscapeCell, dict[str, Any], dict[str, Any]]]:
    columns = [
        *_of_cell(),
        Column("runs", lambda row: FLAGS.runs),
        Column("method", lambda row: row[2]["method"]),
        Column("assumes", lambda row: row[2]["assumes"]),
        Column("epsilon", lambda row: row[2]["epsilon"]),
        Column("epsilon_at_step_1", lambda row: row[1]["epsilon"]),
    ]
    bounds = ((cell, zip(result.first, result.last, strict=True)) for cell, _, _, result in cells)
    return Table(columns, [(cell, first, last) for cell, ends in bounds for first, last in ends])


def _of_cell() -> list[Column]:
    return [
        Column("sigma", lambda row: row[0].noise_multiplier, "sigma", number("g")),
        Column("batch_size", lambda row: row[0].batch_size, "batch_size"),
        Column("steps", lambda row: row[0].steps, "steps"),
    ]


if __name__ == "__main__":
    cli.run(main)
