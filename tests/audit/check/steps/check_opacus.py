"""A step of Opacus, as `PrivacyEngine.make_private` sets it up, in physical batches of at most 10 by its
BatchMemoryManager. ./run.sh check --example=opacus"""

from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

import audit

torch.manual_seed(0)
torch.set_num_threads(1)  # its matrix products are too small to share among threads
network = torch.nn.Sequential(
    torch.nn.Linear(8, 6),
    torch.nn.Tanh(),
    torch.nn.Linear(6, 3),
)
dataset = TensorDataset(torch.randn(320, 8), torch.randint(3, (320,)))
model, optimizer, poisson = PrivacyEngine().make_private(
    module=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
    data_loader=DataLoader(dataset, batch_size=32),
    noise_multiplier=1.1,
    max_grad_norm=1.5,
)
params = {name: value.detach().clone() for name, value in model.named_parameters()}
features = torch.randn(32, 8)
labels = torch.randint(3, (32,))
batch = features, labels
stated: dict[str, Any] = {
    "clipping_norm": 1.5,
    "noise_multiplier": 1.1,
    "learning_rate": 0.5,
    "batch_size": 32,
}


def step(params: Any, batch: Any, seed: int) -> Any:
    """Returns the parameters after a step of Opacus' own optimizer.

    Opacus computes the gradients in parts of at most 10 examples, and moves the model after the last part.

    Args:
      params: The parameters before the step, by name.
      batch: Features (n, 8) and labels (n,), in place of the batch that the Poisson sampler would draw.
      seed: The seed of the noise.
    """
    model.load_state_dict(params)
    torch.manual_seed(seed)
    # A loader whose only batch is `batch`.
    all_rows = list(range(len(batch[0])))
    loader = DataLoader(
        TensorDataset(*batch),
        batch_sampler=[all_rows],
        collate_fn=poisson.collate_fn,  # Opacus' own: it can make a batch of no examples too
    )
    manager = BatchMemoryManager(
        data_loader=loader,
        max_physical_batch_size=10,
        optimizer=optimizer,
    )
    with manager as parts:
        for x, y in parts:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()  # before the last part it only adds to the sum of clipped gradients
    return dict(model.named_parameters())


if __name__ == "__main__":
    print(audit.check_step(step, params, batch, **stated))
