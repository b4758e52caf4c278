"""Do products in tf32 or bf16 keep clipped gradients within C?

    ./run.sh precision                           the FCNN on California Housing
    ./run.sh precision --model=convnet           the ConvNet on CIFAR-10

Clipping bounds the sensitivity by C only as exactly as it computes. For each precision this measures, at
initialisation and after some training, how far gradients are off and by how much the norm of a clipped
one exceeds C. A run whose clipped gradients reach C (1 + excess) has the guarantee of the noise
multiplier sigma / (1 + excess), not of sigma.
"""

from absl import flags

from audit.commands import cli
from audit.errors import require
from audit.settings.setting import validate
from models.catalogue import task

FLAGS = flags.FLAGS
FIELDS = ("model", "clipping_norm", "noise_multiplier", "seed")
cli.define_setting(names=FIELDS)
flags.DEFINE_integer("examples", 500, "Examples whose gradients are measured.")
flags.DEFINE_integer("steps", 100, "Training steps before the second measurement.")
cli.define_sources()
cli.define_json()


def main() -> None:
    """Parses the flags, and measures and prints how far gradients are off at each precision."""
    # A setting needs some adversary, and 2 runs at least. Neither is used, since nothing is audited.
    setting = cli.setting(FIELDS, steps=FLAGS.steps, adversary="gc_r")
    cli.prepare_jax()
    from experiments.engine import rounding

    validate(setting, runs=2)
    dataset = task(setting.model).data.load(cli.sources())
    most = len(dataset.labels)
    require(1 <= FLAGS.examples <= most, f"`examples={FLAGS.examples}`: give 1 to {most}")
    measurements = rounding.measure(setting, dataset, FLAGS.examples)
    if FLAGS.json:
        print(rounding.as_json(measurements, setting, FLAGS.examples))
    else:
        print(rounding.as_text(measurements, setting, FLAGS.examples))


if __name__ == "__main__":
    cli.run(main)
