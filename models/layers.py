"""Layers of networks for images.

Convolutions and pooling are channels first: processors that add and multiply whole rows of pixels are then
fast on narrow images, as patches times a matrix.
"""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Convolution(nn.Module):
    """A convolution with a square window, stride 1 and no padding, channels first.

    It maps (..., C, H, W) to (..., features, H - w + 1, W - w + 1), with the parameters of flax.linen.Conv: a
    kernel (w, w, C, features) and a bias (features,). Book-keeping reads `unfold`, `fold` and `output_shape`.

    Attributes:
      features: how many channels the output has.
      window: w, the side of the window in pixels.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns (..., features, H - w + 1, W - w + 1) of images (..., C, H, W)."""
        channels = x.shape[-3]
        kernel, bias = _declare_parameters(self, channels)
        matrix = kernel.reshape(-1, self.features)
        product = matrix.T @ self.unfold(x) + bias[:, None]
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Cuts images (..., C, H, W) into patches (..., K, L): K = w w C pixels at each of L places.

        Cuts first by columns, then by rows, which are whole pieces of memory: half the time of cutting one
        patch after the other. The barrier makes XLA store what is cut by columns instead of cutting it again.
        """
        leading_axes = x.shape[:-3]
        input_height = x.shape[-2]
        _, height, width = self.output_shape(x)

        columns = [x[..., j : j + width] for j in range(self.window)]
        joined = jnp.concatenate(columns, axis=-3)
        flat = joined.reshape(*leading_axes, -1, input_height * width)
        flat = jax.lax.optimization_barrier(flat)

        rows = [flat[..., i * width : (i + height) * width] for i in range(self.window)]
        return jnp.concatenate(rows, axis=-2)

    def fold(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Computes the gradient at x (..., C, H, W) of kernel.T @ unfold(x).

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient at the product.
          x: the images.
        """
        folded: Array = jax.lax.platform_dependent(
            kernel, gradient, x, cpu=self._fold_columns, default=self._fold_patches
        )
        return folded

    def _fold_patches(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Returns the gradient at x (..., C, H, W) of kernel.T @ unfold(x), from the gradient of all patches.

        The transpose of `unfold` adds the patches up. For devices other than CPUs: with `_fold_columns` the
        ConvNet's program for a TPU v5e would move eight times the bytes.

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient at the product.
          x: the images.
        """
        patch_gradients = jnp.broadcast_to(kernel, (*x.shape[:-3], *kernel.shape)) @ gradient
        _, transpose_unfold = jax.vjp(self.unfold, x)
        folded: Array = transpose_unfold(patch_gradients)[0]
        return folded

    def _fold_columns(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Returns the gradient at x (..., C, H, W) of kernel.T @ unfold(x), column by column of the window.

        The columns' parts are a matrix product, which sums over the features and over the window's rows. The
        gradient of all patches, which `_fold_patches` makes, is w (H - w + 1) / H times as large as they are.
        For CPUs.

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient at the product.
          x: the images.
        """
        window = self.window
        leading_axes = x.shape[:-3]
        channels, height, width = x.shape[-3:]
        output_width = width - window + 1

        # Row i of the window sees the output's gradient i rows of pixels further down, zeros around it.
        margin = (window - 1) * output_width
        zeros = jnp.zeros((*gradient.shape[:-1], margin), gradient.dtype)
        padded = jnp.concatenate([zeros, gradient, zeros], axis=-1)
        starts = range(margin, -1, -output_width)
        shifted = [padded[..., start : start + height * output_width] for start in starts]
        gradients = jnp.concatenate(shifted, axis=-2)  # (..., w O, H (W - w + 1))

        kernel_rows = list(kernel.reshape(window, window * channels, -1))
        kernels = jnp.concatenate(kernel_rows, axis=-1)  # (w C, w O)
        kernels = jnp.broadcast_to(kernels, (*leading_axes, *kernels.shape))
        parts = kernels @ gradients
        parts = parts.reshape(*leading_axes, window, channels, height, output_width)

        # Column j of the window contributes j pixels further right.
        no_padding = ((0, 0),) * (len(leading_axes) + 2)
        total = jnp.zeros(())
        for j in range(window):
            padding = (*no_padding, (j, window - 1 - j))
            total = total + jnp.pad(parts[..., j, :, :, :], padding)
        return total

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """Returns (features, H - w + 1, W - w + 1)."""
        height, width = x.shape[-2:]
        return self.features, height - self.window + 1, width - self.window + 1


class PooledConvolution(nn.Module):
    """A convolution, the maxima of 2 x 2 of its pixels, and ReLU, of a batch on the last axis.

    It maps (C, H, W, B) to (features, (H - w + 1) / 2, (W - w + 1) / 2, B), with the parameters of
    flax.linen.Conv with a square window, stride 1 and no padding: a kernel (w, w, C, features) and a bias.
    Equal pixels share the gradient.

    The four outputs of which the largest stays are four kernels' on one window of w + 1 pixels: for w = 5 a
    third of the patches' memory and 1.4 times the arithmetic, in products that are wider and whose gradients'
    sums are a quarter as long. No array belongs to a single example: it is for a batch's mean gradient, of a
    client say.

    Attributes:
      features: how many channels the output has.
      window: w, the side of the window in pixels.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns (features, (H - w + 1) / 2, (W - w + 1) / 2, B) of a batch of images (C, H, W, B)."""
        channels = len(x)
        kernel, bias = _declare_parameters(self, channels)
        windows = _cut_windows(self.window + 1, x)
        product = _shift_kernel(kernel).T @ windows.reshape(len(windows), -1)
        products = product.reshape(4, self.features, -1)
        largest: Array = _rectified_maxima(products, bias)
        return largest.reshape(self.features, *windows.shape[1:])


def _declare_parameters(
    layer: Convolution | PooledConvolution,
    channels: int,
) -> tuple[Array, Array]:
    """Declares a layer's kernel (w, w, channels, features) and bias (features,), as flax.linen.Conv does."""
    shape = (layer.window, layer.window, channels, layer.features)
    kernel = layer.param("kernel", nn.initializers.lecun_normal(), shape)
    bias = layer.param("bias", nn.initializers.zeros_init(), (layer.features,))
    return kernel, bias


def _shift_kernel(kernel: Array) -> Array:
    """Returns a kernel (w, w, C, O) at its four places in a window of w + 1 pixels, as a matrix (K, 4 O).

    K is (w + 1)^2 C; columns are ordered by place, upper left first, then by feature.
    """
    shifted = []
    for i in (0, 1):
        for j in (0, 1):
            padded = jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0)))
            shifted.append(padded)
    matrices = [padded.reshape(-1, kernel.shape[-1]) for padded in shifted]
    return jnp.concatenate(matrices, axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cut_windows(side: int, x: Array) -> Array:
    """Cuts square windows, at every second pixel: (C, H, W, B) -> (side * side * C, rows, columns, B).

    Each plane of the first axis holds a pixel of all windows.
    """
    pixels = _materialise(x)
    height = x.shape[1] - side + 1
    width = x.shape[2] - side + 1
    columns = [pixels[:, :, j : j + width : 2] for j in range(side)]
    joined = jnp.concatenate(columns)
    rows = [joined[:, i : i + height : 2] for i in range(side)]
    return jnp.concatenate(rows)


def _cut_windows_forward(side: int, x: Array) -> tuple[Array, None]:
    """Cuts windows; the gradient needs nothing of the pixels."""
    return _cut_windows(side, x), None


def _cut_windows_backward(side: int, _: None, gradient: Array) -> tuple[Array]:
    """Returns the gradient at the pixels (C, H, W, B), in sums of whole lines.

    On a CPU it takes a third of the time of XLA's own. `gradient` is that at the windows.
    """
    pieces = gradient.reshape(side, side, -1, *gradient.shape[1:])
    lines = _overlap_add(pieces)
    return (_materialise(_overlap_add(lines)),)


_cut_windows.defvjp(_cut_windows_forward, _cut_windows_backward)


def _overlap_add(pieces: Array) -> Array:
    """Sums pieces that overlap along an axis.

    Args:
      pieces: (number, ..., length, ...), the length on the fourth axis; the elements of a piece lie on every
        second place, and each piece begins one place after the piece before.

    Returns:
      An array whose third axis has the places, 2 * length + number - 2 of them.
    """
    number = len(pieces)
    length = pieces.shape[3]
    elements = jnp.moveaxis(pieces, 3, 1)
    sums = []
    for place in range(2 * length + number - 2):
        total: Any = 0
        for piece in range(place % 2, number, 2):
            index = (place - piece) // 2
            if 0 <= index < length:
                total = total + elements[piece, index]
        sums.append(total)
    return jnp.stack(sums, axis=2)


def _materialise(x: Array) -> Array:
    """Returns x, which XLA on a CPU then computes once instead of for each use.

    There x is the result of a branch, which XLA keeps. The branch not taken is for an x whose first element
    is NaN: all of it is then NaN.
    """

    def by_branch() -> Array:
        is_nan = jnp.isnan(x.reshape(-1)[0])
        branch: Array = jax.lax.cond(is_nan, lambda: jnp.full_like(x, jnp.nan), lambda: x)
        return branch

    materialised: Array = jax.lax.platform_dependent(cpu=by_branch, default=lambda: x)
    return materialised


@jax.custom_vjp
def _rectified_maxima(products: Array, bias: Array) -> Array:
    """Computes ReLU(maxima + bias): maxima over the first axis of (4, features, n), bias (features,)."""
    return jnp.maximum(_compute_largest(products) + bias[:, None], 0)


def _compute_largest(products: Array) -> Array:
    """Computes the maxima over the first axis, which has length 4."""
    first, second, third, fourth = products
    return jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))


def _rectified_forward(products: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    """Computes the maxima and saves what their gradient needs."""
    value: Array = _rectified_maxima(products, bias)
    return value, (products, value)


def _rectified_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    """Returns the gradients at the products (4, features, n), shared among equals, and at the bias.

    Args:
      saved: the products, and ReLU of their maxima plus the bias (features, n), 0 where no gradient passes.
      gradient: at that result.
    """
    products, value = saved
    at_bias = jnp.where(value > 0, gradient, 0)
    is_largest = products == _compute_largest(products)
    share = at_bias / jnp.sum(is_largest, axis=0)
    at_products = jnp.where(is_largest, share, 0)
    return at_products, jnp.sum(at_bias, axis=1)


_rectified_maxima.defvjp(_rectified_forward, _rectified_backward)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2).

    The gradient goes to the upper left of equal pixels, and is written where it belongs instead of scattered.
    """
    maxima: Array = jax.lax.platform_dependent(x, cpu=_pool_in_halves, default=_pool)
    return maxima


def _pool_in_halves(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels in two halves of the channels, which are then joined.

    XLA on a CPU stores what is joined, and would compute anything else anew for each use.
    """
    half = x.shape[-3] // 2
    maxima = [_pool(x[..., :half, :, :]), _pool(x[..., half:, :, :])]
    return jnp.concatenate(maxima, axis=-3)


def _pool(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2): of rows, then of columns."""
    upper = x[..., 0::2, :]
    lower = x[..., 1::2, :]
    rows = jnp.maximum(upper, lower)
    left = rows[..., 0::2]
    right = rows[..., 1::2]
    return jnp.maximum(left, right)


def _max_pool_forward(x: Array) -> tuple[Array, Array]:
    """Computes the maxima and saves the pixels."""
    return max_pool(x), x


def _max_pool_backward(x: Array, gradient: Array) -> tuple[Array]:
    """Returns the gradient at the pixels x (..., C, H, W), from that at the maxima.

    A CPU takes two passes: in a single pass, the ConvNet's step would take half as long again there.
    """
    at_pixels: Array = jax.lax.platform_dependent(
        x, gradient, cpu=_place_in_two_passes, default=_place_at_once
    )
    return (at_pixels,)


def _place_in_two_passes(x: Array, gradient: Array) -> Array:
    """Writes the gradients of the maxima at their pixels x, first by column, then by row.

    Of equal pixels the left, then the upper, gets the gradient.
    """
    upper = x[..., 0::2, :]
    lower = x[..., 1::2, :]
    rows = jnp.maximum(upper, lower)
    left = rows[..., 0::2]
    right = rows[..., 1::2]
    by_row = _interleave(left >= right, gradient, -1)
    return _interleave(upper >= lower, by_row, -2)


def _place_at_once(x: Array, gradient: Array) -> Array:
    """Writes the gradients of the maxima at their pixels x in a single expression, square by square.

    A pixel is chosen where it is the first of its row if the row's first is the larger, else the second;
    likewise by column. Of equal pixels the left, then the upper, is chosen.
    """
    *leading_axes, height, width = x.shape
    squares = x.reshape(*leading_axes, height // 2, 2, width // 2, 2)
    rows = squares.max(-3, keepdims=True)
    from_left = rows[..., :1] >= rows[..., 1:]
    from_upper = squares[..., :1, :, :] >= squares[..., 1:, :, :]
    is_first = jnp.arange(2) == 0
    is_column = is_first == from_left
    is_row = is_first[:, None, None] == from_upper
    is_chosen = is_column & is_row
    by_square = gradient[..., :, None, :, None]
    return jnp.where(is_chosen, by_square, 0).reshape(x.shape)


def _interleave(is_first: Array, value: Array, axis: int) -> Array:
    """Doubles an axis: each value becomes the pair (value, 0) where `is_first`, else (0, value).

    Args:
      is_first: of the shape of `value`.
      value: the gradients to place.
      axis: counted from the end, below 0.
    """
    first = jnp.where(is_first, value, 0)
    second = jnp.where(is_first, 0, value)
    pair = jnp.stack([first, second], axis=axis % value.ndim + 1)
    shape = list(value.shape)
    shape[axis] *= 2
    return pair.reshape(shape)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def average_pool(x: Array) -> Array:
    """Computes means of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2)."""
    rows = x[..., 0::2, :] + x[..., 1::2, :]
    return (rows[..., 0::2] + rows[..., 1::2]) / 4


def channels_first(x: Array) -> Array:
    """Moves channels before pixels: (..., H, W, C) -> (..., C, H, W).

    On a CPU channels are joined, so that XLA keeps them (see `_pool_in_halves`).
    """

    def join_channels(x: Array) -> Array:
        channels = [x[..., channel] for channel in range(x.shape[-1])]
        return jnp.stack(channels, axis=-3)

    def move_axis(x: Array) -> Array:
        return jnp.moveaxis(x, -1, -3)

    moved: Array = jax.lax.platform_dependent(x, cpu=join_channels, default=move_axis)
    return moved


def normalised(
    pixels: Array,
    mean: float | tuple[float, ...],
    deviation: float | tuple[float, ...],
) -> Array:
    """Turns bytes (..., C) into floats on [0, 1], minus their mean, over their standard deviation.

    Args:
      pixels: uint8.
      mean: of all pixels, or of each channel.
      deviation: the standard deviation, likewise.
    """
    scaled = pixels.astype(jnp.float32) / 255
    centred = scaled - jnp.array(mean, jnp.float32)
    return centred / jnp.array(deviation, jnp.float32)
