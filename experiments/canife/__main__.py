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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.storage import files
from experiments.canife import attacked as settings
from experiments.canife import varied
from experiments.canife.attacked import Attacked
from experiments.canife.varied import Combination, Layout, VariedGrid

if TYPE_CHECKING:
    from experiments.canife.populations import Named

FLAGS = flags.FLAGS
cli.define_fields(Attacked)
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
    names = [field.name for field in dataclasses.fields(Attacked)]
    given: dict[str, Any] = {name: FLAGS[name].value for name in names}
    said = [name for name in names if FLAGS[name].present]
    charges = ("forward", "backward")
    require(FLAGS.charge in charges, f"--charge={FLAGS.charge}: choose one of {', '.join(charges)}")
    if FLAGS.vary is None:
        _measure(settings.asked(given, said), cli.folder())
        return
    grid = varied.grid(FLAGS.vary)
    points = varied.points(grid, given, said)
    drawn = varied.layout(grid, points)
    charged = drawn.over_rounds or not FLAGS["charge"].present
    require(charged, f"--charge={FLAGS.charge} is for curves over rounds: drop it, or vary a single field")
    _vary(grid, points, drawn, cli.folder())


def _measure(attacked: Attacked, out: Path) -> None:
    """Train and measure what is missing, compose, draw, print."""
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, table, training

    attacked, known, folder = training.prepared(attacked, out, _named())
    kept = training.kept(attacked, folder)
    with _bar(len(attacked.measured()), len(kept)) as bar:
        for one in training.measure_missing(attacked, known, folder):
            kept[one.number] = one
            bar.update()
    rows = [curves.row(attacked, kept[number]) for number in attacked.measured()]
    clients, backward = known.train_clients, FLAGS.charge == "backward"
    found = curves.composed(attacked, rows, clients, backward)
    written = [
        files.write_whole(folder / "rounds.csv", table.as_csv(rows, found).encode()),
        files.write_whole(folder / "rounds.png", style.png(figures.training_figure(attacked, rows, found))),
    ]
    print(table.rounds_table(attacked, rows))
    released = curves.if_released(attacked, rows, clients)
    canaries = table.canaries_table(rows)
    print("\n" + canaries if canaries else "", end="\n" if canaries else "")
    perfect = curves.perfect_as_published(attacked, found.rounds[-1], clients)
    print("\n" + table.global_table(attacked, found, perfect, released, backward))
    print("\n" + "\n".join(map(os.fspath, written)))


def _vary(grid: VariedGrid, points: list[Combination], drawn: Layout, out: Path) -> None:
    """Train and measure what is missing of every setting, draw, print."""
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import varied_figures, varied_points, varied_table, varied_training

    split = varied_training.splits(_named())
    planned = varied_training.planned(points, drawn.over_rounds, out, split)
    missing = sum(map(varied_training.missing, planned))
    total = sum(len(one.rounds) for one in planned)
    with _bar(total, total - missing) as bar:

        def step(number: int) -> None:
            bar.update()

        found = [varied_training.found(one, split, step) for one in planned]
    curves = varied_points.averaged(drawn, found, FLAGS.charge == "backward")
    folder = varied_training.folder(grid, planned, out)
    written = [
        files.write_whole(folder / "varied.csv", varied_table.as_csv(curves).encode()),
        files.write_whole(folder / "varied.png", style.png(varied_figures.varied_figure(curves))),
    ]
    print(varied_table.varied_table(curves))
    print("\n" + "\n".join(map(os.fspath, written)))


def _named() -> "Named":
    """What the flags name instead of having data fetched."""
    from experiments.canife.populations import Named

    return Named(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)


def _bar(total: int, done: int) -> "tqdm[Any]":
    """A progress bar over measured rounds."""
    return tqdm(total=total, initial=done, desc="measuring", unit="rounds", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
