"""Layers for image networks.

Convolutions and pooling put channels first, which is faster for small images, because processors then work on
whole rows of pixels.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Convolution(nn.Module):
    """A convolution with a square window, stride 1 and no padding, channels first.

    Below, w is `window`. Like flax.linen.Conv, it has a kernel (w, w, C, features) and a bias (features,).
    Layerwise clipping (`audit.mechanism.clipping.layers`) calls `unfold`, `fold` and `output_shape`.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns the convolution (..., features, H - w + 1, W - w + 1) of images (..., C, H, W)."""
        shape = (self.window, self.window, x.shape[-3], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        matrix = kernel.reshape(-1, self.features)  # (w w C, features)
        product = matrix.T @ self.unfold(x) + bias[:, None]  # (..., features, pixels)
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Returns the patches of images (..., C, H, W) as columns (..., K, L), as im2col does.

        Each of the L output pixels depends on a patch of K = w w C values.
        """
        leading_axes = x.shape[:-3]
        input_height = x.shape[-2]
        _, height, width = self.output_shape(x)

        # Shift the image left by j = 0 to w - 1 columns, crop the results to the output width, and join them
        # into (..., w C, H * width). The barrier makes XLA store the result once.
        column_shifts = [x[..., j : j + width] for j in range(self.window)]
        joined = jnp.concatenate(column_shifts, axis=-3)
        flat = joined.reshape(*leading_axes, -1, input_height * width)
        flat = jax.lax.optimization_barrier(flat)

        # A shift up by i rows is then a slice of contiguous memory.
        row_shifts = []
        for i in range(self.window):
            start = i * width
            row_shifts.append(flat[..., start : start + height * width])
        return jnp.concatenate(row_shifts, axis=-2)

    def fold(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Propagates the gradient from kernel.T @ unfold(x) back to images x (..., C, H, W).

        This is the transpose of `unfold`, applied to kernel @ gradient: each gradient is multiplied by the
        kernel and added to the w x w pixels that its window reads. To save memory, we sum over the window's
        rows within the product, and over its columns afterwards.

        Args:
          kernel: (K, O). Its rows are ordered by (window row, window column, channel).
          gradient: (..., O, L), the gradient with respect to kernel.T @ unfold(x).
          x: the images; only their shape matters.
        """
        window = self.window  # w
        leading_axes = x.shape[:-3]
        channels, height, width = x.shape[-3:]
        output_width = width - window + 1

        # Row i of the window reads the image i rows below an output pixel. So for each i we move the gradient
        # down by i rows of `output_width` pixels, and pad it to the image's H rows. With w = 2 and two rows a
        # and b of output pixels, `padded` is 0ab0, and the shifted gradients are ab0 and 0ab.
        margin = (window - 1) * output_width
        zeros = jnp.zeros((*gradient.shape[:-1], margin), gradient.dtype)
        padded = jnp.concatenate([zeros, gradient, zeros], axis=-1)
        shifted = []
        for i in range(window):
            start = margin - i * output_width
            shifted.append(padded[..., start : start + height * output_width])
        gradients = jnp.concatenate(shifted, axis=-2)  # (..., w O, H (W - w + 1))

        # The product sums over the window's rows i and the O channels. We repeat the kernel for each image,
        # because XLA then computes a batched product without transpositions.
        kernel_rows = list(kernel.reshape(window, window * channels, -1))
        kernels = jnp.concatenate(kernel_rows, axis=-1)  # (w C, w O)
        parts = jnp.broadcast_to(kernels, (*leading_axes, *kernels.shape)) @ gradients
        parts = parts.reshape(*leading_axes, window, channels, height, output_width)

        # Move the part for window column j right by j pixels, pad it to the image width, and add it.
        no_padding = ((0, 0),) * (x.ndim - 1)  # for all axes except the last
        total = jnp.zeros(())
        for j in range(window):
            total = total + jnp.pad(parts[..., j, :, :, :], (*no_padding, (j, window - 1 - j)))
        return total

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """Returns the output's shape for images (..., C, H, W): (features, H - w + 1, W - w + 1)."""
        height, width = x.shape[-2:]
        return self.features, height - self.window + 1, width - self.window + 1


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Computes the maxima of 2 x 2 blocks, (..., C, H, W) -> (..., C, H / 2, W / 2).

    In each block, the gradient goes to a single pixel: the largest or, in case of ties, the upper one in the
    leftmost column. Finding this pixel by comparison is faster than using JAX's derivatives of the maximum
    or of flax.linen.max_pool.
    """
    # On a CPU, XLA would recompute maxima for each use, but it stores joined arrays. So we join two halves.
    half = x.shape[-3] // 2
    maxima = [_pool(x[..., :half, :, :]), _pool(x[..., half:, :, :])]
    return jnp.concatenate(maxima, axis=-3)


def _pool(x: Array) -> Array:
    """Computes the maxima of 2 x 2 blocks, (..., C, H, W) -> (..., C, H / 2, W / 2)."""
    rows = jnp.maximum(x[..., 0::2, :], x[..., 1::2, :])
    return jnp.maximum(rows[..., 0::2], rows[..., 1::2])


def _max_pool_forward(x: Array) -> tuple[Array, Array]:
    """Returns the maxima, and the pixels for `_max_pool_backward`."""
    return max_pool(x), x


def _max_pool_backward(x: Array, gradient: Array) -> tuple[Array]:
    """Propagates the gradient from the maxima back to the pixels x (..., C, H, W)."""
    upper = x[..., 0::2, :]
    lower = x[..., 1::2, :]
    rows = jnp.maximum(upper, lower)  # (..., C, H / 2, W), then pooled horizontally
    is_left = rows[..., 0::2] >= rows[..., 1::2]
    row_gradient = _interleave(is_left, gradient, axis=-1)
    return (_interleave(upper >= lower, row_gradient, axis=-2),)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def _interleave(is_first: Array, value: Array, axis: int) -> Array:
    """Doubles the length of `axis` (-1 or -2): values become (value, 0) where `is_first`, else (0, value)."""
    first = jnp.where(is_first, value, 0)
    second = jnp.where(is_first, 0, value)
    pairs = jnp.stack([first, second], axis)  # the new axis, of length 2, follows the doubled one
    shape = list(value.shape)
    shape[axis] *= 2
    return pairs.reshape(shape)


def average_pool(x: Array) -> Array:
    """Computes the means of 2 x 2 blocks, (..., C, H, W) -> (..., C, H / 2, W / 2)."""
    rows = x[..., 0::2, :] + x[..., 1::2, :]  # sums of two rows
    return (rows[..., 0::2] + rows[..., 1::2]) / 4


def channels_first(x: Array) -> Array:
    """Moves channels before pixels: (..., H, W, C) -> (..., C, H, W).

    On CPUs, XLA would repeat a transposition for each use, so we split and join the channels.
    """
    channels = [x[..., channel] for channel in range(x.shape[-1])]
    return jnp.stack(channels, axis=-3)


def normalised(
    pixels: Array,
    mean: float | tuple[float, ...],
    deviation: float | tuple[float, ...],
) -> Array:
    """Returns uint8 pixels (..., C) as float32, standardised: (pixels / 255 - mean) / deviation.

    `mean` and `deviation` describe pixels on [0, 1]: one number for all channels, or one per channel.
    """
    scaled = pixels.astype(jnp.float32) / 255
    return (scaled - jnp.array(mean, jnp.float32)) / jnp.array(deviation, jnp.float32)
