"""Audit federated training with CANIFE: a designed canary in mock rounds.

    ./run.sh canife                                  two layers, Fashion-MNIST, one epoch
    ./run.sh canife --model=convnet --cohort=64      CIFAR-10, one example per client
    ./run.sh canife --clients=600 --cohort=30 --rounds=100 --every=20
    ./run.sh canife --as_published --charge=backward    reproduces the paper's public code

With --model=character_lstm, clients are the roles in Shakespeare's plays, and canaries are texts (for more
flags, see experiments/canife/README.md).

To plot the paper's ablations, run ./run.sh sweep --name=canife_figure_5a and then ./run.sh figures.
"""

from absl import flags

from audit.commands import cli
from audit.runtime import machine
from audit.settings.fields import require_fields
from audit.storage.store import hold
from experiments.canife.attacked import Attacked
from experiments.cells.cell import DataSets
from models.catalogue import federated_task

FLAGS = flags.FLAGS
cli.define_setting(Attacked)
cli.define_sources()
flags.DEFINE_enum(
    "charge",
    "forward",
    ["forward", "backward"],
    "Whether each measurement represents the rounds after it (forward) or before it (backward).",
)
cli.define_out("Folder for results.")


def main() -> None:
    """Measures the missing rounds, then prints and writes the results for all rounds."""
    setting = Attacked(**cli.values(Attacked))
    require_fields(setting)
    data = DataSets({federated_task(setting.model).file: FLAGS.data})
    out = cli.folder()
    cli.prepare_jax()  # the imports below load JAX
    from audit.report import style
    from experiments.canife import curves, figures, measured, training

    # `prepare` fits the setting to the data.
    setting, store = training.prepare(setting, out, data)
    numbers = setting.measured()
    with hold(store.path):
        missing = len(numbers) - len(measured.read_rounds(store, numbers))
        with machine.bar(missing, lambda: "measuring", "rounds") as progress:
            for _ in training.measure_missing(setting, data, store, numbers):
                progress(1)

    stored = measured.read_rounds(store, numbers)
    # An unmeasured round gets the epsilon of the previous (forward) or next (backward) measured round.
    is_backward = FLAGS.charge == "backward"
    frame = curves.compose(setting, curves.summarize(setting, stored), is_backward)
    figure = figures.training_figure(setting, stored[-1], frame)
    shown = [curves.show_rounds(setting, frame)]
    canaries_are_texts = isinstance(stored[0].canary, str)
    if canaries_are_texts:
        shown.append(curves.show_texts(stored))
    shown.append(curves.show_totals(setting, frame, is_backward))
    print("\n\n".join(shown) + "\n")
    table = frame.to_csv(index=False).encode()
    cli.write_files(store.path, {"rounds.csv": table, "rounds.png": style.png(figure)})


if __name__ == "__main__":
    cli.run(main)
