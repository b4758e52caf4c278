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
    kernel (w, w, C, features) and a bias (features,). Clipping layer by layer
    (`audit.mechanism.clipping.layers`) calls `unfold`, `fold` and `output_shape`.

    Attributes:
      features: the number of output channels.
      window: w, the side of the window in pixels.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the convolution (..., features, H - w + 1, W - w + 1) of images (..., C, H, W).

        The kernel has w = `window` pixels a side, and there is no padding. The convolution is computed as the
        product of the kernel, as a matrix, with all patches.
        """
        channels = x.shape[-3]
        kernel, bias = _declare_parameters(self, channels)
        matrix = kernel.reshape(-1, self.features)  # (w w C, features)
        product = matrix.T @ self.unfold(x) + bias[:, None]
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Cuts images (..., C, H, W) into patches (..., K, L), as im2col does.

        A patch has K = w w C pixels. There is a patch at each of the L pixels of the output.

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
        """Returns the gradient of a loss at the images x, from its gradient at kernel.T @ unfold(x).

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient of the loss at the product.
          x: (..., C, H, W), the images.

        Returns:
          The gradient, of the shape of x.
        """
        folded: Array = jax.lax.platform_dependent(
            kernel, gradient, x, cpu=self._fold_columns, default=self._fold_patches
        )
        return folded

    def _fold_patches(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Computes `fold` by way of the gradients at all patches, which the transpose of `unfold` adds up.

        For devices other than CPUs: with `_fold_columns` the ConvNet's program for a TPU v5e would move eight
        times the bytes.

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient of the loss at kernel.T @ unfold(x).
          x: (..., C, H, W), the images.
        """
        patch_gradients = jnp.broadcast_to(kernel, (*x.shape[:-3], *kernel.shape)) @ gradient
        _, transpose_unfold = jax.vjp(self.unfold, x)
        folded: Array = transpose_unfold(patch_gradients)[0]
        return folded

    def _fold_columns(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Computes `fold` for CPUs, one column of the window at a time.

        A matrix product sums over the output's channels and the window's rows, and gives a part of the
        gradient for each of the w columns. The parts are then shifted and added. The array of all patches'
        gradients, which `_fold_patches` makes, would be w (H - w + 1) / H times as large as the parts.

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient of the loss at kernel.T @ unfold(x).
          x: (..., C, H, W), the images.
        """
        window = self.window
        leading_axes = x.shape[:-3]
        channels, height, width = x.shape[-3:]
        output_width = width - window + 1

        # For row i of the window, the output's gradient is moved down by i rows, between zeros.
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

        # The part of column j of the window is moved right by j pixels.
        no_padding = ((0, 0),) * (len(leading_axes) + 2)
        total = jnp.zeros(())
        for j in range(window):
            padding = (*no_padding, (j, window - 1 - j))
            total = total + jnp.pad(parts[..., j, :, :, :], padding)
        return total

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """Returns the shape of the output of an image: (features, H - w + 1, W - w + 1)."""
        height, width = x.shape[-2:]
        return self.features, height - self.window + 1, width - self.window + 1


class PooledConvolution(nn.Module):
    """A convolution, 2 x 2 max-pooling and ReLU in a single layer, for a batch of images on the last axis.

    It maps (C, H, W, B) to (features, (H - w + 1) / 2, (W - w + 1) / 2, B), with the parameters of
    flax.linen.Conv with a square window, stride 1 and no padding: a kernel (w, w, C, features) and a bias.
    Where several of the 2 x 2 pixels are largest, they share the gradient equally.

    The four pixels that max-pooling compares depend on one window of w + 1 pixels a side. So the layer
    multiplies each such window by four shifted copies of the kernel. For w = 5 this takes a third of the
    memory of patches and 1.4 times the arithmetic, but in wider matrix products, and the sums of their
    gradients are a quarter as long.

    No array belongs to a single example: the layer is for the mean gradient of a batch, such as a client's.

    Attributes:
      features: the number of output channels.
      window: w, the side of the window in pixels.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the convolution of a batch of images (C, H, W, B), after 2 x 2 max-pooling and ReLU.

        The result is (features, (H - w + 1) / 2, (W - w + 1) / 2, B), as the kernel has w = `window` pixels a
        side and there is no padding.
        """
        channels = len(x)
        kernel, bias = _declare_parameters(self, channels)
        # The four pixels that max-pooling compares depend on a window of w + 1 pixels a side. Each of them is
        # the window's product with a shifted copy of the kernel.
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
    """Returns four shifted copies of a kernel (w, w, C, O), as a matrix (K, 4 O).

    Each copy fills a window of w + 1 pixels a side, with zeros in the row and the column that the kernel
    leaves free. K is (w + 1)^2 C. The matrix's columns are ordered by the kernel's place (upper left, upper
    right, lower left, lower right), then by output channel.
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
    """Cuts a square window at every second pixel: (C, H, W, B) -> (side * side * C, rows, columns, B).

    The windows' places are on the axes (rows, columns). The first axis lists the pixels of a window, ordered
    by row, column and channel.
    """
    pixels = _materialise(x)
    height = x.shape[1] - side + 1
    width = x.shape[2] - side + 1
    columns = [pixels[:, :, j : j + width : 2] for j in range(side)]
    joined = jnp.concatenate(columns)
    rows = [joined[:, i : i + height : 2] for i in range(side)]
    return jnp.concatenate(rows)


def _cut_windows_forward(side: int, x: Array) -> tuple[Array, None]:
    """Cuts windows; saves nothing, since the gradient does not depend on the pixels."""
    return _cut_windows(side, x), None


def _cut_windows_backward(side: int, _: None, gradient: Array) -> tuple[Array]:
    """Returns the gradient at the pixels (C, H, W, B), from `gradient` at the windows.

    A pixel's gradient is the sum of those of the windows that hold it. Adds whole rows, then whole columns:
    on a CPU, a third of the time of XLA's own transpose. The second argument is what the forward pass saves,
    which is nothing.
    """
    # A window's first axis is split into its rows, its columns and C.
    pieces = gradient.reshape(side, side, -1, *gradient.shape[1:])
    lines = _overlap_add(pieces)  # (columns of a window, C, H, columns of windows, B)
    return (_materialise(_overlap_add(lines)),)


_cut_windows.defvjp(_cut_windows_forward, _cut_windows_backward)


def _overlap_add(pieces: Array) -> Array:
    """Adds up pieces that overlap along an axis: element i of piece j goes to place 2 i + j.

    Args:
      pieces: (number, a, b, length, ...), `number` pieces of `length` elements, which are arrays (a, b, ...).

    Returns:
      (a, b, places, ...), with 2 * length + number - 2 places.
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
    """Returns x, and makes XLA on a CPU compute it once instead of once for each use.

    XLA stores the result of a conditional. So on a CPU x passes through one whose condition XLA cannot know:
    whether its first element is NaN. If it is, the result is NaN throughout.
    """

    def by_branch() -> Array:
        """Passes x through a conditional, whose result XLA stores."""
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
    """Returns the gradients at the products (4, features, n) and at the bias (features,).

    Of the four products, those that are largest share the gradient equally.

    Args:
      saved: (products, value) with value (features, n) = ReLU(maxima of the products + bias).
      gradient: (features, n), the gradient at `value`.
    """
    products, value = saved
    before_relu = jnp.where(value > 0, gradient, 0)
    is_largest = products == _compute_largest(products)
    share = before_relu / jnp.sum(is_largest, axis=0)
    at_products = jnp.where(is_largest, share, 0)
    return at_products, jnp.sum(before_relu, axis=1)


_rectified_maxima.defvjp(_rectified_forward, _rectified_backward)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2).

    Of equal pixels, the left and then the upper gets the gradient. The gradient is computed by selecting, not
    by scattering.
    """
    maxima: Array = jax.lax.platform_dependent(x, cpu=_pool_in_halves, default=_pool)
    return maxima


def _pool_in_halves(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2), for a CPU.

    The maxima are computed for each half of the channels, and the halves joined, because XLA on a CPU stores
    the result of joining. Otherwise it would compute the maxima anew for each use.
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
    """Returns the gradient at the pixels x (..., C, H, W), from `gradient` at the maxima of 2 x 2 pixels.

    Chooses the left or the right pair of each square, then the upper or the lower pixel of the pair. Of
    equals, the left, then the upper, gets the gradient.
    """
    upper = x[..., 0::2, :]
    lower = x[..., 1::2, :]
    pair_maxima = jnp.maximum(upper, lower)
    left = pair_maxima[..., 0::2]
    right = pair_maxima[..., 1::2]
    at_pairs = _interleave(left >= right, gradient, -1)
    return _interleave(upper >= lower, at_pairs, -2)


def _place_at_once(x: Array, gradient: Array) -> Array:
    """Returns the gradient at the pixels x (..., C, H, W), from `gradient` at the maxima of 2 x 2 pixels.

    In each square, chooses the column with the larger maximum, then the larger pixel of that column. Of
    equals, the left, then the upper, is chosen. A single expression does it for all pixels.
    """
    *leading_axes, height, width = x.shape
    squares = x.reshape(*leading_axes, height // 2, 2, width // 2, 2)
    column_maxima = squares.max(-3, keepdims=True)
    from_left = column_maxima[..., :1] >= column_maxima[..., 1:]
    from_upper = squares[..., :1, :, :] >= squares[..., 1:, :, :]
    is_first = jnp.arange(2) == 0  # of a square's two columns the left, of its two rows the upper
    in_chosen_column = is_first == from_left
    in_chosen_row = is_first[:, None, None] == from_upper
    is_chosen = in_chosen_column & in_chosen_row
    by_square = gradient[..., :, None, :, None]  # the same for all four pixels of a square
    return jnp.where(is_chosen, by_square, 0).reshape(x.shape)


def _interleave(is_first: Array, value: Array, axis: int) -> Array:
    """Doubles an axis: each value becomes the pair (value, 0) where `is_first`, else (0, value).

    Args:
      is_first: booleans, of the shape of `value`.
      value: the gradients to place.
      axis: the axis to double, counted from the end (below 0).
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

    On a CPU the channels are taken apart and joined: XLA stores the result of joining, and would otherwise
    compute it anew for each use.
    """

    def join_channels(x: Array) -> Array:
        """Takes the channels apart and joins them, for a CPU."""
        channels = [x[..., channel] for channel in range(x.shape[-1])]
        return jnp.stack(channels, axis=-3)

    def move_axis(x: Array) -> Array:
        """Moves the channels' axis, for all other devices."""
        return jnp.moveaxis(x, -1, -3)

    moved: Array = jax.lax.platform_dependent(x, cpu=join_channels, default=move_axis)
    return moved


def normalised(
    pixels: Array,
    mean: float | tuple[float, ...],
    deviation: float | tuple[float, ...],
) -> Array:
    """Returns standardised pixels: (pixels / 255 - mean) / deviation, as float32.

    Args:
      pixels: (..., C) uint8.
      mean: the mean of the pixels on [0, 1], one for all or one for each channel.
      deviation: their standard deviation, likewise.
    """
    scaled = pixels.astype(jnp.float32) / 255
    centred = scaled - jnp.array(mean, jnp.float32)
    return centred / jnp.array(deviation, jnp.float32)
