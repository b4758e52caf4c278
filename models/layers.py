"""Layers of networks for images. Convolutions and pooling are channels first: processors that add and
multiply whole rows of pixels are then fast on narrow ones, as patches times a matrix."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Convolution(nn.Module):
    """flax.linen.Conv with a square window, stride 1 and no padding, channels first:
    (..., C, H, W) -> (..., features, H - w + 1, W - w + 1), with Conv's parameters (w, w, C, features).

    Book-keeping reads `unfold` and `output_shape`.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.window, self.window, x.shape[-3], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        product = kernel.reshape(-1, self.features).T @ self.unfold(x) + bias[:, None]
        return product.reshape(*x.shape[:-3], *self.output_shape(x))

    def unfold(self, x: Array) -> Array:
        """Patches (..., K, L) of images (..., C, H, W), first by columns, then by rows, which are whole
        pieces of memory: half the time of one cut after the other."""
        (_, height, width), window = self.output_shape(x), range(self.window)
        lead = x.shape[:-3]
        columns = jnp.concatenate([x[..., j : j + width] for j in window], axis=-3)
        flat = jax.lax.optimization_barrier(columns.reshape(*lead, -1, x.shape[-2] * width))
        return jnp.concatenate([flat[..., i * width : (i + height) * width] for i in window], axis=-2)

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """(features, H - w + 1, W - w + 1)."""
        return self.features, x.shape[-2] - self.window + 1, x.shape[-1] - self.window + 1


class BatchLastConvolution(nn.Module):
    """flax.linen.Conv with a square window, stride 1 and no padding, of a batch on the last axis:
    (C, H, W, B) -> (features, H - w + 1, W - w + 1, B), with Conv's parameters (w, w, C, features).

    Patches are whole pieces of memory and meet the kernel in one product, as they do for its gradient; what
    is one example's alone is never formed. For a batch's mean gradient, of one client say.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        channels, rows, columns, batch = x.shape
        height, width = rows - self.window + 1, columns - self.window + 1
        shape = (self.window, self.window, channels, self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        shifted = jnp.concatenate([x[:, :, j : j + width] for j in range(self.window)])
        lines = shifted.reshape(self.window * channels, rows, -1)
        patches = jnp.concatenate([lines[:, i : i + height] for i in range(self.window)])
        product = kernel.reshape(-1, self.features).T @ patches.reshape(len(patches), -1)
        return (product + bias[:, None]).reshape(self.features, height, width, batch)


def batch_last_max_pool(x: Array) -> Array:
    """Maxima of 2 x 2 pixels, (C, H, W, B) -> (C, H / 2, W / 2, B); equals share the gradient."""
    rows = jnp.maximum(x[:, 0::2], x[:, 1::2])
    return jnp.maximum(rows[:, :, 0::2], rows[:, :, 1::2])


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2). The gradient goes to the upper
    and left one of equals, and is written where it belongs instead of scattered."""
    rows = jnp.maximum(x[..., 0::2, :], x[..., 1::2, :])
    return jnp.maximum(rows[..., 0::2], rows[..., 1::2])


def _max_pool_backward(x: Array, gradient: Array) -> tuple[Array]:
    """The gradient at the pixels."""
    upper, lower = x[..., 0::2, :], x[..., 1::2, :]
    rows = jnp.maximum(upper, lower)
    by_row = _choose(rows[..., 0::2] >= rows[..., 1::2], gradient, -1)
    return (_choose(upper >= lower, by_row, -2),)


def _choose(first: Array, value: Array, axis: int) -> Array:
    """The value where `first`, then 0, or 0, then the value: twice as long along an axis from the end."""
    pair = jnp.stack([jnp.where(first, value, 0), jnp.where(first, 0, value)], axis=axis % value.ndim + 1)
    shape = list(value.shape)
    shape[axis] *= 2
    return pair.reshape(shape)


max_pool.defvjp(lambda x: (max_pool(x), x), _max_pool_backward)


def flat_features(x: Array, mean: float, deviation: float) -> Array:
    """Features of one example: pixels of uint8, on [0, 1], minus their mean, over their deviation,
    flattened; floats as they are, so that what is no image (a canary, say) can be fed in too."""
    if x.dtype != jnp.uint8:
        return x
    return ((x.astype(jnp.float32) / 255 - mean) / deviation).reshape(-1)
