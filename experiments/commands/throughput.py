"""Time our engine beside jax_privacy, Opacus and torch.func.

    ./run.sh throughput                                 all models, all engines
    ./run.sh throughput --models=lenet                  DP-FedAvg alone
    ./run.sh throughput --models=fcnn --rounds=3        one model, quickly
    ./run.sh throughput --engines=ours,opacus --json    two engines, as JSON

All engines do DP-SGD steps on one model, batch size, data and machine: per-example gradients, clipping,
noise, SGD, in audit's mini-batches, and of 8 for resnet18. Before it is timed, each must take the step
that ours takes without noise. In every round each is timed once, so that what slows a round slows all,
and ratios are taken within rounds. Ours is what `audit` trains, insertion included. jax_privacy and
torch_func use all cores, with as many models at once as they are fastest with; Opacus runs a process of
one thread on each core, and their rates add.

lenet is trained by DP-FedAvg, without canaries: cohorts of 30 of 600 clients, one epoch of mini-batches of
16. torch_loop trains a copy of the model for one client after the other, in a process of one thread on
each core. The two are compared by a round in which every client takes three steps.

"of GEMM" is the model's arithmetic a second as a share of a float32 product of 2048 x 2048 matrices,
timed in the same rounds by JAX on all cores. The arithmetic is a multiplication and an addition for
each use of a weight in the forward pass, the weights' gradients and the inputs' gradients (the first
layer has none); biases, activations, clipping and noise are not counted. Peak memory is of the engine's
processes with their libraries and data, on a GPU of its memory.
"""

import sys
from collections.abc import Sequence

from absl import flags

from audit.commands import cli
from audit.errors import require
from experiments.engine import measurement
from experiments.engine.engines import ENGINES, TIMED, Kind, missing_line, require_timed
from experiments.engine.measurement import Measurement

FLAGS = flags.FLAGS
_MODELS = (
    "fcnn (Housing), convnet, resnet18 (CIFAR-10), lenet (Fashion-MNIST's clients); by default all."
)
flags.DEFINE_list("models", None, _MODELS)
flags.DEFINE_list("engines", list(ENGINES), f"Of {', '.join(ENGINES)}.")
flags.DEFINE_integer("rounds", 5, "Rounds; each times every engine once.")
flags.DEFINE_float("seconds", 3.0, "Seconds a measurement, at least.")
cli.define_sources()
cli.define_json()


def main() -> None:
    """Parses the flags, times the engines that can train each model, and prints their rates."""
    for model in FLAGS.models or ():
        require_timed(model)  # its message says why the model is not timed
    models = cli.chosen("models", list(TIMED))
    engines = cli.chosen("engines", ENGINES)
    require(1 <= FLAGS.rounds <= 1000, f"--rounds={FLAGS.rounds}: give 1 to 1,000")
    require(0 < FLAGS.seconds < 3600, f"--seconds={FLAGS.seconds}: give more than 0, up to an hour")
    single_model = FLAGS.data_file is None or len(models) == 1
    require(single_model, "--data_file is one model's: name that one in --models")

    installed, missing = _find_engines(models, engines)
    if missing:
        print(missing_line(missing), file=sys.stderr)
    sources = cli.sources()
    measurements: list[Measurement] = []
    try:
        for model, kinds in installed.items():
            measurements += measurement.measure(model, kinds, FLAGS.rounds, FLAGS.seconds, sources)
    finally:
        # Where a model fails, those that were measured before it are shown all the same.
        if measurements and FLAGS.json:
            print(measurement.as_json(measurements, missing))
        elif measurements:
            print(measurement.as_table(measurements))


def _find_engines(
    models: Sequence[str], engines: Sequence[str]
) -> tuple[dict[str, list[Kind]], list[Kind]]:
    """Finds the engines that can train each model.

    Args:
      models: The names of the models.
      engines: The names of the engines that the user wants to time.

    Returns:
      The installed engines by model, without models that none of `engines` can train; and the engines that
      can train some model but are not installed.

    Raises:
      InputError: No engine can train a model that --models names, or none of a model's engines is installed.
    """
    capable = {}
    for model in models:
        capable[model] = [kind for kind in TIMED[model].work.kinds if kind.name in engines]
    for model in FLAGS.models or ():
        require(
            capable[model],
            f"none of --engines trains {model}: name others, or leave it out of --models",
        )

    installed: dict[str, list[Kind]] = {}
    missing: list[Kind] = []
    for model, kinds in capable.items():
        if not kinds:
            continue
        installed[model] = []
        for kind in kinds:
            if kind.is_installed():
                installed[model].append(kind)
            elif kind not in missing:
                missing.append(kind)
    none_installed = f"none of --engines is installed: name others; {missing_line(missing)}"
    require(all(installed.values()), none_installed)
    return installed, missing


if __name__ == "__main__":
    cli.run(main)
