"""CANIFE: a designed canary in frozen rounds of a training.

./run.sh canife                                  two layers, Fashion-MNIST, an epoch
./run.sh canife --model=convnet --cohort=64      CIFAR-10, one example a client
./run.sh canife --clients=600 --cohort=30 --rounds=100 --every=20
./run.sh canife --model=character_lstm           Shakespeare's roles: canaries are texts
./run.sh canife --as_published --charge=backward    as the paper's public code

./run.sh sweep --name=canife_figure_5a and ./run.sh figures draw the paper's ablations.
"""

import dataclasses
import os
import sys

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.storage import files
from audit.storage.store import hold
from experiments.canife import attacked
from experiments.canife.attacked import Attacked
from experiments.cells.cell import DataSets
from models.catalogue import federated_task

FLAGS = flags.FLAGS
cli.define_setting(Attacked)
cli.define_sources()
flags.DEFINE_string(
    "charge", "forward", "Rounds that a measured one stands for: forward, or backward."
)
cli.define_out("Folder of the store and its results.")


def main() -> None:
    """Parses the flags, measures CANIFE's rounds that the store lacks, and prints and writes what all show.

    CANIFE estimates epsilon from single rounds of a federated training. For each measured round it designs a
    canary, and scores many repetitions of the round with and without the canary. With --charge=forward a
    measured round also stands for the unmeasured rounds after it, with --charge=backward for those before it.
    """
    # Fields that no flag gives have the model's own defaults.
    values = cli.values(Attacked)
    given = [field.name for field in dataclasses.fields(Attacked) if FLAGS[field.name].present]
    charge_is_known = FLAGS.charge in ("forward", "backward")
    require(charge_is_known, f"--charge={FLAGS.charge}: choose one of forward, backward")
    setting = attacked.resolve_setting(values, given)
    # --data_file replaces this data set.
    data_set = federated_task(setting.model).file
    data = DataSets({data_set: FLAGS.data_file}, FLAGS.tfds_dir)
    out = cli.folder()
    cli.prepare_jax()
    from audit.report import style
    from experiments.canife import curves, figures, measured, training

    setting, split, store = training.prepare(setting, out, data)
    numbers = setting.measured()  # of the rounds that are measured: 1, 1 + every, ...
    with hold(store.path):
        n_stored = len(measured.read_rounds(store, numbers))
        with tqdm(
            total=len(numbers), initial=n_stored, desc="measuring", unit="rounds", file=sys.stderr
        ) as bar:
            for _ in training.measure_missing(setting, split, store, numbers):
                bar.update()

    stored = measured.read_rounds(store, numbers)
    backward = FLAGS.charge == "backward"
    frame = curves.compose(setting, curves.summarize(setting, stored), backward)
    figure = figures.training_figure(setting, stored[-1], frame)
    written = [
        files.write_whole(store.path / "rounds.csv", frame.to_csv(index=False).encode()),
        files.write_whole(store.path / "rounds.png", style.png(figure)),
    ]
    print(curves.show_rounds(setting, frame))
    if isinstance(stored[0].canary, str):  # images are not printed
        print("\n" + curves.show_texts(stored))
    print("\n" + curves.show_totals(setting, frame, backward))
    print("\n" + "\n".join(os.fspath(path) for path in written))


if __name__ == "__main__":
    cli.run(main, keeps=True)
