"""A federated training run in PyTorch with canary clients, scored for ./run.sh bound --dimension.

./run.sh python experiments/examples/one_run_pytorch.py run.npz
./run.sh bound --scores=run.npz --dimension=1010

Needs PyTorch: `.venv/bin/pip install torch`, or, where you have it, `pip install` of this repository.
Replace the model, the data and the loop by your own; the lines that matter are marked with ONE RUN.
"""

import sys

import numpy as np
import torch
from torch import nn

from audit import one_run

CLIENTS = 200
CANARIES = 400
ROUNDS = 30
COHORT = 20
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 0.05
LEARNING_RATE = 0.5
SEED = 2024


def compute_update(
    model: nn.Module,
    start: torch.Tensor,
    features: torch.Tensor,
    labels: torch.Tensor,
) -> torch.Tensor:
    """Returns a client's update (dimension,): how far two steps of SGD move the model, clipped to norm C.

    Args:
      model: The model, whose parameters are overwritten.
      start: (dimension,), the server's parameters.
      features: (8, 100), the features of the client's examples.
      labels: (8,), their labels.
    """
    # Parameters become views of the vector that they are given: SGD is to move a copy, not `start`.
    nn.utils.vector_to_parameters(start.clone(), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    update = nn.utils.parameters_to_vector(model.parameters()).detach() - start
    norm = update.norm().item()
    return update * min(1.0, CLIPPING_NORM / (norm + 1e-12))  # no division by 0


def main(path: str) -> None:
    """Trains a single run, and writes its canaries' scores and presence, both (1, CANARIES), to a file.

    It is DP-FedAvg, in which a canary is a client. Lines marked "ONE RUN" are needed for an audit of a
    training loop of your own.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)  # its matrix products are too small to share among threads
    model = nn.Linear(100, 10)
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    start = weights.clone()
    dimension = len(weights)
    features = torch.randn(CLIENTS, 8, 100)
    labels = torch.randint(10, (CLIENTS, 8))

    takes_part = one_run.coins(SEED, CANARIES)  # ONE RUN: a fair coin for each canary
    # Client numbers below CLIENTS are of clients with data, the others of canaries. Each has a place in a
    # single round, which does not depend on the coins.
    order = np.random.default_rng(1).permutation(CLIENTS + CANARIES)
    for cohort in np.array_split(order, ROUNDS):
        total = CLIPPING_NORM * NOISE_MULTIPLIER * torch.randn(dimension)  # noise, then the updates
        for client in cohort.tolist():
            canary = client - CLIENTS  # below 0 for a client with data
            if canary < 0:
                total += compute_update(model, weights, features[client], labels[client])
            elif takes_part[canary]:
                # ONE RUN: its update is a direction as long as the clipping norm
                direction = torch.from_numpy(one_run.canary(SEED, canary, dimension)).float()
                total += CLIPPING_NORM * direction
        weights = weights + total / COHORT

    movement = (weights - start).numpy()  # ONE RUN: final minus start
    scores = one_run.cosines(movement, SEED, CANARIES)
    np.savez(path, scores=scores[None], presence=takes_part[None])  # with a leading axis of runs
    print(f"{path}: ./run.sh bound --scores={path} --dimension={dimension}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "run.npz")
