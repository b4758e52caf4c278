"""Correct steps in NumPy, torch, torch.func, Opacus, JAX and jax_privacy, drawn from a seed.

python -m tests.audit.check.correct numpy 0 100             an engine's with seeds 0 to 99, a line each
python -m tests.audit.check.correct numpy 0 100 64          draws the noise 64 times, which is faster
python -m tests.audit.check.correct numpy 0 100 64 float16  in this precision
"""

import functools
import sys
import time
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import audit

WIDE = 0.03  # of steps, of 10^4 to 10^6 numbers
MANY = 0.08  # of steps, of up to 100 tensors
LINEAR = 0.15  # of steps, one tensor of 4 to 20 numbers
PRECISIONS = {
    "numpy": ("float64", "float32", "bfloat16"),
    "torch": ("float64", "float32"),
    "torch_func": ("float64", "float32", "bfloat16"),
    "opacus": ("float64", "float32", "bfloat16"),
    "jax": ("float32", "bfloat16"),
    "jax_privacy": ("float32", "bfloat16"),
}


class StepKind(NamedTuple):
    """What kind of a step it is.

    Attributes:
      precision: of its parameters.
      frozen: names of parameters that are not trained.
      decay: weight decay.
      momentum: buffers of earlier steps by parameter's name; empty where there is none.
      clips_layers: whether each of the L trained layers is clipped to C / sqrt(L).
      returns_gradient: whether it returns the private gradient, as for Adam, in place of parameters.
    """

    precision: str
    frozen: tuple[str, ...]
    decay: float
    momentum: dict[str, Any]
    clips_layers: bool
    returns_gradient: bool

    def get_layer_norm(self, clipping_norm, layers):
        """Returns the norm to which each layer is clipped by itself; infinity where none is."""
        return clipping_norm / layers**0.5 if self.clips_layers else np.inf

    def update(self, name, value, private, learning_rate):
        """Returns what the step returns of a parameter, by its private gradient."""
        if self.returns_gradient:
            return private
        gradient = private + self.decay * value
        if name in self.momentum:
            gradient = gradient + 0.9 * self.momentum[name]
        return value - learning_rate * gradient


def draw_step(seed, engine, precision=None):
    """Draws a correct step, in a precision of its engine's where none is given.

    Returns:
      The arguments of check_step.
    """
    rng = np.random.default_rng(seed)
    network = rng.uniform()
    size = _draw_size(rng, engine, network)
    stated = {
        "clipping_norm": float(10 ** rng.uniform(-1, 0.3)),
        "noise_multiplier": float(10 ** rng.uniform(-1, 1)),
        "learning_rate": float(10 ** rng.uniform(-1, 0.5)),
        "batch_size": size,
    }
    if engine == "jax_privacy":  # a program for many steps
        network = 1.0
        stated["clipping_norm"] = float(rng.choice([0.1, 0.5, 2.0]))
    shapes = _draw_shapes(rng, engine, network)
    inputs = next(iter(shapes.values()))[0]
    rows = [name for name in shapes if name.startswith("v")]
    if len(rows) > 1:
        inputs = len(rows)
    classes = list(shapes.values())[-1][-1]

    features = rng.normal(size=(size, inputs)) * 10 ** rng.uniform(-1, 1)
    labels = rng.integers(0, classes, size)
    params = {}
    for name, shape in shapes.items():
        params[name] = 0.5 * rng.normal(size=shape) / inputs**0.5
    may_freeze = "c" in shapes and rng.uniform() < 0.3
    has_momentum = rng.uniform() < 0.3
    drawn_precision = str(rng.choice(PRECISIONS[engine]))
    momentum = {name: 0.1 * rng.normal(size=shape) for name, shape in shapes.items()}
    kind = StepKind(
        precision=precision or drawn_precision,
        frozen=(*rows, "c") if may_freeze else (),
        decay=0.01 * (rng.uniform() < 0.5),
        momentum=momentum if has_momentum else {},
        clips_layers=bool(rng.uniform() < 0.2),
        returns_gradient=bool(rng.uniform() < 0.2),
    )
    made = ENGINES[engine](params, (features, labels), stated, kind)
    if kind.returns_gradient:
        made["learning_rate"] = 1.0
    if rng.uniform() < 0.15:
        made["step"] = _fix_size(made["step"], size)
    return stated | made


def _draw_size(rng, engine, network):
    """Draws the rows of a batch, 1 to 512, of slow engines and wide networks fewer."""
    size = int(2 ** rng.uniform(0, 9.01))
    if network < WIDE:
        return min(size, 8)
    if engine == "torch":  # a loop over examples
        return min(size, 40)
    return size


def _draw_shapes(rng, engine, network):
    """Draws the shapes of parameters by name: of a linear model, or of a network of two layers.

    The first layer, v, may be cut into a tensor a row.
    """
    inputs, hidden, classes = (int(n) for n in rng.integers((2, 1, 2), (20, 16, 6)))
    if engine == "jax_privacy":
        inputs, hidden, classes = 12, 6, 4
    elif network < WIDE:
        inputs, hidden = (int(n) for n in 10 ** rng.uniform(2, 3, 2))
    elif network < WIDE + MANY:
        inputs = int(rng.integers(10, 98))
    elif network < WIDE + MANY + LINEAR:
        return {"w": (int(rng.integers(2, 11)), 2)}
    shapes = {"v": (inputs, hidden), "c": (hidden,), "w": (hidden, classes), "b": (classes,)}
    if WIDE <= network < WIDE + MANY:
        del shapes["v"]
        shapes = {f"v{i}": (hidden,) for i in range(inputs)} | shapes
    return shapes


def _fix_size(step, size):
    """Returns a step that refuses batches of other sizes, as programs of static shapes do."""

    def fixed(params, batch, seed):
        assert len(batch[1]) == size, "a batch of a different size"
        return step(params, batch, seed)

    return fixed


def _compute_hidden(params, x, library):
    """Returns the outputs of the first layer, by the functions of NumPy, torch or jax.numpy."""
    if "c" not in params:
        return x
    rows = [value for name, value in params.items() if name.startswith("v")]
    v = params["v"] if "v" in params else library.stack(rows)
    return library.tanh(x @ v + params["c"])


def _compute_logits(params, x, library):
    logits = _compute_hidden(params, x, library) @ params["w"]
    return logits + params["b"] if "b" in params else logits


def _make_numpy_step(params, batch, stated, kind):
    precision = np.dtype(getattr(ml_dtypes, kind.precision, kind.precision))
    params = {name: value.astype(precision) for name, value in params.items()}
    clip, sigma, rate, size = stated.values()
    layer_norm = kind.get_layer_norm(clip, len(params) - len(kind.frozen))

    def step(params, batch, seed):
        x, y = batch
        exact = {name: value.astype(float) for name, value in params.items()}
        hidden = _compute_hidden(exact, x, np)
        logits = _compute_logits(exact, x, np)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = p / p.sum(axis=1, keepdims=True) - np.eye(p.shape[1])[y]
        gradients = {"w": hidden[:, :, None] * error[:, None], "b": error}
        if "c" in params:
            back = (error @ exact["w"].T) * (1 - hidden**2)
            by_input = x[:, :, None] * back[:, None]
            gradients["v"] = by_input
            gradients["c"] = back
            gradients |= {f"v{i}": by_input[:, i] for i in range(x.shape[1])}
        trained = [name for name in params if name not in kind.frozen]

        squares = np.zeros(len(x))
        clipped = {}
        for name in trained:
            flat = gradients[name].reshape(len(x), params[name].size)
            norms = np.sqrt((flat**2).sum(axis=1))
            factors = np.minimum(1, layer_norm / np.maximum(norms, 1e-30))
            clipped[name] = flat * factors[:, None]
            squares += (norms * factors) ** 2
        factors = np.minimum(1, clip / np.maximum(np.sqrt(squares), 1e-30))

        rng = np.random.default_rng(seed)
        after = dict(params)
        for name in trained:
            noise = sigma * clip * rng.normal(size=params[name].size)
            private = ((factors @ clipped[name] + noise) / size).reshape(params[name].shape)
            after[name] = kind.update(name, exact[name], private, rate).astype(precision)
        return after

    return {"step": step, "params": params, "batch": batch}


def _make_torch_tensors(params, batch, kind):
    """Returns parameters, batch and buffers of momentum as tensors; float16 has features in float32."""
    import torch

    precision = getattr(torch, kind.precision)
    features = torch.float32 if kind.precision == "float16" else precision
    params = {name: torch.tensor(value, dtype=precision) for name, value in params.items()}
    momentum = {name: torch.tensor(value) for name, value in kind.momentum.items()}
    batch = torch.tensor(batch[0], dtype=features), torch.tensor(batch[1])
    return params, batch, kind._replace(momentum=momentum)


def _make_torch_step(params, batch, stated, kind, is_loop=False):
    """Draws a step with gradients of single examples by vmap, or by a loop as written without a library."""
    import torch
    from torch.func import grad, vmap

    params, batch, kind = _make_torch_tensors(params, batch, kind)
    clip, sigma, rate, size = stated.values()
    layer_norm = kind.get_layer_norm(clip, len(params) - len(kind.frozen))

    def loss(trained, frozen, x, y):
        used = {name: value.to(x.dtype) for name, value in (frozen | trained).items()}
        ordered = {name: used[name] for name in params}
        return torch.nn.functional.cross_entropy(_compute_logits(ordered, x, torch)[None], y[None])

    def step(params, batch, seed):
        generator = torch.Generator().manual_seed(seed)
        frozen = {name: params[name] for name in kind.frozen}
        trained = {name: value for name, value in params.items() if name not in frozen}
        if not len(batch[1]):
            gradients = {name: value[None][:0] for name, value in trained.items()}
        elif is_loop:
            rows = [grad(loss)(trained, frozen, x, y) for x, y in zip(*batch, strict=True)]
            gradients = {name: torch.stack([row[name] for row in rows]) for name in trained}
        else:
            gradients = vmap(grad(loss), (None, None, 0, 0))(trained, frozen, *batch)
        flat = {name: g.flatten(1).double() for name, g in gradients.items()}
        for name, g in flat.items():
            flat[name] = g * (layer_norm / g.norm(dim=1, keepdim=True).clamp(min=1e-30)).clamp(
                max=1
            )
        norms = torch.cat(list(flat.values()), dim=1).norm(dim=1)
        factors = (clip / norms.clamp(min=1e-30)).clamp(max=1)
        after = dict(params)
        for name, g in flat.items():
            noise = sigma * clip * torch.randn(params[name].shape, generator=generator)
            private = ((factors @ g).view(params[name].shape) + noise) / size
            updated = kind.update(name, params[name].double(), private, rate)
            after[name] = updated.to(params[name].dtype)
        return after

    return {"step": step, "params": params, "batch": batch}


def _make_opacus_step(params, batch, stated, kind):
    import torch
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer

    clip, sigma, rate, size = stated.values()
    network = _make_torch_network(params)
    for name, value in network.named_parameters():
        value.requires_grad_(not (kind.frozen and name.startswith("0.")))
    precision = getattr(torch, kind.precision)
    model = GradSampleModule(network.to(precision))
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    batch = torch.tensor(batch[0], dtype=precision), torch.tensor(batch[1])
    trained = [value for value in model.parameters() if value.requires_grad]
    layer_norms = [kind.get_layer_norm(clip, len(trained))] * len(trained)

    def step(params, batch, seed):
        model.load_state_dict(params)
        plain = torch.optim.SGD(
            trained, lr=rate, momentum=0.9 * bool(kind.momentum), weight_decay=kind.decay
        )
        private = DPPerLayerOptimizer if kind.clips_layers else DPOptimizer
        optimizer = private(
            plain,
            noise_multiplier=sigma,
            max_grad_norm=layer_norms if kind.clips_layers else clip,
            expected_batch_size=size,
            generator=torch.Generator().manual_seed(seed),
        )
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()
        if kind.returns_gradient:
            values = model.named_parameters()
            return {name: p if p.grad is None else p.grad.clone() for name, p in values}
        return dict(model.named_parameters())

    return {"step": step, "params": start, "batch": batch}


def _make_torch_network(params):
    """Returns a module of layers like the parameters'; of those cut into rows, of as many tensors."""
    import torch

    classes = params["w"].shape[1]
    if "c" not in params:
        return torch.nn.Linear(*params["w"].shape, bias=False)
    hidden = len(params["c"])
    deep = []
    inputs = len(params) - 3
    if "v" in params:
        inputs = len(params["v"])
    else:
        for _ in range(inputs // 2):
            deep += [torch.nn.Linear(hidden, hidden), torch.nn.Tanh()]
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, hidden), torch.nn.Tanh(), *deep, torch.nn.Linear(hidden, classes)
    )


def _compute_jax_loss(trained, frozen, order, x, y):
    import jax.numpy as jnp
    import optax

    both = frozen | trained
    logits = _compute_logits({name: both[name] for name in order}, x, jnp)
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), y).mean()


def _make_jax_step(params, batch, stated, kind):
    import jax
    import jax.numpy as jnp
    import optax

    clip, sigma, rate, size = stated.values()
    params = {name: jnp.asarray(value, kind.precision) for name, value in params.items()}
    order = tuple(params)
    batch = np.asarray(batch[0], np.float32), batch[1]
    layer_norm = kind.get_layer_norm(clip, len(params) - len(kind.frozen))

    def clip_gradient(gradient):
        if kind.clips_layers:
            return jax.tree.map(
                lambda leaf: optax.projections.projection_l2_ball(leaf, layer_norm), gradient
            )
        return optax.projections.projection_l2_ball(gradient, clip)

    @jax.jit
    def step(params, batch, seed):
        frozen = {name: params[name] for name in kind.frozen}
        trained = {name: value for name, value in params.items() if name not in frozen}
        grad = jax.grad(lambda *values: _compute_jax_loss(*values[:2], order, *values[2:]))
        gradients = jax.vmap(grad, (None, None, 0, 0))(trained, frozen, *batch)
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        sums = jax.tree.map(lambda g: g.sum(0), jax.vmap(clip_gradient)(gradients))
        private = _add_jax_noise(sums, seed, sigma * clip, size)
        return params | _update_by_optax(private, trained, rate, kind)

    return {"step": step, "params": params, "batch": batch}


def _add_jax_noise(sums, seed, deviation, size):
    """Returns private gradients, by sums of clipped ones."""
    import jax

    leaves, tree = jax.tree.flatten(sums)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    noisy = []
    for key, leaf in zip(keys, leaves, strict=True):
        noise = deviation * jax.random.normal(key, leaf.shape)
        noisy.append((leaf + noise) / size)
    return jax.tree.unflatten(tree, noisy)


def _update_by_optax(private, trained, rate, kind):
    """Returns what the first step of an optimizer makes of private gradients, or these themselves."""
    import optax

    if kind.returns_gradient:
        return private
    momentum = 0.9 if kind.momentum else None
    optimizer = optax.chain(
        optax.add_decayed_weights(kind.decay), optax.sgd(rate, momentum=momentum)
    )
    updates, _ = optimizer.update(private, optimizer.init(trained), trained)
    return optax.apply_updates(trained, updates)


@functools.cache
def _compile_jax_privacy_gradient(clip, frozen_names, order):
    """Returns a sum of gradients whose batch has a mask of padding, so that many sizes share a program."""
    import jax
    import jax.numpy as jnp
    import jax_privacy

    def loss(trained, frozen, x, y):
        return _compute_jax_loss(trained, frozen, order, x, y)

    clipped = jax_privacy.clipped_grad(
        loss, batch_argnums=(2, 3), l2_clip_norm=clip, dtype=jnp.float32
    )

    @jax.jit
    def compute(params, batch, padding, seed, sigma, size):
        frozen = {name: params[name] for name in frozen_names}
        trained = {name: value for name, value in params.items() if name not in frozen}
        sums = clipped(trained, frozen, *batch, is_padding_example=padding)
        return _add_jax_noise(sums, seed, sigma * clip, size)

    return compute


def _make_jax_privacy_step(params, batch, stated, kind):
    import jax.numpy as jnp

    clip, sigma, rate, size = stated.values()
    params = {name: jnp.asarray(value, kind.precision) for name, value in params.items()}

    def step(params, batch, seed):
        count = len(batch[1])
        padded = next(n for n in (64, 576, 2176) if n >= count)
        rows = []
        for part in batch:
            padding = np.zeros((padded - count, *part.shape[1:]), part.dtype)
            rows.append(np.concatenate([part, padding]))
        is_padding = np.arange(padded) >= count
        compute = _compile_jax_privacy_gradient(clip, kind.frozen, tuple(params))
        private = compute(params, rows, is_padding, seed, sigma, float(size))
        trained = {name: params[name] for name in private}
        return params | _update_by_optax(private, trained, rate, kind)

    return {"step": step, "params": params, "batch": (np.asarray(batch[0], np.float32), batch[1])}


ENGINES = {
    "numpy": _make_numpy_step,
    "torch": functools.partial(_make_torch_step, is_loop=True),
    "torch_func": _make_torch_step,
    "opacus": _make_opacus_step,
    "jax": _make_jax_step,
    "jax_privacy": _make_jax_privacy_step,
}

if __name__ == "__main__":
    _, engine, first, last, *more = sys.argv
    options = {"seeds": int(more[0])} if more else {}
    for seed in range(int(first), int(last)):
        began = time.perf_counter()
        report = audit.check_step(**draw_step(seed, engine, *more[1:]), **options)
        seconds = time.perf_counter() - began
        print(engine, seed, f"{seconds:.2f}", report.verdict[:150], flush=True)
