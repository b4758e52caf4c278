"""Book-keeping layer by layer: per-example gradient norms from one backward pass per block of examples.

A block's intermediate results fit into a processor's cache.
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
from audit.mechanism.clipping.layers import (
    Call,
    ExampleGradients,
    Factors,
    find_gradients,
    pass_through,
)

# The number of bytes that a model's layers may store for a block. Of the sizes from 0.6 to 2.5 MiB, this was
# the fastest on a CPU for four ConvNets.
_CPU_BLOCK = 5 << 18
_ACCELERATOR_BLOCK = 1 << 30
# A block may always use this multiple of the parameters' bytes.
_MIN_BLOCK_PER_PARAMETERS = 4

_Shapes = dict[Path, tuple[int, int]]  # `Call.shape` keyed by layer
_Block = tuple[Array, Array, Array]  # features (b, ...), labels (b, ...), weights (b,)
_Pass = tuple[Array, dict[Path, Call]]  # (logits or loss, each layer's call keyed by path)


def layerwise_book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """Returns the strategy for modules that consist of supported layers with any functions between them.

    `clipping.layers` lists these layers. Book-keeping (Bu et al., 2022, arXiv 2210.00038) stores each layer's
    inputs and the gradients at its outputs. From these, it computes the norms of per-example gradients and
    then the sum of the clipped gradients, one block of examples at a time.

    Args:
      module: module.apply({"params": unravel(theta)}, x) gives a single example's logits.
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.

    Raises:
      UnknownLayer: when called, if a parameter does not belong to exactly one call of such a layer.
    """
    block_bytes = _CPU_BLOCK if local_hardware().is_cpu else _ACCELERATOR_BLOCK

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Computes the sum (p,) of a batch's clipped gradients, block by block."""
        params = unravel(theta)
        features, _ = batch
        # A layer's `Call` holds its output and saved inputs for one example. We need their sizes.
        _, calls = jax.eval_shape(
            lambda x: _apply(module, params, x, perturbations=None), features[0]
        )
        shapes = {path: call.shape for path, call in calls.items()}
        # Every block reads and writes all parameters, so large blocks save time.
        budget = max(block_bytes, _MIN_BLOCK_PER_PARAMETERS * _count_bytes(params))
        max_examples = max(1, budget // _count_bytes(calls))
        blocks = _cut_into_blocks(batch, max_examples)
        by_path = flatten_dict(params)

        def add_block(totals: dict[Path, Array], block: _Block) -> tuple[Any, Any]:
            """Adds the sum of a block's clipped gradients to each parameter's total, keyed by path.

            For dense kernels, the sum is a product of two matrices, its `Factors`. If every block added its
            product to the total, it would read and write the whole kernel. Instead, `scan` stacks the factors
            of all blocks, and we multiply them at the end.
            """
            features, labels, weights = block  # weights are 0 for padding, else 1
            by_layer = _find_gradients(module, params, criterion, shapes, (features, labels))
            squared_norms = jnp.zeros(len(weights))  # of examples' gradients, over all parameters
            for by_name in by_layer.values():
                squared_norms += sum(gradients.squared_norms for gradients in by_name.values())
            scales = weights * scale_to_norm(squared_norms, clipping_norm)

            factors = {}
            next_totals = dict(totals)
            for path, total in totals.items():
                gradients = by_layer[path[:-1]][path[-1]]
                summed = gradients.weighted_sum(scales)
                if isinstance(summed, Factors):
                    factors[path] = summed
                else:
                    next_totals[path] = total + summed.reshape(total.shape)
            return next_totals, factors

        zeros = jax.tree.map(jnp.zeros_like, by_path)
        totals, factors = jax.lax.scan(add_block, zeros, blocks)
        for path, factor in factors.items():
            product = factor.sum()  # multiplies the matrices
            totals[path] = product.reshape(by_path[path].shape)
        return ravel_pytree(unflatten_dict(totals))[0]

    return clipped_sum


def _count_bytes(tree: Any) -> int:
    """Returns the total bytes of all arrays in a pytree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _cut_into_blocks(batch: Batch, max_examples: int) -> _Block:
    """Splits a batch into n blocks of b <= max_examples examples, (n, b, ...). Padding has weight 0."""
    features, labels = batch
    count = len(labels)
    blocks = math.ceil(count / max_examples)
    size = math.ceil(count / blocks)

    def cut(part: Array) -> Array:
        """Pads an array (B, ...) with zeros and splits it into blocks, (n, b, ...)."""
        zeros = jnp.zeros((blocks * size - count, *part.shape[1:]), part.dtype)
        padded = jnp.concatenate([part, zeros])
        return padded.reshape(blocks, size, *part.shape[1:])

    return cut(features), cut(labels), cut(jnp.ones(count))


def _find_gradients(
    module: nn.Module, params: Any, criterion: Criterion, shapes: _Shapes, block: Batch
) -> dict[Path, dict[str, ExampleGradients]]:
    """Returns the per-example gradients of a block of examples, by layer and parameter name.

    To obtain the gradients at the layers' outputs, we differentiate with respect to zeros (perturbations)
    added to the outputs, as `flax.linen.Module.perturb` does. `shapes` are the shapes of one example's
    outputs.
    """
    features, labels = block

    def total_loss(perturbations: dict[Path, Array]) -> _Pass:
        """Returns (the block's summed loss, each layer's calls keyed by path)."""
        logits, calls = jax.vmap(partial(_apply, module, params))(features, perturbations)
        losses = jax.vmap(criterion)(logits, labels)
        return jnp.sum(losses), calls

    zeros = {path: jnp.zeros((len(labels), *shape)) for path, shape in shapes.items()}
    at_outputs, calls = jax.grad(total_loss, has_aux=True)(zeros)
    by_layer = {}
    for layer in shapes:
        names = {path[-1] for path in flatten_dict(params) if path[:-1] == layer}
        by_layer[layer] = find_gradients(names, calls[layer], at_outputs[layer])
    return by_layer


def _apply(
    module: nn.Module, params: Any, x: Array, perturbations: dict[Path, Array] | None
) -> _Pass:
    """Returns (one example's logits, each layer's `Call` keyed by path).

    `perturbations` holds zeros to add to each layer's output; None adds none.
    """

    def compute(layer: nn.Module, x: Array) -> tuple[Array, Call] | None:
        """Returns (a layer's output, its `Call`); None for an unsupported layer."""
        call = pass_through(layer, x)
        if call is None:
            return None
        output = call.output
        if perturbations is not None:
            matrix = perturbations[layer.path]  # positions and channels
            output = output + matrix.reshape(output.shape)
        return output, call

    return apply(module, params, x, compute)
