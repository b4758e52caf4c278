"""Computes sums of clipped per-example gradients by several strategies (see also `layerwise`).

A strategy is a function for a single model,

    clipped_sum(theta (p,), (features (B, ...), labels (B, ...)), clipping_norm) -> (p,)

that returns sum_i g_i * min(1, C / ||g_i||), where g_i is the gradient of the loss of example i (hidden-state
paper, Equation 2).

    strategy                works for             stores (B, p)       cost of one step of one model
    per_example             any loss              yes                 a backward pass per example
    book_keeping            dense, narrow         no                  one backward pass, one contraction
    layerwise_book_keeping  dense, convolutions   for narrow layers   likewise

A gradient of norm 0 contributes 0. C = inf disables clipping. A NaN gradient makes the sum NaN. In float32
tests, strategies agree within 1e-5 C per coordinate, for C and norms between 1e-12 and 1e12. On GPUs, set
JAX's matmul precision to "float32", which is not the default.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.flatten_util import ravel_pytree

Saved = TypeVar("Saved")
Path = tuple[str, ...]  # names of a module and its parents, outermost first
Batch = tuple[Array, Array]
ClippedSum = Callable[[Array, Batch, Array], Array]
_Inputs = dict[Path, Array]  # by layer
Loss = Callable[[Array, tuple[Array, Array]], Array]
Criterion = Callable[[Array, Array], Array]
# The smallest squared norm that we divide by.
_TINY = 1e-30
# Products and sums of up to this many terms per example are unrolled into additions.
_UNROLLED = 32


class UnknownLayer(TypeError):
    """Raised if a strategy does not support a layer with parameters, or if the layer is called twice."""


@jax.custom_jvp
def scale_to_norm(squared_norm: Array, clipping_norm: Array) -> Array:
    """Returns min(1, C / norm) for squared norms of any shape; 1 for a norm of 0."""
    inverse_norm = jax.lax.rsqrt(jnp.maximum(squared_norm, _TINY))  # finite
    return jnp.minimum(1.0, clipping_norm * inverse_norm)


@scale_to_norm.defjvp
def _differentiate_scale(
    values: tuple[Array, Array], changes: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Returns `scale_to_norm` and its derivative along `changes`.

    JAX's own derivative would be NaN at 0, where the derivative of `rsqrt` is infinite. `values` and
    `changes` are pairs (squared norm, C).
    """
    squared_norm, clipping_norm = values
    squared_change, clipping_change = changes
    scale = scale_to_norm(squared_norm, clipping_norm)
    is_clipped = scale < 1
    # An unclipped gradient may have norm 0. The derivative of its scale is 0 for any divisor.
    squared_divisor = jnp.where(is_clipped, squared_norm, 1.0)
    clipping_divisor = jnp.where(is_clipped, clipping_norm, 1.0)
    # For a squared norm r, the scale C r^(-1/2) changes by C r^(-1/2) (dC / C - dr / (2 r)).
    change = scale * (clipping_change / clipping_divisor - 0.5 * squared_change / squared_divisor)
    return scale, jnp.where(is_clipped, change, 0.0)


def clip(vector: Array, clipping_norm: Array) -> Array:
    """Returns vector * min(1, C / ||vector||) for a vector of shape (p,) (hidden-state paper, Equation 2).

    We divide by the largest entry first, because squares could otherwise overflow or underflow in float32.
    """
    largest = jnp.max(jnp.abs(vector))
    scaled = vector / jnp.where(largest > 0, largest, 1.0)
    norm = largest * jnp.linalg.norm(scaled)
    # If the norm is 0, the minimum of 1 and C / 0 = inf is 1.
    return vector * jnp.minimum(1.0, clipping_norm / norm)


def per_example(loss: Loss) -> ClippedSum:
    """Returns the strategy for any loss(theta (p,), (feature, label)): per-example gradients with `vmap`."""

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns the clipped sum, of shape (p,)."""
        compute_gradients = jax.vmap(jax.grad(loss), (None, 0))
        gradients = compute_gradients(theta, copy_per_theta(theta, batch))
        squared_norms = jnp.sum(gradients**2, axis=1)
        scales = scale_to_norm(squared_norms, clipping_norm)  # (B,)
        return jnp.matmul(scales, gradients)

    return clipped_sum


def copy_per_theta(theta: Array, batch: Batch) -> Batch:
    """Returns the same batch, but makes `vmap` over thetas copy the features (B, ...) for each theta.

    A selection makes the features appear to depend on theta. XLA removes this selection from the program. On
    a mesh of devices, JAX 0.10 to 0.12 cannot compute per-example gradients of convolution kernels if all
    thetas share the features.
    """
    features, labels = batch
    # True unless theta[0] is NaN. Both branches return the features.
    depends_on_theta = theta[0] == theta[0]
    return jnp.where(depends_on_theta, features, features), labels


def book_keeping(
    module: nn.Module, unravel: Callable[[Array], Any], criterion: Criterion
) -> ClippedSum:
    """Returns the strategy for modules of dense layers and elementwise functions.

    A dense layer's gradient for one example is the outer product of the layer's input a (with a 1 for the
    bias) and its output gradient g. So the squared norm is ||g||^2 (||a||^2 + 1) (Goodfellow, 2015, arXiv
    1510.01799). The clipped sum is the product of the inputs and the output gradients scaled by min(1, C /
    norm), so we never store gradients (B, p). Examples are columns, because columns fill vector registers
    even in narrow layers.

    A function between the layers that is not elementwise would mix examples and make the sum wrong. For a new
    module, first compare the sum with that of `per_example`.

    Args:
      module: module.apply({"params": unravel(theta)}, x (features,)) gives logits (outputs,).
      unravel: theta (p,) -> the module's parameters.
      criterion: criterion(logits, label) is the loss of a single example.

    Raises:
      UnknownLayer: when called, if a parameter does not belong to exactly one call of a flax.linen.Dense with
        a bias.
    """

    def clipped_sum(theta: Array, batch: Batch, clipping_norm: Array) -> Array:
        """Returns the clipped sum, of shape (p,), of the gradients for features (B, inputs) and their labels.

        Callers can `vmap` it over thetas with the same batch.
        """
        features, labels = batch
        columns = features.T  # one example per column
        params = unravel(theta)
        zeros = {}  # by layer
        for path, value in flatten_dict(params).items():
            if path[-1] == "kernel":
                zeros[path[:-1]] = jnp.zeros((value.shape[-1], len(labels)), value.dtype)

        def total_loss(perturbations: _Inputs) -> tuple[Array, tuple[_Inputs, _Inputs]]:
            """Returns the summed loss, all layers' inputs, and the inputs of layers that read `columns`.

            `perturbations` are zeros added to the layers' outputs (outputs, B) to obtain the gradients there,
            as in `flax.linen.Module.perturb`.
            """

            def compute(layer: nn.Module, layer_input: Array) -> tuple[Array, Array] | None:
                """Returns (a dense layer's perturbed output, its input); None for other layers."""
                if not is_exactly(layer, nn.Dense):
                    return None
                return _compute_dense(layer, layer_input) + perturbations[layer.path], layer_input

            logits, inputs = apply(module, params, columns, compute)
            losses = jax.vmap(criterion, (-1, 0))(logits, labels)  # examples are columns
            # Under `vmap` over parameters, only `columns` are shared, so we later sum the first layers'
            # gradients differently.
            first_layers = {}
            for path in inputs:
                if inputs[path] is columns:
                    first_layers[path] = columns
            return jnp.sum(losses), (inputs, first_layers)

        at_outputs, (inputs, first_layers) = jax.grad(total_loss, has_aux=True)(zeros)
        squared_norms = jnp.zeros(len(labels), theta.dtype)
        for path in at_outputs:
            gradient_squares = _sum_rows(at_outputs[path] ** 2)
            input_squares = _sum_rows(inputs[path] ** 2)
            # The norm of an outer product is the product of the norms. The 1 is the bias's input.
            squared_norms += gradient_squares * (1 + input_squares)
        scales = scale_to_norm(squared_norms, clipping_norm)  # (B,)

        sums = {}
        for path, gradients in at_outputs.items():
            scaled = gradients * scales
            if path in first_layers:
                # With a row of ones as the bias's input, one product computes both sums. For other
                # layers, adding ones would copy each theta's inputs.
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


def _compute_dense(layer: nn.Module, inputs: Array) -> Array:
    """Returns a dense layer's output (outputs, B); raises UnknownLayer if it has no bias."""
    parameters = layer.variables["params"]
    if "bias" not in parameters:
        raise UnknownLayer(f"layer {'/'.join(layer.path)} has no bias")
    kernel = parameters["kernel"]
    # XLA can fuse later operations with unrolled sums, but not with a matrix product.
    is_small = kernel.size <= _UNROLLED
    product = _small_product(kernel, inputs) if is_small else kernel.T @ inputs
    return product + parameters["bias"][:, None]


def apply(
    module: nn.Module,
    params: Any,
    x: Array,
    compute: Callable[[nn.Module, Array], tuple[Array, Saved] | None],
) -> tuple[Array, dict[Path, Saved]]:
    """Applies a module to x, using a clipping strategy to compute its layers.

    Args:
      compute: (layer, its input) -> (its output, a value to save for the strategy), or None to let Flax
        compute the layer.

    Returns:
      (the module's output, the saved values keyed by the layer's path).

    Raises:
      UnknownLayer: `compute` returns None for a layer with parameters, or a layer is called twice.
    """
    saved: dict[Path, Saved] = {}

    def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Returns a layer's output from `compute`, whose second return value it stores in `saved`."""
        inputs = [*args, *kwargs.values()]
        computed = None
        # `compute` does not support calls with additional arguments, such as a normalisation's mask.
        if context.method_name == "__call__" and len(inputs) == 1:
            computed = compute(context.module, inputs[0])
        if computed is None:
            return method(*args, **kwargs)
        path = context.module.path
        if path in saved:  # gradient norms require a single call
            raise UnknownLayer(f"layer {'/'.join(path)} is called twice")
        output, saved[path] = computed
        return output

    with nn.intercept_methods(intercept):
        result: Any = module.apply({"params": params}, x)
    for *path, _ in flatten_dict(params):
        if tuple(path) not in saved:
            name = "/".join(path) or "the module itself"
            raise UnknownLayer(
                f"{name}: this strategy supports only some layers, with a single input"
            )
    return result, saved


def is_exactly(layer: Any, kind: type[nn.Module]) -> bool:
    """Returns True if a layer computes exactly the same function as Flax's class `kind`, in float32.

    Subclasses may differ, and so may layers with another dtype or a custom `dot_general` or
    `conv_general_dilated`.
    """
    product = getattr(layer, "dot_general", None)
    convolution = getattr(layer, "conv_general_dilated", None)
    may_differ = product or convolution or type(layer) is not kind
    return not may_differ and layer.dtype in (None, jnp.float32)


@jax.custom_vjp
def _small_product(kernel: Array, columns: Array) -> Array:
    """Returns kernel.T (outputs, inputs) @ columns (inputs, B), unrolled into a sum for each output row."""
    return jnp.stack([_sum_rows(weights[:, None] * columns) for weights in kernel.T])


def _small_product_forward(kernel: Array, columns: Array) -> tuple[Array, tuple[Array, Array]]:
    """Returns kernel.T @ columns, and (kernel, columns) for the backward pass."""
    return _small_product(kernel, columns), (kernel, columns)


def _small_product_backward(saved: tuple[Array, Array], gradients: Array) -> tuple[Array, Array]:
    """Returns the gradients with respect to the kernel (inputs, outputs) and the columns (inputs, B).

    `gradients` (outputs, B) are with respect to kernel.T @ columns. JAX's own derivative of the unrolled sums
    would pad the gradient of each slice.
    """
    kernel, columns = saved
    return columns @ gradients.T, _small_product(kernel.T, gradients)


_small_product.defvjp(_small_product_forward, _small_product_backward)


def _sum_rows(rows: Array) -> Array:
    """Returns the sum over rows (n, B), of shape (B,).

    Up to _UNROLLED rows are unrolled into row + row + ..., which XLA computes in vector registers.
    """
    if len(rows) > _UNROLLED:
        return jnp.sum(rows, axis=0)
    return functools.reduce(jnp.add, list(rows))
