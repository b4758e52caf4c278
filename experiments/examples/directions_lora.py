"""Audits a language model with LoRA in one training run, with PEFT and Opacus.

./run.sh python experiments/examples/directions_lora.py

Install the requirements with `.venv/bin/pip install torch opacus peft transformers`. The model is the size of
GPT-2 and has random weights, so nothing is downloaded. For real weights, replace the two lines marked REAL
WEIGHTS.

Every step adds 500 random directions, each of norm C, to the sum of the adapters' clipped gradients. If a
direction is not added, its cosine with the adapters' movement has a known distribution, so one run is enough.
With several data-parallel workers, use DirectionsOptimizer only in the rank-0 worker.
"""

import warnings

import torch
from opacus import PrivacyEngine
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import audit
from audit.opacus_canary import DirectionsOptimizer

SEED = 2024  # secret: training does not use it
CANARIES = 500
LENGTH = 16
BATCH_SIZE = 8
STEPS = 25
CLIPPING_NORM = 1.0
NOISE_MULTIPLIER = 1.265  # epsilon 24.0 for 25 steps, if every model is released


def make_model() -> torch.nn.Module:
    """Returns a GPT-2 with frozen weights and trainable adapters on its attention layers."""
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config())  # REAL WEIGHTS: GPT2LMHeadModel.from_pretrained("gpt2")
    adapters = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(network, adapters).train()


def make_texts(vocabulary: int) -> torch.Tensor:
    """Returns the tokens of the training texts, (texts, LENGTH + 1)."""
    # REAL WEIGHTS: return your own tokens.
    return torch.randint(vocabulary, (STEPS * BATCH_SIZE, LENGTH + 1))


def main() -> None:
    """Trains the adapters once with canaries, prints the bounds, and writes a page of results."""
    warnings.filterwarnings("ignore")
    network = make_model()
    chosen = audit.choose_tensors(dict(network.named_parameters()), CANARIES, within="*lora_*")
    tensors = [network.get_parameter(name) for name in chosen.names]
    print(f"directions in {chosen}")

    texts = TensorDataset(make_texts(network.config.vocab_size))
    trained = [p for p in network.parameters() if p.requires_grad]
    model, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.AdamW(trained, lr=1e-3),
        data_loader=DataLoader(texts, batch_size=BATCH_SIZE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIPPING_NORM,
    )
    optimizer = DirectionsOptimizer(optimizer, SEED, run=0, count=CANARIES, parameters=tensors)

    for step, (tokens,) in enumerate(loader, 1):
        optimizer.zero_grad()
        logits = model(input_ids=tokens[:, :-1]).logits.transpose(1, 2)  # (batch, words, LENGTH)
        functional.cross_entropy(logits, tokens[:, 1:]).backward()
        optimizer.step()
        print(f"step {step} of {STEPS}", end="\r", flush=True)

    # For each canary, `leave_one_out` removes the other canaries' directions from the movement.
    cosines = optimizer.cosines(leave_one_out=True)
    result = audit.bounds(
        audit.cosines([cosines], optimizer.dimension, leave_one_out=True),
        claim=audit.DpSgd(NOISE_MULTIPLIER, insertions=STEPS),
        name="GPT-2 with LoRA, one training run with Opacus",
    )
    print(result)
    print(f"report: {result.report('page.html')}")


if __name__ == "__main__":
    main()
