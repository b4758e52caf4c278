"""Tests steps as users write them: rates by layer, masks, seeds by layer, and torch training code."""

import numpy as np
import pytest

import audit

SIGMA = 1.0
NORM = 0.5
SHAPES = {"hidden": (6, 8), "output": (8, 3)}


def compute_gradients(params, x, y):
    """Returns per-example gradients of a tanh network with softmax cross entropy, keyed by layer."""
    hidden = np.tanh(x @ params["hidden"])
    logits = hidden @ params["output"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    error = odds / odds.sum(axis=1, keepdims=True) - np.eye(3)[y]
    inner = (error @ params["output"].T) * (1 - hidden**2)
    return {
        "hidden": x[:, :, None] * inner[:, None, :],
        "output": hidden[:, :, None] * error[:, None, :],
    }


def check(rates=(1.0, 1.0), deviations=(1.0, 1.0), offset=None, parts=1, mask=None):
    """Checks a step with learning rates and noise by layer, and noise drawn for each part of a batch."""
    rng = np.random.default_rng(5)
    params = {name: rng.normal(size=shape) for name, shape in SHAPES.items()}
    batch = [rng.normal(size=(24, 6)), rng.integers(0, 3, 24)]
    if mask is not None:
        batch.insert(mask, np.ones(24))

    def step(params, batch, seed):
        used = np.ones(len(batch[0]))
        if mask is not None:
            batch = list(batch)
            used = batch.pop(mask)
        gradients = compute_gradients(params, *batch)
        norms = np.sqrt(sum(np.sum(g**2, axis=(1, 2)) for g in gradients.values()))
        factors = used * np.minimum(1, NORM / np.maximum(norms, 1e-12))
        generator = np.random.default_rng(seed)
        count = 1 if parts == 1 else -(-len(used) * parts // 24)
        moved = {}
        for i, (name, gradient) in enumerate(gradients.items()):
            if offset is not None:
                generator = np.random.default_rng(seed + offset * i)
            noise = generator.normal(size=(count, *SHAPES[name])).sum(axis=0)
            total = np.tensordot(factors, gradient, 1) + SIGMA * NORM * deviations[i] * noise
            moved[name] = params[name] - rates[i] * total / 24
        return moved

    stated = {
        "clipping_norm": NORM,
        "noise_multiplier": SIGMA,
        "learning_rate": 1,
        "batch_size": 24,
    }
    return audit.check_step(step, params, batch, **stated, seeds=180)


@pytest.mark.parametrize("rates", [(0.1, 1), (1, 2), (10, 1)])
def test_learning_rates_by_layer_could_not_be_tried(rates):
    report = check(rates=rates)
    assert not report.findings
    assert "layers are rescaled after the noise" in report.verdict


@pytest.mark.parametrize("deviations", [(0.5, 1), (1, 0.1), (1.3, 0.6)])
def test_layers_with_less_noise_are_not_mistaken_for_learning_rates(deviations):
    report = check(deviations=deviations)
    named = report.verdict.removeprefix("FAILED: noise of ").split()[0]
    assert float(named) == pytest.approx(min(deviations), rel=0.05)


@pytest.mark.parametrize("mask", [1, 2])
def test_a_mask_of_floats_is_not_scaled(mask):
    assert not check(mask=mask).findings


@pytest.mark.parametrize("offset", [1, 100])
def test_a_layer_that_repeats_the_noise_of_a_later_step_is_found(offset):
    assert "noise of consecutive steps is related" in check(offset=offset).verdict


def test_noise_for_each_part_of_a_batch_is_not_called_missing_clipping():
    finding = check(parts=3).findings[0]
    assert finding.name == "noise that depends on the batch"


def check_torch(change=None, optimizer=None, extra=None, after=True):
    """Checks Opacus code; `change(torch, model, optimizer, y)` runs before or after its step."""
    torch = pytest.importorskip("torch")
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    model = opacus.GradSampleModule(torch.nn.Linear(6, 3), strict=False)
    if extra is not None:
        extra(torch, model)
    make = optimizer or (lambda parameters: torch.optim.Adam(parameters))
    trained = [p for p in model.parameters() if p.requires_grad]
    private = opacus.optimizers.DPOptimizer(
        make(trained), noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=16
    )

    def train_batch(x, y):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        if change and not after:
            change(torch, model, private, y)
        private.step()
        if change and after:
            change(torch, model, private, y)
        private.zero_grad()

    step = audit.TorchStep(model, private, train_batch)
    batch = torch.randn(16, 6), torch.randint(0, 3, (16,))
    stated = {"clipping_norm": 0.5, "noise_multiplier": 1.0, "learning_rate": 1, "batch_size": 16}
    return audit.check_step(step, step.params, batch, **stated, seeds=48)


def add_average(torch, model):
    model.register_buffer("average", model._module.weight.detach().clone())


def add_counts(torch, model):
    model.register_buffer("counts", torch.zeros(3, dtype=torch.long))


def add_prototype(torch, model):
    model.prototype = torch.nn.Parameter(torch.zeros(3), requires_grad=False)


def update_average(torch, model, private, y):
    model.average.lerp_(model._module.weight.detach(), 0.01)


def count_labels(torch, model, private, y):
    model.counts += torch.bincount(y, minlength=3)


def update_prototype(torch, model, private, y):
    model.prototype.data += torch.bincount(y, minlength=3)


def lower_noise(torch, model, private, y):
    private.noise_multiplier *= 0.99


def nesterov(parameters):
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, foreach=True)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, id="zero_grad at the end"),
        pytest.param({"optimizer": nesterov}, id="gradients changed in place"),
        pytest.param({"change": lower_noise}, id="noise scheduler"),
        pytest.param({"extra": add_average, "change": update_average}, id="average of the model"),
    ],
)
def test_correct_torch_code_passes(given):
    report = check_torch(**given)
    assert report.passed, report


@pytest.mark.parametrize(
    ("extra", "change", "after"),
    [
        (add_counts, count_labels, True),
        (add_counts, count_labels, False),
        (add_prototype, update_prototype, False),
    ],
)
def test_state_that_reveals_labels_is_named(extra, change, after):
    report = check_torch(change, extra=extra, after=after)
    name = extra.__name__.removeprefix("add_")
    assert f"{name} is released with the model and has no noise" in report.verdict
