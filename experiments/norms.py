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
from audit.settings.setting import Setting
from audit.storage import files
from audit.task import Sources
from experiments.hidden_state import cells
from models.catalogue import TASKS, task

FIELDS = ("steps", "clipping_norm", "noise_multiplier", "seed")
FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["fcnn", "convnet"], "Models, comma-separated: those of ./run.sh audit.")
flags.DEFINE_integer("runs", 30, "Runs a model.")
cli.define_setting(names=FIELDS)
flags.DEFINE_string("out", "results", "Folder for results; the figure goes into its folder norms.")


def main() -> None:
    """Parse, train, draw, print."""
    require(FLAGS.models, "--models is empty: name models, comma-separated")
    for model in FLAGS.models:
        require(model in TASKS, f"--models: {model!r} is unknown: choose of {', '.join(TASKS)}")
    settings = [cli.setting(FIELDS, model=model, adversary="loss") for model in FLAGS.models]
    out = cli.folder()
    cli.prepare_jax()
    from audit.settings import build

    for setting in settings:
        build.validate(setting, FLAGS.runs)
    norms = {setting.model: _norms(setting, out) for setting in settings}
    folder = out / "norms"
    table = files.write_whole(folder / "norms.csv", _table(norms).csv())
    from audit.report import style
    from experiments.hidden_state import figures

    picture = style.png(figures.norms_figure(norms, FLAGS.clipping_norm))
    figure = files.write_whole(folder / "norms.png", picture)
    print(f"{'model':<16}{'first step':>12}{'last step':>12}{'least':>10}{'below C':>10}")
    for model, values in norms.items():
        low = np.mean(values < FLAGS.clipping_norm)
        numbers = f"{values[:, 0].mean():>12.3g}{values[:, -1].mean():>12.3g}{values.min():>10.3g}"
        print(f"{model:<16}{numbers}{low:>10.1%}")
    print(f"\n{figure}\n{table}")


def _norms(setting: Setting, out: Path) -> NDArray[np.float64]:
    dataset = task(setting.model).data.load(Sources())
    store = stored.open_store(out, setting, dataset, cells.EXPERIMENT)
    with tqdm(total=FLAGS.runs, desc=setting.model, unit="runs") as bar:
        return cells.kept_norms(store, setting, dataset, FLAGS.runs, bar.update)


def _table(norms: dict[str, NDArray[np.float64]]) -> Table[int]:
    found = {
        f"{model}_{part}": values
        for model, every in norms.items()
        for part, values in (("mean", every.mean(0)), ("sd", every.std(0, ddof=1)))
    }
    columns = [Column(name, values.__getitem__) for name, values in found.items()]
    steps = range(min(len(values) for values in found.values()))
    return Table([Column("step", lambda step: step), *columns], steps)


if __name__ == "__main__":
    cli.run(main)
