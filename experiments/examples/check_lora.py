"""DP-SGD with Opacus for a small language model with LoRA. Check it: ./run.sh check --example=lora

As in PEFT, an adapter B A of two small matrices is added to a frozen matrix, and B starts at zero. While B is
zero, all gradients with respect to A are zero, so the check starts after a few training steps.
"""

from typing import Any

import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import audit

TOKENS = 40
WIDTH = 16
RANK = 2
SCALE = 2.0  # of the adapter's outputs, alpha / rank in PEFT

# Training.


class LoraLinear(torch.nn.Module):
    """A frozen linear layer with a trainable low-rank adapter."""

    def __init__(self) -> None:
        """Creates a layer of width WIDTH and an adapter that initially outputs 0."""
        super().__init__()
        self.frozen = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.lora_a = torch.nn.Linear(WIDTH, RANK, bias=False)
        self.lora_b = torch.nn.Linear(RANK, WIDTH, bias=False)
        torch.nn.init.zeros_(self.lora_b.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the outputs for x, both of shape (..., WIDTH)."""
        return self.frozen(x) + SCALE * self.lora_b(self.lora_a(x))


torch.manual_seed(0)
torch.set_num_threads(1)  # small matrix products are faster on one thread
network = torch.nn.Sequential(  # returns next-token logits, (batch, length, TOKENS)
    torch.nn.Embedding(TOKENS, WIDTH).requires_grad_(False),
    LoraLinear(),
    torch.nn.GELU(),
    torch.nn.Linear(WIDTH, TOKENS).requires_grad_(False),
)
texts = torch.randint(TOKENS, (320, 13))
adapters = [p for p in network.parameters() if p.requires_grad]
dataset = TensorDataset(texts[:, :-1], texts[:, 1:])
model, optimizer, loader = PrivacyEngine().make_private(
    module=network,
    optimizer=torch.optim.Adam(adapters, lr=0.02),
    data_loader=DataLoader(dataset, batch_size=32),
    noise_multiplier=1.1,
    max_grad_norm=0.1,
)


def train_batch(tokens: torch.Tensor, following: torch.Tensor) -> None:
    """Takes a step on the mean loss of predicting `following` from `tokens`, both (batch, length)."""
    optimizer.zero_grad()
    logits = model(tokens).transpose(1, 2)  # (batch, TOKENS, length)
    loss = functional.cross_entropy(logits, following)
    loss.backward()
    optimizer.step()


for _ in range(3):
    for tokens, following in loader:
        train_batch(tokens, following)

# Check.

step = audit.TorchStep(model, optimizer, train_batch)
params = step.params
batch = texts[:32, :-1], texts[:32, 1:]
stated: dict[str, Any] = {
    "clipping_norm": 0.1,
    "noise_multiplier": 1.1,
    "learning_rate": 1,  # TorchStep returns the private gradient
    "batch_size": optimizer.expected_batch_size,  # rounded by Opacus
}
