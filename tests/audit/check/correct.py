"""Correct steps of many kinds, in NumPy, torch.func, Opacus, plain JAX and jax_privacy, drawn from a seed.

python -m tests.audit.check.correct numpy 0 100    checks those of an engine with seeds 0 to 99, a line each
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
        "clipping_norm": float(10 ** rng.uniform(-1, 1)),
        "noise_multiplier": float(0.3 * (10 / 0.3) ** rng.uniform()),
        "learning_rate": float(10 ** rng.uniform(-1, 0.5)),
        "batch_size": size,
    }
    inputs, hidden, classes = (int(n) for n in rng.integers((2, 1, 2), (20, 16, 6)))
    if engine == "jax_privacy":  # the same program for many steps
        inputs, hidden, classes = 12, 6, 4
        stated["clipping_norm"] = float(rng.choice([0.1, 1.0, 10.0]))
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
    }
    return ENGINES[engine](params, (features, labels), stated, choices) | stated


def _make_numpy_step(params, batch, stated, choices):
    kind = np.float32 if choices["low"] else np.float64
    params = {name: value.astype(kind) for name, value in params.items()}
    clip, sigma, rate, size = stated.values()

    def step(params, batch, seed):
        x, y = batch
        hidden = np.tanh(x @ params["v"] + params["c"])
        logits = hidden @ params["w"] + params["b"]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = p / p.sum(axis=1, keepdims=True) - np.eye(p.shape[1])[y]
        back = (error @ params["w"].T) * (1 - hidden**2)
        gradients = {"w": hidden[:, :, None] * error[:, None], "b": error}
        if not choices["frozen"]:
            gradients["v"] = x[:, :, None] * back[:, None]
            gradients["c"] = back

        squares = np.zeros(len(x))
        for gradient in gradients.values():
            flat = gradient.reshape(len(x), int(np.prod(gradient.shape[1:])))
            squares = squares + (flat**2).sum(1)
        factors = np.minimum(1, clip / np.maximum(np.sqrt(squares), 1e-30))

        rng = np.random.default_rng(seed)
        after = dict(params)
        for name, gradient in gradients.items():
            noise = sigma * clip * rng.normal(size=gradient.shape[1:])
            total = np.tensordot(factors, gradient, 1) + noise
            decay = choices["decay"] * params[name]
            after[name] = (params[name] - rate * (total / size + decay)).astype(kind)
        return after

    return {"step": step, "params": params, "batch": batch}


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


ENGINES = {
    "numpy": _make_numpy_step,
    "torch_func": _make_torch_func_step,
    "opacus": _make_opacus_step,
    "jax": _make_jax_step,
    "jax_privacy": _make_jax_privacy_step,
}

if __name__ == "__main__":
    _, engine, first, last = sys.argv
    for seed in range(int(first), int(last)):
        began = time.perf_counter()
        report = audit.check_step(**draw_step(seed, engine))
        seconds = time.perf_counter() - began
        findings = [f"{finding.check}: {finding.name}" for finding in report.findings]
        print(engine, seed, f"{seconds:.2f}", report.passed, findings, flush=True)
