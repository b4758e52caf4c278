"""Do products in tf32 or bf16 keep clipped gradients within C?

    ./run.sh precision                           the FCNN on California Housing
    ./run.sh precision --model=convnet           the ConvNet on CIFAR-10

Clipping bounds the sensitivity by C only as exactly as it computes. For each precision this measures, at
initialisation and after some training, how far gradients are off and by how much the norm of a clipped
one exceeds C. A run whose clipped gradients reach C (1 + excess) has the guarantee of the noise
multiplier sigma / (1 + excess), not of sigma.
"""

from absl import flags

from audit.errors import require
from experiments import cli
from experiments.settings.setting import Setting

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "fcnn", "fcnn (California Housing) or convnet (CIFAR-10).")
flags.DEFINE_integer("examples", 500, "Examples whose gradients are measured.")
flags.DEFINE_integer("steps", 100, "Training steps before the second measurement.")
flags.DEFINE_float("clipping_norm", 1.0, "Clipping norm C.")
flags.DEFINE_float("noise_multiplier", 4.0, "Noise multiplier sigma of the training, and to be read anew.")
flags.DEFINE_string("clipping", None, "book_keeping, unfolded or per_example; by default the fastest.")
flags.DEFINE_integer("seed", 0, "Seed of all randomness.")
flags.DEFINE_string("data_file", None, "The data as a file, instead of fetching them.")
flags.DEFINE_string("tfds_dir", None, "A prepared TFDS folder that holds the data.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")


def main() -> None:
    """Parse, measure, print."""
    cli.prepare_jax()
    from experiments.engine import rounding
    from experiments.settings import build

    setting = _setting()
    build.validate(setting, runs=2)
    dataset = build.TASKS[setting.model].load(file=FLAGS.data_file, tfds_dir=FLAGS.tfds_dir)
    most = len(dataset.labels)
    require(1 <= FLAGS.examples <= most, f"--examples={FLAGS.examples}: give 1 to {most}")
    found = rounding.measure(setting, dataset, FLAGS.examples)
    show = rounding.as_json if FLAGS.json else rounding.as_text
    print(show(found, setting, FLAGS.examples))


def _setting() -> Setting:
    """The training that the flags describe, with the task's learning rate and batch size."""
    from experiments.settings.build import TASKS

    known = f"choose one of {', '.join(TASKS)}"
    require(FLAGS.model in TASKS, f"--model={FLAGS.model} is unknown: {known}")
    task = TASKS[FLAGS.model]
    return Setting(
        model=FLAGS.model,
        adversary="gc_r",
        learning_rate=task.learning_rate,
        clipping_norm=FLAGS.clipping_norm,
        noise_multiplier=FLAGS.noise_multiplier,
        batch_size=task.batch_size,
        steps=FLAGS.steps,
        clipping=task.clipping[0] if FLAGS.clipping is None else FLAGS.clipping,
        seed=FLAGS.seed,
    )


if __name__ == "__main__":
    cli.run(main)
