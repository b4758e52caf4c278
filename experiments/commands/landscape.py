"""Solve and simulate crafted loss landscapes, and audits of them.

./run.sh landscape                              sigma 1..8, B 1, 2, 4, 8, 16, 25 steps
./run.sh landscape --sigmas=4 --steps=50        other cells; --runs=1000000 simulates more

The convex one attains its bound. The latch shows in its last iterate the largest sum of a shuffled training
run: without Lipschitz steps, releasing the last model alone hides nothing.
"""

import os
from operator import attrgetter
from typing import Any, NamedTuple

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.laws import conversions
from audit.methods.level import show_level
from audit.report.table import Column, Table, number
from audit.settings.setting import LEAST_NOISE, MOST_NOISE, require_runs
from audit.storage import files
from experiments.hidden_state import landscape, landscape_solve
from experiments.hidden_state import landscape_process as process
from experiments.hidden_state.landscape import CellResults, Exact, LandscapeCell, Simulation, Study

FLAGS = flags.FLAGS
flags.DEFINE_list("sigmas", [str(sigma) for sigma in range(1, 9)], "Noise multipliers.")
flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16"], "Batch sizes B.")
flags.DEFINE_integer("steps", 25, "Steps T.")
flags.DEFINE_float(
    "clipping_norm", 1.0, "Clipping norm C: the unit of --threshold and of the figures."
)
flags.DEFINE_float("threshold", None, "The simulated landscape's threshold h; by default C / 2.")
cli.define_levels()
flags.DEFINE_integer("runs", 5000, "Simulated runs a cell, half of them in.")
cli.define_seed("Seed of the simulated runs.")
cli.define_out("Folder for results; figures go into its folder landscape.")

MOST_BATCH = 10**9
MOST_STEPS = 10**5
MOST_THRESHOLD = 1e6  # absolute value, in units of C
LEAST_DELTA = 1e-100


def main() -> None:
    """Parses the flags, and draws and prints what training on three crafted loss landscapes leaks.

    Each landscape is a loss that is crafted to show how much the last model alone can leak. The three are
    the hidden-state paper's, a convex landscape, and the latch, whose last model hides nothing of the earlier
    models. What the paper's landscape leaks is computed exactly, and audits of it are simulated.
    """
    # The paper's landscape. What the store lacks is computed: simulations, which need JAX, and exact laws.
    study = _checked_study()
    out = cli.folder()
    if landscape_solve.simulates(landscape.holdings(out), study):
        cli.prepare_jax()
    landscape_solve.keep_simulations(out, study)
    with tqdm(total=len(study.all_laws()), desc="exact", unit="laws") as bar:
        landscape_solve.keep_laws(out, study, bar.update)
    results = landscape.results(landscape.holdings(out), study)

    # Its files. The first line of each CSV says at which delta and clipping norm it is.
    folder = out / "landscape"
    header = f"# delta={show_level(FLAGS.delta)} clipping_norm={FLAGS.clipping_norm:g}\n".encode()
    exact = _exact_table(results.cells)
    simulated = _simulated_table(results.cells)
    written = [
        files.write_whole(folder / "landscape.csv", header + exact.csv()),
        files.write_whole(folder / "simulated.csv", header + simulated.csv()),
    ]
    from audit.report import style
    from experiments.hidden_state import figures

    for name, figure in figures.landscape_figures(results, FLAGS.runs, FLAGS.clipping_norm):
        written.append(files.write_whole(folder / f"{name}.png", style.png(figure)))

    # The convex landscape and the latch, which are studied at settings of their own.
    from experiments.hidden_state import convex_landscape, latch

    audit_flags = (FLAGS.runs, FLAGS.seed, FLAGS.delta, FLAGS.confidence)
    schedules = []
    for schedule in convex_landscape.schedules():
        schedules.append(convex_landscape.audited(schedule, *audit_flags))
    convex = convex_landscape.table(schedules, FLAGS.delta)
    written.append(files.write_whole(folder / "convex.csv", header + convex.csv()))
    convex_figure = convex_landscape.figure(schedules, FLAGS.delta)
    written.append(files.write_whole(folder / "convex.png", style.png(convex_figure)))

    latches = latch.make_table(latch.make_rows(FLAGS.delta, FLAGS.seed, FLAGS.runs), FLAGS.delta)
    written.append(files.write_whole(folder / "latch.csv", header + latches.csv()))

    print(f"{exact.text()}\n\n{convex.text()}\n\n{latches.text()}")
    print()
    for path in written:
        print(os.fspath(path))


def _checked_study() -> Study:
    """Returns the study of the hidden-state paper's landscape that the flags describe.

    The threshold is the model parameter at which the simulated landscape splits: on either side, the loss
    moves the parameter away from it. --threshold is in the unit of --clipping_norm, and the study's threshold
    in units of the clipping norm C.

    Raises:
      InputError: A flag is out of range.
    """
    cells = _checked_cells()
    norm = FLAGS.clipping_norm
    # 2 runs in each world: some bounds choose a threshold on a part of them, and test it on the rest.
    require_runs(FLAGS.runs, least=4)
    require(1e-6 <= norm <= 1e6, f"--clipping_norm={norm}: give 1e-6 to 1e6")
    conversions.require_confidence(FLAGS.confidence)
    cli.require_seed()
    threshold = 0.5  # of C
    if FLAGS.threshold is not None:
        threshold = FLAGS.threshold / norm
    most = MOST_THRESHOLD * norm  # in the unit of --threshold, for the message
    require(
        abs(threshold) <= MOST_THRESHOLD,
        f"--threshold={FLAGS.threshold}: give {-most:g} to {most:g}",
    )
    return Study(cells, threshold, Simulation(FLAGS.runs, FLAGS.seed, FLAGS.confidence))


def _checked_cells() -> tuple[LandscapeCell, ...]:
    """Returns a cell for each noise multiplier and batch size; raises InputError for values out of range."""
    sigmas = cli.numbers("sigmas")
    batch_sizes = cli.whole_numbers("batch_sizes")
    for sigma in sigmas:
        # The first message is for what is no noise at all, the second for noise outside of the limits that
        # suit float32 and the conversions to epsilon.
        require(0 < sigma < float("inf"), f"--sigmas: {sigma:g} is no positive finite number")
        limits = f"give {LEAST_NOISE:g} to {MOST_NOISE:g}"
        require(LEAST_NOISE <= sigma <= MOST_NOISE, f"--sigmas: {sigma:g}: {limits}")
    for size in batch_sizes:
        require(size >= 1, f"--batch_sizes: {size}: give at least 1")
        require(size <= MOST_BATCH, f"--batch_sizes: {size:.3g}: give at most {MOST_BATCH:,}")
    require(FLAGS.steps <= MOST_STEPS, f"--steps={FLAGS.steps}: give at most {MOST_STEPS:,}")

    cells = []
    for sigma in sigmas:
        for size in batch_sizes:
            cells.append(LandscapeCell(sigma, size, FLAGS.steps, FLAGS.delta))
    require(cells, "--sigmas or --batch_sizes is empty: give numbers, comma-separated")
    # The first cell stands for all: sigmas and sizes are in range, and all cells have the same steps.
    process.validate(
        process.Process(cells[0].noise_multiplier, cells[0].batch_size, cells[0].steps)
    )
    conversions.require_delta(FLAGS.delta)
    require(FLAGS.delta >= LEAST_DELTA, f"--delta={FLAGS.delta}: give at least {LEAST_DELTA:g}")
    return tuple(cells)


class _ExactRow(NamedTuple):
    """A row of the table of exact laws.

    Attributes:
      cell: The cell.
      adversary: The adversary's name.
      result: The exact epsilons that the adversary attains in the cell, by step.
    """

    cell: LandscapeCell
    adversary: str
    result: Exact


class _SimulatedRow(NamedTuple):
    """A row of the table of simulated audits: one method in a single cell.

    Attributes:
      cell: The cell.
      first: The method's bound at the first step, its fields by name.
      last: The method's bound at the last step, likewise.
    """

    cell: LandscapeCell
    first: dict[str, Any]
    last: dict[str, Any]


def _exact_table(cells: list[CellResults]) -> Table[_ExactRow]:
    """Returns the table of exact epsilons at the last step, with a row for each cell and adversary.

    A row has three epsilons: the exact one (eps_exact), the one that a conversion claims as if the trade-off
    curve were Gaussian (eps_gaussian), and the accountant's (eps_upper).

    Args:
      cells: The results of each cell, whose epsilons are arrays with an entry for each step.
    """
    epsilon = number(".6g")
    columns = [
        *_cell_columns(),
        Column("adversary", attrgetter("adversary"), "adversary"),
        Column(
            "epsilon_gaussian", lambda row: row.result.epsilon_gaussian[-1], "eps_gaussian", epsilon
        ),
        Column("epsilon_exact", lambda row: row.result.epsilon_exact[-1], "eps_exact", epsilon),
        Column("epsilon_upper", attrgetter("result.epsilon_upper"), "eps_upper", epsilon),
    ]
    rows = []
    for results in cells:
        for adversary, exact in results.exact.items():
            rows.append(_ExactRow(results.cell, adversary, exact))
    return Table(columns, rows)


def _simulated_table(cells: list[CellResults]) -> Table[_SimulatedRow]:
    """Returns the table of the simulated audits' bounds, with a row for each cell and method.

    A row has the bound from the models after the last step, and its epsilon after the first step beside it.

    Args:
      cells: The results of each cell. A simulated audit has its methods' bounds at both steps in one order.
    """
    columns = [
        *_cell_columns(),
        Column("runs", lambda row: FLAGS.runs),  # the same in all cells
        Column("method", lambda row: row.last["method"]),
        Column("assumes", lambda row: row.last["assumes"]),
        Column("epsilon", lambda row: row.last["epsilon"]),
        Column("epsilon_at_step_1", lambda row: row.first["epsilon"]),
    ]
    rows = []
    for results in cells:
        simulated = results.simulated
        # Each bound is a dict of its fields by name.
        for first, last in zip(simulated.first, simulated.last, strict=True):
            rows.append(_SimulatedRow(results.cell, first, last))
    return Table(columns, rows)


def _cell_columns() -> list[Column]:
    """Returns the columns that name a row's cell: sigma, batch size and steps."""
    return [
        Column("sigma", attrgetter("cell.noise_multiplier"), "sigma", number("g")),
        Column("batch_size", attrgetter("cell.batch_size"), "batch_size"),
        Column("steps", attrgetter("cell.steps"), "steps"),
    ]


if __name__ == "__main__":
    cli.run(main, keeps=True)
