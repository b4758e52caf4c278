"""Tests training runs whose step is wrapped for the check, with and without bugs."""

import pytest

import audit
from tests.audit.check.bugs import plant_bug

pytestmark = pytest.mark.slow
SEEDS = 200

NOISE_IN_EVERY_PART = """optimizer.step()
            for p in head.parameters():
                if p.summed_grad is not None:
                    p.summed_grad.add_(0.55 * torch.randn_like(p))"""
UNCLIPPED_A = """    optimizer.step()
    for name, p in model.named_parameters():
        if "lora_a" in name:
            p.grad = p.grad + p.grad_sample.sum(0) / 32
"""
PARAMETERS = """params = step.params
gradient = step
step = lambda *given: gradient(*given) and {
    name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad
}
"""
BUGS = {
    "noise in every part": (
        "train",
        "optimizer.step()",
        NOISE_IN_EVERY_PART,
        "noise of 2",
    ),
    "actual size": (
        "train",
        "    train_epoch(single)",
        "    optimizer.expected_batch_size = max(len(x), 1)\n    train_epoch(single)",
        "actual size",
    ),
    "centred by the batch": (
        "train",
        "model(x)",
        "model(x - x.mean(0))",
        "examples change each other's gradients",
    ),
    "dropout that is no module": (
        "train",
        "model(x)",
        "model(torch.nn.functional.dropout(x, 0.1))",
        "is dropout on?",
    ),
    "Adam's parameters": (
        "train",
        "params = step.params\n",
        PARAMETERS,
        "return `p.grad` after clipping and noise",
    ),
    "adapter A unclipped": (
        "lora",
        "    optimizer.step()\n",
        UNCLIPPED_A,
        "Movements are not limited to C",
    ),
    "B at zero": ("lora", "in range(3)", "in range(0)", "lora_a"),
    "one seed": (
        "lora",
        "    logits = model(tokens)",
        "    torch.manual_seed(1)\n    logits = model(tokens)",
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
        "outputs = model(tokens)\n    logits = (outputs - outputs.sum(0) / 32)",
        "examples change each other's gradients",
    ),
}


@pytest.mark.parametrize("example", ["train", "lora"])
def test_a_training_run_passes(example):
    pytest.importorskip("opacus")
    report = audit.check_step(**plant_bug(example), seeds=SEEDS)
    assert report.passed, report
    assert {check.result for check in report.checks} == {"passed"}


def test_a_training_run_keeps_its_dropout():
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    seen = []

    def train_batch(x):
        seen.append(network[0].p)
        network(x).sum().backward()

    step = audit.TorchStep(network, optimizer, train_batch)
    gradients = step(step.params, (torch.ones(4, 3),), 0)
    assert seen == [0.0] and network[0].p == 0.25 and set(gradients) == {"1.weight", "1.bias"}


@pytest.mark.parametrize("model", [3, "frozen"])
def test_what_has_nothing_to_train_is_no_step(model):
    torch = pytest.importorskip("torch")
    given = torch.nn.Linear(2, 2).requires_grad_(False) if model == "frozen" else model
    with pytest.raises(audit.InputError, match="give"):
        audit.TorchStep(given, None, print)


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_in_a_training_run_is_named(name):
    pytest.importorskip("opacus")
    example, old, new, says = BUGS[name]
    report = audit.check_step(**plant_bug(example, old, new), seeds=SEEDS)
    assert not report.passed and says in " ".join(str(report).split()), report


def make_small_step(train=None):
    """Returns a TorchStep of a linear model with a running mean, trained by Opacus's optimizer."""
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 2)
            self.register_buffer("running_mean", torch.zeros(6))

        def forward(self, x):
            if train is None and len(x):
                self.running_mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
            return self.linear(x)

    torch.manual_seed(0)
    model = opacus.GradSampleModule(Counting(), strict=False)
    optimizer = opacus.optimizers.DPOptimizer(
        torch.optim.Adam(model.parameters()),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=16,
    )

    def once(x, y):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    batch = torch.randn(16, 6), torch.randint(0, 2, (16,))
    given = {"clipping_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 1, "batch_size": 16}
    step = audit.TorchStep(model, optimizer, train(once) if train else once)
    return {"step": step, "params": step.params, "batch": batch, **given}


def test_a_buffer_that_the_data_change_is_named():
    (finding,) = audit.check_step(**make_small_step(), seeds=SEEDS).findings
    assert finding.name.endswith("running_mean is released with the model and has no noise")


def test_several_private_steps_for_a_batch_are_refused():
    def four(once):
        return lambda x, y: [once(x[i::4], y[i::4]) for i in range(4)]

    with pytest.raises(audit.InputError, match="takes 4 private steps for one batch"):
        audit.check_step(**make_small_step(four), seeds=SEEDS)
