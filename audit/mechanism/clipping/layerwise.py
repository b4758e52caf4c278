"""Book-keeping layer by layer: per-example gradient norms from one backward pass per block of examples.

Book-keeping (Bu et al., 2022, arXiv 2210.00038) stores the results of a backward pass, and computes the sum
of clipped gradients from them. We store the results for one block at a time, which fit into a processor's
cache, and the factors of the sums for dense kernels (`Factors`).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.base import local_hardware
from audit.mechanism.clipping.base import (
    Batch,
    ClippedSum,
    Criterion,
    Path,
    apply,
    scale_to_norm,
)
from audit.mechanism.clipping.layers import Call, Factors, Measure, measure_gradients, pass_through

# The number of bytes that a model's layers may store for a block. On a CPU, this was the fastest of 0.6 to
# 2.5 MiB for four ConvNets. It is at least _BLOCK_BY_PARAMETERS times the size of the parameters in
# bytes.
_CPU_BLOCK = 5 << 18
_ACCELERATOR_BLOCK = 1 << 30
_BLOCK_BY_PARAMETERS = 4

_Shapes = dict[Path, tuple[int, int]]  # `Call.shape` keyed by layer
_Block = tuple[Array, Array, Array]  # features (b, ...), labels (b, ...), weights (b,)
_Pass = tuple[Array, dict[Path, Call]]  # (logits or losses, each layer's call by its path)


def unfolded_book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """Returns the strategy for modules made up of the layers in `layers`, with any functions between them.

    Args:
      module: module.apply({"params": unravel(theta)}, x) gives a single example's logits.
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.

    Raises:
      UnknownLayer: when called, if a parameter does not belong to exactly one call of such a layer.
    """
    block_bytes = _CPU_BLOCK if local_hardware().is_cpu else _ACCELERATOR_BLOCK

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Computes the batch's clipped sum, of shape (p,), block by block."""
        params = unravel(theta)
        features, _ = batch
        # The calls for one example determine the layers' output shapes and the examples per block.
        _, calls = jax.eval_shape(lambda x: _apply(module, params, x, None), features[0])
        shapes = {path: call.shape for path, call in calls.items()}
        # Every block reads and writes all parameters, so large blocks save time.
        budget = max(block_bytes, _BLOCK_BY_PARAMETERS * _count_bytes(params))
        max_examples = max(1, budget // _count_bytes(calls))
        blocks = _cut_into_blocks(batch, max_examples)
        by_path = flatten_dict(params)

        def add_block(totals: dict[Path, Array], block: _Block) -> tuple[Any, Any]:
            """Adds a block's sums to each parameter's total; returns (totals, the `Factors` of other sums).

            For dense kernels, a sum is a product of two `Factors`. Adding it would read and write the whole
            kernel in every block. So `scan` stacks the factors of all blocks, and we multiply them at the
            end. A path is (*layer, parameter name).
            """
            _, _, weights = block  # 0 for padding, else 1
            by_layer = _measure_block(module, params, criterion, shapes, block)
            squared_norms = jnp.zeros(len(weights))  # of examples' gradients, over all layers
            for measures in by_layer.values():
                squared_norms += sum(measure.squares for measure in measures.values())
            scales = weights * scale_to_norm(squared_norms, clipping_norm)

            factors = {}
            next_totals = dict(totals)
            for path, total in totals.items():
                measure = by_layer[path[:-1]][path[-1]]
                summed = measure.contract(scales)
                if isinstance(summed, Factors):
                    factors[path] = summed
                else:
                    next_totals[path] = total + summed.reshape(total.shape)
            return next_totals, factors

        zeros = jax.tree.map(jnp.zeros_like, by_path)
        totals, factors = jax.lax.scan(add_block, zeros, blocks)
        for path, factor in factors.items():
            totals[path] = factor.sum().reshape(by_path[path].shape)
        return ravel_pytree(unflatten_dict(totals))[0]

    return clipped_sum


def _count_bytes(tree: Any) -> int:
    """Returns the total bytes of all arrays in a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cut_into_blocks(batch: Batch, max_examples: int) -> _Block:
    """Cuts a batch into n blocks of b <= max_examples, (n, b, ...). Padding in the last one has weight 0."""
    features, labels = batch
    count = len(labels)
    blocks = math.ceil(count / max_examples)
    size = math.ceil(count / blocks)

    def cut(part: Array) -> Array:
        """Pads an array (B, ...) with zeros and cuts it into blocks, (n, b, ...)."""
        zeros = jnp.zeros((blocks * size - count, *part.shape[1:]), part.dtype)
        padded = jnp.concatenate([part, zeros])
        return padded.reshape(blocks, size, *part.shape[1:])

    return cut(features), cut(labels), cut(jnp.ones(count))


def _measure_block(
    module: nn.Module, params: Any, criterion: Criterion, shapes: _Shapes, block: _Block
) -> dict[Path, dict[str, Measure]]:
    """Returns the norms and weighted sums of a block's per-example gradients, by layer and parameter name.

    `shapes` holds the shapes of the layers' outputs for one example. We add zeros, the "taps", to these
    outputs: the gradient at a tap is the gradient at the output.
    """
    features, labels, _ = block

    def total_loss(taps: dict[Path, Array]) -> _Pass:
        """Returns (the block's summed loss, each layer's calls by its path)."""
        logits, calls = jax.vmap(partial(_apply, module, params))(features, taps)
        losses = jax.vmap(criterion)(logits, labels)
        return jnp.sum(losses), calls

    taps = {path: jnp.zeros((len(labels), *shape)) for path, shape in shapes.items()}
    gradients, calls = jax.grad(total_loss, has_aux=True)(taps)
    measures = {}
    for layer in shapes:
        names = {path[-1] for path in flatten_dict(params) if path[:-1] == layer}
        measures[layer] = measure_gradients(names, calls[layer], gradients[layer])
    return measures


def _apply(module: nn.Module, params: Any, x: Array, taps: dict[Path, Array] | None) -> _Pass:
    """Returns (one example's logits, each layer's `Call`: its output and saved inputs, by path).

    `taps` are zeros to add to the layers' outputs, to obtain the gradients there; None adds none.
    """

    def compute(layer: nn.Module, x: Array) -> tuple[Array, Call] | None:
        """Returns (a layer's output plus its tap of zeros, its `Call`); None for an unsupported layer."""
        call = pass_through(layer, x)
        if call is None:
            return None
        output = call.output
        if taps is not None:
            output = output + taps[layer.path].reshape(output.shape)
        return output, call

    return apply(module, params, x, compute)
