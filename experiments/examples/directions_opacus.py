"""Audits training with Opacus by random directions: eight small models with 50 canaries each.

./run.sh python experiments/examples/directions_opacus.py

This example requires PyTorch and Opacus: `.venv/bin/pip install torch opacus`. In your own environment,
install this repository and run `python directions_opacus.py`.

Replace the model, the data and the loop with your own. The comment DIRECTIONS marks the lines for the audit.
"""

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
    """Trains a model with Opacus.

    Every step adds the canaries to the sum of clipped gradients. A canary is a random direction of norm C.

    Args:
      run: The index of the run. Together with SEED it determines the directions.
      present: True to add canaries and noise. False for a rehearsal, which has neither.
      data: Features (N, 64) and labels (N,), in the order of the mini-batches.

    Returns:
      The optimizer, which records the directions and the model's movement.
    """
    torch.manual_seed(0)  # the same initial model in all runs
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    model = GradSampleModule(network)
    noise_seed = torch.seed() % 2**63  # differs between runs; `manual_seed` takes a signed integer
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


def main() -> None:
    """Trains and scores the runs, prints the bounds, and writes a page of results.

    A canary's score is the cosine of its direction with the movement of the model.
    """
    torch.set_num_threads(1)  # small matrix products are faster on one thread
    warnings.filterwarnings("ignore", "Full backward hook")  # raised by Opacus' hooks
    examples = STEPS * BATCH_SIZE
    data = [torch.randn(examples, 64), torch.randint(2, (examples,))]
    # DIRECTIONS: a rehearsal. Its movement is subtracted from the movement of each run.
    rehearsal = train(0, present=False, data=data)
    rows = []
    for run in range(RUNS):
        optimizer = train(run, present=True, data=data)
        # DIRECTIONS: `leave_one_out` removes the run's other directions from the movement.
        rows.append(optimizer.cosines(rehearsal.movement(), leave_one_out=True))
    result = audit.bounds(
        # `in_order`: rows are in the order of the runs, so the bound is valid after any number of runs.
        audit.cosines(rows, rehearsal.dimension, leave_one_out=True, in_order=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a network trained with Opacus",
    )
    print(result)
    print(f"report: {result.report('page.html')}")


if __name__ == "__main__":
    main()
