"""Audits a custom model: a small CNN on synthetic images.

./run.sh python experiments/examples/own_model.py
./run.sh python experiments/examples/own_model.py --runs=60 --canaries=32      many canaries per run
"""

import flax.linen as nn
import numpy as np
import optax
from absl import flags
from jax import Array
from numpy.typing import NDArray

import audit
from audit.commands import cli

FLAGS = flags.FLAGS
flags.DEFINE_integer("runs", 400, "Models to train, half with the canary.")
flags.DEFINE_integer("canaries", 1, "Canaries per run, each with its own coin.")
cli.define_out("Folder for scores, results and the report.")


class Net(nn.Module):
    """A small CNN for four classes."""

    @nn.compact
    def __call__(self, image: Array) -> Array:
        """Returns the logits (4,) of one image (12, 12, 1), without a batch axis."""
        x = nn.relu(nn.Conv(8, (3, 3), strides=2)(image))
        x = nn.relu(nn.Dense(16)(x.reshape(-1)))
        return nn.Dense(4)(x)


def make_data() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Returns synthetic images and labels. Replace them by your features (N, ...) and labels (N,)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 1000, np.int32)
    patterns = rng.normal(size=(4, 12, 12, 1))
    images = patterns[labels] + rng.normal(size=(1000, 12, 12, 1))
    return images.astype(np.float32), labels


def main() -> None:
    """Audits the network and prints the bounds."""
    cli.prepare_jax()
    images, labels = make_data()
    result = audit.audit_model(
        Net(),
        optax.softmax_cross_entropy_with_integer_labels,
        images,
        labels,
        model="small CNN on synthetic images",
        runs=FLAGS.runs,
        canaries=FLAGS.canaries,
        out=cli.folder(),
        adversary="gc_r",
        steps=50,
        batch_size=50,
        learning_rate=0.1,
        noise_multiplier=2.0,
    )
    print(f"{result}\n\nreport: {result.folder}/report.html")


if __name__ == "__main__":
    cli.run(main, keeps=True)
