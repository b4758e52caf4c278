"""An audit of DP-SGD in PyTorch by fresh directions: ten training runs, each with 200 canaries of its own.

./run.sh python experiments/examples/directions_torch.py page.html

Needs PyTorch: `.venv/bin/pip install torch`, or, where you have it, `pip install` of this repository.
Replace the model, the data and the loop by your own; the lines that matter are marked with DIRECTIONS. With
Opacus, add the parts of the same vector to each parameter's `summed_grad` before the noise, where
`audit/opacus_canary.py` adds its canary.
"""

import sys

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils import vector_to_parameters

import audit
from audit import directions

RUNS = 10
CANARIES = 200
STEPS = 50
BATCH_SIZE = 20
SEED = 2024
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 2.0
LEARNING_RATE = 0.05


def sum_clipped_gradients(
    model: nn.Module,
    features: Tensor,
    labels: Tensor,
) -> Tensor:
    """Returns the sum (dimension,) of a mini-batch's gradients, each clipped to CLIPPING_NORM.

    Args:
      model: The model, at the parameters of the gradients.
      features: (B, 64), the examples' features.
      labels: (B,), the examples' labels.
    """

    def loss(weights: dict[str, Tensor], example: Tensor, label: Tensor) -> Tensor:
        """Returns the cross entropy of a single example."""
        logits = functional_call(model, weights, (example[None],))
        return cross_entropy(logits, label[None])

    weights = {name: value.detach() for name, value in model.named_parameters()}
    gradients = vmap(grad(loss), (None, 0, 0))(weights, features, labels)
    layers = [gradient.flatten(1) for gradient in gradients.values()]
    flat = torch.cat(layers, dim=1)  # (B, dimension)
    factors = (CLIPPING_NORM / flat.norm(dim=1)).clamp(max=1.0)  # (B,); 1 also for a norm of 0
    return factors @ flat


def train(
    features: Tensor,
    labels: Tensor,
    inserted: Tensor | float,
    sigma: float,
) -> Tensor:
    """Trains a model by DP-SGD, and returns its last parameters minus its first, (dimension,).

    Lines marked DIRECTIONS are needed for an audit of a training loop of your own.

    Args:
      features: (N, 64), the examples' features, in the order of the mini-batches.
      labels: (N,), the examples' labels.
      inserted: (dimension,), the sum of the canaries, which every step adds to its gradients; 0.0 for none.
      sigma: The noise multiplier.
    """
    generator = torch.Generator().manual_seed(0)  # the same initial model in all runs
    model = nn.Sequential(
        nn.Linear(64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    dimension = sum(value.numel() for value in model.parameters())
    start = 0.05 * torch.randn(dimension, generator=generator)
    weights = start.clone()  # all parameters in a single vector
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        # The model's parameters become views of the vector that they are given. A copy keeps `weights` apart.
        vector_to_parameters(weights.clone(), model.parameters())
        total = sum_clipped_gradients(model, features[rows], labels[rows])
        total = total + inserted  # DIRECTIONS: at every step
        total = total + sigma * CLIPPING_NORM * torch.randn(dimension)  # other noise in every run
        weights = weights - LEARNING_RATE / BATCH_SIZE * total
    return weights - start


def main(*page: str) -> None:
    """Trains and scores the runs, prints the bounds, and writes a page if its path is given.

    A canary is a random direction, and its score is the cosine between it and the movement of the model.
    Lines marked DIRECTIONS are needed for an audit of a training loop of your own.
    """
    torch.set_num_threads(1)  # its matrix products are too small to share among threads
    examples = STEPS * BATCH_SIZE
    features = torch.randn(examples, 64)
    labels = torch.randint(10, (examples,))
    # DIRECTIONS: a rehearsal, once: how the model moves without canaries and noise
    drift = train(features, labels, inserted=0.0, sigma=0.0)
    dimension = len(drift)

    cosines = []
    for run in range(RUNS):
        # DIRECTIONS: once a run, the sum of its canaries
        total = directions.inserted(SEED, run, CANARIES, dimension, CLIPPING_NORM)
        movement = train(features, labels, torch.from_numpy(total).float(), NOISE_MULTIPLIER)
        # DIRECTIONS: steps subtract gradients, so that the sign is turned to point along the canaries
        observation = (drift - movement).numpy()
        # DIRECTIONS: leave-one-out takes the run's other directions out of the movement
        cosines.append(directions.cosines(observation, SEED, run, CANARIES, leave_one_out=True))

    result = audit.bounds(
        # Rows are in the order of the runs: the bound then holds wherever they stop.
        audit.cosines(cosines, dimension, leave_one_out=True, in_order=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="a network in PyTorch",
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
