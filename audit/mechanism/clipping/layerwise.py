"""Book-keeping layer by layer: per-example gradient norms from one backward pass over a block of examples.

Book-keeping (Bu et al., 2022, arXiv 2210.00038) keeps what a backward pass knows and sums the clipped
gradients from it; each layer's norm is measured in the cheaper of two forms (mixed ghost clipping: Bu, Mao
and Xu, 2022, arXiv 2205.10683). To unfold a convolution's input is im2col: it becomes a matrix of patches.

The layers are those of `layers`. What they keep of a block fits a processor's cache, and no more than a
block is ever held, but for the factors of dense kernels' sums (`layers.Factors`): that bounds the memory of
deep networks too. `clipping.book_keeping` is faster for narrow dense networks.
"""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.clipping import layers
from audit.mechanism.clipping.base import Batch, ClippedDots, ClippedSum, Criterion, scale_to_norm
from audit.mechanism.memory import Hardware, local_hardware

_CPU_BLOCK = 5 << 18  # the best of 0.6 to 2.5 MiB for the ConvNet, with four models at once
_ACCELERATOR_BLOCK = 1 << 30
_BLOCK_BY_PARAMETERS = 4  # bytes that a block keeps at least, by those of the parameters


class UnknownLayer(TypeError):
    """A parameter that belongs to no layer of `layers`, or to one that is called twice."""


_Shapes = dict[str, tuple[int, int]]
_Pass = tuple[Array, dict[str, layers.Call]]  # logits or losses; every layer's call


def unfolded_book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion, block_bytes: int
) -> ClippedSum:
    """The clipped sum (see `clipping`) of modules of the layers of `layers` and any functions between them.

    module.apply({"params": unravel(theta)}, x) gives one example's logits, and criterion(logits, label)
    its loss. block_bytes bounds what the layers of one model keep of a block of examples: their inputs,
    unfolded, and their output gradients; but a block keeps four times what the parameters take, which it
    reads and writes several times. Raises UnknownLayer where a parameter does not belong to exactly one
    call of such a layer.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        params = unravel(theta)
        shapes, most = _kept(module, params, batch, block_bytes)

        def add(total: Any, block: tuple[Array, Array, Array]) -> tuple[Any, None]:
            one = _block_sum(module, params, criterion, shapes, block, clipping_norm)
            added = jax.tree.map(lambda t, s: t if _is_late(s) else t + s.reshape(t.shape), total, one)
            return added, jax.tree.map(lambda s: s if _is_late(s) else None, one, is_leaf=_is_late)

        total, late = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), _cut(batch, most))
        whole = jax.tree.map(lambda t, s: t if s is None else s.sum().reshape(t.shape), total, late)
        return ravel_pytree(whole)[0]

    return clipped_sum


def unfolded_dots(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion, block_bytes: int
) -> ClippedDots:
    """Every clipped gradient's dot product with a direction, of modules that `unfolded_book_keeping` knows.
    No gradient an example is formed: the clipped sum is linear in the examples' weights, and the slopes of
    its own dot product with the direction are theirs."""

    def dots(theta: Array, batch: Batch, clipping_norm: Array, direction: Array) -> Array:
        params, along = unravel(theta), unravel(direction)
        shapes, most = _kept(module, params, batch, block_bytes)

        def of(block: tuple[Array, Array, Array]) -> Array:
            def dot(weights: Array) -> Array:
                weighted = block[0], block[1], weights
                total = _block_sum(module, params, criterion, shapes, weighted, clipping_norm)
                each = jax.tree.map(lambda d, s: jnp.vdot(s.sum() if _is_late(s) else s, d), along, total)
                return sum(jax.tree.leaves(each), jnp.zeros(()))

            slopes: Array = jax.grad(dot)(block[2])
            return slopes

        found: Array = jax.lax.map(of, _cut(batch, most))
        return found.reshape(-1)[: len(batch[1])]

    return dots


def block_bytes(hardware: Hardware | None = None) -> int:
    """The bytes that a block of examples of one model should keep on such devices, or on this process's."""
    return _CPU_BLOCK if (hardware or local_hardware()).is_cpu else _ACCELERATOR_BLOCK


def _kept(module: nn.Module, params: Any, batch: Batch, block_bytes: int) -> tuple[_Shapes, int]:
    _, calls = jax.eval_shape(lambda x: _apply(module, params, x, {}), batch[0][0])
    shapes = {path: call.shape for path, call in calls.items()}
    return shapes, max(1, max(block_bytes, _BLOCK_BY_PARAMETERS * _bytes(params)) // _bytes(calls))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cut(batch: Batch, most: int) -> tuple[Array, Array, Array]:
    """Features, labels and weights in blocks (n, b, ...), at most `most`; weight 0 fills the last."""
    count = len(batch[1])
    blocks = math.ceil(count / most)
    size = math.ceil(count / blocks)

    def cut(part: Array) -> Array:
        full = jnp.pad(part, ((0, blocks * size - count), *((0, 0),) * (part.ndim - 1)))
        return full.reshape(blocks, size, *part.shape[1:])

    return cut(batch[0]), cut(batch[1]), cut(jnp.ones(count))


def _block_sum(
    module: nn.Module,
    params: Any,
    criterion: Criterion,
    shapes: _Shapes,
    block: tuple[Array, Array, Array],
    clipping_norm: Array,
) -> Any:
    """A block's clipped sum: at the parameters' places, arrays of their sizes or `layers.Factors`."""
    features, labels, weights = block

    def one(x: Array, label: Array, taps: dict[str, Array]) -> _Pass:
        logits, calls = _apply(module, params, x, taps)
        return criterion(logits, label), calls

    def total(taps: dict[str, Array]) -> _Pass:
        losses, calls = jax.vmap(one)(features, labels, taps)
        return jnp.sum(losses), calls

    taps = {path: jnp.zeros((len(labels), *shape)) for path, shape in shapes.items()}
    gradients, calls = jax.grad(total, has_aux=True)(taps)
    own = _by_module(params)
    measures = {path: layers.measure(set(own[path]), calls[path], gradients[path]) for path in shapes}
    squares = sum((m.squares for m in measures.values()), jnp.zeros(len(labels)))
    scales = weights * scale_to_norm(squares, clipping_norm)
    sums = {path: m.contract(scales) for path, m in measures.items()}
    return jax.tree_util.tree_map_with_path(lambda path, _: sums[_module(path)][path[-1].key], params)


def _is_late(summed: Any) -> bool:
    """Whether a sum is multiplied for the whole batch at once: by blocks, each would read and write it."""
    return isinstance(summed, layers.Factors)


def _apply(module: nn.Module, params: Any, x: Array, taps: dict[str, Array]) -> _Pass:
    calls: dict[str, layers.Call] = {}

    def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        layer = context.module
        call = layers.call(layer, args[0]) if context.method_name == "__call__" else None
        if call is None:
            return method(*args, **kwargs)
        path = "/".join(layer.path)
        if path in calls:
            raise UnknownLayer(f"layer {path} is called twice")
        calls[path] = call
        return call.add(taps[path]) if taps else call.output

    with nn.intercept_methods(intercept):
        logits: Any = module.apply({"params": params}, x)
    unknown = set(_by_module(params)) - set(calls)
    if unknown:
        named = ", ".join(name or "the module itself" for name in sorted(unknown))
        raise UnknownLayer(f"{named}: no Dense, Conv, GroupNorm or LayerNorm, whose sums are known")
    return logits, calls


def _by_module(params: Any) -> dict[str, list[str]]:
    own: dict[str, list[str]] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        own.setdefault(_module(path), []).append(path[-1].key)
    return own


def _module(path: Any) -> str:
    return "/".join(entry.key for entry in path[:-1])
