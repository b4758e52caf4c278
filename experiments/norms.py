"""Figure 8: the gradient norm of L's canary during training.

    ./run.sh norms                            fcnn and convnet, 30 runs each, about 2 minutes
    ./run.sh norms --models=resnet18          on a GPU

Every run draws its own initialisation, canary and noise; the norm is taken before clipping, at the model
that the step starts from. A canary below C does not use the sensitivity that the noise pays for. What is
trained once is kept under --out.
"""

from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from numpy.typing import NDArray
from tqdm import tqdm

from audit.errors import require
from audit.storage import files
from experiments import cli
from experiments.hidden_state import norms as norm_cells
from experiments.hidden_state.norms_figure import norms_figure

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["fcnn", "convnet"], "Models, comma-separated: those of ./run.sh audit.")
flags.DEFINE_integer("runs", 30, "Runs a model.")
flags.DEFINE_integer("steps", 250, "Training steps; the canary is inserted at each.")
flags.DEFINE_float("clipping_norm", 1.0, "Clipping norm C.")
flags.DEFINE_float("noise_multiplier", 4.0, "Noise multiplier sigma.")
flags.DEFINE_integer("seed", 0, "Seed of everything drawn.")
flags.DEFINE_string("out", "results", "Folder for results; the figure goes into its folder norms.")


def main() -> None:
    """Parse, train, draw, print."""
    cli.prepare_jax()
    from experiments.settings import build as auditing

    settings = [_setting(auditing, model) for model in FLAGS.models]
    require(settings, "--models is empty: name models, comma-separated")
    for setting in settings:
        auditing.validate(setting, FLAGS.runs)
    norms = {setting.model: _norms(auditing, setting) for setting in settings}
    folder = Path(FLAGS.out) / "norms"
    names = ",".join(f"{model}_{part}" for model in norms for part in ("mean", "sd"))
    columns = [c for values in norms.values() for c in (values.mean(0), values.std(0, ddof=1))]
    rows = [f"step,{names}"]
    rows += [f"{i}," + ",".join(f"{c[i]:.6g}" for c in columns) for i in range(FLAGS.steps)]
    table = files.write_whole(folder / "norms.csv", ("\n".join(rows) + "\n").encode())
    figure = files.write_whole(folder / "norms.png", norms_figure(norms, FLAGS.clipping_norm))
    print(f"{'model':<16}{'first step':>12}{'last step':>12}{'least':>10}{'below C':>10}")
    for model, values in norms.items():
        low = np.mean(values < FLAGS.clipping_norm)
        numbers = f"{values[:, 0].mean():>12.3g}{values[:, -1].mean():>12.3g}{values.min():>10.3g}"
        print(f"{model:<16}{numbers}{low:>10.1%}")
    print(f"\n{figure}\n{table}")


def _setting(auditing: Any, model: str) -> Any:
    """L on a model, at the paper's hyperparameters."""
    known = ", ".join(auditing.TASKS)
    require(model in auditing.TASKS, f"--models: {model} is unknown: choose of {known}")
    task = auditing.TASKS[model]
    return auditing.Setting(
        model=model,
        adversary="loss",
        learning_rate=task.learning_rate,
        clipping_norm=FLAGS.clipping_norm,
        noise_multiplier=FLAGS.noise_multiplier,
        batch_size=task.batch_size,
        steps=FLAGS.steps,
        clipping=task.clipping[0],
        seed=FLAGS.seed,
    )


def _norms(auditing: Any, setting: Any) -> NDArray[np.float64]:
    """The canary's gradient norms (runs, steps), trained where the store lacks them."""
    dataset = auditing.TASKS[setting.model].load(file=None, tfds_dir=None)
    store = norm_cells.open_store(Path(FLAGS.out), setting, dataset)
    with tqdm(total=FLAGS.runs, desc=setting.model, unit="runs") as bar:
        return norm_cells.kept(store, setting, dataset, FLAGS.runs, bar.update)


if __name__ == "__main__":
    cli.run(main)
