"""Book-keeping for narrow dense networks, with the examples on the last axis.

One backward pass stores every layer's inputs and output gradients; from these come the per-example gradient
norms (ghost norms: Li et al., 2022, "Large Language Models Can Be Strong Differentially Private Learners",
Section 4) and then the clipped sum, with no second pass (Bu et al., 2022, "Differentially Private
Optimization on Large Model at Small Cost", arXiv 2210.00038).
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.flatten_util import ravel_pytree

from audit.mechanism.clipping.base import Batch, ClippedSum, Criterion, scale_to_norm
from audit.mechanism.clipping.layers import Path, UnknownLayer, apply, is_exactly

# Multiply-adds an output column up to which a product is written out as a sum.
_UNROLLED = 32


def book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """Returns the function that sums clipped per-example gradients of dense layers and elementwise functions.

    No per-example gradient is formed. A dense layer's gradient for one example is the outer product of its
    input a (with a 1 for the bias) and its output gradient g, so its squared norm is ||g||^2 (||a||^2 + 1)
    (Goodfellow, 2015, "Efficient Per-Example Gradient Computations", arXiv 1510.01799), and the clipped sum
    is one product of the inputs with the output gradients scaled by min(1, C / norm). Examples lie
    on the last axis, where they fill vector registers whatever the layers' widths.

    Args:
      module: module.apply({"params": unravel(theta)}, x (features,)) gives logits (outputs,).
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.

    The module is applied to a whole batch whose examples are columns. A function between the layers that is
    not elementwise would mix examples: compare a module's sum with that of `per_example` first.

    Raises:
      UnknownLayer: a parameter does not belong to exactly one call of a flax.linen.Dense with a bias. The
        strategy raises it. `per_example` serves such modules.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns the clipped sum (p,) of the gradients of features (B, inputs) with labels (B, ...).

        Zeros (outputs, B), the "taps", are added to every dense layer's output. Column i of the total loss's
        gradient at a layer's taps is the gradient g at the layer's output for example i. With that example's
        input a to the layer, the squared norm of the example's gradient is

            ||g||^2 (1 + ||a||^2), summed over layers; the 1 is for the bias.
        """
        features, labels = batch
        columns = features.T  # an example in each column
        params = unravel(theta)
        taps = {}
        for path, value in flatten_dict(params).items():
            if path[-1] == "kernel":
                taps[path[:-1]] = jnp.zeros((value.shape[-1], len(labels)), value.dtype)
        # Paths of the layers whose input is the features themselves. All models of an ensemble share these
        # inputs, which `_contract` makes use of.
        reads_features: set[Path] = set()

        def total_loss(taps: dict[Path, Array]) -> tuple[Array, dict[Path, Array]]:
            """Returns (the examples' summed loss, each layer's input by its path); fills `reads_features`."""

            def compute(layer: nn.Module, inputs: Array) -> tuple[Array, Array] | None:
                """Returns (a dense layer's output plus its tap, its input), or None for another layer."""
                if not is_exactly(layer, nn.Dense):
                    return None
                parameters = layer.variables["params"]
                if "bias" not in parameters:
                    raise UnknownLayer(f"layer {'/'.join(layer.path)} has no bias")
                if inputs is columns:
                    reads_features.add(layer.path)
                product = _multiply(parameters["kernel"], inputs)
                return product + parameters["bias"][:, None] + taps[layer.path], inputs

            logits, inputs = apply(module, params, columns, compute)
            return jnp.sum(jax.vmap(criterion, (-1, 0))(logits, labels)), inputs

        # This traces `total_loss`: afterwards `reads_features` is complete.
        gradients, inputs = jax.grad(total_loss, has_aux=True)(taps)
        squared_norms = jnp.zeros(len(labels), theta.dtype)
        for path in gradients:
            gradient_squares = _row_sum(gradients[path] ** 2)
            input_squares = _row_sum(inputs[path] ** 2)
            squared_norms = squared_norms + gradient_squares * (1 + input_squares)
        scales = scale_to_norm(squared_norms, clipping_norm)  # (B,)

        # A layer's clipped sum is the product of its inputs with the scaled output gradients.
        sums = {}
        for path, gradient in gradients.items():
            layer = _contract(inputs[path], gradient * scales, path in reads_features)
            for name, value in layer.items():
                sums[(*path, name)] = value
        return ravel_pytree(unflatten_dict(sums))[0]

    return clipped_sum


def _multiply(kernel: Array, columns: Array) -> Array:
    """Returns kernel.T (outputs, inputs) @ columns (inputs, B); as written-out sums for a small kernel."""
    if kernel.size <= _UNROLLED:
        # XLA fuses written-out sums with what follows, but not the call of a matrix product.
        return _small_product(kernel, columns)
    return kernel.T @ columns


@jax.custom_vjp
def _small_product(kernel: Array, columns: Array) -> Array:
    """Returns kernel.T @ columns, each output row written out as a sum."""
    return jnp.stack([_row_sum(weights[:, None] * columns) for weights in kernel.T])


def _small_product_forward(kernel: Array, columns: Array) -> tuple[Array, tuple[Array, Array]]:
    """Returns kernel.T @ columns, and what `_small_product_backward` needs: (kernel, columns)."""
    return _small_product(kernel, columns), (kernel, columns)


def _small_product_backward(saved: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    """Returns the gradients at kernel and columns, from those at the product (outputs, B).

    It is written by hand: JAX's own derivative of the written-out sums, which slice the kernel and the
    columns, would pad the gradient of each slice.

    Args:
      saved: (kernel (inputs, outputs), columns (inputs, B)).
      gradients: the gradients at the product, (outputs, B).
    """
    kernel, columns = saved
    return columns @ gradients.T, _small_product(kernel.T, gradients)


_small_product.defvjp(_small_product_forward, _small_product_backward)


def _row_sum(rows: Array) -> Array:
    """Sums rows (n, B) over the first axis; a sum of up to _UNROLLED rows is written out, row + row + ...

    XLA computes such a sum for many examples, which lie along the last axis, at once in vector registers.
    """
    if len(rows) > _UNROLLED:
        return jnp.sum(rows, axis=0)
    total: Array = functools.reduce(jnp.add, list(rows))
    return total


def _contract(inputs: Array, gradients: Array, shared: bool) -> dict[str, Array]:
    """Returns a dense layer's clipped sums, "kernel" (inputs, outputs) and "bias" (outputs,).

    Args:
      inputs: the layer's inputs (inputs, B).
      gradients: the scaled output gradients (outputs, B).
      shared: whether all models share the inputs. If so, a single product gives both sums, with a row of 1 as
        the bias's input. Otherwise that row would cost a copy of every model's inputs.
    """
    if shared:
        bias_input = jnp.ones((1, inputs.shape[1]), inputs.dtype)
        sums = gradients @ jnp.concatenate([inputs, bias_input]).T  # (outputs, inputs + 1)
        return {"kernel": sums[:, :-1].T, "bias": sums[:, -1]}
    return {"kernel": (gradients @ inputs.T).T, "bias": jnp.sum(gradients, axis=1)}
