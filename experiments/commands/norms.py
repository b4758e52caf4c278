"""Figure 8: the gradient norm of L's canary during training.

    ./run.sh norms                            fcnn and convnet, 30 runs each, about 2 minutes
    ./run.sh norms --models=resnet18          on a GPU

Every run draws its own initialisation, canary and noise; the norm is taken before clipping, at the model
that the step starts from. A canary below C does not use the sensitivity that the noise pays for. What is
trained once is kept under --out.
"""

from pathlib import Path

import numpy as np
from absl import flags
from numpy.typing import NDArray
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.report.table import Column, Table
from audit.settings import stored
from audit.settings.setting import Setting, validate
from audit.storage import files
from audit.tasks.task import Sources
from experiments.hidden_state import cells
from models.catalogue import TASKS, task

FIELDS = ("steps", "clipping_norm", "noise_multiplier", "seed")
FLAGS = flags.FLAGS
flags.DEFINE_list(
    "models", ["fcnn", "convnet"], "Models, comma-separated: those of ./run.sh audit."
)
flags.DEFINE_integer("runs", 30, "Runs a model.")
cli.define_setting(names=FIELDS)
cli.define_out("Folder for results; the figure goes into its folder norms.")


def main() -> None:
    """Parses the flags, and draws and prints the norms of the canary's gradient over training, by model.

    The norms are those before clipping, at every step of several training runs.

    The runs of a model are trained unless the store has the norms of all of them.
    """
    require(FLAGS.models, "--models is empty: name models, comma-separated")
    for model in FLAGS.models:
        require(model in TASKS, f"--models: {model!r} is unknown: choose of {', '.join(TASKS)}")
    # The canary of the adversary "loss" is an example with a wrong label, which inserts its own gradient.
    settings = [cli.setting(FIELDS, model=model, adversary="loss") for model in FLAGS.models]
    out = cli.folder()
    cli.prepare_jax()

    for setting in settings:
        validate(setting, FLAGS.runs)
    norms = {setting.model: _canary_norms(setting, out) for setting in settings}

    folder = out / "norms"
    table = files.write_whole(folder / "norms.csv", _norms_table(norms).csv())
    from audit.report import style
    from experiments.hidden_state import figures

    picture = style.png(figures.norms_figure(norms, FLAGS.clipping_norm))
    figure = files.write_whole(folder / "norms.png", picture)
    print(f"{'model':<16}{'first step':>12}{'last step':>12}{'least':>10}{'below C':>10}")
    for model, model_norms in norms.items():  # (runs, steps)
        # Means over runs at two steps; of all norms, the least, and the share that clipping leaves alone.
        first = model_norms[:, 0].mean()
        last = model_norms[:, -1].mean()
        least = model_norms.min()
        share_below = np.mean(model_norms < FLAGS.clipping_norm)
        print(f"{model:<16}{first:>12.3g}{last:>12.3g}{least:>10.3g}{share_below:>10.1%}")
    print(f"\n{figure}\n{table}")


def _canary_norms(setting: Setting, out: Path) -> NDArray[np.float64]:
    """Returns the norms (runs, steps) of the canary's gradient; trains the runs unless all are stored.

    Args:
      setting: The setting, which names the model.
      out: The folder of all stores.
    """
    dataset = task(setting.model).data.load(Sources())
    # The experiment's name keeps this store apart from that of an audit of the setting.
    store = stored.open_store(out, setting, dataset, cells.EXPERIMENT)
    with tqdm(total=FLAGS.runs, desc=setting.model, unit="runs") as bar:
        return cells.kept_norms(store, setting, dataset, FLAGS.runs, bar.update)


def _norms_table(norms: dict[str, NDArray[np.float64]]) -> Table[int]:
    """Returns a table for CSV with a row for each step: each model's mean and deviation over the runs.

    Args:
      norms: The norms (runs, steps) by model.
    """
    columns = [Column("step", lambda step: step)]
    lengths = []
    for model, values in norms.items():
        mean = values.mean(0)
        deviation = values.std(0, ddof=1)
        # A row is a step's number, from 0, which is its place in these arrays.
        columns.append(Column(f"{model}_mean", mean.__getitem__))
        columns.append(Column(f"{model}_sd", deviation.__getitem__))
        lengths.append(len(mean))
    return Table(columns, range(min(lengths)))  # the steps that all models have


if __name__ == "__main__":
    cli.run(main, keeps=True)
