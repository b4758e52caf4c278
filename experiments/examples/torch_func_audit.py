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

RUNS, STEPS, BATCH_SIZE, INPUTS, HIDDEN = 1000, 20, 20, 10, 8
CLIPPING_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 2.0, 0.1
SIZES = (INPUTS * HIDDEN, HIDDEN, HIDDEN * 2, 2)


def logits(theta: Tensor, features: Tensor) -> Tensor:
    """A network with one hidden layer, whose parameters are one vector."""
    first, bias, second, last_bias = theta.split(SIZES)
    hidden = torch.relu(features @ first.view(INPUTS, HIDDEN) + bias)
    return hidden @ second.view(HIDDEN, 2) + last_bias


def clipped_sum(theta: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """The sum of one model's clipped gradients, (dimension,)."""

    def loss(theta: Tensor, one: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(logits(theta, one)[None], label[None])

    gradients = vmap(grad(loss), (None, 0, 0))(theta, features, labels)
    factors = (CLIPPING_NORM / gradients.norm(dim=1)).clamp(max=1.0)
    return factors @ gradients


def main(*page: str) -> None:
    """Trains all models at once, bounds, and writes a page where one is named."""
    torch.manual_seed(0)
    features, labels = torch.randn(STEPS * BATCH_SIZE, INPUTS), torch.randint(2, (STEPS * BATCH_SIZE,))
    start = 0.3 * torch.randn(sum(SIZES))
    thetas = start.repeat(RUNS, 1)
    present = torch.arange(RUNS) % 2 == 1  # CANARY: half of the runs have it
    canary = torch.zeros(sum(SIZES))
    canary[3] = CLIPPING_NORM  # CANARY: a gradient as long as the clipping norm, along one number
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        total = vmap(clipped_sum, (0, None, None))(thetas, features[rows], labels[rows])
        total += present[:, None] * canary  # CANARY: beside the mini-batch's gradients, at every step
        total += NOISE_MULTIPLIER * CLIPPING_NORM * torch.randn_like(total)
        thetas = thetas - LEARNING_RATE / BATCH_SIZE * total

    scores = (start - thetas)[:, 3].numpy()  # CANARY: how far its number moved against its gradient
    where = present.numpy()
    result = audit.bounds(
        scores[where], scores[~where], audit.DpSgd(NOISE_MULTIPLIER, STEPS), name="torch.func"
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
