"""Book-keeping for dense layers and convolutions: per-example norms from one backward pass.

A layer is linear in its kernel: it multiplies each of L rows of K numbers (a convolution's patches; a
dense layer's input is one row) with the kernel (K, O) and adds the bias. From the rows a (B, L, K) and
the output gradients g (B, L, O) of all examples,

    L = 1                 ||gradient||^2 = ||g||^2 (||a||^2 + 1), the sum one product of a and scaled g
    K O below L (K + O)   the gradient per example, a^T g (B, K, O), is formed, measured and summed
    else                  the Gram form, sum over l, m of (a_l . a_m)(g_l . g_m), and one product

Examples come first here; `clipping.book_keeping` has them last and is faster for narrow dense networks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.clipping import Batch, ClippedSum, Criterion, scale_to_norm


@runtime_checkable
class Unfolds(Protocol):
    """A Flax module whose output (..., *output_shape(x)) is unfold(x) (..., L, K) times its kernel,
    reshaped to (K, O), plus its bias (O,)."""

    def unfold(self, x: Array) -> Array: ...

    def output_shape(self, x: Array) -> tuple[int, ...]: ...


class _Layer(NamedTuple):
    """A layer's rows (B, L, K) and output gradients (B, L, O)."""

    rows: Array
    gradients: Array


def unfolded_book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """The clipped sum (see `clipping`) of modules of flax.linen.Dense, modules that unfold, and functions
    that take examples on leading axes.

    module.apply({"params": unravel(theta)}, x (B, ...)) gives logits (B, outputs). Raises TypeError where
    a parameter does not belong to exactly one call of such a layer.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        features, labels = batch
        params = unravel(theta)

        def total(taps: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            logits, rows = _forward(module, params, features, taps)
            return jnp.sum(jax.vmap(criterion)(logits, labels)), rows

        shapes = jax.eval_shape(lambda: _tap_shapes(module, params, features))
        taps = {path: jnp.zeros(shape.shape, theta.dtype) for path, shape in shapes.items()}
        gradients, rows = jax.grad(total, has_aux=True)(taps)
        layers = {path: _Layer(rows[path], gradients[path]) for path in taps}
        squares = jnp.zeros(len(labels), theta.dtype)
        sums = {}
        for path, layer in layers.items():
            square, sums[path] = _measure(layer)
            squares = squares + square
        scales = scale_to_norm(squares, clipping_norm)
        flat = {path: contract(scales) for path, contract in sums.items()}
        return ravel_pytree(_like(params, flat))[0]

    return clipped_sum


def _measure(layer: _Layer) -> tuple[Array, Callable[[Array], dict[str, Array]]]:
    """(squared norms (B,), scales (B,) -> the layer's clipped sum)."""
    rows, gradients = layer
    length, k, o = rows.shape[1], rows.shape[2], gradients.shape[2]
    bias = jnp.sum(gradients, axis=1)
    bias_square = jnp.sum(bias**2, axis=1)

    def contract(scales: Array) -> dict[str, Array]:
        scaled = gradients * scales[:, None, None]
        kernel = jnp.einsum("blk,blo->ko", rows, scaled)
        return {"kernel": kernel, "bias": scales @ bias}

    if length == 1:
        return jnp.sum(rows**2, axis=(1, 2)) * bias_square + bias_square, contract
    if k * o < length * (k + o):
        each = jnp.einsum("blk,blo->bko", rows, gradients)

        def contract_each(scales: Array) -> dict[str, Array]:
            return {"kernel": jnp.tensordot(scales, each, 1), "bias": scales @ bias}

        return jnp.sum(each**2, axis=(1, 2)) + bias_square, contract_each
    gram = jnp.einsum("blk,bmk->blm", rows, rows) * jnp.einsum("blo,bmo->blm", gradients, gradients)
    return jnp.sum(gram, axis=(1, 2)) + bias_square, contract


def _tap_shapes(module: nn.Module, params: Any, features: Array) -> dict[str, Array]:
    """Arrays of the shapes of all layers' products (B, L, O)."""
    shapes: dict[str, Array] = {}
    _run(module, params, features, lambda path, product: shapes.setdefault(path, product))
    return shapes


def _forward(
    module: nn.Module, params: Any, features: Array, taps: dict[str, Array]
) -> tuple[Array, dict[str, Array]]:
    """(logits (B, outputs), every layer's rows), the taps added to the layers' products."""
    return _run(module, params, features, lambda path, product: product + taps[path])


def _run(
    module: nn.Module, params: Any, features: Array, change: Callable[[str, Array], Array]
) -> tuple[Array, dict[str, Array]]:
    """(logits, rows) with every layer's product (B, L, O) replaced by change(path, product)."""
    rows: dict[str, Array] = {}

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer: Any = context.module
        unfolds = isinstance(layer, Unfolds)
        if context.method_name != "__call__" or not (unfolds or isinstance(layer, nn.Dense)):
            return call(*args, **kwargs)
        path = "/".join(layer.path)
        if path in rows:
            raise TypeError(f"layer {path} is called twice: use per_example")
        x = args[0]
        rows[path] = layer.unfold(x) if unfolds else x[:, None, :]
        shape = layer.output_shape(x) if unfolds else (layer.features,)
        own = layer.variables["params"]
        kernel = own["kernel"].reshape(-1, own["kernel"].shape[-1])
        product = change(path, rows[path] @ kernel + own["bias"])
        return product.reshape(len(x), *shape)

    with nn.intercept_methods(intercept):
        logits: Any = module.apply({"params": params}, features)
    found, held = set(rows), {_parent(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    if found != held:
        raise TypeError(f"parameters of {sorted(held - found)} are no layer's that unfolds: use per_example")
    return logits, rows


def _parent(path: Any) -> str:
    """The module of a parameter's path."""
    return "/".join(entry.key for entry in path[:-1])


def _like(params: Any, layers: dict[str, dict[str, Array]]) -> Any:
    """The layers' sums in the shape of the parameter tree."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: layers[_parent(path)][path[-1].key].reshape(leaf.shape), params
    )
