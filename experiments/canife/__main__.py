"""CANIFE: a designed canary in frozen rounds of a training.

./run.sh canife                                  two layers, Fashion-MNIST, an epoch
./run.sh canife --model=convnet --cohort=64      CIFAR-10, one example a client
./run.sh canife --clients=600 --cohort=30 --rounds=100 --every=20
./run.sh canife --model=character_lstm           Shakespeare's roles: canaries are texts
./run.sh canife --model=celeba_cnn --leaf=leaf/data/celeba/data    a folder of LEAF's
./run.sh canife --as_published --charge=backward    as the paper's public code
"""

import dataclasses
import os
import sys
from typing import Any

from absl import flags
from tqdm import tqdm

from audit.errors import require
from audit.storage import files
from experiments import cli
from experiments.canife import attacked as settings
from experiments.canife.attacked import Attacked

FLAGS = flags.FLAGS
cli.define_fields(Attacked)
cli.define_sources()
flags.DEFINE_string("charge", "forward", "Rounds that a measured one stands for: forward, or backward.")
flags.DEFINE_string("leaf", None, "LEAF's folder of CelebA, Sent140 or Shakespeare, with train/ and test/.")
flags.DEFINE_string("out", "results", "Folder for results; these go into its folder canife.")


def main() -> None:
    """Parse, train and measure what is missing, compose, draw, print."""
    names = [field.name for field in dataclasses.fields(Attacked)]
    given: dict[str, Any] = {name: FLAGS[name].value for name in names}
    attacked = settings.asked(given, [name for name in names if FLAGS[name].present])
    charges = ("forward", "backward")
    require(FLAGS.charge in charges, f"--charge={FLAGS.charge}: choose one of {', '.join(charges)}")
    out = cli.folder()
    cli.prepare_jax()
    from experiments.canife import curves, figures, populations, table, training
    from experiments.plots import style

    named = populations.Named(FLAGS.leaf, FLAGS.data_file, FLAGS.tfds_dir)
    attacked, known, folder = training.prepared(attacked, out, named)
    kept = training.kept(attacked, folder)
    total = len(attacked.measured())
    with tqdm(total=total, initial=len(kept), desc="measuring", unit="rounds", file=sys.stderr) as bar:
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


if __name__ == "__main__":
    cli.run(main)
