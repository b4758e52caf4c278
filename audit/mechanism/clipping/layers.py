"""Layers and their own per-example gradients: their norms and their weighted sum, from one
backward pass. Dense layers, convolutions, normalisation by group or layer, modules that unfold.

A linear layer multiplies each of L vectors of K numbers (a convolution's patches; a dense layer's input
is one) with its kernel (K, O). They lie as the layer's channels do, in rows (L, K) where the channels are
last, in columns (K, L) where they are first: no patches are transposed. From the columns a (B, K, L) and
the output gradients g (B, O, L), or rows likewise,

    L = 1                 ||gradient||^2 = ||g||^2 ||a||^2, the sum one product of a and scaled g (`Factors`)
    K O below L (K + O)   the gradient per example, a g^T (B, K, O), is formed, measured and summed
    else                  the Gram form, sum over l, m of (a_l . a_m)(g_l . g_m), and one product

The first and the last are ghost norms, which measure a gradient per example without forming it (Goodfellow,
2015, arXiv 1510.01799; Li et al., 2022, "Large Language Models Can Be Strong Differentially Private
Learners", Section 4). To choose by layer is mixed ghost clipping (Bu, Mao and Xu, 2022, "Scalable and
Efficient Training of Large Convolutional Neural Networks with Differential Privacy", arXiv 2205.10683), whose
rule compares the memory of both, 2 L^2 with K O; ours compares their multiply-adds. A convolution's patches
are im2col's.

A normalisation's scale has the gradient sum_l g_l x_l, for normalised inputs x; every bias, sum_l g_l.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class Factors(NamedTuple):
    """A sum of a kernel's gradients (K, O), each the outer product of an input and an output's gradient, as
    its factors: inputs (..., K) and scaled gradients (..., O). A batch's blocks keep them for one product."""

    inputs: Array
    gradients: Array

    def sum(self) -> Array:
        """The sum (K, O), over all other axes."""
        return jnp.einsum("...k,...o->ko", self.inputs, self.gradients)


Sums = dict[str, Array | Factors]  # a layer's parameters' names -> clipped sums, of the parameters' sizes
_Form = tuple[Array, Callable[[Array], Array | Factors]]  # one parameter's squares and contract: see Measure


@runtime_checkable
class Unfolds(Protocol):
    """A Flax module whose output output_shape(x), channels first, is its kernel (..., O), reshaped to
    (K, O), transposed, times unfold(x) (K, L), plus its bias (O,) for each of the L places; fold is the
    gradient at x (..., C, H, W) of that product, from the gradient (..., O, L) at it."""

    def unfold(self, x: Array) -> Array: ...

    def fold(self, kernel: Array, gradient: Array, x: Array) -> Array: ...

    def output_shape(self, x: Array) -> tuple[int, ...]: ...


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["output", "saved"], meta_fields=["channels_last"]
)
@dataclass(frozen=True)
class Call:
    """One example's pass through a layer: its output, channels last or first, and what `measure` needs, a
    linear layer's patches or a normalisation's normalised inputs: (L, K) or, channels first, (K, L)."""

    output: Array
    saved: Array
    channels_last: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Of the output as a matrix: (L, O) or, channels first, (O, L)."""
        length = self.saved.shape[0 if self.channels_last else 1]
        features = self.output.size // length
        return (length, features) if self.channels_last else (features, length)

    def add(self, tap: Array) -> Array:
        """The output plus a tap of that shape."""
        return self.output + tap.reshape(self.output.shape)


class Measure(NamedTuple):
    """Squared norms (B,) of a layer's gradients, and scales (B,) -> the sum of scaled gradients."""

    squares: Array
    contract: Callable[[Array], Sums]


def call(layer: Any, x: Array) -> Call | None:
    """A layer's pass over one example x; None for a module that is no layer of this file."""
    own: Any = layer.variables.get("params", {})
    if not own:
        return None
    if _is(layer, nn.Dense):
        rows = x.reshape(-1, x.shape[-1])
        output = rows @ own["kernel"]
        return Call(_add_bias(output.reshape(*x.shape[:-1], -1), own), rows, True)
    if _is(layer, nn.Conv) and _plain(layer, x):
        rows = _patch_rows(layer, x)
        output = rows @ own["kernel"].reshape(-1, layer.features)
        return Call(_add_bias(output, own), rows.reshape(-1, rows.shape[-1]), True)
    if isinstance(layer, Unfolds):
        columns = layer.unfold(x)
        kernel = own["kernel"].reshape(columns.shape[0], -1)
        product = _product(layer, kernel, x, columns)
        product = jax.lax.optimization_barrier(product)  # a GPU would write biases out
        output = product + own["bias"][:, None]
        return Call(output.reshape(layer.output_shape(x)), columns, False)
    if (_is(layer, nn.GroupNorm) or _is(layer, nn.LayerNorm)) and _by_channel(layer):
        normalised: Any = layer.clone(use_scale=False, use_bias=False, parent=None).apply({}, x)
        output = normalised * own.get("scale", 1.0) + own.get("bias", 0.0)
        return Call(output, normalised.reshape(-1, x.shape[-1]), True)
    return None


def measure(names: set[str], made: Call, gradients: Array) -> Measure:
    """Norms and sums of the gradients of a layer's parameters ("bias", "scale", "kernel"), from what it saved
    of each example and the gradients at its output, (B, ...) in the order of `Call`."""
    places = 1 if made.channels_last else 2
    parts: dict[str, _Form] = {}
    if "bias" in names:
        parts["bias"] = _vectors(jnp.sum(gradients, axis=places))
    if "scale" in names:
        parts["scale"] = _vectors(jnp.sum(gradients * made.saved, axis=places))
    if "kernel" in names:
        parts["kernel"] = _kernel(made.saved, gradients, made.channels_last)
    squares = sum((squares for squares, _ in parts.values()), jnp.zeros(len(gradients)))
    return Measure(squares, lambda scales: {name: one(scales) for name, (_, one) in parts.items()})


def _product(layer: Unfolds, kernel: Array, x: Array, columns: Array) -> Array:
    """kernel.T (O, K) @ columns (K, L), with a gradient at x alone, of which the columns are unfolded; the
    kernel's is what book-keeping measures.

    Mapped over examples, without which it has no gradient, it is a batched product: one large product would
    have the columns of few channels copied into another order. Each of its factors' rows are whole pieces of
    memory.
    """

    @jax.custom_vjp
    def batched(kernel: Array, x: Array, columns: Array) -> Array:
        rows = jnp.broadcast_to(kernel.T, (*columns.shape[:-2], *kernel.T.shape))
        product: Array = rows @ columns
        return product

    def forward(kernel: Array, x: Array, columns: Array) -> tuple[Array, tuple[Array, Array]]:
        return batched(kernel, x, columns), (kernel, x)

    def backward(saved: tuple[Array, Array], gradient: Array) -> tuple[None, Array, None]:
        return None, layer.fold(saved[0], gradient, saved[1]), None

    batched.defvjp(forward, backward)
    product = jax.custom_batching.custom_vmap(batched)

    @product.def_vmap
    def _(size: int, are_batched: Any, *factors: Array) -> tuple[Array, bool]:
        if are_batched[0]:
            return jax.vmap(batched, [0 if one else None for one in are_batched])(*factors), True
        return batched(*factors), True

    found: Array = product(kernel, x, columns)
    return found


def _kernel(saved: Array, gradients: Array, rows: bool) -> _Form:
    """(squares, contract) of the kernel, from rows or columns."""
    length, k = saved.shape[1:] if rows else saved.shape[:0:-1]
    o = gradients.shape[2 if rows else 1]

    if length == 1:
        inputs, outer = saved.reshape(-1, k), gradients.reshape(-1, o)
        squares = jnp.sum(inputs**2, axis=1) * jnp.sum(outer**2, axis=1)
        return squares, lambda scales: Factors(inputs, outer * scales[:, None])
    if k * o < length * (k + o):
        return _formed(saved, gradients, rows)
    squared = "blk,bmk->blm" if rows else "bkl,bkm->blm"
    gram = jnp.einsum(squared, saved, saved) * jnp.einsum(squared, gradients, gradients)
    product = "blk,blo->ko" if rows else "bkl,bol->ko"
    return jnp.sum(gram, axis=(1, 2)), lambda scales: jnp.einsum(
        product, saved, gradients * scales[:, None, None]
    )


def _formed(saved: Array, gradients: Array, rows: bool) -> _Form:
    """(squares, contract) by each example's gradients; transposed from rows, so that less is copied."""
    if not rows:
        each = jnp.einsum("bkl,bol->bko", saved, gradients)
        return jnp.sum(each**2, axis=(1, 2)), lambda scales: jnp.tensordot(scales, each, 1)
    each = jnp.einsum("blo,blk->bok", gradients, saved)
    return jnp.sum(each**2, axis=(1, 2)), lambda scales: jnp.tensordot(scales, each, 1).T


def _vectors(each: Array) -> _Form:
    """(squares, contract) of gradients (B, n) that are small enough to keep."""
    return jnp.sum(each**2, axis=1), lambda scales: scales @ each


def _add_bias(output: Array, own: Any) -> Array:
    return output + own["bias"] if "bias" in own else output


def _is(layer: Any, kind: type[nn.Module]) -> bool:
    """Whether a layer is of this very class, which a subclass may change, and computes in float32."""
    own_products = getattr(layer, "dot_general", None), getattr(layer, "conv_general_dilated", None)
    return type(layer) is kind and layer.dtype in (None, jnp.float32) and own_products == (None, None)


def _plain(layer: nn.Conv, x: Array) -> bool:
    """Whether a convolution is over images, neither dilated nor grouped nor masked nor circular."""
    ones = (1, (1, 1), None)
    padded = layer.padding in ("SAME", "VALID") or not isinstance(layer.padding, str)
    dilated = layer.input_dilation not in ones or layer.kernel_dilation not in ones
    return x.ndim == 3 and padded and not dilated and layer.feature_group_count == 1 and layer.mask is None


def _by_channel(layer: Any) -> bool:
    """Whether a normalisation has its parameters along the last axis, and statistics of this device."""
    return getattr(layer, "feature_axes", -1) in (-1, (-1,)) and layer.axis_name is None


def _patch_rows(layer: nn.Conv, x: Array) -> Array:
    """Patches (H', W', K) of an image (H, W, C), K in the order of the kernel's axes."""
    window, strides = _pair(layer.kernel_size), _pair(layer.strides)
    padding = layer.padding
    if isinstance(padding, str):
        pads = jax.lax.padtype_to_pads(x.shape[:2], window, strides, padding)
    else:
        pads = [(p, p) if isinstance(p, int) else tuple(p) for p in _pair(padding)]
    x = jnp.pad(x, (*pads, (0, 0)))
    ends = [size - w + 1 for size, w in zip(x.shape[:2], window, strict=True)]
    (down, across), (height, width) = strides, ends
    shifted = [x[i : i + height : down, j : j + width : across] for i, j in np.ndindex(*window)]
    return jnp.concatenate(shifted, axis=-1)


def _pair(value: Any) -> tuple[Any, Any]:
    if value is None:
        return 1, 1
    return (value, value) if isinstance(value, int) else (value * 2 if len(value) == 1 else tuple(value))
