"""Sums of clipped per-example gradients: one definition, several strategies (see also `layerwise`).

A strategy is a function

    clipped_sum(theta (p,), (features (B, ...), labels (B, ...)), clipping_norm) -> (p,)

that returns sum_i g_i * min(1, C / ||g_i||) for the gradients g_i of a loss of a single example (hidden-state
paper, Equation 2), for a single model.

    strategy                works for             materialises (B, p)   cost of one model-step
    per_example             any loss              yes                   a backward pass per example
    book_keeping            dense, narrow         no                    one backward pass, one contraction
    unfolded_book_keeping   dense, convolutions   of narrow layers      likewise

A gradient of norm 0 adds 0; C = inf does not clip; a NaN gradient makes the sum NaN. Tests require that the
sums agree within 1e-5 of C per coordinate in float32, for C and norms between 1e-12 and 1e12 and products at
JAX's matmul precision "float32", which is not the default on GPUs.
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

from audit.mechanism.clipping.layers import Path, UnknownLayer, apply, is_exactly

Batch = tuple[Array, Array]
ClippedSum = Callable[[Array, Batch, Array], Array]
Loss = Callable[[Array, tuple[Array, Array]], Array]
Criterion = Callable[[Array, Array], Array]
# Its root times any C is far below float32's sums.
_TINY = 1e-30


@jax.custom_jvp
def scale_to_norm(squared_norm: Array, clipping_norm: Array) -> Array:
    """Returns min(1, C / norm) for squared norms of any shape; 1 for a norm of 0."""
    inverse_norm = jax.lax.rsqrt(jnp.maximum(squared_norm, _TINY))
    return jnp.minimum(1.0, clipping_norm * inverse_norm)


@scale_to_norm.defjvp
def _differentiate_scale(
    values: tuple[Array, Array], changes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Returns `scale_to_norm` and its derivative along changes of the squared norm and of C.

    JAX's derivative of `rsqrt` is infinite at 0 and would give NaN.
    """
    squared_norm, clipping_norm = values
    squared_change, clipping_change = changes
    scale = scale_to_norm(squared_norm, clipping_norm)
    is_clipped = scale < 1
    # Without clipping, the squared norm may be 0.
    squared_divisor = jnp.where(is_clipped, squared_norm, 1.0)
    clipping_divisor = jnp.where(is_clipped, clipping_norm, 1.0)
    # For a squared norm r the scale C r^(-1/2) changes by C r^(-1/2) (dC / C - dr / (2 r)).
    change = scale * (clipping_change / clipping_divisor - 0.5 * squared_change / squared_divisor)
    return scale, jnp.where(is_clipped, change, 0.0)


def clip(vector: Array, clipping_norm: Array) -> Array:
    """Returns vector (p,) * min(1, C / ||vector||) (hidden-state paper, Equation 2).

    We divide by the largest entry first, so no square overflows or vanishes in float32.
    """
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1.0)
    norm = largest * jnp.linalg.norm(scaled)
    return vector * jnp.minimum(1.0, clipping_norm / norm)


def per_example(loss: Loss) -> ClippedSum:
    """Returns the function that sums clipped gradients of any loss(theta, example), by vmap."""

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns sum_i g_i min(1, C / ||g_i||), (p,); all gradients (B, p) are in memory."""
        separate_batch = separate(theta, batch)
        compute_gradients = jax.vmap(jax.grad(loss), (None, 0))
        gradients = compute_gradients(theta, separate_batch)
        squared_norms = jnp.sum(gradients**2, axis=1)
        scales = scale_to_norm(squared_norms, clipping_norm)
        total: Array = scales @ gradients
        return total

    return clipped_sum


def separate(theta: Array, batch: Batch) -> Batch:
    """Returns the batch with the same features (B, ...), which JAX now sees as dependent on theta (p,).

    This works around a limit of JAX 0.10 to 0.12: on a mesh of devices, with models under `vmap`, it cannot
    take per-example gradients of convolution kernels for features that all models share. A selection by an
    entry of theta makes `vmap` batch the features too. XLA removes it from the compiled program.
    """
    features, labels = batch
    # False if theta is NaN. In both cases the selection gives the features.
    depends_on_theta = theta[0] == theta[0]
    return jnp.where(depends_on_theta, features, features), labels


# Up to these multiply-adds per output column, a product is written out as a sum.
_UNROLLED = 32


def book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """Returns the function that sums clipped per-example gradients of dense layers and elementwise functions.

    It forms no per-example gradient. A dense layer's gradient for one example is the outer product of its
    input a (with a 1 for the bias) and its output gradient g, so its squared norm is ||g||^2 (||a||^2 + 1)
    (Goodfellow, 2015, "Efficient Per-Example Gradient Computations", arXiv 1510.01799). The clipped sum is
    one product of the inputs with the output gradients scaled by min(1, C / norm). Examples are columns,
    which fills vector registers even if layers are narrow.

    Args:
      module: module.apply({"params": unravel(theta)}, x (features,)) gives logits (outputs,).
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.

    A function between the layers that is not elementwise would mix examples, so compare a module's sum with
    that of `per_example` first.

    Raises:
      UnknownLayer: when called, if a parameter does not belong to exactly one call of a flax.linen.Dense with
        a bias. Use `per_example` for such modules.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns the clipped sum (p,) of the gradients of features (B, inputs) with labels (B, ...).

        We add zeros (outputs, B), the "taps", to every dense layer's output. The total loss's gradient at a
        tap is the gradient at the layer's output, with an example in each column.
        """
        features, labels = batch
        columns = features.T  # an example in each column
        params = unravel(theta)
        taps = {}
        for path, value in flatten_dict(params).items():
            if path[-1] == "kernel":
                shape = (value.shape[-1], len(labels))
                taps[path[:-1]] = jnp.zeros(shape, value.dtype)
        # Layers that read the features, which all models of an ensemble share.
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
                kernel = parameters["kernel"]
                # XLA fuses the written-out sums with later operations, but not the call of a matrix product.
                is_small = kernel.size <= _UNROLLED
                product = _small_product(kernel, inputs) if is_small else kernel.T @ inputs
                output = product + parameters["bias"][:, None] + taps[layer.path]
                return output, inputs

            logits, inputs = apply(module, params, columns, compute)
            losses = jax.vmap(criterion, (-1, 0))(logits, labels)
            return jnp.sum(losses), inputs

        # This traces `total_loss` and completes `reads_features`.
        gradients, inputs = jax.grad(total_loss, has_aux=True)(taps)
        squared_norms = jnp.zeros(len(labels), theta.dtype)
        for path in gradients:
            gradient_squares = _row_sum(gradients[path] ** 2)
            input_squares = _row_sum(inputs[path] ** 2)
            squared_norms = squared_norms + gradient_squares * (1 + input_squares)
        scales = scale_to_norm(squared_norms, clipping_norm)  # (B,)

        sums = {}
        for path, gradient in gradients.items():
            scaled = gradient * scales
            if path in reads_features:
                # One product gives both sums, with a row of 1 as the bias's input. Other layers would copy
                # every model's inputs for it.
                bias_input = jnp.ones((1, len(labels)), columns.dtype)
                all_inputs = jnp.concatenate([inputs[path], bias_input])
                both = scaled @ all_inputs.T  # (outputs, inputs + 1)
                sums[(*path, "kernel")] = both[:, :-1].T
                sums[(*path, "bias")] = both[:, -1]
            else:
                sums[(*path, "kernel")] = (scaled @ inputs[path].T).T
                sums[(*path, "bias")] = jnp.sum(scaled, axis=1)
        return ravel_pytree(unflatten_dict(sums))[0]

    return clipped_sum


@jax.custom_vjp
def _small_product(kernel: Array, columns: Array) -> Array:
    """Returns kernel.T @ columns, each output row written out as a sum."""
    rows = []
    for weights in kernel.T:
        rows.append(_row_sum(weights[:, None] * columns))
    return jnp.stack(rows)


def _small_product_forward(kernel: Array, columns: Array) -> tuple[Array, tuple[Array, Array]]:
    """Returns kernel.T @ columns, and (kernel, columns) for the backward pass."""
    return _small_product(kernel, columns), (kernel, columns)


def _small_product_backward(saved: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    """Returns the gradients at kernel and columns, from those at the product (outputs, B).

    JAX's derivative of the written-out sums would pad the gradient of each slice.
    """
    kernel, columns = saved
    return columns @ gradients.T, _small_product(kernel.T, gradients)


_small_product.defvjp(_small_product_forward, _small_product_backward)


def _row_sum(rows: Array) -> Array:
    """Sums rows (n, B); up to _UNROLLED rows as row + row + ..., which XLA computes in vector registers."""
    if len(rows) > _UNROLLED:
        return jnp.sum(rows, axis=0)
    total: Array = functools.reduce(jnp.add, list(rows))
    return total
