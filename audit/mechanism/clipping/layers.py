"""Layers and the norms and weighted sums of their per-example gradients, from one backward pass.

The layers are dense layers, convolutions, normalisation by group or layer, and modules that unfold.

A linear layer multiplies each of L vectors of K numbers (a convolution's patches; a dense layer's single
input) with its kernel (K, O). They are rows (L, K) if the layer's channels are last and columns (K, L) if
they are first, so patches are never transposed. From the columns a (B, K, L) and the output gradients g (B,
O, L), or rows likewise,

    L = 1                 ||gradient||^2 = ||g||^2 ||a||^2, the sum one product of a and scaled g
    K O below L (K + O)   the gradient per example, a g^T (B, K, O), is formed, measured and summed
    else                  the Gram form, sum over l, m of (a_l . a_m)(g_l . g_m), and one product

The first and the last are ghost norms, which do not form per-example gradients (Goodfellow, 2015, arXiv
1510.01799; Li et al., 2022, "Large Language Models Can Be Strong Differentially Private Learners", Section
4). Choosing by layer is mixed ghost clipping (Bu, Mao and Xu, 2022, "Scalable and Efficient Training of Large
Convolutional Neural Networks with Differential Privacy", arXiv 2205.10683). That paper compares memory, 2 L^2
with K O; we compare multiply-adds.

A normalisation's scale has the gradient sum_l g_l x_l, for normalised inputs x; every bias, sum_l g_l.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.linear import canonicalize_padding
from flax.traverse_util import flatten_dict
from jax import Array

Note = TypeVar("Note")
Path = tuple[str, ...]  # names of a module and its parents, outermost first


class UnknownLayer(TypeError):
    """A parameter does not belong to a layer that a strategy can sum, or its layer is called twice."""


class Factors(NamedTuple):
    """A sum of a kernel's gradients (K, O), the outer products of inputs (..., K) and gradients (..., O)."""

    inputs: Array
    gradients: Array

    def sum(self) -> Array:
        """Returns the sum (K, O) of the outer products, over all leading axes."""
        return jnp.einsum("...k,...o->ko", self.inputs, self.gradients)


class Measure(NamedTuple):
    """The norms and the weighted sum of the per-example gradients of a layer's parameter.

    Attributes:
      squares: the gradients' squared norms (B,).
      contract: scales (B,) -> the sum of the scaled gradients.
    """

    squares: Array
    contract: Callable[[Array], Array | Factors]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """One example's pass through a layer.

    Attributes:
      output: the layer's output, with channels last or first.
      saved: a linear layer's patches or a normalisation's normalised inputs: (L, K), or (K, L) if channels
        are first.
      channels_last: whether the layer's channels are last.
    """

    output: Array
    saved: Array
    channels_last: bool = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """The output's shape as a matrix of L places and O channels, (L, O), or (O, L) for channels first."""
        length = self.saved.shape[0 if self.channels_last else 1]
        channels = self.output.size // length
        return (length, channels) if self.channels_last else (channels, length)


def apply(
    module: nn.Module,
    params: Any,
    x: Array,
    compute: Callable[[nn.Module, Array], tuple[Array, Note] | None],
) -> tuple[Array, dict[Path, Note]]:
    """Applies a module with layers computed by a strategy; returns (logits, each layer's note by its path).

    `compute` maps a layer and its input to (its output, a note), or to None to let Flax compute it.

    Raises:
      UnknownLayer: `compute` takes no layer with a parameter, or a layer is called twice.
    """
    notes: dict[Path, Note] = {}

    def intercept(method: Any, args: Any, kwargs: Any, context: Any) -> Any:
        """Replaces each method of each module; an input may be given by position or by name."""
        inputs = [*args, *kwargs.values()]
        computed = None
        # A call with further arguments, such as a normalisation's mask, cannot be measured.
        if context.method_name == "__call__" and len(inputs) == 1:
            computed = compute(context.module, inputs[0])
        if computed is None:
            return method(*args, **kwargs)
        path = context.module.path
        if path in notes:
            raise UnknownLayer(f"layer {'/'.join(path)} is called twice")
        output, notes[path] = computed
        return output

    with nn.intercept_methods(intercept):
        logits: Any = module.apply({"params": params}, x)
    for *path, _ in flatten_dict(params):
        if tuple(path) not in notes:
            name = "/".join(path) or "the module itself"
            raise UnknownLayer(f"{name}: not a layer of one input that this strategy can sum")
    return logits, notes


def call(layer: Any, x: Array) -> Call | None:
    """Passes a single example x through a bound Flax layer, if `measure` supports the layer.

    Returns the output and the input of `measure`; None for a module without parameters or of another kind.
    """
    params: Any = layer.variables.get("params", {})
    if not params:
        return None

    bias = params.get("bias", 0.0)
    if is_exactly(layer, nn.Dense):
        rows = x.reshape(-1, x.shape[-1])
        product = rows @ params["kernel"]
        output = product.reshape(*x.shape[:-1], -1) + bias
        return Call(output, rows, channels_last=True)

    if is_exactly(layer, nn.Conv) and _is_plain(layer, x):
        patches = _patch_rows(layer, x)
        kernel = params["kernel"].reshape(-1, layer.features)
        output = patches @ kernel + bias
        rows = patches.reshape(-1, patches.shape[-1])
        return Call(output, rows, channels_last=True)

    # Such a module's output is a product of its kernel (..., O), reshaped to (K, O), with pieces of its
    # input: kernel.T @ unfold(x) + bias, (O, L), reshaped to output_shape(x), channels first. Each of the L
    # columns of unfold(x) (K, L) is the piece for one place of the output. fold(kernel, gradient, x) is the
    # gradient at x, from the gradient at the product, (..., O, L).
    if all(hasattr(layer, name) for name in ("unfold", "fold", "output_shape")):
        columns = layer.unfold(x)
        kernel = params["kernel"].reshape(columns.shape[0], -1)
        product = _product(layer, kernel, x, columns)
        # Without the barrier a GPU would write repeated biases to memory.
        product = jax.lax.optimization_barrier(product)
        output = product + bias[:, None]
        return Call(output.reshape(layer.output_shape(x)), columns, channels_last=False)

    is_norm = is_exactly(layer, nn.GroupNorm) or is_exactly(layer, nn.LayerNorm)
    # Its parameters must be along the last axis, and it must not average over devices.
    is_last = getattr(layer, "feature_axes", -1) in (-1, (-1,))
    if is_norm and is_last and layer.axis_name is None:
        # The scale's gradient needs the normalised inputs, from a copy without scale and bias, detached from
        # the network.
        without_parameters = layer.clone(use_scale=False, use_bias=False, parent=None)
        normalised: Any = without_parameters.apply({}, x)
        output = normalised * params.get("scale", 1.0) + bias
        saved = normalised.reshape(-1, x.shape[-1])
        return Call(output, saved, channels_last=True)

    return None


def measure(names: set[str], made: Call, gradients: Array) -> dict[str, Measure]:
    """Measures the per-example gradients of a layer's parameters; returns a Measure by parameter name.

    Args:
      names: the names of the parameters, among "bias", "scale" and "kernel".
      made: the layer's passes over B examples: the mapped result of `call`.
      gradients: the gradients of the loss at the layer's output, (B, L, O) or (B, O, L).
    """
    places = 1 if made.channels_last else 2  # the axis of the L places
    measures: dict[str, Measure] = {}
    # A bias is added, and a scale multiplied, at every place: their gradients sum over places.
    if "bias" in names:
        by_example = jnp.sum(gradients, axis=places)
        measures["bias"] = _measure_vectors(by_example)
    if "scale" in names:
        by_example = jnp.sum(gradients * made.saved, axis=places)
        measures["scale"] = _measure_vectors(by_example)
    if "kernel" in names:
        measures["kernel"] = _measure_kernel(made.saved, gradients, made.channels_last)
    return measures


def _product(layer: Any, kernel: Array, x: Array, columns: Array) -> Array:
    """Returns kernel.T (O, K) @ columns (K, L), with hand-written derivatives at kernel and at x.

    `layer.fold` passes the derivative on to x. Under `vmap` over examples it is a batched product with
    contiguous rows. JAX's default, one large product, would first copy the columns of few channels into
    another order. This rule allows derivatives only under `vmap`.
    """

    @jax.custom_vjp
    def batched(kernel: Array, x: Array, columns: Array) -> Array:
        """Returns kernel.T @ columns for columns (..., K, L), as a batched product; x is for the gradient."""
        shape = (*columns.shape[:-2], *kernel.T.shape)
        rows = jnp.broadcast_to(kernel.T, shape)
        product: Array = rows @ columns
        return product

    def forward(
        kernel: Array, x: Array, columns: Array
    ) -> tuple[Array, tuple[Array, Array, Array]]:
        """Returns the product and the factors for `backward`."""
        return batched(kernel, x, columns), (kernel, x, columns)

    def backward(saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, None]:
        """Returns the gradients at the kernel and at x, which includes the one at the columns."""
        kernel, x, columns = saved
        at_kernel = jnp.einsum("...kl,...ol->ko", columns, gradient)
        return at_kernel, layer.fold(kernel, gradient, x), None

    batched.defvjp(forward, backward)
    product = jax.custom_batching.custom_vmap(batched)

    @product.def_vmap
    def map_product(size: int, are_batched: Any, *factors: Array) -> tuple[Array, bool]:
        """Computes the product under `vmap`; the mapped axis comes first in the factors that have it."""
        if not are_batched[0]:
            return batched(*factors), True
        axes = [0 if is_batched else None for is_batched in are_batched]
        return jax.vmap(batched, axes)(*factors), True

    result: Array = product(kernel, x, columns)
    return result


def _measure_vectors(by_example: Array) -> Measure:
    """Measures per-example gradients (B, n) of a bias or a scale."""
    squares = jnp.sum(by_example**2, axis=1)
    return Measure(squares, lambda scales: scales @ by_example)


def _measure_kernel(saved: Array, gradients: Array, channels_last: bool) -> Measure:
    """Measures the kernel's per-example gradients in the form that takes the fewest multiply-adds.

    Forming the gradients takes L K O per example, and the Gram form L^2 (K + O). `saved` is (B, L, K) and
    `gradients` (B, L, O) if channels are last, else (B, K, L) and (B, O, L).
    """
    # Examples b, places l, inputs k, outputs o. The order of the per-example gradients copies less memory.
    subscripts = "blk,blo,bok" if channels_last else "bkl,bol,bko"
    inputs, outputs, formed = subscripts.split(",")
    length = saved.shape[inputs.index("l")]
    k = saved.shape[inputs.index("k")]
    o = gradients.shape[outputs.index("o")]

    if length == 1:
        rows = saved.reshape(-1, k)
        at_output = gradients.reshape(-1, o)
        input_squares = jnp.sum(rows**2, axis=1)
        output_squares = jnp.sum(at_output**2, axis=1)
        squares = input_squares * output_squares
        return Measure(squares, lambda scales: Factors(rows, at_output * scales[:, None]))

    if k * o < length * (k + o):
        by_example = jnp.einsum(f"{inputs},{outputs}->{formed}", saved, gradients)
        squares = jnp.sum(by_example**2, axis=(1, 2))
        return Measure(squares, lambda scales: jnp.einsum(f"b,{formed}->ko", scales, by_example))

    def dot_places(matrices: Array, subscripts: str) -> Array:
        """Returns the dot products (B, L, L) of all pairs of places."""
        others = subscripts.replace("l", "m")
        return jnp.einsum(f"{subscripts},{others}->blm", matrices, matrices)

    def contract(scales: Array) -> Array:
        """Returns the sum (K, O) of the examples' gradients, each times its scale (B,)."""
        scaled = gradients * scales[:, None, None]
        return jnp.einsum(f"{inputs},{outputs}->ko", saved, scaled)

    gram = dot_places(saved, inputs) * dot_places(gradients, outputs)
    return Measure(jnp.sum(gram, axis=(1, 2)), contract)


def is_exactly(layer: Any, kind: type[nn.Module]) -> bool:
    """Returns whether a layer computes exactly the function of Flax's class `kind`, in float32.

    It is False for subclasses, for other dtypes, and for a custom `dot_general` or `conv_general_dilated`.
    """
    if type(layer) is not kind:
        return False
    product = getattr(layer, "dot_general", None)
    convolution = getattr(layer, "conv_general_dilated", None)
    return layer.dtype in (None, jnp.float32) and not (product or convolution)


def _is_plain(layer: nn.Conv, x: Array) -> bool:
    """Returns whether a convolution of images (H, W, C) is neither dilated, grouped, masked nor circular."""
    undilated = (1, (1, 1), None)
    is_circular = isinstance(layer.padding, str) and layer.padding not in ("SAME", "VALID")
    return (
        layer.input_dilation in undilated
        and layer.kernel_dilation in undilated
        and layer.feature_group_count == 1
        and layer.mask is None
        and not is_circular
        and x.ndim == 3
    )


def _patch_rows(layer: nn.Conv, x: Array) -> Array:
    """Returns the patches (H', W', K) of an image (H, W, C) that a convolution multiplies with its kernel."""
    window = np.broadcast_to(layer.kernel_size, 2).tolist()
    strides = np.broadcast_to(layer.strides or 1, 2).tolist()
    padding = canonicalize_padding(layer.padding, 2)
    pads = padding
    if isinstance(padding, str):
        pads = jax.lax.padtype_to_pads(x.shape[:2], window, strides, padding)
    x = jnp.pad(x, (*pads, (0, 0)))

    # The places of the window in the padded image at stride 1.
    height = x.shape[0] - window[0] + 1
    width = x.shape[1] - window[1] + 1
    down, across = strides
    # For each pixel (i, j) of the window, the image at that pixel as the window moves, (H', W', C).
    shifted = []
    for i, j in np.ndindex(*window):
        rows = x[i : i + height : down]
        shifted.append(rows[:, j : j + width : across])
    return jnp.concatenate(shifted, axis=-1)
