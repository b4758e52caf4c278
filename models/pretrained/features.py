"""A frozen network's features of CIFAR-10's training images: computed once, stored beside the data.

Only the last layer of a pretrained network is trained with DP-SGD (hidden-state paper, Remark 2 and Figure
13); all below it is a constant function of an image, so its outputs are the data.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from tqdm import tqdm

from audit.errors import require
from audit.tasks.task import Dataset, checksum_of
from models.data.formats import Arrays
from models.data.images import ImageDataset
from models.data.sources import LoadedArrays, cache_folder, load_through_cache

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # of a pixel's R, G and B, on [0, 1]
IMAGENET_STD = (0.229, 0.224, 0.225)
LARGEST_SIZE = 512


class Body(NamedTuple):
    """A network up to the last layer, with torchvision's architecture and names.

    Attributes:
      name: the network's name, as torchvision spells it.
      n_features: K, the number of features.
      default_size: the side in pixels to which images are resized by default.
      smallest_size: the smallest side that the network takes.
      batch: the number of images that are computed at once, the fastest on two cores.
      load: a function from the path of a weights file, or None for its own source, to the checked arrays.
      make_parameters: a function from the arrays to the parameters that `apply` takes.
      apply: (parameters, normalised images (B, S, S, 3)) -> features (B, K).
    """

    name: str
    n_features: int
    default_size: int
    smallest_size: int
    batch: int
    load: Callable[[str | None], LoadedArrays]
    make_parameters: Callable[[Arrays], Any]
    apply: Callable[[Any, Array], Array]


def frozen_features(
    body: Body,
    load_images: Callable[[], ImageDataset],
    *,
    weights: str | None = None,
    input_size: int | None = None,
    cache_dir: str | None = None,
) -> Dataset:
    """Returns a frozen network's outputs for training images, as features of a data set.

    They are computed once and stored.

    Args:
      body: the frozen network, up to its last layer.
      load_images: a function that loads the images; called after the size and the weights have been checked.
      weights: the path of a weights file; by default the body's own source is used.
      input_size: S, the side in pixels to which images are resized (see `normalise_images`); by default the
        body's.
      cache_dir: the folder where features are stored; by default beside the data.

    Returns:
      Features (N, K) float32, not standardised, and labels (N,), with a checksum over features, labels,
      images, weights and size.

    Raises:
      InputError: the size or the weights cannot be used.
    """
    size = body.default_size if input_size is None else input_size
    fits = body.smallest_size <= size <= LARGEST_SIZE
    require(
        fits,
        f"`input_size={size}`: give {body.smallest_size} to {LARGEST_SIZE} pixels for {body.name}",
    )
    loaded = body.load(weights)
    images = load_images()

    # The file's name depends on all that decides the features, so that none are read for another network.
    key = _digest(body.name, loaded.checksum, images.checksum, str(size))
    # Of the key, 16 hex digits suffice to tell a user's files apart.
    path = cache_folder(cache_dir) / f"{body.name}-{size}-{key[:16]}.npz"
    source = f"{body.name} features at {size} x {size} (weights: {loaded.source}; images: {images.source})"
    shape = (len(images.train_images), body.n_features)

    def compute() -> LoadedArrays:
        """Computes the features of all training images, where none are stored."""
        features = _compute_features(body, loaded.arrays, images.train_images, size)
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


def _compute_features(body: Body, arrays: Arrays, images: np.ndarray, size: int) -> np.ndarray:
    """Computes the features (N, K) of images (N, H, W, 3) of uint8, in batches, under a progress bar.

    Args:
      body: the frozen network.
      arrays: the network's weights, by name.
      images: the N images.
      size: the side in pixels to which they are resized.
    """
    parameters = jax.tree.map(jnp.asarray, body.make_parameters(arrays))

    @jax.jit
    def apply(parameters: Any, batch: Array) -> Array:
        """Returns the features (n, K) of a batch of images (n, H, W, 3) of uint8."""
        return body.apply(parameters, normalise_images(batch, size))

    features = np.empty((len(images), body.n_features), np.float32)
    with tqdm(total=len(images), unit="images", desc=f"{body.name} features") as bar:
        for first in range(0, len(images), body.batch):
            batch = images[first : first + body.batch]
            features[first : first + len(batch)] = apply(parameters, batch)
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
        "the weights give features that are not finite: name another file",
    )
    arrays = {"features": features}
    return LoadedArrays(arrays, source, checksum_of(arrays))


def _digest(*parts: str) -> str:
    """Returns the SHA-256, in hex, of strings joined by spaces."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()
