"""Time our engine beside jax_privacy, Opacus and torch.func.

    ./run.sh throughput                                 both models, all engines
    ./run.sh throughput --models=fcnn --rounds=3        one model, quickly
    ./run.sh throughput --engines=ours,opacus --json    two engines, as JSON

All engines do DP-SGD steps on one model, batch size, data and machine: per-example gradients, clipping,
noise, SGD. Before it is timed, each must take the step that ours takes without noise. In every round
each is timed once, so that what slows a round slows all, and ratios are taken within rounds. Ours is
what `audit` trains, insertion included. jax_privacy and torch_func use all cores, with as many models
at once as they are fastest with; Opacus runs a process of one thread on each core, and their rates add.

"of GEMM" is the model's arithmetic a second as a share of a float32 product of 2048 x 2048 matrices,
timed in the same rounds by JAX on all cores. The arithmetic is a multiplication and an addition for
each use of a weight in the forward pass, the weights' gradients and the inputs' gradients (the first
layer has none); biases, activations, clipping and noise are not counted. Peak memory is of the engine's
processes with their libraries and data, on a GPU of its memory.
"""

import sys
from collections.abc import Collection

from absl import flags

from audit.errors import require
from experiments import cli
from experiments.engine import measurement
from experiments.engine.engines import ENGINES, missing_line

FLAGS = flags.FLAGS
flags.DEFINE_list("models", ["fcnn", "convnet"], "fcnn (California Housing), convnet (CIFAR-10).")
flags.DEFINE_list("engines", list(ENGINES), f"Of {', '.join(ENGINES)}.")
flags.DEFINE_integer("rounds", 5, "Rounds; each times every engine once.")
flags.DEFINE_float("seconds", 3.0, "Seconds a measurement, at least.")
flags.DEFINE_string("data_file", None, "One model's data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of a table.")


MOST_ROUNDS = 1000


def main() -> None:
    """Parse, measure, print."""
    models, engines = _chosen("models", measurement.LAYERS), _chosen("engines", ENGINES)
    require(1 <= FLAGS.rounds <= MOST_ROUNDS, f"--rounds={FLAGS.rounds}: give 1 to {MOST_ROUNDS:,}")
    require(0 < FLAGS.seconds < 3600, f"--seconds={FLAGS.seconds}: give more than 0, up to an hour")
    one = FLAGS.data_file is None or len(models) == 1
    require(one, "--data_file is one model's: name that one in --models")
    kinds = [ENGINES[name] for name in engines]
    missing = [kind for kind in kinds if not kind.is_installed()]
    kinds = [kind for kind in kinds if kind not in missing]
    require(kinds, f"none of --engines is installed: name others; {missing_line(missing)}")
    if missing:
        print(missing_line(missing), file=sys.stderr)
    rounds = measurement.Rounds(FLAGS.rounds, FLAGS.seconds)
    data = (FLAGS.data_file, FLAGS.tfds_dir)
    found = [one for model in models for one in measurement.measure(model, kinds, rounds, *data)]
    print(measurement.as_json(found, missing) if FLAGS.json else measurement.as_table(found))


def _chosen(flag: str, known: Collection[str]) -> list[str]:
    """A list flag's names, each once."""
    names = list(dict.fromkeys(FLAGS[flag].value or ()))
    for name in names:
        require(name in known, f"--{flag}: {name!r} is unknown: choose of {', '.join(known)}")
    require(names, f"--{flag} is empty: choose of {', '.join(known)}")
    return names


if __name__ == "__main__":
    cli.run(main)
