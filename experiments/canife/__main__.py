"""CANIFE: a designed canary in frozen rounds of a training.

./run.sh canife                                  two layers, Fashion-MNIST, an epoch
./run.sh canife --model=convnet --cohort=64      CIFAR-10, one example a client
./run.sh canife --clients=600 --cohort=30 --rounds=100 --every=20
./run.sh canife --model=character_lstm           Shakespeare's roles: canaries are texts
./run.sh canife --model=celeba_cnn --leaf=leaf/data/celeba/data    a folder of LEAF's
./run.sh canife --as_published --charge=backward    as the paper's public code
./run.sh canife --vary="start=random,sample;pool=64,512;seed=0,1,2"    curves; x axis
"""

import dataclasses
import os
import sys

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.runtime.progress import counted
from audit.storage import files
from experiments.canife import attacked as settings
from experiments.canife.attacked import Attacked, Combination, VariedGrid
from experiments.cells import work
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace

FLAGS = flags.FLAGS
cli.define_setting(Attacked)
cli.define_sources()
flags.DEFINE_string(
    "charge", "forward", "Rounds that a measured one stands for: forward, or backward."
)
flags.DEFINE_string(
    "leaf",
    None,
    "LEAF's folder of CelebA, Sent140 or Shakespeare, with train/ and test/.",
)
flags.DEFINE_string(
    "vary",
    None,
    "Fields and values, as in start=random,sample;pool=64,512;seed=0,1: every combination is trained, and one"
    " figure has the first field's values as curves, over the second or, without it, over rounds; seeds are"
    " averaged.",
)
cli.define_out("Folder for results; these go into its folder canife.")


def main() -> None:
    """Parses the flags, and measures one setting or several."""
    values = cli.values(Attacked)
    names = [field.name for field in dataclasses.fields(Attacked)]
    given = [name for name in names if FLAGS[name].present]
    charge_is_known = FLAGS.charge in ("forward", "backward")
    require(charge_is_known, f"--charge={FLAGS.charge}: choose one of forward, backward")
    if FLAGS.vary is None:
        setting = settings.resolve_setting(values, given)
        _measure(setting, Workplace(cli.folder(), DataSets({})))
        return

    grid = settings.parse_grid(FLAGS.vary, values, given)
    charge_is_used = grid.over_rounds or not FLAGS["charge"].present
    message = f"--charge={FLAGS.charge} is for curves over rounds: drop it, or vary a single field"
    require(charge_is_used, message)
    _vary(grid, Workplace(cli.folder(), DataSets({})))


def _measure(setting: Attacked, place: Workplace) -> None:
    """Measures a setting's rounds that are not stored; writes and prints its tables and figure."""
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, training

    load_split = training.make_split_loader(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)
    (request,) = training.make_requests([Combination((), setting)], load_split)
    setting = request.setting
    cell = training.training_cell(request, load_split)
    store = cell.open(*place)
    with store.claim():  # whoever has it sets damaged files aside
        measured = len(training.kept(setting, store))
        with tqdm(
            total=cell.runs,
            initial=measured,
            desc="measuring",
            unit="rounds",
            file=sys.stderr,
        ) as bar:
            if measured < cell.runs:
                cell.do(store, place.data, bar.update)

    rows = curves.read_rounds(request, place.out)
    backward = FLAGS.charge == "backward"
    composed = curves.compose(setting, rows, request.clients, backward)
    table = curves.make_rounds_table(setting, rows, composed)
    figure = figures.training_figure(setting, rows, composed)
    written = [
        store.write_bytes("rounds.csv", table.csv()),
        store.write_bytes("rounds.png", style.png(figure)),
    ]

    print(table.text())
    released = curves.compose_with_mock_rounds(setting, rows, request.clients)
    canaries = curves.format_canaries(rows)
    if canaries:
        print("\n" + canaries)
    perfect = curves.compose_perfect_canary(setting, composed.rounds[-1], request.clients)
    print("\n" + curves.format_totals(setting, composed, perfect, released, backward))
    print("\n" + "\n".join(os.fspath(path) for path in written))


def _vary(grid: VariedGrid, place: Workplace) -> None:
    """Measures a grid's rounds that are not stored; writes and prints its table and figure."""
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, training

    load_split = training.make_split_loader(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)
    only_last = not grid.over_rounds
    requests = training.make_requests(grid.combinations, load_split, only_last)
    cells = work.distinct(training.training_cell(request, load_split) for request in requests)
    missing = [cell for cell in cells if not work.is_done(cell, place)]
    if missing:
        failed = len(work.do_all(missing, place).failed)
        which = f"{failed} of {counted(len(cells), 'setting')} failed, the others are kept"
        require(not failed, f"{which}: fix what is reported above, and start again")

    measured = [(request, curves.read_rounds(request, place.out)) for request in requests]
    points = curves.average_over_seeds(grid, measured, FLAGS.charge == "backward")
    folder = training.figure_folder(grid, requests, place.out)
    table = curves.make_curves_table(points)
    written = [
        files.write_whole(folder / "varied.csv", table.csv()),
        files.write_whole(folder / "varied.png", style.png(figures.varied_figure(points))),
    ]
    print(table.text())
    print("\n" + "\n".join(os.fspath(path) for path in written))


if __name__ == "__main__":
    cli.run(main)
