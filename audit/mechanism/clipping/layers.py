"""Computes per-example gradients of a single layer's parameters from one backward pass.

We support dense layers, convolutions, group and layer normalisation, and modules that define `unfold`.

The L input vectors of a linear layer are rows (L, K) if channels are last, and columns (K, L) if channels are
first, so we never transpose patches.

We compute ghost norms, which do not require per-example gradients (Goodfellow, 2015, arXiv 1510.01799; Li et
al., 2022, "Large Language Models Can Be Strong Differentially Private Learners", Section 4), unless these
gradients are cheaper. This method is known as mixed ghost clipping (Bu, Mao and Xu, 2022, arXiv 2205.10683).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.linear import canonicalize_padding
from jax import Array

from audit.mechanism.clipping.base import is_exactly


class Factors(NamedTuple):
    """The factors of a sum of outer products: inputs (..., K) and gradients (..., O)."""

    inputs: Array
    gradients: Array

    def sum(self) -> Array:
        """Returns the sum of the outer products over all leading axes, of shape (K, O)."""
        return jnp.einsum("...k,...o->ko", self.inputs, self.gradients)


class ExampleGradients(NamedTuple):
    """The gradients of B examples for one parameter of a layer, which need not be stored.

    Attributes:
      squared_norms: (B,).
      weighted_sum: weights (B,) -> the weighted sum of the gradients: (n,) for a bias or scale; (K, O), or
        the `Factors` of this sum, for a kernel.
    """

    squared_norms: Array
    weighted_sum: Callable[[Array], Array | Factors]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """One example's pass through a layer. Under `vmap`, arrays have a leading axis of examples.

    Attributes:
      output: the layer's output, with channels last or first.
      saved: the patches of a linear layer or the normalised inputs of a normalisation: (L, K), or (K, L) if
        channels are first.
    """

    output: Array
    saved: Array
    channels_last: bool = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one example's output as a matrix: (L positions, O channels), or (O, L)."""
        length = self.saved.shape[0 if self.channels_last else 1]
        channels = self.output.size // length
        return (length, channels) if self.channels_last else (channels, length)


def pass_through(layer: Any, x: Array) -> Call | None:
    """Computes a bound Flax layer's output for one example x and saves its inputs for `find_gradients`.

    A linear layer multiplies L vectors of K numbers, such as patches, by a kernel (K, O). Flax's layers put
    channels last. Modules with the same methods as `models.layers.Convolution` put channels first. Returns
    None for unsupported layers and for modules without parameters.
    """
    params: Any = layer.variables.get("params", {})
    if not params:
        return None

    bias = params.get("bias", 0.0)
    if is_exactly(layer, nn.Dense):
        rows = x.reshape(-1, x.shape[-1])  # (L, K)
        product = rows @ params["kernel"]
        output = product.reshape(*x.shape[:-1], -1) + bias
        return Call(output, rows, channels_last=True)

    if is_exactly(layer, nn.Conv) and _is_plain_convolution(layer, x):
        patches = _patch_rows(layer, x)
        kernel = params["kernel"].reshape(-1, layer.features)
        output = patches @ kernel + bias
        rows = patches.reshape(-1, patches.shape[-1])  # (L, K)
        return Call(output, rows, channels_last=True)

    if all(hasattr(layer, name) for name in ("unfold", "fold", "output_shape")):
        return _pass_through_unfold(layer, x, params["kernel"], bias)

    is_norm = is_exactly(layer, nn.GroupNorm) or is_exactly(layer, nn.LayerNorm)
    # The layer must not average over devices, and its parameters must vary only along the last axis.
    has_last_axis = getattr(layer, "feature_axes", -1) in (-1, (-1,))
    if is_norm and has_last_axis and layer.axis_name is None:
        # A detached copy of the layer, without parameters, computes the normalised inputs for the scale's
        # gradient.
        without_parameters = layer.clone(use_scale=False, use_bias=False, parent=None)
        normalised: Any = without_parameters.apply({}, x)
        output = normalised * params.get("scale", 1.0) + bias
        saved = normalised.reshape(-1, x.shape[-1])
        return Call(output, saved, channels_last=True)

    return None


def _pass_through_unfold(layer: Any, x: Array, kernel: Array, bias: Array) -> Call:
    """Computes kernel.T @ layer.unfold(x) + bias, reshaped to layer.output_shape(x), with channels first."""
    columns = layer.unfold(x)  # (K, L)
    product = _multiply_columns(layer, kernel.reshape(columns.shape[0], -1), x, columns)
    # Without this barrier, a GPU would write a copy of the bias to memory for each position.
    product = jax.lax.optimization_barrier(product)
    output = product + bias[:, None]
    return Call(output.reshape(layer.output_shape(x)), columns, channels_last=False)


def find_gradients(names: set[str], calls: Call, at_output: Array) -> dict[str, ExampleGradients]:
    """Returns the gradients of B examples for each parameter of a layer, keyed by the parameter's name.

    Args:
      names: the parameters' names, among "bias", "scale" and "kernel".
      calls: the result of `pass_through`, mapped over the examples.
      at_output: the gradients of the loss at the layer's output, (B, L, O) or (B, O, L).
    """
    place_axis = 1 if calls.channels_last else 2
    gradients: dict[str, ExampleGradients] = {}
    # A normalisation's output is scale * saved + bias, for the normalised inputs `saved`. All L positions
    # share the bias and the scale, so their gradients are sums over positions.
    if "bias" in names:
        gradients["bias"] = _from_vectors(jnp.sum(at_output, axis=place_axis))
    if "scale" in names:
        gradients["scale"] = _from_vectors(jnp.sum(at_output * calls.saved, axis=place_axis))
    if "kernel" in names:
        gradients["kernel"] = _find_kernel_gradients(calls.saved, at_output, calls.channels_last)
    return gradients


def _multiply_columns(layer: Any, kernel: Array, x: Array, columns: Array) -> Array:
    """Returns kernel.T (O, K) @ columns (K, L), for columns = layer.unfold(x).

    We also pass x, because the product's custom derivative is with respect to x, not the larger columns.

    Under `vmap` over examples, a custom rule computes a batched product with contiguous rows. JAX cannot
    differentiate this rule in reverse mode, so vmap(grad(f)) fails, but grad(vmap(f)) works, because `vmap`
    has already applied the rule.
    """
    multiply = _make_product(layer)
    product = jax.custom_batching.custom_vmap(multiply)

    @product.def_vmap
    def map_product(size: int, are_batched: Any, *arguments: Array) -> tuple[Array, bool]:
        """Returns kernel.T @ columns, and True: its first axis is mapped.

        JAX's `vmap` rule would first reorder the columns for one large product. `are_batched` holds three
        booleans, for kernel, x and columns.
        """
        kernel_is_batched, *_ = are_batched
        if not kernel_is_batched:  # `vmap` over examples
            return multiply(*arguments), True  # `multiply` accepts columns with a leading axis
        # For batched kernels, we use JAX's rule.
        axes = [0 if is_batched else None for is_batched in are_batched]
        return jax.vmap(multiply, axes)(*arguments), True

    return product(kernel, x, columns)


def _make_product(layer: Any) -> Callable[[Array, Array, Array], Array]:
    """Returns a function (kernel (K, O), x, columns = layer.unfold(x) (..., K, L)) -> kernel.T @ columns.

    The derivative computes the gradient at x with `layer.fold`, which multiplies by the kernel and applies
    `unfold`'s transpose. This avoids storing the gradient at the columns, which are several times larger
    than x.
    """

    @jax.custom_vjp
    def multiply(kernel: Array, x: Array, columns: Array) -> Array:
        """Returns kernel.T @ columns, of shape (..., O, L). Only the derivative uses x."""
        # With a broadcast kernel, JAX does not reorder batched columns for a single product.
        shape = (*columns.shape[:-2], *kernel.T.shape)
        rows = jnp.broadcast_to(kernel.T, shape)
        return rows @ columns

    def forward(*arguments: Array) -> tuple[Array, tuple[Array, ...]]:
        """Returns the product, and the arguments for `backward`."""
        return multiply(*arguments), arguments

    def backward(saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, None]:
        """Returns the gradients for the kernel and x; None for the columns, which are computed from x."""
        kernel, x, columns = saved  # `gradient` is (..., O, L)
        at_kernel = jnp.einsum("...kl,...ol->ko", columns, gradient)
        return at_kernel, layer.fold(kernel, gradient, x), None

    multiply.defvjp(forward, backward)
    return multiply


def _from_vectors(vectors: Array) -> ExampleGradients:
    """Returns the gradients for a bias or a scale, given as vectors (B, n)."""
    return ExampleGradients(jnp.sum(vectors**2, axis=1), lambda weights: weights @ vectors)


def _find_kernel_gradients(
    inputs: Array, at_output: Array, channels_last: bool
) -> ExampleGradients:
    """Returns the gradients of B examples for a kernel (K, O), using the fewest multiply-adds.

    The kernel multiplies L inputs (K,) of an example, such as the patches at L positions in an image. Its
    gradient is the sum of the outer products of these inputs and the gradients at their outputs (O,).

    Args:
      inputs: (B, L, K) if `channels_last`, else (B, K, L).
      at_output: the gradients, (B, L, O) if `channels_last`, else (B, O, L).
    """
    # Subscripts of inputs, outputs and gradients: examples b, positions l, inputs k, outputs o. This order of
    # the axes minimises copies when forming the gradients.
    subscripts = "blk,blo,bok" if channels_last else "bkl,bol,bko"
    ins, outs, formed = subscripts.split(",")
    length = inputs.shape[ins.index("l")]
    k = inputs.shape[ins.index("k")]
    o = at_output.shape[outs.index("o")]

    if length == 1:
        return _from_outer_products(inputs.reshape(-1, k), at_output.reshape(-1, o))

    # Forming an example's gradient takes L K O multiply-adds. Computing its ghost norm takes L^2 (K + O).
    if k * o < length * (k + o):  # both divided by L
        gradients = jnp.einsum(f"{ins},{outs}->{formed}", inputs, at_output)
        squared_norms = jnp.sum(gradients**2, axis=(1, 2))
        return ExampleGradients(
            squared_norms, lambda weights: jnp.einsum(f"b,{formed}->ko", weights, gradients)
        )

    return _from_ghost_norms(inputs, at_output, ins, outs)


def _from_ghost_norms(inputs: Array, at_output: Array, ins: str, outs: str) -> ExampleGradients:
    """Returns the `ExampleGradients` of B examples for a kernel (K, O), without forming the gradients.

    An example's gradient is the sum over positions l of a_l g_l', for inputs a_l and gradients g_l at the
    output. So its squared norm is the sum over l, m of (a_l . a_m)(g_l . g_m).

    `ins` and `outs` name the axes of the arrays: "blk" and "blo", or "bkl" and "bol".
    """

    def dot_places(matrices: Array, axes: str) -> Array:
        """Returns the dot products of all pairs of positions l and m, of shape (B, L, L)."""
        other_axes = axes.replace("l", "m")
        return jnp.einsum(f"{axes},{other_axes}->blm", matrices, matrices)

    products = dot_places(inputs, ins) * dot_places(at_output, outs)
    squared_norms = jnp.sum(products, axis=(1, 2))
    return ExampleGradients(
        squared_norms,
        lambda weights: jnp.einsum(f"{ins},{outs}->ko", inputs, at_output * weights[:, None, None]),
    )


def _from_outer_products(inputs: Array, at_output: Array) -> ExampleGradients:
    """Returns B gradients: the outer products of inputs (B, K) and output gradients (B, O).

    `weighted_sum` returns `Factors`, because callers can multiply factors of many blocks at once.
    """
    # The norm of an outer product is the product of the norms.
    squared_norms = jnp.sum(inputs**2, axis=1) * jnp.sum(at_output**2, axis=1)
    return ExampleGradients(
        squared_norms, lambda weights: Factors(inputs, at_output * weights[:, None])
    )


def _is_plain_convolution(layer: nn.Conv, x: Array) -> bool:
    """Returns True for a zero-padded convolution of an image (H, W, C) without dilation, groups or a mask."""
    undilated = (1, (1, 1), None)  # the values that mean this in Flax
    pads_zeros = not isinstance(layer.padding, str) or layer.padding in ("SAME", "VALID")
    return (
        layer.input_dilation in undilated
        and layer.kernel_dilation in undilated
        and layer.feature_group_count == 1
        and layer.mask is None
        and pads_zeros
        and x.ndim == 3
    )


def _patch_rows(layer: nn.Conv, x: Array) -> Array:
    """Returns the patches (H', W', K) of an image (H, W, C) that a convolution multiplies by its kernel."""
    window = np.broadcast_to(layer.kernel_size, 2).tolist()
    strides = np.broadcast_to(layer.strides or 1, 2).tolist()
    padding = canonicalize_padding(layer.padding, 2)
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(x.shape[:2], window, strides, padding)
    x = jnp.pad(x, (*padding, (0, 0)))

    # The number of window positions in the padded image at stride 1.
    height = x.shape[0] - window[0] + 1
    width = x.shape[1] - window[1] + 1
    down, across = strides
    # The image values (H', W', C) under each pixel (i, j) of the window as the window moves.
    shifted = []
    for i, j in np.ndindex(*window):
        rows = x[i : i + height : down]
        shifted.append(rows[:, j : j + width : across])
    return jnp.concatenate(shifted, axis=-1)
