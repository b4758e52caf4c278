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
from audit.progress import counted
from audit.storage import files
from experiments.canife import attacked as settings
from experiments.canife.attacked import Attacked, Combination, VariedGrid
from experiments.cells import work
from experiments.cells.cell import DataSets
from experiments.cells.work import Workplace

FLAGS = flags.FLAGS
cli.define_setting(Attacked)
cli.define_sources()
flags.DEFINE_string("charge", "forward", "Rounds that a measured one stands for: forward, or backward.")
flags.DEFINE_string("leaf", None, "LEAF's folder of CelebA, Sent140 or Shakespeare, with train/ and test/.")
flags.DEFINE_string(
    "vary",
    None,
    "Fields and values, as in start=random,sample;pool=64,512;seed=0,1: every combination is trained, and one"
    " figure has the first field's values as curves, over the second or, without it, over rounds; seeds are"
    " averaged.",
)
flags.DEFINE_string("out", "results", "Folder for results; these go into its folder canife.")


def main() -> None:
    """Parse, and measure one setting or several."""
    given = cli.values(Attacked)
    said = [field.name for field in dataclasses.fields(Attacked) if FLAGS[field.name].present]
    known = FLAGS.charge in ("forward", "backward")
    require(known, f"--charge={FLAGS.charge}: choose one of forward, backward")
    if FLAGS.vary is None:
        _measure(settings.asked(given, said), Workplace(cli.folder(), DataSets({})))
        return
    grid = settings.grid(FLAGS.vary, given, said)
    charged = grid.over_rounds or not FLAGS["charge"].present
    require(charged, f"--charge={FLAGS.charge} is for curves over rounds: drop it, or vary a single field")
    _vary(grid, Workplace(cli.folder(), DataSets({})))


def _measure(attacked: Attacked, place: Workplace) -> None:
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, training

    split = training.splits(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)
    (request,) = training.requests([Combination((), attacked)], split)
    cell = training.training_cell(request, split)
    store = cell.open(*place)
    with store.claim():  # whoever has it sets damaged files aside
        held = len(training.kept(request.attacked, store))
        with tqdm(total=cell.runs, initial=held, desc="measuring", unit="rounds", file=sys.stderr) as bar:
            if held < cell.runs:
                cell.do(store, place.data, bar.update)
    rows, attacked, clients = curves.stored(request, place.out), request.attacked, request.clients
    backward = FLAGS.charge == "backward"
    composed = curves.composed(attacked, rows, clients, backward)
    rounds = curves.rounds_table(attacked, rows, composed)
    written = [
        store.write_bytes("rounds.csv", rounds.csv()),
        store.write_bytes("rounds.png", style.png(figures.training_figure(attacked, rows, composed))),
    ]
    print(rounds.text())
    released = curves.if_released(attacked, rows, clients)
    if canaries := curves.canaries_table(rows):
        print("\n" + canaries)
    perfect = curves.perfect_as_published(attacked, composed.rounds[-1], clients)
    print("\n" + curves.global_table(attacked, composed, perfect, released, backward))
    print("\n" + "\n".join(map(os.fspath, written)))


def _vary(grid: VariedGrid, place: Workplace) -> None:
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, training

    split = training.splits(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)
    requests = training.requests(grid.combinations, split, last=not grid.over_rounds)
    every = work.distinct(training.training_cell(request, split) for request in requests)
    if missing := [cell for cell in every if not work.is_done(cell, place)]:
        failed = len(work.do_all(missing, place).failed)
        which = f"{failed} of {counted(len(every), 'setting')} failed, the others are kept"
        require(not failed, f"{which}: mend what is said above, and start again")
    measured = [(request, curves.stored(request, place.out)) for request in requests]
    points = curves.averaged(grid, measured, FLAGS.charge == "backward")
    folder, rows = training.folder(grid, requests, place.out), curves.curves_table(points)
    written = [
        files.write_whole(folder / "varied.csv", rows.csv()),
        files.write_whole(folder / "varied.png", style.png(figures.varied_figure(points))),
    ]
    print(rows.text())
    print("\n" + "\n".join(map(os.fspath, written)))


if __name__ == "__main__":
    cli.run(main)
