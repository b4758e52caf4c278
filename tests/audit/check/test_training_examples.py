"""Whole training runs whose step is wrapped for the check: they pass, and bugs planted in them do not."""

import pytest

import audit
from tests.audit.check.bugs import plant_bug

pytestmark = pytest.mark.slow
SEEDS = 200

NOISE_IN_EVERY_PART = """optimizer.step()
            for p in head.parameters():
                if p.summed_grad is not None:
                    p.summed_grad.add_(0.55 * torch.randn_like(p))"""
UNCLIPPED_A = '(p.grad + p.grad_sample.sum(0) / 32 if "lora_a" in name else p.grad)'
BUGS = {
    "noise in every part": (
        "train",
        "optimizer.step()",
        NOISE_IN_EVERY_PART,
        "noise of 2",
    ),
    "actual size": (
        "train",
        "torch.manual_seed(seed)",
        "torch.manual_seed(seed); optimizer.expected_batch_size = max(len(batch[0]), 1)",
        "actual size",
    ),
    "centred by the batch": (
        "train",
        "model(x)",
        "model(x - x.mean(0))",
        "examples change each other's gradients",
    ),
    "dropout stays on": ("train", "module.p = 0.0", "module.p = 0.1", "is dropout on?"),
    "Adam's parameters": (
        "train",
        "name: p.grad",
        "name: p.detach().clone()",
        "return the private gradient",
    ),
    "adapter A unclipped": (
        "lora",
        "p.grad for",
        f"{UNCLIPPED_A} for",
        "One example moves the step by 8",
    ),
    "B at zero": ("lora", "in range(3)", "in range(0)", "lora_a"),
    "one seed": (
        "lora",
        "torch.manual_seed(seed)",
        "torch.manual_seed(1)",
        "are the same for every seed",
    ),
    "no noise on B": (
        "lora",
        "optimizer.step()",
        "optimizer.step()\n"
        "    for p in optimizer.params[1::2]:\n"
        "        p.grad = p.summed_grad / 32",
        "no noise",
    ),
    "logits centred by the batch": (
        "lora",
        "logits = model(tokens)",
        "logits = model(tokens); logits = logits - logits.sum(0) / 32",
        "examples change each other's gradients",
    ),
}


@pytest.mark.parametrize("example", ["train", "lora"])
def test_a_training_run_passes(example):
    pytest.importorskip("opacus")
    report = audit.check_step(**plant_bug(example), seeds=SEEDS)
    assert report.passed, report
    assert {check.result for check in report.checks} == {"passed"}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_a_training_run_is_named(name):
    pytest.importorskip("opacus")
    example, old, new, says = BUGS[name]
    report = audit.check_step(**plant_bug(example, old, new), seeds=SEEDS)
    assert not report.passed and says in " ".join(str(report).split()), report
