"""An audit of DP-SGD in PyTorch by fresh directions: ten trainings, all with 200 canaries of their own.

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

RUNS, CANARIES, STEPS, BATCH_SIZE, SEED = 10, 200, 50, 20, 2024
CLIPPING_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 2.0, 0.05


def clipped_sum(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """The sum of clipped gradients of a mini-batch, (dimension,)."""

    def loss(weights: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, weights, (one[None],)), label[None])

    weights = {name: value.detach() for name, value in model.named_parameters()}
    gradients = vmap(grad(loss), (None, 0, 0))(weights, features, labels)
    flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
    return (CLIPPING_NORM / flat.norm(dim=1)).clamp(max=1.0) @ flat


def train(features: Tensor, labels: Tensor, inserted: Tensor | float, sigma: float) -> Tensor:
    """How far a training moves its model, (dimension,)."""
    generator = torch.Generator().manual_seed(0)  # the same initial model in all runs
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    start = 0.05 * torch.randn(sum(one.numel() for one in model.parameters()), generator=generator)
    weights = start.clone()
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        vector_to_parameters(weights.clone(), model.parameters())
        total = clipped_sum(model, features[rows], labels[rows]) + inserted  # DIRECTIONS: at every step
        total = total + sigma * CLIPPING_NORM * torch.randn(len(start))  # noise of its own
        weights = weights - LEARNING_RATE / BATCH_SIZE * total
    return weights - start


def main(*page: str) -> None:
    """Trains, scores, bounds, and writes a page where one is named."""
    torch.set_num_threads(1)  # its products are small
    features, labels = torch.randn(STEPS * BATCH_SIZE, 64), torch.randint(10, (STEPS * BATCH_SIZE,))
    drift = train(features, labels, inserted=0.0, sigma=0.0)  # DIRECTIONS: a rehearsal, once
    dimension, rows = len(drift), []
    for run in range(RUNS):
        total = directions.inserted(SEED, run, CANARIES, dimension, CLIPPING_NORM)  # DIRECTIONS: once a run
        moved = train(features, labels, torch.from_numpy(total).float(), NOISE_MULTIPLIER)
        u = (drift - moved).numpy()  # DIRECTIONS: steps subtract gradients
        rows.append(directions.cosines(u, SEED, run, CANARIES, leave_one_out=True))
    result = audit.bounds(
        audit.cosines(rows, dimension, leave_one_out=True, in_order=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, STEPS),
        name="a network in PyTorch",
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
