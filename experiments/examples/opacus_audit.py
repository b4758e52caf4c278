"""An audit of training with Opacus: a gradient canary, 200 small models, bounds and a page.

./run.sh python experiments/examples/opacus_audit.py page.html

Needs PyTorch and Opacus: `.venv/bin/pip install torch opacus`, or, where you have them, `pip install` of this
repository and `python opacus_audit.py page.html`.

Replace the model, the data and the loop by your own; the lines that matter are marked with CANARY.
"""

import sys
import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import audit
from audit.opacus_canary import CanaryOptimizer

RUNS = 200
STEPS = 10
BATCH_SIZE = 20
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 2.0
LEARNING_RATE = 0.1


def train(features: torch.Tensor, labels: torch.Tensor, present: bool) -> float:
    """Trains a model by Opacus, and returns its score; a higher score means that the canary is in.

    The canary is a gradient that each step may add to the sum of clipped gradients. The score is how far
    training moved the model against it, since steps subtract gradients. Lines marked CANARY are needed for an
    audit of a training loop of your own.

    Args:
      features: (N, 20), the examples' features, in the order of the mini-batches.
      labels: (N,), the examples' labels.
      present: Whether every step inserts the canary.
    """
    torch.manual_seed(0)  # the same initial model in all runs, as the adversary knows it
    network = nn.Sequential(
        nn.Linear(20, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )
    model = GradSampleModule(network)
    # torch.seed() draws another seed in every run. It has 64 bits; 63 fit a signed integer.
    noise_seed = torch.seed() % 2**63
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
        expected_batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(noise_seed),
    )
    optimizer = CanaryOptimizer(optimizer, present)  # CANARY: also after PrivacyEngine.make_private
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
        optimizer.step()
    return float(optimizer.score())  # CANARY


def main(*page: str) -> None:
    """Trains with and without the canary, prints the bounds, and writes a page if its path is given."""
    torch.set_num_threads(1)  # its matrix products are too small to share among threads
    warnings.filterwarnings("ignore", "Full backward hook")  # PyTorch warns of Opacus' own hooks
    examples = STEPS * BATCH_SIZE
    features = torch.randn(examples, 20)
    labels = torch.randint(2, (examples,))
    scores_in = [train(features, labels, present=True) for _ in range(RUNS // 2)]
    scores_out = [train(features, labels, present=False) for _ in range(RUNS // 2)]
    result = audit.bounds(
        scores_in,
        scores_out,
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a network by Opacus",
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
