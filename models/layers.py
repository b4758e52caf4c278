"""Layers of networks for images. Convolutions and pooling are channels first: processors that add and
multiply whole rows of pixels are then fast on narrow ones, as patches times a matrix."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class Convolution(nn.Module):
    """flax.linen.Conv with a square window, stride 1 and no padding, channels first:
    (..., C, H, W) -> (..., features, H - w + 1, W - w + 1), with Conv's parameters (w, w, C, features).

    Book-keeping reads `unfold`, `fold` and `output_shape`.
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

    def fold(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """The gradient at x (..., C, H, W) of kernel.T @ unfold(x), from that (..., O, L) at the product."""
        found: Array = jax.lax.platform_dependent(
            kernel, gradient, x, cpu=self._fold_lines, default=self._fold_patches
        )
        return found

    def _fold_patches(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """As defined. By lines, the ConvNet's program for a TPU v5e would move eight times the bytes."""
        patches = jnp.broadcast_to(kernel, (*x.shape[:-3], *kernel.shape)) @ gradient
        found: Array = jax.vjp(self.unfold, x)[1](patches)[0]
        return found

    def _fold_lines(self, kernel: Array, gradient: Array, x: Array) -> Array:
        """Sums over features and rows at once: the patches' gradient would be 3.5 times as large."""
        lead, window, (channels, height, width) = x.shape[:-3], self.window, x.shape[-3:]
        across = width - window + 1
        edge = (window - 1) * across
        zeros = jnp.zeros((*gradient.shape[:-1], edge), gradient.dtype)
        padded = jnp.concatenate([zeros, gradient, zeros], axis=-1)
        starts = range(edge, -1, -across)
        moved = jnp.concatenate([padded[..., start : start + height * across] for start in starts], axis=-2)
        by_column = jnp.concatenate(list(kernel.reshape(window, window * channels, -1)), axis=-1)
        lines = jnp.broadcast_to(by_column, (*lead, *by_column.shape)) @ moved
        lines = lines.reshape(*lead, window, channels, height, across)
        sides = ((0, 0),) * (len(lead) + 2)
        columns = (jnp.pad(lines[..., j, :, :, :], (*sides, (j, window - 1 - j))) for j in range(window))
        return sum(columns, jnp.zeros(()))

    def output_shape(self, x: Array) -> tuple[int, int, int]:
        """(features, H - w + 1, W - w + 1)."""
        return self.features, x.shape[-2] - self.window + 1, x.shape[-1] - self.window + 1


class PooledConvolution(nn.Module):
    """flax.linen.Conv with a square window, stride 1 and no padding, the maxima of 2 x 2 of its pixels and
    ReLU, of a batch on the last axis: (C, H, W, B) -> (features, (H - w + 1) / 2, (W - w + 1) / 2, B), with
    Conv's parameters (w, w, C, features). Equals share the gradient.

    The four outputs of which the largest stays are four kernels' on one window of w + 1 pixels: for w = 5 a
    third of the patches' memory and 1.4 times the arithmetic, in products that are wider and whose gradients'
    sums are a quarter as long. What is one example's alone is never formed: for a batch's mean gradient, of
    one client say.
    """

    features: int
    window: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        shape = (self.window, self.window, len(x), self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros_init(), (self.features,))
        windows = _windows(self.window + 1, x)
        product = _competing(kernel).T @ windows.reshape(len(windows), -1)
        largest: Array = _rectified_maxima(product.reshape(4, self.features, -1), bias)
        return largest.reshape(self.features, *windows.shape[1:])


def _competing(kernel: Array) -> Array:
    moved = [jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in (0, 1) for j in (0, 1)]
    return jnp.concatenate([one.reshape(-1, kernel.shape[-1]) for one in moved], axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _windows(width: int, x: Array) -> Array:
    """Square windows, two pixels apart, (C, H, W, B) -> (width * width * C, windows, windows, B)."""
    pixels, height = _kept(x), x.shape[1] - width + 1
    lines = jnp.concatenate([pixels[:, :, j : x.shape[2] - width + 1 + j : 2] for j in range(width)])
    return jnp.concatenate([lines[:, i : height + i : 2] for i in range(width)])


def _windows_backward(width: int, _: None, gradient: Array) -> tuple[Array]:
    """The gradient at the pixels, in sums of whole lines: on a CPU a third of the time of XLA's own."""
    lines = _overlapped(gradient.reshape(width, width, -1, *gradient.shape[1:]), 2)
    return (_kept(_overlapped(lines, 2)),)


def _overlapped(pieces: Array, axis: int) -> Array:
    """Pieces (width, ...), each on every second place along an axis, summed one place after another."""
    width, length = len(pieces), pieces.shape[axis + 1]
    moved = jnp.moveaxis(pieces, axis + 1, 1)
    places = [
        sum(moved[i, (place - i) // 2] for i in range(place % 2, width, 2) if 0 <= place - i < 2 * length)
        for place in range(2 * length + width - 2)
    ]
    return jnp.stack(places, axis=axis)


_windows.defvjp(lambda width, x: (_windows(width, x), None), _windows_backward)


def _kept(x: Array) -> Array:
    """x, all of it NaN where its first element is: XLA on a CPU keeps a branch's result."""

    def by_branch() -> Array:
        undefined = jnp.isnan(x.reshape(-1)[0])
        branch: Array = jax.lax.cond(undefined, lambda: jnp.full_like(x, jnp.nan), lambda: x)
        return branch

    kept: Array = jax.lax.platform_dependent(cpu=by_branch, default=lambda: x)
    return kept


@jax.custom_vjp
def _rectified_maxima(products: Array, bias: Array) -> Array:
    """ReLU of the maxima of (4, features, n) over the first axis plus the bias (features,)."""
    return jnp.maximum(_largest(products) + bias[:, None], 0)


def _largest(products: Array) -> Array:
    first, second, third, fourth = products
    return jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))


def _rectified_forward(products: Array, bias: Array) -> tuple[Array, tuple[Array, Array]]:
    value: Array = _rectified_maxima(products, bias)
    return value, (products, value)


def _rectified_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    products, value = kept
    passed = jnp.where(value > 0, gradient, 0)
    chosen = products == _largest(products)
    shared = jnp.where(chosen, passed / jnp.sum(chosen, axis=0), 0)
    return shared, jnp.sum(passed, axis=1)


_rectified_maxima.defvjp(_rectified_forward, _rectified_backward)


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Maxima of 2 x 2 pixels, (..., C, H, W) -> (..., C, H / 2, W / 2). The gradient goes to the upper
    and left one of equals, and is written where it belongs instead of scattered."""
    maxima: Array = jax.lax.platform_dependent(x, cpu=_kept_maxima, default=_maxima)
    return maxima


def _kept_maxima(x: Array) -> Array:
    """In two halves. XLA keeps what is joined, and would on a CPU compute anything else anew for each use."""
    half = x.shape[-3] // 2
    return jnp.concatenate([_maxima(x[..., :half, :, :]), _maxima(x[..., half:, :, :])], axis=-3)


def _maxima(x: Array) -> Array:
    rows = jnp.maximum(x[..., 0::2, :], x[..., 1::2, :])
    return jnp.maximum(rows[..., 0::2], rows[..., 1::2])


def _max_pool_backward(x: Array, gradient: Array) -> tuple[Array]:
    """In one kernel; on a CPU, where the ConvNet's step would take half as long again, in two passes."""
    found: Array = jax.lax.platform_dependent(x, gradient, cpu=_in_two_passes, default=_at_once)
    return (found,)


def _in_two_passes(x: Array, gradient: Array) -> Array:
    upper, lower = x[..., 0::2, :], x[..., 1::2, :]
    rows = jnp.maximum(upper, lower)
    by_row = _choose(rows[..., 0::2] >= rows[..., 1::2], gradient, -1)
    return _choose(upper >= lower, by_row, -2)


def _at_once(x: Array, gradient: Array) -> Array:
    *lead, height, width = x.shape
    squares = x.reshape(*lead, height // 2, 2, width // 2, 2)
    rows = squares.max(-3, keepdims=True)
    from_left = rows[..., :1] >= rows[..., 1:]
    from_upper = squares[..., :1, :, :] >= squares[..., 1:, :, :]
    is_first = jnp.arange(2) == 0
    chosen = (is_first == from_left) & (is_first[:, None, None] == from_upper)
    return jnp.where(chosen, gradient[..., :, None, :, None], 0).reshape(x.shape)


def _choose(first: Array, value: Array, axis: int) -> Array:
    """The value where `first`, then 0, or 0, then the value: twice as long along an axis from the end."""
    pair = jnp.stack([jnp.where(first, value, 0), jnp.where(first, 0, value)], axis=axis % value.ndim + 1)
    shape = list(value.shape)
    shape[axis] *= 2
    return pair.reshape(shape)


max_pool.defvjp(lambda x: (max_pool(x), x), _max_pool_backward)


def channels_first(x: Array) -> Array:
    """(..., H, W, C) -> (..., C, H, W). On a CPU channels are joined, and so kept (see `_kept_maxima`)."""

    def joined(x: Array) -> Array:
        return jnp.stack([x[..., channel] for channel in range(x.shape[-1])], axis=-3)

    moved: Array = jax.lax.platform_dependent(x, cpu=joined, default=lambda x: jnp.moveaxis(x, -1, -3))
    return moved


def normalised(pixels: Array, mean: float | tuple[float, ...], deviation: float | tuple[float, ...]) -> Array:
    """Bytes (..., C) as floats on [0, 1], minus their mean, over their deviation, of all or each channel."""
    centred = pixels.astype(jnp.float32) / 255 - jnp.array(mean, jnp.float32)
    return centred / jnp.array(deviation, jnp.float32)
