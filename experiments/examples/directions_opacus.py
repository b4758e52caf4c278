"""An audit of training with Opacus by fresh directions: eight small models, 50 canaries in each, a bound.

./run.sh python experiments/examples/directions_opacus.py page.html

Needs PyTorch and Opacus: `.venv/bin/pip install torch opacus`, or, where you have them, `pip install` of this
repository and `python directions_opacus.py page.html`.

Replace the model, the data and the loop by your own; the lines that matter are marked with DIRECTIONS.
"""

import sys
import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import audit
from audit.opacus_canary import DirectionsOptimizer

RUNS = 8
CANARIES = 50
STEPS = 50
BATCH_SIZE = 20
SEED = 2024
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 2.0
LEARNING_RATE = 0.1


def train(run: int, present: bool, data: list[torch.Tensor]) -> DirectionsOptimizer:
    """Trains a model by Opacus: with a run's canaries and noise, or without both, as a rehearsal.

    A canary is a random direction. In every step it is added, as a gradient of norm C, to the sum of clipped
    gradients. Lines marked DIRECTIONS are needed for an audit of a training loop of your own.

    Args:
      run: The run's number, which decides its directions together with SEED.
      present: Whether there are canaries and noise; False for the rehearsal.
      data: Features (N, 64) and labels (N,), in the order of the mini-batches.

    Returns:
      The optimizer, which knows the directions and how far the model moved.
    """
    torch.manual_seed(0)  # the same initial model in all runs
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model = GradSampleModule(network)
    # torch.seed() draws another seed in every run. It has 64 bits; 63 fit a signed integer.
    noise_seed = torch.seed() % 2**63
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER if present else 0.0,
        max_grad_norm=CLIPPING_NORM,
        expected_batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(noise_seed),
    )
    optimizer = DirectionsOptimizer(optimizer, SEED, run, CANARIES, present)  # DIRECTIONS
    features, labels = data
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
        optimizer.step()
    return optimizer


def main(*page: str) -> None:
    """Trains and scores the runs, prints the bounds, and writes a page if its path is given.

    A canary's score is the cosine between its direction and the movement of the model. Lines marked
    DIRECTIONS are needed for an audit of a training loop of your own.
    """
    torch.set_num_threads(1)  # its matrix products are too small to share among threads
    warnings.filterwarnings("ignore", "Full backward hook")  # PyTorch warns of Opacus' own hooks
    examples = STEPS * BATCH_SIZE
    data = [torch.randn(examples, 64), torch.randint(2, (examples,))]
    # DIRECTIONS: a rehearsal, once. How it moves is subtracted from how each run moves.
    rehearsal = train(0, present=False, data=data)
    rows = []
    for run in range(RUNS):
        optimizer = train(run, present=True, data=data)
        # DIRECTIONS: leave-one-out takes the run's other directions out of the movement.
        rows.append(optimizer.cosines(rehearsal.movement(), leave_one_out=True))
    result = audit.bounds(
        # Rows are in the order of the runs: the bound then holds wherever they stop.
        audit.cosines(rows, rehearsal.dimension, leave_one_out=True, in_order=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a network by Opacus",
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
