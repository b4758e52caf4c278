"""An audit of a training with Opacus: a gradient canary, 200 small models, bounds and a page.

./run.sh python experiments/examples/opacus_audit.py page.html

Needs PyTorch and Opacus: `.venv/bin/pip install torch opacus`, or, where you have them, `pip install` of this
repository and `python opacus_audit.py page.html`.

Replace the model, the data and the loop by your own; CanaryOptimizer stays. After
`PrivacyEngine.make_private` it takes the place of the optimizer that Opacus made:

    optimizer = CanaryOptimizer(
        optimizer.original_optimizer,
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=optimizer.max_grad_norm,
        expected_batch_size=optimizer.expected_batch_size,
    )
"""

import sys
import warnings

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn

import audit

RUNS, STEPS, BATCH_SIZE = 200, 10, 20
CLIPPING_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 2.0, 0.1


class CanaryOptimizer(DPOptimizer):
    """DP-SGD that also sums a gradient of `canary`, at most C, along the first parameter's first number."""

    canary = 0.0

    def clip_and_accumulate(self) -> None:
        """Adds the canary to the sum of clipped gradients, before the noise."""
        super().clip_and_accumulate()
        self.params[0].summed_grad.view(-1)[0] += self.canary


def train(canary: float, features: torch.Tensor, labels: torch.Tensor) -> float:
    """How far training moves the canary's number against its gradient: higher means in."""
    torch.manual_seed(0)  # the same initial model in all runs, as the adversary knows it
    model = GradSampleModule(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)))
    optimizer = CanaryOptimizer(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
        expected_batch_size=BATCH_SIZE,
        generator=torch.Generator().manual_seed(torch.seed() % 2**63),  # noise of its own
    )
    optimizer.canary = canary
    number = next(model.parameters()).view(-1)
    start = number[0].item()
    for step in range(STEPS):
        rows = slice(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features[rows]), labels[rows]).backward()
        optimizer.step()
    return float(start - number[0].item())


def main(*page: str) -> None:
    """Trains with and without the canary, bounds, and writes a page where one is named."""
    torch.set_num_threads(1)  # its products are small
    warnings.filterwarnings("ignore", "Full backward hook")  # which Opacus sets itself
    features, labels = torch.randn(STEPS * BATCH_SIZE, 20), torch.randint(2, (STEPS * BATCH_SIZE,))
    scores_in = [train(CLIPPING_NORM, features, labels) for _ in range(RUNS // 2)]
    scores_out = [train(0.0, features, labels) for _ in range(RUNS // 2)]
    result = audit.bounds(
        scores_in, scores_out, noise_multiplier=NOISE_MULTIPLIER, insertions=STEPS, name="a network by Opacus"
    )
    print(result)
    for path in page:
        print(f"report: {result.report(path)}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
