"""LoRA on a small GPT with Opacus, and its step for the check. ./run.sh check --example=lora

The adapters are those of PEFT: a product B A of two small matrices beside each frozen one. B starts at zero.
Then A has no gradient, whatever the examples, and the check would say that its signal is dead. So the check
starts from adapters that have been trained for a while.
"""

from typing import Any

import torch
from opacus import PrivacyEngine
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import audit

TOKENS = 40
LENGTH = 12
WIDTH = 16

# The training run.


class LoraLinear(torch.nn.Module):
    """A frozen linear layer plus a trained adapter, the product of two layers of low rank."""

    def __init__(self, frozen: torch.nn.Linear, rank: int = 2, alpha: float = 4.0) -> None:
        """Freezes a layer and puts an adapter beside it, which at first adds 0 to the layer's outputs.

        Args:
          frozen: The layer, which is frozen in place.
          rank: The number of values between the adapter's two layers, `lora_a` and `lora_b`.
          alpha: LoRA's alpha: the adapter's outputs are multiplied by alpha / rank.
        """
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.lora_a = torch.nn.Linear(frozen.in_features, rank, bias=False)
        self.lora_b = torch.nn.Linear(rank, frozen.out_features, bias=False)
        self.scale = alpha / rank
        torch.nn.init.zeros_(self.lora_b.weight)  # so that the adapter adds 0 at first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the outputs (..., out_features) of x (..., in_features)."""
        return self.frozen(x) + self.scale * self.lora_b(self.lora_a(x))


class Gpt(torch.nn.Module):
    """A GPT of a single block: causal attention and a dense layer, each added to its input."""

    def __init__(self) -> None:
        """Makes the layers: `attention` computes queries, keys and values at once."""
        super().__init__()
        self.words = torch.nn.Embedding(TOKENS, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.network = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the logits (batch, length, TOKENS) of each next token, from tokens (batch, length)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        query, key, value = self.attention(self.norm(x)).chunk(3, dim=2)
        x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + functional.gelu(self.network(x))
        return self.head(x)


torch.manual_seed(0)
torch.set_num_threads(1)  # its matrix products are too small to share among threads
network = Gpt().requires_grad_(False)
network.attention = LoraLinear(network.attention)
texts = torch.randint(TOKENS, (320, LENGTH + 1))
adapters = [p for p in network.parameters() if p.requires_grad]
model, optimizer, loader = PrivacyEngine().make_private(
    module=network,
    optimizer=torch.optim.Adam(adapters, lr=0.02),
    data_loader=DataLoader(TensorDataset(texts[:, :-1], texts[:, 1:]), batch_size=32),
    noise_multiplier=1.1,
    max_grad_norm=0.1,
)


def train_batch(tokens: torch.Tensor, following: torch.Tensor) -> None:
    """Takes a step on a batch, whose loss is the mean over examples of the mean loss of an example's tokens.

    Args:
      tokens: (batch, length), the tokens of the texts without the last.
      following: (batch, length), the token after each of these.
    """
    optimizer.zero_grad()
    logits = model(tokens)
    # PyTorch takes logits with the classes first: (batch, TOKENS, length).
    losses = functional.cross_entropy(logits.transpose(1, 2), following, reduction="none")
    example_losses = losses.mean(1)
    example_losses.mean().backward()
    optimizer.step()


for _ in range(3):
    for tokens, following in loader:
        train_batch(tokens, following)

# The check: its step is `train_batch`.

step = audit.TorchStep(model, optimizer, train_batch)
params = step.params
batch = texts[:32, :-1], texts[:32, 1:]
stated: dict[str, Any] = {
    "clipping_norm": 0.1,
    "noise_multiplier": 1.1,
    "learning_rate": 1,  # TorchStep returns the private gradient itself
    "batch_size": optimizer.expected_batch_size,  # as Opacus rounds it
}

if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
