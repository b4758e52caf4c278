"""Book-keeping layer by layer: per-example gradient norms from one backward pass over a block of examples.

Book-keeping (Bu et al., 2022, arXiv 2210.00038) stores what a backward pass computes and sums the clipped
gradients from it; each layer's norm is measured in the cheaper of two forms (mixed ghost clipping: Bu, Mao
and Xu, 2022, arXiv 2205.10683). To unfold a convolution's input is im2col: it becomes a matrix of patches.

The layers are those of `layers`. What they store of a block fits a processor's cache, and no more than a
block is ever held, but for the factors of dense kernels' sums (`layers.Factors`): that bounds the memory of
deep networks too. `clipping.book_keeping` is faster for narrow dense networks.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.clipping import layers
from audit.mechanism.clipping.base import (
    Batch,
    ClippedSum,
    Criterion,
    scale_to_norm,
)
from audit.mechanism.memory import local_hardware

# The best of 0.6 to 2.5 MiB for the ConvNet, with four models at once.
_CPU_BLOCK = 5 << 18
_ACCELERATOR_BLOCK = 1 << 30
_BLOCK_BY_PARAMETERS = 4  # a block's least size, by that of the parameters


_Shapes = dict[str, tuple[int, int]]
_Pass = tuple[Array, dict[str, layers.Call]]  # logits or losses; each layer's call, by its path


class _Block(NamedTuple):
    """Features (b, ...), labels (b, ...) and weights (b,) of a block of examples."""

    features: Array
    labels: Array
    weights: Array


def unfolded_book_keeping(
    module: nn.Module,
    unravel: Callable[[Array], Any],
    criterion: Criterion,
    block_bytes: int,
) -> ClippedSum:
    """Returns the function that sums clipped per-example gradients of a module.

    The module consists of the layers in `layers`, and of any functions between them.

    Args:
      module: module.apply({"params": unravel(theta)}, x) gives a single example's logits.
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.
      block_bytes: the most bytes that a model's layers may store of a block of examples: their unfolded
        inputs and their output gradients. If the parameters times _BLOCK_BY_PARAMETERS take more bytes, that
        is the limit instead. Every block reads and writes the parameters several times, which many small
        blocks would do too often.

    Raises:
      layers.UnknownLayer: a parameter does not belong to exactly one call of such a layer. The strategy
        raises it.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns sum_i g_i min(1, C / ||g_i||), (p,), of a batch, block by block."""
        params = unravel(theta)
        # Each layer's output shape, and the most examples of a block.
        shapes, size = _plan_blocks(module, params, batch, block_bytes)

        # The sum of a kernel's gradients over a block may come as Factors: the inputs and the scaled output
        # gradients, whose product is the sum. Such kernels are left out of the running total, or every block
        # would read and write a kernel's whole sum. Their factors are stacked instead, and are multiplied at
        # the end, all at once.
        def add_unless_factored(total: Array, summed: Any) -> Array:
            """Returns a parameter's total plus its sum over a block, unless that is held as Factors."""
            if _is_factored(summed):
                return total
            added: Array = total + summed.reshape(total.shape)
            return added

        def keep_factors(summed: Any) -> layers.Factors | None:
            """Returns a parameter's sum over a block if it is Factors, else None."""
            return summed if _is_factored(summed) else None

        def add_block(total: Any, block: _Block) -> tuple[Any, Any]:
            """Adds a block's sums to the total, and returns the factors that are left out of it."""
            sums = _block_sum(module, params, criterion, shapes, block, clipping_norm)
            total = jax.tree.map(add_unless_factored, total, sums)
            return total, jax.tree.map(keep_factors, sums, is_leaf=_is_factored)

        def complete(total: Array, factors: layers.Factors | None) -> Array:
            """Returns a parameter's sum: its total, or the product of the factors of all blocks."""
            return total if factors is None else factors.sum().reshape(total.shape)

        zeros = jax.tree.map(jnp.zeros_like, params)
        total, factors = jax.lax.scan(add_block, zeros, _cut_into_blocks(batch, size))
        return ravel_pytree(jax.tree.map(complete, total, factors))[0]

    return clipped_sum


def block_bytes() -> int:
    """Returns how many bytes the stored inputs and gradients of a single model's block of examples may take.

    A CPU's blocks are small, since they are to stay in its cache.
    """
    devices = local_hardware()
    return _CPU_BLOCK if devices.is_cpu else _ACCELERATOR_BLOCK


def _plan_blocks(
    module: nn.Module, params: Any, batch: Batch, block_bytes: int
) -> tuple[_Shapes, int]:
    """Returns (each layer's path -> the shape of its output as a matrix, the most examples of a block).

    Args:
      module: the network.
      params: its parameters.
      batch: features (B, ...) and labels; only the shape of the features is read.
      block_bytes: how many bytes the layers may store of a block. A block may always store
        _BLOCK_BY_PARAMETERS times the bytes of the parameters.
    """
    features, _ = batch
    # The shapes of a single example's pass, which is traced but not computed.
    _, calls = jax.eval_shape(lambda x: _apply(module, params, x, {}), features[0])
    shapes = {path: call.shape for path, call in calls.items()}
    budget = max(block_bytes, _BLOCK_BY_PARAMETERS * _count_bytes(params))
    # A block has at least an example, even if that exceeds the budget.
    return shapes, max(1, budget // _count_bytes(calls))


def _count_bytes(tree: Any) -> int:
    """Returns the bytes of all arrays in a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cut_into_blocks(batch: Batch, most: int) -> _Block:
    """Cuts a batch into n blocks of equal size b <= `most`, (n, b, ...); zeros of weight 0 fill the last."""
    features, labels = batch
    count = len(labels)
    blocks = math.ceil(count / most)
    size = math.ceil(count / blocks)

    def cut(part: Array) -> Array:
        """Pads an array (B, ...) with zeros and cuts it into blocks, (n, b, ...)."""
        no_padding = ((0, 0),) * (part.ndim - 1)
        padded = jnp.pad(part, ((0, blocks * size - count), *no_padding))
        return padded.reshape(blocks, size, *part.shape[1:])

    return _Block(cut(features), cut(labels), cut(jnp.ones(count)))


def _block_sum(
    module: nn.Module,
    params: Any,
    criterion: Criterion,
    shapes: _Shapes,
    block: _Block,
    clipping_norm: Array,
) -> Any:
    """Returns a block's clipped sum in the parameters' tree: an array or `layers.Factors` for each.

    An array has the parameter's size, not necessarily its shape.

    Args:
      module: the network.
      params: its parameters.
      criterion: criterion(logits, label) is the loss of a single example.
      shapes: every layer's path -> the shape of its output as a matrix.
      block: the examples and their weights.
      clipping_norm: C.
    """

    def loss(x: Array, label: Array, taps: dict[str, Array]) -> _Pass:
        """Returns (a single example's loss, each layer's call by its path), with taps added to outputs."""
        logits, calls = _apply(module, params, x, taps)
        return criterion(logits, label), calls

    def total_loss(taps: dict[str, Array]) -> _Pass:
        """Returns (the summed loss of the block's examples, each layer's calls by its path)."""
        losses, calls = jax.vmap(loss)(block.features, block.labels, taps)
        return jnp.sum(losses), calls

    # Taps are zeros that are added to the layers' outputs: the gradients at them are those at the outputs.
    count = len(block.labels)
    taps = {path: jnp.zeros((count, *shape)) for path, shape in shapes.items()}
    gradients, calls = jax.grad(total_loss, has_aux=True)(taps)

    # The squared norm of an example's gradient is the sum over all parameters of all layers.
    names: dict[str, set[str]] = {path: set() for path in shapes}
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        names[layers.module_of(path)].add(path[-1].key)
    measures = {}
    for layer in shapes:
        measures[layer] = layers.measure(names[layer], calls[layer], gradients[layer])
    squared_norms = jnp.zeros(count)
    for by_parameter in measures.values():
        squared_norms = squared_norms + sum(measure.squares for measure in by_parameter.values())
    scales = block.weights * scale_to_norm(squared_norms, clipping_norm)

    def contract(path: Any, _: Array) -> Array | layers.Factors:
        """Returns the clipped sum of the parameter at this path, whose last entry is the parameter's name."""
        return measures[layers.module_of(path)][path[-1].key].contract(scales)

    return jax.tree_util.tree_map_with_path(contract, params)


def _is_factored(summed: Any) -> bool:
    """Returns whether a parameter's sum over a block is held as `layers.Factors`."""
    return isinstance(summed, layers.Factors)


def _apply(module: nn.Module, params: Any, x: Array, taps: dict[str, Array]) -> _Pass:
    """Returns a single example's logits, and the call of each layer by the layer's path.

    A tap is an array that is added to a layer's output: a gradient at the tap is that at the output.

    Args:
      module: the network.
      params: its parameters.
      x: the example's features.
      taps: each layer's path -> a matrix that is added to its output; empty: nothing is added.

    Raises:
      UnknownLayer: a parameter belongs to no layer that can be measured, or a layer is called twice.
    """

    def compute(layer: nn.Module, x: Array) -> tuple[Array, layers.Call] | None:
        """Returns (a layer's output plus its tap, its call), or None for what cannot be measured."""
        call = layers.call(layer, x)
        if call is None:
            return None
        if not taps:  # only the shapes of the calls are wanted
            return call.output, call
        return call.add(taps["/".join(layer.path)]), call

    return layers.apply(module, params, x, compute)
