# ruff: noqa: E501
"""Bugs for the examples of `check`: (the bug, the code that it replaces, its code, its check)."""

from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "experiments" / "examples"
STEPS = Path(__file__).resolve().parent / "steps"
NUMPY = [
    ("no clipping", " / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)", "", "sensitivity"),
    ("number by number", "gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)",
     "np.clip(gradients, -1.5, 1.5)", "sensitivity"),
    ("bias outside the norm", "np.linalg.norm(gradients,", "np.linalg.norm(gradients[:, :8],", "sensitivity"),
    ("each twice", "clipped.sum(axis=0)", "2 * clipped.sum(axis=0)", "sensitivity"),
    ("divided twice", "clipped.sum(axis=0)", "clipped.sum(axis=0) / 32", "sensitivity"),
    ("the mean is clipped", "clipped.sum(axis=0)",
     "32 * (g := gradients.mean(axis=0)) / max(1, np.linalg.norm(g) / 1.5)", "sensitivity"),
    ("actual size", "/ 32\n", "/ len(x)\n", "noise and data"),
    ("standardised", "x, y = batch\n", "x, y = batch\n    x = x - x.mean(axis=0)\n", "separation"),
    ("sigma without C", "1.1 * 1.5 * np", "1.1 * np", "noise"),
    ("noise by sqrt(B)", "1.1 * 1.5 * np", "1.1 * 1.5 / 32**0.5 * np", "noise"),
    ("noise after the mean", "clipped.sum(axis=0) + noise) / 32", "clipped.sum(axis=0) / 32 + noise)", "noise"),
    ("no noise on b", 'mean[8:]}', '(clipped.sum(axis=0) / 32)[8:]}', "noise"),
    ("variance for deviation", "1.1 * 1.5 * np", "(1.1 * 1.5) ** 2 * np", "noise"),
    ("noise clipped", "size=9)", "size=9).clip(-2, 2)", "shape"),
    ("uniform", ".normal(size=9)", ".uniform(-(3**0.5), 3**0.5, size=9)", "shape"),
    ("one number", ".normal(size=9)", ".normal() * np.ones(9)", "independence"),
    ("seed fixed", "default_rng(seed)", "default_rng(0)", "independence"),
    ("seed of two steps", "default_rng(seed)", "default_rng(seed // 2)", "independence"),
    ("no seed", "default_rng(seed)", "default_rng()", "replay"),
    ("scaled by the batch", "1.1 * 1.5 * np", "1.1 * np.max(abs(x), initial=1) * np", "noise and data"),
    ("skipped when empty", "x, y = batch\n", "x, y = batch\n    if len(x) == 0:\n        return params\n", "empty batch"),
    ("NaN when empty", "/ 32\n", "/ 32 * (len(x) / len(x) if len(x) else np.nan)\n", "empty batch"),
    ("noise an example", ".normal(size=9)", ".normal(size=(len(x), 9)).sum(axis=0)", "noise and data"),
    ("one draw added by each of 3 workers", "noise = 1.1", "noise = 3 * 1.1", "noise"),
    ("one generator for 3 workers' shards", ".normal(size=9)", ".normal(size=3)[np.arange(9) % 3]", "independence"),
    ("antithetic halves", ".normal(size=9)", ".normal(size=5)[np.arange(9) % 5] * np.where(np.arange(9) < 5, 1, -1)",
     "independence"),
    ("this step's noise and the next one's", "np.random.default_rng(seed).normal(size=9)",
     "sum(np.random.default_rng(seed + i).normal(size=9) for i in (0, 1)) / 2**0.5", "independence"),
    ("seeded by the batch", "default_rng(seed)", "default_rng([seed, len(x)])", "sensitivity"),
    ("padding that counts", "x, y = batch\n",
     "more = -len(batch[0]) % 64\n    x = np.pad(batch[0], ((0, more), (0, 0)), constant_values=1)\n"
     "    y = np.pad(batch[1], (0, more))\n", "sensitivity"),
    ("classes weighted by the batch", "clipped.sum(axis=0)",
     "(clipped * (0.5 / np.where(y, y.mean(), 1 - y.mean()).clip(0.2))[:, None]).sum(axis=0)", "separation"),
    ("pairs clipped as one", "    clipped = gradients", "    if len(x):\n        sums = np.add.reduceat(gradients, "
     "np.arange(0, len(x), 2))\n        gradients = np.repeat(sums, 2, axis=0)[: len(x)] / 2\n"
     "    clipped = gradients", "separation"),
    ("noise where the gradient is", "size=9)\n", "size=9) * (clipped.sum(axis=0) != 0)\n", "empty batch"),
    ("Laplace's noise", ".normal(size=9)", ".laplace(scale=0.5**0.5, size=9)", "shape"),
    ("divided by 4 workers again", "/ 32\n", "/ 32 / 4\n", "sensitivity"),
]  # fmt: skip
TORCH_FUNC = [
    ("layers by themselves", "factors = (1.5 / norms).clamp(max=1)\n",
     "gradients = {k: g * (1.5 / g.flatten(1).norm(dim=1)).clamp(max=1).view(-1, *[1] * (g.ndim - 1)) "
     "for k, g in gradients.items()}\n    factors = torch.ones(len(norms))\n", "sensitivity"),
    ("head left out", "for g in gradients.values()).sqrt()",
     'for k, g in gradients.items() if not k.startswith("2")).sqrt()', "sensitivity"),
    ("the largest number for the norm", "g.flatten(1).square().sum(1) for", "g.flatten(1).square().amax(1) for",
     "sensitivity"),
    ("max for min", ".clamp(max=1)", ".clamp(min=1)", "sensitivity"),
    ("a generator a layer", "generator=generator)", "generator=torch.Generator().manual_seed(seed))", "independence"),
    ("rows share noise", "torch.randn(value.shape, generator=generator)",
     "torch.randn(value.shape[-1:], generator=generator).expand(value.shape)", "independence"),
    ("one number for each bias", "torch.randn(value.shape, generator=generator)",
     "torch.randn(value.shape if value.ndim > 1 else 1, generator=generator).expand(value.shape)", "independence"),
    ("no noise in biases", "1.5 * noise", '1.5 * noise * ("bias" not in name)', "noise"),
    ("by accumulated batches", "1.5 * noise", "1.5 * noise / 4", "noise"),
    ("uniform", "torch.randn(", "2 * 3**0.5 * torch.rand(", "shape"),
    ("median for C", "(1.5 / norms)", "((norms.median() / 2).clamp(max=1.5) / norms)", "separation"),
    ("loss divided", "y[None])\n", "y[None]) / len(batch[0])\n", "separation"),
    ("one generator for 3 workers' rows", "torch.randn(value.shape, generator=generator)",
     "torch.randn(len(value) // 3, *value.shape[1:], generator=generator).repeat(3, *[1] * (value.ndim - 1))",
     "independence"),
    ("the mean square for the norm", "g.flatten(1).square().sum(1) for", "g.flatten(1).square().mean(1) for",
     "sensitivity"),
]  # fmt: skip
OPACUS = [
    ("layers by themselves", "max_grad_norm=1.5", 'max_grad_norm=[1.5] * 4, clipping="per_layer"', "sensitivity"),
    ("actual size", "    torch.manual_seed(seed)\n",
     "    torch.manual_seed(seed)\n    optimizer.expected_batch_size = max(len(batch[0]), 1)\n", "noise and data"),
    ("noise a physical batch", "            optimizer.step()",
     "            optimizer._step_skip_queue.clear()\n            optimizer.step()", "noise and data"),
    ("too little noise", "torch.manual_seed(seed)", "torch.manual_seed(seed); optimizer.noise_multiplier = 0.55", "noise"),
    ("no noise", "torch.manual_seed(seed)", "torch.manual_seed(seed); optimizer.noise_multiplier = 0", "noise"),
    ("seed fixed", "torch.manual_seed(seed)", "torch.manual_seed(1)", "independence"),
    ("no seed", "torch.manual_seed(seed)", "pass", "replay"),
    ("centred", "model(x)", "model(x - x.mean(0) if len(x) else x)", "separation"),
    ("another expected size", "torch.manual_seed(seed)",
     "torch.manual_seed(seed); optimizer.expected_batch_size = 16", "sensitivity"),
    ("parameters kept", "    model.load_state_dict(params)\n", "", "replay"),
    ("clipping off", "max_grad_norm=1.5", "max_grad_norm=1e9", "noise"),
    ("clipped later", "torch.manual_seed(seed)",
     "torch.manual_seed(seed); optimizer.max_grad_norm = 1e5; optimizer.noise_multiplier = 1.65e-5", "sensitivity"),
]  # fmt: skip
JAX_PRIVACY = [
    ("no clipping", "l2_clip_norm=1.5", "l2_clip_norm=1e9", "noise"),
    ("half the noise", "1.1 * clipped.sensitivity()", "0.55 * clipped.sensitivity()", "noise"),
    ("noise without C / B", "1.1 * clipped.sensitivity()", "1.1", "noise"),
    ("sensitivity of no division", "normalize_by=32.0", "normalize_by=1.0", "sensitivity"),
    ("one key for all layers", "jax.random.normal(key,", "jax.random.normal(jax.random.key(seed),", "independence"),
    ("key fixed", "jax.random.key(seed)", "jax.random.key(0)", "independence"),
    ("one number a layer", "jax.random.normal(key, value.shape)", "jax.random.normal(key, ())", "independence"),
    ("truncated", "jax.random.normal(key, value.shape)",
     "jax.random.truncated_normal(key, -2, 2, value.shape)", "shape"),
    ("noise on the kernel", "+ noise)", '+ noise * (name == "kernel"))', "noise"),
    ("actual size", "(gradients[name] + noise)",
     "(gradients[name] + noise) * 32 / max(len(batch[0]), 1)", "noise and data"),
]  # fmt: skip
BUGS = [
    (example, *bug)
    for example, bugs in (
        ("numpy", NUMPY), ("torch_func", TORCH_FUNC), ("opacus", OPACUS), ("jax_privacy", JAX_PRIVACY)
    )
    for bug in bugs
]  # fmt: skip


def plant_bug(example, old="", new=""):
    """Returns the arguments of check_step, of an example in which `new` replaces `old`."""
    path = EXAMPLES / f"check_{example}.py"
    if not path.exists():
        path = STEPS / path.name
    source = path.read_text()
    assert old in source, (example, old)
    names = {"__name__": "check"}
    exec(compile(source.replace(old, new), str(path), "exec"), names)
    arguments = {name: names[name] for name in ("step", "params", "batch")}
    return arguments | names["stated"]
