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
        product = matrix.T @ self.unfold(x) + bias[:, None]  # (..., features, pixels)
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Lists the patches of images: (..., C, H, W) -> (..., K, L), as im2col does.

        A patch is the w x w pixels, in all channels, on which a pixel of the output depends. It has K = w w C
        values, and there is a patch for each of the L pixels of the output.
        """
        leading_axes = x.shape[:-3]
        input_height = x.shape[-2]
        _, height, width = self.output_shape(x)

        # The image is shifted by 0 to w - 1 columns, and the shifted images, cut to the output's width, are
        # joined: (..., w C, H * width). The barrier makes XLA store them instead of making them for each row.
        columns = [x[..., j : j + width] for j in range(self.window)]
        joined = jnp.concatenate(columns, axis=-3)
        flat = joined.reshape(*leading_axes, -1, input_height * width)
        flat = jax.lax.optimization_barrier(flat)

        # A shift by i rows is now a slice of consecutive memory: half the time of cutting patch after patch.
        rows = [flat[..., i * width : (i + height) * width] for i in range(self.window)]
        return jnp.concatenate(rows, axis=-2)

    def fold(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Returns the gradient of a loss at the images x, from its gradient at kernel.T @ unfold(x).

        CPUs compute it in another way than other devices, with the same result up to rounding. Their way
        makes smaller arrays, but on a TPU it would move more bytes.

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
        """Computes `fold` by way of the gradients at all patches.

        The gradient at a pixel is the sum of those at its copies in all patches that hold it. The transpose
        of `unfold` adds them up.

        This is for devices other than CPUs. With `_fold_columns` instead, the program that trains the
        ConvNet would move eight times the bytes on a TPU v5e.

        Args:
          kernel: (K, O), the kernel as a matrix.
          gradient: (..., O, L), the gradient of the loss at kernel.T @ unfold(x).
          x: (..., C, H, W), the images.
        """
        # The kernel is repeated for each image: a product in batches. With a single kernel for all, JAX would
        # compute (K, ..., L) and then transpose it.
        kernels = jnp.broadcast_to(kernel, (*x.shape[:-3], *kernel.shape))
        patch_gradients = kernels @ gradient  # (..., K, L)
        _, transpose_unfold = jax.vjp(self.unfold, x)
        folded: Array = transpose_unfold(patch_gradients)[0]
        return folded

    def _fold_columns(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Computes `fold` for CPUs, one column of the window at a time.

        A matrix product sums over the output's channels and the window's rows, and gives a part of the
        gradient for each of the w columns. The parts are then shifted and added. The array of all patches'
        gradients, which `_fold_patches` makes, would be w (H - w + 1) / H times as large as the parts.

        Args:
          kernel: (K, O), the kernel as a matrix. K counts the window's rows, its columns and the channels,
            the last of them fastest.
          gradient: (..., O, L), the gradient of the loss at kernel.T @ unfold(x).
          x: (..., C, H, W), the images.
        """
        window = self.window  # w
        leading_axes = x.shape[:-3]
        channels, height, width = x.shape[-3:]
        output_width = width - window + 1

        # A pixel of the output depends, by row i of the window, on the image's row that is i rows further
        # down. So there is a copy of the output's gradient for each i, moved down by i rows and filled up
        # with zeros to the image's H rows. Pixels are flat: a row is `output_width` of them.
        margin = (window - 1) * output_width
        zeros = jnp.zeros((*gradient.shape[:-1], margin), gradient.dtype)
        padded = jnp.concatenate([zeros, gradient, zeros], axis=-1)
        starts = range(margin, -1, -output_width)  # for i = 0 to w - 1
        shifted = [padded[..., start : start + height * output_width] for start in starts]
        gradients = jnp.concatenate(shifted, axis=-2)  # (..., w O, H (W - w + 1))

        # The product sums over the window's rows i and the O channels of the output. The kernel is repeated
        # for each image: a product in batches, which transposes nothing.
        kernel_rows = list(kernel.reshape(window, window * channels, -1))
        kernels = jnp.concatenate(kernel_rows, axis=-1)  # (w C, w O)
        kernels = jnp.broadcast_to(kernels, (*leading_axes, *kernels.shape))
        parts = kernels @ gradients
        parts = parts.reshape(*leading_axes, window, channels, height, output_width)

        # The part of the window's column j is moved right by j pixels and filled up to the image's width W.
        no_padding = ((0, 0),) * (len(leading_axes) + 2)  # of all axes but the last
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
        # Max-pooling compares 2 x 2 pixels of the convolution. These four depend on a window of w + 1 pixels
        # a side: each is the product of that window with the kernel, shifted by 0 or 1 rows and 0 or 1
        # columns.
        windows = _cut_windows(self.window + 1, x)  # (K, rows, columns, B)
        product = _shift_kernel(kernel).T @ windows.reshape(len(windows), -1)
        products = product.reshape(4, self.features, -1)  # of the four pixels
        largest: Array = _rectified_maxima(products, bias)  # (features, rows * columns * B)
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
    pixels = _materialise(x)  # used `side` times below
    # A window can begin at any of so many rows and columns; every second of them is taken.
    first_rows = x.shape[1] - side + 1
    first_columns = x.shape[2] - side + 1
    columns = [pixels[:, :, j : j + first_columns : 2] for j in range(side)]
    joined = jnp.concatenate(columns)  # (side * C, H, columns, B)
    rows = [joined[:, i : i + first_rows : 2] for i in range(side)]
    return jnp.concatenate(rows)


def _cut_windows_forward(side: int, x: Array) -> tuple[Array, None]:
    """Cuts windows; saves nothing, since the gradient does not depend on the pixels."""
    return _cut_windows(side, x), None


def _cut_windows_backward(side: int, _: None, gradient: Array) -> tuple[Array]:
    """Returns the gradient at the pixels that `_cut_windows` cuts, from the gradient at the windows.

    A pixel's gradient is the sum of those at its copies in the windows that hold it. Adds whole rows, then
    whole columns: on a CPU, a third of the time of XLA's own transpose.

    Args:
      side: the side of a window in pixels.
      _: what the forward pass saves, which is nothing.
      gradient: (side * side * C, rows, columns, B), the gradient at the windows.

    Returns:
      The gradient at the pixels, (C, H, W, B).
    """
    # The first axis is split into a window's rows, a window's columns, and C.
    by_window = gradient.reshape(side, side, -1, *gradient.shape[1:])
    by_column = _overlap_add(by_window)  # rows are added: (side, C, H, columns, B)
    at_pixels = _overlap_add(by_column)  # columns are added: (C, H, W, B)
    # Stored, as the backward pass of a `PooledConvolution` below this layer uses it more than once.
    return (_materialise(at_pixels),)


_cut_windows.defvjp(_cut_windows_forward, _cut_windows_backward)


def _overlap_add(pieces: Array) -> Array:
    """Adds up pieces that overlap along an axis: element i of piece j goes to place 2 i + j.

    In windows at every second pixel, this is the place of pixel j of window i.

    Args:
      pieces: (number, a, b, length, ...), `number` pieces of `length` elements, which are arrays (a, b, ...).

    Returns:
      (a, b, places, ...), with 2 * length + number - 2 places.
    """
    number = len(pieces)
    length = pieces.shape[3]
    elements = jnp.moveaxis(pieces, 3, 1)  # (number, length, a, b, ...)
    sums = []
    for place in range(2 * length + number - 2):
        total: Any = 0
        for piece in range(place % 2, number, 2):  # those that make place - piece even
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
    """Returns the gradients at the two arguments of `_rectified_maxima`, the products and the bias.

    If several of the four products are equal and largest, they share the gradient equally.

    Args:
      saved: (products, value) with value (features, n) = ReLU(maxima of the products + bias).
      gradient: (features, n), the gradient at `value`.

    Returns:
      The gradients at the products (4, features, n) and at the bias (features,).
    """
    products, value = saved
    at_maxima = jnp.where(value > 0, gradient, 0)  # ReLU lets through what is above 0
    is_largest = products == _compute_largest(products)
    share = at_maxima / jnp.sum(is_largest, axis=0)
    at_products = jnp.where(is_largest, share, 0)
    at_bias = jnp.sum(at_maxima, axis=1)
    return at_products, at_bias


_rectified_maxima.defvjp(_rectified_forward, _rectified_backward)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Computes maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2).

    The gradient at a maximum goes to a single pixel: of equal pixels to the left, then to the upper.
    `_max_pool_backward` computes it by comparing pixels. This is faster than the gradient of
    flax.linen.max_pool, which XLA computes by scattering.
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
    """Returns the gradient of max pooling at the pixels x (..., C, H, W), from `gradient` at the maxima.

    In each square of 2 x 2 pixels it chooses the column with the larger maximum, then the larger pixel of
    that column. Of equals, the left, then the upper, is chosen. All four places are computed at once.
    """
    *leading_axes, height, width = x.shape
    # Of the last four axes, the second is a pixel's row in its square and the last its column there.
    squares = x.reshape(*leading_axes, height // 2, 2, width // 2, 2)
    column_maxima = squares.max(-3, keepdims=True)
    choose_left = column_maxima[..., :1] >= column_maxima[..., 1:]  # (..., H / 2, 1, W / 2, 1)
    upper = squares[..., :1, :, :]
    lower = squares[..., 1:, :, :]
    choose_upper = upper >= lower  # in each column: (..., H / 2, 1, W / 2, 2)
    # Along a square's two columns, and along its two rows, whose axis is the third from the end.
    is_left = jnp.array([True, False])
    is_upper = jnp.array([True, False])[:, None, None]
    # A pixel is in the chosen column if it is a left pixel and the left is chosen, or if neither holds;
    # likewise for rows.
    in_chosen_column = is_left == choose_left
    in_chosen_row = is_upper == choose_upper
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
    # The pair gets an axis of its own right after `axis`; the two axes are then joined.
    pair_axis = axis % value.ndim + 1  # counted from the start
    pairs = jnp.stack([first, second], axis=pair_axis)
    shape = list(value.shape)
    shape[axis] *= 2
    return pairs.reshape(shape)


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
      mean: the mean of the pixels, scaled to [0, 1]: a number for all channels, or a tuple with each
        channel's.
      deviation: their standard deviation, likewise.
    """
    scaled = pixels.astype(jnp.float32) / 255
    centred = scaled - jnp.array(mean, jnp.float32)
    return centred / jnp.array(deviation, jnp.float32)
