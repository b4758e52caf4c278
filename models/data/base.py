"""Images in classes: the result of a loader whose images come with a test split."""

from typing import NamedTuple

import numpy as np

from audit.errors import require

IMAGE_ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


class ImageDataset(NamedTuple):
    """Images in classes, as bytes: 8 bits a channel travel and rest, a device makes floats.

    Attributes:
      train_images: (N, height, width) uint8 of one channel, or (N, height, width, 3), RGB.
      train_labels: (N,) int32, from 0.
      test_images: (M, ...) uint8.
      test_labels: (M,) int32.
      source: one line that says where the arrays came from.
      checksum: SHA-256, in hex, of the four arrays (see `audit.task.checksum_of`).
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    source: str
    checksum: str


def image_arrays(
    train_images: np.ndarray, train_labels: np.ndarray, test_images: np.ndarray, test_labels: np.ndarray
) -> dict[str, np.ndarray]:
    """The four arrays under the names of an ImageDataset."""
    return dict(zip(IMAGE_ARRAYS, (train_images, train_labels, test_images, test_labels), strict=True))


def canonical_images(
    raw: dict[str, np.ndarray], shape: tuple[int, ...], classes: int
) -> dict[str, np.ndarray]:
    """The four arrays of an ImageDataset, contiguous and writeable, in their order, with labels as int32.

    Args:
      raw: arrays by name; those of other names are dropped.
      shape: of one image.
      classes: how many labels there are; they count from 0.

    Raises:
      InputError: an array is missing, or is not of the shape and kind asked for.
    """
    missing = [name for name in IMAGE_ARRAYS if name not in raw]
    require(not missing, f"array {', '.join(missing)} is missing; it has {list(raw)}"[:300])
    canonical = {}
    for images, labels in (IMAGE_ARRAYS[:2], IMAGE_ARRAYS[2:]):
        canonical[images] = _canonical_images(images, raw[images], shape)
        canonical[labels] = _canonical_labels(labels, raw[labels], len(canonical[images]), classes)
    return canonical


def _canonical_images(name: str, images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    fits = images.dtype == np.uint8 and images.shape[1:] == shape and len(images) > 0
    expected = ", ".join(map(str, shape))
    require(fits, f"{name} is {images.dtype} {images.shape}, not uint8 (n, {expected})")
    return np.require(images, requirements=("C", "W"))


def _canonical_labels(name: str, labels: np.ndarray, count: int, classes: int) -> np.ndarray:
    fits = np.issubdtype(labels.dtype, np.integer) and labels.shape == (count,)
    require(fits, f"{name} is {labels.dtype} {labels.shape}, not integers ({count},)")
    strays = labels[(labels < 0) | (labels >= classes)]
    require(not len(strays), f"{name} holds {strays[:1].tolist()}, not only 0 to {classes - 1}")
    return labels.astype("<i4")
