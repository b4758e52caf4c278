# ruff: noqa: E501
"""Bugs for steps of six engines: (the bug, the code that it replaces, its code, the expected finding)."""

MISSED = "clipping that misses some examples"
ROWS = "rows of the batch that are not clipped"
INTERACT = "examples change each other's gradients"
SIZE = "a step of a different size than stated"
GRID = "noise on a grid, added to a sum that is not"
ADAM = "this looks like Adam"
DROPOUT = "is dropout on?"
NOT_NORMAL = "noise that is not normal"
NOT_SEEN = "clipping was not seen"
NORM = "left out of the clipping norm"
SEVERAL_SEEDS = "the same noise for several seeds"
EVERY_SEED = "the same noise for every seed"
SKIPPED = "steps with an empty batch are skipped"

NUMPY = [
    ("the first row is not clipped", "    noise =", "    clipped[:1] = gradients[:1]\n    noise =", ROWS),
    ("every fourth row is not clipped", "    noise =", "    clipped[1::4] = gradients[1::4]\n    noise =", ROWS),
    ("the last row of 32 is not clipped", "    noise =", "    clipped[31:32] = gradients[31:32]\n    noise =", ROWS),
    ("the sum of 32 rows is clipped", "clipped.sum(axis=0)",
     "(s := gradients.reshape(32, 9).sum(0)) / max(1, np.linalg.norm(s) / 1.5)", INTERACT),
    ("whole fours are clipped as one", "    clipped = gradients",
     "    gradients = gradients.reshape(-1, 4, 9).sum(1)\n    clipped = gradients", INTERACT),
    ("noise on eighths", ".normal(size=9)", ".normal(size=9).__mul__(8).round() / 8", GRID),
    ("noise in float16", ".normal(size=9)", ".normal(size=9).astype(np.float16)", GRID),
    ("noise rounded to quarters", "    mean =", "    noise = np.round(4 * noise) / 4\n    mean =", GRID),
    ("noise cut at three deviations", ".normal(size=9)", ".normal(size=9).clip(-3, 3)", "noise that is clamped"),
    ("31 for 32", "/ 32\n", "/ 31\n", "B = 31 instead of the stated 32"),
    ("the sum by four batches", "clipped.sum(axis=0)", "clipped.sum(axis=0) / 4", "divided by 4 accumulated batches"),
    ("noise 4% too small", "1.1 * 1.5 * np", "0.96 * 1.1 * 1.5 * np", "noise of 0.96"),
    ("the sign", "    return {", "    mean = np.sign(mean)\n    return {", ADAM),
    ("Adam's first step", "    return {", "    mean = mean / (abs(mean) + 1e-8)\n    return {", ADAM),
    ("Adam's later step", "    return {", "    v = np.linspace(1e-4, 1e-2, 9)\n"
     "    mean = 0.1 * mean / np.sqrt(0.999 * v + 0.001 * mean**2)\n    return {", "return the noisy sum"),
    ("b is not in the norm", "np.linalg.norm(gradients,", "np.linalg.norm(gradients[:, :8],", f"b {NORM}"),
    ("clipped to 1.55", "keepdims=True) / 1.5)", "keepdims=True) / 1.55)", "clipped to 1.033 times the stated C"),
    ("clipping starts at 1.5 C", "np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)",
     "np.where((n := np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5) > 1.5, n, 1)", MISSED),
    ("positive labels are not clipped", "    noise =", "    clipped[y > 0] = gradients[y > 0]\n    noise =", MISSED),
    ("an odd row is dropped", "    noise =", "    clipped = clipped[: len(x) // 2 * 2]\n    noise =", "moves the step by more than C"),
    ("noise shrinks with the features", "1.1 * 1.5 * np", "1.1 * 1.5 * min(1, 2 * abs(x).mean() if len(x) else 1) * np",
     "noise that depends on the batch"),
    ("squashed and not clipped", "    clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / 1.5)",
     "    gradients[:, :8] = np.tanh(gradients[:, :8]) / 9\n    clipped = gradients", NOT_SEEN),
    ("noise by labels", "1.1 * 1.5 * np", "1.1 * 1.5 * (0.5 + y.sum() / 32) * np", "noise that depends on the batch"),
    ("no data", "clipped.sum(axis=0)", "0 * clipped.sum(axis=0)", "no example changes anything"),
    ("a variance for a deviation", "1.1 * 1.5 * np", "(1.1 * 1.5) ** 0.5 * np", "the root of sigma C"),
    ("a mean of weights", "    return {", "    mean = 0.01 * mean\n    return {", SIZE),
    ("each twice", "clipped.sum(axis=0)", "2 * clipped.sum(axis=0)", "an example that counts 2 times"),
    ("divided twice", "clipped.sum(axis=0)", "clipped.sum(axis=0) / 32", "divided by the batch size twice"),
    ("noise after the mean", "(clipped.sum(axis=0) + noise) / 32", "clipped.sum(axis=0) / 32 + noise", "not divided by the batch"),
    ("three workers", "noise = 1.1", "noise = 3 * 1.1", "one draw added 3 times, by workers with one generator"),
]  # fmt: skip
TORCH_FUNC = [
    ("noise in float16", "generator=generator)\n", "generator=generator).half().float()\n", GRID),
    ("a layer's seed is the next step's", "generator=generator)\n",
     "generator=torch.Generator().manual_seed(seed + list(gradients).index(name)))\n", "noise of consecutive steps is related"),
    ("two rows share noise", "        total =", "        noise[1] = noise[0]\n        total =", "noise shared by several parameters"),
    ("clipping starts at 1.3 C", "(1.5 / norms).clamp(max=1)", "torch.where(norms > 1.3 * 1.5, 1.5 / norms, 1.0)", MISSED),
    ("noise in bfloat16", "generator=generator)\n", "generator=generator).bfloat16().float()\n", GRID),
    ("dropout", "    gradients = vmap", "    torch.manual_seed(seed)\n    batch = torch.nn.functional.dropout(batch[0], 0.3), batch[1]\n"
     "    gradients = vmap", DROPOUT),
    ("biases not in the norm", "for g in gradients.values()).sqrt()",
     'for k, g in gradients.items() if "bias" not in k).sqrt()', "0.bias, 2.bias left out of"),
    ("clipped to 1.53", "(1.5 / norms)", "(1.53 / norms)", "clipped to 1.02 times the stated C"),
    ("eight rows are not clipped", "clamp(max=1)\n", "clamp(max=1)\n    factors[:8] = 1\n", ROWS),
    ("the sum by 8 workers", "torch.tensordot(factors, gradients[name], 1)", "torch.tensordot(factors, gradients[name], 1) / 8",
     "divided by 8 accumulated batches"),
    ("a tenth of the rate", "0.5 * total", "0.05 * total", "a learning rate of 0.05 instead of 0.5"),
    ("a row without noise", "        total =", "        noise[0] = 0\n        total =", "no noise in a part of"),
    ("a detached head", "    norms = sum", '    gradients["2.weight"] = 0 * gradients["2.weight"]\n    norms = sum',
     "no example moves 2.weight"),
    ("noise with heavy tails", "        total =", "        noise = noise * noise.abs() / 3**0.5\n        total =", NOT_NORMAL),
    ("the square for the norm", ".values()).sqrt()", ".values())", NOT_SEEN),
    ("scaled losses", "0.5 * total", "512 * total", "a loss scale of 1,024 that is not divided out"),
]  # fmt: skip
OPACUS = [
    ("Adam", "    torch.manual_seed(seed)\n", "    torch.manual_seed(seed)\n"
     "    optimizer.original_optimizer = torch.optim.Adam(model.parameters(), lr=0.5)\n", ADAM),
    ("dropout", "model(x)", "model(torch.nn.functional.dropout(x, 0.3))", DROPOUT),
    ("31 for 32", "torch.manual_seed(seed)", "torch.manual_seed(seed); optimizer.expected_batch_size = 31", "B = 31 instead of the stated 32"),
    ("a tenth less noise", "torch.manual_seed(seed)", "torch.manual_seed(seed); optimizer.noise_multiplier = 0.99", "noise of 0."),
    ("C of 1.6", "torch.manual_seed(seed)", "torch.manual_seed(seed); optimizer.max_grad_norm = 1.6", SIZE),
    ("2 C, noise of C", "torch.manual_seed(seed)",
     "torch.manual_seed(seed); optimizer.max_grad_norm = 3; optimizer.noise_multiplier = 0.55", "an example that counts 2 times"),
    ("a seed for two steps", "manual_seed(seed)", "manual_seed(seed // 2)", SEVERAL_SEEDS),
    ("skipped when empty", "    torch.manual_seed(seed)\n",
     "    torch.manual_seed(seed)\n    if len(batch[0]) == 0:\n        return params\n", SKIPPED),
    ("centred outputs", "model(x)", "model(x) - (model(x).mean(0) if len(x) else 0)", INTERACT),
    ("a generator made anew", "torch.manual_seed(seed)", "optimizer.generator = torch.Generator().manual_seed(3)", EVERY_SEED),
]  # fmt: skip
JAX_PRIVACY = [
    ("31 for 32", "normalize_by=32.0", "normalize_by=31.0", "B = 31 instead of the stated 32"),
    ("C of 1.6", "l2_clip_norm=1.5", "l2_clip_norm=1.6", SIZE),
    ("noise in bfloat16", "jax.random.normal(key, value.shape)", "jax.random.normal(key, value.shape, jnp.bfloat16)", GRID),
    ("uniform noise", "jax.random.normal(key, value.shape)",
     "jax.random.uniform(key, value.shape, minval=-(3**0.5), maxval=3**0.5)", NOT_NORMAL),
    ("the sum by four batches", "gradients[name] + noise", "gradients[name] / 4 + noise", "divided by 4 accumulated batches"),
    ("the sign", "(gradients[name] + noise)", "jnp.sign(gradients[name] + noise)", ADAM),
    ("Student's noise", "jax.random.normal(key, value.shape)", "0.6**0.5 * jax.random.t(key, 5.0, value.shape)", NOT_NORMAL),
    ("two rows without noise", "        after[name]", "        noise = noise.at[:2].set(0)\n        after[name]", "no noise in a part of kernel"),
    ("a detached kernel", "gradients[name] + noise", 'gradients[name] * (name == "bias") + noise', "no example moves kernel"),
    ("signs for noise", "jax.random.normal(key, value.shape)", "jax.random.rademacher(key, value.shape)", GRID),
    ("eight keys", "jax.random.key(seed)", "jax.random.key(seed % 8)", SEVERAL_SEEDS),
    ("features by the batch's largest", "clipped(params, *batch)",
     "clipped(params, 3 * batch[0] / jnp.maximum(1, jnp.abs(batch[0]).max(initial=1)), batch[1])", INTERACT),
]  # fmt: skip
TORCH = [
    ("gradients are accumulated", "        norm =",
     "        before = gradients if i == 0 else [a + b for a, b in zip(before, gradients)]\n        gradients = before\n        norm =",
     INTERACT),
    ("tensors by themselves", "            total += factor * gradient", "            total += gradient * (1.2 / gradient.norm()).clamp(max=1)",
     "clipped separately"),
    ("min for max", "clamp(max=1)", "clamp(min=1)", MISSED),
    ("sigma left out", "0.9 * 1.2", "1.2", "sigma is left out"),
    ("uniform noise", "torch.randn(value.shape, generator=generator)",
     "12**0.5 * (torch.rand(value.shape, generator=generator) - 0.5)", NOT_NORMAL),
    ("actual size", "/ 12\n", "/ max(1, len(batch[0]))\n", "normalised by the batch's actual size"),
    ("row 3 is not clipped", "        for total", "        factor = factor if i != 3 else 1\n        for total", ROWS),
    ("noise of two workers", "noise = 0.9", "noise = 2**0.5 * 0.9", "noise added 2 times"),
    ("the rate twice", "0.25 * (sums", "0.25 * 0.25 * (sums", SIZE),
    ("a generator a tensor", "        noise =", "        generator = torch.Generator().manual_seed(seed)\n        noise =",
     "noise shared by several parameters"),
    ("the sum is clipped", "    after = {}\n",
     "    s = torch.sqrt(sum(t.square().sum() for t in sums.values()))\n"
     "    sums = {k: t * (1.2 / s.clamp(min=1e-9)).clamp(max=1) for k, t in sums.items()}\n    after = {}\n", INTERACT),
]  # fmt: skip
JAX = [
    ("pairs of examples", "    sums =", "    clipped = jax.tree.map(lambda g: g.reshape(-1, 2, *g.shape[1:]).sum(1), gradients)\n"
     "    clipped = jax.vmap(lambda g: optax.projections.projection_l2_ball(g, 1.2))(clipped)\n    sums =", INTERACT),
    ("a key for all", "jax.random.normal(key,", "jax.random.normal(keys[0],", "noise shared by several parameters"),
    ("a fixed key", "jax.random.key(seed)", "jax.random.key(1)", EVERY_SEED),
    ("by sqrt(B)", "noise = 0.9", "noise = 0.25 * 0.9", "divided by an extra sqrt(B)"),
    ("C left out", "0.9 * 1.2 *", "0.9 *", "C is left out"),
    ("noise of four workers", "noise = 0.9", "noise = 2 * 0.9", "noise added 4 times"),
    ("tensors by themselves", "optax.projections.projection_l2_ball(g, 1.2)",
     "jax.tree.map(lambda leaf: optax.projections.projection_l2_ball(leaf, 1.2), g)", "clipped separately from other layers"),
    ("dropout", "    x, y = batch\n",
     "    x, y = batch\n    x = x * jax.random.bernoulli(jax.random.key(seed + 7), 0.7, x.shape) / 0.7\n", DROPOUT),
    ("a mean of weights", "- 0.25 * (sums[name] + noise) / 16", "- 0.1 * 0.25 * (sums[name] + noise) / 16", SIZE),
    ("truncated at 2", "jax.random.normal(key, params[name].shape)",
     "jax.random.truncated_normal(key, -2, 2, params[name].shape) / 0.88", NOT_NORMAL),
    ("a zero head", "0.5 * rng.normal(size=(4, 3))", "0 * rng.normal(size=(4, 3))", "no example moves c, v"),
    ("the whole batch", "    sums =", "    s = jax.tree.map(lambda g: g.sum(0), gradients)\n"
     "    clipped = jax.tree.map(lambda g: g[None], optax.projections.projection_l2_ball(s, 1.2))\n    sums =", INTERACT),
]  # fmt: skip
NAMED_BUGS = {
    "numpy": NUMPY,
    "torch_func": TORCH_FUNC,
    "opacus": OPACUS,
    "jax_privacy": JAX_PRIVACY,
    "torch": TORCH,
    "jax": JAX,
}
