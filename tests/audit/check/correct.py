"""Correct steps of many kinds, in NumPy, torch, torch.func, Opacus, JAX and jax_privacy, drawn from a seed.

python -m tests.audit.check.correct numpy 0 100       checks an engine's with seeds 0 to 99, a line each
python -m tests.audit.check.correct numpy 0 100 64    draws the noise 64 times, which is faster
"""

import functools
import sys
import time

import numpy as np

import audit


def draw_step(seed, engine):
    """Draws a correct step.

    The seed draws its sizes, noise, precision and optimizer.

    Returns:
      The arguments of check_step.
    """
    rng = np.random.default_rng(seed)
    size = int(2 ** rng.uniform(0, 9))
    stated = {
        "clipping_norm": float(10 ** rng.uniform(-1, 0.3)),
        "noise_multiplier": float(10 ** rng.uniform(-1, 1)),
        "learning_rate": float(10 ** rng.uniform(-1, 0.5)),
        "batch_size": size,
    }
    inputs, hidden, classes = (int(n) for n in rng.integers((2, 1, 2), (20, 16, 6)))
    kind = rng.uniform()
    if kind < 0.03 and engine in WIDE:  # up to a million numbers
        size = min(size, 8)
        stated["batch_size"] = size
        inputs, hidden = int(10 ** rng.uniform(2, 3)), int(10 ** rng.uniform(2, 3))
    if engine == "jax_privacy":  # the same program for many steps
        inputs, hidden, classes = 12, 6, 4
        stated["clipping_norm"] = float(rng.choice([0.1, 0.5, 2.0]))
    features = rng.normal(size=(size, inputs)) * 10 ** rng.uniform(-1, 1)
    labels = rng.integers(0, classes, size)
    shapes = {
        "v": (inputs, hidden),
        "c": (hidden,),
        "w": (hidden, classes),
        "b": (classes,),
    }
    params = {}
    for name, shape in shapes.items():
        params[name] = 0.5 * rng.normal(size=shape) / shape[0] ** 0.5
    choices = {
        "frozen": rng.uniform() < 0.3,
        "decay": 0.01 * (rng.uniform() < 0.5),
        "low": rng.uniform() < 0.3,
        "layers_alone": rng.uniform() < 0.2,
        "private_gradient": rng.uniform() < 0.2,
        "small": kind > 0.9,
        "deep": 0.8 < kind < 0.85,
    }
    return stated | ENGINES[engine](params, (features, labels), stated, choices)


def _make_numpy_step(params, batch, stated, choices):
    """Draws a network, a linear model of few numbers, or one whose parameters are cut into many arrays."""
    if choices["small"]:
        return _make_small_numpy_step(params, batch, stated, choices)
    kind = np.float32 if choices["low"] else np.float64
    params = {name: value.astype(kind) for name, value in params.items()}
    if choices["deep"]:
        rows = {f"v{i}": row for i, row in enumerate(params.pop("v"))}
        params = rows | params
    clip, sigma, rate, size = stated.values()
    if choices["layers_alone"]:
        trained = len(params)
        if choices["frozen"]:
            trained = 2
        clip_each = clip / trained**0.5
    else:
        clip_each = np.inf

    def step(params, batch, seed):
        x, y = batch
        rows = [name for name in params if name.startswith("v")]
        v = params["v"] if rows == ["v"] else np.stack([params[name] for name in rows])
        hidden = np.tanh(x @ v + params["c"])
        logits = hidden @ params["w"] + params["b"]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = p / p.sum(axis=1, keepdims=True) - np.eye(p.shape[1])[y]
        back = (error @ params["w"].T) * (1 - hidden**2)
        gradients = {"w": hidden[:, :, None] * error[:, None], "b": error}
        if not choices["frozen"]:
            of_v = x[:, :, None] * back[:, None]
            if rows == ["v"]:
                gradients["v"] = of_v
            else:
                gradients |= {name: of_v[:, i] for i, name in enumerate(rows)}
            gradients["c"] = back

        squares = np.zeros(len(x))
        for name, gradient in gradients.items():
            flat = gradient.reshape(len(x), int(np.prod(gradient.shape[1:])))
            norms = np.sqrt((flat**2).sum(1))
            factors = np.minimum(1, clip_each / np.maximum(norms, 1e-30))
            gradients[name] = gradient * factors.reshape(-1, *[1] * (gradient.ndim - 1))
            squares = squares + (norms * factors) ** 2
        factors = np.minimum(1, clip / np.maximum(np.sqrt(squares), 1e-30))

        rng = np.random.default_rng(seed)
        after = dict(params)
        for name, gradient in gradients.items():
            noise = sigma * clip * rng.normal(size=gradient.shape[1:])
            total = np.tensordot(factors, gradient, 1) + noise
            decay = choices["decay"] * params[name]
            after[name] = (params[name] - rate * (total / size + decay)).astype(kind)
        return after

    return _give_gradient({"step": step, "params": params, "batch": batch}, stated, choices)


def _make_small_numpy_step(params, batch, stated, choices):
    """Draws a logistic regression of 4 to 20 numbers, with momentum's buffer already filled."""
    clip, sigma, rate, size = stated.values()
    x, y = batch[0], batch[1] % 2
    momentum = 0.1 * np.random.default_rng(size).normal(size=x.shape[1] + 2)

    def step(w, batch, seed):
        x, y = batch
        x = np.column_stack([x, np.ones((len(x), 2))])
        gradients = (1 / (1 + np.exp(-np.clip(x @ w, -50, 50))) - y)[:, None] * x
        clipped = gradients / np.maximum(1, np.linalg.norm(gradients, axis=1, keepdims=True) / clip)
        noise = sigma * clip * np.random.default_rng(seed).normal(size=len(w))
        return w - rate * (0.9 * momentum + (clipped.sum(axis=0) + noise) / size)

    return {"step": step, "params": np.zeros(x.shape[1] + 2), "batch": (x, y)}


def _give_gradient(made, stated, choices):
    """Returns a step that returns the private gradient, as one for Adam does, where that was drawn."""
    if not choices["private_gradient"]:
        return made
    plain = made["step"]
    rate = stated["learning_rate"]
    decay = choices["decay"]

    def step(params, batch, seed):
        after = plain(params, batch, seed)
        gradient = {}
        for name, value in params.items():
            gradient[name] = (value - after[name]) / rate - decay * value
        return gradient

    return made | {"step": step, "learning_rate": 1.0}


def _make_torch_func_step(params, batch, stated, choices):
    import torch
    from torch.func import grad, vmap

    kind = torch.bfloat16 if choices["low"] else torch.float32
    clip, sigma, rate, size = stated.values()
    params = {name: torch.tensor(value, dtype=kind) for name, value in params.items()}
    batch = torch.tensor(batch[0], dtype=kind), torch.tensor(batch[1])

    def loss(params, x, y):
        logits = torch.tanh(x @ params["v"] + params["c"]) @ params["w"] + params["b"]
        return torch.nn.functional.cross_entropy(logits[None], y[None])

    def step(params, batch, seed):
        generator = torch.Generator().manual_seed(seed)
        if len(batch[1]):
            gradients = vmap(grad(loss), (None, 0, 0))(params, *batch)
        else:
            gradients = {name: value[None][:0] for name, value in params.items()}
        norms = sum(g.flatten(1).float().square().sum(1) for g in gradients.values()).sqrt()
        factors = (clip / norms.clamp(min=1e-30)).clamp(max=1)
        after = {}
        for name, value in params.items():
            total = torch.tensordot(factors, gradients[name].float(), 1)
            total += sigma * clip * torch.randn(value.shape, generator=generator)
            mean = (total / size).to(kind)
            after[name] = value - rate * (mean + choices["decay"] * value)
        return after

    return {"step": step, "params": params, "batch": batch}


def _make_torch_step(params, batch, stated, choices):
    """Draws a loop over single examples, as written without a library."""
    import torch

    kind = torch.float64 if choices["low"] else torch.float32
    clip, sigma, rate, size = stated.values()
    params = {name: torch.tensor(value, dtype=kind) for name, value in params.items()}
    batch = torch.tensor(batch[0][:24], dtype=kind), torch.tensor(batch[1][:24])

    def step(params, batch, seed):
        generator = torch.Generator().manual_seed(seed)
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        sums = {name: torch.zeros_like(value) for name, value in params.items()}
        for x, y in zip(*batch, strict=True):
            logits = torch.tanh(x @ leaves["v"] + leaves["c"]) @ leaves["w"] + leaves["b"]
            loss = torch.nn.functional.cross_entropy(logits, y)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
            factor = (clip / norm.clamp(min=1e-30)).clamp(max=1)
            for total, gradient in zip(sums.values(), gradients, strict=True):
                total += factor * gradient
        after = {}
        for name, value in params.items():
            noise = sigma * clip * torch.randn(value.shape, generator=generator, dtype=kind)
            private = (sums[name] + noise) / size
            if choices["private_gradient"]:
                after[name] = private
            else:
                after[name] = value - rate * (private + choices["decay"] * value)
        return after

    made = {"step": step, "params": params, "batch": batch}
    if choices["private_gradient"]:
        made["learning_rate"] = 1.0
    return made


def _loss(params, x, y):
    import jax.numpy as jnp
    import optax

    logits = jnp.tanh(x @ params["v"] + params["c"]) @ params["w"] + params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()


def _make_jax_step(params, batch, stated, choices):
    import jax
    import jax.numpy as jnp
    import optax

    clip, sigma, rate, size = stated.values()
    kind = jnp.bfloat16 if choices["low"] else jnp.float32
    params = {name: jnp.asarray(value, kind) for name, value in params.items()}
    batch = np.asarray(batch[0], np.float32), batch[1]
    optimizer = optax.chain(
        optax.add_decayed_weights(choices["decay"]), optax.sgd(rate, momentum=0.9)
    )

    @jax.jit
    def step(params, batch, seed):
        gradients = jax.vmap(jax.grad(_loss), (None, 0, 0))(params, *batch)
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        clipped = jax.vmap(lambda g: optax.projections.projection_l2_ball(g, clip))(gradients)
        sums = jax.tree.map(lambda g: g.sum(0), clipped)
        updates = _compute_updates(optimizer, params, sums, seed, sigma * clip, size)
        return optax.apply_updates(params, updates)

    return {"step": step, "params": params, "batch": batch}


def _compute_updates(optimizer, params, sums, seed, deviation, size):
    """Returns the first updates of an optimizer by sums of clipped gradients and noise."""
    import jax

    leaves, tree = jax.tree.flatten(sums)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = []
    for key, leaf in zip(keys, leaves, strict=True):
        noise = deviation * jax.random.normal(key, leaf.shape)
        noisy.append((leaf + noise) / size)
    return optimizer.update(jax.tree.unflatten(tree, noisy), optimizer.init(params), params)[0]


@functools.cache
def _compile_jax_privacy_step(clip):
    """Returns a step whose batch has a mask of padding, so that batches of many sizes share a program."""
    import jax
    import jax.numpy as jnp
    import jax_privacy
    import optax

    def loss(trained, frozen, x, y):
        return _loss(frozen | trained, x, y)

    clipped = jax_privacy.clipped_grad(
        loss, batch_argnums=(2, 3), l2_clip_norm=clip, dtype=jnp.float32
    )

    @jax.jit
    def step(trained, frozen, batch, padding, seed, sigma, rate, size, decay):
        optimizer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=0.9))
        sums = clipped(trained, frozen, *batch, is_padding_example=padding)
        updates = _compute_updates(optimizer, trained, sums, seed, sigma * clip, size)
        return frozen | optax.apply_updates(trained, updates)

    return step


def _make_jax_privacy_step(params, batch, stated, choices):
    import jax.numpy as jnp

    kind = jnp.bfloat16 if choices["low"] else jnp.float32
    clip, sigma, rate, size = stated.values()
    params = {name: jnp.asarray(value, kind) for name, value in params.items()}
    still = ("v", "c") if choices["frozen"] else ()

    def step(params, batch, seed):
        count = len(batch[1])
        padded = next(n for n in (64, 576, 2176) if n >= count)
        rows = []
        for part in batch:
            padding = np.zeros((padded - count, *part.shape[1:]), part.dtype)
            rows.append(np.concatenate([part, padding]))
        frozen = {name: params[name] for name in still}
        trained = {name: value for name, value in params.items() if name not in still}
        is_padding = np.arange(padded) >= count
        compiled = _compile_jax_privacy_step(clip)
        return compiled(
            trained, frozen, rows, is_padding, seed, sigma, rate, float(size), choices["decay"]
        )

    return {"step": step, "params": params, "batch": (np.asarray(batch[0], np.float32), batch[1])}


def _make_opacus_step(params, batch, stated, choices):
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    clip, sigma, rate, size = stated.values()
    sizes = *params["v"].shape, params["w"].shape[1]
    network = torch.nn.Sequential(
        torch.nn.Linear(*sizes[:2]),
        torch.nn.Tanh(),
        torch.nn.Linear(*sizes[1:]),
    )
    network[0].weight.requires_grad_(not choices["frozen"])
    kind = torch.bfloat16 if choices["low"] else torch.float32
    model = GradSampleModule(network.to(kind))
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    batch = torch.tensor(batch[0], dtype=kind), torch.tensor(batch[1])

    def step(params, batch, seed):
        model.load_state_dict(params)
        trained = [value for value in model.parameters() if value.requires_grad]
        optimizer = DPOptimizer(
            torch.optim.SGD(trained, lr=rate, momentum=0.9, weight_decay=choices["decay"]),
            noise_multiplier=sigma,
            max_grad_norm=clip,
            expected_batch_size=size,
            generator=torch.Generator().manual_seed(seed),
        )
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        return dict(model.named_parameters())

    return {"step": step, "params": start, "batch": batch}


WIDE = ("numpy", "torch_func")
ENGINES = {
    "numpy": _make_numpy_step,
    "torch": _make_torch_step,
    "torch_func": _make_torch_func_step,
    "opacus": _make_opacus_step,
    "jax": _make_jax_step,
    "jax_privacy": _make_jax_privacy_step,
}

if __name__ == "__main__":
    _, engine, first, last, *seeds = sys.argv
    options = {"seeds": int(seeds[0])} if seeds else {}
    for seed in range(int(first), int(last)):
        began = time.perf_counter()
        report = audit.check_step(**draw_step(seed, engine), **options)
        seconds = time.perf_counter() - began
        print(engine, seed, f"{seconds:.2f}", report.verdict[:150], flush=True)
