"""A typical training run with Opacus. Check it: ./run.sh check --example=train

The run uses AdamW, a learning rate schedule, dropout, frozen layers and gradient accumulation. Replace the
model and the data with your own, and keep the definitions for the check at the end of the file.
"""

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

import audit

# Training.

torch.manual_seed(0)
torch.set_num_threads(1)  # small matrix products are faster on one thread
body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())
head = torch.nn.Sequential(
    torch.nn.Dropout(0.1),
    torch.nn.Linear(16, 8),
    torch.nn.Tanh(),
    torch.nn.Dropout(0.1),
    torch.nn.Linear(8, 3),
)
body.requires_grad_(False)
network = torch.nn.Sequential(body, head)
dataset = TensorDataset(torch.randn(320, 8), torch.randint(3, (320,)))
model, optimizer, loader = PrivacyEngine().make_private(
    module=network,
    optimizer=torch.optim.AdamW(head.parameters(), lr=0.01, weight_decay=0.01),
    data_loader=DataLoader(dataset, batch_size=32),
    noise_multiplier=1.1,
    max_grad_norm=0.5,
)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


def train_epoch(batches: Any) -> None:
    """Trains on each batch of a loader.

    To save memory, Opacus computes the gradients of at most 10 examples at a time. The optimizer updates the
    model after the last part of a batch.
    """
    manager = BatchMemoryManager(
        data_loader=batches,
        max_physical_batch_size=10,
        optimizer=optimizer,
    )
    with manager as parts:
        for x, y in parts:
            optimizer.zero_grad()  # keeps clipped gradients of earlier parts
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()  # only accumulates clipped gradients until the last part


for _ in range(3):
    train_epoch(loader)
    schedule.step()

# Check.


def train_batch(x: torch.Tensor, y: torch.Tensor) -> None:
    """Trains on one given batch (features x, labels y) instead of batches from the Poisson sampler."""
    all_rows = list(range(len(x)))
    single = DataLoader(
        TensorDataset(x, y),
        batch_sampler=[all_rows],
        collate_fn=loader.collate_fn,  # Opacus' function supports empty batches
    )
    train_epoch(single)


step = audit.TorchStep(model, optimizer, train_batch)
params = step.params
batch = torch.randn(32, 8), torch.randint(3, (32,))
stated: dict[str, Any] = {
    "clipping_norm": 0.5,
    "noise_multiplier": 1.1,
    "learning_rate": 1,  # TorchStep returns the private gradient
    "batch_size": optimizer.expected_batch_size,  # rounded by Opacus
}
