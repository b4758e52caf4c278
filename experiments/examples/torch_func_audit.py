"""An audit of DP-SGD written with torch.func: all runs at once, a gradient canary in half of them.

./run.sh python experiments/examples/torch_func_audit.py page.html

Needs PyTorch: `.venv/bin/pip install torch`, or, where you have it, `pip install` of this repository.
Replace `logits` and the data by your own; the lines that matter are marked with CANARY.
"""

import sys

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy

import audit

RUNS = 1000
STEPS = 20
BATCH_SIZE = 20
INPUTS = 10
HIDDEN = 8
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 2.0
LEARNING_RATE = 0.1
SIZES = (INPUTS * HIDDEN, HIDDEN, HIDDEN * 2, 2)
COORDINATE = 3  # of the canary


def logits(theta: Tensor, features: Tensor) -> Tensor:
    """Returns the outputs of a network with one hidden layer, whose parameters are a vector."""
    first, bias, second, last_bias = theta.split(SIZES)
    hidden = torch.relu(features @ first.view(INPUTS, HIDDEN) + bias)
    return hidden @ second.view(HIDDEN, 2) + last_bias


def sum_clipped_gradients(
    theta: Tensor,
    features: Tensor,
    labels: Tensor,
) -> Tensor:
    """Returns the sum of one model's clipped gradients, (dimension,)."""

    def loss(theta: Tensor, example: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(logits(theta, example)[None], label[None])

    gradients = vmap(grad(loss), (None, 0, 0))(theta, features, labels)
    factors = (CLIPPING_NORM / gradients.norm(dim=1)).clamp(max=1.0)
    return factors @ gradients


def main(*page: str) -> None:
    """Trains all models at once, bounds, and writes a page where the command line names it."""
    torch.manual_seed(0)
    examples = STEPS * BATCH_SIZE
    features = torch.randn(examples, INPUTS)
    labels = torch.randint(2, (examples,))
    start = 0.3 * torch.randn(sum(SIZES))
    thetas = start.repeat(RUNS, 1)
    present = torch.arange(RUNS) % 2 == 1  # CANARY: half of the runs have it
    canary = torch.zeros(sum(SIZES))
    canary[COORDINATE] = (
        CLIPPING_NORM  # CANARY: a gradient as long as the clipping norm, along one number
    )
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        total = vmap(sum_clipped_gradients, (0, None, None))(thetas, features[rows], labels[rows])
        total += (
            present[:, None] * canary
        )  # CANARY: beside the mini-batch's gradients, at every step
        total += NOISE_MULTIPLIER * CLIPPING_NORM * torch.randn_like(total)
        thetas = thetas - LEARNING_RATE / BATCH_SIZE * total

    scores = (start - thetas)[
        :, COORDINATE
    ].numpy()  # CANARY: how far it moved against its gradient
    is_in = present.numpy()
    result = audit.bounds(
        scores[is_in],
        scores[~is_in],
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="torch.func",
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
